"""
What a machine allows a timed barrier at most: the exit skew of two processes that do nothing but wait for instants of the clock that both read.

Spinning throughout shows another limit: the kernel stops real-time threads for 50 ms of each second that they fill (sched_rt_runtime_us).

No collective, no daemon, no job: each process has a core of its own and waits for the same instants. What skew is left is the scheduler's, the idle states',
the interrupts' and, on a virtual machine, the host's. A barrier cannot be better, so its goal against torch.distributed.barrier() can be held against this
floor. Each way to wait is tried in turn, some rounds at a time. Needs CAP_SYS_NICE, and root for /dev/cpu_dma_latency.

    python bench/barrier_floor.py [--rounds 1000] [--repeats 3]

Wake-ups by futex are in "sleeps": time.sleep() ends by a timer of the kernel and a wake-up of the thread, as a futex's would.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import statistics
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection

RANKS, PRIORITY, PERIOD_NS, LEAD_NS = 2, 10, 3_000_000, 300_000_000

#: sched_setattr(2): its number on x86-64 and on aarch64, the policy, and the reservation, ns.
SET_ATTR = {"x86_64": 314, "aarch64": 274}
SCHED_DEADLINE, RUNTIME_NS = 6, 1_000_000


@dataclass(frozen=True)
class Way:
    """`spin_ns`: the last part of each wait that is spun. `awake`: no deeper idle state than C0."""

    name: str
    spin_ns: int
    scheduling: str = "other"
    pinned: bool = True
    awake: bool = False


WAYS = (
    Way("ordinary, spins the last 0.3 ms", 300_000),
    Way("SCHED_FIFO, spins the last 0.3 ms", 300_000, "fifo"),
    Way("SCHED_FIFO, spins the last 0.3 ms, not pinned", 300_000, "fifo", pinned=False),
    Way("SCHED_FIFO, spins the last 2 ms", 2_000_000, "fifo"),
    Way("SCHED_FIFO, spins the last 0.3 ms, no idle states", 300_000, "fifo", awake=True),
    Way("SCHED_FIFO, spins the last 2 ms, no idle states", 2_000_000, "fifo", awake=True),
    Way("SCHED_FIFO, spins throughout", PERIOD_NS, "fifo"),
    Way("SCHED_DEADLINE, spins the last 0.3 ms", 300_000, "deadline", pinned=False),
)


def set_deadline() -> None:
    """Raises OSError."""
    attributes = struct.pack("<IIQiIQQQ", 48, SCHED_DEADLINE, 0, 0, 0, RUNTIME_NS, PERIOD_NS, PERIOD_NS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(SET_ATTR[os.uname().machine], 0, attributes, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def wait_until(instant_ns: int, spin_ns: int) -> int:
    while (now_ns := time.time_ns()) < instant_ns:
        if instant_ns - now_ns > spin_ns:
            time.sleep((instant_ns - now_ns - spin_ns) / 1e9)
    return now_ns


def rank_process(rank: int, way: Way, first_ns: int, rounds: int, link: Connection) -> None:
    """Sends the readings that released it, or the error's text."""
    with ExitStack() as stack:
        try:
            if way.pinned:
                os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
            if way.awake:
                latency = stack.enter_context(open("/dev/cpu_dma_latency", "wb", buffering=0))
                latency.write(struct.pack("<i", 0))
            _SCHEDULINGS[way.scheduling]()
        except OSError as error:
            link.send(str(error))
            return
        link.send([wait_until(first_ns + number * PERIOD_NS, way.spin_ns) for number in range(rounds)])


def _set_fifo() -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))


def _keep() -> None:
    pass


_SCHEDULINGS: dict[str, Callable[[], None]] = {"other": _keep, "fifo": _set_fifo, "deadline": set_deadline}


def skews_us(way: Way, rounds: int) -> list[float] | str:
    context = multiprocessing.get_context("fork")
    links = [context.Pipe() for _ in range(RANKS)]
    first_ns = time.time_ns() + LEAD_NS
    processes = [
        context.Process(target=rank_process, args=(rank, way, first_ns, rounds, links[rank][1]))
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    found = [ours.recv() for ours, _ in links]
    for process in processes:
        process.join()
    for each in found:
        if isinstance(each, str):
            return each
    return [abs(one - other) / 1e3 for one, other in zip(*found, strict=True)]


def stolen_ticks() -> int:
    with open("/proc/stat") as stat:
        return int(stat.readline().split()[8])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(
        f"{RANKS} processes on {os.cpu_count()} cores, {options.repeats} times {options.rounds} instants 3 ms apart; exit skew, us"
    )
    found: dict[Way, list[float]] = {way: [] for way in WAYS}
    stolen = stolen_ticks()
    for _ in range(options.repeats):
        for way, kept in found.items():
            skews = skews_us(way, options.rounds)
            if isinstance(skews, str):
                print(f"  {way.name}: refused: {skews}", file=sys.stderr)
            else:
                kept += skews
    for way, kept in found.items():
        if kept:
            cuts = statistics.quantiles(kept, n=1000)
            print(
                f"  {way.name:50} p50 {cuts[499]:7.2f}  p99 {cuts[989]:8.2f}  p99.9 {cuts[998]:8.2f}  most {max(kept):8.2f}"
            )
    print(f"the host took {stolen_ticks() - stolen} ticks of 10 ms meanwhile")


if __name__ == "__main__":
    main()
