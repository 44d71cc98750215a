"""Reinforcement learning: each rank collects experience, rank 0 learns, and broadcasts the parameters."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
policy = nn.Linear(16, 4)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    experience = torch.randn(8, 16, generator=draw)
    everyones = [torch.empty_like(experience) for _ in range(world)] if rank == 0 else None
    dist.gather(experience, everyones)
    if everyones is not None:
        optimizer.zero_grad()
        policy(torch.cat(everyones)).square().mean().backward()
        optimizer.step()
    for parameter in policy.parameters():
        dist.broadcast(parameter.data, 0)
print_bits(rank, policy.parameters())
dist.destroy_process_group()
