"""
Places for jobs on one circle of time, so that no two of them send at once (CASSINI, arXiv 2308.00852, section 4). Pure.

The circle's perimeter is a whole number of every job's planned period: a job with a quarter of it appears four times. A planned period is
somewhat longer than its job needs alone, so that a step has time to wait for its place; without that a job that was late once stays late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Each job appears this many times at most, and so many circles are tried: all of it takes a tenth of a second at worst.
MOST_TURNS, MOST_CIRCLES = 4, 6

#: The circle in degrees: halves, thirds and quarters are whole numbers of them.
DEGREES = 360

#: A planned period is what nine of ten steps need, but longer than the median one by this part in a thousand at least.
LEAST_SLACK = 40

#: No job's period is stretched by more than this part in a thousand: a step's ordinary hold stays below half of a period.
MOST_STRETCH = 600

#: The room behind arcs: all that there is, or where periods differ and no places are found, parts of it.
_ROOM = (1, 3)

_TURNS = 12
_FULL = (1 << DEGREES) - 1


class Load(NamedTuple):
    """
    A job on the link, in ns: its step alone, what nine of ten need, how long it sends; when it will send next if nothing is changed.
    """

    alone_ns: int
    slow_ns: int
    arc_ns: int
    sends_ns: int

    @property
    def needed_ns(self) -> int:
        """A period that leaves the job time to wait."""
        return max(self.slow_ns, self.alone_ns * (1000 + LEAST_SLACK) // 1000)


@dataclass(frozen=True, slots=True)
class Place:
    """A job sends where the clock modulo `period_ns` is `sends_ns`."""

    period_ns: int
    sends_ns: int


class _Arc(NamedTuple):
    """On the circle: a job's sending, with the room behind it, as set bits from angle 0 on; how often it appears; where it is now."""

    job: str
    bits: int
    width: int
    turns: int
    angle: int


def places(loads: Mapping[str, Load]) -> Iterator[dict[str, Place]]:
    """Ways to place these jobs without any overlap, the one that stretches their periods least first."""
    for perimeter_ns, turns in circles(loads):
        tried = (_packed(_arcs(loads, perimeter_ns, turns, part)) for part in _ROOM)
        angles = next((each for each in tried if each is not None), None)
        if angles is not None:
            yield {
                job: Place(perimeter_ns // turns[job], angle * perimeter_ns // DEGREES % (perimeter_ns // turns[job]))
                for job, angle in angles.items()
            }


def circles(loads: Mapping[str, Load]) -> list[tuple[int, dict[str, int]]]:
    """Perimeters in ns that the jobs' arcs fit in, with how often each job appears, the least stretching first."""
    found: dict[tuple[int, ...], tuple[float, int, dict[str, int]]] = {}
    for base in loads.values():
        for times in range(1, MOST_TURNS + 1):
            base_ns = base.needed_ns * times
            turns = {job: min(MOST_TURNS, base_ns // load.needed_ns) for job, load in loads.items()}
            if not all(turns.values()):
                continue
            sending_ns = sum(turns[job] * load.arc_ns for job, load in loads.items())
            perimeter_ns = max(base_ns, sending_ns * (1000 + LEAST_SLACK) // 1000)
            perimeter_ns += -perimeter_ns % _TURNS
            stretches = [perimeter_ns / turns[job] / load.alone_ns for job, load in loads.items()]
            stretch, key = sum(stretches), tuple(turns.values())
            fits = max(stretches) * 1000 <= 1000 + MOST_STRETCH
            if fits and (key not in found or stretch < found[key][0]):
                found[key] = (stretch, perimeter_ns, turns)
    best = sorted(found.values(), key=lambda each: each[0])[:MOST_CIRCLES]
    return [(perimeter_ns, turns) for _, perimeter_ns, turns in best]


def _arcs(loads: Mapping[str, Load], perimeter_ns: int, turns: Mapping[str, int], part: int) -> list[_Arc]:
    """What room is left is behind the arcs, in equal parts, or a `part`-th of that: a step is late rather than early."""
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
    """Angles without overlap; of the ways tried the one that moves the jobs forward least. None: none was found."""
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
    Each at the first free angle from where it is, or, side by side, from the end of the one before; and how far they move in all. Holds
    only delay, so jobs move forward alone.
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
