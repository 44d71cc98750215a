"""A pipeline of two stages by torch's own schedules: SCHEDULE is GPipe or 1F1B."""

import os

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
stage_module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
stage = PipelineStage(stage_module, rank, 2, torch.device("cpu"))
schedule_class = ScheduleGPipe if os.environ.get("SCHEDULE") == "GPipe" else Schedule1F1B
schedule = schedule_class(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(stage_module.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(5)
for _ in range(STEPS // 2):
    x, y = torch.randn(16, 32, generator=draw), torch.randn(16, 32, generator=draw)
    optimizer.zero_grad()
    late("data", rank)
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=[])
    optimizer.step()
print_bits(rank, stage_module.parameters())
dist.destroy_process_group()
