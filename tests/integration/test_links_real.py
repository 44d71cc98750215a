"""What limits a real gloo job, over links that lack bandwidth, delay, lose packets, or wait for a slow rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tun_pair import TunPair, needs_tun

from timesyncd.audit.headline import exposed_part_lines
from timesyncd.audit.html import summary, write
from timesyncd.audit.report import AuditReport
from timesyncd.audit.script import environment
from timesyncd.jobs.recording_files import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), needs_tun]

pytest.importorskip("torch")

SCRIPT = str(Path(__file__).with_name("links_child.py"))


class Case(NamedTuple):
    """A link, the script's options, and what the audit has to name."""

    pair: TunPair
    options: tuple[str, ...]
    limit: str


CASES = {
    "rate": lambda: Case(TunPair(bytes_per_s=800_000), ("--large", str(128 << 10)), "bandwidth"),
    "delay": lambda: Case(TunPair(delay_s=0.01), (), "latency"),
    "loss": lambda: Case(TunPair(outage=(300, 0.1)), (), "loss"),
    "slow rank": lambda: Case(TunPair(), ("--slow", "1", "--slow-ms", "60"), "waiting"),
}


def audited(case: Case, folder: Path) -> AuditReport:
    """The report of the unmodified script, metered as run-audit meters it."""
    with case.pair as pair:
        pair.run([sys.executable, SCRIPT, *case.options], environment(os.environ, folder / "marks", "job"))
    return write(load(folder / "marks"), folder)


@pytest.mark.parametrize("name", CASES)
def test_what_limits_the_job_is_named_with_the_evidence_of_its_connections(name: str, tmp_path: Path) -> None:
    """Of four links the right one, in one line on the terminal and on the page, from the job's own sockets."""
    case = CASES[name]()
    found = audited(case, tmp_path)
    printed = "\n".join(exposed_part_lines(found))

    assert found.exposed_parts is not None and found.exposed_parts.limit == case.limit, printed
    assert found.network is not None
    assert sorted((link.rank, link.peer, link.address, link.interface) for link in found.network.links) == [
        (0, 1, case.pair.address(1), "eth0"),
        (1, 0, case.pair.address(0), "eth0"),
    ]
    for link in found.network.links:
        assert link.sent_bytes is not None and link.sent_bytes > 30 * (64 << 10)
        if name == "delay":
            assert link.min_rtt_ns is not None and link.min_rtt_ns >= 20_000_000
        if name == "loss":
            assert link.retransmitted >= 10 and link.segments is not None and link.segments < 10_000
    (line,) = (line for line in summary(found, tmp_path) if "segments" in line or "retransmitted nothing" in line)
    assert line in printed
    page = (tmp_path / "report.html").read_text()
    assert line.split(": ")[0] in page
    assert all(one.sent_bytes > 30 * (64 << 10) for one in found.network.interfaces) and found.network.interfaces
