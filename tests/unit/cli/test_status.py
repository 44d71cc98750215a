"""`timesyncd status NAME`: all that is known of one unit or one node."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from io import StringIO
from typing import Any

import pytest
from fake_view import RECORDED
from rich.console import Console, Group, RenderableType
from unit_samples import EVERYTHING

from timesyncd.cli import status
from timesyncd.cli._status_tables import grandmaster_tables, node_tables
from timesyncd.client import api
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import GrandmasterState, NodeState, grandmaster_state

NASTY = "[red]x[/] \x1b]0;owned\x07\nnext"
NOW_NS = 1_700_000_000_000_000_000


def unit(sample: Any = EVERYTHING, **more: Any) -> GrandmasterState:
    said = {"node": "n1", "incarnation": 1, "sequence": 1, "name": "gm", "published_realtime_ns": NOW_NS, "age_ns": 0}
    return grandmaster_state(sample, **said, **{"reachable": True} | more)


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
        "up for 10 d 0 h",
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
def test_a_unit_is_told_in_full(line: str) -> None:
    """Every field in words and units, a list as a table."""
    assert line.split() in words_of(grandmaster_tables(unit()))


def test_a_unit_that_tells_everything_leaves_nothing_out() -> None:
    """No field is called "not provided" of a unit that provides all but what is judged of it."""
    judged = {"utc": {"bound_ns": 1_200, "growth_ppb": 1, "reason": ""}, "holdover_left_ns": 13_200 * 10**9}
    offsets = [{"other": "gm-b", "offset_ns": -85, "bound_ns": 240, "evidence": "ptp-1"}]
    told = text_of(grandmaster_tables(unit(offsets=offsets, identities=["00a069.fffe.704760"], **judged)))

    assert "not provided" not in told
    assert "-85 ns +-240 ns" in told


def test_a_bare_unit_provides_nothing() -> None:
    """Each list that is not provided is said to be so, never to be empty; the facts are named in one line."""
    told = text_of(grandmaster_tables(unit(None, alarms=[])))

    assert "alarms: none" in told
    for what in ("references", "PTP ports", "satellites", "time errors", "hardware", "interfaces"):
        assert f"{what}: not provided" in told
    assert " 0" not in told.replace("0 s ago", "")


def test_what_is_told_of_a_unit_that_does_not_answer_is_old() -> None:
    """Its last state is not read as its present one."""
    told = [text_of(grandmaster_tables(unit(reachable=reachable))) for reachable in (False, True)]

    assert ["all below is what was last known" in text for text in told] == [True, False]


def test_a_node_is_told_in_full() -> None:
    """Its block, then its sources field by field."""
    source = {
        "name": "ptp", "driver": "ptp4l", "reachable": False, "reason": "no answer", "reason_code": "no_valid_sample", "port_state": "SLAVE",
        "offset_ns": -412, "frequency_ppb": -3, "current_utc_offset_s": 37, "error_ns": 9, "detail": "phc:0 by precise",
    }  # fmt: skip
    told = words_of(node_tables(node(grandmaster_note="gm: HOLDOVER", sources=[source])))

    for line in (
        "grandmaster gm: HOLDOVER",
        "reachable no",
        "offset -412 ns",
        "known within +-9 ns",
        "state phc:0 by precise",
        "frequency -3 ppb",
        "TAI - UTC 37 s",
    ):
        assert line.split() in told


def test_text_from_a_device_is_text() -> None:
    """Neither markup nor a terminal's control sequences get through, whatever field carries them."""

    def nasty(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: item if key.endswith("reason_code") else nasty(item) for key, item in value.items()}
        if isinstance(value, list):
            return [nasty(item) for item in value]
        return NASTY if isinstance(value, str) else value

    bad_unit = GrandmasterState.model_validate(nasty(unit().model_dump(mode="json")) | {"node": "n1"})
    source = {
        "name": NASTY,
        "driver": NASTY,
        "reachable": False,
        "reason": NASTY,
        "reason_code": "no_valid_sample",
        "port_state": NASTY,
    }
    bad_node = node(grandmaster_note=NASTY, clock=NASTY, boot_id=NASTY, sources=[source])
    told = text_of([*grandmaster_tables(bad_unit), *node_tables(bad_node)])

    assert "\x1b" not in told and "\x07" not in told
    assert "[red]x[/] ?]0;owned??next" in told


def run(monkeypatch: pytest.MonkeyPatch, *words: str, **changes: Any) -> int:
    """The command, with a daemon that answers for node n1 and unit gm."""
    state = unit(**changes).model_dump(mode="json")
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
def test_the_exit_status_says_whether_a_unit_is_well(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: int
) -> None:
    """0 when it answers and is locked, else 1."""
    sample = None if changes else EVERYTHING

    assert run(monkeypatch, "gm", sample=sample, **changes) == code


