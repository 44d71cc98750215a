"""The parent bound: its terms, its growth, and what is no sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clock_lab import DELAY_NS, WITHOUT_COUNTERS, Lab, assert_adds_up, settled
from samples import nth

from timesyncd.bound import Rate, Term
from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.parent_bound import ParentBound
from timesyncd.model.source import SourceMemory

SETTINGS = SourceSettings()


def feed(memory: SourceMemory, count: int, first: int = 0, **changes: Any) -> ParentBound | None:
    result = None
    for index in range(first, first + count):
        result = memory.accept(nth(index, **changes))
    return result


def test_no_bound_before_the_delay_filter_was_filled_under_this_parent() -> None:
    """
    Eleven further delay measurements are wanted: the filter's length plus one.
    """
    memory = SourceMemory(SETTINGS)

    assert feed(memory, 11) is None
    assert feed(memory, 1, first=11) is not None


def test_responses_to_other_nodes_do_not_count() -> None:
    """
    Delay responses are multicast: requests of our own must have advanced, too.
    """
    memory = SourceMemory(SETTINGS)

    assert feed(memory, 40, delay_requests_sent=3) is None


def test_requests_without_responses_do_not_count() -> None:
    """
    A request without a response adds nothing to the filter.
    """
    memory = SourceMemory(SETTINGS)

    assert feed(memory, 40, delay_responses_received=3) is None


def test_without_counters_the_memory_is_a_time() -> None:
    """
    Twice the filter's length in delay intervals, since the delay timer is random in 0 to 2 intervals.
    """
    memory = SourceMemory(SETTINGS)

    assert feed(memory, 20, **WITHOUT_COUNTERS) is None
    assert feed(memory, 1, first=20, **WITHOUT_COUNTERS) is not None


def test_a_longer_filter_is_remembered_for_longer() -> None:
    """
    The length is what ptp4l was configured to.
    """
    memory = SourceMemory(SourceSettings(delay_filter_length=20))

    assert feed(memory, 21) is None
    assert feed(memory, 1, first=21) is not None


def test_every_term_has_its_name_and_the_bound_is_their_sum() -> None:
    """
    A reader can see why the bound is what it is.
    """
    bound = feed(SourceMemory(SourceSettings(asymmetry_uncertainty_ns=30)), 12)

    assert bound is not None
    assert bound.terms == {
        Term.OFFSET: 100,
        Term.PATH_DELAY: 2_000,
        Term.PATH_MEMORY: 0,
        Term.GRANULARITY: 1,
        Term.STEP_TOLERANCE: 2_000,
        Term.ASYMMETRY_UNCERTAINTY: 30,
        Term.READING_AGE: 0,
    }
    assert bound.rates == {Rate.GRANDMASTER_RATE: 100, Rate.STEERING: 0, Rate.LOCAL_DRIFT: 50_000}
    assert (bound.low_ns, bound.high_ns) == (100 - 4_031, 100 + 4_031)
    assert_adds_up(bound)


def test_an_offset_of_exactly_zero_is_valid() -> None:
    """
    A perfect sample is a sample.
    """
    bound = feed(SourceMemory(SETTINGS), 12, offset_ns=0)

    assert bound is not None
    assert bound.terms[Term.OFFSET] == 0


def test_a_calibrated_path_counts_with_what_exceeds_its_minimum() -> None:
    """
    That much of either way is known to be real. A delay below it refutes the calibration, which then counts for nothing.
    """
    found = [feed(SourceMemory(SourceSettings(path_minimum_ns=minimum)), 12) for minimum in (1_500, 2_000, 2_500)]

    assert [bound and bound.terms[Term.PATH_DELAY] for bound in found] == [500, 0, 2_000]


def test_a_spurious_offset_stays_in_the_bound_until_the_filter_has_forgotten_it() -> None:
    """
    A servo that chased it reports offset 0 while the clock is off by all of it.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 12)
    memory.accept(nth(12, offset_ns=10_000))
    chased = feed(memory, 10, first=13, offset_ns=0)
    forgotten = feed(memory, 3, first=23, offset_ns=0)

    assert chased is not None
    assert chased.terms[Term.PATH_MEMORY] == 10_000
    assert forgotten is not None
    assert forgotten.terms[Term.PATH_MEMORY] == 0


