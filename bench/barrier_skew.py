"""
Exit skew of the timed barrier against torch.distributed.barrier(): gloo, 2 ranks on one machine, so that no clock error is in it.

Both in one process group, in turn, after random work of 0 to 3 ms. Under the ordinary scheduler; with SCHED_FIFO for the timed
barrier's hold alone; with SCHED_FIFO for whole processes (gloo's threads too), where the peer has it as well. On a virtual machine the host takes the
CPUs away whatever the scheduler is: with two ranks a share of 0.5 % of each CPU's time is what p99 is made of; the output has it.

    python bench/barrier_skew.py [--runs 5] [--rounds 500]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch.distributed as dist

from timesyncd.client import BarrierReason, Job, SchedFifo
from timesyncd.client.torch import barrier

RANKS, MOST_WORK_NS, PRIORITY = 2, 3_000_000, 10
SCHEDULINGS = {
    "ordinary": "ordinary scheduler",
    "hold": "SCHED_FIFO for the hold of the timed barrier",
    "process": "SCHED_FIFO for the processes",
}


class Exit(NamedTuple):
    """One rank's way through one barrier, on the clock that both ranks read."""

    arrival_ns: int
    exit_ns: int
    on_time: bool


class Figures(NamedTuple):
    """Of one run, in microseconds: skew between the exits, and how long after the last arrival the last one left."""

    skew_p50: float
    skew_p99: float
    after_p50: float
    after_p99: float
    late: float


def work(draw: random.Random) -> None:
    until_ns = time.perf_counter_ns() + draw.randrange(MOST_WORK_NS)
    while time.perf_counter_ns() < until_ns:
        pass


def rank_process(rank: int, link: Connection, scheduling: str, rounds: int, folder: str) -> None:
    """Sends the exits of both barriers, (the peer's, ours)."""
    if scheduling == "process":
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    job = Job("bench", rank, RANKS, 0, runtime_dir=folder)
    timed = barrier(job, fused=True, scheduling=SchedFifo(PRIORITY) if scheduling == "hold" else None)
    draw, peers, ours = random.Random(rank), [], []
    for step in range(rounds):
        work(draw)
        arrival_ns = time.time_ns()
        dist.barrier()
        peers.append(Exit(arrival_ns, time.time_ns(), True))
        work(draw)
        arrival_ns = time.time_ns()
        verdict = timed.wait(step)
        ours.append(Exit(arrival_ns, time.time_ns(), bool(verdict.on_time)))
        if verdict.reason_code is BarrierReason.SCHED_FIFO_REFUSED:
            print(f"rank {rank}: {verdict.reason}", file=sys.stderr)
    job.close()
    link.send((peers, ours))
    dist.barrier()
    dist.destroy_process_group()


def percentiles(values: list[int]) -> tuple[float, float]:
    hundredths = statistics.quantiles(values, n=100)
    return hundredths[49] / 1e3, hundredths[98] / 1e3


def figures(by_rank: list[list[Exit]]) -> Figures:
    """The first tenth, in which connections are opened and the slack is found, does not count."""
    rounds = list(zip(*by_rank, strict=True))[len(by_rank[0]) // 10 :]
    exits = [[rank.exit_ns for rank in ranks] for ranks in rounds]
    arrivals = [max(rank.arrival_ns for rank in ranks) for ranks in rounds]
    skews = percentiles([max(times) - min(times) for times in exits])
    after = percentiles([max(times) - last for times, last in zip(exits, arrivals, strict=True)])
    return Figures(*skews, *after, statistics.mean(not all(rank.on_time for rank in ranks) for ranks in rounds))


def run(scheduling: str, rounds: int) -> tuple[Figures, Figures]:
    """(the peer's, ours) of one pair of processes."""
    context = multiprocessing.get_context("spawn")
    links = [context.Pipe() for _ in range(RANKS)]
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        processes = [
            context.Process(target=rank_process, args=(rank, links[rank][1], scheduling, rounds, folder))
            for rank in range(RANKS)
        ]
        for process, (_, theirs) in zip(processes, links, strict=True):
            process.start()
            theirs.close()  # a process that ends is the end of its link
        try:
            found = [ours.recv() for ours, _ in links]
        finally:
            for process in processes:
                process.join(30)
                process.kill()
    return figures([rank[0] for rank in found]), figures([rank[1] for rank in found])


def medians(runs: list[Figures]) -> Figures:
    return Figures(*(statistics.median(column) for column in zip(*runs, strict=True)))


def cpu_times() -> tuple[int, int]:
    """What a host took away, and all (steal and the sum of proc_stat(5)), in ticks."""
    with open("/proc/stat") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def is_permitted() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


def main(options: argparse.Namespace) -> None:
    print(f"{RANKS} ranks on {os.cpu_count()} cores; medians of {options.runs} runs of {options.rounds} rounds; us")
    results: dict[str, list[tuple[Figures, Figures]]] = {name: [] for name in SCHEDULINGS}
    stolen: dict[str, list[float]] = {name: [] for name in SCHEDULINGS}
    if not is_permitted():
        print("SCHED_FIFO is refused here (CAP_SYS_NICE, or ulimit -r): under the ordinary scheduler alone")
        results = {"ordinary": []}
    for _ in range(options.runs):
        for name, runs in results.items():
            steal, total = cpu_times()
            runs.append(run(name, options.rounds))
            steal_after, total_after = cpu_times()
            stolen[name].append((steal_after - steal) / max(1, total_after - total))
    for name, runs in results.items():
        peer, ours = (medians(list(column)) for column in zip(*runs, strict=True))
        print(f"{SCHEDULINGS[name]} (the host took {statistics.median(stolen[name]):.2%} of the CPUs' time):")
        for label, of in (("torch.distributed.barrier()", peer), ("timed barrier", ours)):
            print(
                f"  {label:28} exit skew p50 {of.skew_p50:8.2f}  p99 {of.skew_p99:8.2f};"
                f"  last exit after last arrival p50 {of.after_p50:7.0f}  p99 {of.after_p99:7.0f};  late {of.late:6.1%}"
            )
        p99s = sorted(peer.skew_p99 / ours.skew_p99 for peer, ours in runs)
        ratio = f"{peer.skew_p50 / ours.skew_p50:.1f}x (p50), {peer.skew_p99 / ours.skew_p99:.1f}x (p99)"
        print(f"  skew smaller by {ratio}; p99 of single runs {p99s[0]:.1f}x to {p99s[-1]:.1f}x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=500)
    main(parser.parse_args())
