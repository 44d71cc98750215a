"""`timesyncd status --nagios`: the line of a check, its performance data and its exit status."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import Any

import pytest
from fake_view import RECORDED, FakeView, as_json

from timesyncd.cli import status
from timesyncd.cli._nagios import State
from timesyncd.client import api
from timesyncd.errors import Unreachable

#: label=value[UOM];[warn];[crit];[min];[max], as the Monitoring Plugins Development Guidelines define it; U: unknown.
DATUM = re.compile(r"[a-z0-9_]+=(U|\d+(\.\d+)?(s|%)?(;[\d.]*){0,4})")

NODE = RECORDED["nodes"][0] | {"age_ns": 0}
GRANDMASTER = RECORDED["grandmasters"][0]
JOB = RECORDED["jobs"][0]
FINDING = {
    "id": "source-lost", "severity": "critical", "subject": "ptp", "since_realtime_ns": 5, "until_realtime_ns": None,
    "evidence": "e", "cause": "c", "remedy": "r",
}  # fmt: skip


def bound(bound_ns: int | None, growth_ppb: int = 0, reason: str = "") -> dict[str, Any]:
    return {"bound_ns": bound_ns, "growth_ppb": growth_ppb, "reason": reason}


def answer(**parts: Any) -> dict[str, Any]:
    """A daemon of a synchronized node, on which nothing is wrong; `limits` are its [limits]."""
    limits = parts.pop("limits", {})
    own = NODE | parts.pop("own", {})
    overview = as_json(FakeView().overview())
    overview["headline"]["limits"] |= limits
    overview["headline"] |= parts.pop("headline", {})
    lists = {"nodes": [own], "grandmasters": [], "jobs": [], "findings": []}
    return lists | {"node": own, "overview": overview} | parts


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """(exit status, text, performance data) of the check; every line is one that Nagios understands."""

    def check(*words: str, handled: tuple[Any, ...] = (), **parts: Any) -> tuple[int, str, dict[str, str]]:
        monkeypatch.setattr(api, "fetch_all", lambda url: answer(**parts))
        monkeypatch.setattr(api, "fetch_part", lambda url, path: {"items": list(handled), "next": None})
        parser = ArgumentParser()
        status.add_arguments(parser)
        code = status.run(parser.parse_args(["--url", "http://127.0.0.1:1/", "--nagios", *words]))
        [line] = capsys.readouterr().out.splitlines()
        text, _, data = line.partition(" | ")
        assert text.startswith(f"TIMESYNCD {State(code).name}: ")
        assert all(DATUM.fullmatch(datum) for datum in data.split())
        return code, text, dict(datum.split("=") for datum in data.split())

    return check


@pytest.mark.parametrize(
    ("name", "code"), [("SYNCHRONIZED", 0), ("HOLDOVER", 1), ("DISRUPTED", 2), ("UNKNOWN", 3)], ids=str
)
def test_the_status_of_the_clock_decides(run: Any, name: str, code: int) -> None:
    """An unknown clock is UNKNOWN with its reason, and neither it nor a stepped one has a bound, whatever is published."""
    found, text, data = run(own={"status": name, "reason": "no answer", "gm": bound(1_200)})

    assert found == code
    assert data["bound"] == ("0.000001200s;;;0" if code < 2 else "U")
    assert ("no answer" in text) == (code >= 2)


def test_the_bound_is_judged_as_it_is_now(run: Any) -> None:
    """It has grown since its sample, and the operator's limit is the critical threshold."""
    grown = {"age_ns": 10**9, "gm": bound(1_000, 500)}

    assert run(own=grown, limits={"node_bound_ns": 1_500})[::2] == (
        0,
        {"bound": "0.000001500s;;0.000001500;0", "age": "1.000000000s;;;0", "findings": "0;;;0"},
    )
    code, text, _ = run(own=grown, limits={"node_bound_ns": 1_499})
    assert (code, "above the limit of" in text) == (2, True)


