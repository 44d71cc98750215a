"""
What a communication that overlaps with computing began after. Pure.

On a device it begins once the computing that it needs is done and its stream is free. So it needs no more than what was
done whenever it began earliest, in any step and on any rank that does the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping

from timesyncd.jobs.trace_steps import Roles
from timesyncd.traces.operations import RECV, SEND, RankTrace

_Place = tuple[tuple[int, int], int]
"""The stage and the communications of a step of ranks that do the same, and the place in the step."""


def launch_points(by_rank: Mapping[int, RankTrace], roles: Roles) -> dict[tuple[int, int], int]:
    """
    By rank and place in its communications: when the computing that it needed was done, if it computed on meanwhile.
    Empty where ranks that do the same do not compute in equally many pieces, on hosts, whose own threads issue all
    calls, and in pipelines, whose messages wait.
    """
    on_hosts = any(trace.reading_ns for trace in by_rank.values())
    if on_hosts or any(call.kind in (SEND, RECV) for trace in by_rank.values() for call in trace.communications):
        return {}
    done = {rank: _done(trace) for rank, trace in by_rank.items()}
    needed: dict[_Place, int] = {}
    pieces: dict[_Place, set[int]] = defaultdict(set)
    for rank in by_rank:
        likeness = (roles.stages[rank], roles.periods[rank])
        for index, count in enumerate(done[rank]):
            step, place = roles.at(rank, index)
            if step < 0:
                continue
            first = done[rank][index - place]
            if place:
                key = (likeness, place)
                needed[key] = min(needed.get(key, count - first), count - first)
            elif step:
                pieces[likeness, 0].add(first - done[rank][index - roles.periods[rank]])
    found = {}
    for rank, trace in by_rank.items():
        likeness = (roles.stages[rank], roles.periods[rank])
        if len(pieces[likeness, 0]) != 1 or not trace.busy:
            continue
        for index, call in enumerate(trace.communications):
            step, place = roles.at(rank, index)
            if step >= 0 and place:
                piece = done[rank][index - place] + needed[likeness, place]
                if 0 < piece < len(trace.busy) and trace.busy[piece][0] < call.begin_ns:
                    found[rank, index] = trace.busy[piece - 1][1]
    return found


def _done(trace: RankTrace) -> list[int]:
    """How many pieces of computing were done when each communication began."""
    ends = [end for _, end in trace.busy or ()]
    return [bisect_right(ends, call.begin_ns) for call in trace.communications]
