"""
Two ranks without torch, one of them slow: the smallest job that reports its steps and reads back what they cost.

    python examples/job.py [--runtime-dir OF_RANK_0 --runtime-dir OF_RANK_1] [--steps N]
"""

import argparse
import contextlib
import itertools
import multiprocessing
import time
from multiprocessing.connection import Connection

from timesyncd.client import Barrier, Job, Kind


def train(rank: int, link: Connection, options: argparse.Namespace) -> None:
    job = Job("example", rank, world_size=2, runtime_dir=options.runtime_dir[rank])

    def all_reduce(value: int) -> int:
        link.send(value)
        return value + int(link.recv())

    barrier = Barrier(job, lambda: all_reduce(0), lambda number: all_reduce(number if rank == 0 else 0))
    for step in range(options.steps) if options.steps else itertools.count():
        time.sleep(0.02 + (options.slow_ms / 1000 if rank == options.slow_rank else 0))  # the step's work
        with job.meter.sync(step, Kind.ALL_REDUCE, bytes=8):
            all_reduce(1)
        verdict = barrier.wait(step)
        if rank == 0 and step % 50 == 49:
            print(f"step {step}: {cost(job)}; barrier {verdict.mode}: {verdict.reason or 'on time'}", flush=True)


def cost(job: Job) -> str:
    signals = job.signals()
    if signals is None or signals.sync_overhead is None:
        return f"no signals; measured here alone, {job.meter.local_signals().sync_overhead_window or 0:.0%} overhead"
    return f"{signals.sync_overhead:.0%} overhead, straggler rank {signals.straggler_rank}, aligned to {signals.alignment_ns} ns"


def run(rank: int, ends: tuple[Connection, Connection], options: argparse.Namespace) -> None:
    """Until the steps are done, Ctrl-C, or the other rank's end: each keeps its own end of the pipe alone."""
    ends[1 - rank].close()
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        train(rank, ends[rank], options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime-dir", action="append", default=[], help="twice: of rank 0's and of rank 1's daemon")
    parser.add_argument("--steps", type=int, default=0, help="0: until interrupted")
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--slow-ms", type=float, default=5)
    options = parser.parse_args()
    options.runtime_dir = (options.runtime_dir + [None, None])[:2]
    ends = multiprocessing.Pipe()
    other = multiprocessing.get_context("fork").Process(target=run, args=(1, ends, options))
    other.start()
    run(0, ends, options)
    other.join()
