"""A recording of metered ranks as their traces, so that the what-if replay works on it as on profiler traces. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from timesyncd.errors import TraceError
from timesyncd.ipc.job_datagram import Kind, kind_text
from timesyncd.jobs.arrivals import READING_GRANULARITY_NS, Sync
from timesyncd.jobs.issued_calls import unmetered_text
from timesyncd.jobs.recording import Recording, same_step
from timesyncd.traces.operations import Communication, RankTrace, merged

#: The metered calls whose kind is not their label. What a hook does with a bucket is not known: it reduces it.
_KINDS: dict[int, str] = {Kind.BUCKET: "all_reduce", Kind.HOOK: "all_reduce"}

_GROUP = "metered"


def recorded_traces(recording: Recording) -> list[RankTrace]:
    """
    The trace of each rank, of those steps that have the job's usual synchronizations, with all ranks.

    A rank computes whenever it does not only wait. Raises TraceError where no step has all ranks, and where
    ranks waited in calls that have no mark.
    """
    if recording.calls is not None and not recording.calls.is_account:
        raise TraceError(
            f"the recording of job {recording.job!r} has no marks of {recording.calls.unmetered_calls:,} calls "
            f"({unmetered_text(recording.calls)}), in which ranks waited for one another"
        )
    steps = _usual_steps(recording)
    if not steps:
        raise TraceError(f"the recording of job {recording.job!r} has no step with the marks of all its ranks")
    return [_trace(recording, rank, steps) for rank in range(recording.world_size)]


def _usual_steps(recording: Recording) -> list[list[Sync]]:
    whole = [
        step
        for _, step in same_step(recording.syncs)
        if all(len(sync.arrivals) == recording.world_size for sync in step)
    ]
    kinds = Counter(tuple(sync.kind for sync in step) for step in whole)
    if not kinds:
        return []
    usual = kinds.most_common(1)[0][0]
    return [step for step in whole if tuple(sync.kind for sync in step) == usual]


def _trace(recording: Recording, rank: int, steps: Sequence[Sequence[Sync]]) -> RankTrace:
    ranks = tuple(range(recording.world_size))
    communications, waits = [], []
    for number, sync in enumerate(sync for step in steps for sync in step):
        own = sync.arrivals[rank]
        kind = _KINDS.get(sync.kind) or kind_text(sync.kind)
        communications.append(Communication(kind, _GROUP, ranks, number, own.arrival_ns, own.end_ns, own.bytes))
        waits.append((own.begin_ns, own.end_ns))
    return RankTrace(
        name=f"rank {rank} of job {recording.job}",
        rank=rank,
        world_size=recording.world_size,
        host=recording.nodes.get(rank, ""),
        communications=tuple(communications),
        busy=_between(merged(waits), communications[0].begin_ns),
        steps=len(steps),
        reading_ns=READING_GRANULARITY_NS,
    )


def _between(waits: Sequence[tuple[int, int]], first_ns: int) -> tuple[tuple[int, int], ...]:
    """When the rank did not wait."""
    begins_ns = [first_ns, *(end_ns for _, end_ns in waits)]
    found = zip(begins_ns, (begin_ns for begin_ns, _ in waits), strict=False)
    return tuple((begin_ns, end_ns) for begin_ns, end_ns in found if end_ns > begin_ns)
