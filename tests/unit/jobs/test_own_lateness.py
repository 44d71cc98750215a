"""Lateness that a rank inherits from a broadcast, in which it waited for another rank, is not its own."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Arrival, Sync, compare
from timesyncd.jobs.own_lateness import with_own_lateness

MS = 1_000_000

Times = Mapping[int, tuple[int, int]]
"""By rank: arrival and end, in ms."""


def sync(kind: Kind, times: Times, step: int = 0, number: int = 0) -> Sync:
    arrivals = {
        rank: Arrival("clock", 0, MS * arrival, MS * arrival, MS * end, 0) for rank, (arrival, end) in times.items()
    }
    return Sync(step, number, kind, arrivals, compare(arrivals))


def late(found: Sync) -> dict[int, int]:
    """The late ranks with their lateness in ms."""
    assert found.comparison is not None
    return {rank: found.comparison.lateness_ns[rank] // MS for rank in found.comparison.late_ranks}


def late_after(*syncs: Sync) -> list[dict[int, int]]:
    return [late(each) for each in with_own_lateness(syncs)]


def test_a_rank_that_waited_in_a_broadcast_is_not_late_behind_it() -> None:
    """Rank 2 comes 60 ms late, and rank 0 sends to it: ranks 1 and 3 go on. Behind it ranks 0 and 2 are late, 2 by itself."""
    broadcast = sync(Kind.BROADCAST, {0: (0, 61), 1: (0, 1), 2: (60, 61), 3: (0, 1)})
    bucket = sync(Kind.BUCKET, {0: (71, 80), 1: (11, 80), 2: (71, 80), 3: (11, 80)}, number=1)

    assert late_after(broadcast, bucket) == [{2: 60}, {2: 60}]
    assert late(bucket) == {0: 60, 2: 60}


def test_a_rank_that_is_slow_behind_a_broadcast_is_late_by_that_much() -> None:
    """Rank 0 waited for 60 ms, and computes 5 ms longer than the others: 5 ms are its own."""
    broadcast = sync(Kind.BROADCAST, {0: (0, 61), 1: (0, 1), 2: (60, 61), 3: (0, 1)})
    bucket = sync(Kind.BUCKET, {0: (76, 80), 1: (11, 80), 2: (71, 80), 3: (11, 80)}, number=1)

    assert late_after(broadcast, bucket)[1] == {0: 5, 2: 60}


def test_the_waits_behind_a_broadcast_are_no_time_of_the_rank_s_own() -> None:
    """Rank 1 waits in the all-reduce for rank 0, which waited in the broadcast."""
    broadcast = sync(Kind.BROADCAST, {0: (0, 61), 1: (0, 1), 2: (60, 61), 3: (0, 1)})
    all_reduce = sync(Kind.ALL_REDUCE, {0: (62, 65), 1: (2, 65), 2: (62, 65), 3: (2, 65)}, number=1)
    bucket = sync(Kind.BUCKET, {0: (70, 90), 1: (85, 90), 2: (70, 90), 3: (70, 90)}, number=2)

    assert late_after(broadcast, all_reduce, bucket)[2] == {1: 15}


def test_a_broadcast_counts_up_to_the_end_of_the_next_step() -> None:
    """ZeRO broadcasts the parameters at a step's end: behind the reduction of the next step the ranks run level again."""
    times = {0: (0, 61), 1: (0, 1), 2: (60, 61), 3: (0, 1)}
    behind = {0: (71, 80), 1: (11, 80), 2: (71, 80), 3: (11, 80)}
    found = late_after(sync(Kind.BROADCAST, times), *(sync(Kind.BUCKET, behind, step) for step in (1, 2)))

    assert found[1:] == [{2: 60}, {0: 60, 2: 60}]


def test_overlapping_synchronizations_are_compared_as_they_are() -> None:
    """A rank that is still inside the broadcast when it comes to the next one does not wait for it."""
    broadcast = sync(Kind.BROADCAST, {0: (0, 61), 1: (0, 1), 2: (60, 61)})
    bucket = sync(Kind.BUCKET, {0: (50, 80), 1: (11, 80), 2: (71, 80)}, number=1)

    assert with_own_lateness([broadcast, bucket]) == [broadcast, bucket]


ARRIVALS = st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2)


@given(st.lists(ARRIVALS, min_size=1, max_size=5))
def test_without_an_uneven_synchronization_nothing_changes(steps: list[Times]) -> None:
    """Complete collectives level the ranks."""
    syncs = [
        sync(Kind.BUCKET, {rank: (begin, begin + lasts) for rank, (begin, lasts) in times.items()}, step)
        for step, times in enumerate(steps)
    ]

    assert with_own_lateness(syncs) == syncs


@given(st.lists(st.tuples(st.sampled_from([Kind.BROADCAST, Kind.BUCKET]), ARRIVALS), min_size=1, max_size=6))
def test_no_rank_becomes_later_than_it_came(steps: list[tuple[Kind, Times]]) -> None:
    """The own lateness is a part of the whole, and no other rank becomes late."""
    syncs = [
        sync(
            kind,
            {rank: (100 * number + begin, 100 * number + begin + lasts) for rank, (begin, lasts) in times.items()},
            0,
            number,
        )
        for number, (kind, times) in enumerate(steps)
    ]
    for before, after in zip(syncs, with_own_lateness(syncs), strict=True):
        assert (before.comparison is None) == (after.comparison is None)
        if before.comparison is not None and after.comparison is not None:
            assert set(after.comparison.late_ranks) <= set(before.comparison.late_ranks)
            assert set(after.comparison.surely_late_ranks) <= set(before.comparison.surely_late_ranks)
            for rank, late_ns in after.comparison.lateness_ns.items():
                assert late_ns <= before.comparison.lateness_ns[rank]
