"""The suite of bench/policies: the next run, targets and the times to them, a link's rate, the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies import results
from policies.link import Measured, first_mbit, fitted_mbit
from policies.plan import (
    AUTO,
    CELLS,
    LINKS,
    METHODS,
    REFERENCE,
    SEARCH_SEED,
    SEEDS,
    TASKS,
    Cell,
    Method,
    Row,
    Run,
    crossing_s,
    finalists,
    found_rate,
    most_left,
    pending,
    seeds_of,
)
from policies.run import Part, outcome
from policies.table import line, page, scatter, summaries, verdicts

from timesyncd.training.policy.text import parse_policy

T1, T3 = TASKS["t1"], TASKS["t3"]
FULL, SLOWS, OTHER = CELLS["t1-2-paper"], CELLS["t1-2-even"], CELLS["t1-4-even"]
SLOW, MIDDLE, FAST = T1.learning_rates
BY_NAME = {method.name: method for cell in CELLS.values() for method in cell.methods}
LOCAL, SELSYNC, FAILING = (
    BY_NAME[name] for name in ("local_sgd(h=16)", "selsync(quantile=0.9, late=1)", "selsync(delta=0.3, late=0)")
)


def row(cell: Cell, method: Method, rate: float, seed: int, time_s: float | None) -> Row:
    """`time_s` None: the run failed."""
    outcome_row = {"reached": time_s is not None, "why": "reached" if time_s else "time", "time_s": time_s or 99.0}
    return Run(method, rate, seed, None).key(cell) | outcome_row


def searched(method: Method, time_s: float | None = 10.0) -> list[Row]:
    """A search in which the middle rate is the best."""
    cell = FULL.full(method)
    return [row(cell, method, MIDDLE, SEARCH_SEED, time_s)] + [
        row(cell, method, rate, SEARCH_SEED, None) for rate in (SLOW, FAST)
    ]


def ran(method: Method, *times_s: float | None) -> list[Row]:
    """Search and seeds of the full cell."""
    return searched(method) + [
        row(FULL, method, MIDDLE, seed, time_s) for seed, time_s in zip(SEEDS, times_s, strict=False)
    ]


def link_and_target(cell: Cell) -> list[Row]:
    place = {"task": cell.task.name, "ranks": cell.ranks, "link": cell.link.name, "version": "1"}
    return [
        {
            "kind": "link",
            **place,
            "rate_mbit": 815.0,
            "compute_ms": 6.0,
            "communication_ms": 42.0,
            "ratio": 7.0,
        },
        {"kind": "target", **place, "target": 96.0},
    ]


def of(method: Method, runs: list[Run]) -> list[Run]:
    return [run for run in runs if run.method == method]


def test_method_names_are_unique_in_every_cell() -> None:
    """The name is a part of the key by which a run is resumed."""
    for cell in CELLS.values():
        names = [method.name for method in cell.methods]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("text", sorted({method.policy for method in BY_NAME.values() if method.policy}))
def test_every_policy_is_valid(text: str) -> None:
    """Otherwise an invalid text would be found hours later."""
    assert parse_policy(text)


def test_a_target_is_half_a_point_below_what_ddp_reached() -> None:
    """The median of the best values counts; a perplexity may be 2 % higher."""
    assert T1.target([96.0, 97.0, 99.0]) == 96.5
    assert T3.target([5.0, 6.0, 9.0]) == pytest.approx(6.12)


def test_accuracy_rises_to_the_target_and_perplexity_falls() -> None:
    """The task determines which direction is better."""
    assert (T1.is_reached(96.5, 96.5), T1.is_reached(96.4, 96.5)) == (True, False)
    assert (T3.is_reached(6.0, 6.1), T3.is_reached(6.2, 6.1)) == (True, False)
    assert (T1.best([1.0, 3.0, 2.0]), T3.best([2.0, 1.0, 3.0])) == (3.0, 1.0)


def test_the_moment_of_the_target_is_between_two_evaluations() -> None:
    """It is interpolated: 92 is a quarter of the way from 90 to 98."""
    assert crossing_s(T1, 92.0, [(2.0, 80.0), (4.0, 90.0), (8.0, 98.0)]) == 5.0
    assert crossing_s(T3, 7.0, [(1.0, 9.0), (3.0, 5.0)]) == 2.0
    assert crossing_s(T1, 92.0, [(2.0, 95.0)]) == 2.0
    assert crossing_s(T1, 99.0, [(2.0, 80.0), (4.0, 90.0)]) is None


def test_the_first_run_is_ddp_with_the_middle_learning_rate() -> None:
    """The time limit of all runs follows from DDP's time; DDP's own limit is fixed."""
    assert pending(FULL, [], 60.0)[0] == Run(REFERENCE, MIDDLE, SEARCH_SEED, 60.0)


def test_a_rate_is_given_up_when_it_is_slower_than_the_best_one() -> None:
    """In the search, 12 s to the target become the limit of the other rates."""
    left = of(REFERENCE, pending(FULL, [row(FULL, REFERENCE, MIDDLE, SEARCH_SEED, 12.0)], 60.0))
    assert left == [Run(REFERENCE, SLOW, SEARCH_SEED, 12.0), Run(REFERENCE, FAST, SEARCH_SEED, 12.0)]


def test_after_the_search_come_the_seeds_with_the_best_rate() -> None:
    """With the first limit, since DDP's own time is not known before them."""
    left = of(REFERENCE, pending(FULL, searched(REFERENCE), 60.0))
    assert left == [Run(REFERENCE, MIDDLE, seed, 60.0) for seed in SEEDS]


