"""An evaluation with reduced metrics, EMA, barriers, checkpoints of rank 0 and by torch.distributed.checkpoint every 20 steps."""

import io
import os
import tempfile

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.distributed import checkpoint
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(rank)
folders = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folders)
for step in range(STEPS):
    late("data", rank)
    optimizer.zero_grad()
    model(torch.randn(8, 32, generator=draw)).square().mean().backward()
    optimizer.step()
    ema.update_parameters(model.module)
    if step % 20 == 19:
        model.eval()
        with torch.no_grad():
            total = model.module(torch.ones(4, 32)).square().mean()
        dist.all_reduce(total)
        model.train()
        if rank == 0:
            torch.save(model.module.state_dict(), io.BytesIO())
        dist.barrier()
        checkpoint.save(model.module.state_dict(), checkpoint_id=os.path.join(str(folders[0]), str(step)))
print_bits(rank, [*model.parameters(), *ema.parameters()])
dist.destroy_process_group()
