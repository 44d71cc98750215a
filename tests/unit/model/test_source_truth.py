"""That the truth is inside, whatever a servo makes of a path, and what is known while no sample comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clock_lab import (
    DELAY_NS,
    LEARNT_S,
    WITHOUT_COUNTERS,
    Lab,
    Servo,
    assert_adds_up,
    assert_holds,
    deadbeat,
    gentle,
    settled,
)
from hypothesis import given
from hypothesis import strategies as st
from samples import HEALTHY

from timesyncd.bound import Rate, Term
from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.servo import FASTEST_SERVO_PPB
from timesyncd.model.source import SourceMemory
from timesyncd.sample import ClockSample

SETTINGS = SourceSettings()


@given(
    rate_ppb=st.integers(-50_000, 50_000),
    moved_ns=st.integers(-DELAY_NS, 1_000_000),
    servo=st.sampled_from([deadbeat, gentle]),
    when_s=st.integers(12, LEARNT_S + 40),
    fields=st.sampled_from([{}, {"frequency_ppb": None}, WITHOUT_COUNTERS, {"renewed_before_read": True}]),
)
def test_the_truth_is_inside_while_a_servo_chases_a_changed_path(
    rate_ppb: int, moved_ns: int, servo: Servo, when_s: int, fields: dict[str, Any]
) -> None:
    """
    The forward way changes by anything, before or after the drift is learned, with frequencies and counters or without:
    soon the offset is 0 and the clock is off by all of it. The bound holds around the clock and around the offset, in
    every second.
    """
    lab = Lab(rate_ppb, servo, **fields)
    memory = SourceMemory(SETTINGS)
    for second in range(when_s + 40):
        lab.forward_ns = DELAY_NS + (moved_ns if second >= when_s else 0)
        sample = lab.sync()
        bound = memory.accept(sample)
        if bound is not None:
            assert_holds(bound, sample.offset_ns, lab.true_ns)
            assert_adds_up(bound)


@given(
    forwards=st.lists(st.integers(0, 100_000), min_size=30, max_size=60),
    reverses=st.lists(st.integers(0, 100_000), min_size=60, max_size=60),
)
def test_the_truth_is_inside_whatever_the_delays_are(forwards: list[int], reverses: list[int]) -> None:
    """
    Each packet's way is as long as it likes, once the drift is learned: the servo follows the noise.
    """
    lab = Lab(servo=gentle)
    memory = settled(lab)
    for lab.forward_ns, lab.reverse_ns in zip(forwards, reverses, strict=False):
        sample = lab.sync()
        bound = memory.accept(sample)
        if bound is None:
            assert sample.path_delay_ns < 0
        else:
            assert_holds(bound, sample.offset_ns, lab.true_ns)


def test_delays_that_were_measured_while_no_sync_came_are_wrong_and_known_to_be() -> None:
    """
    They are held against the last Sync, from which the clock has run away: the path seems shorter than it is, and all
    of it is forward.
    """
    lab = Lab()
    lab.forward_ns, lab.reverse_ns = 2.0 * DELAY_NS, 0.0
    memory = settled(lab)
    lab.frequency_ppb += 150
    memory.accept(replace(lab.sync(), frequency_ppb=lab.frequency_ppb + 150))
    lab.frequency_ppb += 150
    for _ in range(60):
        lab.lost_sync()
    for _ in range(4):
        sample = lab.sync()
        bound = memory.accept(sample)

        assert bound is not None
        assert sample.path_delay_ns < DELAY_NS - 2_500
        assert_holds(bound, sample.offset_ns, lab.true_ns)


def test_a_servo_that_chased_unread_leaves_a_doubt() -> None:
    """
    Read every third second, most of the correction is over when it first shows. The usual reaction of this servo to
    such noise gives how much was done.
    """
    lab = Lab(servo=gentle)
    memory = SourceMemory(SETTINGS)
    worst_ns = 0.0
    for second in range(540):
        lab.forward_ns = DELAY_NS + 37 * second % 101 + (200_000 if second >= 450 else 0)
        sample = lab.sync()
        if second % 3 == 2:
            bound = memory.accept(replace(sample, as_of_ns=sample.read_ns - 3 * NS_PER_S, **WITHOUT_COUNTERS))
            worst_ns = min(worst_ns, lab.true_ns)
            if bound is not None:
                assert_holds(bound, sample.offset_ns, lab.true_ns)

    assert worst_ns < -150_000


def test_a_frequency_that_was_not_read_for_a_while_is_no_free_ride() -> None:
    """
    What a servo did unread may be as much as it does in response to the largest offset: the path changed and was chased meanwhile, and then all
    looks well.
    """
    lab = Lab(servo=deadbeat)
    memory = settled(lab)
    lab.forward_ns += 200_000
    for _ in range(3):
        memory.accept(replace(lab.sync(), frequency_ppb=None))
    sample = lab.sync()
    bound = memory.accept(sample)

    assert bound is not None
    assert (sample.offset_ns, round(lab.true_ns)) == (0, -200_000)
    assert_holds(bound, sample.offset_ns, lab.true_ns)
    assert bound.rates[Rate.STEERING] <= FASTEST_SERVO_PPB


@pytest.mark.parametrize("back_ns", [1, NS_PER_S // 2])
def test_a_sync_that_is_reported_late_is_not_counted_twice(back_ns: int) -> None:
    """
    The frequency alone was read after the Sync had come and before it showed: what was steered in between counts once.
    """
    lab = Lab(rate_ppb=400_000, servo=gentle)
    memory = settled(lab)
    for _ in range(5):
        sample = lab.sync()
        memory.coast(sample.read_ns - 1 + back_ns, lab.frequency_ppb)
        bound = memory.accept(sample)

        assert bound is not None
        assert bound.terms[Term.PATH_MEMORY] < 10


def held_ns(memory: SourceMemory, lab: Lab) -> tuple[int, int, int]:
    """The bound now, and the interval, after a reading of the frequency alone."""
    held = memory.coast(lab.boottime_ns, lab.frequency_ppb)
    sample = memory.newest
    assert held is not None and sample is not None
    bound_ns = held.bound.at(lab.boottime_ns - sample.read_ns)
    assert bound_ns is not None
    assert sum(held.rates.values()) == held.bound.growth_ppb
    assert (held.bound.bound_ns or 0) >= 0
    return bound_ns, held.low_ns, held.high_ns


@given(kick_ppb=st.integers(-100_000, 100_000), gaps_s=st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_a_frozen_correction_of_the_servo_is_known(kick_ppb: int, gaps_s: list[int]) -> None:
    """
    Samples stop while the clock is on its way: the interval goes with it, and the truth stays inside.
    """
    lab = Lab()
    memory = settled(lab)
    memory.accept(lab.sync())
    lab.frequency_ppb += kick_ppb
    memory.coast(lab.boottime_ns, lab.frequency_ppb)
    for gap_s in gaps_s:
        lab.silence(gap_s)
        bound_ns, low_ns, high_ns = held_ns(memory, lab)

        assert low_ns <= lab.true_ns <= high_ns
        assert abs(lab.true_ns) <= bound_ns


@given(frequencies=st.lists(st.integers(-200_000, 200_000), min_size=1, max_size=30))
def test_steering_without_a_sync_is_followed(frequencies: list[int]) -> None:
    """
    Each new frequency was applied at some moment since the last reading.
    """
    lab = Lab()
    memory = settled(lab)
    for frequency_ppb in frequencies:
        lab.silence()
        bound_ns, low_ns, high_ns = held_ns(memory, lab)
        lab.frequency_ppb = frequency_ppb - 20_000

        assert low_ns <= lab.true_ns <= high_ns
        assert abs(lab.true_ns) <= bound_ns


def test_what_is_read_at_once_is_what_grows() -> None:
    """
    Between two readings of a frozen frequency the bound of the last one holds, a kick included.
    """
    lab = Lab()
    memory = settled(lab)
    sample = lab.sync()
    lab.frequency_ppb += 1_500
    bound = memory.accept(replace(sample, frequency_ppb=lab.frequency_ppb))
    lab.silence(60)

    assert bound is not None
    assert bound.rates[Rate.FREQUENCY_OFFSET] == 1_500
    assert abs(lab.true_ns) <= (bound.bound.at(60 * NS_PER_S) or 0)


def test_a_bound_of_a_slow_reading_coasts_from_the_reading_on() -> None:
    """
    Polled every ten seconds the Sync may be of any moment in between: a kick is not applied to time that had passed
    before.
    """
    lab = Lab()
    memory = settled(lab)
    lab.silence(9)
    sample = lab.sync()
    lab.frequency_ppb += 50_000
    memory.accept(replace(sample, as_of_ns=sample.read_ns - 10 * NS_PER_S, frequency_ppb=lab.frequency_ppb))
    lab.silence(1)
    held = memory.coast(lab.boottime_ns, lab.frequency_ppb)

    assert held is not None
    assert held.low_ns <= lab.true_ns <= held.high_ns


def test_a_clock_runs_on_between_a_sync_and_its_slow_reading() -> None:
    """
    The Sync came right after the last look, ten seconds ago: at the reading the clock has been off its rate for as
    long.
    """
    lab = Lab()
    memory = settled(lab)
    lab.frequency_ppb += 50_000
    memory.accept(replace(lab.sync(), frequency_ppb=lab.frequency_ppb))
    sample = lab.sync()
    lab.frequency_ppb += 50_000
    lab.silence(9)
    memory.accept(replace(sample, read_ns=lab.boottime_ns, frequency_ppb=lab.frequency_ppb))
    held = memory.coast(lab.boottime_ns, lab.frequency_ppb)

    assert held is not None
    assert lab.true_ns > 300_000
    assert held.low_ns <= lab.true_ns <= held.high_ns


def test_coasting_is_uncertain_where_a_frequency_was_not_read() -> None:
    """
    No bound comes of the samples after a restart, and in one of them no frequency was read.
    """
    lab = Lab()
    memory = settled(lab)
    memory.clear()
    memory.accept(replace(lab.sync(), frequency_ppb=None))
    lab.frequency_ppb += 300_000
    for _ in range(2):
        sample = lab.sync()
        memory.accept(sample)
        lab.frequency_ppb = sample.frequency_ppb or 0
    held = memory.coasting(lab.boottime_ns)

    assert held is not None
    assert abs(lab.true_ns) > 50_000
    assert held.low_ns <= lab.true_ns <= held.high_ns


def test_without_a_frequency_nothing_better_is_known_than_the_growth() -> None:
    """
    Not learned yet, without a sample, or the clock of before the last sample: None.
    """
    fresh, lab = SourceMemory(SETTINGS), Lab()
    young = settled(Lab(), seconds=14)
    memory = settled(lab)

    assert fresh.coast(HEALTHY.as_of_ns, 0) is None
    assert young.coast(HEALTHY.as_of_ns + 15 * NS_PER_S, -20_000) is None
    assert memory.coast(lab.boottime_ns - NS_PER_S, lab.frequency_ppb) is None


def test_the_learned_drift_outlives_a_change_of_the_source() -> None:
    """
    The oscillator is the same one after a restart or behind another parent: only the delays are unknown.
    """
    lab = Lab()
    memory = settled(lab)
    memory.clear()
    bounds = [memory.accept(lab.sync()) for _ in range(12)]

    assert [bound is not None for bound in bounds] == [False] * 11 + [True]
    assert bounds[-1] is not None and "frequency_offset" in bounds[-1].rates


def on_time(boot_s: float, ingress_s: float, **changes: Any) -> ClockSample:
    """The sample of a clock without error, read so long after the beginning."""
    return replace(
        HEALTHY,
        as_of_ns=HEALTHY.as_of_ns + round((boot_s - 1) * NS_PER_S),
        read_ns=HEALTHY.read_ns + round(boot_s * NS_PER_S),
        ingress_time_ns=HEALTHY.ingress_time_ns + round(ingress_s * NS_PER_S),
        **WITHOUT_COUNTERS,
        **changes,
    )


@pytest.mark.parametrize("jump_s", [-37.0, -0.5, 0.5, 37.0, 86_400.0])
def test_an_ingress_time_that_jumps_harms_nothing(jump_s: float) -> None:
    """
    A PHC can be set where no step is seen: the next bounds hold, and the learned drift is unchanged.
    """
    memory = SourceMemory(SETTINGS)
    for second in range(80):
        memory.accept(on_time(second, second))
    bounds = [memory.accept(on_time(second, second + jump_s)) for second in range(80, 200)]

    assert all(bound is not None and (bound.bound.bound_ns or 0) >= 0 for bound in bounds)
    assert memory.drift is not None and abs(memory.drift.rate_ppb) < 1


def test_nanoseconds_since_1970_lose_nothing() -> None:
    """
    A float of that size resolves 256 ns, an offset that is a day's nanoseconds less.
    """
    lab, far = Lab(), Lab()
    near, distant = SourceMemory(SETTINGS), SourceMemory(SETTINGS)
    for _ in range(LEARNT_S):
        sample = lab.sync()
        one = near.accept(replace(sample, ingress_time_ns=sample.ingress_time_ns - HEALTHY.ingress_time_ns))
        other = distant.accept(far.sync())

    assert one == other
    assert near.drift == distant.drift