@pytest.mark.parametrize(("utc_status", "code"), [("SYNCHRONIZED", 0), ("HOLDOVER", 1)])
def test_a_node_that_ntp_keeps_is_well_by_utc(monkeypatch: pytest.MonkeyPatch, utc_status: str, code: int) -> None:
    """It knows no grandmaster, and need not: its exit status is that of UTC, alone and by its name."""
    nothing = {
        "bound_ns": None,
        "growth_ppb": 0,
        "reason": "this source knows UTC and no grandmaster",
        "reason_code": "no_grandmaster",
    }
    own = node(status="UNKNOWN", utc_status=utc_status, gm=nothing).model_dump(mode="json")
    answer = {"node": own, "nodes": [own], "grandmasters": [], "jobs": [], "findings": []}
    monkeypatch.setattr(api, "fetch_all", lambda url: answer)
    parser = ArgumentParser()
    status.add_arguments(parser)
    url = ["--url", "http://127.0.0.1:1/"]

    assert [status.run(parser.parse_args([*url, *name])) for name in ([], ["n1"])] == [code, code]


def test_json_is_what_the_daemon_answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The raw numbers of that one unit or node, nothing renamed."""
    run(monkeypatch, "gm", "--json")
    told_of_unit = json.loads(capsys.readouterr().out)
    code = run(monkeypatch, "n1", "--json")
    told_of_node = json.loads(capsys.readouterr().out)

    assert told_of_unit == unit().model_dump(mode="json")
    assert (code, told_of_node) == (0, node().model_dump(mode="json"))


def test_an_unknown_name_is_told_which_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the names that are known, and exit 2."""
    code = run(monkeypatch, "gm-z")

    assert code == 2
    assert capsys.readouterr().err == "timesyncd: there is no 'gm-z'; there are: gm, n1\n"


def told_of_job(monkeypatch: pytest.MonkeyPatch, name: str, *words: str, **changes: Any) -> int:
    """The command, with a daemon that knows the recorded job."""
    own = node().model_dump(mode="json")
    jobs = [RECORDED["jobs"][0] | changes]
    answer = {"node": own, "nodes": [own], "grandmasters": [], "jobs": jobs, "findings": []}
    monkeypatch.setattr(api, "fetch_all", lambda url: answer)
    parser = ArgumentParser()
    status.add_arguments(parser)
    return status.run(parser.parse_args(["--url", "http://127.0.0.1:1/", name, *words]))


@pytest.mark.parametrize("name", ["llama-pretrain", "0f3a9c51d2b4e687"])
def test_all_of_a_job_is_told(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name or its id: what it costs, who causes it and where, by what that was compared, and rank by rank; 1 as long as a rank is slow."""
    monkeypatch.setenv("COLUMNS", "140")

    assert told_of_job(monkeypatch, name) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "sync overhead 18.3% exposed, over the window (newest step 17.9%, epoch 18.1%)",
        "comm : compute 0.22",
        "arrival skew 39.8 ms median, 44.1 ms p99, each +-55.0 us",
        "compared by the nodes' clocks, right within +-55.0 us; suffices",
        "phase steps begin 130 ms into each 260 ms, held by at most 5.0%",
        "policy selsync(quantile=0.94) + topk(ratio=0.01)",
        "near ranks 2 groups, in 2 wider ones (by topology and node)",
        "1 trainer-02 bucket 2 39.8 ms 38.1 s 97.0% straggler",
        "0 trainer-01 bucket 0 41.0 us 0 ns 61.0% inconclusive",
        "1 trainer-02 HOLDOVER 310 us median, 900 us p99 39.8 ms 97.0% 2.40 ms 1.2%",
    ):
        assert line in lines


def test_a_job_of_which_little_is_known(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As an older hub tells of it: what is missing is said to be; a healthy one ends with 0."""
    new = {field for field, told in JobState.model_fields.items() if not told.is_required()}
    changes = {field: JobState.model_fields[field].get_default(call_default_factory=True) for field in new}

    assert told_of_job(monkeypatch, "llama-pretrain", straggler_rank=None, **changes) == 0
    told = capsys.readouterr().out
    assert "not provided" in told and "None" not in told and "late persistently" not in told


def test_a_jobs_texts_obey_nobody(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Names come from whoever runs a job."""
    told_of_job(monkeypatch, "0f3a9c51d2b4e687", job=NASTY, verdict=NASTY, alignment_reason=NASTY)

    assert "\x1b" not in capsys.readouterr().out
