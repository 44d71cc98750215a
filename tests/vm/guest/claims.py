"""
What a client claims, again and again: the time now, and that of a past reading. A line each; tests/vm/vm_truth.py reads them.

kind clock reading_ns raw_before_ns raw_after_ns asked_raw_ns earliest latest status reason

The moment of which the claim is made is that at which `clock` was read; CLOCK_MONOTONIC_RAW was read before and after it.
"""

from __future__ import annotations

import glob
import random
import sys
import time
from collections import deque
from typing import NamedTuple

sys.path[:0] = glob.glob("/opt/timesyncd/lib/python3*/site-packages")

from timesyncd.bound import Interval
from timesyncd.client import Clock

PAST_S = 30
STAMPS_A_TURN = 2


class Stamp(NamedTuple):
    """A reading of one clock, between two of CLOCK_MONOTONIC_RAW."""

    clock: str
    reading_ns: int
    before_ns: int
    after_ns: int


def raw_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def claim_line(kind: str, stamp: Stamp, asked_ns: int, interval: Interval, reason: str) -> str:
    ends = "- -" if interval.earliest is None else f"{interval.earliest} {interval.latest}"
    return f"{kind} {' '.join(map(str, stamp))} {asked_ns} {ends} {interval.status.name} {reason or '-'}"


def present_line(clock: Clock, kind: str) -> str:
    """The client reads CLOCK_REALTIME itself: it is the middle of the interval, where that is known."""
    read = clock.gm_now if kind == "gm" else clock.now
    before_ns = raw_ns()
    interval = read()
    after_ns = raw_ns()
    if interval.earliest is None or interval.latest is None:
        reason = clock.reason_code(interval.reference).code
        return claim_line(kind, Stamp("realtime", 0, before_ns, after_ns), after_ns, interval, reason)
    middle_ns = (interval.earliest + interval.latest) // 2
    return claim_line(kind, Stamp("realtime", middle_ns, before_ns, after_ns), after_ns, interval, "")


def stamps() -> list[Stamp]:
    before_ns = raw_ns()
    realtime_ns = time.time_ns()
    between_ns = raw_ns()
    boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    after_ns = raw_ns()
    return [Stamp("realtime", realtime_ns, before_ns, between_ns), Stamp("boottime", boottime_ns, between_ns, after_ns)]


def past_line(clock: Clock, stamp: Stamp) -> str:
    asked_ns = raw_ns()
    if stamp.clock == "realtime":
        reading = clock.translate(realtime_ns=stamp.reading_ns)
    else:
        reading = clock.translate(boottime_ns=stamp.reading_ns)
    return claim_line("past", stamp, asked_ns, reading.interval, reading.reason_code.code)


def main() -> None:
    seconds, period_s = map(float, sys.argv[1:])
    clock = Clock()
    kept: deque[Stamp] = deque(maxlen=round(2 * PAST_S / period_s))
    end_ns = raw_ns() + round(seconds * 1e9)
    while raw_ns() < end_ns:
        for kind in ("gm", "utc"):
            print(present_line(clock, kind))
        kept.extend(stamps())
        for stamp in random.sample(kept, min(STAMPS_A_TURN, len(kept))):
            print(past_line(clock, stamp))
        sys.stdout.flush()
        time.sleep(period_s)


if __name__ == "__main__":
    main()
