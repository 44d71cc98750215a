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
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S

BLOCK_NS = 10 * NS_PER_S
_MIN_SLOPES = 3
_KEPT_RATES = 60

#: The rate is the median of so many slopes. That many are robust: a path that changes spoils two slopes in a row.
_RECENT_SLOPES = 7

#: Fewer follow an oscillator that wanders. They are used where they predicted better,
_SHORT_MEMORIES = (3, 1)

#: once so many predictions were compared with the slope that followed,
_MIN_MISSES = 10

#: and while each of the last two misses was at most so many times the usual most, which then is the wander.
_LARGEST_MISS = 1.5

#: The share of the predictions that a change of the path may have spoiled.
_SPOILED_SHARE = 0.1

#: A movement away from the rate counts once it has lasted over so many samples and so long: a longer path moves one.
_LEAST_CHANGE_SAMPLES, _LEAST_CHANGE_NS = 2, NS_PER_S
#: The newest so many samples of it show the rate.
_MOST_CHANGE_SAMPLES = 128

#: A longer gap interrupts the measurement of a slope.
_MAX_GAP_NS = 15 * BLOCK_NS


@dataclass(frozen=True, slots=True)
class Drift:
    """
    The oscillator's rate against the reference in ppb; positive = it runs fast.

    `rate_ppb` is the recent rate. `wander_ppb` is how far such a rate was from the slope of the next ten seconds,
    measurement noise included. `range_ppb` is the largest rate of about ten minutes minus the smallest, each the median
    of several slopes.
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
        self._misses: dict[int, deque[float]] = {
            memory: deque(maxlen=_KEPT_RATES) for memory in (_RECENT_SLOPES, *_SHORT_MEMORIES)
        }

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
        slopes = self._slopes
        for memory, misses in self._misses.items() if slopes else ():
            misses.append(abs(slope_ppb - self._rate_ppb(memory)))
        slopes.append(slope_ppb)
        if len(slopes) < _MIN_SLOPES:
            return False
        self._rates.append(self._rate_ppb(_RECENT_SLOPES))
        wander_ppb, memory = min(self._wanders_ppb())
        self.drift = Drift(self._rate_ppb(memory), wander_ppb, max(self._rates) - min(self._rates))
        return True

    def _wanders_ppb(self) -> Iterator[tuple[float, int]]:
        """The wander with each memory that may be used now."""
        yield _usual_most(self._misses[_RECENT_SLOPES]), _RECENT_SLOPES
        for memory in _SHORT_MEMORIES:
            misses = self._misses[memory]
            if len(misses) >= _MIN_MISSES:
                wander_ppb = _LARGEST_MISS * _usual_most(misses)
                if max(misses[-1], misses[-2]) <= wander_ppb:
                    yield wander_ppb, memory

    def _rate_ppb(self, memory: int) -> float:
        """The median of the newest so many slopes."""
        return statistics.median(list(self._slopes)[-memory:])


class RateChange:
    """
    How fast the newest samples leave the learned rate: a change that is too new to be learned.

    A slow packet, and a longer path, move one sample. So several in a row count, all in one direction, each further than
    its usual noise.
    """

    def __init__(self) -> None:
        self._run: list[tuple[float, int]] = []
        self._usual_ns = 0.0

    def add(self, moved_ns: float, usual_ns: float, gap_ns: int) -> None:
        """The newest sample is `moved_ns` from where the learned rate had it, `gap_ns` after the one before."""
        if abs(moved_ns) <= usual_ns:
            self._run.clear()
            return
        if self._run and moved_ns * self._run[-1][0] < 0:
            self._run.clear()
        self._run = [*self._run[-_MOST_CHANGE_SAMPLES:], (moved_ns, gap_ns)]
        self._usual_ns = usual_ns

    @property
    def rate_ppb(self) -> float:
        """The size of the change, with its error; 0 while none shows. It may have begun within the first sample."""
        if len(self._run) < _LEAST_CHANGE_SAMPLES or sum(gap_ns for _, gap_ns in self._run) < _LEAST_CHANGE_NS:
            return 0.0
        return max(self._average_ppb(self._run), self._average_ppb(self._run[1:]))

    def _average_ppb(self, run: list[tuple[float, int]]) -> float:
        moved_ns = abs(sum(moved_ns for moved_ns, _ in run)) + self._usual_ns
        return moved_ns * NS_PER_S / max(1, sum(gap_ns for _, gap_ns in run))


def _usual_most(misses: Collection[float]) -> float:
    """The largest miss, without the share that a change of the path may have spoiled."""
    return sorted(misses)[len(misses) - 1 - int(_SPOILED_SHARE * len(misses))]


def _middle(block: list[tuple[int, float]], rate_ppb: float) -> tuple[float, float]:
    """
    The block's middle time, and the median there. The slope is removed first, or a missing sample would shift the
    median.
    """
    middle_ns = (block[0][0] + block[-1][0]) / 2
    level_ns = statistics.median(value - rate_ppb * (time_ns - middle_ns) / NS_PER_S for time_ns, value in block)
    return middle_ns, level_ns
