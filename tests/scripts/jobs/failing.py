"""
ENDS is how it ends: `crash` raises on rank 1, `sigterm` is ended by a signal that saves and exits with 143, `restart` raises on rank 1
in the first attempt of torchrun and goes on from a checkpoint in the second.
"""

import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ends = os.environ["ENDS"]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(rank)
first = 0
saved = pathlib.Path(os.environ.get("SCRIPT_FOLDER", "."), "checkpoint")
if saved.exists():
    first, state = torch.load(saved)
    model.load_state_dict(state)


def stop(*_: object) -> None:
    print_bits(rank, model.parameters())
    sys.stdout.flush()
    sys.exit(143)


signal.signal(signal.SIGTERM, stop)
for step in range(first, STEPS):
    late("data", rank)
    optimizer.zero_grad()
    model(torch.randn(8, 32, generator=draw)).square().mean().backward()
    optimizer.step()
    if ends == "restart" and step == STEPS // 2 and first == 0:
        if rank == 0:
            torch.save((step + 1, model.state_dict()), saved)
        dist.barrier()
        if rank == 1:
            raise RuntimeError("the first attempt fails")
    if ends == "crash" and rank == 1 and step == STEPS - 5:
        raise RuntimeError("rank 1 crashes")
if ends == "sigterm":
    dist.barrier()
    os.kill(os.getpid(), signal.SIGTERM)
print_bits(rank, model.parameters())
dist.destroy_process_group()
