"""
A free oscillator's rate against the reference, and its stability, learned from measurements. Pure; docs/error-bound.md
derives it.

The input is the forward difference without steering, y + f: y is the error that the clock would have if nothing had
steered it, f is the forward delay. The median over a block of ten seconds suppresses the noise of f. The slope from one
block to the next is the oscillator's rate, whatever a servo did in between.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S

BLOCK_NS = 10 * NS_PER_S
_MIN_SLOPES = 3
_RECENT_SLOPES = 7
_KEPT_RATES = 60

#: The share of the predictions that a change of the path may have spoiled.
_SPOILED_SHARE = 0.1

#: A longer gap interrupts the measurement of a slope.
_MAX_GAP_NS = 15 * BLOCK_NS


@dataclass(frozen=True, slots=True)
class Drift:
    """
    The oscillator's rate against the reference in ppb; positive = it runs fast.

    `rate_ppb` is the recent rate. `wander_ppb` is how far such a rate was from the slope of the next ten seconds,
    measurement noise included. `range_ppb` is the largest recent rate of about ten minutes minus the smallest.
    """

    rate_ppb: float
    wander_ppb: float
    range_ppb: float


class Oscillator:
    """Learns the drift of one oscillator; `drift` is None until enough slopes were measured."""

    def __init__(self) -> None:
        self.drift: Drift | None = None
        self._block: list[tuple[int, float]] = []
        self._last: tuple[float, float] | None = None
        self._slopes: deque[float] = deque(maxlen=_RECENT_SLOPES)
        self._rates: deque[float] = deque(maxlen=_KEPT_RATES)
        self._misses: deque[float] = deque(maxlen=_KEPT_RATES)

    def add(self, time_ns: int, unsteered_ns: float, guess_ppb: float) -> bool:
        """
        Add a forward difference without steering at `time_ns` of the measured clock; returns whether `drift` is new.

        `guess_ppb` is used as the rate until one is learned: it only needs to be near.
        """
        block = self._block
        if block and not 0 <= time_ns - block[-1][0] <= _MAX_GAP_NS:
            self.interrupt()
            block = self._block
        block.append((time_ns, unsteered_ns))
        if time_ns - block[0][0] < BLOCK_NS:
            return False
        self._block = [block[-1]]
        rate_ppb = self.drift.rate_ppb if self.drift else guess_ppb
        middle = _middle(block, rate_ppb)
        last, self._last = self._last, middle
        if last is None:
            return False
        return self._learn((middle[1] - last[1]) / (middle[0] - last[0]) * NS_PER_S)

    def interrupt(self) -> None:
        """
        The next sample is not comparable with the last one: after a step, a new parent, a long gap. The learned drift
        stays.
        """
        self._block = []
        self._last = None

    def _learn(self, slope_ppb: float) -> bool:
        slopes, misses = self._slopes, self._misses
        if slopes:
            misses.append(abs(slope_ppb - statistics.median(slopes)))
        slopes.append(slope_ppb)
        if len(slopes) < _MIN_SLOPES:
            return False
        rate_ppb = statistics.median(slopes)
        self._rates.append(rate_ppb)
        wander_ppb = sorted(misses)[len(misses) - 1 - int(_SPOILED_SHARE * len(misses))]
        self.drift = Drift(rate_ppb, wander_ppb, max(self._rates) - min(self._rates))
        return True


def _middle(block: list[tuple[int, float]], rate_ppb: float) -> tuple[float, float]:
    """
    The block's middle time, and the median there. The slope is removed first, or a missing sample would shift the
    median.
    """
    middle_ns = (block[0][0] + block[-1][0]) / 2
    level_ns = statistics.median(value - rate_ppb * (time_ns - middle_ns) / NS_PER_S for time_ns, value in block)
    return middle_ns, level_ns
