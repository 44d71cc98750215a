"""`timesyncd explain`: the budget as a table of 80 columns, from the daemon or from the clock segment alone."""

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
from timesyncd.cli._explain_tables import budget_tables
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
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that answers with the recorded node."""
    monkeypatch.setattr(api, "fetch_part", lambda url, what: {"node": RECORDED["nodes"][0]}[what])


def test_the_answer_comes_before_its_reasons() -> None:
    """How well, at which share of moments, to whom, and until when, in the first lines."""
    first, second, *forecast = lines(NODE)[:4]

    assert first.startswith("trainer-01  SYNCHRONIZED since 2023-11-1")
    assert second == "within      +-28.3 us (99.7%: +-21.0 us) of grandmaster 001122.fffe.334455"
    assert forecast == ["if silent   leaves 100 us in 1 s, 1 ms in 19 s", "            void in 16 min"]


def test_no_line_is_longer_than_a_terminal() -> None:
    """Of 80 columns, whatever is told."""
    assert max(map(len, lines(NODE))) <= 80


@pytest.mark.parametrize(
    "line",
    [
        "at the sample hard 99.7%",
        "path delay worst case: all of the delay in 21.1 us one direction",
        "noise offset spread times Student's t 618 ns",
        "granularity resolution of one timestamp 8 ns 8 ns",
        "parent 24.3 us 20.9 us",
        "growth a second hard 99.7%",
        "steering servo changes between two readings 48.9 us",
        "parent in all 50.1 us 1.09 us",
        "now, 80.0 ms later hard 99.7%",
        "grandmaster 28.3 us 21.0 us",
        "ntp chrony, offset 940 us +-410 us, follows 192.0.2.1, stratum 2, 3 of 4 sources answer FALSETICKER",
    ],
)
def test_each_part_is_a_line(line: str) -> None:
    """A name, what it is in a few words, and its nanoseconds in units for people."""
    assert line in words(NODE)


def test_an_unknown_bound_says_why_once() -> None:
    """Grandmaster and UTC may be unknown for one reason: it is said where it is met first."""
    why = "boundary clock error unknown: set boundary_clock_error_ns"
    none = {"bound_ns": None, "growth_ppb": 0, "reason": why}
    nothing = {name: none for name in ("gm", "gm_stat", "utc", "utc_stat")}
    node = NodeState.model_validate(RECORDED["nodes"][0] | nothing | {"status": "UNKNOWN", "reason": why})
    told = words(node)

    assert told.count(f"grandmaster unknown: {why}") == 2  # at the sample, and now
    assert told.count("UTC unknown") == 2 and f"UTC unknown: {why}" not in told
    assert f"why not {why}" in told


def test_before_the_first_sample_there_is_no_table() -> None:
    """Only that nothing is known, why, and what the sources say."""
    fields: dict[str, Any] = {
        "status": "UNKNOWN",
        "age_ns": None,
        "reason": "no valid sample yet",
        "gm": None,
        "terms": {},
    }
    told = lines(NodeState.model_validate(RECORDED["nodes"][0] | fields))

    assert told[1] == "why not     no valid sample yet"
    assert not any("at the sample" in line for line in told)


def test_what_came_over_a_wire_is_text() -> None:
    """Neither markup nor a terminal's control sequences get through."""
    nasty = "[red]x[/]\x1b]0;owned\x07"
    sources = [{"name": nasty, "driver": nasty, "reachable": True, "detail": nasty, "kind": "utc"}]
    fields = {"reason": nasty, "terms": {nasty: 5}, "sources": sources}
    told = "\n".join(lines(NodeState.model_validate(RECORDED["nodes"][0] | fields)))

    assert "\x1b" not in told and "[red]x[/]?]0;owned?" in told


@pytest.mark.usefixtures("answering")
def test_the_daemon_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """Its node's budget is printed, as a table or as JSON; 0 while a bound holds."""
    codes = [run(*URL), run(*URL, "--json")]
    table, told = capsys.readouterr().out.rsplit("\n", 2)[:2]

    assert codes == [0, 0]
    assert "SYNCHRONIZED" in table
    assert json.loads(told)["terms"]["path_delay"]["hard_ns"] == 21_060


def test_a_page_that_does_not_answer_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names another daemon is not shown this machine's clock instead."""

    def fetch_part(url: str, what: str) -> Any:
        raise Unreachable("nobody")

    monkeypatch.setattr(api, "fetch_part", fetch_part)

    with pytest.raises(Unreachable):
        run(*URL)


def segment_of(folder: Path) -> None:
    """A clock that was measured just now, as a daemon leaves it to readers."""
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
    """Bounds and hard terms are in shared memory, so they are told although no daemon answers."""
    segment_of(tmp_path)
    code = run("--runtime-dir", str(tmp_path))
    told = " ".join(capsys.readouterr().out.split())

    assert code == 0
    assert "this-node SYNCHRONIZED within +-3.10 us (99.7%: +-900 ns) of grandmaster 001122.fffe.334455" in told
    assert "path delay worst case: all of the delay in 3.00 us one direction" in told


def test_without_daemon_and_segment_nothing_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1, and the reason that a client gets too."""
    code = run("--runtime-dir", str(tmp_path))

    assert code == 1
    assert "no clock segment: is timesyncd running here?" in capsys.readouterr().out


def test_a_silent_daemon_leaves_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed then says on stderr where it is from, and what it lacks."""
    monkeypatch.setenv("TIMESYNCD_RUNTIME_DIR", str(tmp_path))
    segment_of(tmp_path)
    code = run("--config", str(tmp_path / "none.toml"))
    told = capsys.readouterr()

    assert code == 0
    assert "SYNCHRONIZED" in told.out
    assert "the clock segment's, which has no statistical terms" in told.err
