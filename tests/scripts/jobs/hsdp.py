"""HSDP on a mesh of 2 x 2: sharded in pairs, replicated between them."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    optimizer.zero_grad()
    model(torch.randn(8, 32, generator=draw)).square().mean().backward()
    optimizer.step()
print_bits(rank, list(model.parameters()))
dist.destroy_process_group()
