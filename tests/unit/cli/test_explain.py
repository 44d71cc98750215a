"""`timesyncd explain`: the budget as tables of 80 columns, from the daemon or from the clock segment alone."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fake_view import RECORDED
from rich.console import Console, Group

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reason, Term, unbounded
from timesyncd.cli import explain
from timesyncd.cli._tables import budget_tables
from timesyncd.client import api
from timesyncd.clocks import SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.errors import Unreachable
from timesyncd.ipc import clock_segment
from timesyncd.ipc.seqlock import SegmentWriter
from timesyncd.messages.node import NodeState

URL = ["--url", "http://127.0.0.1:1/"]
NODE = NodeState.model_validate(RECORDED["nodes"][0])


def lines(node: NodeState) -> list[str]:
    console = Console(file=StringIO(), record=True, width=80, highlight=False)
    console.print(Group(*budget_tables(node)))
    return [line.rstrip() for line in console.export_text().splitlines()]


def words(node: NodeState) -> str:
    return " ".join(" ".join(lines(node)).split())


def run(*words: str) -> int:
    parser = ArgumentParser()
    explain.add_arguments(parser)
    return explain.run(parser.parse_args(list(words)))


@pytest.fixture
def replying(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that replies with the recorded node."""
    monkeypatch.setattr(api, "fetch_part", lambda url, what: {"node": RECORDED["nodes"][0]}[what])


def test_the_summary_is_first() -> None:
    """The first lines give the status, the bounds, their reference and the forecast."""
    first, second, *forecast = lines(NODE)[:4]

    assert first.startswith("trainer-01  SYNCHRONIZED since 2023-11-1")
    assert second == "within      +-28.3 us (99.7%: +-21.0 us) of grandmaster 001122.fffe.334455"
    assert forecast == [
        "forecast    without new samples: exceeds 100 us in 1 s, 1 ms in 19 s,",
        "            expires in 16 min",
    ]


def test_no_line_exceeds_80_columns() -> None:
    """Every line fits a terminal of 80 columns."""
    assert max(map(len, lines(NODE))) <= 80


@pytest.mark.parametrize(
    "line",
    [
        "at the sample hard 99.7%",
        "path delay worst case: all of the delay in 21.1 us one direction",
        "noise offset spread times Student's t 618 ns",
        "granularity resolution of one timestamp 8 ns 8 ns",
        "parent 24.3 us 20.9 us",
        "growth per second hard 99.7%",
        "steering servo changes between two readings 48.9 us",
        "parent sum 50.1 us 1.09 us",
        "now, 80.0 ms later hard 99.7%",
        "grandmaster 28.3 us 21.0 us",
        "ntp chrony, offset 940 us +-410 us, follows 192.0.2.1, stratum 2, 3 of 4 sources reachable FALSETICKER",
    ],
)
def test_each_term_is_a_line(line: str) -> None:
    """A line has a name, a description and values with units."""
    assert line in words(NODE)


def test_a_reason_is_printed_once() -> None:
    """If grandmaster and UTC are unknown for one reason, only the first line gives it."""
    why = "boundary clock error unknown: set boundary_clock_error_ns"
    code = "boundary_clock_error_unknown"
    none = {"bound_ns": None, "growth_ppb": 0, "reason": why, "reason_code": code}
    nothing = {name: none for name in ("gm", "gm_stat", "utc", "utc_stat")}
    node = NodeState.model_validate(
        RECORDED["nodes"][0] | nothing | {"status": "UNKNOWN", "reason": why, "reason_code": code}
    )
    printed = words(node)

    assert printed.count(f"grandmaster unknown: {why}") == 2  # at the sample, and now
    assert printed.count("UTC unknown") == 2 and f"UTC unknown: {why}" not in printed
    assert f"reason {why}" in printed


