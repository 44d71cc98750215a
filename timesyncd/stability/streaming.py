"""
ADEV, TDEV and MTIE of a regularly sampled time error, sample by sample, in bounded memory.

A sample costs constant time for each observation interval. All sums are exact integers, so the order of samples rounds nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

#: A prefix sum beyond this restarts the windows, as a gap does: the ring holds 64-bit integers.
_LARGEST_SUM = 1 << 62
#: How many entries of a monotonic queue may be out of date before they are deleted.
_STALE = 4_096


@dataclass(frozen=True, slots=True)
class IntervalSums:
    """
    What one observation interval of `interval_samples` samples yields, in the unit of the samples.

    `adev_terms`, `tdev_terms` and `windows` count the overlapping terms; with none, the quantity is unknown.
    """

    interval_samples: int
    adev_terms: int
    adev_squares: int
    tdev_terms: int
    tdev_squares: int
    windows: int
    largest_range: int

    def adev(self, interval: float) -> float | None:
        """
        The overlapping Allan deviation, dimensionless (NIST SP 1065, equation 11). `interval` is the observation interval in the
        unit of the samples.
        """
        if not self.adev_terms:
            return None
        return math.sqrt(self.adev_squares / (2 * self.adev_terms)) / interval

    @property
    def tdev(self) -> float | None:
        """The time deviation in the unit of the samples (ITU-T G.810, II.3; NIST SP 1065, equation 15)."""
        if not self.tdev_terms:
            return None
        return math.sqrt(self.tdev_squares / (6 * self.tdev_terms)) / self.interval_samples

    @property
    def mtie(self) -> int | None:
        """The largest peak-to-peak time error in any window of the interval, in the unit of the samples (ITU-T G.810, II.5)."""
        return self.largest_range if self.windows else None


class _Extremes:
    """
    The maximum of the newest values for several window lengths at once.

    One queue of decreasing values serves all windows: the maximum of a window is the first entry inside it.
    """

    def __init__(self, windows: int) -> None:
        self._at: list[int] = []
        self._values: list[int] = []
        self._first = [0] * windows

    def maxima(self, index: int, value: int, intervals: list[int]) -> list[int]:
        """Add the `index`-th value; the maximum of the newest m + 1 values for each m of `intervals` that is at most `index`."""
        at, values, first = self._at, self._values, self._first
        while values and values[-1] <= value:
            values.pop()
            at.pop()
        values.append(value)
        at.append(index)
        last = len(values) - 1
        found = []
        for number, interval in enumerate(intervals):
            if interval > index:
                break
            place = min(first[number], last)
            oldest = index - interval
            while at[place] < oldest:
                place += 1
            first[number] = place
            found.append(values[place])
        if first[-1] > _STALE:
            self._delete_stale()
        return found

    def _delete_stale(self) -> None:
        """The longest window is the last one, so no window needs what precedes its first entry."""
        stale = self._first[-1]
        del self._at[:stale], self._values[:stale]
        self._first = [max(0, place - stale) for place in self._first]


class StabilitySums:
    """The sums of a series of integers for the observation intervals `intervals`, each a number of samples of 1 or more."""

    def __init__(self, intervals: Iterable[int]) -> None:
        self._intervals = sorted(set(intervals))
        if not self._intervals or self._intervals[0] < 1:
            raise ValueError(f"an observation interval is 1 sample or more, and one is needed: {self._intervals}")
        self._size = 3 * self._intervals[-1] + 1
        self._values = array("q", bytes(8 * self._size))
        self._sums = array("q", bytes(8 * self._size))
        count = len(self._intervals)
        self._adev_squares, self._adev_terms = [0] * count, [0] * count
        self._tdev_squares, self._tdev_terms = [0] * count, [0] * count
        self._ranges, self._windows = [0] * count, [0] * count
        self._restart()

    def _restart(self) -> None:
        self._run = 0
        self._base = 0
        self._sums[0] = 0
        self._highest = _Extremes(len(self._intervals))
        self._lowest = _Extremes(len(self._intervals))

    def gap(self) -> None:
        """The next sample does not follow the last one: every window restarts, and what was summed is kept."""
        self._count_terms(self._run, self._adev_terms, self._tdev_terms, self._windows)
        self._restart()

    def add(self, value: int) -> None:
        """The next sample, one sampling interval after the last one unless `gap` was called in between."""
        run = self._run
        if run == 0:
            self._base = value
        value -= self._base  # none of the quantities depends on a constant
        size = self._size
        total = self._sums[run % size] + value
        if not -_LARGEST_SUM < total < _LARGEST_SUM:
            self.gap()
            self.add(value + self._base)
            return
        self._values[run % size] = value
        self._sums[(run + 1) % size] = total
        self._add_squares(run, value, total)
        self._add_ranges(run, value)
        self._run = run + 1

    def _add_squares(self, run: int, value: int, total: int) -> None:
        size, values, sums = self._size, self._values, self._sums
        for number, interval in enumerate(self._intervals):
            if run < 2 * interval:
                return
            second = value - 2 * values[(run - interval) % size] + values[(run - 2 * interval) % size]
            self._adev_squares[number] += second * second
            start = run + 1 - 3 * interval
            if start >= 0:
                third = (
                    total
                    - 3 * (sums[(start + 2 * interval) % size] - sums[(start + interval) % size])
                    - sums[start % size]
                )
                self._tdev_squares[number] += third * third

    def _add_ranges(self, run: int, value: int) -> None:
        highest = self._highest.maxima(run, value, self._intervals)
        lowest = self._lowest.maxima(run, -value, self._intervals)
        ranges = self._ranges
        for number, (high, low) in enumerate(zip(highest, lowest, strict=True)):
            ranges[number] = max(ranges[number], high + low)

    def _count_terms(self, run: int, adev_terms: list[int], tdev_terms: list[int], windows: list[int]) -> None:
        """Add the overlapping terms of `run` consecutive samples."""
        for number, interval in enumerate(self._intervals):
            adev_terms[number] += max(0, run - 2 * interval)
            tdev_terms[number] += max(0, run - 3 * interval + 1)
            windows[number] += max(0, run - interval)

    def results(self) -> tuple[IntervalSums, ...]:
        """By interval, the shortest first."""
        adev_terms, tdev_terms, windows = list(self._adev_terms), list(self._tdev_terms), list(self._windows)
        self._count_terms(self._run, adev_terms, tdev_terms, windows)
        columns = (
            self._intervals, adev_terms, self._adev_squares, tdev_terms, self._tdev_squares, windows, self._ranges,
        )  # fmt: skip
        return tuple(IntervalSums(*row) for row in zip(*columns, strict=True))
