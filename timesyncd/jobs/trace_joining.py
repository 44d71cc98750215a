"""
Joins the traces of a job's ranks to one graph of operations: which communications belong together, what each waited
for, where steps begin, and which ranks do the same work. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from timesyncd.jobs.launch_points import launch_points
from timesyncd.jobs.step_graph import COMPUTE, Meeting, Operation, StepGraph
from timesyncd.jobs.trace_clocks import TraceClockOffset, clock_offsets, left_early
from timesyncd.jobs.trace_ends import Call, CallEnds, call_ends
from timesyncd.jobs.trace_steps import Roles, roles_of, with_equal_steps
from timesyncd.traces.operations import RECV, SEND, Communication, EndKind, RankTrace, merged


class Unjoinable(StrEnum):
    """Why traces cannot be joined, for programs."""

    RANK_TWICE = "rank_twice"
    RANKS_ABSENT = "ranks_absent"
    NO_COMMUNICATION = "no_communication"
    NOT_MATCHED = "not_matched"
    NO_WHOLE_STEP = "no_whole_step"
    NOT_ALIGNED = "not_aligned"


class JoinError(ValueError):
    """The traces do not make one graph. `code` is for programs."""

    def __init__(self, code: Unjoinable, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Joined:
    """
    The graph, and what is known of the clocks: `offsets` by rank against the lowest rank; a rank that shares no chain
    of operations with it is absent. `eager`: the (sender, receiver) pairs whose sender does not wait.
    """

    graph: StepGraph
    offsets: dict[int, TraceClockOffset]
    eager: frozenset[tuple[int, int]]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """One rank's part in a meeting: the position of its trace, and of the communication there."""

    rank: int
    index: int


#: A communication that begins within this time of another one's end, while its rank waits, began after it.
_AT_ONCE_NS = 50_000

#: The recorded begin of a communication may be rounded to before the end of the one that it followed.
_ROUNDED_NS = 1_000

#: A send and a receive that begin within this time are issued together.
_TOGETHER_NS = 20_000

_Met = list[tuple[_Part, ...]]


def absent_ranks(traces: Sequence[RankTrace]) -> list[int]:
    """The ranks of the job, as far as the traces name them, that have no trace."""
    have = {trace.rank for trace in traces}
    size = max((trace.world_size or 0 for trace in traces), default=0)
    named = {rank for trace in traces for each in trace.communications for rank in each.ranks}
    named |= {rank for trace in traces for group in trace.groups for rank in group.ranks}
    return sorted((named | set(range(size))) - have)


def join(traces: Sequence[RankTrace]) -> Joined:
    """The graph of these traces, one for each rank. Raises JoinError."""
    by_rank = with_equal_steps(_by_rank(traces))
    met = _matched(by_rank)
    if not met:
        raise JoinError(Unjoinable.NO_COMMUNICATION, "no communication of two traced ranks is recorded")
    pairs = [
        (tuple(part.rank for part in parts), [by_rank[part.rank].communications[part.index] for part in parts])
        for parts in met
    ]
    offsets = clock_offsets(
        pairs, max(trace.reading_ns for trace in traces), {rank: trace.host for rank, trace in by_rank.items()}
    )
    _check_ends(pairs, offsets)
    eager = left_early(_messages(pairs), offsets)
    ends = call_ends(by_rank, [[(part.rank, part.index) for part in parts] for parts in met], offsets)
    by_rank = ends.applied(by_rank)
    roles = roles_of(by_rank)
    if roles.steps == 1 and sum(map(len, met)) < sum(len(trace.communications) for trace in by_rank.values()):
        raise JoinError(
            Unjoinable.NO_WHOLE_STEP,
            "the traces begin or end at different moments, and nothing repeats in them, so they show no step of all ranks",
        )
    starts_ns = _starts_ns(by_rank, offsets)
    launched_ns = launch_points(by_rank, roles)
    return Joined(
        _Graph(by_rank, met, roles, eager, ends, starts_ns, launched_ns).build(), offsets, frozenset(eager), roles.notes
    )


def _check_ends(
    pairs: Sequence[tuple[tuple[int, ...], Sequence[Communication]]], offsets: Mapping[int, TraceClockOffset]
) -> None:
    """An end that is not recorded follows from the last arrival, which needs one clock. Raises JoinError."""
    for ranks, calls in pairs:
        unaligned = [rank for rank in ranks if rank not in offsets]
        if unaligned and any(call.end is EndKind.NONE for call in calls):
            raise JoinError(
                Unjoinable.NOT_ALIGNED,
                f"the traces do not show when a {calls[0].kind} ended, and nothing aligns the clocks of the ranks "
                f"{rank_list(unaligned)} with the others",
            )


