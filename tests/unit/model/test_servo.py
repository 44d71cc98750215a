"""What a servo did to the clock, from the frequencies that were read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import SYSTEM_CLOCK_LIMIT_PPB
from timesyncd.clocks import NS_PER_S
from timesyncd.model.servo import (
    FASTEST_SERVO_PPB,
    Steering,
    correction_ppb,
    in_own_seconds_ppb,
    response_ppb,
    steering_ppb,
)

EPOCH_NS = 1_700_000_000 * NS_PER_S

#: max_adj of the clock in these tests.
LIMIT_PPB = 32_767_999


def fed(frequencies: Sequence[int | None]) -> Steering:
    steering = Steering()
    for second, frequency_ppb in enumerate(frequencies):
        steering.add_reading(EPOCH_NS + second * NS_PER_S, frequency_ppb, LIMIT_PPB)
        steering.add_innovation(None, 0.0)
    return steering


@pytest.mark.parametrize(
    ("largest_change_ppb", "expected"),
    [(0.0, 0), (50.0, 150), (10_001.0, 30_003), (1e6, 3_000_000), (11e6, LIMIT_PPB), (1e9, LIMIT_PPB)],
)
def test_what_may_be_done_between_two_readings(largest_change_ppb: float, expected: int) -> None:
    """
    Three times the largest change seen, at most the clock's own limit.
    """
    assert steering_ppb(largest_change_ppb, LIMIT_PPB) == expected


@pytest.mark.parametrize("sync_interval_ns", [NS_PER_S // 16, NS_PER_S])
@pytest.mark.parametrize("offset_ns", [-10_000_000, 0, 250, 10_000_000])
def test_no_servo_of_linuxptp_corrects_faster_than_its_largest_gains_allow(
    offset_ns: int, sync_interval_ns: int
) -> None:
    """
    pi.c: the normalized gains are at most 1 and 2, by the configuration's own limits.
    """
    for before_ns in (0, offset_ns, -offset_ns, 500):
        changed_ppb = (abs(offset_ns - before_ns) * 1 + abs(offset_ns) * 2) * NS_PER_S / sync_interval_ns

        assert correction_ppb(before_ns, offset_ns, sync_interval_ns) == min(FASTEST_SERVO_PPB, int(changed_ppb))


def test_an_unread_servo_goes_on_at_the_rate_that_the_offsets_show() -> None:
    """
    The clock ran off by 60 us in a second, of which path delays of 5 us hide at most 10 us, and the servo responds to it.
    """
    assert response_ppb(0, 60_000, NS_PER_S, 5_000, NS_PER_S) == 70_000 + 60_000 + 2 * 60_000
    assert response_ppb(0, 0, NS_PER_S, 0, NS_PER_S) == 0
    assert response_ppb(0, 10**12, 1, 0, 1) == FASTEST_SERVO_PPB


@given(st.lists(st.tuples(st.integers(0, 100 * NS_PER_S), st.integers(-LIMIT_PPB, LIMIT_PPB)), min_size=1))
def test_what_was_steered_is_the_integral_of_what_was_read(readings: list[tuple[int, int]]) -> None:
    """
    A frequency holds from its reading on, at any times since 1970; positive = the clock was moved ahead.
    """
    steering, time_ns, integral, before = Steering(), EPOCH_NS, 0, 0
    for index, (elapsed_ns, frequency_ppb) in enumerate(readings):
        time_ns += elapsed_ns
        integral += before * elapsed_ns if index else 0
        before = frequency_ppb
        steering.add_reading(time_ns, frequency_ppb)

    assert math.isclose(steering.steered_ns, integral / NS_PER_S, rel_tol=1e-9, abs_tol=1e-3)


@given(st.lists(st.integers(-NS_PER_S, NS_PER_S), min_size=1, max_size=20), st.integers(-LIMIT_PPB, LIMIT_PPB))
def test_times_that_go_back_are_not_counted_twice(steps_ns: list[int], frequency_ppb: int) -> None:
    """
    However the readings are ordered, a constant frequency moved the clock by the time between the first and the last.
    """
    steering, time_ns = Steering(), EPOCH_NS
    steering.add_reading(time_ns, frequency_ppb)
    for step_ns in steps_ns:
        time_ns += step_ns
        steering.add_reading(time_ns, frequency_ppb)

    assert steering.steered_ns == pytest.approx(frequency_ppb * (time_ns - EPOCH_NS) / NS_PER_S, abs=1e-3)
    assert (steering.change_ppb, steering.uncertainty_ns) == (0, 0)


def test_around_the_newest_reading() -> None:
    """
    Before it with the frequency of before, after it with the one read.
    """
    steering = fed([1_000, 3_000])
    now_ns = EPOCH_NS + NS_PER_S

    assert steering.steered_at(now_ns) == 1_000
    assert steering.steered_at(now_ns - NS_PER_S // 2) == 500
    assert steering.steered_at(now_ns + NS_PER_S // 2) == 2_500


def test_a_change_is_the_one_between_two_readings() -> None:
    """
    Of either sign; the first reading is none.
    """
    assert [fed(each).change_ppb for each in ([700], [700, 700], [700, -300], [-300, 700])] == [0, 0, 1_000, 1_000]


@pytest.mark.parametrize("frequencies", [[5, None], [None, 5], [None, None], [5, None, 5]])
def test_unread_means_that_anything_may_have_been_done(frequencies: list[int | None]) -> None:
    """
    As much as the clock allows, for as long; and it may go on.
    """
    steering = fed(frequencies)

    assert steering.uncertainty_ns == LIMIT_PPB * (len(frequencies) - 1)
    assert steering.change_ppb == LIMIT_PPB


def test_an_unread_frequency_is_not_in_the_mean() -> None:
    """
    A servo of which little is read yet is as slow as what was read of it.
    """
    assert fed([None, None, 0, 100, 200]).phase_uncertainty_ns < 200


def test_usual_noise_adds_no_uncertainty() -> None:
    """
    A surprise does, the more the faster this servo follows; never more than the clock allows.
    """
    calm, slow, fast, wild = (fed([0, 100] * 20) for _ in range(4))
    calm.add_innovation(0.0, 1_000.0)
    slow.add_innovation(1_000.0, 1_000.0)
    fast.add_innovation(1_000.0, 100.0)
    wild.add_innovation(1e12, 1e-3)
    before_ns = fed([0, 100] * 20).uncertainty_ns
    uncertainties = [each.uncertainty_ns - before_ns for each in (calm, slow, fast, wild)]

    assert uncertainties[0] == 0
    assert uncertainties == sorted(set(uncertainties))
    assert uncertainties[3] == LIMIT_PPB


def test_before_noise_is_known_an_unusual_change_casts_doubt() -> None:
    """
    The servo may have been several times as fast between the two readings.
    """
    assert fed([0, 10] * 20).uncertainty_ns == fed([0, 10] * 20 + [10]).uncertainty_ns
    assert fed([0, 10] * 20 + [10_000]).uncertainty_ns > 2.9 * 9_900


def test_before_any_reading_nothing_was_steered() -> None:
    """A frequency that was never read moves no exchange."""
    unread = Steering()
    unread.add_reading(EPOCH_NS, None, LIMIT_PPB)

    assert Steering().steered_at(EPOCH_NS) == unread.steered_at(EPOCH_NS + NS_PER_S) == 0


def test_a_servo_that_acts_at_every_eighth_reading_leaves_as_little_doubt_as_at_each() -> None:
    """
    phc2sys acts once a second beside 8 Syncs a second: the readings between its corrections show no change, and no
    correction is unusual for that.
    """
    steering = Steering()
    for index in range(800):
        frequency_ppb = (index // 8) % 2 * 400
        steering.add_reading(EPOCH_NS + index * NS_PER_S // 8, frequency_ppb, 100_500_000)
        steering.add_innovation(0.0, 500.0)

    assert steering.uncertainty_ns < 1_000


@pytest.mark.parametrize(
    ("frequency_ppb", "own_ppb"),
    [
        (0, 0),
        (20_000, 20_000),
        (-100_000, -100_010),
        (83_333_333, 76_923_077),
        (-100_000_000, -111_111_111),
        (-(10**9), -(10**9)),
    ],
)
def test_a_clock_that_is_slowed_loses_more_in_each_of_its_own_seconds(frequency_ppb: int, own_ppb: int) -> None:
    """
    Slowed by 10 %, as phc2sys does at its limit, its second takes 1.111 s of true time: ages count in such seconds. A clock
    that is stopped has none.
    """
    assert in_own_seconds_ppb(frequency_ppb) == own_ppb


def test_the_limit_of_the_system_clock_counts_in_its_own_seconds() -> None:
    """10 % by the tick and 500 ppm by the frequency, downwards."""
    assert -in_own_seconds_ppb(-100_500_000) in (SYSTEM_CLOCK_LIMIT_PPB, SYSTEM_CLOCK_LIMIT_PPB - 1)
