"""Parameters are updated without an optimizer of torch, so nothing ends a step that the meter could see."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(9)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), bucket_cap_mb=0.01)
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    model(torch.randn(8, 32, generator=draw)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
print_bits(rank, list(model.parameters()))
dist.destroy_process_group()
