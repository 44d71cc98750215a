"""
Confidence intervals of a mean over steps, and of its change: a circular block bootstrap, because neighbouring steps
correlate. Pure.

It is our own, not the library `arch` (8.0.0, measured on two cores): that one brings 310 MB of packages, takes 2.6 s to
import (ours 0.05 s) and 1.6 to 1.9 times as long for 200 to 20,000 steps. Its percentile interval contained the true
mean of 200 steps (r = 0.7, 95 % nominal) in 91 % of 147 recordings, ours in 96 %, because `_middle` widens the interval
for few blocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import cbrt, ceil, isqrt, log10, sqrt
from operator import mul
from statistics import NormalDist

#: With fewer blocks there is no interval: it would be too narrow.
MIN_BLOCKS = 10

RESAMPLES = 2_000
CONFIDENCE = 0.95
_SEED = 1
#: The correlations end where this many lags in a row are not significant.
_QUIET_LAGS = 5


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step, as the mean of its ranks, in ns: its length, and its exposed waiting."""

    length_ns: float
    exposed_ns: float


@dataclass(frozen=True, slots=True)
class StepSums:
    """Sums over some steps: lengths and exposed waiting in ns, and the number of steps."""

    length_ns: float
    exposed_ns: float
    steps: int

    @property
    def overhead(self) -> float:
        return self.exposed_ns / self.length_ns

    @property
    def step_ns(self) -> float:
        return self.length_ns / self.steps


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % confidence interval; None: too few blocks for one."""

    value: float
    low: float | None
    high: float | None


def block_length(samples: Sequence[StepSample]) -> int:
    """
    The block length in steps: long enough for the correlation of step times and of overheads.

    It is at least 5 and the square root of the number of steps, because a rare pause of several steps shows in no
    correlation.
    """
    sums = sum_of(samples)
    lengths = [sample.length_ns - sums.step_ns for sample in samples]
    overheads = [sample.exposed_ns - sums.overhead * sample.length_ns for sample in samples]
    return max(5, isqrt(len(samples)), _optimal(lengths), _optimal(overheads))


def sum_of(samples: Sequence[StepSample]) -> StepSums:
    return StepSums(
        sum(sample.length_ns for sample in samples), sum(sample.exposed_ns for sample in samples), len(samples)
    )


def estimate(samples: Sequence[StepSample], value: Callable[[StepSums], float]) -> Estimate:
    """A statistic of one recording of at least one step."""
    return _estimate((samples,), value)


def change(
    before: Sequence[StepSample], after: Sequence[StepSample], value: Callable[[StepSums, StepSums], float]
) -> Estimate:
    """A statistic of two recordings of at least one step each, which are resampled independently."""
    return _estimate((before, after), value)


def _estimate(recordings: Sequence[Sequence[StepSample]], value: Callable[..., float]) -> Estimate:
    found = value(*map(sum_of, recordings))
    lengths = [block_length(samples) for samples in recordings]
    blocks = min(len(samples) // length for samples, length in zip(recordings, lengths, strict=True))
    if blocks < MIN_BLOCKS:
        return Estimate(found, None, None)
    chance = random.Random(_SEED)
    drawn = [_resampled(samples, length, chance) for samples, length in zip(recordings, lengths, strict=True)]
    return Estimate(found, *_middle([value(*sums) for sums in zip(*drawn, strict=True)], blocks))


def _optimal(deviations: Sequence[float]) -> int:
    """
    The block length that minimizes the mean squared error of the mean's variance: (2 G^2 n / D)^(1/3) with D = 4/3
    g(0)^2.

    G and g come from autocovariances under a flat-top window (Politis and White 2004, corrected by Patton, Politis and
    White 2009). The result is 1 for steps that are independent or negatively correlated.
    """
    steps = len(deviations)
    variance, *later = _autocovariances(deviations)
    spectrum, slope = variance, 0.0
    for lag, covariance in enumerate(later, 1):
        weight = 2 * min(1, 2 * (1 - lag / (len(later) + 1)))
        spectrum += weight * covariance
        slope += weight * covariance * lag
    if spectrum <= 0 or slope <= 0:
        return 1
    return ceil(cbrt(1.5 * (slope / spectrum) ** 2 * steps))


def _autocovariances(deviations: Sequence[float]) -> list[float]:
    """At lags from 0 to below twice the last significant one; only at 0 if the variance is below 1 ns^2."""
    steps = len(deviations)

    def at(lag: int) -> float:
        products: float = sum(map(mul, deviations, deviations[lag:]))
        return products / steps

    found = [at(0)]
    if found[0] < 1:
        return found
    chance = 2 * sqrt(log10(steps) / steps) * found[0]
    last, most = 1, isqrt(steps) + _QUIET_LAGS
    while (lag := len(found)) <= min(last + _QUIET_LAGS, most):
        found.append(at(lag))
        if abs(found[lag]) > chance:
            last = lag
    found += [at(lag) for lag in range(len(found), min(2 * last, most + 1))]
    return found[: 2 * last]


def _resampled(samples: Sequence[StepSample], length: int, chance: random.Random) -> list[StepSums]:
    """
    RESAMPLES sums over whole blocks that begin at any step; the first step follows the last (Politis and Romano 1992).
    """
    blocks = len(samples) // length
    ring = [*samples, *samples[:length]]
    lengths = [0, *accumulate(sample.length_ns for sample in ring)]
    exposed = [0, *accumulate(sample.exposed_ns for sample in ring)]
    drawn = []
    for _ in range(RESAMPLES):
        starts = [chance.randrange(len(samples)) for _ in range(blocks)]
        drawn.append(
            StepSums(
                sum(lengths[start + length] - lengths[start] for start in starts),
                sum(exposed[start + length] - exposed[start] for start in starts),
                blocks * length,
            )
        )
    return drawn


def _middle(values: list[float], blocks: int) -> tuple[float, float]:
    """
    The percentile interval, widened for few blocks: their variance has blocks - 1 degrees of freedom (Student), and
    lacks the correlation across their ends, G / (g(0) length) of it (Kuensch 1989), which is sqrt(2 / (3 blocks)) at
    the optimal length.
    """
    values.sort()
    normal, degrees = NormalDist(), blocks - 1
    student = 1 + 1.21 / degrees + 1.44 / degrees**2 + 1.3 / degrees**3
    lacking = sqrt(blocks / degrees / (1 - sqrt(2 / (3 * blocks))))
    outside = normal.cdf(normal.inv_cdf((1 - CONFIDENCE) / 2) * student * lacking)
    at = int(outside * len(values))
    return values[at], values[-1 - at]
