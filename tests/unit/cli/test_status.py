"""`timesyncd status NAME`: all fields of one grandmaster, node or job."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from io import StringIO
from typing import Any

import pytest
from fake_view import RECORDED
from grandmaster_samples import EVERYTHING
from rich.console import Console, Group, RenderableType

from timesyncd.cli import status
from timesyncd.cli._tables import grandmaster_tables, node_tables
from timesyncd.client import api
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import GrandmasterState, NodeState, grandmaster_state

HOSTILE = "[red]x[/] \x1b]0;owned\x07\nnext"
NOW_NS = 1_700_000_000_000_000_000


def grandmaster(sample: Any = EVERYTHING, **more: Any) -> GrandmasterState:
    known = {"node": "n1", "incarnation": 1, "sequence": 1, "name": "gm", "published_realtime_ns": NOW_NS, "age_ns": 0}
    return grandmaster_state(sample, **known, **{"reachable": True} | more)


def node(**more: Any) -> NodeState:
    known = {
        "node": "n1", "incarnation": 1, "sequence": 1, "published_realtime_ns": NOW_NS, "age_ns": 0, "boot_id": "b",
        "time_namespace": 0, "status": "SYNCHRONIZED", "utc_status": "UNKNOWN", "since_realtime_ns": NOW_NS,
    }  # fmt: skip
    return NodeState.model_validate(known | more)


def text_of(parts: list[RenderableType]) -> str:
    console = Console(file=StringIO(), record=True, width=120, highlight=False)
    console.print(Group(*parts))
    return console.export_text()


def words_of(parts: list[RenderableType]) -> list[list[str]]:
    return [line.split() for line in text_of(parts).splitlines()]


@pytest.mark.parametrize(
    "line",
    [
        "class 7",
        "accuracy 0x21, announced as within 100 ns",
        "priority 1, 2 128, 127",
        "leap second insert",
        "traceable time yes, frequency no",
        "position 50.12000, 8.68000, 112.5 m",
        "NTP server, stratum 1, leap none",
        "uptime 10 d 0 h",
        "not understood gnss_state=unknown(9)",
        "major 97.1 2023-11-14 22:00:00 GNSS antenna open",
        "GNSS-1 selected",
        "eth1 master g8275.1 24 412 of 500 63 % 00a069.fffe.704761",
        "19 21 dB-Hz unhealthy",
        "gnss-1 te 23 ns GNSS ok 100 ns",
        "gnss-1 cte -4 ns - - -",
        "board temperature 41.5 C good",
        "fan 1 fan - bad",
        "mgmt down -",
    ],
)
def test_every_field_of_a_grandmaster_is_printed(line: str) -> None:
    """A field is one line with its unit, a list is a table."""
    assert line.split() in words_of(grandmaster_tables(grandmaster()))


def test_nothing_is_absent_of_a_complete_grandmaster() -> None:
    """No field of a grandmaster that provides all of them is "not provided"."""
    judged = {"utc": {"bound_ns": 1_200, "growth_ppb": 1, "reason": ""}, "holdover_left_ns": 13_200 * 10**9}
    offsets = [{"other": "gm-b", "offset_ns": -85, "bound_ns": 240, "evidence": "ptp-1"}]
    printed = text_of(grandmaster_tables(grandmaster(offsets=offsets, identities=["00a069.fffe.704760"], **judged)))

    assert "not provided" not in printed
    assert "-85 ns +-240 ns" in printed


def test_a_grandmaster_can_provide_nothing() -> None:
    """A list that is not provided differs from an empty one; the absent fields are one line."""
    printed = text_of(grandmaster_tables(grandmaster(None, alarms=[])))

    assert "alarms: none" in printed
    for what in ("references", "PTP ports", "satellites", "time errors", "hardware", "interfaces"):
        assert f"{what}: not provided" in printed
    assert " 0" not in printed.replace("0 s ago", "")


def test_the_state_of_an_unreachable_grandmaster_is_marked() -> None:
    """Its last known state is not printed as its present one."""
    printed = [text_of(grandmaster_tables(grandmaster(reachable=reachable))) for reachable in (False, True)]

    assert ["everything below is the last known state" in text for text in printed] == [True, False]


def test_every_field_of_a_node_is_printed() -> None:
    """The node's block is followed by every field of its sources."""
    source = {
        "name": "ptp", "driver": "ptp4l", "reachable": False, "reason": "no answer", "reason_code": "no_valid_sample", "port_state": "SLAVE",
        "offset_ns": -412, "frequency_ppb": -3, "current_utc_offset_s": 37, "error_ns": 9, "detail": "phc:0 by precise",
    }  # fmt: skip
    printed = words_of(node_tables(node(grandmaster_summary="gm: HOLDOVER", sources=[source]), None))

    for line in (
        "grandmaster gm: HOLDOVER",
        "reachable no",
        "offset -412 ns",
        "offset error +-9 ns",
        "state phc:0 by precise",
        "frequency -3 ppb",
        "TAI - UTC 37 s",
    ):
        assert line.split() in printed


