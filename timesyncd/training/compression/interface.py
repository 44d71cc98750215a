"""
The interface of compressors, the communication hook that runs them, and what they share: the uncompressed average,
sizes, the check for finiteness.
"""

# Without `from __future__ import annotations`: torch inspects the annotations of a communication hook, and requires
# classes instead of strings.

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from timesyncd.client.torch.peer_loss import peer_loss_as_sync_error, reduced_value

CompressorState = dict[str, Any]
Future = torch.futures.Future[torch.Tensor]


class TensorBucket(Protocol):
    """
    torch's GradBucket, or another object with its methods: whole parameters, whose values are in `buffer()` in their
    order.

    Index 0 begins a step. All ranks pass buckets of the same parameters, in the same order.
    """

    def index(self) -> int: ...

    def is_last(self) -> bool: ...

    def buffer(self) -> torch.Tensor: ...

    def gradients(self) -> list[torch.Tensor]: ...

    def parameters(self) -> list[torch.Tensor]: ...

    def set_buffer(self, tensor: torch.Tensor) -> None: ...


class Compressor(Protocol):
    """
    Averages buckets over a group. All ranks get the same bits.

    `raw_bytes`: octets of the buckets so far. `sent_bytes`: octets that this rank handed to collectives for them; how
    many cross the links depends on the collective.
    """

    name: str
    raw_bytes: int
    sent_bytes: int

    def hook(self, bucket: TensorBucket) -> Future:
        """Replace the bucket's buffer by the average over all ranks. Every rank calls it."""

    def dense(self, bucket: TensorBucket) -> Future:
        """The same, uncompressed, and including the residuals. Every rank calls it."""

    def state_dict(self) -> CompressorState:
        """For a checkpoint, between two steps. Each rank has a state of its own, with its residuals."""

    def load_state_dict(self, state: CompressorState) -> None:
        """
        Every rank loads its own state. Raises ValueError for the state of another compression or of other parameters.
        """


def compression_hook(state: Compressor, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `register_comm_hook(compressor, run)`, or `meter_ddp(job, ddp, hook=run, state=compressor)`."""
    with peer_loss_as_sync_error():
        future = state.hook(bucket)
    return future.then(reduced_value)


def average_uncompressed(group: dist.ProcessGroup, bucket: TensorBucket) -> Future:
    """The uncompressed average, also of sparse gradients."""
    return allreduce_hook(group, bucket)


def is_finite(tensor: torch.Tensor) -> torch.Tensor:
    """
    Whether all elements are finite, on the tensor's device. It computes the norm, which is several times faster than a
    test of each element.
    """
    finite: torch.Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64).isfinite()
    return finite


def replace_if(is_valid: torch.Tensor, former: torch.Tensor, new: torch.Tensor) -> None:
    """Copy `new` into `former` where `is_valid`, one number on their device, which the host does not read."""
    torch.where(is_valid, new, former, out=former)
