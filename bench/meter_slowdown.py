"""
What the meter costs a whole job: two ranks train (gloo), blocks of steps with the meter off and on by turns (A B A B ...), each pair of
blocks one difference. Goals: under 0.5 % of a step of 30 ms with 8 buckets, within +-0.2 %, and under 3 % of one of 4 ms, within +-1 %.
More `--pairs` narrow an interval; on a machine that other programs use, the CPU time says more than the wall clock.

Four times: with DistributedDataParallel and its hook in steps of 30 ms and of 4 ms, of which a part is that the hook is Python at all; against the
same with torch's own Python hook (`allreduce_hook`), so without that part; and with an all_reduce a parameter, called and marked by hand. A daemon's socket is there and is emptied by another process; every synchronization, step and optimizer update is marked.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job, Kind
from timesyncd.client.torch import Metered, meter_ddp
from timesyncd.ipc.job_datagram import SOCKET_NAME

RANKS, WIDTH, LAYERS = 2, 128, 8
HOOK, OTHER_HOOK, CALLS = (
    "by DDP's hook, 8 buckets",
    "by DDP's hook, against torch's own hook",
    "by hand, 16 calls a step",
)

#: How it is metered, and how long a step is about, in ns.
RUNS = ((HOOK, 30_000_000), (HOOK, 4_000_000), (OTHER_HOOK, 4_000_000), (CALLS, 10_000_000))

#: Wall-clock and CPU nanoseconds of one step, on the average over a block.
Block = tuple[float, float]
Measured = tuple[list[tuple[Block, Block]], float, int]


class Trained:
    """A module, its optimizer, and blocks of steps of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1e-3)
        self.steps = 0

    def step(self, inputs: torch.Tensor) -> None:
        self.module(inputs).square().mean().backward()
        self.reduce()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def reduce(self) -> None:
        for parameter in self.module.parameters():
            dist.all_reduce(parameter.grad)

    def block(self, steps: int, inputs: torch.Tensor) -> Block:
        dist.barrier()
        wall_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        for _ in range(steps):
            self.step(inputs)
            self.steps += 1
        return (time.monotonic_ns() - wall_ns) / steps, (time.process_time_ns() - cpu_ns) / steps


class Marked(Trained):
    """The same, marked by hand."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.meter = job.meter

    def step(self, inputs: torch.Tensor) -> None:
        with self.meter.step(self.steps):
            super().step(inputs)

    def reduce(self) -> None:
        self.meter.gradients_ready()
        for parameter in self.module.parameters():
            with self.meter.sync(self.steps, Kind.ALL_REDUCE, parameter.nbytes):
                dist.all_reduce(parameter.grad)


class Wrapped(Trained):
    """The same with the reducer's overlapping buckets."""

    module: DistributedDataParallel

    def __init__(self) -> None:
        super().__init__()
        self.module = DistributedDataParallel(self.module, bucket_cap_mb=0.06)

    def reduce(self) -> None:
        pass


def pair(way: str, job: Job) -> tuple[Trained, Trained, Metered | None]:
    """Without the meter, with it, and what is to be closed."""
    if way == CALLS:
        return Trained(), Marked(job), None
    plain, metered = Wrapped(), Wrapped()
    if way == OTHER_HOOK:
        plain.module.register_comm_hook(None, allreduce_hook)
    return plain, metered, meter_ddp(job, metered.module, metered.optimizer)


def batch_for(trained: Trained, steps: int, step_ns: int) -> torch.Tensor:
    """Inputs with which a step lasts so long, as rank 0 measures it."""
    small, large = torch.randn(32, WIDTH), torch.randn(288, WIDTH)
    trained.block(steps, large)
    took_ns = [trained.block(steps, inputs)[0] for inputs in (small, large)]
    rows = 32 + 256 * (step_ns - took_ns[0]) / max(1.0, took_ns[1] - took_ns[0])
    agreed = torch.tensor([min(max(32, round(rows)), 8_192)])
    dist.broadcast(agreed, src=0)
    return torch.randn(int(agreed), WIDTH)


def measure(way: str, step_ns: int, rank: int, place: Path, options: argparse.Namespace) -> Measured:
    job = Job(f"bench {way}", rank, RANKS, 0, runtime_dir=place)
    plain, metered, metering = pair(way, job)
    inputs = batch_for(plain, options.steps, step_ns)
    metered.block(options.steps, inputs)
    began_ns = job.meter.own_overhead_ns
    pairs = [(plain.block(options.steps, inputs), metered.block(options.steps, inputs)) for _ in range(options.pairs)]
    own_ns = (job.meter.own_overhead_ns - began_ns) / (options.pairs * options.steps)
    if metering is not None:
        metering.close()
    job.close()
    return pairs, own_ns, job.meter.lost


def train(rank: int, place: Path, options: argparse.Namespace, result: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/rendezvous", rank=rank, world_size=RANKS)
    for way, step_ns in RUNS:
        result.send(measure(way, step_ns, rank, place, options))
    dist.barrier()
    dist.destroy_process_group()


def empty(path: Path, ready: Connection) -> None:
    """What a daemon does with the queue, and nothing else."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(path))
        ready.send(None)
        while True:
            daemon.recv(65_536)


def interval(values: list[float], unit: str) -> str:
    """The median and half of its 95 % confidence interval by the sign test, which asks nothing of how the differences are distributed."""
    ordered = sorted(values)
    out = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return f"{statistics.median(ordered):.4g} +- {(ordered[-1 - out] - ordered[out]) / 2:.2g} {unit}"


def show(rank: int, pairs: list[tuple[Block, Block]], own_ns: float, lost: int) -> None:
    off_ms, on_ms = (statistics.median(pair[which][0] for pair in pairs) / 1e6 for which in (0, 1))
    print(
        f"rank {rank}: a step takes {off_ms:.3f} ms without the meter, {on_ms:.3f} ms with it (medians of {len(pairs)})"
    )
    print(f"  slower by {interval([100 * (on[0] / off[0] - 1) for off, on in pairs], '%')} by the wall clock")
    print(
        f"  CPU time of a step: {interval([(on[1] - off[1]) / 1e3 for off, on in pairs], 'us')} more, "
        f"{interval([(on[1] - off[1]) / 1e4 / off_ms for off, on in pairs], '%')} of the step"
    )
    print(f"  reported as own_overhead: {own_ns / 1e3:.1f} us, {own_ns / 1e4 / off_ms:.2f} %; {lost} marks lost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50, help="of a block")
    options = parser.parse_args()
    if (cores := os.cpu_count() or 1) < RANKS:
        sys.exit(f"{RANKS} ranks on {cores} core would measure the scheduler")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ends = [context.Pipe(duplex=False) for _ in range(RANKS + 1)]
        daemon = context.Process(target=empty, args=(place / SOCKET_NAME, ends[-1][1]), daemon=True)
        daemon.start()
        ends[-1][0].recv()
        ranks = [
            context.Process(target=train, args=(rank, place, options, ends[rank][1]), daemon=True)
            for rank in range(RANKS)
        ]
        for process, (_, theirs) in zip(ranks, ends, strict=False):
            process.start()
            theirs.close()  # a process that ends is the end of its link
        for way, step_ns in RUNS:
            print(f"{way}, steps of about {step_ns / 1e6:g} ms")
            for rank, (end, _) in enumerate(ends[:RANKS]):
                show(rank, *end.recv())
        for process in ranks:
            process.join()
        daemon.terminate()
        daemon.join()


if __name__ == "__main__":
    main()
