"""The job link in torch.distributed's words. The one module of the client that imports torch."""

from __future__ import annotations

import torch
import torch.distributed as dist

from timesyncd.client.barrier import Barrier
from timesyncd.client.job import Job
from timesyncd.joblink import Kind


def all_reduce(job: Job, step: int, tensor: torch.Tensor) -> None:
    """`torch.distributed.all_reduce` over all ranks, marked as a synchronization of the step."""
    with job.meter.sync(step, Kind.ALL_REDUCE, tensor.nbytes):
        dist.all_reduce(tensor)


def barrier(job: Job) -> Barrier:
    """A Barrier over torch.distributed's default group; a process group on the CPU (gloo) is needed."""
    number = torch.zeros(1, dtype=torch.int64)

    def broadcast(value: int) -> int:
        number[0] = value
        dist.broadcast(number, src=0)
        return int(number[0])

    return Barrier(job, dist.barrier, broadcast)
