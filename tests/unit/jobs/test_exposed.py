"""Exposed time: what was not hidden behind compute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.jobs.arrivals import Arrival, StepMark, Sync, compare
from timesyncd.jobs.exposed import Interval, RankCost, StageCost, frontier, step_cost, union_ns, waited_ns


def part(
    begin_ns: int, end_ns: int, arrival_ns: int | None = None, clock: str | None = "a", epoch_ns: int = 0
) -> Arrival:
    return Arrival(clock, epoch_ns, begin_ns if arrival_ns is None else arrival_ns, begin_ns, end_ns, None)


def sync(number: int, *arrivals: Arrival | None, step: int = 0) -> Sync:
    by_rank = {rank: arrival for rank, arrival in enumerate(arrivals) if arrival is not None}
    return Sync(step, number, 1, by_rank, compare(by_rank))


def test_exposed_time_is_time_inside_over_time_elapsed() -> None:
    """A rank's step lasts until its first arrival in the next one, on its own clock; the last step has no end."""
    syncs = [sync(0, part(0, 30), part(20, 30))]
    after = [sync(0, part(100, 130), part(120, 130), step=1)]

    assert step_cost(0, syncs, after, {}, {}).ranks == {0: RankCost(30, 100), 1: RankCost(10, 100)}
    assert step_cost(0, syncs, after, {}, {}).overhead == 0.2
    assert step_cost(1, after, [], {}, {}).overhead is None


def test_what_compute_hides_costs_nothing() -> None:
    """Of an overlapped bucket only what lies behind the end of backward is exposed."""
    syncs = [sync(0, part(80, 90, arrival_ns=10)), sync(1, part(80, 85, arrival_ns=40))]

    assert step_cost(0, syncs, [], {0: StepMark(0, 0, 80, 100)}, {}).ranks == {0: RankCost(10, 100)}


def test_a_step_mark_has_the_length_of_the_step() -> None:
    """It needs no next step, and a job without collectives has its requests to the servers."""
    requests = {0: [(10, 30), (20, 40)]}

    assert step_cost(7, [], [], {0: StepMark(7, 0, None, 100)}, requests).ranks == {0: RankCost(30, 100)}
    assert step_cost(7, [], [], {0: StepMark(7, 100, None, 0)}, requests).ranks == {}


@pytest.mark.parametrize(
    "syncs",
    [
        [sync(0, part(0, 50)), sync(1, None, part(60, 70))],
        [sync(0, part(0, 50)), sync(1, part(60, 70, clock=None))],
        [sync(0, part(0, 50)), sync(1, part(60, 70, epoch_ns=9_999))],
        [sync(0, part(0, 50)), sync(1, part(60, 70, clock="b"))],
    ],
    ids=["mark missing", "clock stepped", "clock set in between", "another clock"],
)
def test_what_was_not_measured_is_left_out(syncs: list[Sync]) -> None:
    """Of a rank that lacks a mark, or whose clock was set meanwhile, neither part of the ratio is known."""
    assert 0 not in step_cost(0, syncs, [sync(0, part(100, 110), step=1)], {}, {}).ranks


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


@given(intervals, st.integers(0, 30), st.integers(30, 60))
def test_a_moment_inside_several_is_one_moment(inside: list[Interval], begin_ns: int, end_ns: int) -> None:
    """The union is what a count of the single nanoseconds gives, whatever the order and however they overlap."""
    moments = {at for first, last in inside for at in range(first, last)}

    assert union_ns(inside, (begin_ns, end_ns)) == len(moments & set(range(begin_ns, end_ns)))


def test_the_first_leading_rank_is_named_at_each_stage() -> None:
    """Rank 1 comes late to the first synchronization; the others' wait for it is no cost of the transfer."""
    assert frontier({0: [(10, 45), (60, 70)], 1: [(40, 45), (55, 70)]}) == [
        StageCost(0, "reach", 40, 1),
        StageCost(0, "leave", 5, 0),
        StageCost(1, "reach", 15, 0),
        StageCost(1, "leave", 10, 0),
    ]
    assert frontier({}) == []


@given(st.lists(st.lists(st.integers(0, 100), min_size=6, max_size=6), min_size=1, max_size=4))
def test_the_stages_add_up(times: list[list[int]]) -> None:
    """The costs are not negative, and together they are the last boundary, also where buckets overlap."""
    step = {rank: [(each[i], each[i + 1]) for i in (0, 2, 4)] for rank, each in enumerate(times)}
    costs = frontier(step)

    assert sum(cost.cost_ns for cost in costs) == max(max(each) for each in times)
    assert all(cost.cost_ns >= 0 for cost in costs)


def test_ranks_that_disagree_on_the_step_have_no_frontier() -> None:
    """A stage of one rank alone compares with nothing."""
    with pytest.raises(ValueError, match="different numbers"):
        frontier({0: [(0, 1)], 1: []})


def test_a_busy_rank_does_not_wait() -> None:
    """A late arrival costs nothing before the others are through with computing, and with the synchronization before."""
    late = sync(1, part(30, 60, arrival_ns=10), part(50, 60))

    assert waited_for(late, 1, {}) == 20
    assert waited_for(late, 1, {0: 45, 1: 0}) == 5
    assert waited_for(late, 1, {0: 55, 1: 55}) == 0


def test_a_rank_that_has_left_does_not_wait() -> None:
    """A broadcast's receivers leave before a late one comes: it is no wait for that one; within the error their own end is its end."""
    assert waited_for(sync(0, part(0, 1_000), part(0, 1_000), part(9_000, 10_000)), 2, {}) == 0
    assert waited_for(sync(0, part(0, 1_000), part(0, 1_000), part(1_500, 10_000)), 2, {}) == 1_000
    assert waited_for(sync(0, part(0, 9_500), part(0, 9_500), part(9_000, 10_000)), 2, {}) == 9_000


def waited_for(one: Sync, rank: int, free_ns: dict[int, int]) -> int:
    assert one.comparison is not None
    return waited_ns(one, one.comparison, rank, free_ns)
