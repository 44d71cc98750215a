"""
Whether lateness has a level of its own or only wanders: a likelihood ratio test that a correlation of its steps does not
mislead. Pure.

Sources: Box and Jenkins 1970 (a first-order autoregression seen with white noise), Kalman 1960 and Schweppe 1965 (its
likelihood), Wilks 1938 (the ratio).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, median

from timesyncd.jobs.arrivals import READING_GRANULARITY_NS
from timesyncd.jobs.lateness import FALSE_ALARM
from timesyncd.units import SIGMA_PER_MAD

#: The correlations of the wander from one value to the next that are tried. One above the largest is a constant for all
#: that so few steps show: a rank that is late by it is late persistently.
_CORRELATIONS = (0.3, 0.6, 0.8, 0.9, 0.95, 0.97, 0.98)

#: The shares of the wander in the variance that are tried; the rest is white noise.
_SHARES = (1.0, 0.99, 0.97, 0.9, 0.75, 0.5, 0.25, 0.1)

#: A series is tested as the means of at most so many blocks: the work grows with their number.
_MAX_BLOCKS = 150

#: So many other ranks show enough, and all together weigh no more than so many: a rank may wander more than they do.
MAX_OTHERS = 6
_OTHERS_WEIGHT = 1.5

#: Values beyond so many standard deviations count as that many: one pause is no level.
_CLIPPED_AT = 3

#: The ratio of so many values has a longer tail than the normal distribution's, by simulation: the limit is
#: 1 + this / values times as far out.
_SMALL_SAMPLE = 16


def has_level(values_ns: Sequence[float], others_ns: Sequence[Sequence[float]], tests: int) -> bool:
    """
    Whether the values are above 0 by more than they wander.

    They may be correlated from step to step, by up to 0.98, and noisy: the likelihood of the best such process around 0
    is compared with that of the best around a level. The probability that any of `tests` series without a level is
    found to have one is below FALSE_ALARM. `others_ns`: as many values each of ranks that are alike, whose wander around
    their own levels shows how this one may wander; together they weigh as much as 1.5 ranks at most.
    """
    blocks = _blocks(_clipped(values_ns))
    count = len(blocks)
    if count < 3:
        return False
    around_zero, around_level, level = _log_likelihoods(blocks, [_blocks(_clipped(each)) for each in others_ns])
    deviates = math.sqrt((count - 1) * math.expm1(max(0.0, 2 * (around_level - around_zero) / count)))
    limit = NormalDist().inv_cdf(1 - FALSE_ALARM / tests) * (1 + _SMALL_SAMPLE / count)
    return level > 0 and deviates > limit


def _clipped(values: Sequence[float]) -> list[float]:
    middle = median(values)
    spread = SIGMA_PER_MAD * median(abs(value - middle) for value in values)
    limit = max(_CLIPPED_AT * spread, READING_GRANULARITY_NS)
    return [min(max(value - middle, -limit), limit) + middle for value in values]


def _blocks(values: Sequence[float]) -> list[float]:
    size = max(1, -(-len(values) // _MAX_BLOCKS))
    return [fmean(values[at : at + size]) for at in range(0, len(values) - size + 1, size)]


def _log_likelihoods(values: Sequence[float], others: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The largest around 0, the largest around any level, and that level; up to a constant."""
    # Each is compared with the others, so one of them follows from the rest.
    part = min(_OTHERS_WEIGHT, len(others) - 1) / len(others) if others else 0.0
    around_zero = around_level = -math.inf
    level = 0.0
    for each in _filters(len(values)):
        squares, products = each.innovations(values)
        alike = part * math.fsum(each.log_likelihood(*each.innovations(other)) for other in others)
        around_zero = max(around_zero, alike + each.log_likelihood(squares, 0.0))
        constant = alike + each.log_likelihood(squares, products)
        if constant > around_level:
            around_level, level = constant, products / each.weight
    return around_zero, around_level, level


@dataclass(frozen=True, slots=True)
class _Filter:
    """
    The Kalman filter of one process with the variance 1. `weights`: the inverse variance of each innovation;
    `of_one`: the innovations of a constant 1; `weight`: the sum of their squares, weighted.
    """

    correlation: float
    gains: tuple[float, ...]
    weights: tuple[float, ...]
    of_one: tuple[float, ...]
    weight: float
    log_variance: float

    def innovations(self, values: Sequence[float]) -> tuple[float, float]:
        """The weighted sums of the squared innovations, and of their products with those of a constant."""
        expected = squares = products = 0.0
        for value, gain, weight, one in zip(values, self.gains, self.weights, self.of_one, strict=True):
            innovation = value - expected
            weighted = weight * innovation
            squares += weighted * innovation
            products += weighted * one
            expected = self.correlation * (expected + gain * innovation)
        return squares, products

    def log_likelihood(self, squares: float, products: float) -> float:
        """Of values around the level that fits best, with the variance that fits best; without products around 0."""
        count = len(self.gains)
        floor = count * READING_GRANULARITY_NS**2  # a reading is no more precise, so nothing is surer
        return -count / 2 * math.log(max(squares - products**2 / self.weight, floor)) - self.log_variance / 2


@lru_cache(maxsize=8)
def _filters(count: int) -> tuple[_Filter, ...]:
    """For series of so many values; the first is of white noise."""
    return (_filter(count, 0.0, 1.0), *(_filter(count, each, share) for each in _CORRELATIONS for share in _SHARES))


def _filter(count: int, correlation: float, share: float) -> _Filter:
    gains, variances, of_one = [], [], []
    uncertainty, expected = share, 0.0
    for _ in range(count):
        variance = uncertainty + 1 - share
        gain = uncertainty / variance
        gains.append(gain)
        variances.append(variance)
        of_one.append(1 - expected)
        expected = correlation * (expected + gain * (1 - expected))
        uncertainty = correlation**2 * (1 - gain) * uncertainty + (1 - correlation**2) * share
    weights = tuple(1 / variance for variance in variances)
    weight = math.fsum(each * one * one for each, one in zip(weights, of_one, strict=True))
    return _Filter(
        correlation, tuple(gains), weights, tuple(of_one), weight, math.fsum(math.log(each) for each in variances)
    )
