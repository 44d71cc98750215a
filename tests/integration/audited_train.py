"""A training script that knows nothing of timesyncd: real DDP over gloo, with what the options ask for."""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


class Slow(torch.autograd.Function):
    """Passes on; its backward takes 5 ms on one rank."""

    @staticmethod
    def forward(ctx, x, rank):  # type: ignore[no-untyped-def]
        ctx.rank = rank
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if dist.get_rank() == ctx.rank:
            time.sleep(0.005)
        return gradient, None


class Model(nn.Module):
    def __init__(self, slow_rank: int) -> None:
        super().__init__()
        self.slow_rank = slow_rank
        self.first, self.second = nn.Linear(128, 256), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(Slow.apply(self.first(x).relu(), self.slow_rank))  # type: ignore[no-untyped-call]
        return out


def slow_first_bucket(group, bucket):  # type: ignore[no-untyped-def]
    """A hook of the script's own: the first bucket takes 20 ms more, behind which much can hide."""
    tensor = bucket.buffer().div_(dist.get_world_size())
    future = dist.all_reduce(tensor, group=group, async_op=True).get_future()

    def reduced(done):  # type: ignore[no-untyped-def]
        time.sleep(0.02 if bucket.index() == 0 else 0)
        return done.value()[0]

    return future.then(reduced)


def train(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model: nn.Module = DistributedDataParallel(Model(options.slow), bucket_cap_mb=None if options.odd else 0.1)
    if options.hide:
        model.register_comm_hook(None, slow_first_bucket)  # type: ignore[operator]
    trained = torch.compile(model, backend="eager") if options.odd else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.steps):
        loss = trained(torch.randn(16, 128)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(step, float(loss).hex(), flush=True)
    if options.odd:
        torch.save(model, f"{options.odd}-{dist.get_rank()}")
        with model.join():  # type: ignore[operator]
            for _ in range(3 + dist.get_rank()):
                model(torch.randn(16, 128)).square().mean().backward()


def rank_of(rank: int, options: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
    dist.init_process_group("gloo", rank=rank, world_size=options.spawn)
    train(options)
    dist.destroy_process_group()


def main(options: argparse.Namespace) -> None:
    if options.spawn:
        start_processes(rank_of, (options,), options.spawn, start_method="fork")  # type: ignore[no-untyped-call]
    else:
        dist.init_process_group("gloo")
        train(options)
        dist.destroy_process_group()
    sys.exit(options.status)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--slow", type=int, default=-1)
    parser.add_argument("--hide", action="store_true")
    parser.add_argument("--odd", default="")
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--status", type=int, default=0)
    main(parser.parse_args())
