"""A rank of `forward_order.py`: blocks of steps with and without the order take turns; rank 0 prints each block's step time as JSON."""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import closing
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.training import synchronized

WIDTH, LAYERS, BATCH = 1_024, 8, 64

#: Averagings of a block that count, after one that does not.
ROUNDS = 4


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def step_ms(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, folder: Path, h: int, order: str | None
) -> float:
    """Each step's time ends with its forward pass, which waits for the rest of the average of the step before."""
    inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    ends = []
    job = Job("order", runtime_dir=folder)
    with closing(job), synchronized(job, ddp, optimizer, f"local_sgd(h={h})", order=order):
        for _ in range(h * (ROUNDS + 1) + 1):
            optimizer.zero_grad()
            loss = ddp(inputs).square().mean()
            ends.append(time.monotonic())
            loss.backward()
            optimizer.step()
    return 1e3 * (ends[-1] - ends[h]) / (len(ends) - 1 - h)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--intervals", required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    meeting = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    )
    ddp = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    for h in map(int, given.intervals.split(",")):
        for pair in range(given.pairs):
            orders = (None, "forward") if pair % 2 else ("forward", None)
            found = {str(order): step_ms(ddp, optimizer, given.folder, h, order) for order in orders}
            if dist.get_rank() == 0:
                print(json.dumps({"h": h} | found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