def _starts_ns(by_rank: Mapping[int, RankTrace], offsets: Mapping[int, TraceClockOffset]) -> dict[int, int]:
    """How much later than the first trace each one begins; of traces whose clocks are not aligned all begin together."""
    if any(rank not in offsets for rank in by_rank):
        return dict.fromkeys(by_rank, 0)
    begins = {rank: _extent(trace)[0] - offsets[rank].offset_ns for rank, trace in by_rank.items()}
    first = min(begins.values())
    return {rank: round(begin - first) for rank, begin in begins.items()}


def _extent(trace: RankTrace) -> tuple[int, int]:
    """When what the trace shows begins and ends."""
    spans = [(call.begin_ns, call.end_ns) for call in trace.communications]
    spans += (trace.busy or ())[:1] + (trace.busy or ())[-1:]
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def _by_rank(traces: Sequence[RankTrace]) -> dict[int, RankTrace]:
    found: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank in found:
            raise JoinError(
                Unjoinable.RANK_TWICE, f"{trace.name} and {found[trace.rank].name} are both of rank {trace.rank}"
            )
        found[trace.rank] = replace(trace, communications=tuple(_in_order(trace.communications)))
    if missing := absent_ranks(traces):
        raise JoinError(
            Unjoinable.RANKS_ABSENT,
            f"{len(missing)} of {len(missing) + len(found)} ranks have no trace: {rank_list(missing)}",
        )
    return dict(sorted(found.items()))


def _in_order(calls: Sequence[Communication]) -> list[Communication]:
    """
    By their begins. A send and a receive that are issued together change places: what was computed before is sent.
    """
    found = sorted(calls, key=lambda call: (call.begin_ns, call.kind == RECV, call.end_ns))
    for at in range(len(found) - 1):
        first, second = found[at], found[at + 1]
        if (first.kind, second.kind) == (RECV, SEND) and second.begin_ns - first.begin_ns < _TOGETHER_NS:
            found[at : at + 2] = second, first
    return found


def rank_list(ranks: Sequence[int], most: int = 8) -> str:
    """The ranks as text; of many the first ones."""
    shown = ", ".join(map(str, ranks[:most]))
    return shown if len(ranks) <= most else f"{shown} and {len(ranks) - most} more"


def _matched(by_rank: Mapping[int, RankTrace]) -> _Met:
    """
    The communications that belong together, each once: of a collective all members, of a message (sender, receiver).
    """
    calls: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, trace in by_rank.items():
        for index, each in enumerate(trace.communications):
            key = (each.ranks,) if each.kind in (SEND, RECV) else (each.group, each.ranks)
            calls[key][rank].append(index)
    found: _Met = []
    for members in calls.values():
        found.extend(_matched_group(by_rank, members))
    return found


def _matched_group(
    by_rank: Mapping[int, RankTrace], members: Mapping[int, Sequence[int]]
) -> Iterator[tuple[_Part, ...]]:
    one = next(iter(members))
    first = by_rank[one].communications[members[one][0]]
    needed = first.ranks
    if len(set(needed)) < 2:
        return
    if missing := [rank for rank in needed if rank not in members]:
        raise JoinError(
            Unjoinable.NOT_MATCHED,
            f"rank {one} called {first.kind} with {rank_list(missing)}, whose traces do not show it",
        )
    series = {rank: _numbered(by_rank[rank], members[rank]) for rank in needed}
    common = set.intersection(*(set(each) for each in series.values()))
    for number in sorted(common):
        parts = tuple(_Part(rank, series[rank][number]) for rank in needed)
        kinds = {by_rank[part.rank].communications[part.index].kind for part in parts}
        if kinds != {SEND, RECV} and len(kinds) > 1:
            raise JoinError(
                Unjoinable.NOT_MATCHED,
                f"the ranks {rank_list(needed)} called different collectives at one place: {', '.join(sorted(kinds))}",
            )
        yield parts


