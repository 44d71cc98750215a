"""
A training script that knows nothing of timesyncd, whose ranks synchronize more than gradients: VARIANT is what, SLOW the rank that
is 40 ms late before each forward pass.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 60

variant, slow = os.environ["VARIANT"], int(os.environ["SLOW"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = [nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)]
if variant in ("zero", "sharded"):
    del layers[1]
model: nn.Module = nn.Sequential(*layers)
if variant == "sharded":
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
if variant == "zero":
    optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(steps: int) -> None:
    for _ in range(steps):
        if rank == slow:
            time.sleep(0.04)
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()


if variant == "join":
    with Join([model]):  # type: ignore[list-item]
        train(STEPS + 3 * rank)
else:
    train(STEPS)
dist.destroy_process_group()
