"""
The samples that ptp4l's delay filter may still use, in the coordinates of the free oscillator, where no servo exists.
Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S
from timesyncd.model.oscillator import Drift
from timesyncd.model.statistics import RobustMean, SlidingMaximum, Spread
from timesyncd.sample import ClockSample

#: A path delay counts as frozen after this many times its usual time between two changes.
_FROZEN_FACTOR = 6

#: With noisier forward differences than this, the path delay must change too: ptp4l reports a median in whole ns of
#: delays with that noise.
_NOISY_NS = 10.0

#: A slope is the median of the slopes from so many samples to as many, so that one slow packet does not show.
_SLOPE_SAMPLES = 3

#: A rate that changed lately shows in the newest part of the window: in all of it, in this share of it, and so on.
_PARTS = 4

#: The slope of a shorter part is that of a queue.
_LEAST_SLOPE_NS = NS_PER_S


class FilterEntry(NamedTuple):
    """
    A sample in the window, `time_ns` on the measured clock; `refreshed_ns` is `DelayRefreshClock`'s time then.

    `unsteered_ns` is the forward difference as if no servo had steered since the first sample, right within
    `uncertainty_ns`, which grows from entry to entry, and within `error_ns`, which is this entry's own: that of a PHC's
    reading. `lower_bounds` are pairs of a time and a lower bound of the free oscillator's error then, from the
    raw delay exchanges.
    """

    sample: ClockSample
    number: int
    time_ns: int
    refreshed_ns: int
    unsteered_ns: float
    uncertainty_ns: float
    lower_bounds: tuple[tuple[int, float], ...]
    error_ns: int = 0


@dataclass(frozen=True, slots=True)
class DelayGap:
    """
    No Sync came for `length_ns` before the entry `after`. Meanwhile the free oscillator moved by `beyond_ns` more than by
    its learned rate, of which it was assumed to stay within `assumed_ppb`. `delay_ns` is the path delay before.
    """

    after: FilterEntry
    length_ns: int
    beyond_ns: float
    assumed_ppb: float
    delay_ns: int


class DelayRefreshClock:
    """
    Counts the time in which the path delay was measured. A frozen path delay means it is no longer being measured; the
    window's clock stops, so old filter entries do not expire.
    """

    def __init__(self) -> None:
        self._delay_ns: int | None = None
        self._changed_ns = 0
        self._total_at_change_ns = 0
        self._usual_ns = RobustMean()

    def advance(self, time_ns: int, delay_ns: int, noise_ns: float) -> int:
        """
        The time counted up to a sample with this path delay.

        `noise_ns` is the usual noise of the samples: without noise the delay has no reason to change, and is never
        frozen.
        """
        unchanged_ns = time_ns - self._changed_ns
        must_change = self._usual_ns.is_known and noise_ns >= _NOISY_NS
        counted_ns = 0 if must_change and unchanged_ns > _FROZEN_FACTOR * self._usual_ns.value else unchanged_ns
        if delay_ns != self._delay_ns:
            if self._delay_ns is not None:
                self._usual_ns.add(unchanged_ns)
            self._total_at_change_ns += counted_ns
            self._delay_ns, self._changed_ns, counted_ns = delay_ns, time_ns, 0
        return self._total_at_change_ns + counted_ns


class DelayFilterWindow:
    """
    The window's samples with the oscillator's rate removed. A new rate means that every entry is computed again;
    without a rate the window holds the samples alone.
    """

    def __init__(self) -> None:
        self.entries: deque[FilterEntry] = deque()
        self.spread = Spread()
        self._negated_upper = SlidingMaximum()
        self._lower_bounds = SlidingMaximum()

    def push(self, entry: FilterEntry, drift: Drift | None, is_new_drift: bool) -> None:
        """Append the newest entry; `is_new_drift`: the drift differs from that of the last call."""
        self.entries.append(entry)
        if drift is None:
            return
        if not is_new_drift:
            self._add_levels(entry, drift)
            return
        self.spread, self._negated_upper, self._lower_bounds = Spread(), SlidingMaximum(), SlidingMaximum()
        for each in self.entries:
            self._add_levels(each, drift)

    def expire(self, has_expired: Callable[[FilterEntry], bool]) -> int:
        """
        Drop the oldest entries that have expired; returns the number of the oldest one left. The newest never expires.
        """
        entries = self.entries
        number = entries[0].number
        while has_expired(entries[0]):
            self.spread.expire(entries.popleft().number)
        if (first := entries[0].number) != number:
            self._negated_upper.expire(first)
            self._lower_bounds.expire(first)
        return first

    def lower_bound_ns(self, drift: Drift, below_ns: float) -> float:
        """
        A lower bound of the free oscillator's error at the newest sample.

        Half of the exchanges in ptp4l's filter took no longer than the reported delay, so at least one of the window's
        Syncs bounds the error from below, less `below_ns`. Each raw exchange does too, since its reverse delay was not
        negative.
        """
        level_ns = -self._negated_upper.value - below_ns
        if self._lower_bounds:
            level_ns = max(level_ns, self._lower_bounds.value)
        return level_ns + (drift.rate_ppb - drift.wander_ppb) * self.entries[-1].time_ns / NS_PER_S

    def mean_ns(self, drift: Drift) -> float:
        """The mean forward difference of the window, extrapolated to the newest sample."""
        return self.spread.mean + drift.rate_ppb * self.entries[-1].time_ns / NS_PER_S

    def offset_range_ns(self) -> int:
        """The largest offset of the window minus the smallest."""
        offsets = [entry.sample.offset_ns for entry in self.entries]
        return max(offsets) - min(offsets)

    def usual_movement_ns(self) -> float:
        """The median movement of the offset from one sample to the next."""
        offsets = [entry.sample.offset_ns for entry in self.entries]
        return median(abs(new - old) for old, new in pairwise(offsets)) if len(offsets) > 1 else 0.0

    def largest_delay_ns(self) -> int:
        return max(entry.sample.path_delay_ns for entry in self.entries)

    def smallest_delay_ns(self) -> int:
        return min(entry.sample.path_delay_ns for entry in self.entries)

    def largest_error_ns(self) -> int:
        return max(entry.error_ns for entry in self.entries)

    def slope_ppb(self) -> tuple[float, float]:
        """
        The rate of the free oscillator by the oldest and the newest samples, and its error: one path delay may hide in
        it. Both are 0 while the samples are too few.
        """
        slope_ppb, elapsed_ns = self._newest_slope_ppb(len(self.entries))
        if elapsed_ns <= 0:
            return 0.0, 0.0
        return slope_ppb, self._slope_error_ns() * NS_PER_S / elapsed_ns

    def _newest_slope_ppb(self, count: int) -> tuple[float, int]:
        """The slope of the newest `count` samples, and the time between its ends: 0 where they are too few."""
        entries = self.entries
        if count < 2 * _SLOPE_SAMPLES:
            return 0.0, 0
        slopes_ppb = [_slope_ppb(entries[at - count], entries[at - _SLOPE_SAMPLES]) for at in range(_SLOPE_SAMPLES)]
        return sorted(slopes_ppb)[_SLOPE_SAMPLES // 2], entries[-_SLOPE_SAMPLES].time_ns - entries[-count].time_ns

    def departure_ppb(self, rate_ppb: float, least_ppb: float = 0.0) -> float:
        """
        How far the free oscillator's rate is from `rate_ppb`, and its error, where the newest samples show by more than
        its error that it is further than `least_ppb`: those of the newest part of the window, or of all of it. Else 0.
        """
        count, largest_ppb = len(self.entries), 0.0
        while count >= 2 * _SLOPE_SAMPLES:
            slope_ppb, elapsed_ns = self._newest_slope_ppb(count)
            if elapsed_ns < _LEAST_SLOPE_NS:
                break
            apart_ppb = abs(slope_ppb - rate_ppb)
            if (apart_ppb - least_ppb) * elapsed_ns > self.entries[-1].sample.path_delay_ns * NS_PER_S:
                error_ppb = self._slope_error_ns() * NS_PER_S / elapsed_ns
                if apart_ppb - error_ppb > least_ppb:
                    largest_ppb = max(largest_ppb, apart_ppb + error_ppb)
            is_last = count == 2 * _SLOPE_SAMPLES
            count = 0 if is_last else max(count // _PARTS, 2 * _SLOPE_SAMPLES)
        return largest_ppb

    def _slope_error_ns(self) -> int:
        """How far the ends of a slope may be apart that is none: one path delay may hide in it."""
        return self.largest_delay_ns() + 2 * self.largest_error_ns()

    def newest_delay_ns(self) -> int:
        """The larger path delay of the newest two samples: the newest offset may have been computed with either."""
        entries = self.entries
        newest_ns = entries[-1].sample.path_delay_ns
        return max(newest_ns, entries[-2].sample.path_delay_ns) if len(entries) > 1 else newest_ns

    def _add_levels(self, entry: FilterEntry, drift: Drift) -> None:
        time_ns, uncertainty_ns = entry.time_ns, entry.uncertainty_ns
        level_ns = entry.unsteered_ns - drift.rate_ppb * time_ns / NS_PER_S
        lowest_ns = level_ns - entry.error_ns + uncertainty_ns + drift.wander_ppb * time_ns / NS_PER_S
        self._negated_upper.push(entry.number, -lowest_ns)
        for exchange_ns, lower_ns in entry.lower_bounds:
            level = lower_ns + uncertainty_ns - (drift.rate_ppb - drift.wander_ppb) * exchange_ns / NS_PER_S
            self._lower_bounds.push(entry.number, level)
        self.spread.push(entry.number, level_ns)


def _slope_ppb(old: FilterEntry, new: FilterEntry) -> float:
    elapsed_ns = new.time_ns - old.time_ns
    return (new.unsteered_ns - old.unsteered_ns) * NS_PER_S / elapsed_ns if elapsed_ns else 0.0
