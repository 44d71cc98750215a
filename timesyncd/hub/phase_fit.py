"""
The step of a job as the link sees it, and ways to arrange several jobs on one circle of time so that no two send at
once. Pure.

A period that is measured while jobs contend is inflated, and so is a transfer. A fair link gives each of n jobs that
send at once an n-th of its rate. So a transfer's length alone is the sum of its moments, each divided by the number of
jobs that send at that moment.

The arrangement follows CASSINI (arXiv 2308.00852, section 4). The perimeter of the circle is a whole number of every
job's planned period: a job with a quarter of it appears four times. A planned period is somewhat longer than the job
needs alone, so that a step has time to wait for its slot; otherwise a job that was late once stays late.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import mul
from statistics import median_low
from typing import NamedTuple

from timesyncd.client.phase import delay_ns
from timesyncd.ipc.job_segment import Phase
from timesyncd.units import percentile

#: The most and the fewest steps of a fit.
MAX_STEPS, MIN_STEPS = 50, 20

#: In parts per thousand of the step: by how much one step in ten may compute longer than the median, and how far the
#: quartiles of the transfers may lie apart. A job beyond that has no stable period. The second is wider, since links
#: are never quite fair.
COMPUTE_WITHIN, ARC_WITHIN = 100, 150


class StepTimes(NamedTuple):
    """
    One step of a whole job on the common clock, in nanoseconds: the last rank began it and ended it; its first transfer
    began when the last rank had arrived, and its last transfer ended when the last rank had the result. `step` is the
    key.
    """

    step: int
    start_ns: int
    end_ns: int
    sends_ns: int
    sent_ns: int


@dataclass(frozen=True, slots=True)
class Fit:
    """
    Medians over the newest steps, in nanoseconds. `period_ns` is the measured time from step to step, `mean_ns` its
    mean. `alone_ns` is the period without other jobs and without holds; nine of ten steps need at most `slow_ns`. In
    such a step the job sends for `arc_ns`, from `offset_ns` after its start on. `rest_ns` lies between a step's end and
    the start of the next. `newest` is the last step.
    """

    period_ns: int
    mean_ns: int
    alone_ns: int
    slow_ns: int
    arc_ns: int
    offset_ns: int
    rest_ns: int
    newest: StepTimes


def fit(
    steps: Sequence[StepTimes],
    others: Sequence[Sequence[StepTimes]],
    phase: Phase | None = None,
    rest_ns: int | None = None,
) -> Fit | str:
    """
    A job's fit, or the reason why there is none. `others`: the steps of the other jobs on the link, in order of time.
    `phase` was in force in all these steps; then the time between steps is partly a hold, and `rest_ns`, measured
    without a phase, replaces it.
    """
    steps = _known_to_all(steps, others)[-MAX_STEPS:]
    pairs = [(one, next_) for one, next_ in pairwise(steps) if next_.step == one.step + 1]
    if len(pairs) < MIN_STEPS:
        return f"{len(pairs)} consecutive pairs of steps are known; a fit needs {MIN_STEPS}"
    begun = _begun(steps, pairs, phase)
    arcs = [alone_ns(one, others) for one in steps]
    if rest_ns is None:
        rest_ns = max(0, median_low(next_.start_ns - one.end_ns for one, next_ in pairs))
    computes = [one.end_ns - begun[one.step] - (one.sent_ns - one.sends_ns) + rest_ns for one, _ in pairs]
    arc_ns, compute_ns = percentile(arcs, 50), percentile(computes, 50)
    late_ns = percentile(computes, 90) - compute_ns
    spread_ns = percentile(arcs, 75) - percentile(arcs, 25)
    length_ns = compute_ns + arc_ns
    if late_ns * 1000 > COMPUTE_WITHIN * length_ns or spread_ns * 1000 > ARC_WITHIN * length_ns:
        return "no stable period"
    return Fit(
        period_ns=median_low(next_.start_ns - one.start_ns for one, next_ in pairs),
        mean_ns=sum(next_.start_ns - one.start_ns for one, next_ in pairs) // len(pairs),
        alone_ns=length_ns,
        slow_ns=length_ns + late_ns,
        arc_ns=arc_ns,
        offset_ns=median_low(one.sends_ns - begun[one.step] for one in steps),
        rest_ns=rest_ns,
        newest=steps[-1],
    )


def _begun(
    steps: Sequence[StepTimes], pairs: Sequence[tuple[StepTimes, StepTimes]], phase: Phase | None
) -> dict[int, int]:
    """
    When each step's work began: after its hold. Steps that are marked back to back, from one update to the next,
    contain their hold; where time lies between the marks, the hold lies there.
    """
    between_ns = max(next_.start_ns - one.end_ns for one, next_ in pairs)
    if phase is None or between_ns * 100 > phase.period_ns:
        return {one.step: one.start_ns for one in steps}
    return {one.step: one.start_ns + delay_ns(phase, one.start_ns) for one in steps}


def _known_to_all(steps: Sequence[StepTimes], others: Sequence[Sequence[StepTimes]]) -> Sequence[StepTimes]:
    """The steps up to which all jobs are known; all of them where too few remain, as beside a job that pauses."""
    until_ns = min((other[-1].end_ns for other in others if other), default=steps[-1].end_ns if steps else 0)
    known = [step for step in steps if step.end_ns <= until_ns]
    return known if len(known) > MIN_STEPS else steps


def alone_ns(step: StepTimes, others: Sequence[Sequence[StepTimes]]) -> int:
    """How long a step's transfer would have lasted alone, if jobs that send at once share the link fairly."""
    edges: dict[int, int] = {step.sends_ns: 0, step.sent_ns: 0}
    for other in others:
        index = bisect_left(other, step.sends_ns, key=lambda each: each.sent_ns)
        while index < len(other) and other[index].sends_ns < step.sent_ns:
            for at_ns, change in ((other[index].sends_ns, 1), (other[index].sent_ns, -1)):
                at_ns = min(max(at_ns, step.sends_ns), step.sent_ns)
                edges[at_ns] = edges.get(at_ns, 0) + change
            index += 1
    alone, senders = 0, 1
    for (begin_ns, change), (end_ns, _) in pairwise(sorted(edges.items())):
        senders += change
        alone += (end_ns - begin_ns) // senders
    return alone


