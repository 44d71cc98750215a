"""A rank of a metered job that ends in a hang of a known cause: it prints nothing, and ends by a signal."""

import atexit
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.client.torch import meter_collectives, metered

cause, folder = sys.argv[1:]
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
atexit.register(time.sleep, 600)  # as a logger that sends what it has left: the process goes on after its error
job = Job(cause, rank, 2, 0, runtime_dir=folder, record=f"{folder}/{cause}")
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(64, 192), nn.Linear(192, 192), nn.Linear(192, 10)), bucket_cap_mb=0.1
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
metered(job, model, optimizer)
with meter_collectives(job):
    for step in range(40 if cause == "unequal_steps" and rank == 1 else 60):
        if cause == "failed" and rank == 1 and step == 30:
            raise RuntimeError("mine")
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        if step % 10 == 9:
            dist.barrier()
    if cause == "extra_synchronization" and rank == 0:
        dist.barrier()  # as save_checkpoint on rank 0 alone
    if cause != "unequal_steps":
        dist.barrier()
