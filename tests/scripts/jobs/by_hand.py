"""Gradients that the script reduces itself, parameter by parameter, as the oldest tutorial does; or CONTRASTIVE, by gathered features."""

import os

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    optimizer.zero_grad()
    features = model(torch.randn(8, 32, generator=draw))
    if os.environ.get("CONTRASTIVE"):
        everywhere = [torch.empty_like(features) for _ in range(world)]
        dist.all_gather(everywhere, features.detach())
        everywhere[rank] = features
        logits = features @ torch.cat(everywhere).T
        loss = nn.functional.cross_entropy(logits, torch.arange(8) + 8 * rank)
    else:
        loss = features.square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world  # type: ignore[operator]
    optimizer.step()
print_bits(rank, model.parameters())
dist.destroy_process_group()