def _numbered(trace: RankTrace, indices: Sequence[int]) -> dict[int, int]:
    """
    By its number in the group. Without recorded numbers the calls count from the last one back: traces that begin at
    different times end together more often.
    """
    calls = [trace.communications[index] for index in indices]
    numbers = [call.number for call in calls]
    if None not in numbers and len(set(numbers)) == len(numbers):
        return {number: index for number, index in zip(numbers, indices, strict=True) if number is not None}
    return {place - len(indices): index for place, index in enumerate(indices)}


def _messages(
    pairs: Sequence[tuple[tuple[int, ...], Sequence[Communication]]],
) -> dict[tuple[int, int], list[tuple[Communication, Communication]]]:
    found: dict[tuple[int, int], list[tuple[Communication, Communication]]] = defaultdict(list)
    for ranks, parts in pairs:
        if parts[0].kind == SEND:
            found[ranks[0], ranks[1]].append((parts[0], parts[1]))
    return found


@dataclass(slots=True)
class _Graph:
    """Builds the graph rank by rank."""

    by_rank: Mapping[int, RankTrace]
    met: _Met
    roles: Roles
    eager: set[tuple[int, int]]
    ends: CallEnds
    starts_ns: Mapping[int, int]
    launched_ns: Mapping[Call, int]
    operations: list[Operation] = field(default_factory=list)
    _meeting_of: dict[tuple[int, int], int] = field(default_factory=dict)
    _index_of: dict[tuple[int, int], int] = field(default_factory=dict)

    def build(self) -> StepGraph:
        for number, parts in enumerate(self.met):
            for part in parts:
                self._meeting_of[part.rank, part.index] = number
        for rank, trace in self.by_rank.items():
            self._add_rank(rank, trace)
        meetings = tuple(
            Meeting(
                kind=self.by_rank[parts[0].rank].communications[parts[0].index].kind,
                ranks=tuple(part.rank for part in parts),
                operations=tuple(self._index_of[part.rank, part.index] for part in parts),
                bytes=self.by_rank[parts[0].rank].communications[parts[0].index].bytes,
            )
            for parts in self.met
        )
        return StepGraph(
            steps=self.roles.steps,
            operations=tuple(self.operations),
            meetings=meetings,
            stages=self.roles.stages,
            replicas=self.roles.replicas,
            labels=self.roles.labels,
            hosts={rank: trace.host for rank, trace in self.by_rank.items()},
        )

    def _add_rank(self, rank: int, trace: RankTrace) -> None:
        calls = trace.communications
        seen = {index: ns for (of, index), ns in self.ends.seen_ns.items() if of == rank}
        waits = _waits(trace, seen)
        cuts = sorted(
            {(call.begin_ns, 1, index) for index, call in enumerate(calls)}
            | {(end, 0, -1) for _, end in waits}
            | {(ns, 0, index) for index, ns in seen.items()}
            | {(ns, -1, index) for (of, index), ns in self.launched_ns.items() if of == rank}
        )
        bounds = [bound for wait in waits for bound in wait]
        at_ns, last_ns = _extent(trace)
        self._walk(rank, trace, waits, [*cuts, (last_ns, 2, -1)], at_ns, bounds)

    def _walk(
        self,
        rank: int,
        trace: RankTrace,
        waits: Sequence[tuple[int, int]],
        cuts: Sequence[tuple[int, int, int]],
        at_ns: int,
        bounds: Sequence[int],
    ) -> None:
        calls = trace.communications
        own: int | None = None
        pending: list[int] = []
        last_of: dict[str, int] = {}
        ended = sorted(range(len(calls)), key=lambda index: calls[index].end_ns)
        ends = [calls[index].end_ns for index in ended]
        issued = served = 0
        launched: dict[int, int | None] = {}
        for cut_ns, order, index in cuts:
            local_ns = (cut_ns - at_ns) - _overlap(waits, at_ns, cut_ns)
            if local_ns > 0:
                after = tuple(each for each in (own, *pending) if each is not None)
                step, place = self.roles.at(rank, max(issued, served))
                begin_ns = cut_ns - local_ns if not after else at_ns
                self.operations.append(
                    Operation(
                        rank,
                        COMPUTE,
                        None,
                        begin_ns,
                        begin_ns + local_ns,
                        after,
                        0 if after else self.starts_ns[rank],
                        local_ns,
                        step,
                        place,
                    )
                )
                own, pending = len(self.operations) - 1, []
            if order == -1:
                launched[index] = own
                served = index + 1  # what is computed from here on is for the next one
            elif order == 0 and index >= 0:
                pending += [self._index_of[rank, index]] if (rank, index) in self._index_of else []
            elif order == 0:
                wait = waits[bisect_left(bounds, cut_ns) // 2]
                slack = _slack_ns(trace)
                among = ended[bisect_right(ends, wait[0]) : bisect_right(ends, cut_ns + slack)]
                pending += [self._index_of[rank, each] for each in among if (rank, each) in self._index_of]
            elif order == 1:
                pending += self._just_ended(rank, ended, ends, at_ns, cut_ns, pending, _slack_ns(trace))
                needed, waited = own, pending
                if launched.get(index) is not None:
                    needed, waited = launched[index], []
                self._add_call(rank, index, calls[index], needed, waited, last_of, self.roles.at(rank, issued))
                issued += 1
            at_ns = cut_ns

    def _just_ended(
        self,
        rank: int,
        ended: Sequence[int],
        ends: Sequence[int],
        from_ns: int,
        until_ns: int,
        known: Sequence[int],
        slack_ns: int,
    ) -> list[int]:
        """The communications that ended just before this one began, while the rank waited: it began after them."""
        earliest_ns = max(from_ns, until_ns - _AT_ONCE_NS) - slack_ns
        recent = ended[bisect_right(ends, earliest_ns) : bisect_right(ends, until_ns)]
        found = [self._index_of[rank, each] for each in recent if (rank, each) in self._index_of]
        return [each for each in found if each not in known]

    def _add_call(
        self,
        rank: int,
        index: int,
        call: Communication,
        own: int | None,
        pending: Sequence[int],
        last_of: dict[str, int],
        at: tuple[int, int],
    ) -> None:
        after = [*pending] if own is None else [own, *pending]
        stream = call.group if call.kind not in (SEND, RECV) else f"{call.kind} {call.ranks}"
        before = last_of.get(stream)
        if before is not None and self.operations[before].end_ns <= call.begin_ns + _ROUNDED_NS and before not in after:
            after.append(before)
        ready_ns = max((self.operations[each].end_ns for each in after), default=call.begin_ns)
        number = self._meeting_of.get((rank, index))
        alone = number is None
        waits = not (call.kind == SEND and call.ranks in self.eager)
        length_ns = call.end_ns - call.begin_ns
        transfer_ns = length_ns if alone or not waits else self.ends.durations_ns[rank, index]
        self.operations.append(
            Operation(
                rank=rank,
                kind=call.kind,
                meeting=number,
                start_ns=call.begin_ns,
                end_ns=call.end_ns,
                after=tuple(after),
                delay_ns=max(0, call.begin_ns - ready_ns) if after else self.starts_ns[rank],
                duration_ns=transfer_ns,
                step=at[0],
                place=at[1],
                waits=waits,
            )
        )
        last_of[stream] = self._index_of[rank, index] = len(self.operations) - 1


def _slack_ns(trace: RankTrace) -> int:
    """A host thread sees a collective's end somewhat before or after the recorded end; a GPU's stream does not."""
    return max(2_000, trace.reading_ns)


def _waits(trace: RankTrace, unawaited: Mapping[int, int]) -> list[tuple[int, int]]:
    """
    When the rank did nothing but wait for a communication: idle, one in progress, and one ended before it went on.
    """
    calls = [(call.begin_ns, call.end_ns) for index, call in enumerate(trace.communications) if index not in unawaited]
    ends = sorted(end for _, end in calls)
    found = []
    for begin, end in _outside(merged(calls), trace.busy or ()):
        at = bisect_right(ends, end + _slack_ns(trace)) - 1
        if at >= 0 and ends[at] > begin:
            found.append((begin, min(ends[at], end)))
    return found


def _outside(intervals: Sequence[tuple[int, int]], busy: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of the intervals in which nothing is busy."""
    at = 0
    for begin, end in intervals:
        while at < len(busy) and busy[at][1] <= begin:
            at += 1
        inside, now = at, begin
        while inside < len(busy) and busy[inside][0] < end:
            if busy[inside][0] > now:
                yield now, busy[inside][0]
            now = max(now, busy[inside][1])
            inside += 1
        if now < end:
            yield now, end


def _overlap(waits: Sequence[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    at = max(0, bisect_right(waits, (begin_ns, begin_ns)) - 1)
    found = 0
    while at < len(waits) and waits[at][0] < end_ns:
        found += max(0, min(waits[at][1], end_ns) - max(waits[at][0], begin_ns))
        at += 1
    return found
