"""A recorded job as the compute and the waits of each rank, in the form that can be replayed. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from timesyncd.jobs.arrivals import Arrival, StepMark, Sync
from timesyncd.jobs.recording import Recording, positions


@dataclass(frozen=True, slots=True)
class RankSync:
    """
    One rank in one synchronization. `arrives_ns` and `waits_ns` (the begin of the wait) are in compute time since the
    step began.

    `after`: the number of its waits in this step that had ended when it arrived. `leaves_ns`: its end relative to the
    completion on all ranks (at most 0); None: it did not wait for the others, and took `own_ns` from its arrival.
    """

    arrives_ns: int
    waits_ns: int
    after: int
    leaves_ns: int | None
    own_ns: int


@dataclass(frozen=True, slots=True)
class RankStep:
    """
    One rank's step: its compute time, of which `update_ns` follows its last wait, its part in each synchronization, and
    the order in which its waits ended.
    """

    compute_ns: int
    update_ns: int
    parts: tuple[RankSync, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """
    By synchronization: its place, its duration after the last arrival and the end of the previous one, and whether it
    queued behind that one.
    """

    key: int
    places: tuple[str, ...]
    transfers_ns: tuple[int, ...]
    queued: tuple[bool, ...]
    ranks: tuple[RankStep, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive steps without a gap on any rank; `starts_ns` by rank."""

    starts_ns: tuple[int, ...]
    steps: tuple[RecordedStep, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """A complete recorded step: its begins and ends by rank, and its synchronizations."""

    key: int
    begins_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    syncs: tuple[Sync, ...]


def runs(recording: Recording) -> list[Run]:
    """The recorded steps with the marks of every rank, split where one is missing. All times are on one axis."""
    found: list[list[_Span]] = []
    for span in _spans(recording):
        if found and found[-1][-1].ends_ns == span.begins_ns:
            found[-1].append(span)
        else:
            found.append([span])
    return [Run(spans[0].begins_ns, tuple(_step(span) for span in spans)) for spans in found]


def _spans(recording: Recording) -> Iterator[_Span]:
    ranks = range(recording.world_size)
    by_step = [(key, tuple(group)) for key, group in groupby(recording.syncs, key=lambda sync: sync.step)]
    begins = [_begins_ns(key, syncs, recording) for key, syncs in by_step]
    for index, (key, syncs) in enumerate(by_step):
        begin, end = begins[index], begins[index + 1] if index + 1 < len(by_step) else None
        if begin is None or not all(_is_whole(sync, len(ranks)) for sync in syncs):
            continue
        if end is None:
            end = _from_step_marks(key, recording, lambda mark: mark.end_ns)
        if end is not None and all(end[rank] > begin[rank] for rank in ranks):
            yield _Span(key, begin, end, syncs)


def _is_whole(sync: Sync, world_size: int) -> bool:
    return len(sync.arrivals) == world_size and all(arrival.clock is not None for arrival in sync.arrivals.values())


def _begins_ns(key: int, syncs: Sequence[Sync], recording: Recording) -> tuple[int, ...] | None:
    """When each rank began the step: by its step mark, else by its first arrival. None: a rank is missing."""
    if recording.steps:
        return _from_step_marks(key, recording, lambda mark: mark.arrival_ns)
    return _first_arrivals_ns(syncs, recording.world_size)


def _from_step_marks(key: int, recording: Recording, of: Callable[[StepMark], int]) -> tuple[int, ...] | None:
    """One instant of every rank's step mark. None: a mark is missing."""
    marks = [recording.step_mark(rank, key) for rank in range(recording.world_size)]
    instants = tuple(of(mark) for mark in marks if mark is not None)
    return instants if len(instants) == len(marks) else None


def _first_arrivals_ns(syncs: Sequence[Sync], world_size: int) -> tuple[int, ...] | None:
    first: dict[int, int] = {}
    for sync in syncs:
        for rank, arrival in sync.arrivals.items():
            first[rank] = min(arrival.arrival_ns, first.get(rank, arrival.arrival_ns))
    return tuple(first[rank] for rank in range(world_size)) if len(first) == world_size else None


@dataclass(frozen=True, slots=True)
class _SyncTimes:
    """One rank in one synchronization."""

    arrival_ns: int
    begin_ns: int
    end_ns: int


def _step(span: _Span) -> RecordedStep:
    ranks = range(len(span.begins_ns))
    moments = [[_sync_times(sync.arrivals[rank], span, rank) for rank in ranks] for sync in span.syncs]
    lasts = [max(moment.arrival_ns for moment in row) for row in moments]
    completions = [max(moment.end_ns for moment in row) for row in moments]
    queued = [index > 0 and completions[index - 1] <= completion for index, completion in enumerate(completions)]
    starts = [max(last, completions[i - 1]) if queued[i] else last for i, last in enumerate(lasts)]
    return RecordedStep(
        key=span.key,
        places=tuple(positions(span.syncs)),
        transfers_ns=tuple(end - start for end, start in zip(completions, starts, strict=True)),
        queued=tuple(queued),
        ranks=tuple(
            _rank_step(span.begins_ns[rank], span.ends_ns[rank], [row[rank] for row in moments], lasts, completions)
            for rank in ranks
        ),
    )


def _sync_times(arrival: Arrival, span: _Span, rank: int) -> _SyncTimes:
    """Times beyond the step are cut: they belong to the next one."""

    def within(at_ns: int) -> int:
        return min(max(at_ns, span.begins_ns[rank]), span.ends_ns[rank])

    return _SyncTimes(within(arrival.arrival_ns), within(arrival.begin_ns), within(arrival.end_ns))


def _rank_step(
    begin_ns: int, end_ns: int, moments: Sequence[_SyncTimes], lasts: Sequence[int], completions: Sequence[int]
) -> RankStep:
    order = sorted(range(len(moments)), key=lambda index: moments[index].end_ns)
    over_ns = [moments[index].end_ns for index in order]
    # Only waits of earlier calls count as ended, because a replay follows the order of the calls.
    furthest = list(accumulate(order, max))
    computing = _compute_clock(begin_ns, moments)
    parts = []
    for index, moment in enumerate(moments):
        waited = moment.end_ns >= lasts[index]
        parts.append(
            RankSync(
                arrives_ns=computing(moment.arrival_ns),
                waits_ns=computing(moment.begin_ns),
                after=min(bisect_right(over_ns, moment.arrival_ns), bisect_left(furthest, index)),
                leaves_ns=moment.end_ns - completions[index] if waited else None,
                own_ns=moment.end_ns - moment.arrival_ns,
            )
        )
    compute_ns = computing(end_ns)
    return RankStep(compute_ns, compute_ns - computing(max(over_ns, default=begin_ns)), tuple(parts), tuple(order))


def _compute_clock(begin_ns: int, moments: Sequence[_SyncTimes]) -> Callable[[int], int]:
    """A function from an instant to the rank's compute time until then: its waits, which may overlap, are excluded."""
    starts: list[int] = []
    ends: list[int] = []
    for moment in sorted(moments, key=lambda moment: moment.begin_ns):
        start_ns = max(moment.begin_ns, ends[-1]) if ends else moment.begin_ns
        if moment.end_ns > start_ns:
            starts.append(start_ns)
            ends.append(moment.end_ns)
    waited = [0, *accumulate(end - start for start, end in zip(starts, ends, strict=True))]

    def computed_ns(at_ns: int) -> int:
        before = bisect_right(starts, at_ns)
        inside_ns = min(0, at_ns - ends[before - 1]) if before else 0
        return at_ns - begin_ns - waited[before] - inside_ns

    return computed_ns
