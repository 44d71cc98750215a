"""The peers' formulas and the daemon's bound are compared on the same samples."""

from __future__ import annotations

from vm_peers import OURS, widths_ns

HEADER = "realtime_ns,read_ns,offset_ns,path_delay_ns,frequency_ppb,port_state,clock_class,clock_accuracy,utc_bound_ns"
SECOND = 1_000_000_000


def samples(count: int, bound: str = "9000") -> list[str]:
    """One a second, on a path of 5 us, with an offset that alternates."""
    rows = [
        f"{n * SECOND},{n * SECOND},{(-1) ** n * 40},5000,{-1200 + n % 3},slave,6,33,{bound}" for n in range(1, count)
    ]
    return [HEADER, *rows]


def test_all_give_a_width_for_the_same_samples() -> None:
    """fbclock's has no path delay in it; chrony's and ClockBound's have the whole of it; all have the announced 100 ns."""
    widths = widths_ns(samples(200), 100 * SECOND)

    assert widths[OURS] == 9_000
    assert 100 < widths["fbclock"] < 1_000
    assert 5_000 < widths["chrony"] <= widths["ClockBound 1 ppm"] <= widths["ClockBound 50 ppm"] < 10_000


def test_a_bound_that_is_unknown_has_no_width() -> None:
    """It is absent, not 0."""
    assert OURS not in widths_ns(samples(200, bound=""), 100 * SECOND)
