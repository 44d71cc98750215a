"""A mixture of experts: tokens go to the ranks of their experts by all-to-all, and the dense part is DDP."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
dense = DDP(nn.Linear(16, 16))
torch.manual_seed(10 + rank)
expert = nn.Linear(16, 16)
optimizer = torch.optim.Adam([*dense.parameters(), *expert.parameters()], lr=1e-3)
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    optimizer.zero_grad()
    tokens = dense(torch.randn(8, 16, generator=draw))
    there = all_to_all_single(torch.empty_like(tokens), tokens)
    back = all_to_all_single(torch.empty_like(tokens), expert(there))
    (back + tokens).square().mean().backward()
    optimizer.step()
print_bits(rank, [*dense.parameters(), *expert.parameters()])
# torch 2.13 never ends where DDP's reducer is the last to hold a gloo group whose last call was made within autograd.
del dense, optimizer, tokens, there, back
dist.destroy_process_group()
