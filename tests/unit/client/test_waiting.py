"""A wait is never early, never longer than its timeout, and never based on one reading of the clock."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from published import LOST, publish

from timesyncd.bound import Bound, ClockStatus, Interval, Reason, Reference
from timesyncd.client import Clock, ClockReading, GmNs, StatusChange, TaiNs, WaitResult, waiting
from timesyncd.client.waiting import POLL_NS, Wait
from timesyncd.clocks import NS_PER_S

MS = 1_000_000


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """A clock whose bound is 5 us and does not grow."""
    publish(tmp_path, gm_hard=Bound(5_000))
    return Clock(tmp_path)


def known(middle_ns: int, half_ns: int) -> Interval:
    return Interval(middle_ns - half_ns, middle_ns + half_ns, ClockStatus.SYNCHRONIZED, Reference.GRANDMASTER)


UNKNOWN = Interval(None, None, ClockStatus.UNKNOWN, Reference.TAI)


def run_wait(readings: list[Interval], condition: waiting.Condition, t: int) -> tuple[list[int], WaitResult]:
    """The lengths of a wait's sleeps when the clock gives these readings one after the other, and its result."""
    rest: Iterator[Interval] = iter(readings)
    unknown = ClockReading(UNKNOWN, Reason.EXPIRED, "why")
    wait = Wait(lambda: next(rest), lambda: unknown, condition, t, timeout_s=100)
    sleeps = [until_ns - time.monotonic_ns() for until_ns in wait]
    return sleeps, wait.result


def test_no_sleep_outlasts_a_step() -> None:
    """However far the timestamp is, and while the clock is unknown, the clock is read ten times a second."""
    readings = [known(0, 5), known(NS_PER_S, 5), UNKNOWN, known(3 * NS_PER_S, 5)]
    sleeps, waited = run_wait(readings, waiting.clock_shows, 2 * NS_PER_S)

    assert [sleep <= POLL_NS for sleep in sleeps] == [True] * 3
    assert waited == (True, NS_PER_S, readings[-1], Reason.OK, "")


def test_a_wait_continues_after_the_clock_is_set_back() -> None:
    """The reading from before the step does not count."""
    readings = [known(999, 5), known(0, 5), known(1_000, 5)]

    assert run_wait(readings, waiting.clock_shows, 1_000)[1].lateness_ns == 0


def test_a_commit_wait_ends_when_the_whole_interval_is_after_the_timestamp() -> None:
    """It does not end when the clock reads the timestamp, nor when the earliest end equals it."""
    readings = [known(1_000, 500), known(1_499, 500), known(1_500, 500), known(1_501, 500)]
    waited = run_wait(readings, waiting.has_passed, 1_000)[1]

    assert waited == (True, 501, readings[-1], Reason.OK, "")


def test_a_wait_never_ends_before_the_clock_reads_the_timestamp(clock: Clock) -> None:
    """Read directly after it, the clock is at the timestamp or later, and so is the result."""
    for _ in range(5):
        t = GmNs(time.time_ns() + MS)
        waited = clock.wait_until(t, timeout_s=5)

        assert GmNs(time.time_ns()) >= t
        assert waited.reached is True and waited.reason_code is Reason.OK
        assert waited.lateness_ns is not None and waited.lateness_ns >= 0


def test_a_commit_wait_ends_when_the_timestamp_has_certainly_passed(clock: Clock) -> None:
    """`reached` equals `after` from then on."""
    t = GmNs(time.time_ns() + MS)
    waited = clock.wait_after(t, timeout_s=5)

    assert waited.reached is True
    assert waited.interval.earliest is not None and waited.interval.earliest > int(t)
    assert clock.after(t) is True


def test_a_wait_for_a_past_timestamp_returns_at_once(clock: Clock) -> None:
    """The lateness is how long ago the timestamp was."""
    waited = clock.wait_until(GmNs(time.time_ns() - NS_PER_S), timeout_s=0)

    assert waited.reached is True
    assert waited.lateness_ns is not None and waited.lateness_ns >= NS_PER_S


@pytest.mark.parametrize("wait", [Clock.wait_until, Clock.wait_after])
def test_a_timeout_is_a_result(clock: Clock, wait: Callable[..., WaitResult]) -> None:
    """There is no exception: the timestamp was not reached."""
    waited = wait(clock, GmNs(time.time_ns() + 3_600 * NS_PER_S), timeout_s=0.01)

    assert waited.reached is False
    assert waited.lateness_ns is not None and waited.lateness_ns < -3_000 * NS_PER_S


