"""
What every compressor is, and the one hook that runs them.

What compressors share: the uncompressed average, sizes, a look whether all is finite.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from timesyncd.client.torch.peer_loss import peer_loss_as_sync_error, reduced_value

# No `from __future__ import annotations`: torch looks at a hook's annotations, and wants objects.


CompressorState = dict[str, Any]
Future = torch.futures.Future[torch.Tensor]


class TensorBucket(Protocol):
    """
    torch's GradBucket, or whatever else is averaged in its way: whole parameters, whose values lie in `buffer()` in their order.

    Index 0 begins a step. Ranks give buckets of the same parameters, in the same order.
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

    `raw_bytes`: size of the buckets so far; `sent_bytes`: what this rank handed to collectives for them, which send it on their own ways.
    """

    name: str
    raw_bytes: int
    sent_bytes: int

    def hook(self, bucket: TensorBucket) -> Future:
        """The average, in the place of the bucket's buffer. Every rank calls it."""

    def dense(self, bucket: TensorBucket) -> Future:
        """The same uncompressed, with all that was not sent before. Every rank calls it."""

    def state_dict(self) -> CompressorState:
        """For a checkpoint of this rank, between two steps: what it has not sent is its own."""

    def load_state_dict(self, state: CompressorState) -> None:
        """Every rank loads its own. Raises ValueError if it is of another compression or of other parameters."""


def compression_hook(state: Compressor, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `register_comm_hook(compressor, run)`, or `meter_ddp(job, ddp, hook=run, state=compressor)`."""
    with peer_loss_as_sync_error():
        future = state.hook(bucket)
    return future.then(reduced_value)


def average_uncompressed(group: dist.ProcessGroup, bucket: TensorBucket) -> Future:
    """Of sparse gradients too."""
    return allreduce_hook(group, bucket)


def bucket_bytes(tensor: torch.Tensor) -> int:
    """In octets."""
    if tensor.is_sparse:
        return tensor._values().nbytes + tensor._indices().nbytes
    return tensor.nbytes


def is_finite(tensor: torch.Tensor) -> bool:
    """By its norm, which is several times faster than a look at each element."""
    return bool(torch.linalg.vector_norm(tensor, dtype=torch.float64).isfinite())
