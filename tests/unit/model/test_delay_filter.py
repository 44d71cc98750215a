"""The memory of the delay filter, against all of its samples one by one."""

from __future__ import annotations

import statistics
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import nth

from timesyncd.clocks import NS_PER_S
from timesyncd.model.delay_filter import DelayFilterWindow, DelayRefreshClock, FilterEntry
from timesyncd.model.oscillator import Drift

SOME = st.floats(-1e6, 1e6)


def entry(
    number: int, unsteered_ns: float, uncertainty_ns: float, lower_bounds: tuple[tuple[int, float], ...] = ()
) -> FilterEntry:
    sample = nth(number, offset_ns=round(unsteered_ns), path_delay_ns=1_000 + 7 * number % 5)
    return FilterEntry(sample, number, number * NS_PER_S, number * NS_PER_S, unsteered_ns, uncertainty_ns, lower_bounds)


def is_older(number: int, old: FilterEntry) -> bool:
    return (old.sample.delay_requests_sent or 0) < number


@given(
    values=st.lists(SOME, min_size=1, max_size=60),
    drifts=st.lists(st.tuples(SOME, st.floats(0, 1e4)), min_size=1, max_size=4),
    kept=st.integers(1, 30),
    every=st.integers(1, 20),
)
def test_each_sample_of_the_memory_bounds_from_below(
    values: list[float], drifts: list[tuple[float, float]], kept: int, every: int
) -> None:
    """
    Brought to the newest one by the rate that is known now, less what may be wrong about it and about the steering
    since; however often the rate was learned again, and expired entries have no effect.
    """
    window, drift = DelayFilterWindow(), Drift(*drifts[0], 0.0)
    for number, value in enumerate(values):
        is_new_drift = number % every == every - 1
        if is_new_drift:
            drift = Drift(*drifts[number // every % len(drifts)], 0.0)
        window.push(entry(number, value, 10.0 * number), drift, is_new_drift)
        oldest = max(0, number - kept + 1)

        assert window.expire(partial(is_older, oldest)) == oldest

    newest, left = window.entries[-1], list(window.entries)
    brought = [
        each.unsteered_ns + each.uncertainty_ns + (drift.rate_ppb - drift.wander_ppb) * (newest.number - each.number)
        for each in left
    ]
    means = [each.unsteered_ns + drift.rate_ppb * (newest.number - each.number) for each in left]

    assert [each.number for each in left] == list(range(max(0, len(values) - kept), len(values)))
    assert window.lower_bound_ns(drift, 500.0) == pytest.approx(min(brought) - 500, abs=0.1)
    assert window.mean_ns(drift) == pytest.approx(statistics.fmean(means), abs=0.1)
    assert len(window.spread) == len(left)
    offsets, delays = [each.sample.offset_ns for each in left], [each.sample.path_delay_ns for each in left]
    assert window.offset_range_ns() == max(offsets) - min(offsets)
    assert window.largest_delay_ns() == max(delays)
    assert window.newest_delay_ns() == max(delays[-2:])


def test_of_what_bounds_from_below_the_highest_counts() -> None:
    """
    A raw exchange is a bound by itself, at its own time; one below the window's own bound has no effect.
    """
    drift = Drift(100.0, 10.0, 0.0)
    near, far = DelayFilterWindow(), DelayFilterWindow()
    for window, floor_ns in ((near, 990.0), (far, -9_000.0)):
        window.push(entry(0, 1_000, 0.0, ((NS_PER_S // 2, floor_ns),)), drift, False)
        window.push(entry(1, 1_100, 5.0), drift, False)

    assert near.lower_bound_ns(drift, 200.0) == pytest.approx(990 + 45)
    assert far.lower_bound_ns(drift, 200.0) == pytest.approx(1_090 - 200)


def test_a_frozen_delay_stops_the_window_s_clock() -> None:
    """
    Time goes on with the next change, from where the standstill began; one that never changed, or has no noise that
    would change it, never stops the clock.
    """
    lively, steady, quiet = DelayRefreshClock(), DelayRefreshClock(), DelayRefreshClock()
    changing = [lively.advance(second * NS_PER_S, second, 50.0) for second in range(60)]
    still = [lively.advance(second * NS_PER_S, 59, 50.0) for second in range(60, 90)]
    again = [lively.advance(second * NS_PER_S, second, 50.0) for second in range(90, 93)]
    constant = [steady.advance(second * NS_PER_S, 5, 50.0) for second in range(60)]
    calmed = [quiet.advance(second * NS_PER_S, min(second, 30), 1.0) for second in range(60)]

    assert changing[-1] - changing[0] == 59 * NS_PER_S
    assert still[-1] == changing[-1]
    assert again[-1] - again[0] == 2 * NS_PER_S
    assert again[0] == changing[-1]
    assert constant[-1] - constant[0] == calmed[-1] - calmed[0] == 59 * NS_PER_S