def test_without_a_daemon_wait_until_still_waits(tmp_path: Path) -> None:
    """It waits until this clock reads the timestamp; `reached` is None, with the reason."""
    t = GmNs(time.time_ns() + MS)
    waited = Clock(tmp_path).wait_until(t, timeout_s=5)

    assert GmNs(time.time_ns()) >= t
    assert (waited.reached, waited.reason_code, waited.reason) == (None, Reason.NO_SEGMENT, Reason.NO_SEGMENT.text)


def test_without_a_daemon_a_commit_wait_never_succeeds(tmp_path: Path) -> None:
    """It waits for the daemon until the timeout, and then `reached` is None."""
    waited = Clock(tmp_path).wait_after(GmNs(0), timeout_s=0.01)

    assert (waited.reached, waited.reason_code, waited.reason) == (None, Reason.NO_SEGMENT, Reason.NO_SEGMENT.text)


def test_unknown_tai_has_no_reading(tmp_path: Path) -> None:
    """CLOCK_REALTIME alone does not give TAI."""
    publish(tmp_path, utc_seconds_removed=None)
    waited = Clock(tmp_path).wait_until(TaiNs(0), timeout_s=0.01)

    assert (waited.reached, waited.lateness_ns, waited.reason_code) == (None, None, Reason.UTC_OFFSET_UNKNOWN)


def test_a_commit_wait_continues_when_the_daemon_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock was unknown at the start of the wait."""
    monkeypatch.setattr(waiting, "POLL_NS", MS)
    publish(tmp_path, **LOST)
    clock = Clock(tmp_path)
    t = GmNs(time.time_ns())
    later = threading.Timer(0.05, publish, (tmp_path,))
    later.start()
    waited = clock.wait_after(t, timeout_s=20)
    later.join()

    assert (waited.reached, waited.interval.status) == (True, ClockStatus.SYNCHRONIZED)


GOOD = StatusChange(ClockStatus.SYNCHRONIZED, Reason.OK, "", Reference.GRANDMASTER)
BAD = StatusChange(ClockStatus.DISRUPTED, Reason.PARENT_CHANGED, Reason.PARENT_CHANGED.text, Reference.GRANDMASTER)


def test_status_changes_are_the_present_status_and_each_change(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new bound with the same status is no change; it ends when there was no change for the timeout."""
    monkeypatch.setattr(waiting, "POLL_NS", MS)
    seen = []
    for change in clock.status_changes(timeout_s=0.05):
        seen.append(change)
        publish(tmp_path, **(LOST if len(seen) == 1 else {}))

    assert seen == [GOOD, BAD, GOOD]


def test_each_reference_has_its_own_changes(clock: Clock) -> None:
    """TAI has its own status changes."""
    assert [change.reference for change in clock.status_changes(Reference.TAI, timeout_s=0)] == [Reference.TAI]


@pytest.mark.parametrize("timeout_s", [math.inf, 1e300])
def test_a_wait_may_have_no_timeout(clock: Clock, timeout_s: float) -> None:
    """An infinite timeout waits until the timestamp."""
    wait = Clock.wait_until(clock, GmNs(time.time_ns() + MS), timeout_s=timeout_s)
    commit = Clock.wait_after(clock, GmNs(time.time_ns() + MS), timeout_s=timeout_s)
    steps = waiting.changes_and_sleeps(lambda: GOOD, timeout_s)

    assert (wait.reached, commit.reached) == (True, True)
    assert [next(steps), next(steps)] == [GOOD, POLL_NS]


def test_a_negative_timeout_is_one_reading(clock: Clock) -> None:
    """This holds for minus infinity too."""
    assert clock.wait_until(GmNs(time.time_ns() + NS_PER_S), timeout_s=-math.inf).reached is False


def test_a_nan_timeout_raises_at_the_call(clock: Clock) -> None:
    """NaN raises ValueError at the call."""
    for call in (
        lambda: clock.wait_until(GmNs(0), timeout_s=math.nan),
        lambda: clock.status_changes(timeout_s=math.nan),
    ):
        with pytest.raises(ValueError, match="timeout_s is NaN"):
            call()