def test_strings_from_a_device_are_text() -> None:
    """Markup and control characters in any field are printed as text."""

    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: item if key.endswith("reason_code") else hostile(item) for key, item in value.items()}
        if isinstance(value, list):
            return [hostile(item) for item in value]
        return HOSTILE if isinstance(value, str) else value

    hostile_grandmaster = GrandmasterState.model_validate(
        hostile(grandmaster().model_dump(mode="json")) | {"node": "n1"}
    )
    source = {
        "name": HOSTILE,
        "driver": HOSTILE,
        "reachable": False,
        "reason": HOSTILE,
        "reason_code": "no_valid_sample",
        "port_state": HOSTILE,
    }
    hostile_node = node(grandmaster_summary=HOSTILE, clock=HOSTILE, boot_id=HOSTILE, sources=[source])
    printed = text_of([*grandmaster_tables(hostile_grandmaster), *node_tables(hostile_node, None)])

    assert "\x1b" not in printed and "\x07" not in printed
    assert "[red]x[/] ?]0;owned??next" in printed


def run(monkeypatch: pytest.MonkeyPatch, *words: str, **changes: Any) -> int:
    """The command, with a daemon that replies for node n1 and grandmaster gm."""
    state = grandmaster(**changes).model_dump(mode="json")
    own = node().model_dump(mode="json")
    answer = {"node": own, "nodes": [own], "grandmasters": [state], "jobs": [], "findings": []}
    monkeypatch.setattr(api, "fetch_all", lambda url: answer)
    parser = ArgumentParser()
    status.add_arguments(parser)
    return status.run(parser.parse_args(["--url", "http://127.0.0.1:1/", *words]))


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"clock_state": "locked"}, 0), ({}, 1), ({"clock_state": "locked", "reachable": False}, 1)],
)
def test_the_exit_status_of_a_grandmaster(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: int) -> None:
    """It is 0 if the grandmaster is reachable and locked, else 1."""
    sample = None if changes else EVERYTHING

    assert run(monkeypatch, "gm", sample=sample, **changes) == code


@pytest.mark.parametrize(("utc_status", "code"), [("SYNCHRONIZED", 0), ("HOLDOVER", 1)])
def test_the_exit_status_of_a_node_synchronized_by_ntp(
    monkeypatch: pytest.MonkeyPatch, utc_status: str, code: int
) -> None:
    """It follows the status against UTC, with and without NAME."""
    nothing = {
        "bound_ns": None,
        "growth_ppb": 0,
        "reason": "this source measures UTC and has no grandmaster",
        "reason_code": "no_grandmaster",
    }
    own = node(status="UNKNOWN", utc_status=utc_status, gm=nothing).model_dump(mode="json")
    answer = {"node": own, "nodes": [own], "grandmasters": [], "jobs": [], "findings": []}
    monkeypatch.setattr(api, "fetch_all", lambda url: answer)
    parser = ArgumentParser()
    status.add_arguments(parser)
    url = ["--url", "http://127.0.0.1:1/"]

    assert [status.run(parser.parse_args([*url, *name])) for name in ([], ["n1"])] == [code, code]


