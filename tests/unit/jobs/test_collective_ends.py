"""Clocks aligned by the ends of collectives: what the simulated jobs do not show."""

from __future__ import annotations

import random

import pytest

from timesyncd.ipc.job_datagram import Kind
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs.arrivals import Arrival, Sync, compare
from timesyncd.jobs.collective_ends import ASYMMETRY_PART, aligned, clock_offsets
from timesyncd.jobs.stragglers import attribute

US = 1_000
MS = 1_000_000
STEP_NS = 20 * MS
FIRST_NS = 1_000_000 * MS


def sync(step: int, behind_ns: int, kind: int = Kind.ALL_REDUCE, transfer_ns: int = 100 * US, number: int = 0) -> Sync:
    """Rank 1 reads another clock, and leaves by so much later on it."""
    end_ns = step * STEP_NS + 10 * MS
    times = {0: (end_ns - transfer_ns, end_ns), 1: (end_ns - transfer_ns + behind_ns, end_ns + behind_ns)}
    arrivals = {rank: Arrival(f"n{rank}", 0, begin, begin, end, None) for rank, (begin, end) in times.items()}
    return Sync(step, number, kind, arrivals, None)


def test_the_uncertainty_covers_exits_that_scatter() -> None:
    """Ranks leave within milliseconds of each other: the error of the offset follows from that scatter and the number of steps."""
    outside = 0
    for seed in range(100):
        chance = random.Random(seed)
        offset = clock_offsets([sync(step, round(chance.gauss(7 * MS, MS))) for step in range(40)])["n1"]
        outside += any(abs(offset.at(at_ns) - 7 * MS) > offset.error_ns for at_ns in (0, 40 * STEP_NS))

        assert offset.error_ns < 3 * MS
    assert outside <= 2


def test_the_shortest_collective_has_the_smallest_error() -> None:
    """A barrier in each step, and not the bucket beside it."""
    syncs = [
        each
        for step in range(20)
        for each in (sync(step, MS, Kind.BUCKET, 8 * MS), sync(step, MS, Kind.BARRIER, 80 * US, number=1))
    ]

    assert clock_offsets(syncs)["n1"].error_ns == 80 * US // ASYMMETRY_PART + 2_000


@pytest.mark.parametrize(
    "syncs",
    [
        [],
        [sync(step, 0) for step in range(9)],
        [sync(step, 0, Kind.BROADCAST) for step in range(20)],
        [sync(step, 0, Kind.CUSTOM) for step in range(20)],
        [sync(step, 0, Kind.HOOK) for step in range(20)],
    ],
    ids=["nothing", "too few", "a root leaves early", "unknown what", "a user's hook"],
)
def test_insufficient_collectives_align_nothing(syncs: list[Sync]) -> None:
    """Without enough collectives that all leave together there is no axis."""
    assert clock_offsets(syncs) == {}
    assert aligned(syncs) is None


def test_where_the_clocks_are_better_nothing_is_aligned() -> None:
    """Two clocks: 20 us of a quarter of the transfer, 2 us, and a reading's worth."""
    syncs = [sync(step, MS, Kind.BARRIER, 80 * US) for step in range(20)]
    found = aligned(syncs, 23 * US + 1)

    assert aligned(syncs, 23 * US) is None
    assert found is not None
    assert {each.comparison.error_ns for each in found if each.comparison} == {23 * US}


def test_a_rank_whose_clock_was_stepped_stays_uncompared() -> None:
    """One mark near a step spoils its synchronization, and no other."""
    syncs = [sync(step, MS) for step in range(20)]
    lost = Arrival(None, 0, 0, 0, 0, None)
    syncs[3] = Sync(3, 0, Kind.ALL_REDUCE, {0: syncs[3].arrivals[0], 1: lost}, None)
    found = aligned(syncs)

    assert found is not None
    assert [each.step for each in found if each.comparison is None] == [3]


def job_of_two_nodes(up_ns: int, ppb: int, late_ns: int = 20 * MS, steps: int = 200) -> list[Sync]:
    """Rank 1's node has been up for that much longer, its clock runs fast, and the rank is late in every step."""
    chance = random.Random(1)
    found = []
    for step in range(steps):
        begin_ns = FIRST_NS + step * 50 * MS
        arrivals = {}
        for rank, begins_ns in ((0, begin_ns), (1, begin_ns + late_ns)):
            arrival_ns = begins_ns + chance.randint(0, 300 * US)
            end_ns = begin_ns + late_ns + 2 * MS + chance.randint(0, 200 * US)
            real_ns = [at_ns + rank * (at_ns - FIRST_NS) * ppb // 10**9 + 10**18 for at_ns in (arrival_ns, end_ns)]
            arrivals[rank] = Arrival(f"n{rank}", 10**18 - rank * up_ns, real_ns[0], real_ns[0], real_ns[1], None)
        found.append(Sync(step, 0, Kind.ALL_REDUCE, arrivals, compare(arrivals)))
    return found


@pytest.mark.parametrize("up_days", [0, 1, 11, -11, 400])
@pytest.mark.parametrize("ppm", [2, -2, 50])
def test_the_nodes_uptimes_do_not_change_the_lateness(up_days: int, ppm: int) -> None:
    """The drift counts for the time of the job, not for the difference between two uptimes: 20 ms are 20 ms."""
    found = attribute(job_of_two_nodes(up_days * 86_400_000 * MS, ppm * 1_000), {0: "a", 1: "b"}, 2)

    (one,) = found.stragglers
    assert (found.method, one.rank, one.verdict, found.unwaited) == (Method.COLLECTIVE_ENDS, 1, "straggler", 0)
    assert one.lateness_p50_ns == pytest.approx(20 * MS, abs=MS // 5)


@pytest.mark.parametrize("up_days", [0, 11])
def test_equal_ranks_of_nodes_with_other_uptimes_are_not_named(up_days: int) -> None:
    """Two ranks that are alike, on nodes that booted at different times: none is late."""
    found = attribute(job_of_two_nodes(up_days * 86_400_000 * MS, 2_000, late_ns=0), {0: "a", 1: "b"}, 2)

    assert found.stragglers == ()