def test_before_the_first_sample_there_is_no_table() -> None:
    """Without a sample only the status, its reason and the sources are printed."""
    fields: dict[str, Any] = {
        "status": "UNKNOWN",
        "age_ns": None,
        "reason": "no valid sample yet",
        "reason_code": "no_sample_yet",
        "gm": None,
        "terms": {},
    }
    printed = lines(NodeState.model_validate(RECORDED["nodes"][0] | fields))

    assert printed[1] == "reason      no valid sample yet"
    assert not any("at the sample" in line for line in printed)


def test_strings_from_the_network_are_text() -> None:
    """Markup and control characters are printed as text."""
    hostile = "[red]x[/]\x1b]0;owned\x07"
    sources = [{"name": hostile, "driver": hostile, "reachable": True, "detail": hostile, "kind": "utc"}]
    fields = {"reason": hostile, "terms": {hostile: 5}, "sources": sources}
    printed = "\n".join(lines(NodeState.model_validate(RECORDED["nodes"][0] | fields)))

    assert "\x1b" not in printed and "[red]x[/]?]0;owned?" in printed


@pytest.mark.usefixtures("replying")
def test_the_daemon_s_budget_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """As tables or as JSON; the exit status is 0 while the main bound is known."""
    codes = [run(*URL), run(*URL, "--json")]
    table, text = capsys.readouterr().out.rsplit("\n", 2)[:2]

    assert codes == [0, 0]
    assert "SYNCHRONIZED" in table
    assert json.loads(text)["terms"]["path_delay"]["hard_ns"] == 21_060


def test_a_silent_url_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the daemon of --url does not reply, this machine's segment is not read instead."""

    def fetch_part(url: str, what: str) -> Any:
        raise Unreachable("no reply")

    monkeypatch.setattr(api, "fetch_part", fetch_part)

    with pytest.raises(Unreachable):
        run(*URL)


def segment_of(folder: Path) -> None:
    """Writes a clock segment with a clock that was measured just now."""
    clocks = SystemClocks()
    bound = ErrorBound(
        as_of_ns=clocks.boottime_ns(),
        real_minus_boot_ns=real_minus_boot_ns(clocks),
        parent_hard=Bound(3_100, 0),
        gm_hard=Bound(3_100, 0),
        utc_hard=unbounded(Reason.ARBITRARY_TIMESCALE),
        gm_stat=Bound(900, 0),
        gm_status=ClockStatus.SYNCHRONIZED,
        utc_status=ClockStatus.UNKNOWN,
        grandmaster_identity="001122.fffe.334455",
        parent_identity="001122.fffe.334455",
        terms={Term.OFFSET: 100, Term.PATH_DELAY: 3_000},
    )
    writer = SegmentWriter(
        folder / clock_segment.NAME, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT
    )
    writer.write(clock_segment.encode(bound, clock_segment.Epoch(boot_id(), time_namespace())))
    writer.close()


def test_the_clock_segment_alone_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bounds and hard terms are read from shared memory without a daemon."""
    segment_of(tmp_path)
    code = run("--runtime-dir", str(tmp_path))
    printed = " ".join(capsys.readouterr().out.split())

    assert code == 0
    assert "this-node SYNCHRONIZED within +-3.10 us (99.7%: +-900 ns) of grandmaster 001122.fffe.334455" in printed
    assert "path delay worst case: all of the delay in 3.00 us one direction" in printed


def test_without_daemon_and_segment_nothing_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 1, and the reason is the one that a client gets."""
    code = run("--runtime-dir", str(tmp_path))

    assert code == 1
    assert "no clock segment: start timesyncd on this node" in capsys.readouterr().out


def test_without_a_daemon_the_segment_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning on stderr names the origin and what it lacks."""
    monkeypatch.setenv("TIMESYNCD_RUNTIME_DIR", str(tmp_path))
    segment_of(tmp_path)
    code = run("--config", str(tmp_path / "none.toml"))
    printed = capsys.readouterr()

    assert code == 0
    assert "SYNCHRONIZED" in printed.out
    assert "the clock segment was read instead: it has no statistical terms" in printed.err
