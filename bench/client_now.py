"""The price of asking the time with its bound: Clock.gm_now() against time.time_ns(), in one process. Goal: at most 10x."""

from __future__ import annotations

import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

from timesyncd import segment
from timesyncd.bound import Bound, ClockStatus, ErrorBound
from timesyncd.client import Clock
from timesyncd.clocks import SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.shm import SegmentWriter

CALLS, ROUNDS = 20_000, 41


def fresh_segment(folder: Path) -> None:
    clocks = SystemClocks()
    bound = ErrorBound(
        as_of_ns=clocks.boottime_ns(),
        real_minus_boot_ns=real_minus_boot_ns(clocks, 1_000),
        parent_hard=Bound(5_000, 50_100),
        gm_hard=Bound(5_000, 50_100),
        utc_hard=Bound(5_100, 50_100),
        gm_status=ClockStatus.SYNCHRONIZED,
        utc_status=ClockStatus.SYNCHRONIZED,
        clock="realtime",
        holdover_after_ns=1_000_000_000_000,
    )
    writer = SegmentWriter(folder / segment.NAME, segment.MAGIC, segment.LAYOUT_VERSION, segment.WORD_COUNT)
    writer.write(segment.encode(bound, segment.Epoch(boot_id(), time_namespace())))


def ns_a_call(function: Callable[[], object]) -> float:
    return timeit.timeit(function, number=CALLS) / CALLS * 1e9


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fresh_segment(Path(folder))
        clock = Clock(folder)
        assert clock.gm_now().status is ClockStatus.SYNCHRONIZED, clock.reason()
        rounds = [(ns_a_call(time.time_ns), ns_a_call(clock.gm_now), ns_a_call(clock.now)) for _ in range(ROUNDS)]
    peer, gm, utc = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratios = sorted(g / p for p, g, _ in rounds)
    print(f"time.time_ns() {peer:.0f} ns, gm_now() {gm:.0f} ns, now() {utc:.0f} ns (medians of {ROUNDS} rounds)")
    print(
        f"gm_now() costs {statistics.median(ratios):.1f}x time.time_ns() (quartiles {ratios[10]:.1f} to {ratios[30]:.1f}; goal <= 10)"
    )


if __name__ == "__main__":
    main()
