"""
The samples that ptp4l's delay filter may still use, in the coordinates of the free oscillator, where no servo exists.
Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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


class FilterEntry(NamedTuple):
    """
    A sample in the window, `time_ns` on the measured clock; `refreshed_ns` is `DelayRefreshClock`'s time then.

    `unsteered_ns` is the forward difference as if no servo had steered since the first sample, right within
    `uncertainty_ns`. `lower_bounds` are pairs of a time and a lower bound of the free oscillator's error then, from the
    raw delay exchanges.
    """

    sample: ClockSample
    number: int
    time_ns: int
    refreshed_ns: int
    unsteered_ns: float
    uncertainty_ns: float
    lower_bounds: tuple[tuple[int, float], ...]


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

    def largest_delay_ns(self) -> int:
        return max(entry.sample.path_delay_ns for entry in self.entries)

    def newest_delay_ns(self) -> int:
        """The larger path delay of the newest two samples: the newest offset may have been computed with either."""
        entries = self.entries
        newest_ns = entries[-1].sample.path_delay_ns
        return max(newest_ns, entries[-2].sample.path_delay_ns) if len(entries) > 1 else newest_ns

    def _add_levels(self, entry: FilterEntry, drift: Drift) -> None:
        time_ns, uncertainty_ns = entry.time_ns, entry.uncertainty_ns
        level_ns = entry.unsteered_ns - drift.rate_ppb * time_ns / NS_PER_S
        self._negated_upper.push(entry.number, -level_ns - uncertainty_ns - drift.wander_ppb * time_ns / NS_PER_S)
        for exchange_ns, lower_ns in entry.lower_bounds:
            level = lower_ns + uncertainty_ns - (drift.rate_ppb - drift.wander_ppb) * exchange_ns / NS_PER_S
            self._lower_bounds.push(entry.number, level)
        self.spread.push(entry.number, level_ns)
