"""Mean, spread and Student's factor, against the standard library and printed tables."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import STAT_PROBABILITY, Term
from timesyncd.model.statistics import ASYMMETRY_SHARE, Spread, statistical_terms, student_quantile

HARD = {
    Term.OFFSET: 7,
    Term.PATH_DELAY: 10_000,
    Term.PATH_MEMORY: 50,
    Term.GRANULARITY: 3,
    Term.STEP_TOLERANCE: 2_000,
    Term.ASYMMETRY_UNCERTAINTY: 5,
    Term.READING_AGE: 11,
}


@given(
    steps=st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), min_size=3, max_size=200),
    base=st.sampled_from([0.0, 1e9, -37e9]),
)
def test_mean_and_deviation_are_those_of_what_is_left(steps: list[tuple[float, bool]], base: float) -> None:
    """
    After many values and much forgetting, also far from 0, where sums of squares would lose all digits.
    """
    spread, values, first = Spread(), [base + value for value, _ in steps], 0
    for number, (value, forgets) in enumerate(steps):
        spread.push(number, base + value)
        if forgets and number - first >= 2:
            spread.expire(first)
            first += 1
        left = values[first : number + 1]

        assert len(spread) == len(left)
        assert spread.mean == pytest.approx(statistics.fmean(left), abs=1)
        assert len(left) < 2 or spread.deviation == pytest.approx(statistics.stdev(left), rel=1e-3, abs=1)


def test_what_never_varies_has_no_deviation() -> None:
    """
    Rounding makes no negative square.
    """
    spread = Spread()
    for number in range(50):
        spread.push(number, 0.1 + 1e9)

    assert spread.deviation == 0


def within(limit: float, degrees: int, steps: int = 4_000) -> float:
    """The share of Student's distribution within +-limit: its density, added up."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    width = limit / steps
    densities = (math.pow(1 + ((step + 0.5) * width) ** 2 / degrees, -(degrees + 1) / 2) for step in range(steps))
    return 2 * scale * width * sum(densities)


@pytest.mark.parametrize("degrees", [7, 8, 10, 20, 100, 999])
def test_student_s_factor_leaves_out_the_stated_probability(degrees: int) -> None:
    """
    Two-sided, and the expansion errs by no more than half a per cent.
    """
    factor = student_quantile(degrees)

    assert within(factor * 0.995, degrees) < STAT_PROBABILITY < within(factor * 1.005, degrees)


def test_the_terms_of_known_noise() -> None:
    """
    Eight values around 100: the mean's size, a prediction interval, and a share of the delay.
    """
    spread = Spread()
    for number, value in enumerate([90.0, 110.0, 90.0, 110.0, 100.0, 100.0, 95.0, 105.0]):
        spread.push(number, value)
    terms = statistical_terms(-100.2, spread, HARD)

    assert terms[Term.MEAN_OFFSET] == 101
    assert terms[Term.NOISE] == pytest.approx(student_quantile(7) * spread.deviation * (1 + 1 / 8) ** 0.5, abs=1)
    assert terms[Term.ASYMMETRY] == pytest.approx(10_000 * ASYMMETRY_SHARE, abs=1)
    assert [terms[name] for name in (Term.GRANULARITY, Term.ASYMMETRY_UNCERTAINTY, Term.READING_AGE)] == [3, 5, 11]
    assert {type(each) for each in terms.values()} == {int}


def test_the_asymmetry_s_share_leaves_out_the_stated_probability() -> None:
    """
    Of two delays drawn by the same Gamma law of shape 2, one's share of both is within it at the stated rate.
    """
    rng, draws = random.Random(1), 200_000
    pairs = ((rng.gammavariate(2, 1), rng.gammavariate(2, 1)) for _ in range(draws))
    beyond = sum(abs(f - r) > ASYMMETRY_SHARE * (f + r) for f, r in pairs)

    assert beyond / draws == pytest.approx(1 - STAT_PROBABILITY, rel=0.15)


def test_too_few_samples_give_no_statistical_bound() -> None:
    """
    Below eight there is no statistical bound.
    """
    spread = Spread()
    for number in range(7):
        spread.push(number, 1.0)

    assert statistical_terms(0.0, spread, HARD) == {}
