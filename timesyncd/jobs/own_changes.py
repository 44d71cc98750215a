"""
Since when a rank of a mesh is slow, and the few steps in which one pauses: by the ranks' own times, with the tests that
a job whose ranks all synchronize together has for its arrivals. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from timesyncd.jobs.onset import LateSpan, late_spans
from timesyncd.jobs.own_time import (
    OwnTimes,
    SlowRank,
    compared_syncs,
    lower_median,
    others_waited_ns,
    slow_rank,
)
from timesyncd.jobs.rare_waits import RareWaits, StepWait, rare_among
from timesyncd.units import percentile

#: A rank is late together with all ranks of a group if each of these is late by at least one part in so many of it.
_TOGETHER_PART = 2

#: Ranks that have none with the same work have unequal shares of more data: here a smaller part counts as late together.
_ALONE_PART = 10

#: A rank without another one that does the same work is named by chance as one of two would be: how likely it pauses
#: beside the others is not known.
_ALONE = 2


@dataclass(frozen=True, slots=True)
class SlowSpan:
    """A span of steps in which a rank is slow, and where: `slow` is of these steps only."""

    span: LateSpan
    slow: SlowRank


def slow_spans(own: OwnTimes) -> list[SlowSpan]:
    """
    In the order of time. Where all ranks that may work on the same data become slow, they may have more of it: none is
    named.
    """
    excess_ns = _excess_ns(own)
    found = []
    for of in own.comparable:
        for span in late_spans(compared_syncs(of), families=len(own.comparable)):
            usual_ns = {rank: _over(by_step, span.first, span.last) for rank, by_step in excess_ns.items()}
            if not _is_shared(span.straggler.rank, usual_ns, own):
                slow = slow_rank(span.straggler, of.between(span.first, span.last), own.steps)
                found.append(SlowSpan(replace(span, straggler=slow.straggler), slow))
    return sorted(found, key=lambda each: (each.span.first, each.span.last, each.span.straggler.rank))


def rare_own_waits(own: OwnTimes) -> RareWaits | None:
    """
    The few steps that hold most of what half of the ranks waited for the rank that took longest beyond its like, of
    the steps in which ranks with the same work have the same synchronizations. None: there are no such steps.
    """
    excess_ns = _excess_ns(own)
    if not excess_ns:
        return None
    keys = sorted(set.intersection(*(set(by_step) for by_step in excess_ns.values())))
    waits = [_step_wait(key, {rank: by_step[key] for rank, by_step in excess_ns.items()}, own) for key in keys]
    lengths_ns = [
        max(own.steps[rank][key].end_ns - own.steps[rank][key].begin_ns for rank in excess_ns) for key in keys
    ]
    alike = {rank: max(_ALONE, len(of.ranks)) for of in own.classes for rank in of.ranks}
    return rare_among(waits, percentile(lengths_ns, 50) if lengths_ns else 0, alike)


def _step_wait(key: int, excess_ns: Mapping[int, int], own: OwnTimes) -> StepWait:
    rank = max(excess_ns, key=lambda each: excess_ns[each])
    waited_ns = min(max(0, excess_ns[rank]), others_waited_ns(key, rank, own.steps))
    return StepWait(key, {None if _is_shared(rank, excess_ns, own) else rank: waited_ns} if waited_ns else {})


def _is_shared(rank: int, excess_ns: Mapping[int, int], own: OwnTimes) -> bool:
    """Whether ranks with which it may work on the same data take longer too."""

    def is_late(other: int, part: int) -> bool:
        return part * excess_ns.get(other, 0) >= excess_ns[rank]

    if rank in own.alone:
        return any(is_late(other, _ALONE_PART) for other in excess_ns if other != rank)
    return any(
        rank in each.ranks and all(is_late(other, _TOGETHER_PART) for other in each.ranks) for each in own.sharing
    )


def _excess_ns(own: OwnTimes) -> dict[int, dict[int, int]]:
    """
    By rank and step, how much longer than its like the rank takes. A rank without its like is compared with its own
    usual step, so only where that has the usual synchronizations.
    """
    found: dict[int, dict[int, int]] = {}
    for of in own.classes:
        steps = of.alike if len(of.ranks) < 2 else of.same
        usual_ns = {key: lower_median([step.own_ns[-1] for step in ranks.values()]) for key, ranks in steps}
        if len(of.ranks) < 2 and usual_ns:
            usual_ns = dict.fromkeys(usual_ns, lower_median(list(usual_ns.values())))
        for rank in of.ranks if usual_ns else ():
            found[rank] = {key: ranks[rank].own_ns[-1] - usual_ns[key] for key, ranks in steps}
    return found


def _over(by_step: Mapping[int, int], first: int, last: int) -> int:
    """The usual value of these steps."""
    within = [ns for key, ns in by_step.items() if first <= key <= last]
    return lower_median(within) if within else 0
