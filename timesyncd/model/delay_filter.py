"""The samples that the delay filter may remember, in the coordinates of the free oscillator: there no servo exists. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S
from timesyncd.model.oscillator import Drift
from timesyncd.model.statistics import RobustMean, SlidingMaximum, Spread
from timesyncd.sample import ClockSample

#: A standstill of the path delay that is so many times the usual one is no chance.
_STANDSTILLS = 6

#: Forward differences that are so noisy come with delays that change: their median moves by a tenth of it, and is told in ns.
_LIVELY_NS = 10.0


class FilterEntry(NamedTuple):
    """
    A sample of the memory at `time_ns` on the measured clock; `renewed_ns` is `DelayRefreshClock`'s time then; `unsteered_ns` is its forward difference, as if nothing had steered since
    the first sample. So are the `floors` of the truth that its raw exchanges give, each with its time.
    """

    sample: ClockSample
    number: int
    time_ns: int
    renewed_ns: int
    unsteered_ns: float
    doubt_ns: float
    floors: tuple[tuple[int, float], ...]


class DelayRefreshClock:
    """
    Time in which the path delay was measured anew, as far as that shows. A delay that used to change and stands still is not measured: then
    no time passes for who waits until the delay filter has forgotten something.
    """

    def __init__(self) -> None:
        self._delay_ns: int | None = None
        self._changed_ns = 0
        self._at_change_ns = 0
        self._usual = RobustMean()

    def at(self, time_ns: int, delay_ns: int, noise_ns: float) -> int:
        """The time so far, with a sample of this path delay now. Without noise in the samples the delay has no reason to change."""
        still_ns = time_ns - self._changed_ns
        lively = self._usual.known and noise_ns >= _LIVELY_NS
        passed_ns = 0 if lively and still_ns > _STANDSTILLS * self._usual.size else still_ns
        if delay_ns != self._delay_ns:
            if self._delay_ns is not None:
                self._usual.take(still_ns)
            self._at_change_ns += passed_ns
            self._delay_ns, self._changed_ns, passed_ns = delay_ns, time_ns, 0
        return self._at_change_ns + passed_ns


class DelayFilterWindow:
    """
    What each sample says once the oscillator's rate is taken out, too. Another rate means all of it anew; without one nothing is kept but
    the samples.
    """

    def __init__(self) -> None:
        self.seen: deque[FilterEntry] = deque()
        self.spread = Spread()
        self._lowest = SlidingMaximum()
        self._floors = SlidingMaximum()

    def push(self, seen: FilterEntry, drift: Drift | None, learnt: bool) -> None:
        """`learnt`: the drift is another one than at the last sample."""
        self.seen.append(seen)
        if drift is None:
            return
        if not learnt:
            self._remember(seen, drift)
            return
        self.spread, self._lowest, self._floors = Spread(), SlidingMaximum(), SlidingMaximum()
        for each in self.seen:
            self._remember(each, drift)

    def forget(self, passed: Callable[[FilterEntry], bool]) -> int:
        """Let go of what has passed; gives the number of the oldest that is left."""
        seen = self.seen
        number = seen[0].number
        while passed(seen[0]):
            self.spread.forget(seen.popleft().number)
        if (first := seen[0].number) != number:
            self._lowest.expire(first)
            self._floors.expire(first)
        return first

    def lowest_ns(self, drift: Drift, below_ns: float) -> float:
        """
        What the free oscillator's error is no less than at the newest sample. Half of the exchanges in the filter were no longer than the
        delay told, so one of the Syncs in its memory bounds from below, less `below_ns`; and so does every exchange that was seen raw:
        its way back took no less than nothing.
        """
        level_ns = -self._lowest.value - below_ns
        if self._floors:
            level_ns = max(level_ns, self._floors.value)
        return level_ns + (drift.rate_ppb - drift.wander_ppb) * self.seen[-1].time_ns / NS_PER_S

    def mean_ns(self, drift: Drift) -> float:
        """The mean forward difference of the memory, brought to the newest sample."""
        return self.spread.mean + drift.rate_ppb * self.seen[-1].time_ns / NS_PER_S

    def range_ns(self) -> int:
        """How far the offsets of the memory are apart."""
        offsets = [seen.sample.offset_ns for seen in self.seen]
        return max(offsets) - min(offsets)

    def longest_delay_ns(self) -> int:
        return max(seen.sample.path_delay_ns for seen in self.seen)

    def newest_delay_ns(self) -> int:
        """Of the newest two: the offset may have been computed with either."""
        seen = self.seen
        newest_ns = seen[-1].sample.path_delay_ns
        return max(newest_ns, seen[-2].sample.path_delay_ns) if len(seen) > 1 else newest_ns

    def _remember(self, seen: FilterEntry, drift: Drift) -> None:
        time_ns = seen.time_ns
        level_ns = seen.unsteered_ns - drift.rate_ppb * time_ns / NS_PER_S
        self._lowest.push(seen.number, -level_ns - seen.doubt_ns - drift.wander_ppb * time_ns / NS_PER_S)
        for floor_time_ns, floor_ns in seen.floors:
            level = floor_ns + seen.doubt_ns - (drift.rate_ppb - drift.wander_ppb) * floor_time_ns / NS_PER_S
            self._floors.push(seen.number, level)
        self.spread.push(seen.number, level_ns)
