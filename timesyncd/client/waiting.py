"""
Waiting for a moment, and for the clock's status to change: iterators decide how long to sleep, small loops sleep.

Nothing here trusts a sleep, or a clock, for longer than CHECK_NS: a step, a new sample or a daemon that died is seen by then.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from timesyncd.bound import ClockStatus, Interval, Reference
from timesyncd.clocks import NS_PER_S

POLL_NS = 100_000_000

_FOR_EVER_S = 10**9

#: The last part of a wait is spun, because a sleep ends late.
SPIN_NS = 300_000


class WaitResult(NamedTuple):
    """
    What became of a wait, as of its last look at the clock.

    `reached`: True, what was waited for is so; False, it is not, the timeout came first; None, it cannot be told, for
    `reason`. `lateness_ns`: what this clock showed then, less the moment (None: it shows nothing on that scale).
    """

    reached: bool | None
    lateness_ns: int | None
    interval: Interval
    reason: str


class StatusChange(NamedTuple):
    """What a clock's status has become, and why it is not SYNCHRONIZED (else empty)."""

    status: ClockStatus
    reason: str
    reference: Reference


def is_after(interval: Interval, t: int) -> bool | None:
    """The moment has passed: surely, surely not, or (None) that cannot be told."""
    if interval.earliest is None or interval.latest is None:
        return None
    if interval.earliest > t:
        return True
    return False if interval.latest <= t else None


def is_before(interval: Interval, t: int) -> bool | None:
    """The moment is yet to come: surely, surely not, or (None) that cannot be told."""
    if interval.earliest is None or interval.latest is None:
        return None
    if interval.latest < t:
        return True
    return False if interval.earliest >= t else None


#: How long it is until what is waited for, by an interval and what the clock shows (None: nobody knows), and whether it is so.
Aim = Callable[[Interval, int | None, int], tuple[int | None, bool | None]]


def until(interval: Interval, shown_ns: int | None, t: int) -> tuple[int | None, bool | None]:
    """This clock shows the moment, or a later one. It does so also when nobody knows how wrong it is: then that is None."""
    if shown_ns is None:
        return None, None
    if shown_ns < t:
        return t - shown_ns, False
    return 0, None if interval.earliest is None else True


def after(interval: Interval, shown_ns: int | None, t: int) -> tuple[int | None, bool | None]:
    """The moment has surely passed."""
    return None if interval.earliest is None else t + 1 - interval.earliest, is_after(interval, t)


def midpoint_ns(interval: Interval) -> int | None:
    """What the clock showed: the middle. UTC and the grandmaster's scale it shows also when unknown, TAI not."""
    if interval.earliest is not None and interval.latest is not None:
        return (interval.earliest + interval.latest) // 2
    return None if interval.reference is Reference.TAI else time.time_ns()


@dataclass
class Wait:
    """
    Iterates over naps, each until a moment on CLOCK_MONOTONIC before which nothing can happen. It ends when none is left, or
    the time is out; `waited` is as of the last look.
    """

    now: Callable[[], Interval]
    explained: Callable[[], tuple[Interval, str]]
    aim: Aim
    t: int
    timeout_s: float
    waited: WaitResult = field(init=False)

    def __iter__(self) -> Iterator[int]:
        give_up_ns = time.monotonic_ns() + timeout_ns(self.timeout_s)
        while True:
            left_ns = self._look()
            now_ns = time.monotonic_ns()
            if now_ns >= give_up_ns or (left_ns is not None and left_ns <= 0):
                return
            yield min(now_ns + (POLL_NS if left_ns is None else min(left_ns, POLL_NS)), give_up_ns)

    def _look(self) -> int | None:
        """How long it is. The verdict is ready at each look, because code that did not just run costs microseconds."""
        interval, reason = self.now(), ""
        if interval.status is not ClockStatus.SYNCHRONIZED:
            interval, reason = self.explained()
        shown_ns = midpoint_ns(interval)
        left_ns, reached = self.aim(interval, shown_ns, self.t)
        lateness_ns = None if shown_ns is None else shown_ns - self.t
        self.waited = WaitResult(reached, lateness_ns, interval, reason)
        return left_ns


def sleep_and_spin(naps: Wait) -> WaitResult:
    """Spins by looking."""
    for until_ns in naps:
        sleep_ns = until_ns - time.monotonic_ns() - SPIN_NS
        if sleep_ns > 0:
            time.sleep(sleep_ns / NS_PER_S)
    return naps.waited


async def sleep_async(naps: Wait) -> WaitResult:
    """Never holds the event loop, which wakes up to a millisecond late."""
    for until_ns in naps:
        await asyncio.sleep((until_ns - time.monotonic_ns()) / NS_PER_S)
    return naps.waited


def timeout_ns(timeout_s: float) -> int:
    """At least 0, and at most thirty years, which stand for infinity. Raises ValueError for NaN."""
    if math.isnan(timeout_s):
        raise ValueError("timeout_s is not a number")
    return round(min(max(timeout_s, 0), _FOR_EVER_S) * NS_PER_S)


def changing(state: Callable[[], StatusChange], timeout_s: float | None) -> Iterator[StatusChange | int]:
    """
    The state, then each other one that a look finds, and in between naps in ns; ends when none has come for so long. Raises
    ValueError for NaN at once, not with the first state.
    """
    return _changing(state, None if timeout_s is None else timeout_ns(timeout_s))


def _changing(state: Callable[[], StatusChange], quiet_at_most_ns: int | None) -> Iterator[StatusChange | int]:
    last: StatusChange | None = None
    given_ns = 0
    while True:
        found = state()
        if found != last:
            last = found
            yield found
            given_ns = time.monotonic_ns()
            continue
        quiet_ns = time.monotonic_ns() - given_ns
        rest_ns = POLL_NS if quiet_at_most_ns is None else quiet_at_most_ns - quiet_ns
        if rest_ns <= 0:
            return
        yield min(POLL_NS, rest_ns)


def changes(steps: Iterator[StatusChange | int]) -> Iterator[StatusChange]:
    for step in steps:
        if isinstance(step, StatusChange):
            yield step
        else:
            time.sleep(step / NS_PER_S)


async def changes_async(steps: Iterator[StatusChange | int]) -> AsyncIterator[StatusChange]:
    for step in steps:
        if isinstance(step, StatusChange):
            yield step
        else:
            await asyncio.sleep(step / NS_PER_S)
