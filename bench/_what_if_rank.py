"""
A rank of the job of bench/what_if.py. It computes by sleeping, so that ranks that share cores do not slow each other down, and it
prints its mean step as wall time.

`ddp`: all ranks do the same. `pipeline`: two stages, and half of the ranks for each; GPipe with four micro-batches.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel as DDP

#: What each layer's forward pass takes, in seconds; its backward pass takes twice as long.
FORWARD_S = 0.01
LAYERS, WIDTH, MICRO_BATCHES, SAMPLES = 2, 64, 4, 2

#: Steps at the begin and at the end that are not counted: a process group connects, a rank still writes its recording.
UNCOUNTED = 10


class _Computing(torch.autograd.Function):
    """Passes on after a time; the time of the backward pass is given by the content, as that of the forward pass."""

    @staticmethod
    def forward(ctx, x: Tensor, seconds: float) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Layers(nn.Module):
    """The work of a sample is its first number, so a stage knows how long the micro-batch takes that it receives."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        work = x[0, :1].detach().clone()
        if not x.requires_grad:
            x = x.clone().requires_grad_()  # so that the first layer's backward pass takes its time too
        # torch finds the shapes of a stage by tensors without values, or with any.
        known = not x.is_meta and 0 < float(work) < 2
        seconds = FORWARD_S * self.factor * float(work) if known else 0.0
        for layer in self.layers:
            x = layer(_Computing.apply(x, seconds))  # type: ignore[no-untyped-call]
        return torch.cat([work.expand(x.shape[0], 1), x[:, 1:]], dim=1)


def works(options: argparse.Namespace, replica: int, step: int, count: int) -> list[float]:
    """The work of each micro-batch of a step: equal, or drawn so that the mean of all steps is 1."""
    if not options.unequal:
        return [1.0] * count
    drawn = torch.Generator().manual_seed(1000 * step + replica)
    return [0.6 + 0.8 * float(torch.rand(1, generator=drawn)) for _ in range(count)]


def batch(each: list[float]) -> Tensor:
    x = torch.zeros(len(each) * SAMPLES, WIDTH)
    x[:, 0] = torch.tensor(each).repeat_interleave(SAMPLES)
    return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=("ddp", "pipeline"))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-stage", type=int, default=-1)
    parser.add_argument("--factor", type=float, default=1.0, help="how many times as long it computes")
    parser.add_argument("--unequal", action="store_true", help="micro-batches of unequal work")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    moments = (ddp if options.form == "ddp" else pipeline)(options, rank)
    counted = moments[UNCOUNTED:-UNCOUNTED]
    # One write, so that ranks do not mix.
    os.write(1, (json.dumps({"rank": rank, "step_s": (counted[-1] - counted[0]) / (len(counted) - 1)}) + "\n").encode())
    dist.destroy_process_group()


def ddp(options: argparse.Namespace, rank: int) -> list[float]:
    module = DDP(Layers(options.factor if rank == options.slow_rank else 1.0), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    moments = []
    for step in range(options.steps):
        moments.append(time.perf_counter())
        optimizer.zero_grad()
        module(batch(works(options, rank, step, 1))).square().mean().backward()
        optimizer.step()
    return moments


def pipeline(options: argparse.Namespace, rank: int) -> list[float]:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "pp"))
    stage, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    is_slow = rank == options.slow_rank or stage == options.slow_stage
    module = Layers(options.factor if is_slow else 1.0)
    made = PipelineStage(module, stage, 2, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = ScheduleGPipe(made, n_microbatches=MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    moments = []
    for step in range(options.steps):
        moments.append(time.perf_counter())
        optimizer.zero_grad()
        x = batch(works(options, replica, step, MICRO_BATCHES))
        if stage == 0:
            schedule.step(x)
        else:
            schedule.step(target=torch.zeros_like(x), losses=[])
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())
        optimizer.step()
    return moments


if __name__ == "__main__":
    main()
