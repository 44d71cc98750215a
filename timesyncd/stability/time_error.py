"""Constant and dynamic time error of a regularly sampled series, sample by sample (ITU-T G.8260, G.8273.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

_NS_PER_S = 1_000_000_000

#: The bandwidth of the measurement filter, of first order (ITU-T G.8273.2, 7.1).
FILTER_HZ = 0.1
#: The filter needs samples as often as a 1PPS measurement has them; with fewer, dTE_L and dTE_H are unknown.
FILTER_INTERVAL_NS = _NS_PER_S
#: What the filter adds to a sample is discarded for five time constants after a gap: a start's error is then below 1 %.
_SETTLING_S = 5 / (2 * math.pi * FILTER_HZ)
#: Over how long the constant time error is averaged, and dTE_H taken peak to peak (ITU-T G.8273.2, Tables 7-3 and 7-7).
BLOCK_NS = 1_000 * _NS_PER_S


class LowPass:
    """
    A first-order low-pass of 0.1 Hz, discretized so that its step response is exact.

    It begins at the first sample after a gap, and returns None until it has settled.
    """

    def __init__(self, interval_ns: int) -> None:
        interval_s = interval_ns / _NS_PER_S
        self._share = 1 - math.exp(-2 * math.pi * FILTER_HZ * interval_s)
        self._settling = math.ceil(_SETTLING_S / interval_s)
        self.gap()

    def gap(self) -> None:
        self._level: float | None = None
        self._left = self._settling

    def add(self, value_ns: int) -> float | None:
        """The low-passed time error in ns after this sample."""
        if self._level is None:
            self._level = float(value_ns)
        self._level += self._share * (value_ns - self._level)
        if self._left > 0:
            self._left -= 1
            return None
        return self._level


@dataclass(frozen=True, slots=True)
class Blocks:
    """Of `count` blocks of 1,000 s without a gap: the mean of the newest, of the one farthest from 0, and the largest peak to peak."""

    count: int
    newest_mean: float | None
    worst_mean: float | None
    largest_range: float | None


class BlockSums:
    """Means and ranges of consecutive blocks; a block that a gap interrupts is discarded."""

    def __init__(self, interval_ns: int) -> None:
        self._length = max(1, BLOCK_NS // interval_ns)
        self._done = Blocks(0, None, None, None)
        self.gap()

    def gap(self) -> None:
        self._count = 0
        self._total = 0.0
        self._lowest, self._highest = math.inf, -math.inf

    def add(self, value: float) -> None:
        self._count += 1
        self._total += value
        self._lowest = min(self._lowest, value)
        self._highest = max(self._highest, value)
        if self._count == self._length:
            self._end_block()

    def _end_block(self) -> None:
        mean, spread, done = self._total / self._count, self._highest - self._lowest, self._done
        worst = mean if done.worst_mean is None or abs(mean) > abs(done.worst_mean) else done.worst_mean
        self._done = Blocks(done.count + 1, mean, worst, max(spread, done.largest_range or 0.0))
        self.gap()

    def result(self) -> Blocks:
        return self._done
