"""One process joins: the group is made again with three ranks instead of two, under other numbers, in the same processes."""

import os

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(store: str, rank: int, ranks: int, steps: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['SCRIPT_FOLDER']}/{store}", rank=rank, world_size=ranks
    )
    torch.manual_seed(7)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        late("data", rank)
        model(torch.randn(8, 32, generator=draw)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print_bits(rank, list(model.parameters()))
    dist.barrier()
    dist.destroy_process_group()


process = int(os.environ["RANK"])
if process < 2:
    train("first", process, 2, 10)
train("second", (process + 1) % 3, 3, STEPS)
