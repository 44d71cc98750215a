"""Data parallel by tensor parallel, 2 x 2: `parallelize_module` and `fully_shard` on one mesh."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(rank // 2)
for _ in range(STEPS):
    late("data", rank)
    optimizer.zero_grad()
    model(torch.randn(8, 32, generator=draw)).square().mean().backward()
    optimizer.step()
print_bits(rank, list(model.parameters()))
dist.destroy_process_group()
