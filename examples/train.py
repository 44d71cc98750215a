"""
A training loop with its synchronizations metered and its steps released together; one rank is slow.

    torchrun --standalone --nproc-per-node 2 examples/train.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

from timesyncd.client import Job
from timesyncd.client.torch import all_reduce, barrier


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    job = Job()  # name, rank, world size and attempt from torchrun
    release = barrier(job)
    torch.manual_seed(job.rank)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(options.steps):
        inputs = torch.randn(32, 64)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
        loss.backward()
        if job.rank == options.slow_rank:
            time.sleep(options.slow_ms / 1000)
        for parameter in model.parameters():
            all_reduce(job, step, parameter.grad)
            parameter.grad /= job.world_size
        optimizer.step()
        optimizer.zero_grad()
        verdict = release.wait(step)
        if job.rank == 0 and step % 50 == 49:
            released = verdict.reason or f"{verdict.lateness_ns} ns after the instant"
            print(f"step {step}: loss {loss:.3f}; {cost(job)}; barrier {verdict.mode}: {released}", flush=True)
    dist.barrier()  # a rank that leaves while another still talks to it can abort that one
    dist.destroy_process_group()


def cost(job: Job) -> str:
    signals = job.signals()
    if signals is None or signals.sync_overhead is None:
        return f"no signals; measured here alone, {job.meter.local_signals().sync_overhead_window or 0:.0%} overhead"
    return f"{signals.sync_overhead:.0%} overhead, straggler rank {signals.straggler_rank}, aligned to {signals.alignment_ns} ns"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--slow-ms", type=float, default=5)
    main(parser.parse_args())
