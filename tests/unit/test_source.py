"""The parent bound's hard terms, its growth, and what is no sample."""

from __future__ import annotations

from typing import Any

import pytest
from samples import HEALTHY, nth

from timesyncd.bound import Bound, Reason
from timesyncd.source import (
    SLEW_LIMIT_PPB,
    ParentBound,
    SourceMemory,
    SourceSettings,
    grandmaster_bound,
    steering_ppb,
    utc_bound,
    utc_seconds_removed,
)

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


def test_without_counters_the_memory_is_a_time() -> None:
    """
    Twice the filter's length in delay intervals, since the delay timer is random in 0 to 2 intervals.
    """
    memory = SourceMemory(SETTINGS)
    none: dict[str, Any] = {"delay_requests_sent": None, "delay_responses_received": None}

    assert feed(memory, 20, **none) is None
    assert feed(memory, 1, first=20, **none) is not None


def test_every_term_has_its_name_and_the_bound_is_their_sum() -> None:
    """
    A reader can see why the bound is what it is.
    """
    bound = feed(SourceMemory(SourceSettings(asymmetry_uncertainty_ns=30)), 12)

    assert bound is not None
    assert bound.terms == {
        "offset": 100,
        "offset_spread": 0,
        "path_delay": 2_000,
        "granularity": 1,
        "step_tolerance": 2_000,
        "asymmetry_uncertainty": 30,
    }
    assert bound.bound == Bound(4_131, 50_100)


def test_an_offset_of_exactly_zero_is_valid() -> None:
    """
    A perfect sample is a sample.
    """
    bound = feed(SourceMemory(SETTINGS), 12, offset_ns=0)

    assert bound is not None
    assert bound.terms["offset"] == 0


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
    assert chased.terms["offset_spread"] == 10_000
    assert forgotten is not None
    assert forgotten.terms["offset_spread"] == 0


def test_the_largest_path_delay_in_the_memory_counts() -> None:
    """
    The median may still be the old one when the path has changed, and the other way round.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 12)
    memory.accept(nth(12, path_delay_ns=9_000))
    bound = feed(memory, 5, first=13)

    assert bound is not None
    assert bound.terms["path_delay"] == 9_000


def test_a_negative_path_delay_is_no_sample() -> None:
    """
    Nothing follows from a measurement that cannot be.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 12)

    assert memory.accept(nth(12, path_delay_ns=-1)) is None


def test_a_counter_that_went_back_starts_anew() -> None:
    """
    The PTP daemon restarted: its delay filter is empty again.
    """
    memory = SourceMemory(SETTINGS)
    feed(memory, 30)

    assert memory.accept(nth(31, delay_requests_sent=2)) is None


@pytest.mark.parametrize(
    ("frequencies", "expected"),
    [
        ([0, 0, 0], 0),
        ([0, 40, -10], 150),
        ([0, None, 0], SLEW_LIMIT_PPB),
        ([0, 10_001], SLEW_LIMIT_PPB),
        ([0, -10_000], 30_000),
        ([], SLEW_LIMIT_PPB),
    ],
)
def test_steering(frequencies: list[int | None], expected: int) -> None:
    """
    Three times the largest change seen; the kernel's slew limit when it is unread or large.
    """
    assert steering_ppb(frequencies) == expected


def test_a_jump_beyond_reason_is_told() -> None:
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


def test_a_boundary_clock_of_unknown_error_leaves_the_grandmaster_bound_unknown() -> None:
    """
    Two steps removed without a configured error: None with its reason, never the parent's bound under another name.
    """
    parent = Bound(1_000, 50_000)
    behind = nth(0, steps_removed=3)

    assert grandmaster_bound(parent, HEALTHY, SETTINGS) == parent
    assert grandmaster_bound(parent, behind, SETTINGS).reason is Reason.BOUNDARY_CLOCK_ERROR_UNKNOWN
    assert grandmaster_bound(parent, behind, SourceSettings(boundary_clock_error_ns=50)) == Bound(1_100, 50_000)


UTC = {"ptp_timescale": True, "time_traceable": True, "current_utc_offset_s": 37}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Bound(1_100, 5)),
        ({"clock_class": 7}, Bound(2_600, 5)),
        ({"clock_class": 248}, Reason.GRANDMASTER_NOT_LOCKED),
        ({"clock_accuracy": 0xFE}, Reason.GRANDMASTER_ACCURACY_UNKNOWN),
        ({"ptp_timescale": False}, Reason.ARBITRARY_TIMESCALE),
        ({"time_traceable": False}, Reason.UTC_OFFSET_UNKNOWN),
        ({"current_utc_offset_s": None}, Reason.UTC_OFFSET_UNKNOWN),
        ({"current_utc_offset_s": 36}, Reason.UTC_OFFSET_DIFFERS),
    ],
)
def test_utc(changes: dict[str, object], expected: Bound | Reason) -> None:
    """
    UTC needs a locked grandmaster, its accuracy and a timescale that is known; else unbounded, with the reason.
    """
    bound = utc_bound(Bound(1_000, 5), nth(0, **{**UTC, **changes}), SETTINGS)

    assert (bound if isinstance(expected, Bound) else bound.reason) == expected


def test_the_seconds_that_ptp4l_takes_out() -> None:
    """
    Its own utc_offset on a PTP timescale, whatever Announce says; none on an arbitrary one.
    """
    assert utc_seconds_removed(nth(0, **{**UTC, "current_utc_offset_s": 36}), SETTINGS) == 37
    assert utc_seconds_removed(HEALTHY, SETTINGS) == 0
