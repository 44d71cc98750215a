"""
Clocks that contradict causality: no rank leaves a collective before the last rank has arrived. Where the times say so
beyond the bounds of both clocks, a clock is further off than its bound. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from timesyncd.ipc.job_datagram import Kind, Trait, kinds_with
from timesyncd.jobs.arrivals import DEVICE_ERROR_NS, READING_GRANULARITY_NS, Arrival, Sync, half_widths, step_ns
from timesyncd.units import median

CLOCK_EVIDENCE = kinds_with(Trait.CLOCK_EVIDENCE)
NEEDS_ALL_RANKS = kinds_with(Trait.NEEDS_ALL_RANKS)

#: A suspicion needs violations in so many steps, and, with more than two clocks, against so many others.
MIN_STEPS = 3
MIN_COUNTERPARTS = 2

#: Ranks that seem apart by one part in so many of a step, or more, may have marked different steps.
_STEP_PART = 2

#: At most one step in so many is in common again once the steps of the ranks are apart.
_COMMON_PART = 10


@dataclass(frozen=True, slots=True)
class Suspicion:
    """
    The clock of one of `nodes` (one or two) is off by more than its bound. The largest violation exceeds all error by
    `excess_ns`; `steps` counts the steps with a violation.
    """

    nodes: tuple[str, ...]
    steps: int
    excess_ns: int


def suspect(syncs: Sequence[Sync], nodes: Mapping[int, str]) -> Suspicion | None:
    """
    The clock that these synchronizations contradict. `nodes`: by rank, only the ranks whose marks are verified.

    A clock that is off leaves too early or arrives too late, always the same of the two; any other pattern is no
    collective over all ranks. Neither are synchronizations in which ranks of one clock did not wait, nor those that are
    apart by the order of a step. With three nodes or more the clock must take part in all violations and be seen from
    two others, so a correct clock is never named alone.
    """
    violated_pairs: dict[tuple[str, str], set[int]] = {}
    excess_ns = 0
    violated = []
    for sync in syncs:
        if sync.kind in CLOCK_EVIDENCE and _on_one_clock(sync):
            return None
        for pair, pair_excess_ns in violations(sync, nodes):
            violated_pairs.setdefault(pair, set()).add(sync.step)
            excess_ns = max(excess_ns, pair_excess_ns)
        if _is_violated(sync):
            violated.append(sync)
    if _are_steps_apart(violated, syncs):
        return None
    named = _suspects(violated_pairs.keys(), len(set(nodes.values())))
    steps = len(set().union(*violated_pairs.values()))
    return Suspicion(named, steps, excess_ns) if named and steps >= MIN_STEPS else None


@dataclass(frozen=True, slots=True)
class StepsApart:
    """
    Since the step with the key `since` the marks of one step are a step or more apart, as where a rank leaves out an
    update or repeats one: in `part` of the steps. `ranks`: those whose steps are not those of most ranks; empty: unknown.
    """

    since: int
    part: float
    ranks: tuple[int, ...]


def steps_apart(syncs: Sequence[Sync]) -> StepsApart | None:
    """In these synchronizations, which all ranks have. None: the steps are in common, or are again."""
    length_ns = step_ns(syncs)
    steps = [
        [each for each in step if each.kind in NEEDS_ALL_RANKS and each.comparison is not None]
        for _, step in groupby(syncs, key=lambda sync: sync.step)
    ]
    steps = [step for step in steps if step]
    apart = [at for at, step in enumerate(steps) if all(_is_a_step_apart(each, length_ns or 0) for each in step)]
    for number, at in enumerate(apart):
        rest, common = len(steps) - at, len(steps) - at - (len(apart) - number)
        if rest >= MIN_STEPS and common * _COMMON_PART <= rest:
            return StepsApart(steps[at][0].step, rest / len(steps), _ranks_apart(steps[apart[-1]][0]))
    return None


def _is_a_step_apart(sync: Sync, length_ns: int) -> bool:
    return _is_violated(sync) and sync.comparison is not None and sync.comparison.skew_ns * _STEP_PART >= length_ns


def _ranks_apart(sync: Sync) -> tuple[int, ...]:
    """The ranks that were not inside together with most of the ranks; empty: most were not inside together."""
    together: list[list[int]] = []
    left_ns = None
    for rank, arrival in sorted(sync.arrivals.items(), key=lambda each: each[1].arrival_ns):
        if left_ns is None or arrival.arrival_ns > left_ns:
            together.append([])
            left_ns = arrival.end_ns
        together[-1].append(rank)
        left_ns = min(left_ns, arrival.end_ns)
    most = max(together, key=len)
    return tuple(sorted(sync.arrivals.keys() - set(most))) if 2 * len(most) > len(sync.arrivals) else ()


def did_not_wait(sync: Sync) -> bool:
    """
    Whether this was no wait for all ranks, though its kind is one: a rank left before another arrived. Between clocks a
    clock may be wrong instead; the arrivals do not compare in either case. The times of such kinds may be stamps of
    devices, hence the larger tolerance.
    """
    if sync.kind == Kind.HOOK:
        return _is_violated(sync) or _on_one_clock(sync)
    by_ns = READING_GRANULARITY_NS + 2 * DEVICE_ERROR_NS
    return sync.kind in NEEDS_ALL_RANKS and (_is_violated(sync, by_ns) or _on_one_clock(sync, by_ns))


def _is_violated(sync: Sync, by_ns: int = READING_GRANULARITY_NS) -> bool:
    return sync.comparison is not None and sync.comparison.margin_ns < -by_ns


def _on_one_clock(sync: Sync, by_ns: int = READING_GRANULARITY_NS) -> bool:
    """Whether ranks that read the same clock did not wait for each other; between them no clock error counts."""
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


def _suspects(pairs: Collection[tuple[str, str]], node_count: int) -> tuple[str, ...]:
    left_first, arrived_last = ({pair[side] for pair in pairs} for side in (0, 1))
    if not left_first.isdisjoint(arrived_last):
        return ()
    if node_count == 2:
        return tuple(sorted(left_first | arrived_last))
    for one, others in ((left_first, arrived_last), (arrived_last, left_first)):
        if len(one) == 1 and len(others) >= MIN_COUNTERPARTS:
            return tuple(one)
    return ()


def violations(sync: Sync, nodes: Mapping[int, str]) -> Iterator[tuple[tuple[str, str], int]]:
    """
    (the node that left, the node that arrived after that), and by how much beyond their errors, in nanoseconds. The
    same node twice: its own ranks did not wait for each other. It stops at more pairs than one clock can take part in.
    """
    comparison = sync.comparison
    if sync.kind not in CLOCK_EVIDENCE or comparison is None or comparison.margin_ns >= -READING_GRANULARITY_NS:
        return
    left, arrived = _extremes(sync, nodes)
    earliest = sorted(left.items(), key=lambda item: item[1])
    latest = sorted(arrived.items(), key=lambda item: -item[1])
    most = 2 * len(left)
    for left_node, left_ns in earliest:
        for arrived_node, arrived_ns in latest:
            excess_ns = arrived_ns - left_ns - READING_GRANULARITY_NS
            if excess_ns <= 0 or most <= 0:
                break
            most -= 1
            yield (left_node, arrived_node), excess_ns


def _extremes(sync: Sync, nodes: Mapping[int, str]) -> tuple[dict[str, int], dict[str, int]]:
    """By node, the first end, as late as its clock's error allows, and the last arrival, as early as that allows."""
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