def test_json_is_the_daemon_s_reply(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON of one grandmaster or node is unchanged."""
    run(monkeypatch, "gm", "--json")
    printed_grandmaster = json.loads(capsys.readouterr().out)
    code = run(monkeypatch, "n1", "--json")
    printed_node = json.loads(capsys.readouterr().out)

    assert printed_grandmaster == grandmaster().model_dump(mode="json")
    assert (code, printed_node) == (0, node().model_dump(mode="json"))


def test_an_unknown_name_lists_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr has the nearest names and how many there are; the exit status is 2."""
    code = run(monkeypatch, "gm-z")

    assert code == 2
    assert (
        capsys.readouterr().err
        == "timesyncd: no grandmaster, node or job is named 'gm-z'; nearest: gm, n1; these are all\n"
    )


def test_of_many_names_the_nearest_three_are_offered() -> None:
    """Not a list of ten thousand; case does not matter."""
    names = [f"hall-1-rack-{number:02}-gpu" for number in range(90)] + ["gm-a"]

    assert status.nearest("HALL-1-rack-07", names)[0] == "hall-1-rack-07-gpu"
    assert len(status.nearest("gm", names)) == 3
    assert status.nearest("gm", names)[0] == "gm-a"


def run_for_job(monkeypatch: pytest.MonkeyPatch, name: str, *words: str, **changes: Any) -> int:
    """The command, with a daemon that knows the recorded job."""
    own = node().model_dump(mode="json")
    jobs = [RECORDED["jobs"][0] | changes]
    answer = {"node": own, "nodes": [own], "grandmasters": [], "jobs": jobs, "findings": []}
    monkeypatch.setattr(api, "fetch_all", lambda url: answer)
    parser = ArgumentParser()
    status.add_arguments(parser)
    return status.run(parser.parse_args(["--url", "http://127.0.0.1:1/", name, *words]))


@pytest.mark.parametrize("name", ["llama-pretrain", "0f3a9c51d2b4e687"])
def test_every_fact_of_a_job_is_printed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job is found by name or id; the exit status is 1 while it has a straggler."""
    monkeypatch.setenv("COLUMNS", "140")

    assert run_for_job(monkeypatch, name) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "sync overhead 18.3% exposed, over the window (newest step 17.9%, epoch 18.1%)",
        "communication/compute 0.22",
        "arrival skew 39.8 ms median, 44.1 ms p99, each +-55.0 us",
        "compared by the nodes' clocks, error within +-55.0 us; sufficient",
        "phase steps begin 130 ms into each 260 ms, delayed by at most 5.0%",
        "policy selsync(quantile=0.94) + topk(ratio=0.01)",
        "groups of ranks 2 groups, in 2 larger ones (by topology and node)",
        "1 trainer-02 bucket 2 39.8 ms 38.1 s 97.0% straggler",
        "0 trainer-01 bucket 0 41.0 us 0 ns 61.0% inconclusive",
        "1 trainer-02 HOLDOVER 310 us median, 900 us p99 39.8 ms 97.0% 2.40 ms 1.2%",
    ):
        assert line in lines


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Who searches them finds what a terminal of 80 columns has no room for."""
    reason = "the clocks of " + ", ".join(f"node-{number}" for number in range(40)) + " are UNKNOWN"
    own = node().model_dump(mode="json")
    jobs = [RECORDED["jobs"][0] | {"alignment_ns": None, "alignment_reason": reason}]
    found = [RECORDED["findings"][0] | {"evidence": reason, "remedy": reason, "chain": [], "until_realtime_ns": None}]
    answer = {"node": own, "nodes": [own], "grandmasters": [], "jobs": jobs, "findings": found}
    monkeypatch.setattr(api, "fetch_all", lambda url: answer)
    parser = ArgumentParser()
    status.add_arguments(parser)
    status.run(parser.parse_args(["--url", "http://127.0.0.1:1/"]))
    lines = capsys.readouterr().out.splitlines()

    assert sum(line.endswith(reason) for line in lines) == 3
    assert max(map(len, lines)) < 1_000


def test_a_job_of_an_older_hub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing fields are "not provided"; without a straggler the exit status is 0."""
    new = {field for field, info in JobState.model_fields.items() if not info.is_required()}
    changes = {field: JobState.model_fields[field].get_default(call_default_factory=True) for field in new}

    assert run_for_job(monkeypatch, "llama-pretrain", straggler_rank=None, **changes) == 0
    printed = capsys.readouterr().out
    assert "not provided" in printed and "None" not in printed and "stragglers" not in printed


def test_a_job_s_strings_are_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in a job's strings are not printed."""
    run_for_job(monkeypatch, "0f3a9c51d2b4e687", job=HOSTILE, verdict=HOSTILE, alignment_reason=HOSTILE)

    assert "\x1b" not in capsys.readouterr().out
