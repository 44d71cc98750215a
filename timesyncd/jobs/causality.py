"""
The job as a witness against clocks: nobody leaves a collective before the last rank has arrived. Where the times say so, beyond the bounds of both clocks, a
clock is further off than its bound says. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from timesyncd.ipc.job_datagram import Kind, Trait, kinds_with
from timesyncd.jobs.arrivals import DEVICE_ERROR_NS, READING_GRANULARITY_NS, Arrival, Sync, half_widths, step_ns
from timesyncd.units import median

CLOCK_EVIDENCE = kinds_with(Trait.CLOCK_EVIDENCE)
NEEDS_ALL_RANKS = kinds_with(Trait.NEEDS_ALL_RANKS)

#: Steps in which it must be seen, and other clocks that it must be seen from where there are more than two.
MIN_STEPS = 3
MIN_COUNTERPARTS = 2

#: Ranks that seem apart by this part of a step, or more, may have marked different steps.
_STEP_PART = 2


@dataclass(frozen=True, slots=True)
class Suspicion:
    """
    The clock of one of `nodes` is off by more than its bound: of the one node named, or of one of the two. `excess_ns` is by how much the largest
    violation exceeds all error; `steps` in how many steps.
    """

    nodes: tuple[str, ...]
    steps: int
    excess_ns: int


def suspect(syncs: Sequence[Sync], nodes: Mapping[int, str]) -> Suspicion | None:
    """
    Who, over these synchronizations; `nodes` by rank, those alone whose marks are to be believed. A clock that is off leaves too early, or arrives too late, always the
    same of the two: anything else is no collective over all ranks. Nor is what ranks of one clock did not wait in, or what is apart by the order of a step. With three nodes and more it is the one that has part in all violations, seen from two
    others at least: an innocent clock is never named alone.
    """
    seen: dict[tuple[str, str], set[int]] = {}
    excess_ns = 0
    violated = []
    for sync in syncs:
        if sync.kind in CLOCK_EVIDENCE and _on_one_clock(sync):
            return None
        for pair, pair_excess_ns in violations(sync, nodes):
            seen.setdefault(pair, set()).add(sync.step)
            excess_ns = max(excess_ns, pair_excess_ns)
        if _is_violated(sync):
            violated.append(sync)
    if _are_steps_apart(violated, syncs):
        return None
    named = _named(seen.keys(), len(set(nodes.values())))
    steps = len(set().union(*seen.values()))
    return Suspicion(named, steps, excess_ns) if named and steps >= MIN_STEPS else None


def did_not_wait(sync: Sync) -> bool:
    """
    Whether this cannot have been a wait for all ranks, though it is of a kind that is one: somebody left before somebody else was there. Across clocks a
    clock may be wrong instead; the arrivals do not compare either way. What is a wait by its kind may have been stamped by devices.
    """
    if sync.kind == Kind.HOOK:
        return _is_violated(sync) or _on_one_clock(sync)
    by_ns = READING_GRANULARITY_NS + 2 * DEVICE_ERROR_NS
    return sync.kind in NEEDS_ALL_RANKS and (_is_violated(sync, by_ns) or _on_one_clock(sync, by_ns))


def _is_violated(sync: Sync, by_ns: int = READING_GRANULARITY_NS) -> bool:
    return sync.comparison is not None and sync.comparison.margin_ns < -by_ns


def _on_one_clock(sync: Sync, by_ns: int = READING_GRANULARITY_NS) -> bool:
    """Whether ranks that read the same clock did not wait for each other: between them no clock's error counts."""
    comparison = sync.comparison
    if comparison is None or comparison.margin_ns >= 2 * comparison.error_ns:
        return False
    by_clock: dict[str | None, list[Arrival]] = {}
    for arrival in sync.arrivals.values():
        by_clock.setdefault(arrival.clock, []).append(arrival)
    return any(
        min(each.end_ns for each in group) - max(each.arrival_ns for each in group) < -by_ns
        for group in by_clock.values()
    )


def _are_steps_apart(violated: Sequence[Sync], syncs: Sequence[Sync]) -> bool:
    step, apart = step_ns(syncs), median([sync.comparison.skew_ns for sync in violated if sync.comparison is not None])
    return step is not None and apart is not None and apart * _STEP_PART >= step


def _named(pairs: Collection[tuple[str, str]], node_count: int) -> tuple[str, ...]:
    leavers, comers = ({pair[side] for pair in pairs} for side in (0, 1))
    if not leavers.isdisjoint(comers):
        return ()
    if node_count == 2:
        return tuple(sorted(leavers | comers))
    for one, others in ((leavers, comers), (comers, leavers)):
        if len(one) == 1 and len(others) >= MIN_COUNTERPARTS:
            return tuple(one)
    return ()


def violations(sync: Sync, nodes: Mapping[int, str]) -> Iterator[tuple[tuple[str, str], int]]:
    """
    (who left, who arrived after that), and by how much beyond their errors. A node twice: its own ranks did not wait for each other. More pairs than one
    clock can have part in are cut short.
    """
    comparison = sync.comparison
    if sync.kind not in CLOCK_EVIDENCE or comparison is None or comparison.margin_ns >= -READING_GRANULARITY_NS:
        return
    left, arrived = _extremes(sync, nodes)
    earliest = sorted(left.items(), key=lambda item: item[1])
    latest = sorted(arrived.items(), key=lambda item: -item[1])
    most = 2 * len(left)
    for leaver, left_ns in earliest:
        for comer, arrived_ns in latest:
            excess_ns = arrived_ns - left_ns - READING_GRANULARITY_NS
            if excess_ns <= 0 or most <= 0:
                break
            most -= 1
            yield (leaver, comer), excess_ns


def _extremes(sync: Sync, nodes: Mapping[int, str]) -> tuple[dict[str, int], dict[str, int]]:
    """By node: the first end, as late as its clock's error allows, and the last arrival, as early as that allows."""
    left: dict[str, int] = {}
    arrived: dict[str, int] = {}
    half_widths_ns = half_widths(sync.arrivals) or {}
    for rank, half_width_ns in half_widths_ns.items():
        node, arrival = nodes.get(rank), sync.arrivals[rank]
        if node is not None:
            left_ns, arrived_ns = arrival.end_ns + half_width_ns, arrival.arrival_ns - half_width_ns
            left[node] = min(left.get(node, left_ns), left_ns)
            arrived[node] = max(arrived.get(node, arrived_ns), arrived_ns)
    return left, arrived
