"""Waiting: never early, never for longer than told, and never on one look at the clock."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from published import LOST, publish

from timesyncd.bound import Bound, ClockStatus, Interval, Reason, Reference
from timesyncd.client import Clock, GmNs, StatusChange, TaiNs, WaitResult, waiting
from timesyncd.client.waiting import POLL_NS, Wait
from timesyncd.clocks import NS_PER_S

MS = 1_000_000


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """Whose bound is good, 5 us wide, and does not grow."""
    publish(tmp_path, gm_hard=Bound(5_000))
    return Clock(tmp_path)


def known(middle_ns: int, half_ns: int) -> Interval:
    return Interval(middle_ns - half_ns, middle_ns + half_ns, ClockStatus.SYNCHRONIZED, Reference.GRANDMASTER)


UNKNOWN = Interval(None, None, ClockStatus.UNKNOWN, Reference.TAI)


def stretches(looks: list[Interval], aim: waiting.Aim, t: int) -> tuple[list[int], WaitResult]:
    """What a wait that sees this, one after the other, would still sleep each time, and its verdict."""
    rest: Iterator[Interval] = iter(looks)
    wait = Wait(lambda: next(rest), lambda: (UNKNOWN, "why"), aim, t, timeout_s=100)
    naps = [until_ns - time.monotonic_ns() for until_ns in wait]
    return naps, wait.waited


def test_no_nap_outlasts_a_step() -> None:
    """However far the moment is, and also while nothing is known, the clock is looked at ten times a second."""
    looks = [known(0, 5), known(NS_PER_S, 5), UNKNOWN, known(3 * NS_PER_S, 5)]
    naps, waited = stretches(looks, waiting.until, 2 * NS_PER_S)

    assert [nap <= POLL_NS for nap in naps] == [True] * 3
    assert waited == (True, NS_PER_S, looks[-1], "")


def test_a_clock_that_is_set_back_is_waited_for_anew() -> None:
    """What it showed before the step counts no more."""
    looks = [known(999, 5), known(0, 5), known(1_000, 5)]

    assert stretches(looks, waiting.until, 1_000)[1].lateness_ns == 0


def test_a_commit_wait_ends_when_the_whole_interval_lies_behind_the_moment() -> None:
    """Not when the clock shows it, not when the earliest end is the moment itself."""
    looks = [known(1_000, 500), known(1_499, 500), known(1_500, 500), known(1_501, 500)]
    waited = stretches(looks, waiting.after, 1_000)[1]

    assert waited == (True, 501, looks[-1], "")


def test_a_wait_ends_never_before_the_clock_shows_the_moment(clock: Clock) -> None:
    """Read right after it, the clock shows the moment or a later one; so it says itself."""
    for _ in range(5):
        t = GmNs(time.time_ns() + MS)
        waited = clock.wait_until(t, timeout_s=5)

        assert GmNs(time.time_ns()) >= t
        assert waited.reached is True and waited.reason == ""
        assert waited.lateness_ns is not None and waited.lateness_ns >= 0


def test_a_commit_wait_ends_when_the_moment_has_surely_passed(clock: Clock) -> None:
    """`reached` says what `after` says from then on."""
    t = GmNs(time.time_ns() + MS)
    waited = clock.wait_after(t, timeout_s=5)

    assert waited.reached is True
    assert waited.interval.earliest is not None and waited.interval.earliest > int(t)
    assert clock.after(t) is True


def test_a_moment_of_the_past_is_not_waited_for(clock: Clock) -> None:
    """It is late by as much as it is past."""
    waited = clock.wait_until(GmNs(time.time_ns() - NS_PER_S), timeout_s=0)

    assert waited.reached is True
    assert waited.lateness_ns is not None and waited.lateness_ns >= NS_PER_S


@pytest.mark.parametrize("wait", [Clock.wait_until, Clock.wait_after])
def test_a_time_out_is_a_verdict(clock: Clock, wait: Callable[..., WaitResult]) -> None:
    """No exception: the moment was not reached."""
    waited = wait(clock, GmNs(time.time_ns() + 3_600 * NS_PER_S), timeout_s=0.01)

    assert waited.reached is False
    assert waited.lateness_ns is not None and waited.lateness_ns < -3_000 * NS_PER_S


def test_without_a_daemon_a_hold_still_holds(tmp_path: Path) -> None:
    """Until this clock shows the moment; whether that is so nobody can tell, and the reason is there."""
    t = GmNs(time.time_ns() + MS)
    waited = Clock(tmp_path).wait_until(t, timeout_s=5)

    assert GmNs(time.time_ns()) >= t
    assert (waited.reached, waited.reason) == (None, Reason.NO_SEGMENT.text)


def test_without_a_daemon_a_commit_wait_never_says_yes(tmp_path: Path) -> None:
    """It waits for the daemon until the time is out, and then cannot tell."""
    waited = Clock(tmp_path).wait_after(GmNs(0), timeout_s=0.01)

    assert (waited.reached, waited.reason) == (None, Reason.NO_SEGMENT.text)


def test_tai_that_nobody_knows_is_not_shown_by_any_clock(tmp_path: Path) -> None:
    """CLOCK_REALTIME alone says nothing of TAI."""
    publish(tmp_path, utc_seconds_removed=None)
    waited = Clock(tmp_path).wait_until(TaiNs(0), timeout_s=0.01)

    assert (waited.reached, waited.lateness_ns, waited.reason) == (None, None, Reason.UTC_OFFSET_UNKNOWN.text)


def test_a_commit_wait_goes_on_when_the_daemon_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was unknown when the wait began is waited for."""
    monkeypatch.setattr(waiting, "POLL_NS", MS)
    publish(tmp_path, **LOST)
    clock = Clock(tmp_path)
    t = GmNs(time.time_ns())
    later = threading.Timer(0.05, publish, (tmp_path,))
    later.start()
    waited = clock.wait_after(t, timeout_s=20)
    later.join()

    assert (waited.reached, waited.interval.status) == (True, ClockStatus.SYNCHRONIZED)