def circular_median(values_ns: Sequence[int], period_ns: int) -> int:
    """
    The median of instants (one or more) modulo a period, counted from the newest so that the wrap does not matter.
    """
    newest_ns, half_ns = values_ns[-1], period_ns // 2
    return (
        newest_ns + median_low((each - newest_ns + half_ns) % period_ns - half_ns for each in values_ns)
    ) % period_ns


def drift_ns(steps: Sequence[StepTimes], sends_ns: int, period_ns: int) -> int:
    """How far the steps (one or more) send from their slot in the period; positive: later."""
    at_ns = circular_median([step.sends_ns for step in steps], period_ns)
    return (at_ns - sends_ns + period_ns // 2) % period_ns - period_ns // 2


def sending_share(steps: Sequence[StepTimes]) -> float:
    """The share of the time for which a job sends, over its newest steps (one or more)."""
    steps = steps[-MAX_STEPS:]
    lasted_ns = steps[-1].end_ns - steps[0].start_ns
    return sum(step.sent_ns - step.sends_ns for step in steps) / lasted_ns if lasted_ns > 0 else 0.0


#: Each job appears at most so many times on a circle, and so many circles are tried: together a tenth of a second at
#: worst.
MAX_TURNS, MAX_CIRCLES = 4, 6

#: The circle in degrees: halves, thirds and quarters are whole numbers of them.
DEGREES = 360

#: A planned period is enough for nine of ten steps, and longer than the median step by at least this part per thousand.
MIN_SLACK = 40

#: No job's period is stretched by more than this part per thousand, so an ordinary hold stays below half a period.
MAX_STRETCH = 600

#: The room behind the arcs: all of it, or, where periods differ and no arrangement is found, a part of it.
_ROOM = (1, 3)

_TURNS = 12
_FULL = (1 << DEGREES) - 1


class Load(NamedTuple):
    """
    A job on the link, in nanoseconds: its step alone, the step that nine of ten stay below, how long it sends, and when
    it sends next if nothing changes. `weight`: how much the stretching of its period counts.
    """

    alone_ns: int
    slow_ns: int
    arc_ns: int
    sends_ns: int
    weight: int = 1

    @property
    def needed_ns(self) -> int:
        """The shortest period that leaves the job time to wait for its slot."""
        return max(self.slow_ns, self.alone_ns * (1000 + MIN_SLACK) // 1000)


@dataclass(frozen=True, slots=True)
class PeriodicSend:
    """When a job sends: each time the common clock modulo `period_ns` is `sends_ns`."""

    period_ns: int
    sends_ns: int


class _Arc(NamedTuple):
    """
    A job on the circle: its sending and the room behind it as bits from angle 0 on, how often it appears, and its
    present angle.
    """

    job: str
    bits: int
    width: int
    turns: int
    angle: int


def arrangements(loads: Mapping[str, Load]) -> Iterator[dict[str, PeriodicSend]]:
    """Arrangements of these jobs without overlap, the one that stretches their periods least first."""
    for perimeter_ns, turns in circles(loads):
        tried = (_packed(_arcs(loads, perimeter_ns, turns, part)) for part in _ROOM)
        angles = next((each for each in tried if each is not None), None)
        if angles is not None:
            yield {
                job: PeriodicSend(
                    perimeter_ns // turns[job], angle * perimeter_ns // DEGREES % (perimeter_ns // turns[job])
                )
                for job, angle in angles.items()
            }


def circles(loads: Mapping[str, Load]) -> list[tuple[int, dict[str, int]]]:
    """
    Perimeters in nanoseconds that hold the jobs' arcs, with how often each job appears, the least stretching first.
    """
    found: dict[tuple[int, ...], tuple[float, int, dict[str, int]]] = {}
    for base in loads.values():
        for times in range(1, MAX_TURNS + 1):
            base_ns = base.needed_ns * times
            turns = {job: min(MAX_TURNS, base_ns // load.needed_ns) for job, load in loads.items()}
            if not all(turns.values()):
                continue
            sending_ns = sum(turns[job] * load.arc_ns for job, load in loads.items())
            perimeter_ns = max(base_ns, sending_ns * (1000 + MIN_SLACK) // 1000)
            perimeter_ns += -perimeter_ns % _TURNS
            stretches = [perimeter_ns / turns[job] / load.alone_ns for job, load in loads.items()]
            weights = [load.weight for load in loads.values()]
            stretch, key = sum(map(mul, weights, stretches)), tuple(turns.values())
            fits = max(stretches) * 1000 <= 1000 + MAX_STRETCH
            if fits and (key not in found or stretch < found[key][0]):
                found[key] = (stretch, perimeter_ns, turns)
    best = sorted(found.values(), key=lambda each: each[0])[:MAX_CIRCLES]
    return [(perimeter_ns, turns) for _, perimeter_ns, turns in best]


def _arcs(loads: Mapping[str, Load], perimeter_ns: int, turns: Mapping[str, int], part: int) -> list[_Arc]:
    """The free room lies behind the arcs in equal parts, or a `part`-th of it: steps are rather late than early."""
    room_ns = perimeter_ns - sum(turns[job] * load.arc_ns for job, load in loads.items())
    room_ns //= sum(turns.values()) * part
    arcs = []
    for job, load in loads.items():
        width = (load.arc_ns + min(room_ns, perimeter_ns // turns[job] // 10)) * DEGREES // perimeter_ns
        once = (1 << width) - 1
        bits = sum(once << turn * DEGREES // turns[job] for turn in range(turns[job])) & _FULL
        angle = load.sends_ns % (perimeter_ns // turns[job]) * DEGREES // perimeter_ns
        arcs.append(_Arc(job, bits, width, turns[job], angle))
    return arcs


def _packed(arcs: Sequence[_Arc]) -> dict[str, int] | None:
    """Angles without overlap, by the order that moves the jobs forward least. None: no order was found."""
    tried = []
    for first in range(len(arcs)):
        rest = [*arcs[:first], *arcs[first + 1 :]]
        ahead = sorted(rest, key=lambda arc: (arc.angle - arcs[first].angle) % DEGREES)
        for side_by_side in (False, True):
            found = _in_order([arcs[first], *ahead], side_by_side)
            if found is not None:
                tried.append(found)
    return min(tried, key=lambda each: each[0])[1] if tried else None


def _in_order(arcs: Sequence[_Arc], side_by_side: bool) -> tuple[int, dict[str, int]] | None:
    """
    Each job at the first free angle from its present one, or, side by side, from the end of the job before; and how far
    they move in all. Holds only delay, so jobs only move forward.
    """
    occupied, moved, end = 0, 0, arcs[0].angle
    angles = {}
    for arc in arcs:
        start = end if side_by_side else arc.angle
        free = (start + step for step in range(DEGREES // arc.turns) if not occupied & _turned(arc.bits, start + step))
        angle = next(free, None)
        if angle is None:
            return None
        occupied |= _turned(arc.bits, angle)
        angles[arc.job] = angle % DEGREES
        moved += (angle - arc.angle) % (DEGREES // arc.turns)
        end = angle + arc.width
    return moved, angles


def _turned(bits: int, angle: int) -> int:
    angle %= DEGREES
    return (bits << angle | bits >> DEGREES - angle) & _FULL
