"""Jobs whose ranks are all alike, however their lateness lasts: hardly any names a rank. And those that have a straggler name it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Arrival, Sync, compare
from timesyncd.jobs.lateness import FALSE_ALARM
from timesyncd.jobs.stragglers import attribute

MS = 1_000_000
STEP_NS = 100 * MS

#: (ranks, steps, jobs of each kind): with few of both, chance is the most like a straggler.
SHAPES = (
    (2, 30, 120), (2, 60, 80), (2, 100, 40), (2, 300, 8), (2, 600, 3), (3, 30, 60), (3, 60, 40), (4, 30, 40), (4, 60, 30), (4, 300, 4),
    (8, 30, 20), (8, 60, 10), (16, 60, 4), (64, 30, 2),
)  # fmt: skip

CORRELATIONS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.97)

Deviate = Callable[[random.Random], float]


def normal(chance: random.Random) -> float:
    return chance.gauss(0, 1)


def heavy(chance: random.Random) -> float:
    """Student's distribution with three degrees of freedom."""
    return chance.gauss(0, 1) / math.sqrt(chance.gammavariate(1.5, 2) / 3)


def skewed(chance: random.Random) -> float:
    """A log-normal pause: most are short."""
    return chance.lognormvariate(0, 1)


def wandering(chance: random.Random, steps: int, correlation: float, deviate: Deviate, noise: float) -> Iterator[float]:
    """A first-order autoregression, long after its begin, and white noise on it."""
    value = 0.0
    for step in range(-round(4 / (1 - correlation)), steps):
        value = correlation * value + math.sqrt(1 - correlation**2) * deviate(chance)
        if step >= 0:
            yield value + noise * chance.gauss(0, 1)


def job(late_ns: list[list[float]]) -> list[Sync]:
    """`late_ns`: by rank and step, how late it comes to the one synchronization of the step."""
    syncs = []
    for step, times in enumerate(zip(*late_ns, strict=True)):
        at_ns = [(step + 1) * STEP_NS + round(each) for each in times]
        end_ns = max(at_ns) + MS
        arrivals = {rank: Arrival("a", 0, each, each, end_ns, None) for rank, each in enumerate(at_ns)}
        syncs.append(Sync(step, 0, Kind.ALL_REDUCE, arrivals, compare(arrivals)))
    return syncs


def named(syncs: list[Sync]) -> set[int]:
    return {each.rank for each in attribute(syncs, {}).stragglers}


#: What changes lateness from step to step, and the white noise on it.
KINDS: tuple[tuple[Deviate, float], ...] = ((normal, 0.0), (normal, 0.7), (heavy, 0.0), (skewed, 0.0))


@pytest.mark.parametrize("correlation", CORRELATIONS)
def test_equal_ranks_are_not_named(correlation: float) -> None:
    """Below one job in a thousand, and one more by chance; lateness has a standard deviation of 2 % of the step."""
    chance = random.Random(round(100 * correlation))
    accused = jobs = 0
    for ranks, steps, count in SHAPES:
        for deviate, noise in KINDS * count:
            late_ns = [
                [2 * MS * each for each in wandering(chance, steps, correlation, deviate, noise)] for _ in range(ranks)
            ]
            accused += bool(named(job(late_ns)))
            jobs += 1

    assert accused <= 1 + FALSE_ALARM * jobs


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("lasting", [1, 3, 10])
def test_hiccups_that_go_from_rank_to_rank_name_none(ranks: int, lasting: int) -> None:
    """Every so many steps the next rank is 30 % of a step late, for some steps."""
    for every in (lasting, 2 * lasting, 5 * lasting):
        for steps in (30, 60, 300):
            chance = random.Random(f"{ranks} {lasting} {every} {steps}")
            late_ns = [
                [
                    chance.gauss(0, MS) + 30 * MS * (step % every < lasting and step // every % ranks == rank)
                    for step in range(steps)
                ]
                for rank in range(ranks)
            ]

            assert named(job(late_ns)) == set()


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize(("late", "steps", "noise"), [(0.1, 60, 0.015), (0.1, 100, 0.025), (0.05, 300, 0.02)])
def test_a_straggler_is_named(ranks: int, late: float, steps: int, noise: float) -> None:
    """Late by a constant part of the step, where each rank's lateness has a standard deviation of another."""
    right = 0
    for seed in range(20):
        chance = random.Random(f"{ranks} {late} {steps} {seed}")
        late_ns = [
            [STEP_NS * (chance.gauss(0, noise) + late * (rank == ranks // 2)) for _ in range(steps)]
            for rank in range(ranks)
        ]
        right += named(job(late_ns)) == {ranks // 2}

    assert right >= 19
