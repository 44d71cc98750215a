"""ZeRO stage 1: DDP with a ZeroRedundancyOptimizer."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    optimizer.zero_grad()
    model(torch.randn(8, 32, generator=draw)).square().mean().backward()
    optimizer.step()
print_bits(rank, model.parameters())
dist.destroy_process_group()
