"""Ranks by torch.multiprocessing.spawn, which the audit meets in fresh interpreters."""

import os
import socket

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.multiprocessing import spawn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        late("data", rank)
        optimizer.zero_grad()
        model(torch.randn(8, 32, generator=draw)).square().mean().backward()
        optimizer.step()
    print_bits(rank, model.parameters())
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found = probe.getsockname()[1]
    spawn(train, (found,), 2)  # type: ignore[no-untyped-call]
