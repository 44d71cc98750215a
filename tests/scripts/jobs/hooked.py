"""DDP with a communication hook of torch's: HOOK is fp16, powersgd or post_local_sgd."""

import os

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, hook = dist.get_rank(), os.environ["HOOK"]
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if hook == "fp16":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif hook == "powersgd":
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=10)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
else:
    alone = [dist.new_group([each]) for each in range(dist.get_world_size())]
    model.register_comm_hook(PostLocalSGDState(None, alone[rank], start_localSGD_iter=10), post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=4, warmup_steps=10))
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    optimizer.zero_grad()
    model(torch.randn(8, 64, generator=draw)).square().mean().backward()
    optimizer.step()
print_bits(rank, model.parameters())
dist.destroy_process_group()
