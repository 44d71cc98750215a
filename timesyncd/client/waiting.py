"""
Waits for a timestamp, and for a change of the clock's status.

An iterator decides how long to sleep next, and a small loop around it sleeps.
No sleep and no clock reading is trusted for longer than POLL_NS, so a step, a new sample or a dead daemon is noticed by then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from timesyncd.bound import ClockStatus, Interval, Reason, Reference
from timesyncd.client.past import ClockReading, ReasonCode
from timesyncd.clocks import NS_PER_S

POLL_NS = 100_000_000

#: In place of an infinite timeout.
_MAX_TIMEOUT_S = 10**9

#: The last part of a wait is spun, because a sleep ends late.
SPIN_NS = 300_000


class WaitResult(NamedTuple):
    """
    The result of a wait, as of its last clock reading.

    `reached`: True, the condition holds; False, it does not hold and the timeout ended the wait; None, it cannot be decided, for
    `reason_code` and `reason`. `lateness_ns`: this clock's reading minus the timestamp (None: no reading on that scale).
    """

    reached: bool | None
    lateness_ns: int | None
    interval: Interval
    reason_code: ReasonCode
    reason: str


class StatusChange(NamedTuple):
    """A clock's new status, and why it is not SYNCHRONIZED (else Reason.OK and an empty text)."""

    status: ClockStatus
    reason_code: Reason
    reason: str
    reference: Reference


def is_after(interval: Interval, t: int) -> bool | None:
    """Whether the timestamp has passed: True or False where that is certain, else None."""
    if interval.earliest is None or interval.latest is None:
        return None
    if interval.earliest > t:
        return True
    return False if interval.latest <= t else None


def is_before(interval: Interval, t: int) -> bool | None:
    """Whether the timestamp is still to come: True or False where that is certain, else None."""
    if interval.earliest is None or interval.latest is None:
        return None
    if interval.latest < t:
        return True
    return False if interval.earliest >= t else None


#: What a wait waits for. From an interval, the clock's reading and the timestamp: how long until the condition can hold (None:
#: unknown), and whether it holds.
Condition = Callable[[Interval, int | None, int], tuple[int | None, bool | None]]


def clock_shows(interval: Interval, reading_ns: int | None, t: int) -> tuple[int | None, bool | None]:
    """This clock reads the timestamp or later. It does so even when its error is unknown: then the second value is None."""
    if reading_ns is None:
        return None, None
    if reading_ns < t:
        return t - reading_ns, False
    return 0, None if interval.earliest is None else True


def has_passed(interval: Interval, reading_ns: int | None, t: int) -> tuple[int | None, bool | None]:
    """The timestamp has certainly passed."""
    return None if interval.earliest is None else t + 1 - interval.earliest, is_after(interval, t)


def midpoint_ns(interval: Interval) -> int | None:
    """The clock's reading: the interval's midpoint. While the interval is unknown, CLOCK_REALTIME, or None for TAI."""
    if interval.earliest is not None and interval.latest is not None:
        return (interval.earliest + interval.latest) // 2
    return None if interval.reference is Reference.TAI else time.time_ns()


@dataclass
class Wait:
    """
    Iterates over sleeps, each until a CLOCK_MONOTONIC time before which the condition cannot hold.

    It ends when the condition holds or at the timeout; `result` is as of the last clock reading.
    """

    now: Callable[[], Interval]
    read: Callable[[], ClockReading]
    condition: Condition
    t: int
    timeout_s: float
    result: WaitResult = field(init=False)

    def __iter__(self) -> Iterator[int]:
        deadline_ns = time.monotonic_ns() + timeout_ns(self.timeout_s)
        while True:
            left_ns = self._check()
            now_ns = time.monotonic_ns()
            if now_ns >= deadline_ns or (left_ns is not None and left_ns <= 0):
                return
            yield min(now_ns + (POLL_NS if left_ns is None else min(left_ns, POLL_NS)), deadline_ns)

    def _check(self) -> int | None:
        """The time left. The result is built at each check, because code that did not just run costs microseconds."""
        reading = ClockReading(self.now(), Reason.OK, "")
        if reading.interval.status is not ClockStatus.SYNCHRONIZED:
            reading = self.read()
        reading_ns = midpoint_ns(reading.interval)
        left_ns, reached = self.condition(reading.interval, reading_ns, self.t)
        lateness_ns = None if reading_ns is None else reading_ns - self.t
        self.result = WaitResult(reached, lateness_ns, *reading)
        return left_ns


def sleep_and_spin(wait: Wait) -> WaitResult:
    """Sleeps up to SPIN_NS before each time that the wait yields, and spins the rest by reading the clock."""
    for until_ns in wait:
        sleep_ns = until_ns - time.monotonic_ns() - SPIN_NS
        if sleep_ns > 0:
            time.sleep(sleep_ns / NS_PER_S)
    return wait.result


def timeout_ns(timeout_s: float) -> int:
    """In nanoseconds, at least 0 and at most thirty years, which stand for infinity. Raises ValueError for NaN."""
    if math.isnan(timeout_s):
        raise ValueError("timeout_s is NaN: give a number of seconds, or math.inf to wait without a limit")
    return round(min(max(timeout_s, 0), _MAX_TIMEOUT_S) * NS_PER_S)


def changes_and_sleeps(read: Callable[[], StatusChange], timeout_s: float | None) -> Iterator[StatusChange | int]:
    """
    The present status, then each different one that a poll finds, and between them the lengths of sleeps in ns.

    Ends when there was no change for `timeout_s`. Raises ValueError for NaN at the call, not at the first status.
    """
    return _changes_and_sleeps(read, None if timeout_s is None else timeout_ns(timeout_s))


def _changes_and_sleeps(read: Callable[[], StatusChange], max_unchanged_ns: int | None) -> Iterator[StatusChange | int]:
    last: StatusChange | None = None
    changed_ns = 0
    while True:
        status = read()
        if status != last:
            last = status
            yield status
            changed_ns = time.monotonic_ns()
            continue
        unchanged_ns = time.monotonic_ns() - changed_ns
        left_ns = POLL_NS if max_unchanged_ns is None else max_unchanged_ns - unchanged_ns
        if left_ns <= 0:
            return
        yield min(POLL_NS, left_ns)


def status_changes(changes: Iterator[StatusChange | int]) -> Iterator[StatusChange]:
    """The changes alone, with the sleeps between them slept."""
    for change in changes:
        if isinstance(change, StatusChange):
            yield change
        else:
            time.sleep(change / NS_PER_S)
