"""A step fails as for lack of memory, and the script goes on with another optimizer; its steps are given closures."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(6)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(rank)
for step in range(STEPS):

    def closure(step: int = step, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32, generator=draw)).square().mean()
        loss.backward()
        if step == 5:
            raise MemoryError("CUDA out of memory")
        return loss

    late("data", rank)
    try:
        optimizer.step(closure)
    except MemoryError:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
print_bits(rank, list(model.parameters()))
dist.destroy_process_group()
