"""How sure a mean over steps is, and a change of it: a block bootstrap, because neighbouring steps resemble each other. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import cbrt, ceil, isqrt, log10, sqrt
from operator import mul
from statistics import NormalDist

#: With fewer blocks than these no interval is told: it would be narrower than what is known.
MIN_BLOCKS = 10

RESAMPLES = 2_000
CONFIDENCE = 0.95
_SEED = 1
#: So many correlations in a row that are no more than chance end those that are.
_QUIET_LAGS = 5


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step, the mean of its ranks, in nanoseconds: how long it took, and how much of it was waiting."""

    length_ns: float
    exposed_ns: float


@dataclass(frozen=True, slots=True)
class StepSums:
    """Of some steps, drawn or all: lengths, waiting, and how many."""

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
    """A value with its confidence interval of 95 %; None: too few blocks to tell one."""

    value: float
    low: float | None
    high: float | None


def block_length(samples: Sequence[StepSample]) -> int:
    """
    Long enough for the time of a step and for the overhead, each by how long its deviations resemble each other. At least 5 and
    the square root of the steps, since a rare pause, which no correlation shows, lasts for several.
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
    """A statistic of one recording (one step or more)."""
    return _estimate((samples,), value)


def change(
    before: Sequence[StepSample], after: Sequence[StepSample], value: Callable[[StepSums, StepSums], float]
) -> Estimate:
    """A statistic of two recordings (one step or more each), which are drawn independently."""
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
    The block length with the least squared error of the mean's variance: (2 G^2 n / D)^(1/3) with D = 4/3 g(0)^2, from
    autocovariances under a flat-top window (Politis and White 2004, corrected by Patton, Politis and White 2009). Steps that are
    independent, or make up for one another, need no length.
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
    """At lags from 0 to below twice the last that is more than chance; where no two differ by a nanosecond, at 0 alone."""
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
    """As many steps again, in whole blocks that begin anywhere: the first step follows the last (Politis and Romano 1992)."""
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
    The percentile interval, further out for few blocks: their variance has blocks - 1 degrees of freedom (Student), and lacks
    what crosses their ends: G / (g(0) length) of it (Kuensch 1989), which for the optimal length is sqrt(2 / (3 blocks)).
    """
    values.sort()
    normal, degrees = NormalDist(), blocks - 1
    student = 1 + 1.21 / degrees + 1.44 / degrees**2 + 1.3 / degrees**3
    lacking = sqrt(blocks / degrees / (1 - sqrt(2 / (3 * blocks))))
    outside = normal.cdf(normal.inv_cdf((1 - CONFIDENCE) / 2) * student * lacking)
    at = int(outside * len(values))
    return values[at], values[-1 - at]
