"""The suite of bench/policies: the next run, targets and the times to them, a link's rate, claims and the page."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from policies.link import Measured, first_mbit
from policies.plan import (
    AUTO,
    CELLS,
    FIRST_LIMIT_S,
    LATE_SELSYNC,
    PATIENCE,
    REFERENCE,
    SEEDS,
    SERVER_BSP,
    SGD_METHODS,
    TASKS,
    VERSION,
    Cell,
    Method,
    Row,
    Run,
    crossing_s,
    pending,
    times_s,
)
from policies.run import keep, outcome, read
from policies.table import against_best, claims, page, picture

from timesyncd.training.policy.text import parse_policy

DIGITS, GPT = TASKS["digits"], TASKS["gpt"]
SLOW, PAUSES = CELLS["digits-slow"], CELLS["digits-pauses"]
LOCAL = next(method for method in SGD_METHODS if method.policy == "local_sgd(h=16)")


def ran(cell: Cell, method: Method, *times: float | None) -> dict[str, Row]:
    """One row a seed; None: the run failed."""
    return {
        Run(cell, method, seed, 0).key: {"time_s": time_s, "why": "time" if time_s is None else "reached"}
        for seed, time_s in zip(SEEDS, times, strict=False)
    }


def test_method_names_are_unique_in_every_cell() -> None:
    """The name is a part of the key by which a run is resumed."""
    for cell in CELLS.values():
        assert len({method.name for method in cell.methods}) == len(cell.methods)


@pytest.mark.parametrize(
    "text", sorted({method.policy for cell in CELLS.values() for method in cell.methods if method.policy})
)
def test_every_policy_is_valid(text: str) -> None:
    """Otherwise an invalid text would be found after minutes."""
    assert parse_policy(text)


def test_late_selsync_is_one_variant_in_all_cells() -> None:
    """It is fixed before any run; the non-IID cell has it too."""
    variants = {method for cell in CELLS.values() for method in cell.methods if method.policy.startswith("selsync")}
    assert variants == {LATE_SELSYNC}
    assert LATE_SELSYNC in CELLS["sorted-slow"].methods
    assert CELLS["sorted-slow"].task.by_label


def test_accuracy_rises_to_the_target_and_a_loss_falls() -> None:
    """The task determines which direction is better."""
    assert (DIGITS.is_reached(DIGITS.target), DIGITS.is_reached(DIGITS.target - 0.1)) == (True, False)
    assert (GPT.is_reached(GPT.target), GPT.is_reached(GPT.target + 0.1)) == (True, False)


def test_the_moment_of_the_target_is_between_two_evaluations() -> None:
    """It is interpolated: a quarter of the way is a quarter of the time."""
    target = DIGITS.target
    assert crossing_s(DIGITS, [(2.0, 80.0), (4.0, target - 1), (8.0, target + 3)]) == 5.0
    assert crossing_s(GPT, [(1.0, GPT.target + 1), (3.0, GPT.target - 1)]) == 2.0
    assert crossing_s(DIGITS, [(2.0, target)]) == 2.0
    assert crossing_s(DIGITS, [(2.0, 80.0), (4.0, 81.0)]) is None


def test_each_seed_runs_in_all_cells_before_the_next_one() -> None:
    """So that a slow minute of the machine is everybody's."""
    runs = list(pending({}))
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    assert len(runs) == len(SEEDS) * sum(len(cell.methods) for cell in CELLS.values())


def test_finished_runs_are_not_repeated() -> None:
    """Those of another version do not count."""
    rows = ran(SLOW, AUTO, 5.0, None)
    left = [run.seed for run in pending(rows) if (run.cell, run.method) == (SLOW, AUTO)]
    assert left == list(SEEDS[2:])
    older = {key.replace(f"{VERSION}/", f"{VERSION - 1}/", 1): row for key, row in rows.items()}
    assert len(list(pending(older))) == len(list(pending({})))


def test_the_limit_follows_from_ddps_median() -> None:
    """The parameter server has a fixed one: it is many times slower, and its figure is wanted."""
    rows = ran(SLOW, REFERENCE, 10.0, 20.0, 30.0)
    limits = {run.method: run.limit_s for run in pending(rows) if run.cell == SLOW}
    assert limits[LOCAL] == PATIENCE * 20.0
    assert limits[SERVER_BSP] == FIRST_LIMIT_S


def test_a_seed_that_failed_counts_as_the_slowest() -> None:
    """It has no time."""
    assert times_s(SLOW, LOCAL, ran(SLOW, LOCAL, 6.0, None)) == [6.0, math.inf]


def test_rows_are_on_disk_whole(tmp_path: Path) -> None:
    """One a line, sorted, so that a change shows in a diff."""
    path = tmp_path / "results.json"
    rows: dict[str, Row] = {}
    assert read(path) == {}
    for key in ("b", "a"):
        keep(path, rows, key, {"time_s": 1.5})
    assert read(path) == {"a": {"time_s": 1.5}, "b": {"time_s": 1.5}}
    assert [line[:3] for line in path.read_text().splitlines()] == ["{", '"a"', '"b"', "}"]


