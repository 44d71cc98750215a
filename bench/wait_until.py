"""How late Clock.wait_until() returns, against time.sleep() to the same instant, and what the spinning costs."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from client_now import fresh_segment

from timesyncd.client import Clock, GmNs

WAITS, TIMEOUT_S = 1_000, 1.0


def lateness(wait: Callable[[int], object]) -> tuple[int, int]:
    """(ns after the instant, ns of CPU time) of one wait of 1 to 4 ms."""
    busy_ns = time.thread_time_ns()
    instant_ns = time.time_ns() + random.randrange(1_000_000, 4_000_000)
    wait(instant_ns)
    late_ns = time.time_ns() - instant_ns
    return late_ns, time.thread_time_ns() - busy_ns


def percentiles(lates: list[int]) -> tuple[float, float]:
    """p50 and p99, in microseconds."""
    hundredths = statistics.quantiles(lates, n=100)
    return hundredths[49] / 1e3, hundredths[98] / 1e3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fresh_segment(Path(folder))
        clock = Clock(folder)
        ways: tuple[Callable[[int], object], ...] = (
            lambda t: time.sleep((t - time.time_ns()) / 1e9),
            lambda t: clock.wait_until(GmNs(t), timeout_s=TIMEOUT_S),
        )
        rounds = [[lateness(way) for way in ways] for _ in range(WAITS)]
    found = [[late for late, _ in column] for column in zip(*rounds, strict=True)]
    busy = [statistics.mean(spent for _, spent in column) / 1e3 for column in zip(*rounds, strict=True)]
    (sleep_p50, sleep_p99), (ours_p50, ours_p99) = (percentiles(lates) for lates in found)
    print(
        f"time.sleep()        late by p50 {sleep_p50:7.1f} us, p99 {sleep_p99:7.1f} us; {busy[0]:5.0f} us of CPU time each"
    )
    print(
        f"wait_until()        late by p50 {ours_p50:7.1f} us, p99 {ours_p99:7.1f} us; {busy[1]:5.0f} us of CPU time each"
    )
    print(
        f"wait_until() is later by {ours_p50 / sleep_p50:.2f}x (p50) and {ours_p99 / sleep_p99:.2f}x (p99) of time.sleep()"
    )
    print(f"never early: the earliest came {min(found[1])} ns after its instant")


if __name__ == "__main__":
    main()
