"""When a bound exceeds a limit, and when it expires, without new samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import Bound, Reason, unbounded
from timesyncd.cli.budget import LIMITS_NS, Forecast, LimitCrossing, forecast, forecast_text
from timesyncd.clocks import NS_PER_S

EXPIRY_NS = 1_000 * NS_PER_S


@pytest.mark.parametrize(
    ("bound", "age_s", "text"),
    [
        (Bound(500, 2), 0, "exceeds 1 us in 4 min 10 s, expires in 16 min"),
        (Bound(500, 2), 200, "exceeds 1 us in 50 s, expires in 13 min"),
        (Bound(4_000, 1_000), 0, "exceeds 10 us in 6 s, expires in 16 min"),
        (Bound(4_000, 1_000), 6, "exceeds 10 us in under 1 s, expires in 16 min"),
        (Bound(4_000, 1_000), 7, "exceeds 100 us in 1 min 29 s, expires in 16 min"),
        (Bound(500, 0), 0, "expires in 16 min"),
        (Bound(500_000, 1), 0, "expires in 16 min"),
        (Bound(2_000_000, 50_000), 999.5, "expires in under 1 s"),
    ],
)
def test_the_next_limit_and_the_end_are_given(bound: Bound, age_s: float, text: str) -> None:
    """Times are rounded down; a limit that the bound already exceeds, or exceeds after its end, is omitted."""
    expected = forecast(bound, round(age_s * NS_PER_S), EXPIRY_NS)

    assert expected is not None
    assert forecast_text(expected) == text


def test_every_limit_ahead_can_be_given() -> None:
    """All limits ahead are one line, the nearest first."""
    expected = forecast(Bound(4_000, 50_100), 0, EXPIRY_NS)

    assert expected is not None
    assert forecast_text(expected, 4) == "exceeds 10 us in under 1 s, 100 us in 1 s, 1 ms in 19 s, expires in 16 min"


def test_limits_can_be_chosen() -> None:
    """Limits may be given in any order."""
    assert forecast(Bound(0, 1_000), 0, EXPIRY_NS, (2_500, 500)) == Forecast(
        (LimitCrossing(500, NS_PER_S // 2), LimitCrossing(2_500, NS_PER_S * 5 // 2)), EXPIRY_NS
    )


@pytest.mark.parametrize(("bound", "age_ns"), [(unbounded(Reason.CLOCK_STEPPED), 0), (Bound(5, 1), EXPIRY_NS)])
def test_an_expired_bound_has_no_forecast(bound: Bound, age_ns: int) -> None:
    """A bound that is unknown or has expired has no forecast."""
    assert forecast(bound, age_ns, EXPIRY_NS) is None


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 999 * NS_PER_S), st.integers(1, 10**7))
def test_the_forecast_agrees_with_the_bound(bound_ns: int, growth_ppb: int, age_ns: int, limit_ns: int) -> None:
    """At the forecast instant the bound is within the limit, and a nanosecond later it is not."""
    bound = Bound(bound_ns, growth_ppb)
    expected = forecast(bound, age_ns, EXPIRY_NS, (limit_ns,))

    assert expected is not None
    for crossing in expected.exceeds:
        at_ns = age_ns + crossing.in_ns
        assert bound.at(at_ns) <= limit_ns < bound.at(at_ns + 1)  # type: ignore[operator]


def test_the_default_limits_are_decades() -> None:
    """The limits reach from 1 us, which PTP can give, to 1 ms, which NTP gives."""
    assert LIMITS_NS == (1_000, 10_000, 100_000, 1_000_000)
