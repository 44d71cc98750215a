"""
The statistical bound, and the running statistics that the model needs. Pure.

The statistical bound contains the true offset with probability `STAT_PROBABILITY` while what was measured continues. It
adds up the mean of the offsets in the delay filter's window, with steering and drift removed; their spread times
Student's factor for a sample of that size (a prediction interval: one more measurement would lie in it); and the path's
asymmetry, which is not observable. The assumed law is that both one-way delays are drawn independently from a Gamma law
of shape 2 (two exponential waits in a row). One direction's share of both is then Beta(2, 2), whatever the measured
delay is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import NormalDist

from timesyncd.bound import STAT_PROBABILITY, Term

_NORMAL_QUANTILE = NormalDist().inv_cdf((1 + STAT_PROBABILITY) / 2)


def asymmetry_share(probability: float) -> float:
    """
    The share of the path delay that the asymmetry error stays within, with this probability.

    The share of one direction is Beta(2, 2), whose distribution function is 3t^2 - 2t^3; both tails count.
    """
    low, high = 0.0, 0.5
    for _ in range(60):
        t = (low + high) / 2
        low, high = (t, high) if 3 * t**2 - 2 * t**3 < (1 - probability) / 2 else (low, t)
    return 1 - 2 * low


ASYMMETRY_SHARE = asymmetry_share(STAT_PROBABILITY)

#: Fewer samples give no statistical bound.
_MIN_SAMPLES = 8


class Spread:
    """
    Mean and standard deviation of the newest values. The sums are of differences to the first value, so they stay small
    and exact.
    """

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

    def expire(self, number: int) -> None:
        """Remove all values up to and including this number."""
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
        """The sample standard deviation, with n - 1 in the denominator; for two values or more."""
        count = len(self._values)
        return math.sqrt(max(0.0, (self._squares - self._sum**2 / count) / (count - 1)))


def student_quantile(degrees: int) -> float:
    """
    Student's two-sided quantile for `STAT_PROBABILITY`: the Cornish-Fisher expansion, right within 0.5 % from 7 degrees
    of freedom on.
    """
    z, n = _NORMAL_QUANTILE, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def statistical_terms(offset_ns: float, spread: Spread, hard: Mapping[Term, int]) -> dict[Term, int]:
    """
    The terms of the statistical bound, in ns; empty while the samples are too few.

    `offset_ns` is the mean offset at the newest sample. The last three terms are those of the `hard` bound.
    """
    count = len(spread)
    if count < _MIN_SAMPLES:
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


#: A value of more than this many times the mean is an outlier.
OUTLIER_FACTOR = 4.0

#: A robust mean averages over about this many values,
_AVERAGED = 32

#: and is known from so many on, which all count as they are.
_MIN_COUNT = 8


class RobustMean:
    """The mean size of noise. An outlier counts as if it were only OUTLIER_FACTOR times the mean."""

    def __init__(self) -> None:
        self.value = 0.0
        self._count = 0

    @property
    def is_known(self) -> bool:
        return self._count >= _MIN_COUNT

    def add(self, size: float) -> None:
        if self.is_known:
            size = min(size, OUTLIER_FACTOR * self.value + 1)
        self._count += 1
        self.value += (size - self.value) / min(self._count, _AVERAGED)


class SlidingMaximum:
    """The largest of the values that have not expired, in constant time. Numbers rise from value to value."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, float]] = deque()

    def push(self, number: int, value: float) -> None:
        kept = self._kept
        while kept and kept[-1][1] <= value:
            kept.pop()
        kept.append((number, value))

    def expire(self, first: int) -> None:
        """Remove the values with a number below `first`."""
        kept = self._kept
        while kept and kept[0][0] < first:
            kept.popleft()

    def __bool__(self) -> bool:
        return bool(self._kept)

    @property
    def value(self) -> float:
        """Raises IndexError when there is none."""
        return self._kept[0][1]
