"""One rank of bench/straggler_detection.py: DistributedDataParallel over gloo, a layer a bucket, and (on one rank) a pause in the middle of backward."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.client.torch import meter_ddp

LAYERS, WIDTH = 4, 512

#: Gradients come from the last layer to the first: the third to come is of this one.
LATE_LAYER = 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--late-ns", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    if options.late_ns:
        module[LATE_LAYER].register_full_backward_pre_hook(lambda *_: spin(options.late_ns))
    ddp = DistributedDataParallel(module, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-6)
    inputs = torch.randn(64, WIDTH)
    job = Job()
    meter_ddp(job, ddp, optimizer)
    for _ in range(options.steps):
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()
    job.close()
    dist.destroy_process_group()


def spin(for_ns: int) -> None:
    until_ns = time.monotonic_ns() + for_ns
    while time.monotonic_ns() < until_ns:
        pass


if __name__ == "__main__":
    main()
