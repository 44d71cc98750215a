"""The job as a witness against clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import READING_GRANULARITY_NS, Arrival, Sync, compare
from timesyncd.jobs.causality import MIN_STEPS, Suspicion, did_not_wait, suspect

US = 1_000
NODES = {0: "a", 1: "b", 2: "c"}


def sync(step: int, ahead_us: Sequence[int], bound_us: int = 10, kind: int = Kind.BARRIER) -> Sync:
    """All arrive together, and leave 50 us later; so far each rank's clock is ahead."""
    arrivals: Mapping[int, Arrival] = {
        rank: Arrival(f"n{rank}", 0, us * US, us * US, (us + 50) * US, bound_us * US)
        for rank, us in enumerate(ahead_us)
    }
    return Sync(step, 0, kind, arrivals, compare(arrivals))


def observed(*ahead_us: int, steps: int = MIN_STEPS, bound_us: int = 10, kind: int = Kind.BARRIER) -> Suspicion | None:
    return suspect([sync(step, ahead_us, bound_us, kind) for step in range(steps)], NODES)


@pytest.mark.parametrize("wrong_us", [200, -200])
def test_the_clock_that_contradicts_all_others_is_named(wrong_us: int) -> None:
    """Ahead it arrives after the others have left, behind it leaves before they arrive."""
    assert observed(0, 0, wrong_us) == Suspicion(("c",), 3, (200 - 50 - 20) * US - READING_GRANULARITY_NS)


def test_a_violation_within_the_bounds_is_none() -> None:
    """A violation within the errors accuses no clock, to the last nanosecond of the granularity."""
    assert observed(0, 0, 71) is None
    assert observed(0, 0, 72) is not None
    assert observed(0, 0, 200, bound_us=80) is None


def test_of_two_clocks_either_may_be_wrong() -> None:
    """Both are named, as one of the two."""
    syncs = [sync(step, [0, 200]) for step in range(3)]

    assert suspect(syncs, {0: "a", 1: "b"}) == Suspicion(("a", "b"), 3, 129 * US)


@pytest.mark.parametrize(
    "case",
    [
        [sync(step, [0, 0, 200]) for step in range(2)],
        [sync(step, [0, 40, 80]) for step in range(3)],
        [sync(step, [0, 100, 200]) for step in range(3)],
        [sync(step, [0, 200, 400]) for step in range(3)],
        [sync(step, [0, 0, 200 if step % 2 else -200]) for step in range(6)],
        [sync(step, [0, 0, 200], kind=Kind.BROADCAST) for step in range(3)],
        [sync(step, [0, 0, 200], kind=Kind.CUSTOM) for step in range(3)],
        [sync(step, [0, 0, 200], kind=Kind.HOOK) for step in range(3)],
    ],
    ids=[
        "two steps",
        "one counterpart",
        "a chain",
        "three wrong",
        "both ways",
        "a root",
        "unknown what",
        "a user's hook",
    ],
)
def test_the_innocent_are_not_accused(case: list[Sync]) -> None:
    """Too few steps, too few witnesses, no single culprit, no constant side, or no collective that everybody waits in."""
    assert suspect(case, NODES) is None


def test_ranks_that_did_not_wait_for_each_other_give_no_evidence_of_clocks() -> None:
    """Where ranks of one node leave before their neighbour arrives it was no collective over all ranks."""
    apart = [sync(step, [0, 200, 0]) for step in range(3)]

    assert suspect(apart, {0: "a", 1: "a", 2: "c"}) is None


def test_ranks_of_one_clock_that_did_not_wait_end_the_testimony() -> None:
    """Once is enough, and within the clock's error against others too, since between the two there is none."""
    syncs = [sync(step, [0, 0, 200]) for step in range(3)]
    neighbours = sync(3, [0, 55, 0])
    arrivals = {rank: replace(each, clock=f"n{rank // 2}") for rank, each in neighbours.arrivals.items()}
    apart = replace(neighbours, arrivals=arrivals, comparison=compare(arrivals))

    assert suspect(syncs, NODES) is not None
    assert suspect([*syncs, apart], NODES) is None
    assert did_not_wait(replace(apart, kind=Kind.HOOK))
    assert not did_not_wait(replace(neighbours, kind=Kind.HOOK))


@pytest.mark.parametrize(("kind", "within_us"), [(Kind.BUCKET, 201), (Kind.BARRIER, 201), (Kind.HOOK, 1)])
def test_what_waits_by_its_kind_is_not_doubted_for_a_device_s_stamps(kind: Kind, within_us: int) -> None:
    """Stamps of two devices may contradict each other by twice the error of one; for a hook the granularity of a reading is enough."""

    def left_too_early(by_us: int) -> Sync:
        one = sync(0, [0, 0, 50 + by_us], kind=kind)
        arrivals = {rank: replace(each, clock="a") for rank, each in one.arrivals.items()}
        return replace(one, arrivals=arrivals, comparison=compare(arrivals))

    assert not did_not_wait(left_too_early(within_us))
    assert did_not_wait(left_too_early(within_us + 1))
    assert not did_not_wait(replace(left_too_early(within_us + 1), kind=Kind.BROADCAST))


@pytest.mark.parametrize(("behind_ms", "named"), [(4, True), (6, False), (10, False), (-10, False)])
def test_marks_that_are_a_step_apart_are_no_clock_s_fault(behind_ms: int, named: bool) -> None:
    """Steps of 10 ms: from half of a step on, a rank may number its steps differently, or no rank waits."""
    syncs = [moved(sync(step, [0, 0, behind_ms * 1_000]), step * 10_000_000) for step in range(20)]

    assert (suspect(syncs, NODES) is not None) == named


def moved(one: Sync, by_ns: int) -> Sync:
    arrivals = {
        rank: replace(
            each, arrival_ns=each.arrival_ns + by_ns, begin_ns=each.begin_ns + by_ns, end_ns=each.end_ns + by_ns
        )
        for rank, each in one.arrivals.items()
    }
    return replace(one, arrivals=arrivals, comparison=compare(arrivals))


def test_marks_of_nodes_that_are_not_known_count_for_nothing() -> None:
    """A name alone anybody can give."""
    syncs = [sync(step, [0, 0, 200]) for step in range(3)]

    assert suspect(syncs, {0: "a", 1: "b"}) is None
    assert suspect(syncs, {}) is None


def test_a_large_job_is_analysed_quickly() -> None:
    """Pairs that can only be of several wrong clocks are not counted out: two thousand ranks, each off by something else."""
    wide = sync(0, [7_919 * rank % 10_007 for rank in range(2_000)])

    assert suspect([wide], {rank: f"n{rank}" for rank in range(2_000)}) is None
