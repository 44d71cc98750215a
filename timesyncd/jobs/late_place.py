"""Which work of a late rank takes the time, as far as the marks separate it. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import StepMark, Sync
from timesyncd.jobs.recording import positions, same_step
from timesyncd.jobs.stragglers import Straggler, position_text
from timesyncd.units import percentile

#: A rank is late in its update if its update is longer by this part of its lateness, or more.
_UPDATE_PART = 0.5

#: The first one of a backward pass: before it lie the batch, the forward pass and a part of the backward pass.
_FIRST_BUCKET = position_text((Kind.BUCKET, 0))

StepMarks = Mapping[tuple[int, int], StepMark]
"""The mark of a step, by rank and the step's key."""


def late_place(syncs: Sequence[Sync], step_marks: StepMarks, late: Straggler) -> str:
    """
    The place where the straggler loses its time: `at bucket 1`, `before bucket 0`, or `in the update before bucket 0`.
    What lies between another collective and the first bucket (a trainer's broadcast of a flag) is before the bucket.

    The synchronizations are in the order of (step, sync), with the times of each rank's own clock, as those of the
    steps. A rank's update is the time to the end of its step from its last synchronization, or from its last own gradient
    where the backward pass computes on behind that.
    """
    first = Counter(positions(step[:1])[0] for _, step in same_step(syncs)).most_common(1)
    if not first or not late.where.startswith(first[0][0]):
        return f"{'before' if late.where.startswith(_FIRST_BUCKET) else 'at'} {late.where}"
    updates_ns = _updates_ns(syncs, step_marks)
    others_ns = [ns for rank, ns in updates_ns.items() if rank != late.rank]
    if late.rank in updates_ns and others_ns:
        longer_ns = updates_ns[late.rank] - percentile(others_ns, 50)
        if longer_ns >= _UPDATE_PART * late.lateness_p50_ns > 0:
            return f"in the update before {late.where}"
    return f"before {late.where}"


def _updates_ns(syncs: Sequence[Sync], step_marks: StepMarks) -> dict[int, int]:
    """By rank, the median time of its update."""
    found: dict[int, list[int]] = defaultdict(list)
    for key, step in same_step(syncs):
        ends_ns: dict[int, int] = {}
        for sync in step:
            for rank, arrival in sync.arrivals.items():
                ends_ns[rank] = max(ends_ns.get(rank, arrival.end_ns), arrival.end_ns)
        for rank, end_ns in ends_ns.items():
            mark = step_marks.get((rank, key))
            if mark is not None:
                found[rank].append(mark.end_ns - max(end_ns, mark.ready_ns or end_ns))
    return {rank: percentile(values, 50) for rank, values in found.items()}