@pytest.mark.parametrize(("slow_s", "found"), [(11.5, MIDDLE), (10.5, SLOW), (None, MIDDLE)])
def test_another_rate_must_be_faster_than_the_middle_one_by_more_than_chance(
    slow_s: float | None, found: float
) -> None:
    """The middle rate reached the target in 12 s."""
    times = {SLOW: slow_s, MIDDLE: 12.0, FAST: None}
    rows = [row(FULL, REFERENCE, rate, SEARCH_SEED, time_s) for rate, time_s in times.items()]
    assert found_rate(FULL, REFERENCE, rows) == found


def test_finished_runs_are_not_repeated() -> None:
    """Two of five seeds were run."""
    left = of(REFERENCE, pending(FULL, ran(REFERENCE, 20.0, 22.0), 60.0))
    assert [run.seed for run in left] == list(SEEDS[2:])


def test_all_methods_take_a_seed_before_the_next_one() -> None:
    """All methods are searched first, so that slow hours of the machine affect all methods equally. Methods with a slow rank come last, for the same reason."""
    rows = ran(REFERENCE, *[20.0] * 5) + searched(LOCAL) + searched(BY_NAME["DDP, slow rank"])
    for cell in (FULL, SLOWS):
        order = [(run.method.slowed, run.seed) for run in pending(cell, rows, 60.0) if run.method != REFERENCE]
        assert order == sorted(order)
        assert {slowed for slowed, _ in order} == {0.0, 2.0}
    auto = searched(BY_NAME["auto"])
    left = [run for run in pending(FULL, rows + auto, 60.0) if run.seed != SEARCH_SEED]
    assert [(run.method, run.seed) for run in left[:3]] == [(LOCAL, 1), (BY_NAME["auto"], 1), (LOCAL, 2)]


def test_the_limit_follows_from_ddps_median() -> None:
    """One and a half times DDP's median; three times that for a run whose slow rank takes three times as long."""
    rows = ran(REFERENCE, 10.0, 20.0, 30.0, 20.0, 20.0) + searched(BY_NAME["DDP, slow rank"])
    left = pending(FULL, rows, 60.0)
    assert of(REFERENCE, left) == []
    assert left[0].limit_s == 30.0
    assert of(BY_NAME["DDP, slow rank"], pending(FULL, rows, 60.0))[0].limit_s == 90.0


def test_jobs_with_a_slow_rank_are_searched_on_the_free_link() -> None:
    """They run on the free link with all seeds, and with one seed on the slow link, where all other methods are searched."""
    slow = BY_NAME["ssp(s=2), slow rank"]

    assert [run.seed for run in of(slow, pending(SLOWS, [], 60.0))] == [SEARCH_SEED] * 3
    assert of(slow, pending(FULL, [], 60.0)) == []
    assert [run.seed for run in of(slow, pending(SLOWS, searched(slow), 60.0))] == list(SEEDS)
    assert [run.seed for run in of(slow, pending(FULL, searched(slow), 60.0))] == [1]


