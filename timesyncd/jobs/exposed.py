"""
Exposed time: the part of a job's synchronization that compute does not hide. Each rank's part is measured on its own
clock, so no clock error enters, and it needs no PTP. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from timesyncd.ipc.job_datagram import Mark, OwnPart
from timesyncd.ipc.wire_types import MAX_RATIO
from timesyncd.jobs.arrivals import Arrival, Comparison, StepMark, Sync, stepped

Interval = tuple[int, int]
"""(begin_ns, end_ns) on one clock."""

_OWN_PARTS = frozenset(map(int, OwnPart))


class RankCost(NamedTuple):
    """One rank's step: how long it took, and for how long of that the rank only waited for synchronizations."""

    exposed_ns: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step of a job, summed over the measured `ranks`. `step` is a key."""

    step: int
    ranks: Mapping[int, RankCost]
    exposed_ns: int
    elapsed_ns: int

    @property
    def overhead(self) -> float | None:
        return ratio(self.exposed_ns, self.elapsed_ns)


@dataclass(frozen=True, slots=True)
class OwnWait:
    """
    One rank's step, and for how long of it the rank only waited, in all groups together (None: unknown). Ranks with an
    equal `work` do the same; 0: unknown. `parts_ns`: its own time by part of the step, where the rank states it.
    """

    elapsed_ns: int
    waited_ns: int | None
    work: int
    parts_ns: Mapping[OwnPart, int] | None = None

    @property
    def own_ns(self) -> int | None:
        """Without all waits."""
        return None if self.waited_ns is None else self.elapsed_ns - self.waited_ns


def own_wait(mark: Mark) -> OwnWait | None:
    """What an OWN_TIME states; None: its times cannot be."""
    if not mark.arrival_ns <= mark.begin_ns <= mark.end_ns:
        return None
    return OwnWait(mark.end_ns - mark.arrival_ns, None if mark.bytes else mark.end_ns - mark.begin_ns, mark.sync)


def own_part(mark: Mark) -> tuple[OwnPart, int] | None:
    """The part and its own time of an OWN_PART; None: this version does not know the part, or its times cannot be."""
    if mark.sync not in _OWN_PARTS or mark.arrival_ns > mark.end_ns:
        return None
    return OwnPart(mark.sync), mark.end_ns - mark.arrival_ns


class StageCost(NamedTuple):
    """
    One stage of a step: all ranks reach synchronization `sync`, or leave it. It moves the frontier by `cost_ns`; `rank`
    is the first rank that determines it there.
    """

    sync: int
    stage: Literal["reach", "leave"]
    cost_ns: int
    rank: int


def ratio(part: int, whole: int) -> float | None:
    """One duration divided by another, at most what a message holds; None: the other is 0."""
    return min(part / whole, MAX_RATIO) if whole > 0 else None


def union_ns(intervals: Iterable[Interval], within: Interval) -> int:
    """How much of `within` the intervals cover. Time inside several of them (the buckets of a step) counts once."""
    covered_until_ns, until_ns = within
    covered_ns = 0
    for begin_ns, end_ns in sorted(intervals):
        begin_ns, end_ns = max(begin_ns, covered_until_ns), min(end_ns, until_ns)
        if end_ns > begin_ns:
            covered_ns += end_ns - begin_ns
            covered_until_ns = end_ns
    return covered_ns


def step_cost(
    step: int,
    syncs: Sequence[Sync],
    following: Sequence[Sync],
    marks: Mapping[int, StepMark],
    requests: Mapping[int, Sequence[Interval]],
    own: Mapping[int, OwnWait] | None = None,
) -> StepCost:
    """
    The cost of a step. `syncs` are its synchronizations, `following` those of the next step, in order; `marks` are the
    step marks and `requests` the pushes and pulls, by rank.

    A rank's step lasts as its step mark says, else from its first arrival to its first arrival in the next step. A rank
    is left out where it lacks a mark of one of the synchronizations, or its clock was stepped meanwhile. Where ranks
    state their `own` waits these count, and other ranks are left out; where one does not know its own, nothing is
    known of the step.
    """
    own = own or {}
    if any(each.waited_ns is None for each in own.values()):
        return StepCost(step, {}, 0, 0)
    ranks = {}
    for rank in {rank for sync in syncs for rank in sync.arrivals} | marks.keys() | own.keys():
        arrivals = [sync.arrivals.get(rank) for sync in syncs]
        after = following[0].arrivals.get(rank) if following else None
        if own:
            cost = _own_cost(own[rank]) if rank in own else None
        else:
            cost = _rank_cost(arrivals, after, marks.get(rank), requests.get(rank, ()))
        if cost is not None:
            ranks[rank] = cost
    return StepCost(
        step, ranks, sum(cost.exposed_ns for cost in ranks.values()), sum(cost.elapsed_ns for cost in ranks.values())
    )


def _own_cost(own: OwnWait) -> RankCost | None:
    return RankCost(own.waited_ns, own.elapsed_ns) if own.waited_ns is not None and own.elapsed_ns > 0 else None


def _rank_cost(
    arrivals: Sequence[Arrival | None], after: Arrival | None, mark: StepMark | None, requests: Sequence[Interval]
) -> RankCost | None:
    whole = [arrival for arrival in arrivals if arrival is not None]
    if len(whole) < len(arrivals) or not _is_unbroken(whole):
        return None
    if mark is not None:
        lasts = mark.arrival_ns, mark.end_ns
    elif whole and after is not None and _is_unbroken([whole[0], after]):
        lasts = whole[0].arrival_ns, after.arrival_ns
    else:
        return None
    if lasts[1] <= lasts[0]:
        return None
    waits = [(arrival.begin_ns, arrival.end_ns) for arrival in whole]
    return RankCost(union_ns([*waits, *requests], lasts), lasts[1] - lasts[0])


def _is_unbroken(arrivals: Sequence[Arrival]) -> bool:
    """Whether all are of one clock that was not stepped in between."""
    if not arrivals:
        return True
    first = arrivals[0].clock
    return first is not None and all(arrival.clock == first for arrival in arrivals) and not stepped(arrivals)


def frontier(step: Mapping[int, Sequence[Interval]]) -> list[StageCost]:
    """
    The stages of one step, after StageFrontier (arXiv 2606.06751): the frontier at each boundary is the largest of the
    ranks' cumulative times, and what a stage adds to it is the stage's exposed cost. No cost is negative, and the costs
    add up to the last boundary.

    `step`: by rank, for each synchronization in order, when the rank reached and when it left it, in nanoseconds *since
    that rank's own step began*, so no clocks are compared. Raises ValueError where the ranks have different numbers of
    synchronizations.
    """
    if len({len(boundaries) for boundaries in step.values()}) > 1:
        raise ValueError("the ranks of a step have different numbers of synchronizations")
    costs = []
    reached_ns = 0
    for sync in range(len(next(iter(step.values()), ()))):
        stages: tuple[tuple[int, Literal["reach", "leave"]], ...] = ((0, "reach"), (1, "leave"))
        for side, stage in stages:
            leader = min(step, key=lambda rank: (-step[rank][sync][side], rank))
            cost_ns = max(0, step[leader][sync][side] - reached_ns)
            reached_ns += cost_ns
            costs.append(StageCost(sync, stage, cost_ns, leader))
    return costs


def waited_ns(sync: Sync, comparison: Comparison, late: int, free_ns: Mapping[int, int]) -> int:
    """
    For how long half of the ranks only waited here for rank `late`, which arrived after the (lower) median arrival, in
    nanoseconds.

    Its lateness costs nothing while they compute or are inside an earlier synchronization, which rank by rank they left
    at `free_ns` (absent: never inside one), nor where they have left before it arrives, as from a broadcast. The
    arrivals must be on one time axis.
    """
    arrival_ns = sync.arrivals[late].arrival_ns
    median_ns = arrival_ns - comparison.lateness_ns[late]
    idle_ns = _lower_median(max(each.begin_ns, free_ns.get(rank, 0)) for rank, each in sync.arrivals.items())
    left_ns = _lower_median(each.end_ns for each in sync.arrivals.values())
    if left_ns + comparison.error_ns < arrival_ns:
        return 0
    return max(0, min(arrival_ns, left_ns) - max(median_ns, idle_ns))


def _lower_median(times_ns: Iterable[int]) -> int:
    times = sorted(times_ns)
    return times[(len(times) - 1) // 2]