def test_the_largest_path_delay_in_the_memory_counts() -> None:
    """
    The median may still be the old one when the path has changed, and the other way round.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 12)
    memory.accept(nth(12, path_delay_ns=9_000))
    bound = feed(memory, 5, first=13)

    assert bound is not None
    assert bound.terms[Term.PATH_DELAY] + bound.terms[Term.PATH_MEMORY] == 9_000


def test_an_offset_may_be_of_the_delay_before_or_of_this_one() -> None:
    """
    The delay may have been renewed between the Sync and the reading: the longer one bounds from above.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 12)
    shorter = memory.accept(nth(12, path_delay_ns=500))

    assert shorter is not None
    assert shorter.terms[Term.PATH_DELAY] == 2_000


def test_a_negative_path_delay_is_no_sample() -> None:
    """
    Nothing follows from a measurement that cannot be.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 12)

    assert memory.accept(nth(12, path_delay_ns=-1)) is None
    assert memory.accept(nth(13, path_delay_ns=0)) is not None


@pytest.mark.parametrize("counter", ["delay_requests_sent", "delay_responses_received"])
def test_a_counter_that_went_back_starts_the_filter_again(counter: str) -> None:
    """
    The PTP daemon restarted: its delay filter is empty again.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 30)

    assert memory.accept(nth(31, **{counter: 2})) is None


def test_counters_that_are_no_longer_reported_leave_the_time() -> None:
    """
    What was accepted with them is forgotten after as long as without.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 12)
    memory.accept(nth(12, offset_ns=50_000, **WITHOUT_COUNTERS))
    still, later = feed(memory, 19, first=13, **WITHOUT_COUNTERS), feed(memory, 2, first=32, **WITHOUT_COUNTERS)

    assert still is not None and later is not None
    assert (still.terms[Term.PATH_MEMORY], later.terms[Term.PATH_MEMORY]) == (49_900, 0)


def test_another_clock_is_learnt_from_the_beginning() -> None:
    """
    A PHC's oscillator is another one: neither its rate nor a bound comes of what the system clock taught.
    """
    lab = Lab()
    memory = settled(lab)
    first = memory.accept(replace(lab.sync(), clock="phc:0"))

    assert first is None
    assert memory.drift is None
    assert memory.coast(lab.boottime_ns, lab.frequency_ppb) is None


def test_a_jump_beyond_the_clocks_rates_is_reported() -> None:
    """
    Neither twice the path delay nor the clocks' rates explain five milliseconds between two Syncs.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 12)
    jumped = memory.accept(nth(12, offset_ns=-5_000_000))
    settled = memory.accept(nth(13, offset_ns=-5_000_100))

    assert jumped is not None and settled is not None
    assert jumped.phase_jump_ns == -5_000_100
    assert settled.phase_jump_ns is None


def test_a_learnt_clock_has_a_narrow_bound_that_grows_slowly() -> None:
    """
    A quiet second: offset, delay, an undetected step; and of the rates the floors.
    """
    lab = Lab(rate_ppb=20_000)
    memory = settled(lab)
    bound = memory.accept(lab.sync())

    assert bound is not None
    assert bound.terms == {
        Term.OFFSET: 0,
        Term.PATH_DELAY: DELAY_NS,
        Term.PATH_MEMORY: 0,
        Term.GRANULARITY: 1,
        Term.STEP_TOLERANCE: 2_000,
        Term.ASYMMETRY_UNCERTAINTY: 0,
        Term.READING_AGE: 100,
    }
    assert bound.rates == {
        Rate.GRANDMASTER_RATE: 100,
        Rate.STEERING: 0,
        Rate.LOCAL_DRIFT: 1_000,
        Rate.FREQUENCY_OFFSET: 0,
    }
    assert bound.as_of_ns == lab.boottime_ns
    assert_adds_up(bound)


@pytest.mark.parametrize("rate_ppb", [-300_000, -20_000, 0, 40_000])
def test_the_oscillator_s_rate_is_learnt_with_its_sign(rate_ppb: int) -> None:
    """
    A fast oscillator has a positive rate, and a servo that slows it a negative frequency: applied rightly they cancel.
    """
    lab = Lab(rate_ppb)
    memory = settled(lab)
    bound = memory.accept(lab.sync())

    assert memory.drift is not None and bound is not None
    assert round(memory.drift.rate_ppb) == rate_ppb
    assert bound.rates[Rate.FREQUENCY_OFFSET] == 0


