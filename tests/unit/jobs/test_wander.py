"""Whether lateness is a level or wander."""

from __future__ import annotations

import math
import random

from timesyncd.jobs.wander import has_level

MS = 1_000_000


def wander(seed: int, steps: int, correlation: float, noise_ns: float = 0.0) -> list[float]:
    """A first-order autoregression with a standard deviation of 1 ms, from its stationary distribution, and white noise."""
    chance = random.Random(seed)
    value, found = chance.gauss(0, 1), []
    for _ in range(steps):
        found.append(MS * value + noise_ns * chance.gauss(0, 1))
        value = correlation * value + math.sqrt(1 - correlation**2) * chance.gauss(0, 1)
    return found


def level(seed: int, steps: int, level_ns: int, noise_ns: int) -> list[float]:
    chance = random.Random(seed)
    return [level_ns + noise_ns * chance.gauss(0, 1) for _ in range(steps)]


def test_a_wander_that_is_late_throughout_is_no_level() -> None:
    """Of 300 series that change slowly, many are above 0 in all steps, and none of them has a level."""
    series = [wander(seed, 60, 0.97) for seed in range(300)]
    above = [values for values in series if min(values) > 0]

    assert len(above) > 15
    assert not any(has_level(values, [], 2) for values in above)


def test_noise_on_a_wander_does_not_hide_it() -> None:
    """White noise makes neighbours correlate less, and the wander beneath is as slow."""
    series = [wander(seed, 100, 0.97, 0.7 * MS) for seed in range(200)]

    assert not any(has_level(values, [], 2) for values in series)


def test_a_level_is_found() -> None:
    """Four times its noise in 60 steps, twice its noise in 300; below 0 it is none."""
    assert all(has_level(level(seed, 60, 4 * MS, MS), [], 2) for seed in range(20))
    assert all(has_level(level(seed, 300, 2 * MS, MS), [], 2) for seed in range(20))
    assert not has_level(level(1, 300, -2 * MS, MS), [], 2)


def test_few_steps_show_a_level_only_without_noise() -> None:
    """Wander would have moved fifteen equal steps; with noise, six times the noise is not enough, and in eighty it is."""
    assert has_level([5 * MS] * 15, [], 2)
    assert not any(has_level(level(seed, 15, 6 * MS, MS), [], 2) for seed in range(20))
    assert all(has_level(level(seed, 80, 6 * MS, MS), [], 2) for seed in range(20))


def test_fewer_than_three_steps_have_no_level() -> None:
    """And do not fail."""
    assert [has_level([5 * MS] * steps, [], 2) for steps in (1, 2)] == [False, False]


def test_one_pause_is_no_level_and_hides_none() -> None:
    """A second in one step of a hundred neither makes a level nor lets one vanish in the spread."""
    paused = [*level(1, 50, 0, MS), 1_000 * MS, *level(2, 50, 0, MS)]
    late = [*level(1, 50, 4 * MS, MS), 1_000 * MS, *level(2, 50, 4 * MS, MS)]

    assert (has_level(paused, [], 2), has_level(late, [], 2)) == (False, True)


def test_other_ranks_show_how_lateness_wanders() -> None:
    """Two and a half times its noise in 40 steps: a level beside steady ranks, and none beside ranks that wander."""
    late = level(7, 40, round(2.5 * MS), MS)
    steady = [level(seed, 40, 0, MS) for seed in range(5)]
    wandering = [wander(seed, 40, 0.97, 0.3 * MS) for seed in range(5)]

    assert (has_level(late, steady, 6), has_level(late, wandering, 6), has_level(late, [], 6)) == (True, False, False)
