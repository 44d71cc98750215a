"""
A free oscillator's rate against the reference, and how steady it is, learnt from what was measured. Pure; docs/error-bound.md derives it.

What is fed is the forward difference without steering, y + f: y is the error that the clock would have if nothing had steered it,
f the forward delay. Over ten seconds the median of it hides the noise of f; the slope from one ten seconds to the next is the
oscillator's rate, whatever a servo did meanwhile.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S

BLOCK_NS = 10 * NS_PER_S
_FEWEST_SLOPES = 3
_RECENT = 7
_REMEMBERED = 60

#: The share of the forecasts that a path change may have spoilt.
_SPOILT = 0.1

#: The rate of the recent past says nothing across a longer gap.
_LONGEST_GAP_NS = 15 * BLOCK_NS


@dataclass(frozen=True, slots=True)
class Drift:
    """
    The oscillator's rate against the reference in ppb, positive = it runs fast: `rate_ppb` of late; `wander_ppb`, how far off such
    a rate was for the next ten seconds, measurement noise included; `range_ppb`, how far it moved within some ten minutes.
    """

    rate_ppb: float
    wander_ppb: float
    range_ppb: float


class Oscillator:
    """Learns; `drift` is None until there is evidence."""

    def __init__(self) -> None:
        self.drift: Drift | None = None
        self._block: list[tuple[int, float]] = []
        self._last: tuple[float, float] | None = None
        self._slopes: deque[float] = deque(maxlen=_RECENT)
        self._rates: deque[float] = deque(maxlen=_REMEMBERED)
        self._misses: deque[float] = deque(maxlen=_REMEMBERED)

    def take(self, time_ns: int, unsteered_ns: float, guess_ppb: float) -> bool:
        """Whether `drift` is new. `guess_ppb` stands for the rate while none is learnt: it only has to be near."""
        block = self._block
        if block and not 0 <= time_ns - block[-1][0] <= _LONGEST_GAP_NS:
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
        """What comes next is not comparable with what came: a step, another parent, a long gap. What was learnt stays."""
        self._block = []
        self._last = None

    def _learn(self, slope_ppb: float) -> bool:
        slopes, misses = self._slopes, self._misses
        if slopes:
            misses.append(abs(slope_ppb - statistics.median(slopes)))
        slopes.append(slope_ppb)
        if len(slopes) < _FEWEST_SLOPES:
            return False
        rate_ppb = statistics.median(slopes)
        self._rates.append(rate_ppb)
        wander_ppb = sorted(misses)[len(misses) - 1 - int(_SPOILT * len(misses))]
        self.drift = Drift(rate_ppb, wander_ppb, max(self._rates) - min(self._rates))
        return True


def _middle(block: list[tuple[int, float]], rate_ppb: float) -> tuple[float, float]:
    """The block's middle, and the median there. Without its slope taken out, a missing sample would move the median."""
    middle_ns = (block[0][0] + block[-1][0]) / 2
    level_ns = statistics.median(value - rate_ppb * (time_ns - middle_ns) / NS_PER_S for time_ns, value in block)
    return middle_ns, level_ns
