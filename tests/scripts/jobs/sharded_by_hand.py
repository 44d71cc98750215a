"""
Gradients reduced in shards by hand with handles that are waited for late, objects exchanged each step, and an early stop that
rank 0 decides.
"""

import datetime
from typing import Any

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed import all_gather_object, reduce_scatter_tensor

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(10)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(rank)
for step in range(10 * STEPS):
    late("data", rank)
    loss = model(torch.randn(8, 32, generator=draw)).square().mean()
    loss.backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    padded = nn.functional.pad(gradients, (0, -gradients.numel() % world))
    shard, whole, total = torch.empty(padded.numel() // world), torch.empty_like(padded), loss.detach().clone()
    scattered = reduce_scatter_tensor(shard, padded, async_op=True)
    summed = dist.all_reduce(total, async_op=True)
    scattered.wait()
    dist.all_gather_into_tensor(whole, shard / world)
    summed.wait()
    nn.utils.vector_to_parameters(whole[: gradients.numel()], [each.grad for each in model.parameters()])
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses: list[Any] = [None] * world
    all_gather_object(losses, {"rank": rank, "loss": float(loss.detach())})
    stop: list[Any] = [step + 1 >= STEPS if rank == 0 else None]
    dist.broadcast_object_list(stop, src=0)
    if stop[0]:
        break
dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
print_bits(rank, list(model.parameters()))
dist.destroy_process_group()
