"""A recording of metered ranks as their traces, so that the what-if replay works on it as on profiler traces. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from timesyncd.errors import TraceError
from timesyncd.ipc.job_datagram import Kind, kind_text
from timesyncd.jobs.arrivals import READING_GRANULARITY_NS, Arrival, Sync
from timesyncd.jobs.group_recording import GroupRecording
from timesyncd.jobs.issued_calls import unmetered_text
from timesyncd.jobs.recording import Recording, same_step
from timesyncd.traces.operations import RECV, SEND, Communication, EndKind, RankTrace, merged

#: The metered calls whose kind is not their label. What a hook does with a bucket is not known: it reduces it.
_KINDS: dict[int, str] = {Kind.BUCKET: "all_reduce", Kind.HOOK: "all_reduce", Kind.SEND: SEND, Kind.RECEIVE: RECV}

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
    if recording.groups is not None:
        return _traces_in_groups(recording, recording.groups)
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


def _traces_in_groups(recording: Recording, groups: GroupRecording) -> list[RankTrace]:
    """Of the steps in which every rank has its usual synchronizations, those of all ranks and those of groups."""
    calls = {rank: _calls(recording, groups, rank) for rank in range(recording.world_size)}
    kept = set.intersection(*(_usual_keys(own) for own in calls.values()))
    if not kept:
        raise TraceError(f"the recording of job {recording.job!r} has no step with the marks of all its ranks")
    found = []
    for rank, own in calls.items():
        in_order = [each for key in sorted(kept) for each in sorted(own[key], key=lambda each: each[0].begin_ns)]
        waits = [wait for _, wait in in_order]
        communications = tuple(sorted((call for call, _ in in_order), key=lambda call: call.begin_ns))
        busy = _between(merged(waits), communications)
        found.append(_rank_trace(recording, rank, communications, busy, len(kept)))
    return found


_Call = tuple[Communication, tuple[int, int]]
"""What a rank did with others, and when it only waited for that."""


def _calls(recording: Recording, groups: GroupRecording, rank: int) -> dict[int, list[_Call]]:
    """By the key of the step."""
    found: dict[int, list[_Call]] = defaultdict(list)
    everyone = tuple(range(recording.world_size))
    for number, sync in enumerate(recording.syncs):
        if len(sync.arrivals) == recording.world_size:
            found[sync.step].append(_call(sync.kind, _GROUP, everyone, number, sync.arrivals[rank]))
    for mark in groups.marks.get(rank, ()):
        of = mark.communicator
        name = f"{of.dimension or ''} {of.name}".strip()
        found[mark.step].append(_call(mark.kind, name, of.ranks, mark.number, mark.arrival))
    return found


def _call(kind: int, group: str, ranks: tuple[int, ...], number: int, own: Arrival) -> _Call:
    named = _KINDS.get(kind) or kind_text(kind)
    # Of a message that the rank did not wait for at once, the recorded end is that of its wait, later.
    end = EndKind.SEEN if named in (SEND, RECV) else EndKind.OWN
    call = Communication(named, group, ranks, number, own.arrival_ns, own.end_ns, own.bytes, end)
    return call, (own.begin_ns, own.end_ns)


def _usual_keys(calls: Mapping[int, Sequence[_Call]]) -> set[int]:
    """The steps in which a rank has what it has in most steps."""
    programs = {key: _program(own) for key, own in calls.items()}
    usual = Counter(programs.values()).most_common(1)
    return {key for key, program in programs.items() if usual and program == usual[0][0]}


def _program(calls: Sequence[_Call]) -> frozenset[tuple[tuple[str, str, tuple[int, ...]], int]]:
    return frozenset(Counter((call.kind, call.group, call.ranks) for call, _ in calls).items())


def _trace(recording: Recording, rank: int, steps: Sequence[Sequence[Sync]]) -> RankTrace:
    ranks = tuple(range(recording.world_size))
    communications, waits = [], []
    for number, sync in enumerate(sync for step in steps for sync in step):
        own = sync.arrivals[rank]
        kind = _KINDS.get(sync.kind) or kind_text(sync.kind)
        communications.append(Communication(kind, _GROUP, ranks, number, own.arrival_ns, own.end_ns, own.bytes))
        waits.append((own.begin_ns, own.end_ns))
    busy = _between(merged(waits), communications)
    return _rank_trace(recording, rank, tuple(communications), busy, len(steps))


def _rank_trace(
    recording: Recording,
    rank: int,
    communications: tuple[Communication, ...],
    busy: tuple[tuple[int, int], ...],
    steps: int,
) -> RankTrace:
    return RankTrace(
        name=f"rank {rank} of job {recording.job}",
        rank=rank,
        world_size=recording.world_size,
        host=recording.nodes.get(rank, ""),
        communications=communications,
        busy=busy,
        steps=steps,
        reading_ns=READING_GRANULARITY_NS,
    )


def _between(waits: Sequence[tuple[int, int]], communications: Sequence[Communication]) -> tuple[tuple[int, int], ...]:
    """When the rank did not wait, until all was over: a rank that never waits computes throughout."""
    begins_ns = [communications[0].begin_ns, *(end_ns for _, end_ns in waits)]
    ends_ns = [*(begin_ns for begin_ns, _ in waits), max(call.end_ns for call in communications)]
    found = zip(begins_ns, ends_ns, strict=True)
    return tuple((begin_ns, end_ns) for begin_ns, end_ns in found if end_ns > begin_ns)
