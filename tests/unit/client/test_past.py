"""Readings of the past: the bound grows backwards too, and what a step or a suspend hides is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_clocks import FakeClocks, replace_time
from published import LOST, good_bound, publish

from timesyncd.bound import UNKNOWN_PAST_PPB, Bound, ClockStatus, Interval, Reason, Reference
from timesyncd.client import Clock, ClockReading, UtcNs, past
from timesyncd.client.past import Continuity, NsRange, TranslationReason
from timesyncd.clocks import NS_PER_S

AS_OF_NS = 5_000 * NS_PER_S
REAL_MINUS_BOOT = NsRange(1_000_000, 1_000_100)


def translated(distance_ns: int, now_after_ns: int = 10 * NS_PER_S) -> ClockReading:
    """The reading of a moment this long after the newest sample, given on BOOTTIME; the two clocks' difference has a width of 100 ns."""
    bound = good_bound(as_of_ns=AS_OF_NS, past_growth_ppb=70_000, past_span_ns=20 * NS_PER_S)
    moment_ns = AS_OF_NS + distance_ns
    moment = past.moment_at(NsRange(moment_ns, moment_ns), REAL_MINUS_BOOT)
    return past.translate(bound, Reference.GRANDMASTER, moment, AS_OF_NS + now_after_ns)


@pytest.mark.parametrize(
    ("distance_s", "width_ns"),
    [
        (4, 5_000 + 4 * 50_100),
        (10, 5_000 + 10 * 50_100),
        (-4, 5_000 + 4 * 70_000),
        (-20, 5_000 + 20 * 70_000),
        (-100, 5_000 + 20 * 70_000 + 80 * UNKNOWN_PAST_PPB),
    ],
)
def test_the_bound_grows_with_the_distance_to_the_sample_in_both_directions(distance_s: int, width_ns: int) -> None:
    """Forwards by its growth; backwards by the rate that was seen, and by the kernel's limit before anything was; and by what the pair of clocks leaves open."""
    interval, reason, _ = translated(distance_s * NS_PER_S)
    shown_ns = AS_OF_NS + distance_s * NS_PER_S + 1_000_000
    status = ClockStatus.SYNCHRONIZED if abs(distance_s) < 5 else ClockStatus.HOLDOVER

    assert interval == Interval(shown_ns - width_ns, shown_ns + 100 + width_ns, status, Reference.GRANDMASTER)
    assert reason is (Reason.OK if status is ClockStatus.SYNCHRONIZED else TranslationReason.FAR_FROM_SAMPLE)


@pytest.mark.parametrize(
    ("distance_s", "reason"),
    [
        (-1_000, TranslationReason.TOO_FAR_FROM_SAMPLE),
        (11, TranslationReason.MOMENT_IN_FUTURE),
        (-6_000, TranslationReason.TOO_FAR_FROM_SAMPLE),
    ],
)
def test_a_moment_too_far_away_or_in_the_future_has_no_interval(distance_s: int, reason: TranslationReason) -> None:
    """Beyond void_after_ns, and in the future."""
    interval, reason_code, text = translated(distance_s * NS_PER_S)

    assert (interval.earliest, interval.latest, interval.status) == (None, None, ClockStatus.UNKNOWN)
    assert (reason_code, text) == (reason, reason.text)


def test_a_moment_before_this_boot_is_refused() -> None:
    """CLOCK_BOOTTIME was never below 0."""
    moment = past.moment_at(NsRange(-1, -1), REAL_MINUS_BOOT)

    assert (
        past.translate(good_bound(as_of_ns=0), Reference.UTC, moment, NS_PER_S).reason_code
        is TranslationReason.TOO_FAR_FROM_SAMPLE
    )


def test_a_pair_holds_the_difference_whatever_the_reading_costs() -> None:
    """Between the two readings of the one clock that enclose the other's."""
    clocks = FakeClocks(real_ns=1_000, boot_ns=400)

    def slow_boottime_ns() -> int:
        clocks.advance(30)
        return clocks.boottime_ns()

    assert past.difference(clocks.realtime_ns, slow_boottime_ns) == (570, 600)


def test_a_step_hides_what_lies_before_it() -> None:
    """A step forward ends with the sample that shows it; what a step back shows twice is hidden too; small ones are none."""
    seen = Continuity().after_sample(1_000, 50_000)

    assert seen.unstepped_since_ns == 0
    assert seen.after_sample(2_000, 52_000) == seen
    assert seen.after_sample(2_000, 90_000).unstepped_since_ns == 2_000
    assert seen.after_sample(2_000, 20_000).unstepped_since_ns == 32_000
    assert seen.after_sample(2_000, 20_000).after_sample(3_000, 90_000).unstepped_since_ns == 32_000


def test_a_suspend_hides_what_lies_before_it_on_the_clock_that_stood_still() -> None:
    """A pair that was read badly is no suspend."""
    seen = Continuity().after_difference(NsRange(0, 100), 1_000)

    assert seen.awake_since_ns == 0
    assert seen.after_difference(NsRange(-5_000, 900_000), 2_000) == seen
    assert seen.after_difference(NsRange(NS_PER_S, NS_PER_S + 100), 2_000).awake_since_ns == 2_000


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    publish(tmp_path)
    return Clock(tmp_path)


