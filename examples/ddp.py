"""
DistributedDataParallel with every gradient bucket metered; rank 1 is slow in the middle of its backward pass.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.client.torch import meter_collectives, metered


class Slow(nn.Linear):
    """A layer whose gradients take longer on one rank: hidden, where the network takes longer still."""

    late_s = 0.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output = super().forward(inputs)
        output.register_hook(lambda gradient: time.sleep(self.late_s))
        return output


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    job = Job()  # name, rank and world size from torchrun
    if job.rank == options.slow_rank:
        Slow.late_s = options.slow_ms / 1000
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 512), nn.ReLU(), Slow(512, 512), nn.ReLU(), nn.Linear(512, 10)), bucket_cap_mb=0.1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    meter = metered(job, model, optimizer)
    with meter_collectives(job):
        for _ in range(options.steps):
            inputs = torch.randn(32, 64)
            loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.all_reduce(loss.detach())  # any other collective is metered as it is called
    overhead = job.meter.local_signals().sync_overhead_window
    if job.rank == 0:
        print(f"{meter.step} steps, {overhead or 0:.0%} of the time spent waiting for gradients", flush=True)
    meter.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--slow-ms", type=float, default=5)
    main(parser.parse_args())
