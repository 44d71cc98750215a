"""
The group on which the client's own numbers and objects travel, which are in the host's memory.

NCCL refuses tensors of the CPU. So beside a group that has no backend for them the client makes one of gloo, of the same ranks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_beside: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def takes(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether the group has a backend for tensors of the device. As torch has it, one that names no devices takes the CPU's."""
    return device.type in {served.type for served in group._device_types or [torch.device("cpu")]}


def group_timeout(group: dist.ProcessGroup) -> timedelta:
    """The group's time-out. A new group would have torch's default, half an hour, whatever the job has set."""
    backend: Any = group._get_backend(group._device_types[0])
    timeout: timedelta = backend.options._timeout
    return timeout


def host_group(group: dist.ProcessGroup | None = None) -> dist.ProcessGroup:
    """
    The group itself (None: the default one) where it takes tensors of the CPU, else the gloo group beside it.

    The first call for a group that takes none makes that group, so every rank of the group makes that call at the same time. Where the
    group has some ranks only, these have made equally many groups before: torch names the new group by that number. Raises RuntimeError
    where a rank has ended.
    """
    called = distributed_c10d._get_default_group() if group is None else group
    if takes(called, torch.device("cpu")):
        return called
    found = _beside.get(called)
    if found is None or found not in distributed_c10d._world.pg_map:  # the process made its groups again
        ranks = dist.get_process_group_ranks(called)
        is_part = len(ranks) < distributed_c10d._get_default_group().size()
        found = dist.new_group(ranks, group_timeout(called), backend="gloo", use_local_synchronization=is_part)
        _beside[called] = found
    return found


def group_for(tensor: torch.Tensor, group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The group itself where it takes tensors of that device, else `host_group`."""
    return group if takes(group, tensor.device) else host_group(group)


def gather_objects(own: object, group: dist.ProcessGroup | None = None) -> list[Any]:
    """What each rank of the group gave, by rank. Raises RuntimeError where a rank has ended."""
    chosen = host_group(group)
    gathered: list[Any] = [None] * chosen.size()
    distributed_c10d.all_gather_object(gathered, own, group=chosen)
    return gathered