def test_every_clock_of_the_machine_is_translated(clock: Clock) -> None:
    """The interval of each clock's reading holds what CLOCK_REALTIME showed around it, but for the bound."""
    before_ns = time.time_ns()
    boottime_ns, monotonic_ns, perf_counter_ns, realtime_ns = (
        past.boottime_ns(),
        time.monotonic_ns(),
        time.perf_counter_ns(),
        time.time_ns(),
    )
    after_ns = time.time_ns()
    moments = [
        clock.translate(boottime_ns=boottime_ns),
        clock.translate(monotonic_ns=monotonic_ns),
        clock.translate(perf_counter_ns=perf_counter_ns),
        clock.translate(realtime_ns=realtime_ns),
    ]

    for interval, reason, _ in moments:
        assert (interval.status, reason) == (ClockStatus.SYNCHRONIZED, Reason.OK)
        assert interval.earliest is not None and interval.latest is not None
        assert interval.earliest <= after_ns - 5_000 and before_ns + 5_000 <= interval.latest


def test_a_past_reading_is_translated_to_any_scale(clock: Clock) -> None:
    """TAI's is 37 s ahead of UTC's."""
    now_ns = past.boottime_ns()
    utc = clock.translate(boottime_ns=now_ns, reference=Reference.UTC).interval
    tai = clock.translate(boottime_ns=now_ns, reference=Reference.TAI).interval

    assert utc.earliest is not None and tai.earliest is not None
    assert (utc.reference, tai.reference) == (Reference.UTC, Reference.TAI)
    assert abs(tai.earliest - utc.earliest - 37 * NS_PER_S) < 1_000_000


def test_while_the_clock_is_unknown_so_is_its_past(tmp_path: Path) -> None:
    """With the same reason."""
    clock = Clock(tmp_path)
    none = clock.translate(boottime_ns=0).reason_code
    publish(tmp_path, **LOST)

    assert none is Reason.NO_SEGMENT
    assert Clock(tmp_path).translate(boottime_ns=past.boottime_ns()).reason_code is Reason.PARENT_CHANGED


def test_after_a_known_step_earlier_realtime_readings_are_unknown(tmp_path: Path) -> None:
    """CLOCK_REALTIME before the step is refused, the clocks that were not set are not."""
    publish(tmp_path, real_minus_boot_ns=good_bound().real_minus_boot_ns - NS_PER_S)
    clock = Clock(tmp_path)
    clock.snapshot()
    publish(tmp_path)
    before = clock.translate(realtime_ns=time.time_ns() - 10 * NS_PER_S)

    assert (before.interval.earliest, before.reason_code) == (None, TranslationReason.CLOCK_STEPPED_SINCE)
    assert clock.translate(boottime_ns=past.boottime_ns() - NS_PER_S).interval.earliest is not None
    assert clock.translate(realtime_ns=time.time_ns()).interval.earliest is not None


def test_after_a_suspend_earlier_monotonic_readings_are_unknown(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stood still meanwhile, so that its numbers of before mean another moment; BOOTTIME's do not."""
    monotonic_ns = time.monotonic_ns()
    awake_ns, real_ns = past.boottime_ns, time.time_ns
    monkeypatch.setattr(past, "boottime_ns", lambda: awake_ns() + 2 * NS_PER_S)
    monkeypatch.setattr("timesyncd.client.clock._realtime_ns", lambda: real_ns() + 2 * NS_PER_S)
    replace_time(monkeypatch, past, time_ns=lambda: real_ns() + 2 * NS_PER_S)

    assert clock.translate(monotonic_ns=monotonic_ns).reason_code is TranslationReason.SUSPENDED_SINCE
    assert clock.translate(boottime_ns=awake_ns()).interval.status is ClockStatus.SYNCHRONIZED
    assert clock.translate(monotonic_ns=time.monotonic_ns()).interval.status is ClockStatus.SYNCHRONIZED


def test_a_step_between_two_looks_at_the_clock_is_seen(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair of clocks that translates is itself compared with the sample's."""
    real_ns = time.time_ns
    replace_time(monkeypatch, past, time_ns=lambda: real_ns() + NS_PER_S)

    assert clock.translate(boottime_ns=past.boottime_ns()).reason_code is TranslationReason.CLOCK_STEPPED_SINCE


def test_exactly_one_reading_is_translated(clock: Clock) -> None:
    """None, two, or a moment of a scale are mistakes, which mypy sees, but for the last."""
    with pytest.raises(TypeError, match="one clock's reading"):
        clock.translate()  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="one clock's reading"):
        clock.translate(boottime_ns=1, realtime_ns=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="one clock's reading"):
        clock.translate(realtime_ns=UtcNs(1))


def test_a_bound_without_growth_translates(tmp_path: Path) -> None:
    """The width is the bound, and what the pair of clocks leaves open."""
    publish(tmp_path, gm_hard=Bound(5_000), publication=None)
    interval = Clock(tmp_path).translate(realtime_ns=(now_ns := time.time_ns())).interval

    assert (interval.earliest, interval.latest) == (now_ns - 5_000, now_ns + 5_000)
