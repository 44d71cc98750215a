"""
Lateness without the part that a rank inherits: after a synchronization that its ranks leave at different times (a
broadcast), a rank may come late to the next one only because it waited there for another rank. Pure.

Each rank's time between the two is measured on its own clock, so no clock error enters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from timesyncd.ipc.job_datagram import Trait, kinds_with
from timesyncd.jobs.arrivals import READING_GRANULARITY_NS, Sync
from timesyncd.jobs.exposed import union_ns

_NEEDS_ALL_RANKS = kinds_with(Trait.NEEDS_ALL_RANKS)

#: From the end of the next step on, the ranks run level again.
_MAX_STEPS = 2


def with_own_lateness(syncs: Iterable[Sync]) -> list[Sync]:
    """
    The synchronizations, in the order of (step, sync). A rank's lateness is at most its own: how late it came to the
    last uneven synchronization, and its own time since it left that one, above the (lower) median of all ranks.
    """
    found: list[Sync] = []
    since: list[Sync] = []
    for sync in syncs:
        if since and len({each.step for each in since} | {sync.step}) > _MAX_STEPS:
            since = []
        found.append(_own(sync, since) if since else sync)
        if sync.kind not in _NEEDS_ALL_RANKS:
            since = found[-1:] if sync.comparison is not None else []
        elif since:
            since.append(sync)
    return found


def _own(sync: Sync, since: Sequence[Sync]) -> Sync:
    """`since`: the uneven synchronization, and those after it."""
    comparison = sync.comparison
    if comparison is None or not comparison.late_ranks:
        return sync
    own_ns = {rank: _own_ns(rank, sync, since) for rank in sync.arrivals}
    times = sorted(time for time in own_ns.values() if time is not None)
    if len(times) < len(own_ns):
        return sync
    usual_ns = times[(len(times) - 1) // 2]
    excess_ns = {rank: max(0, time - usual_ns) for rank, time in own_ns.items() if time is not None}
    lateness_ns = {rank: min(late_ns, excess_ns[rank]) for rank, late_ns in comparison.lateness_ns.items()}
    return replace(
        sync,
        comparison=replace(
            comparison,
            lateness_ns=lateness_ns,
            late_ranks=tuple(rank for rank in comparison.late_ranks if lateness_ns[rank] > 0),
            surely_late_ranks=tuple(
                rank for rank in comparison.surely_late_ranks if lateness_ns[rank] > READING_GRANULARITY_NS
            ),
        ),
    )


def _own_ns(rank: int, sync: Sync, since: Sequence[Sync]) -> int | None:
    """
    The rank's lateness at the uneven synchronization, and its time from there to this arrival without the waits in
    between. None: the rank lacks one of them, or was still inside the first.
    """
    passed = [each.arrivals[rank] for each in since if rank in each.arrivals]
    until_ns = sync.arrivals[rank].arrival_ns
    if len(passed) < len(since) or passed[0].end_ns > until_ns:
        return None
    before = since[0].comparison
    assert before is not None, "the uneven synchronization compares"
    waits_ns = union_ns([(each.begin_ns, each.end_ns) for each in passed[1:]], (passed[0].end_ns, until_ns))
    return before.lateness_ns[rank] + until_ns - passed[0].end_ns - waits_ns
