"""Averages and extremes of the newest values, against all of the values."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.model.statistics import RobustMean, SlidingMaximum

VALUES = st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(0, 3)), min_size=1, max_size=100)


@given(VALUES)
def test_the_sliding_maximum_is_the_maximum_of_what_is_left(steps: list[tuple[float, int]]) -> None:
    """
    After any values and any forgetting, of which the newest is never forgotten.
    """
    maximum, first = SlidingMaximum(), 0
    values: list[float] = []
    for number, (value, forgets) in enumerate(steps):
        maximum.push(number, value)
        values.append(value)
        first = min(first + forgets, number)
        maximum.expire(first)

        assert maximum.value == max(values[first:])


def test_several_values_may_have_one_number() -> None:
    """
    They go together.
    """
    maximum = SlidingMaximum()
    for number, value in [(1, 9.0), (1, 3.0), (2, 5.0), (2, 4.0)]:
        maximum.push(number, value)
    largest = maximum.value
    maximum.expire(2)

    assert (largest, maximum.value) == (9.0, 5.0)


def test_nothing_has_no_maximum() -> None:
    """
    Absent is not 0.
    """
    maximum = SlidingMaximum()
    maximum.push(1, 5.0)
    maximum.expire(2)

    with pytest.raises(IndexError):
        _ = maximum.value


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8))
def test_a_robust_mean_begins_with_the_mean_of_its_values(sizes: list[float]) -> None:
    """
    It is right from the first values on and not after a hundred, and is known once they are enough.
    """
    usual = RobustMean()
    for size in sizes:
        usual.add(size)

    assert usual.value == pytest.approx(statistics.mean(sizes), abs=1e-6)
    assert usual.is_known == (len(sizes) == 8)


def test_an_outlier_hardly_counts() -> None:
    """
    One value of any size moves the usual by a tenth.
    """
    usual = RobustMean()
    for _ in range(40):
        usual.add(100.0)
    usual.add(1e12)

    assert 100 < usual.value < 110


def test_a_robust_mean_follows_a_new_level() -> None:
    """
    What is unusual again and again is so no longer, and the former is forgotten.
    """
    louder, quieter = RobustMean(), RobustMean()
    for size, usual in [(10.0, louder)] * 40 + [(10_000.0, quieter)] * 40:
        usual.add(size)
    for _ in range(300):
        louder.add(10_000.0)
        quieter.add(10.0)

    assert louder.value == pytest.approx(10_000, rel=0.05)
    assert quieter.value == pytest.approx(10, rel=0.2)