def test_a_method_without_a_rate_that_reaches_the_target_has_failed() -> None:
    """No seeds are spent on it."""
    rows = ran(REFERENCE, *[20.0] * 5) + searched(LOCAL, None)
    assert of(LOCAL, pending(FULL, rows, 60.0)) == []
    (found,) = (each for each in summaries(FULL, rows) if each.method == LOCAL)
    assert "**failed**" in line(found, 20.0)


def test_another_cell_takes_one_seed_with_the_rate_of_the_full_one() -> None:
    """It has no runs before the full cell has found a rate."""
    assert pending(OTHER, [], 60.0) == []
    assert pending(OTHER, searched(LOCAL), 60.0) == [Run(LOCAL, MIDDLE, 1, 60.0)]
    rows = [*searched(LOCAL), row(OTHER, LOCAL, MIDDLE, 1, 5.0)]
    assert pending(OTHER, rows, 60.0) == []


def test_the_fastest_of_one_seed_are_run_again() -> None:
    """After all methods had one seed: DDP, auto and the three fastest fixed methods get the other seeds; failed methods get none."""
    running = [method for method in OTHER.methods if not method.slowed]
    rows = [each for method in running for each in searched(method, None if method == FAILING else 10.0)]
    first = [method for method in running if method != FAILING]
    rows += [row(OTHER, method, MIDDLE, 1, 50.0 - place) for place, method in enumerate(first)]

    fixed = [method for method in first if method.is_fixed][-3:]
    assert finalists(OTHER, rows[:-1]) == []
    assert finalists(OTHER, rows) == [REFERENCE, *fixed, AUTO]
    left = pending(OTHER, rows, 60.0)
    assert [run.method for run in left] == [REFERENCE] * 4 + [*fixed, AUTO] * 4
    assert [run.seed for run in left] == [2, 3, 4, 5] + [seed for seed in (2, 3, 4, 5) for _ in range(4)]
    assert most_left(OTHER, rows) == len(left) + len(OTHER.methods) - len(running)


def test_finalists_of_a_close_cell_have_more_seeds() -> None:
    """Other methods there have as many as elsewhere."""
    close = CELLS["t3-2-free"]
    assert seeds_of(close, AUTO, [REFERENCE, AUTO]) == tuple(range(1, 32))
    assert seeds_of(close, LOCAL, [REFERENCE, AUTO]) == (1,)
    assert seeds_of(OTHER, AUTO, [REFERENCE, AUTO]) == SEEDS
    assert most_left(close, []) == len(close.methods) + 5 * 30


def test_the_remaining_runs_include_the_seeds_of_a_search() -> None:
    """Three rates and five seeds per method; in another cell one seed, and four more for five methods. A failed method has none left."""
    with_slow_rank = sum(method.slowed > 0 for method in FULL.methods)
    all_of_full = 8 * (len(FULL.methods) - with_slow_rank) + with_slow_rank
    assert most_left(FULL, []) == all_of_full
    assert most_left(FULL, ran(LOCAL, 5.0, 5.0)) == all_of_full - 5
    assert most_left(FULL, searched(LOCAL, None)) == all_of_full - 8
    assert most_left(SLOWS, []) == len(SLOWS.methods) + 7 * with_slow_rank + 5 * 4
    assert most_left(OTHER, searched(LOCAL)) == len(OTHER.methods) + 5 * 4


def test_rows_of_older_code_do_not_count() -> None:
    """The library's version is a part of the version of the methods that use it."""
    rows = [each | {"version": "0.9"} for each in ran(LOCAL, *[5.0] * 5)]
    assert len(of(LOCAL, pending(FULL, rows, 60.0))) == len(T1.learning_rates)
    assert (REFERENCE.version, LOCAL.version) == ("1", "1.1")


