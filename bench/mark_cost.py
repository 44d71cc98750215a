"""
The price of a mark: what timing one synchronization costs a training loop, against torch.profiler.record_function around the same
nothing, with no profiler running. Goal: at most 3 us. In CPU time of the thread, so that a busy machine does not count.

A daemon's socket is there and is emptied; the datagram that a tenth of a second of marks becomes is timed apart, with and without its recording.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

from torch.profiler import record_function

from timesyncd.client import Job, Kind
from timesyncd.ipc.job_datagram import SOCKET_NAME

#: A round fits into the meter's buffer: a mark that is dropped is cheaper.
CALLS, ROUNDS = 400, 151
A_STEP = 5


def recorded() -> None:
    with record_function("synchronization"):
        pass


def ways(job: Job) -> dict[str, Callable[[], object]]:
    """What is called; the peer comes first."""
    meter, steps = job.meter, iter(range(10**9))

    def in_a_step() -> None:
        with meter.sync(0, Kind.ALL_REDUCE, 4_096):
            pass

    def in_a_new_step() -> None:
        with meter.sync(next(steps), Kind.ALL_REDUCE, 4_096):
            pass

    def timed_elsewhere() -> None:
        meter.mark(0, 0, 1_000, 1_000, 2_000, Kind.BUCKET, 4_096)

    return {
        "record_function": recorded,
        "with meter.sync(step)": in_a_step,
        "the first one of a step": in_a_new_step,
        "meter.mark(...)": timed_elsewhere,
        "job.signals()": job.signals,
    }


def cpu_ns(work: Callable[[], object]) -> int:
    began_ns = time.thread_time_ns()
    work()
    return time.thread_time_ns() - began_ns


def measured(jobs: list[Job], daemon: socket.socket) -> tuple[list[list[float]], list[list[int]]]:
    """By round: the nanoseconds of one call of each way; and of one datagram of all marks, of each job."""
    timers = [timeit.Timer(way, timer=time.thread_time) for way in (lambda: None, *ways(jobs[0]).values())]
    calls, datagrams = [], []
    for _ in range(ROUNDS):
        costs = []
        for timer in timers:
            jobs[0].meter.announce()
            daemon.recv(65_536)
            costs.append(timer.timeit(CALLS) / CALLS * 1e9)
        calls.append([cost - costs[0] for cost in costs[1:]])
        sent = []
        for job in jobs:
            for step in range(A_STEP, A_STEP + 10):
                for sync in range(10):
                    job.meter.mark(step, sync, step * 1_000, step * 1_000, step * 1_000 + 50, Kind.BUCKET, 8)
            sent.append(cpu_ns(job.meter.announce))
            daemon.setblocking(False)
            _drain(daemon)
            daemon.setblocking(True)
        datagrams.append(sent)
    return calls, datagrams


def _drain(daemon: socket.socket) -> None:
    try:
        while True:
            daemon.recv(65_536)
    except BlockingIOError:
        return


def main() -> None:
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(Path(place) / SOCKET_NAME))
        jobs = [Job("bench", 0, 1, 0, runtime_dir=place, record=record) for record in (None, Path(place) / "record")]
        calls, datagrams = measured(jobs, daemon)
        assert not jobs[0].meter.lost and not jobs[1].meter.unrecorded, "a mark was dropped: its cost is not a mark's"
        for name, costs in zip(ways(jobs[0]), zip(*calls, strict=True), strict=True):
            ratios = (each[0] / cost for each, cost in zip(calls, costs, strict=True))
            low, middle, high = statistics.quantiles(ratios, n=4)
            cheaper = (
                "" if name == "record_function" else f"   {middle:4.1f}x cheaper (quartiles {low:.1f} to {high:.1f})"
            )
            print(f"{name:<26}{statistics.median(costs):7.0f} ns{cheaper}")
        for name, costs in zip(("", ", recorded too"), zip(*datagrams, strict=True), strict=True):
            print(f"a datagram of 100 marks{name}: {statistics.median(costs) / 1e3:.0f} us, at most ten a second")
        for job in jobs:
            job.close()


if __name__ == "__main__":
    main()
