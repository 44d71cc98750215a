"""FSDP2 with accumulation by `set_requires_gradient_sync`, and clipped gradients."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    for micro in range(2):
        model.set_requires_gradient_sync(micro == 1)  # type: ignore[attr-defined]
        model(torch.randn(8, 32, generator=draw)).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print_bits(rank, list(model.parameters()))
dist.destroy_process_group()
