"""One rank of a real DDP job whose network takes a moment for each layer; it records its marks, and prints its buckets as JSON."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.client.torch import metered
from timesyncd.client.torch.ddp import bucket_options

WIDTH, LAYERS = 256, 16


class Slow(torch.autograd.Function):
    """Passes on; its backward takes a moment, in which a reduction can be over."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Layer(nn.Linear):
    def __init__(self, seconds: float) -> None:
        super().__init__(WIDTH, WIDTH)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(Slow.apply(x, self.seconds))  # type: ignore[no-untyped-call]
        return out


def rebuilt(model: DistributedDataParallel) -> list[int]:
    """Of the rebuilt buckets, in bytes, in the order of their reduction."""
    sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]  # type: ignore[no-untyped-call]
    return [int(size) for size in sizes.split(",")]


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    job = Job("bucketing", record=options.record)
    torch.manual_seed(1)
    network = nn.Sequential(*(Layer(options.seconds) for _ in range(LAYERS)))
    chosen = bucket_options(options.report) if options.report else {"bucket_cap_mb_list": options.sizes}
    model = DistributedDataParallel(network, **chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = metered(job, model, optimizer)
    for _ in range(options.steps):
        model(torch.randn(16, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps(rebuilt(model)), flush=True)
    meter.close()
    job.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0)
    main(parser.parse_args())
