"""Gradient accumulation by `no_sync`, as many tutorials have it, with an uneven last group."""

import contextlib

import torch
import torch.distributed as dist
from common import STEPS, LateBackward, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.ModuleList([nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):  # type: ignore[no-untyped-def]
        x = self.net[0](x).relu()
        x = LateBackward.apply(x, rank if is_last else -1)
        return self.net[2](self.net[1](x).relu())


model = DDP(Net(), bucket_cap_mb=0.05)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
draw = torch.Generator().manual_seed(rank)
batches = 3 * STEPS + 1
for batch in range(batches):
    x, y = torch.randn(16, 64, generator=draw), torch.randint(10, (16,), generator=draw)
    is_last = batch % 3 == 2 or batch == batches - 1
    if is_last:
        late("data", rank)
    with contextlib.nullcontext() if is_last else model.no_sync():
        nn.functional.cross_entropy(model(x), y).backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
print_bits(rank, model.parameters())
dist.destroy_process_group()
