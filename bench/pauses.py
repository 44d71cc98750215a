"""
What pauses like garbage collection cost a job of N ranks, when each rank makes them at random and when all make them at one instant.

Steps and pauses sleep, so that N may exceed the cores; the synchronization is a real gloo all-reduce, the clock one that is known to
each rank. Each rank makes one pause in a period on average, either way.

    python bench/pauses.py [--runs 3] [--seconds 4]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from client_now import fresh_segment

from timesyncd.client import Job, Pauses

WORK_S, PAUSE_S, PERIOD_S = 0.010, 0.030, 0.250
WAYS = ("no pauses", "at random", "simultaneous")
WORLDS = (2, 4, 8)


class Figures(NamedTuple):
    """Of one run, over its ranks: the mean step, the share of it in synchronization, and pauses a rank and second."""

    step_ms: float
    overhead: float
    pauses: float


def at_random(rank: int) -> Callable[[int], bool]:
    """Due once in each period, at a random moment of it: as a collector that counts a rank's own allocations."""
    draw = random.Random(rank)
    next_s = period_s = 0.0

    def due(step: int) -> bool:
        nonlocal next_s, period_s
        now_s = time.monotonic()
        if now_s < next_s:
            return False
        was_first = not period_s
        period_s = (now_s if was_first else period_s) + PERIOD_S
        next_s = period_s + draw.uniform(0, PERIOD_S)
        return not was_first

    return due


def rank_process(rank: int, world_size: int, seconds: float, folder: str, link: Connection) -> None:
    """Sends the figures of all ways, in their order."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    fresh_segment(Path(folder) / str(rank))
    job = Job("bench", rank, world_size, 0, runtime_dir=Path(folder) / str(rank))
    ways: tuple[Callable[[int], bool], ...] = (
        lambda step: False,
        at_random(rank),
        Pauses(job, PERIOD_S, round(PERIOD_S / WORK_S)).due,
    )
    # As many steps as take so long without pauses: the same number on all ranks.
    link.send([measure(due, round(seconds / WORK_S)) for due in ways])
    job.close()
    dist.barrier()
    dist.destroy_process_group()


def measure(due: Callable[[int], bool], steps: int) -> Figures:
    one, paused, inside_ns = torch.zeros(1), 0, 0
    dist.barrier()
    began_ns = time.monotonic_ns()
    for step in range(steps):
        time.sleep(WORK_S)
        if due(step):
            paused += 1
            time.sleep(PAUSE_S)
        arrival_ns = time.monotonic_ns()
        dist.all_reduce(one)
        inside_ns += time.monotonic_ns() - arrival_ns
    elapsed_ns = time.monotonic_ns() - began_ns
    return Figures(elapsed_ns / steps / 1e6, inside_ns / elapsed_ns, paused / elapsed_ns * 1e9)


def run(world_size: int, seconds: float) -> list[Figures]:
    """Of each way, the mean over the ranks."""
    context = multiprocessing.get_context("spawn")
    links = [context.Pipe() for _ in range(world_size)]
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        processes = [
            context.Process(target=rank_process, args=(rank, world_size, seconds, folder, links[rank][1]))
            for rank in range(world_size)
        ]
        for rank, process in enumerate(processes):
            (Path(folder) / str(rank)).mkdir()
            process.start()
            links[rank][1].close()  # a process that ends is the end of its link
        try:
            found = [ours.recv() for ours, _ in links]
        finally:
            for process in processes:
                process.join(30)
                process.kill()
    return [Figures(*map(statistics.mean, zip(*way, strict=True))) for way in zip(*found, strict=True)]


def main(options: argparse.Namespace) -> None:
    print(
        f"steps of {WORK_S * 1e3:.0f} ms, a pause of {PAUSE_S * 1e3:.0f} ms every {PERIOD_S * 1e3:.0f} ms on each rank;"
        f" {os.cpu_count()} cores; medians of {options.runs} runs"
    )
    for world_size in options.ranks:
        runs = [run(world_size, options.seconds) for _ in range(options.runs)]
        medians = [Figures(*map(statistics.median, zip(*column, strict=True))) for column in zip(*runs, strict=True)]
        for way, found in zip(WAYS, medians, strict=True):
            print(
                f"{world_size} ranks, {way:13} step {found.step_ms:6.2f} ms, synchronization {found.overhead:6.1%} of it,"
                f" {found.pauses:4.1f} pauses a rank and second"
            )
        base, at_random_, together = (found.step_ms for found in medians)
        print(
            f"{world_size} ranks: steps are {at_random_ / together:.2f}x shorter with simultaneous pauses;"
            f" pauses lengthen a step by {together - base:.2f} ms instead of {at_random_ - base:.2f} ms"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--ranks", type=int, nargs="*", default=WORLDS)
    main(parser.parse_args())
