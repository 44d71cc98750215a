"""
Finds the process group of communications whose traces do not record it, as gloo's: a thread serves one group, all
members of a group call the same, and they leave a collective together. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from statistics import median

from timesyncd.traces.operations import (
    NEEDS_ALL,
    RECV,
    SEND,
    Communication,
    ProcessGroup,
    RankTrace,
    UnplacedCall,
    UnusableTrace,
)

#: So many threads of gloo run the collectives of a group, unless a job asks for more.
_THREADS = 2

#: So many calls of a thread are compared with those of other ranks.
_COMPARED = 64

#: A search over more combinations than this is given up.
_MOST_TRIED = 200_000
_MOST_OF_RANK = 5_000

_Class = tuple[str, int | None]
"""Calls of one group: those of one thread, those of one kind without a thread, or all messages."""

_MESSAGES: _Class = ("messages", None)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A group for each class of a rank's calls, and how far apart the ranks would end, in ns."""

    groups: Mapping[_Class, ProcessGroup]
    apart_ns: float


def placed(traces: Sequence[RankTrace]) -> list[RankTrace | UnusableTrace]:
    """The traces with all communications in groups. Where that stays open, all of them are unusable."""
    if not any(trace.unplaced for trace in traces):
        return list(traces)
    by_rank = {trace.rank: trace for trace in traces}
    members = {rank for trace in traces for group in trace.groups for rank in group.ranks}
    if len(by_rank) < len(traces) or not members <= by_rank.keys():
        return list(traces)  # the join states which rank comes twice, or not at all
    chosen = _chosen(by_rank)
    if isinstance(chosen, str):
        return [UnusableTrace(trace.name, trace.rank, trace.world_size, chosen, trace.progress) for trace in traces]
    return [_with_groups(trace, chosen[trace.rank]) for trace in traces]


def _with_groups(trace: RankTrace, groups: Mapping[_Class, ProcessGroup]) -> RankTrace:
    found = [_communication(trace.rank, call, groups[_class(call)]) for call in trace.unplaced]
    calls = sorted([*trace.communications, *found], key=lambda call: call.begin_ns)
    return replace(trace, communications=tuple(calls), unplaced=())


def _communication(rank: int, call: UnplacedCall, group: ProcessGroup) -> Communication:
    if call.kind not in (SEND, RECV):
        # A broadcast and an all-gather have threads of one group, so they count together.
        name = group.name if call.kind in NEEDS_ALL else f"{group.name} {call.kind}"
        ranks = tuple(sorted(group.ranks))
        return Communication(call.kind, name, ranks, None, call.begin_ns, call.end_ns, call.bytes, call.end)
    peer = _peer(call, rank, group)
    assert peer is not None, "a group is chosen only if it has the peer"
    ends = (rank, peer) if call.kind == SEND else (peer, rank)
    return Communication(call.kind, "messages", ends, None, call.begin_ns, call.end_ns, call.bytes, call.end)


def _peer(call: UnplacedCall, rank: int, group: ProcessGroup) -> int | None:
    if call.peer is None:
        others = [each for each in group.ranks if each != rank]
        return others[0] if len(others) == 1 else None
    return group.ranks[call.peer] if call.peer < len(group.ranks) and group.ranks[call.peer] != rank else None


def _class(call: UnplacedCall) -> _Class:
    if call.kind in (SEND, RECV):
        return _MESSAGES
    return ("thread", call.lane) if call.lane is not None else (call.kind, None)


def _chosen(by_rank: Mapping[int, RankTrace]) -> dict[int, Mapping[_Class, ProcessGroup]] | str:
    """The groups of each rank's classes; a text: why they are unknown."""
    ends = {rank: _ends(trace) for rank, trace in by_rank.items()}
    choices: dict[int, list[_Choice]] = {}
    for rank, trace in by_rank.items():
        if not _groups(trace):
            return "the trace lists no process group of several ranks (distributedInfo.pg_config)"
        if trace.unplaced:
            choices[rank] = sorted(_choices(trace, ends), key=lambda choice: choice.apart_ns)
            if not choices[rank]:
                return _unknown_reason(trace)
    found = _consistent(by_rank, choices)
    if found is None:
        groups = max(len(_groups(trace)) for trace in by_rank.values())
        return (
            f"the trace does not show in which of {groups} process groups a collective ran, and no choice makes all ranks "
            "call the same: a trace of NCCL does"
        )
    return {rank: choice.groups for rank, choice in found.items()} | {
        rank: {} for rank in by_rank.keys() - found.keys()
    }


def _unknown_reason(trace: RankTrace) -> str:
    if any(call.kind in (SEND, RECV) and call.peer is None for call in trace.unplaced):
        return "the peer of a message is not recorded: profile with record_shapes=True"
    return "the trace lists no process group that has the peers of its messages"


def _groups(trace: RankTrace) -> list[ProcessGroup]:
    found: dict[tuple[int, ...], ProcessGroup] = {}
    for group in trace.groups:
        if len(group.ranks) > 1 and trace.rank in group.ranks:
            found.setdefault(group.ranks, group)
    return list(found.values())


_Ends = dict[str, list[int]]


def _ends(trace: RankTrace) -> _Ends:
    """By kind when its collectives ended."""
    found: _Ends = defaultdict(list)
    for call in trace.unplaced:
        found[call.kind].append(call.end_ns)
    return {kind: sorted(ends) for kind, ends in found.items()}