async def test_the_event_loop_runs_on_while_a_coroutine_waits(clock: Clock) -> None:
    """The twins give the same verdicts, and neither spins."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    t = GmNs(time.time_ns() + 50 * MS)
    waits = await asyncio.gather(clock.wait_until_async(t, timeout_s=5), clock.wait_after_async(t, timeout_s=5))
    ticking.cancel()

    assert [waited.reached for waited in waits] == [True, True]
    assert clock.after(t) is True
    assert ticks > 3


GOOD = StatusChange(ClockStatus.SYNCHRONIZED, "", Reference.GRANDMASTER)
BAD = StatusChange(ClockStatus.DISRUPTED, Reason.PARENT_CHANGED.text, Reference.GRANDMASTER)


def test_changes_are_the_present_state_and_each_other_one(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new bound of the same status is no change; the end comes when there was none for the time given."""
    monkeypatch.setattr(waiting, "POLL_NS", MS)
    seen = []
    for change in clock.changes(timeout_s=0.05):
        seen.append(change)
        publish(tmp_path, **(LOST if len(seen) == 1 else {}))

    assert seen == [GOOD, BAD, GOOD]


async def test_changes_come_to_a_coroutine_too(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for `async for`."""
    monkeypatch.setattr(waiting, "POLL_NS", MS)
    seen = []
    async for change in clock.changes_async(timeout_s=0.05):
        seen.append(change)
        publish(tmp_path, **(LOST if len(seen) == 1 else {}))

    assert seen == [GOOD, BAD, GOOD]


def test_each_reference_has_its_own_changes(clock: Clock) -> None:
    """Of TAI as of the grandmaster."""
    assert [change.reference for change in clock.changes(Reference.TAI, timeout_s=0)] == [Reference.TAI]


@pytest.mark.parametrize("timeout_s", [math.inf, 1e300])
def test_a_wait_may_be_for_ever(clock: Clock, timeout_s: float) -> None:
    """It ends when the moment comes; so do the changes when nobody asks for more."""
    wait = Clock.wait_until(clock, GmNs(time.time_ns() + MS), timeout_s=timeout_s)
    commit = Clock.wait_after(clock, GmNs(time.time_ns() + MS), timeout_s=timeout_s)
    steps = waiting.changing(lambda: GOOD, timeout_s)

    assert (wait.reached, commit.reached) == (True, True)
    assert [next(steps), next(steps)] == [GOOD, POLL_NS]


def test_a_timeout_below_zero_is_one_look(clock: Clock) -> None:
    """Also infinitely far below."""
    assert clock.wait_until(GmNs(time.time_ns() + NS_PER_S), timeout_s=-math.inf).reached is False


def test_a_timeout_that_is_no_number_is_named(clock: Clock) -> None:
    """NaN is a mistake of the caller's, told at the call."""
    for call in (lambda: clock.wait_until(GmNs(0), timeout_s=math.nan), lambda: clock.changes(timeout_s=math.nan)):
        with pytest.raises(ValueError, match="timeout_s is not a number"):
            call()