def test_an_incomplete_line_is_run_again(tmp_path: Path) -> None:
    """The reader skips it, and it is removed before the next row."""
    path = tmp_path / "results.jsonl"
    assert results.read(path) == []
    results.append(path, {"a": 1.00001})
    with path.open("a") as file:
        file.write('{"b": ')
    assert results.read(path) == [{"a": 1}]
    results.append(path, {"c": 2})
    assert results.read(path) == [{"a": 1}, {"c": 2}]


def test_the_outcome_of_a_run_follows_from_its_curve(tmp_path: Path) -> None:
    """100 steps of 5 ms in 4 s, 90 of them local; the parameter server's bytes belong to no rank."""
    link = link_and_target(FULL)[0] | {"compute_ms": 5.0}
    expected = {
        "why": "reached",
        "steps": 100,
        "synchronizations": 10,
        "changes": ["5: bsp: it is given"],
        "curve": [[2.0, 94.0], [4.0, 98.0]],
        "sent_bytes": [1e6, 3e6, 8e6],
    }
    found = outcome(Part(FULL, tmp_path, 0.0), link, 96.0, expected)
    assert (found["reached"], found["time_s"], found["elapsed_s"], found["best"]) == (True, 3.0, 4.0, 98.0)
    assert (found["lssr"], found["sent_mb"], found["most_sent_mb"]) == (0.9, 2.0, 8.0)
    assert found["overhead"] == pytest.approx(1 - 0.5 / 4)


def test_an_error_in_a_rank_is_a_failure_of_the_run(tmp_path: Path) -> None:
    """The row has the error text, and no time."""
    found = outcome(Part(FULL, tmp_path, 0.0), link_and_target(FULL)[0], 96.0, {"error": "SyncError: rank 1 is gone"})
    assert (found["reached"], found["why"], found["time_s"]) == (False, "SyncError: rank 1 is gone", None)


@given(
    compute_ms=st.floats(1, 50),
    least_ms=st.floats(0.1, 5),
    slope=st.floats(1_000, 100_000),
    ratio=st.floats(1, 10),
    tried_mbit=st.floats(10, 10_000),
)
def test_the_rate_is_found_from_two_measurements(
    compute_ms: float, least_ms: float, slope: float, ratio: float, tried_mbit: float
) -> None:
    """Communication has a constant part and a part proportional to 1 / rate."""
    free = Measured(None, compute_ms, least_ms)
    found = fitted_mbit(ratio, free, Measured(tried_mbit, compute_ms, least_ms + slope / tried_mbit))
    if ratio * compute_ms <= least_ms:
        assert found is None
    else:
        assert found is not None
        assert (least_ms + slope / found) / compute_ms == pytest.approx(ratio)


def test_the_first_guess_is_a_rings_bytes() -> None:
    """2 ranks send 5 MB each, 40 Mbit, in the remaining 40 ms: 1,000 Mbit/s."""
    assert first_mbit(7.0, Measured(None, 6.0, 2.0), 5_000_000, 2) == pytest.approx(1_000)


def test_a_seed_that_failed_counts_as_the_slowest() -> None:
    """The median of 5, 6, 7 and two failures is 7; with three failures there is none."""
    (found,) = summaries(FULL, ran(LOCAL, 6.0, None, 5.0, None, 7.0))
    assert (found.median_s, len(found.reached)) == (7.0, 3)
    assert "| 3 of 5 | 7.0 (5.0 to 7.0) | 3.00 |" in line(found, 21.0)
    (found,) = summaries(FULL, ran(LOCAL, 6.0, None, 5.0, None, None))
    assert found.median_s is None
    assert "**failed** (time)" in line(found, 21.0)


def test_goals_are_judged_by_the_medians() -> None:
    """SelSync 4 times as fast as DDP meets its goal; auto as fast as that is within 10 % of the best, which is Local SGD's."""
    rows = ran(REFERENCE, *[40.0] * 5) + ran(SELSYNC, *[10.0] * 5) + ran(LOCAL, *[9.5] * 5) + ran(AUTO, *[10.0] * 5)
    assert [verdict.held for verdict in verdicts(FULL, rows)] == [True, True, True]
    slower = [each | {"time_s": 14.0} if each["method"] in (SELSYNC.name, AUTO.name) else each for each in rows]
    assert [verdict.held for verdict in verdicts(FULL, slower)] == [False, False, True]


