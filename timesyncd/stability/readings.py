"""Time errors as they were read, the difference of two nodes' ones, and what makes a series of them regular."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from timesyncd.units import median

_NS_PER_S = 1_000_000_000


class Reading(NamedTuple):
    """`te_ns`: local minus reference at `at_ns`, a Unix time. `reference` identifies the reference; None: not known."""

    at_ns: int
    te_ns: int
    reference: str | None = None


class ReadingPlace(Enum):
    """How a reading continues the series before it."""

    NEXT = "one sampling interval after the last one"
    AFTER_GAP = "the first one, or more than one and a half intervals after the last one"
    EARLY = "less than half an interval after the last one, or before it: not used"
    OTHER_REFERENCE = "of another reference than the last one"


def sampling_interval_ns(readings: Sequence[Reading]) -> int | None:
    """
    The nominal interval between successive readings: their median, without its jitter. None for fewer than two times.

    A median within 1 % of a power of two of a second, as PTP's intervals are, is that one; another is rounded to four digits.
    """
    found = median(
        [later.at_ns - earlier.at_ns for earlier, later in pairwise(readings) if later.at_ns > earlier.at_ns]
    )
    if found is None:
        return None
    power = round(math.log2(found / _NS_PER_S))
    nominal_ns = round(_NS_PER_S * 2.0**power)
    if abs(found - nominal_ns) * 100 <= nominal_ns:
        return max(1, nominal_ns)
    digits = max(0, len(str(found)) - 4)
    return round(found, -digits)


class Placing:
    """Decides for each reading how it continues a series that is sampled each `interval_ns`."""

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._last: Reading | None = None

    def place(self, reading: Reading) -> ReadingPlace:
        last = self._last
        if last is not None and 2 * (reading.at_ns - last.at_ns) < self._interval_ns:
            return ReadingPlace.EARLY
        self._last = reading
        if last is None or 2 * (reading.at_ns - last.at_ns) >= 3 * self._interval_ns:
            return ReadingPlace.AFTER_GAP
        return ReadingPlace.NEXT if reading.reference == last.reference else ReadingPlace.OTHER_REFERENCE


@dataclass(slots=True)
class PairCounts:
    """
    Of the first node's readings: how many had a partner, and why the others could not be compared. `references`: what both
    nodes measured against, in the order of time, at the compared ones.
    """

    compared: int = 0
    unmatched: int = 0
    reference_unknown: int = 0
    references_differ: int = 0
    references: list[str] = field(default_factory=list)

    def _reasons(self) -> str:
        reasons = (
            (self.references_differ, "the nodes followed different references at {} of the equal times"),
            (self.reference_unknown, "the reference of a node is unknown at {} of the equal times"),
            (self.unmatched, "{} readings of the first node have none of the second within half a sampling interval"),
        )
        return "; ".join(text.format(number) for number, text in reasons if number)

    def problem(self) -> str | None:
        """Why nothing was compared; None where something was."""
        return None if self.compared else self._reasons() or "a node has no reading in this span"

    def left_out(self) -> str:
        """What was not compared, and why, as a sentence; empty where all was."""
        reasons = self._reasons()
        return f"Not compared: {reasons}." if self.compared and reasons else ""


@dataclass(slots=True)
class Pair:
    """
    The difference of two nodes' time errors, first minus second, at equal times against the same reference.

    Readings within `within_ns` of one another count as simultaneous. `counts` is complete when `differences` has ended.
    """

    within_ns: int
    counts: PairCounts = field(default_factory=PairCounts)

    def differences(self, first: Iterable[Reading], second: Iterable[Reading]) -> Iterator[Reading]:
        """Both in order of time. The time of a difference is that of the first node's reading."""
        others = iter(second)
        nearest = next(others, None)
        following = next(others, None)
        for reading in first:
            while nearest is not None and following is not None:
                if abs(following.at_ns - reading.at_ns) > abs(nearest.at_ns - reading.at_ns):
                    break
                nearest, following = following, next(others, None)
            difference = self._difference(reading, nearest)
            if difference is not None:
                yield difference

    def _difference(self, reading: Reading, other: Reading | None) -> Reading | None:
        if other is None or abs(other.at_ns - reading.at_ns) > self.within_ns:
            self.counts.unmatched += 1
        elif reading.reference is None or other.reference is None:
            self.counts.reference_unknown += 1
        elif reading.reference != other.reference:
            self.counts.references_differ += 1
        else:
            self.counts.compared += 1
            if reading.reference not in self.counts.references:
                self.counts.references.append(reading.reference)
            return Reading(reading.at_ns, reading.te_ns - other.te_ns, reading.reference)
        return None
