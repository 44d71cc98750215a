"""
The price of asking the time with its bound: Clock.gm_now() and now() against time.time_ns(), and what each part of it costs.
Goal: at most 8x, missed since a call also measures how the clock was steered (two readings of another clock). In CPU time of the thread, so that a busy machine does not count.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import timeit
from pathlib import Path

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Interval, published
from timesyncd.client import Clock, GmNs
from timesyncd.client import clock as clock_module
from timesyncd.clocks import RawReading, SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.drivers.kernel import system_clock_frequency_ppb
from timesyncd.ipc import clock_segment
from timesyncd.ipc.seqlock import SegmentWriter

CALLS, ROUNDS = 4_000, 61

#: As one writes them; the peer comes first.
CALLED = ("time.time_ns()", "clock.gm_now()", "clock.now()")

#: The same steps as in gm_now(), in its order.
PARTS = {
    "call of an empty method": "empty.method()",
    "unpacking what is known": "words, generation, until_ns, origin_ns, period_ns, raw_ns, apart_ns, frequency, slack_ns = known",
    "reading CLOCK_REALTIME": "time_ns()",
    "reading CLOCK_MONOTONIC_RAW, twice": "clock_gettime_ns(4); clock_gettime_ns(4)",
    "is the generation the same": "words[3] == generation",
    "is it too old": "after_ns < until_ns",
    "how far it moved": "least_ns = real_ns - after_ns - apart_ns - ((after_ns - raw_ns) * frequency >> 30); "
    "most_ns = least_ns + after_ns - before_ns + slack_ns; "
    "moved_ns = most_ns if most_ns > -least_ns else -least_ns; moved_ns < 1_000",
    "the bound by now": "bound_ns = (after_ns - origin_ns) // period_ns + moved_ns",
    "the interval's two ends": "real_ns - bound_ns; real_ns + bound_ns",
    "the named result": "Quick((1, 2, 3, status))",
}

#: What was tried instead of a part, or is slower by design.
OTHERS = {
    "reading CLOCK_MONOTONIC": "monotonic_ns()",
    "reading CLOCK_BOOTTIME": "clock_gettime_ns(7)",
    "a bare tuple": "(1, 2, 3, status)",
    "Interval(...)": "Interval(1, 2, 3, status)",
    "tuple.__new__(Interval, ...)": "tuple_new(Interval, (1, 2, 3, status))",
    "clock.after(t)": "clock.after(t)",
    "clock.tai_now()": "clock.tai_now()",
    "gm_now() of a new generation": "clock._gm = clock._utc; clock._decoded = None; clock._read(); clock.gm_now()",
}


class Empty:
    def method(self) -> None:
        pass


def fresh_segment(folder: Path) -> None:
    clocks, frequency_ppb = SystemClocks(), system_clock_frequency_ppb()
    bound = ErrorBound(
        as_of_ns=clocks.boottime_ns(),
        real_minus_boot_ns=real_minus_boot_ns(clocks, 1_000),
        parent_hard=Bound(5_000, 50_100),
        gm_hard=Bound(5_000, 50_100),
        utc_hard=Bound(5_100, 50_100),
        gm_status=ClockStatus.SYNCHRONIZED,
        utc_status=ClockStatus.SYNCHRONIZED,
        utc_seconds_removed=37,
        clock="realtime",
        holdover_after_ns=1_000_000_000_000,
        frequency_ppb=frequency_ppb,
        steering_ppb=100,
        utc_steering_ppb=100,
    )
    bound = published(bound, clocks.boottime_ns(), frequency_ppb, RawReading.read())
    writer = SegmentWriter(
        folder / clock_segment.NAME, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT
    )
    writer.write(clock_segment.encode(bound, clock_segment.Epoch(boot_id(), time_namespace())))


def names(clock: Clock) -> dict[str, object]:
    """What the statements name: everything as cheap to reach as it is in gm_now()."""
    known, real_ns = clock._gm, time.time_ns()
    words, generation, until_ns, origin_ns, period_ns, raw_ns, apart_ns, frequency, slack_ns = known
    before_ns = after_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    found = dict(locals()) | vars(time) | {"time": time, "empty": Empty(), "moved_ns": 100, "bound_ns": 5_000}
    return found | {
        "Interval": Interval,
        "Quick": clock_module._FastInterval,
        "tuple_new": tuple.__new__,
        "status": ClockStatus.SYNCHRONIZED,
        "t": GmNs(real_ns),
    }


def ns_each(statements: list[str], known: dict[str, object]) -> list[list[float]]:
    """For each round, the nanoseconds of one execution of each statement; the loop around it is not counted."""
    timers = [timeit.Timer(text, timer=time.thread_time, globals=known) for text in ("pass", *statements)]
    rounds = [[timer.timeit(CALLS) / CALLS * 1e9 for timer in timers] for _ in range(ROUNDS)]
    return [[cost - empty for cost in costs] for empty, *costs in rounds]


def show(title: str, statements: dict[str, str], known: dict[str, object], peer_ns: float) -> None:
    print(title)
    columns = zip(*ns_each(list(statements.values()), known), strict=True)
    for name, column in zip(statements, columns, strict=True):
        cost_ns = statistics.median(column)
        print(f"  {name:<30} {cost_ns:7.0f} ns  {cost_ns / peer_ns:5.1f}x")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fresh_segment(Path(folder))
        clock = Clock(folder)
        assert clock.gm_now().status is clock.now().status is ClockStatus.SYNCHRONIZED, clock.reason()
        known = names(clock)
        rounds = ns_each(list(CALLED), known)
        peer_ns, gm_ns, utc_ns = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(
            f"time.time_ns() {peer_ns:.0f} ns, gm_now() {gm_ns:.0f} ns, now() {utc_ns:.0f} ns (medians of {ROUNDS} rounds)"
        )
        for name, index in (("gm_now()", 1), ("now()", 2)):
            low, middle, high = statistics.quantiles((costs[index] / costs[0] for costs in rounds), n=4)
            print(f"{name} costs {middle:.1f}x time.time_ns() (quartiles {low:.1f} to {high:.1f}; goal <= 8)")
        show("the parts of gm_now(), each alone:", PARTS, known, peer_ns)
        show("and for comparison:", OTHERS, known, peer_ns)


if __name__ == "__main__":
    main()
