"""
The statistical bound: where the true offset lies with probability `STAT_PROBABILITY`, if what was seen goes on. Pure.

Mean and spread of the offsets in the delay filter's memory, steering and drift taken out; Student's factor for a sample of
that size (a prediction interval, so that one more measurement would lie in it); and the path's unknown asymmetry. Of that
nothing is ever seen, so it is a prior: the two one-way delays as drawn independently from a Gamma law of shape 2 (two waits in a row,
each exponential). One direction's share of both is then Beta(2, 2), whatever the delay that was measured.

Averages and extremes of the newest values of a sequence, in constant time for each. Pure.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import NormalDist

from timesyncd.bound import STAT_PROBABILITY, Term

_NORMAL_QUANTILE = NormalDist().inv_cdf((1 + STAT_PROBABILITY) / 2)


def asymmetry_share(probability: float) -> float:
    """The share of the path delay that the error by asymmetry stays within: Beta(2, 2) has 3t^2 - 2t^3 below t, at either end."""
    low, high = 0.0, 0.5
    for _ in range(60):
        t = (low + high) / 2
        low, high = (t, high) if 3 * t**2 - 2 * t**3 < (1 - probability) / 2 else (low, t)
    return 1 - 2 * low


ASYMMETRY_SHARE = asymmetry_share(STAT_PROBABILITY)

_FEWEST = 8


class Spread:
    """Mean and standard deviation of the newest values. Values are held relative to the first, so that sums stay small."""

    def __init__(self) -> None:
        self._values: deque[tuple[int, float]] = deque()
        self._base = 0.0
        self._sum = 0.0
        self._squares = 0.0

    def push(self, number: int, value: float) -> None:
        if not self._values:
            self._base = value
        value -= self._base
        self._values.append((number, value))
        self._sum += value
        self._squares += value * value

    def forget(self, number: int) -> None:
        """Forget all values up to this number."""
        values = self._values
        while values and values[0][0] <= number:
            _, value = values.popleft()
            self._sum -= value
            self._squares -= value * value

    def __len__(self) -> int:
        return len(self._values)

    @property
    def mean(self) -> float:
        return self._base + self._sum / len(self._values)

    @property
    def deviation(self) -> float:
        """With n - 1 in the denominator."""
        count = len(self._values)
        return math.sqrt(max(0.0, (self._squares - self._sum**2 / count) / (count - 1)))


def student_quantile(degrees: int) -> float:
    """Two-sided, for `STAT_PROBABILITY`: the Cornish-Fisher expansion, right within 0.5 % from 7 degrees of freedom on."""
    z, n = _NORMAL_QUANTILE, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def statistical_terms(offset_ns: float, spread: Spread, hard: Mapping[Term, int]) -> dict[Term, int]:
    """
    What adds up to the bound around a local clock whose mean offset is `offset_ns`, beside the terms that it shares with the hard one.
    Empty while the samples are too few.
    """
    count = len(spread)
    if count < _FEWEST:
        return {}
    return {
        Term.MEAN_OFFSET: math.ceil(abs(offset_ns)),
        Term.NOISE: math.ceil(_student(count - 1) * spread.deviation * math.sqrt(1 + 1 / count)),
        Term.ASYMMETRY: math.ceil(ASYMMETRY_SHARE * hard[Term.PATH_DELAY]),
        Term.GRANULARITY: hard[Term.GRANULARITY],
        Term.ASYMMETRY_UNCERTAINTY: hard[Term.ASYMMETRY_UNCERTAINTY],
        Term.READING_AGE: hard[Term.READING_AGE],
    }


_QUANTILES = [0.0, *(student_quantile(degrees) for degrees in range(1, 1000))]


def _student(degrees: int) -> float:
    return _QUANTILES[degrees] if degrees < len(_QUANTILES) else _NORMAL_QUANTILE


#: What is so many times the usual is no noise.
OUTLIER_FACTOR = 4.0

#: The usual is an average over some so many values,
_REMEMBERED = 32

#: the first of which count as they are.
_FIRST = 8


class RobustMean:
    """The usual size of noise: an average in which what is unusual counts as little as if it were not."""

    def __init__(self) -> None:
        self.size = 0.0
        self._count = 0

    @property
    def known(self) -> bool:
        return self._count >= _FIRST

    def take(self, size: float) -> None:
        if self.known:
            size = min(size, OUTLIER_FACTOR * self.size + 1)
        self._count += 1
        self.size += (size - self.size) / min(self._count, _REMEMBERED)


class SlidingMaximum:
    """The largest of the values whose number is not yet below `expire`'s. Numbers rise."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, float]] = deque()

    def push(self, number: int, value: float) -> None:
        kept = self._kept
        while kept and kept[-1][1] <= value:
            kept.pop()
        kept.append((number, value))

    def expire(self, first: int) -> None:
        kept = self._kept
        while kept and kept[0][0] < first:
            kept.popleft()

    def __bool__(self) -> bool:
        return bool(self._kept)

    @property
    def value(self) -> float:
        """Raises IndexError where there is none."""
        return self._kept[0][1]
