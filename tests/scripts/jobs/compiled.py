"""torch.compile around DDP, bfloat16 autocast, clipped gradients, and activation checkpoints."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.second(checkpoint(lambda y: self.first(y).relu(), x, use_reentrant=False))


model = DDP(Model())
trained = torch.compile(model, backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = trained(torch.randn(8, 32, generator=draw)).float().square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print_bits(rank, model.parameters())
dist.destroy_process_group()
