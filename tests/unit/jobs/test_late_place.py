"""Which work of a late rank takes the time: the update, what comes before the first synchronization, or a later place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Arrival, StepMark, Sync, compare
from timesyncd.jobs.late_place import late_place
from timesyncd.jobs.stragglers import attribute

MS = 1_000_000
STEP_NS = 100 * MS


def job(before_ms: int, between_ms: int, update_ms: int) -> tuple[list[Sync], dict[tuple[int, int], StepMark]]:
    """Rank 1 of three is late by these times: before the first bucket, before the second one, or in its update."""
    syncs, marks = [], {}
    for step in range(40):
        began_ns = step * STEP_NS
        for number, late_ms in enumerate((before_ms + update_ms, before_ms + update_ms + between_ms)):
            at_ns = [began_ns + (5 + 20 * number + (late_ms if rank == 1 else 0)) * MS for rank in range(3)]
            arrivals = {rank: Arrival("a", 0, ns, ns, max(at_ns) + MS, None) for rank, ns in enumerate(at_ns)}
            syncs.append(Sync(step, number, Kind.BUCKET, arrivals, compare(arrivals)))
        for rank, arrival in syncs[-1].arrivals.items():
            end_ns = arrival.end_ns + (1 + (update_ms if rank == 1 else 0)) * MS
            marks[rank, step] = StepMark(step, began_ns, arrival.arrival_ns, end_ns)
    return syncs, marks


@pytest.mark.parametrize(
    ("late_ms", "place"),
    [
        ((12, 0, 0), "before bucket 0"),
        ((0, 12, 0), "at bucket 1"),
        ((0, 0, 12), "in the update before bucket 0"),
        ((12, 0, 5), "before bucket 0"),
    ],
)
def test_the_place_is_where_the_time_goes(late_ms: tuple[int, int, int], place: str) -> None:
    """A slow optimizer, a slow data loader and a slow layer are three places."""
    syncs, marks = job(*late_ms)
    (late,) = attribute(syncs, {}).stragglers

    assert late.rank == 1
    assert late_place(syncs, marks, late) == place


def test_what_a_backward_pass_computes_behind_the_last_bucket_is_no_update() -> None:
    """The gradient of an input is ready when all buckets are reduced: the update begins then."""
    syncs, marks = job(0, 0, 12)
    marks = {(rank, step): replace(mark, ready_ns=mark.end_ns - MS // 2) for (rank, step), mark in marks.items()}
    (late,) = attribute(syncs, {}).stragglers

    assert late_place(syncs, marks, late) == "before bucket 0"


def test_without_marks_of_steps_the_update_is_unknown() -> None:
    """A job that marks its synchronizations alone: the time before the first one may be the update's, and is not called so."""
    syncs, _ = job(0, 0, 12)
    (late,) = attribute(syncs, {}).stragglers

    assert late_place(syncs, {}, late) == "before bucket 0"


def test_behind_another_collective_the_first_bucket_is_still_what_it_is_before() -> None:
    """A trainer broadcasts a flag before each batch: rank 1 is late between that and the first bucket, in loading, forward or backward."""
    syncs, marks = job(12, 0, 0)
    flags = []
    for step in range(40):
        began_ns = step * STEP_NS
        arrivals = {rank: Arrival("a", 0, began_ns, began_ns, began_ns + MS, None) for rank in range(3)}
        flags.append(Sync(step, -1, Kind.BROADCAST, arrivals, compare(arrivals)))
    syncs = sorted([*syncs, *flags], key=lambda sync: (sync.step, sync.sync))
    (late,) = attribute(syncs, {}).stragglers

    assert (late.rank, late.where) == (1, "bucket 0")
    assert late_place(syncs, marks, late) == "before bucket 0"
