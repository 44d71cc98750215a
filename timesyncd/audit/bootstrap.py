"""How sure a mean over steps is, and a change of it: a block bootstrap, because neighbouring steps resemble each other. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt

#: With fewer blocks than these no interval is told: it would be narrower than what is known.
MIN_BLOCKS = 10

RESAMPLES = 2_000
CONFIDENCE = 0.95
_SEED = 1


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step, the mean of its ranks, in nanoseconds: how long it took, and how much of it was waiting."""

    length_ns: float
    exposed_ns: float


@dataclass(frozen=True, slots=True)
class Sums:
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


def block_length(steps: int) -> int:
    """The square root, so that blocks and their number grow alike; at least 5, since a pause lasts for several steps."""
    return max(5, isqrt(steps))


def is_enough(steps: int) -> bool:
    return steps // block_length(steps) >= MIN_BLOCKS


def all_of(samples: Sequence[StepSample]) -> Sums:
    return Sums(sum(sample.length_ns for sample in samples), sum(sample.exposed_ns for sample in samples), len(samples))


def estimate(samples: Sequence[StepSample], value: Callable[[Sums], float]) -> Estimate:
    """A statistic of one recording (one step or more)."""
    found = value(all_of(samples))
    if not is_enough(len(samples)):
        return Estimate(found, None, None)
    return Estimate(found, *_middle([value(sums) for sums in _resampled(samples, random.Random(_SEED))]))


def change(before: Sequence[StepSample], after: Sequence[StepSample], value: Callable[[Sums, Sums], float]) -> Estimate:
    """A statistic of two recordings (one step or more each), which are drawn independently."""
    found = value(all_of(before), all_of(after))
    if not (is_enough(len(before)) and is_enough(len(after))):
        return Estimate(found, None, None)
    chance = random.Random(_SEED)
    pairs = zip(_resampled(before, chance), _resampled(after, chance), strict=True)
    return Estimate(found, *_middle([value(*pair) for pair in pairs]))


def _resampled(samples: Sequence[StepSample], chance: random.Random) -> list[Sums]:
    """As many steps again, drawn in whole blocks that may begin anywhere (Kuensch's moving blocks)."""
    length = block_length(len(samples))
    blocks = len(samples) // length
    lengths = [0, *accumulate(sample.length_ns for sample in samples)]
    exposed = [0, *accumulate(sample.exposed_ns for sample in samples)]
    drawn = []
    for _ in range(RESAMPLES):
        starts = [chance.randrange(len(samples) - length + 1) for _ in range(blocks)]
        drawn.append(
            Sums(
                sum(lengths[start + length] - lengths[start] for start in starts),
                sum(exposed[start + length] - exposed[start] for start in starts),
                blocks * length,
            )
        )
    return drawn


def _middle(values: list[float]) -> tuple[float, float]:
    """The percentile interval."""
    values.sort()
    outside = (1 - CONFIDENCE) / 2
    return values[int(outside * len(values))], values[int((1 - outside) * len(values)) - 1]
