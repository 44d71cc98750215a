"""The whole DDP module is saved and loaded, as scripts do that keep no state dicts, and training goes on with what was loaded."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(rank)
path = Path(os.environ["SCRIPT_FOLDER"]) / f"whole-{rank}.pt"
for step in range(STEPS):
    late("data", rank)
    model(torch.randn(8, 32, generator=draw)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 4:
        torch.save(model, path)
        foreign = b"timesyncd" in path.read_bytes()
        os.write(1, f"bits of rank {rank}'s file: {'foreign names' if foreign else 'its own names'}\n".encode())
        model = torch.load(path, weights_only=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print_bits(rank, list(model.parameters()))
dist.destroy_process_group()
