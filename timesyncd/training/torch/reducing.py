"""What a strategy sends through: the reducer of its averagings, and DDP's communication hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from timesyncd.training.compression import compression_hook, compressor
from timesyncd.training.compression.compressors import TopKFeedback
from timesyncd.training.policy.plugins import BACKENDS_GROUP, installed_parts, load_part
from timesyncd.training.policy.text import Strategy
from timesyncd.training.torch.actions import replica_tensors, trainable_parameters
from timesyncd.training.torch.averaging import BucketReducer, DenseReducer
from timesyncd.training.torch.topology_groups import TwoLevel, two_level


def reducer_for(
    strategy: Strategy, ddp: DistributedDataParallel, group: dist.ProcessGroup, groups: TwoLevel | None
) -> BucketReducer:
    """A compressor, the reducer over near and far ranks, or the plain one."""
    if strategy.compression is None:
        return groups or plain_reducer(group, trainable_parameters(ddp)[0].device)
    made = compressor(strategy.compression, group, replica_tensors(ddp))
    if isinstance(made, TopKFeedback):
        made.reads_between_steps = True
    return made


#: The backends whose groups average uncompressed by torch's own collectives. Others may bring a reducer, by an entry
#: point of `timesyncd.backends` with the name that torch gives the backend; without one it is torch's too.
OWN_BACKENDS = frozenset({"gloo", "nccl"})


def plain_reducer(group: dist.ProcessGroup, device: torch.device) -> BucketReducer:
    """Raises ValueError where the entry point of the group's backend cannot be loaded."""
    others = installed_parts(BACKENDS_GROUP).keys() - OWN_BACKENDS
    if others and (name := group._get_backend(device).name()) in others:
        made: BucketReducer = load_part(BACKENDS_GROUP, name)(group)
        return made
    return DenseReducer(group)


def ddp_hook(strategy: Strategy, groups: TwoLevel | None) -> Callable[..., Any] | None:
    """What DDP's own reducer runs; None: its all-reduce."""
    if strategy.compression is not None:
        return compression_hook
    return None if groups is None else two_level