def test_a_reading_that_came_late_is_no_older_than_two_seconds_less() -> None:
    """
    What the clock did between the Sync and its reading is known for that long; beyond, it is age.
    """
    lab = Lab()
    memory = settled(lab)
    lab.silence(9)
    sample = lab.sync()
    late = memory.accept(replace(sample, as_of_ns=sample.read_ns - 10 * NS_PER_S))

    assert late is not None
    assert late.as_of_ns == sample.read_ns - 8 * NS_PER_S
    assert late.terms[Term.READING_AGE] == 2 * 100


def test_the_noise_is_known_before_any_innovation() -> None:
    """
    The first noisy samples after the rate is learned do not count as an unread correction of the servo.
    """
    noises = [0, 5_000, 9_000, 2_000, 7_000]
    lab = Lab(servo=lambda offset_ns: -offset_ns // 10)
    memory = SourceMemory(SETTINGS)
    memories = []
    for index in range(150):
        lab.forward_ns = DELAY_NS + noises[index % 5]
        if bound := memory.accept(lab.sync()):
            memories.append(bound.terms[Term.PATH_MEMORY])

    assert max(memories) < 60_000


@pytest.mark.parametrize("slewed_ppb", [-83_333_333, -3_560_000])
def test_a_slew_that_began_before_the_daemon_counts_before_the_rate_is_learnt(slewed_ppb: int) -> None:
    """
    chronyd slews by milliseconds a second at boot. Its frequency does not change meanwhile, so no change shows; no oscillator
    within its assumed drift cancels it.
    """
    lab = Lab(20_000, lambda offset_ns: slewed_ppb)
    lab.frequency_ppb += slewed_ppb
    memory = settled(lab, seconds=15)
    bound = memory.accept(lab.sync())
    begun_ns = lab.true_ns
    lab.silence(60)

    assert bound is not None and memory.drift is None
    grown_ns = bound.bound.at(lab.boottime_ns - bound.as_of_ns)
    assert grown_ns is not None and abs(lab.true_ns) <= grown_ns
    assert abs(lab.true_ns - begun_ns) > 60 * 3_500_000


def test_a_gap_does_not_make_a_steep_slope_last() -> None:
    """A slope is steep for a moment before Sync is lost, as where a path changes; after the gap the window still holds it."""
    memory = SourceMemory(SourceSettings())
    for index in range(24):
        memory.accept(nth(index, offset_ns=index * 12_500, path_delay_ns=1_000, frequency_ppb=0))
    gap_ns = 60 * NS_PER_S
    sample = nth(24, offset_ns=24 * 12_500, path_delay_ns=1_000, frequency_ppb=0)
    moments = {name: getattr(sample, name) + gap_ns for name in ("as_of_ns", "read_ns", "ingress_time_ns")}
    memory.accept(replace(sample, **moments))

    assert memory.refutations == ()


def test_a_delay_interval_that_gets_shorter_empties_no_filter() -> None:
    """
    Without counters time counts. The grandmaster shortens the interval from 8 s to 1/8 s: most delays of ptp4l's filter are
    still of before, when the path was another one.
    """
    memory = SourceMemory(SourceSettings())
    fields = {**WITHOUT_COUNTERS, "frequency_ppb": None}
    for index in range(8 * 200):
        memory.accept(nth(index, offset_ns=0, path_delay_ns=10_000, delay_interval_ns=8 * NS_PER_S, **fields))
    bounds = [
        memory.accept(nth(index, offset_ns=50_000, path_delay_ns=10_000, delay_interval_ns=NS_PER_S // 8, **fields))
        for index in range(8 * 200, 8 * 206)
    ]

    assert bounds[-1] is not None and bounds[-1].low_ns <= -10_000


def test_a_servo_s_largest_change_outlasts_the_delay_filter() -> None:
    """A rare long queue makes the servo do the same again: it counts for ten times the memory, and then no longer."""
    memory = SourceMemory(SETTINGS)
    steering = []
    for index in range(160):
        bound = memory.accept(nth(index, frequency_ppb=20_000 if index == 20 else 0))
        steering.append(bound.rates[Rate.STEERING] if bound else None)

    assert set(steering[21:120]) == {60_000}
    assert steering[140:] == [0] * 20
