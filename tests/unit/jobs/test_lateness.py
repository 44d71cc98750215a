"""Whether a rank is late persistently or by chance."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.jobs.lateness import FALSE_ALARM, independent_part, independent_steps, is_persistent


def test_few_steps_name_no_rank() -> None:
    """A pause of a few steps is no straggler, and with two ranks it takes eleven steps, all of them."""
    assert not is_persistent(9, steps=9, tests=1)
    assert not is_persistent(10, steps=10, tests=2)
    assert is_persistent(11, steps=11, tests=2)


@given(st.integers(1, 300), st.sampled_from([1, 2, 3, 64, 20_000]))
def test_false_alarms_are_rarer_than_stated(steps: int, tests: int) -> None:
    """For the fewest times late that name a rank, the exact chance that any of so many tests comes to it is below the stated one."""
    times = next((k for k in range(steps + 1) if is_persistent(k, steps, tests)), None)

    def tail(least: int) -> Fraction:
        return Fraction(sum(math.comb(steps, k) for k in range(least, steps + 1)), 2**steps)

    assert times is None or (steps >= 10 and tests * tail(times) < FALSE_ALARM)
    assert times is None or tests * tail(times - 1) >= FALSE_ALARM
    assert times is not None or steps < 10 or tests * tail(steps) >= FALSE_ALARM


def test_steps_that_follow_each_other_count_as_fewer() -> None:
    """By the arcsine law, signs that correlate by 1/3 belong to a lateness that correlates by 1/2. Ranks that take turns count as independent."""
    turns = [{step % 2} for step in range(100)]
    runs = [{step // 3 % 2} for step in range(3_000)]

    assert independent_part(turns) == independent_part([]) == 1
    assert independent_part(runs) == pytest.approx(1 / 3, abs=0.01)


def test_a_correlation_over_many_lags_is_found() -> None:
    """One step in three is random, so that neighbours hardly correlate; states that last for thirty steps do for as long."""
    chance = random.Random(1)
    bursts = [{chance.randrange(2) if chance.random() < 1 / 3 else step // 30 % 2} for step in range(3_000)]
    lag_one = sum(before == after for before, after in pairwise(bursts)) / 2_999 * 2 - 1

    assert independent_part(bursts) < 0.5 * (1 - lag_one) / (1 + lag_one)
    assert independent_part([{0}] * 50 + [{1}] * 50) < 0.1


def test_a_rank_late_in_every_step_shows_no_correlation() -> None:
    """So a moderate correlation is assumed: two ranks need 29 steps at one position, and forty are enough for eight positions."""
    part = independent_part([{0}] * 100)

    assert part == pytest.approx(0.375, abs=0.001)
    assert not is_persistent(*independent_steps(28, 28, part), tests=2)
    assert is_persistent(*independent_steps(30, 30, part), tests=2)
    assert is_persistent(*independent_steps(39, 39, part), tests=16)


@pytest.mark.parametrize(("times", "expected"), [(100, (33, 33)), (99, (32, 33)), (90, (29, 33)), (0, (0, 33))])
def test_counts_are_converted_to_independent_steps(times: int, expected: tuple[int, int]) -> None:
    """Where it is uncertain, a step counts as one in which the rank was early."""
    assert independent_steps(times, 100, 1 / 3) == expected
