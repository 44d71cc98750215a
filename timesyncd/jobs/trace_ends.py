"""
When the communications of traces ended for each rank, and how long each took from its last arrival, on the aligned
clocks. Pure.

A host's trace shows of a message only when the rank had waited for it, and of a barrier no end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import quantiles

from timesyncd.jobs.trace_clocks import TraceClockOffset
from timesyncd.traces.operations import NEEDS_ALL, SEND, Communication, EndKind, RankTrace

Call = tuple[int, int]
"""A rank, and the place of one of its communications in the order of their begins."""

#: A rank that waited goes on within this after the end; if it computed meanwhile, it did not wait.
_RESUMED_NS = 50_000
_SEND_RESUMED_NS = 1_000_000
#: Two ends within this are one wait for both.
_ONE_WAIT_NS = 200_000


@dataclass(frozen=True, slots=True)
class CallEnds:
    """
    `ends_ns`: when each ended, on its rank's clock. `durations_ns`: from the last arrival. `seen_ns`: when a rank went on
    that had no need to wait for it any more.
    """

    ends_ns: dict[Call, int] = field(default_factory=dict)
    durations_ns: dict[Call, int] = field(default_factory=dict)
    seen_ns: dict[Call, int] = field(default_factory=dict)

    def applied(self, by_rank: Mapping[int, RankTrace]) -> dict[int, RankTrace]:
        """The traces with these ends."""
        return {
            rank: replace(
                trace,
                communications=tuple(
                    replace(call, end_ns=self.ends_ns.get((rank, index), call.end_ns))
                    for index, call in enumerate(trace.communications)
                ),
            )
            for rank, trace in by_rank.items()
        }


def call_ends(
    by_rank: Mapping[int, RankTrace], met: Iterable[Sequence[Call]], offsets: Mapping[int, TraceClockOffset]
) -> CallEnds:
    """The ends of all communications that belong together."""
    found = CallEnds()
    messages: dict[Call, list[Sequence[Call]]] = defaultdict(list)
    for parts in met:
        calls = [by_rank[rank].communications[index] for rank, index in parts]
        if any(call.end is EndKind.SEEN for call in calls):
            messages[parts[0][0], parts[1][0]].append(parts)
        else:
            _add_own(found, parts, calls, offsets)
    for same_ends in messages.values():
        _add_seen(found, by_rank, same_ends, offsets)
    return found


def _arrivals(
    parts: Sequence[Call], calls: Sequence[Communication], offsets: Mapping[int, TraceClockOffset]
) -> list[float] | None:
    """When each rank arrived, on the reference's clock; None: a clock is not aligned."""
    if any(rank not in offsets for rank, _ in parts):
        return None
    return [call.begin_ns - offsets[rank].offset_ns for (rank, _), call in zip(parts, calls, strict=True)]


def _add_own(
    found: CallEnds, parts: Sequence[Call], calls: Sequence[Communication], offsets: Mapping[int, TraceClockOffset]
) -> None:
    """All leave together, so the last one to arrive was inside for the transfer alone."""
    shortest_ns = max(0, min(call.end_ns - call.begin_ns for call in calls))
    arrivals = _arrivals(parts, calls, offsets)
    last_ns = None if arrivals is None else max(arrivals)
    for part, call in zip(parts, calls, strict=True):
        if call.end is EndKind.NONE:
            own_ns = 0 if last_ns is None else max(0, round(last_ns + offsets[part[0]].offset_ns) - call.begin_ns)
            found.ends_ns[part] = call.begin_ns + own_ns
            found.durations_ns[part] = 0
        elif last_ns is None or calls[0].kind not in NEEDS_ALL:
            found.durations_ns[part] = shortest_ns
        else:
            found.durations_ns[part] = max(0, round(call.end_ns - offsets[part[0]].offset_ns - last_ns))


def _add_seen(
    found: CallEnds,
    by_rank: Mapping[int, RankTrace],
    messages: Sequence[Sequence[Call]],
    offsets: Mapping[int, TraceClockOffset],
) -> None:
    """Messages of one rank to another one: they take as long as the quick ones, if the ranks waited for neither end."""
    taken: list[tuple[Sequence[Call], float, float]] = []
    for parts in messages:
        calls = [by_rank[rank].communications[index] for rank, index in parts]
        arrivals = _arrivals(parts, calls, offsets)
        if arrivals is None:
            for part in parts:
                found.durations_ns[part] = max(0, min(call.end_ns - call.begin_ns for call in calls))
            continue
        ends = [call.end_ns - offsets[rank].offset_ns for (rank, _), call in zip(parts, calls, strict=True)]
        taken.append((parts, max(arrivals), min(ends) - max(arrivals)))
    usual_ns = _quick_ns([ns for _, _, ns in taken])
    for parts, last_ns, ns in taken:
        done_ns = last_ns + min(max(0.0, ns), usual_ns)
        for part in parts:
            _add_message_end(found, by_rank[part[0]], part, last_ns, done_ns, offsets[part[0]].offset_ns)


def _quick_ns(taken: Sequence[float]) -> float:
    """What a quarter of the messages take at most."""
    if len(taken) < 2:
        return max([0.0, *taken])
    return max(0.0, quantiles(taken, n=4)[0])


def _add_message_end(
    found: CallEnds, trace: RankTrace, part: Call, last_ns: float, done_ns: float, offset_ns: float
) -> None:
    call = trace.communications[part[1]]
    own_done_ns = max(call.begin_ns, round(done_ns + offset_ns))
    if own_done_ns < call.end_ns and not _waited(trace, part[1], own_done_ns):
        found.ends_ns[part] = own_done_ns
        found.seen_ns[part] = call.end_ns
        found.durations_ns[part] = max(0, round(done_ns - last_ns))
    else:
        found.durations_ns[part] = max(0, round(call.end_ns - offset_ns - last_ns))


def _waited(trace: RankTrace, index: int, done_ns: int) -> bool:
    """Whether the rank waited for this message until it saw the end: it did nothing else, and not for another one."""
    call = trace.communications[index]
    if call.end_ns - done_ns <= _RESUMED_NS:
        return True
    if call.kind == SEND and call.end_ns - done_ns > _SEND_RESUMED_NS:
        return False
    if _computes(trace.busy or (), done_ns + _RESUMED_NS, call.end_ns):
        return False
    near = trace.communications[max(0, index - 8) : index + 8]
    return not any(
        other is not call
        and other.end is EndKind.SEEN
        and done_ns < other.end_ns <= call.end_ns
        and call.end_ns - other.end_ns < _ONE_WAIT_NS
        for other in near
    )


def _computes(busy: Sequence[tuple[int, int]], begin_ns: int, end_ns: int) -> bool:
    place = bisect_right(busy, (begin_ns, 1 << 63)) - 1
    return (place >= 0 and busy[place][1] > begin_ns) or (place + 1 < len(busy) and busy[place + 1][0] < end_ns)
