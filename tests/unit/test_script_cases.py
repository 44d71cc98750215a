"""How `make job-soak` judges a report and a script's end, without running one."""

from __future__ import annotations

from typing import Any

import pytest
from job_soak import table, trials
from script_cases import CASES, JOBS, Case, Ran, difference, judgement

CASE = Case("a script", "by_hand")


def report(*stragglers: tuple[int, str, float], verdict: str = "straggler") -> dict[str, Any]:
    found = [
        {"rank": rank, "place": place, "lateness_p50_ns": round(ms * 1e6), "verdict": verdict}
        for rank, place, ms in stragglers
    ]
    return {"headline": "-", "stragglers": found}


@pytest.mark.parametrize(
    ("stragglers", "judged"),
    [
        ([(1, "before bucket 0", 31.0)], "right"),
        ([(1, "before bucket 0", 31.0), (0, "at bucket 1", 2.0)], "WRONG: names rank 0 (-)"),
        ([(0, "before bucket 0", 31.0)], "WRONG: names rank 0 (-)"),
        ([(1, "at bucket 1", 31.0)], "WRONG place: 'at bucket 1'"),
        ([(1, "before bucket 0", 12.0)], "WRONG lateness: 12.0 ms"),
        ([], "not named"),
    ],
)
def test_a_report_names_the_late_rank_alone(stragglers: list[tuple[int, str, float]], judged: str) -> None:
    """Another rank, another place or another delay is wrong; no name is no accusation."""
    assert judgement(CASE, report(*stragglers), 1, "data") == judged


def test_an_inconclusive_rank_is_not_named() -> None:
    """The report is not sure of it."""
    assert judgement(CASE, report((0, "before bucket 0", 31.0), verdict="inconclusive"), 1, "data") == "not named"


def test_an_end_or_weights_that_differ_are_a_difference() -> None:
    """The script under run-audit has the same exit status and the same bits."""
    alone = Ran(0, ("a", "b"), {}, "")

    assert difference(alone, Ran(0, ("a", "b"), {}, "")) == ""
    assert difference(alone, Ran(1, ("a", "b"), {}, "")).startswith("exit status 0 alone, 1")
    assert difference(alone, Ran(0, ("a", "c"), {}, "")).startswith("weights")


def test_every_case_has_a_script_and_its_trials() -> None:
    """Each is run for its bits, late at each of its places, and healthy; 200 healthy runs in all, of which 32 are those for the bits."""
    found = list(trials(200))

    assert len({case.name for case in CASES}) == len(CASES) >= 30
    assert all((JOBS / f"{case.script}.py").exists() for case in CASES)
    assert sum(not what.startswith("late") for _, what in found) == 200
    assert {case.name for case, what in found if what.startswith("late")} == {case.name for case in CASES}
    assert len(found) == len({(case.name, what) for case, what in found})


def test_the_table_states_what_was_not_run() -> None:
    """A row for each script, with its results so far."""
    first = CASES[0].name
    rows = list(
        table([
            {"case": first, "what": "bits", "result": "WRONG: accuses a healthy rank (-)"},
            {"case": first, "what": "late 0 data", "result": "right"},
        ])
    )  # fmt: skip

    assert len(rows) == 2 + len(CASES)
    assert rows[2] == f"| {first} | equal | 0 data: right | 1, 1 |"
    assert rows[3].endswith("| not run | not run | 0, 0 |")