def test_a_cell_that_was_not_run_has_no_goals() -> None:
    """Also where the full cell's search shows failures already, and where a cell has only DDP's first runs."""
    other = CELLS["t1-4-paper"]
    begun = [*searched(REFERENCE), row(other, REFERENCE, MIDDLE, 1, 20.0)]

    assert list(verdicts(other, searched(SELSYNC, None))) == []
    assert list(verdicts(other, begun + searched(SELSYNC, None))) == []


def test_auto_is_compared_with_methods_of_as_many_seeds() -> None:
    """A method with one lucky seed does not count; the verdict names the number of seeds."""
    rows = ran(REFERENCE, *[40.0] * 5) + ran(SELSYNC, *[10.0] * 5) + ran(LOCAL, 2.0) + ran(AUTO, *[10.5] * 5)
    _, auto, _ = verdicts(FULL, rows)
    assert (auto.held, auto.text) == (
        True,
        f"10.5 s, {SELSYNC.name} 10.0 s: 1.05 times (1.05 to 1.05), of 5 seeds",
    )


def test_a_ratio_has_its_scatter() -> None:
    """For two methods with equal seeds it is around 1, and no wider than the seeds scatter; a failed seed counts as infinitely slow."""
    times_s = 8.0, 10.0, 9.0, 12.0, 11.0
    rows = ran(REFERENCE, *times_s) + ran(LOCAL, *times_s) + ran(AUTO, 8.0, 10.0, 9.0, None, None)
    ddp, local, auto = summaries(FULL, rows)
    low, high = scatter(local, ddp)

    assert 8 / 12 <= low < 0.95 and 1.05 < high <= 12 / 8
    assert scatter(auto, ddp)[0] < 1.1
    assert scatter(auto, ddp)[1] > 1_000


def test_an_auto_that_fails_misses_its_goals() -> None:
    """A failure does not count as a missing value."""
    rows = ran(REFERENCE, *[40.0] * 5) + searched(AUTO, None)
    assert [verdict.held for verdict in verdicts(FULL, rows)] == [False, False]


def test_the_page_has_the_ratio_with_the_figures() -> None:
    """Rate, ratio and target are above the table; cells without runs are omitted."""
    text = page(
        link_and_target(FULL) + link_and_target(CELLS["t2-2-paper"]) + ran(REFERENCE, 20.0, 30.0, 25.0, 24.0, 26.0)
    )
    assert "2 ranks, links of 815 Mbit/s" in text
    assert "7.0 = 42.0 ms : 6.0 ms" in text
    assert "| DDP | 5 of 5 | 25.0 (20.0 to 30.0) | 1.00 |" in text
    assert "**Not complete**: up to " in text
    assert "t2-2-paper" not in text


def test_the_page_can_be_made_before_the_target_is_known() -> None:
    """The first runs are stored before the target is known."""
    link, _ = link_and_target(FULL)

    assert FULL.name not in page([link, *ran(REFERENCE, 20.0)])


def test_a_link_that_needs_no_shaping_is_run_once() -> None:
    """An unshaped link whose ratio is already above 1 is both `even` and `free`; where `even` is shaped they are two links, and `paper` is never one of them."""
    even, free = CELLS["t1-2-even"], CELLS["t1-2-free"]
    shaped = link_and_target(even)
    unshaped = [row | {"rate_mbit": None} for row in shaped]

    assert [results.twin(free, rows) for rows in ([], shaped, unshaped)] == [None, None, even]
    assert [results.twin(cell, unshaped) for cell in (even, FULL, CELLS["t1-4-free"])] == [None] * 3
    assert "## t1-2-free\n\nThat is t1-2-even: its link needed no shaping." in page(unshaped)


def test_cells_are_all_tasks_ranks_and_links() -> None:
    """One of each task is full: 2 ranks, the paper's ratio."""
    assert len(CELLS) == len(TASKS) * 2 * len(LINKS)
    assert [cell.name for cell in CELLS.values() if cell.is_full] == [f"{task}-2-paper" for task in TASKS]
    assert METHODS[0] == REFERENCE