def test_a_hub_without_a_clock_is_checked_for_its_fleet(run: Any) -> None:
    """The headline's verdict on the alignment; an unknown one is UNKNOWN."""
    hub: dict[str, Any] = {"sources": []}
    known = {"verdict": "exceeded", "alignment_ns": 2_000, "text": "no two of 9 clocks differ by more than 2 us"}
    code, text, data = run(own=hub, headline=known, limits={"fleet_alignment_ns": 1_000})

    assert (code, text) == (2, f"TIMESYNCD CRITICAL: {known['text']}")
    assert data["alignment"] == "0.000002000s;;0.000001000;0"
    assert run(own=hub, headline={"verdict": "unknown", "alignment_ns": None})[0] == 3
    assert run(own=hub, headline={"verdict": "within", "alignment_ns": 2})[0] == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"clock_state": "locked"}, 0),
        ({"clock_state": "holdover"}, 1),
        ({"clock_state": "freerun"}, 2),
        ({"clock_state": None}, 3),
        ({"clock_state": "locked", "reachable": False, "reason": "timed out"}, 2),
    ],
    ids=str,
)
def test_a_grandmaster_by_name(run: Any, changes: dict[str, Any], code: int) -> None:
    """Locked, in holdover, and one that does not answer, whatever it reported last."""
    state = GRANDMASTER | changes

    assert run(state["name"], grandmasters=[state])[0] == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"straggler_rank": None, "alignment_ns": 900}, 0),
        ({"straggler_rank": 0, "alignment_ns": 900}, 1),
        ({"straggler_rank": None, "alignment_ns": 1_001}, 2),
        ({"straggler_rank": 0, "alignment_ns": None}, 3),
    ],
    ids=str,
)
def test_a_job_by_name(run: Any, changes: dict[str, Any], code: int) -> None:
    """No rank is accused where the clocks are not comparable."""
    found, text, data = run(JOB["job"], jobs=[JOB | changes], limits={"job_alignment_ns": 1_000})

    assert found == code
    assert ("straggler" in text) == (code == 1)
    assert (data["alignment"] == "U") == (code == 3)


def test_findings_count_until_somebody_takes_them(run: Any) -> None:
    """A critical finding is CRITICAL, one that was acknowledged or has ended is not counted."""
    taken = {
        "finding": "source-lost",
        "subject": "ptp",
        "author": "a",
        "text": "t",
        "realtime_ns": 6,
        "until_realtime_ns": None,
    }
    code, text, data = run(findings=[FINDING])

    assert (code, data["findings"], "source-lost of ptp" in text) == (2, "1;;;0", True)
    assert run(findings=[FINDING], handled=(taken,))[0] == 0
    assert run(findings=[FINDING | {"until_realtime_ns": 9}])[0] == 0
    assert run(findings=[FINDING | {"severity": "warning"}])[0] == 1
    assert run(findings=[FINDING | {"severity": "info"}])[::2][1]["findings"] == "0;;;0"


def test_the_worst_findings_are_named_first(run: Any) -> None:
    """Of many, three by name and the number of the others; one of another subject does not count for NAME."""
    several = [FINDING | {"severity": "warning", "subject": f"n{number}"} for number in range(5)]
    code, text, data = run(findings=[*several, FINDING])

    assert (code, data["findings"]) == (2, "6;;;0")
    assert text.endswith("; source-lost of ptp, source-lost of n0, source-lost of n1, 3 more")
    assert run(JOB["job"], jobs=[JOB | {"straggler_rank": None, "alignment_ns": 9}], findings=several)[0] == 0


def test_a_daemon_that_does_not_answer_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status 1 of other commands would be a warning to Nagios."""

    def unreachable(url: str) -> Any:
        raise Unreachable("http://127.0.0.1:1: connection refused | x\ny")

    monkeypatch.setattr(api, "fetch_all", unreachable)
    parser = ArgumentParser()
    status.add_arguments(parser)

    assert status.run(parser.parse_args(["--url", "http://127.0.0.1:1/", "--nagios"])) == 3
    assert capsys.readouterr().out == "TIMESYNCD UNKNOWN: http://127.0.0.1:1: connection refused x y\n"


def test_an_unknown_name_is_unknown(run: Any) -> None:
    """Not the exit status 2, which is CRITICAL to Nagios."""
    code, text, _ = run("gm-z")

    assert (code, "no grandmaster, node or job is named 'gm-z'" in text) == (3, True)