def test_the_outcome_of_a_run_follows_from_its_curve() -> None:
    """A run that ended otherwise has no time, and the reason."""
    target = DIGITS.target
    result = {"why": "reached", "steps": 100, "changes": [], "curve": [[2.0, target - 2], [4.0, target + 2]]}
    assert outcome(SLOW, result) == {"time_s": 3.0, "why": "reached", "steps": 100, "last": target + 2, "ms": 40.0}
    assert outcome(SLOW, result | {"why": "time"})["time_s"] is None
    assert outcome(SLOW, {"error": "SyncError: rank 1 is gone"}) == {"time_s": None, "why": "SyncError: rank 1 is gone"}


def test_the_first_guess_is_a_rings_bytes() -> None:
    """2 ranks send 5 MB each, 40 Mbit, in the remaining 40 ms: 1,000 Mbit/s."""
    assert first_mbit(7.0, Measured(None, 6.0, 2.0), 5_000_000, 2) == pytest.approx(1_000)


def test_a_claim_needs_every_seed() -> None:
    """With four of five nothing is claimed, held or missed."""
    all_of = ran(SLOW, REFERENCE, *[40.0] * 5) | ran(SLOW, LOCAL, *[9.5] * 5) | ran(SLOW, AUTO, *[10.0] * 5)
    four = all_of | ran(SLOW, LATE_SELSYNC, *[10.0] * 4)
    five = all_of | ran(SLOW, LATE_SELSYNC, *[10.0] * 5)

    assert not any("SelSync" in line for line in claims(four))
    assert any("SelSync" in line and "| held | 4.00 times |" in line for line in claims(five))
    slower = five | ran(SLOW, LATE_SELSYNC, *[20.0] * 5)
    assert any("SelSync" in line and "**missed**" in line for line in claims(slower))


def test_auto_is_compared_with_the_best_fixed_method() -> None:
    """One without all seeds is no best; an `auto` that fails misses."""
    rows = (
        ran(SLOW, REFERENCE, *[40.0] * 5)
        | ran(SLOW, LOCAL, *[10.0] * 5)
        | ran(SLOW, LATE_SELSYNC, 1.0, None, None, None)
    )
    (held,) = [line for line in claims(rows | ran(SLOW, AUTO, *[10.5] * 5)) if "`auto`" in line]
    assert "| held | 1.05 times `local_sgd(h=16)` |" in held
    (missed,) = [line for line in claims(rows | ran(SLOW, AUTO, *[None] * 5)) if "`auto`" in line]
    assert "**missed** | failed" in missed


def test_a_seed_is_compared_with_itself_and_does_not_choose_its_best_method() -> None:
    """Seeds that need more steps than others are no error of a method."""
    rows = ran(SLOW, REFERENCE, 1.0, 2.0, 4.0, 8.0, 16.0) | ran(SLOW, AUTO, 1.1, 2.2, 4.4, 8.8, 17.6)
    found = against_best(SLOW, rows | ran(SLOW, LOCAL, 0.5, 9.0, 9.0, 9.0, None))

    assert [method for _, method in found.values()] == [REFERENCE] * 5
    assert [ratio for ratio, _ in found.values()] == pytest.approx([1.1] * 5)
    twice = against_best(SLOW, rows | ran(SLOW, LOCAL, None, 1.0, 2.0, 4.0, 8.0))
    assert [method for _, method in twice.values()] == [LOCAL] * 5
    assert [ratio for ratio, _ in twice.values()] == pytest.approx([0.0, 2.2, 2.2, 2.2, 2.2])
    assert "5 runs: median 1.10, 95th percentile 1.10" in page(rows, {})


def test_the_page_names_what_failed() -> None:
    """With the seeds that reached the target; what was not run is not named."""
    text = page(ran(SLOW, REFERENCE, *[25.0] * 5) | ran(SLOW, SERVER_BSP, None, 80.0, None), {})
    assert "not in time: BSP, parameter server in digits-slow (1 of 3 seeds)." in text
    assert PAUSES.name not in text


def test_a_transient_straggler_is_compared_with_ddp_that_has_it_too() -> None:
    """Not with DDP without one."""
    ddp, ssp, asp = (method for method in PAUSES.methods if method.pauses)
    rows = ran(PAUSES, REFERENCE, 2.0) | ran(PAUSES, ddp, 9.0) | ran(PAUSES, ssp, 6.0) | ran(PAUSES, asp, None)
    assert "`ssp(s=8)` was 1.50 times as fast as DDP (1 of 5 seeds)." in page(rows, {})
    assert "nothing is claimed" in page(rows, {})


def test_the_picture_has_a_bar_for_each_method_that_has_a_time() -> None:
    """DDP is the line that they are held against."""
    rows = ran(SLOW, REFERENCE, 20.0) | ran(SLOW, AUTO, 5.0) | ran(SLOW, LOCAL, None)
    assert picture(rows).count('height="11"') == 1
    assert ">4.00 (1/1)<" in picture(rows)
