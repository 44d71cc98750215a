"""When a bound leaves a limit, and when nothing holds any more, if no further sample comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import Bound, Reason, unbounded
from timesyncd.cli.budget import LIMITS_NS, Forecast, LimitCrossing, forecast, forecast_text
from timesyncd.clocks import NS_PER_S

VOID_NS = 1_000 * NS_PER_S


@pytest.mark.parametrize(
    ("bound", "age_s", "text"),
    [
        (Bound(500, 2), 0, "leaves 1 us in 4 min 10 s; void in 16 min"),
        (Bound(500, 2), 200, "leaves 1 us in 50 s; void in 13 min"),
        (Bound(4_000, 1_000), 0, "leaves 10 us in 6 s; void in 16 min"),
        (Bound(4_000, 1_000), 6, "leaves 10 us in less than 1 s; void in 16 min"),
        (Bound(4_000, 1_000), 7, "leaves 100 us in 1 min 29 s; void in 16 min"),
        (Bound(500, 0), 0, "void in 16 min"),
        (Bound(500_000, 1), 0, "void in 16 min"),
        (Bound(2_000_000, 50_000), 999.5, "void in less than 1 s"),
    ],
)
def test_the_next_limit_and_the_end_are_told(bound: Bound, age_s: float, text: str) -> None:
    """Rounded down; a limit that is behind the bound, or behind the end, is not told."""
    expected = forecast(bound, round(age_s * NS_PER_S), VOID_NS)

    assert expected is not None
    assert forecast_text(expected) == text


def test_every_limit_that_is_ahead_can_be_told() -> None:
    """The nearest first, in one line."""
    expected = forecast(Bound(4_000, 50_100), 0, VOID_NS)

    assert expected is not None
    assert forecast_text(expected, 4) == "leaves 10 us in less than 1 s, 100 us in 1 s, 1 ms in 19 s; void in 16 min"


def test_other_limits_may_be_asked_for() -> None:
    """In any order; none is told twice."""
    assert forecast(Bound(0, 1_000), 0, VOID_NS, (2_500, 500)) == Forecast(
        (LimitCrossing(500, NS_PER_S // 2), LimitCrossing(2_500, NS_PER_S * 5 // 2)), VOID_NS
    )


@pytest.mark.parametrize(("bound", "age_ns"), [(unbounded(Reason.CLOCK_STEPPED), 0), (Bound(5, 1), VOID_NS)])
def test_what_holds_no_longer_has_no_forecast(bound: Bound, age_ns: int) -> None:
    """Nothing is foretold of a bound that is unknown or void."""
    assert forecast(bound, age_ns, VOID_NS) is None


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 999 * NS_PER_S), st.integers(1, 10**7))
def test_the_forecast_is_what_the_bound_does(bound_ns: int, growth_ppb: int, age_ns: int, limit_ns: int) -> None:
    """Until then the bound is within the limit, and a nanosecond later it is not."""
    bound = Bound(bound_ns, growth_ppb)
    expected = forecast(bound, age_ns, VOID_NS, (limit_ns,))

    assert expected is not None
    for leaving in expected.leaves:
        at_ns = age_ns + leaving.in_ns
        assert bound.at(at_ns) <= limit_ns < bound.at(at_ns + 1)  # type: ignore[operator]


def test_the_usual_limits_are_decades() -> None:
    """From the microsecond that PTP is bought for to the millisecond that NTP gives."""
    assert LIMITS_NS == (1_000, 10_000, 100_000, 1_000_000)