def _choices(trace: RankTrace, ends: Mapping[int, _Ends]) -> Iterator[_Choice]:
    """
    All ways to give the classes of a rank's calls to its groups. Threads are numbered in the order in which the groups
    were made.
    """
    calls: dict[_Class, list[UnplacedCall]] = defaultdict(list)
    for call in trace.unplaced:
        calls[_class(call)].append(call)
    groups = _groups(trace)
    threads = sorted((each for each in calls if each[0] == "thread"), key=lambda each: each[1] or 0)
    others = [each for each in calls if each[0] != "thread"]
    usable = [_usable(trace.rank, calls[each], groups) for each in others]
    apart = {(each, group.ranks): _apart_ns(trace.rank, calls[each], group, ends) for each in calls for group in groups}
    tried = 0
    usual = list(islice(_in_order(groups, len(threads), _THREADS), _MOST_OF_RANK))
    for of_threads in usual or _in_order(groups, len(threads), len(threads)):
        for of_others in product(*usable):
            tried += 1
            if tried > _MOST_OF_RANK:
                return
            chosen = dict(zip([*threads, *others], [*of_threads, *of_others], strict=True))
            yield _Choice(chosen, sum(apart[each, group.ranks] for each, group in chosen.items()))


def _in_order(groups: Sequence[ProcessGroup], threads: int, most: int) -> Iterator[tuple[ProcessGroup, ...]]:
    """All ways to give so many threads to groups in their order, at most `most` to each."""
    if not threads:
        yield ()
    elif threads <= most * len(groups):
        for count in range(min(most, threads), -1, -1):
            for rest in _in_order(groups[1:], threads - count, most):
                yield (groups[0],) * count + rest


def _usable(rank: int, calls: Sequence[UnplacedCall], groups: Sequence[ProcessGroup]) -> list[ProcessGroup]:
    if calls[0].kind not in (SEND, RECV):
        return list(groups)
    return [group for group in groups if all(_peer(call, rank, group) is not None for call in calls)]


def _apart_ns(rank: int, calls: Sequence[UnplacedCall], group: ProcessGroup, ends: Mapping[int, _Ends]) -> float:
    """How far the ends of these calls are from the nearest ends of the members' calls of their kind, for all calls."""
    if calls[0].kind in (SEND, RECV):
        return 0.0
    found = []
    for call in calls[:: max(1, len(calls) // _COMPARED)]:
        worst = 0
        for member in group.ranks:
            if member != rank:
                worst = max(worst, _nearest(ends.get(member, {}).get(call.kind, []), call.end_ns))
        found.append(worst)
    return median(found) * len(calls)


def _nearest(ends: Sequence[int], at_ns: int) -> int:
    place = bisect_left(ends, at_ns)
    near = [abs(each - at_ns) for each in ends[max(0, place - 1) : place + 1]]
    return min(near, default=1 << 50)


def _consistent(
    by_rank: Mapping[int, RankTrace], choices: Mapping[int, Sequence[_Choice]]
) -> dict[int, _Choice] | None:
    """The first choices, the closest ones first, with which all members of each group call the same."""
    order = sorted(choices)

    @cache
    def counted(rank: int, place: int) -> _Counts:
        return _counts(by_rank[rank], choices[rank][place])

    at = [0] * len(order)
    depth, tried = 0, 0
    while depth < len(order):
        rank = order[depth]
        while at[depth] < len(choices[rank]):
            tried += 1
            if tried > _MOST_TRIED:
                return None
            own = counted(rank, at[depth])
            if all(_agree(rank, own, order[each], counted(order[each], at[each])) for each in range(depth)):
                break
            at[depth] += 1
        if at[depth] < len(choices[rank]):
            depth += 1
            if depth < len(order):
                at[depth] = 0
        elif depth == 0:
            return None
        else:
            depth -= 1
            at[depth] += 1
    return {rank: choices[rank][at[each]] for each, rank in enumerate(order)}


_Counts = tuple[dict[tuple[int, ...], Counter[str]], Counter[tuple[str, int, int]]]


def _counts(trace: RankTrace, choice: _Choice) -> _Counts:
    """How often a rank calls what in each group, and its messages by sender and receiver."""
    groups: dict[tuple[int, ...], Counter[str]] = {group.ranks: Counter() for group in _groups(trace)}
    messages: Counter[tuple[str, int, int]] = Counter()
    for call in trace.unplaced:
        group = choice.groups[_class(call)]
        if call.kind in (SEND, RECV):
            made = _communication(trace.rank, call, group)
            messages[made.kind, made.ranks[0], made.ranks[1]] += 1
        else:
            groups[group.ranks][call.kind] += 1
    return groups, messages


def _agree(rank: int, own: _Counts, other: int, their: _Counts) -> bool:
    for ranks, counts in own[0].items():
        if other in ranks and ranks in their[0] and _differ(counts, their[0][ranks]):
            return False
    return not any(
        abs(own[1][mine, *ends] - their[1][yours, *ends]) > _slack(own[1][mine, *ends])
        for mine, yours, ends in (
            (SEND, RECV, (rank, other)),
            (RECV, SEND, (other, rank)),
        )
    )


def _differ(own: Counter[str], other: Counter[str]) -> bool:
    return any(abs(own[kind] - other[kind]) > _slack(own[kind]) for kind in own.keys() | other.keys())


def _slack(count: int) -> int:
    """Traces begin and end at different moments, so a rank may have a few calls more."""
    return count // 8
