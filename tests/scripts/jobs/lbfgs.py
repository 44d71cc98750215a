"""LBFGS: a step has several passes, each of which reduces the gradients."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(8)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)), bucket_cap_mb=0.01)
# It stops by each rank's own loss otherwise, so the ranks would make unequal numbers of passes.
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, tolerance_grad=0, tolerance_change=0)
batch = torch.randn(16, 32, generator=torch.Generator().manual_seed(rank))


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    loss = (model(batch) - 1).square().mean()
    loss.backward()
    return loss


for _ in range(STEPS):
    late("data", rank)
    optimizer.step(closure)
print_bits(rank, list(model.parameters()))
dist.destroy_process_group()
