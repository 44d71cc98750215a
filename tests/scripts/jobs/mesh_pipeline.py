"""
A pipeline in a mesh by torch's own schedules: data parallel by 2 stages, and with MESH=2x2x2 by tensor parallel too. SCHEDULE is GPipe or 1F1B.
"""

import os

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
rank = dist.get_rank()
with_tensor_parallel = os.environ.get("MESH") == "2x2x2"
shape, names = ((2, 2, 2), ("dp", "pp", "tp")) if with_tensor_parallel else ((2, 2), ("dp", "pp"))
mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
stage = mesh["pp"].get_local_rank()
torch.manual_seed(stage)
module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
if with_tensor_parallel:
    parallelize_module(module, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(module, mesh=mesh["dp"])
made = PipelineStage(module, stage, 2, torch.device("cpu"), group=mesh["pp"].get_group())
schedule_class = ScheduleGPipe if os.environ.get("SCHEDULE") == "GPipe" else Schedule1F1B
schedule = schedule_class(made, n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
for _ in range(STEPS):
    x, y = torch.randn(16, 32, generator=draw), torch.randn(16, 32, generator=draw)
    optimizer.zero_grad()
    late("data", rank)
    if stage == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=[])
    optimizer.step()
print_bits(rank, module.parameters())
dist.destroy_process_group()
