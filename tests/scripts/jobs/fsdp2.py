"""FSDP2: each layer and the whole sharded, 40 steps."""

import torch
import torch.distributed as dist
from common import LateBackward, late, print_bits
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x + self.inner(x).relu()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(4)), nn.Linear(64, 8)

    def forward(self, x):  # type: ignore[no-untyped-def]
        for number, layer in enumerate(self.layers):
            x = layer(LateBackward.apply(x, rank) if number == 2 else x)
        return self.head(x)


model = Model()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(rank)
for _ in range(40):
    late("data", rank)
    optimizer.zero_grad()
    model(torch.randn(8, 64, generator=draw)).square().mean().backward()
    optimizer.step()
print_bits(rank, list(model.parameters()))
dist.destroy_process_group()
