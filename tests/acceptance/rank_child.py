"""
One rank of a two-rank job that keeps a record: `rank_child.py RANK FD`, run until it is killed; FD is its end of a pipe to the other.

Each step is some work and a barrier; rank 1 works twice as long, so it is the slow one. About ten times a
second it prints one line of JSON: its last verdict, the job's signals as it reads them, and the time with its bound, with
CLOCK_REALTIME and CLOCK_BOOTTIME read before and after.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from timesyncd.client.barrier import Barrier, Verdict
from timesyncd.client.job import Job

RECORD_EVERY_S = 0.1
WORK_S = (0.010, 0.020)


def barrier_between(peer: Connection, job: Job) -> Barrier:
    """The collective is an exchange with the other rank; rank 0's number is sent after it."""

    def collective() -> None:
        peer.send(None)
        peer.recv()

    def broadcast(number: int) -> int:
        if job.rank == 0:
            peer.send(number)
            return number
        received: int = peer.recv()
        return received

    return Barrier(job, collective, broadcast)


def clocks() -> tuple[int, int]:
    return time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def record(job: Job, step: int, verdict: Verdict) -> dict[str, Any]:
    before = clocks()
    interval, _, reason = job.clock.read()
    after = clocks()
    signals = job.signals()
    return {
        "network": os.readlink("/proc/self/ns/net"),
        "step": step,
        "mode": verdict.mode,
        "on_time": verdict.on_time,
        "verdict_reason": verdict.reason,
        "before": before,
        "interval": interval,
        "after": after,
        "reason": reason,
        "signals": None if signals is None else dataclasses.asdict(signals),
        "marks_lost": job.meter.lost,
    }


def main() -> None:
    rank, peer = int(sys.argv[1]), Connection(int(sys.argv[2]))
    job = Job("lab", rank, world_size=2)
    barrier = barrier_between(peer, job)
    step, due_s = 0, time.monotonic()
    while True:
        time.sleep(WORK_S[rank])
        verdict = barrier.wait(step)
        if time.monotonic() >= due_s:
            print(json.dumps(record(job, step, verdict)), flush=True)
            due_s = time.monotonic() + RECORD_EVERY_S
        step += 1


if __name__ == "__main__":
    main()
