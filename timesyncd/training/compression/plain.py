"""What compressors share: the uncompressed average, sizes, a look whether all is finite."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from timesyncd.training.compression.interface import Bucket, Future


def averaged(group: dist.ProcessGroup, bucket: Bucket) -> Future:
    """Of sparse gradients too."""
    return allreduce_hook(group, bucket)


def size(tensor: torch.Tensor) -> int:
    """In octets."""
    if tensor.is_sparse:
        return tensor._values().nbytes + tensor._indices().nbytes
    return tensor.nbytes


def finite(tensor: torch.Tensor) -> bool:
    """By its norm, which is several times faster than a look at each element."""
    return bool(torch.linalg.vector_norm(tensor, dtype=torch.float64).isfinite())
