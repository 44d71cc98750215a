"""Meters FSDP2 (`fully_shard`): stamps its collectives by its setters for custom ones."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from timesyncd.client.job import Job
from timesyncd.client.torch.collectives import TimedWork
from timesyncd.client.torch.ddp import thread_state
from timesyncd.client.torch.steps import Record, Steps, steps_of
from timesyncd.ipc.job_datagram import Kind

_COLLECTIVES = (
    ("_all_gather_comm", "set_custom_all_gather", Kind.ALL_GATHER),
    ("_reduce_scatter_comm", "set_custom_reduce_scatter", Kind.REDUCE_SCATTER),
)


class StampedComm:
    """FSDP2 calls it instead of `comm`, and it calls `comm`."""

    def __init__(self, comm: Any, kind: Kind, job: Job) -> None:
        self.comm = comm
        self._kind = kind
        self._world_size = job.world_size
        self.steps: Steps | None = steps_of(job)

    def __reduce__(self) -> tuple[Any, ...]:
        """A saved or copied module has the collective without the meter."""
        return _itself, (self.comm,)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        tensor: torch.Tensor = self.comm.allocate(size, dtype=dtype, device=device)
        return tensor

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, **rest: Any) -> Any:
        record = self._begin(output_tensor, input_tensor, group)
        thread_state.hook = True
        try:
            work = self.comm(output_tensor=output_tensor, input_tensor=input_tensor, group=group, **rest)
        finally:
            thread_state.hook = False
        if record is None or self.steps is None:
            return work
        if not isinstance(work, dist.Work):
            _end(self.steps, record)
            return work
        before_wait = functools.partial(_stamp_begin, self.steps, record)
        return TimedWork(work, before_wait, functools.partial(_end, self.steps, record))

    def _begin(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any) -> Record | None:
        """None: metering is closed, or the group is not the job's."""
        if self.steps is None or group.size() != self._world_size:
            return None
        with self.steps.safely:
            larger = max(output_tensor.nbytes, input_tensor.nbytes)
            record = Record(self._kind, larger, self.steps.stamps_for(input_tensor))
            self.steps.number(record)
            if self._kind is Kind.REDUCE_SCATTER:
                self.steps.ready(record.arrival)
            return record
        return None


def _itself(comm: Any) -> Any:
    return comm


def _stamp_begin(steps: Steps, record: Record) -> None:
    with steps.safely:
        record.begin = record.stamps.now()


def _end(steps: Steps, record: Record) -> None:
    with steps.safely:
        record.end = record.stamps.now()
        steps.complete(record)


def attach(job: Job, module: FSDPModule) -> Callable[[], None]:
    """Put stamping collectives into the module and all sharded modules inside it. Returns what removes them."""
    assert isinstance(module, torch.nn.Module)
    undoing = []
    for shard in module.modules():
        if isinstance(shard, FSDPModule):
            for attribute, setter, kind in _COLLECTIVES:
                undoing += _stamp(job, shard, attribute, getattr(shard, setter, None), kind)
    if not undoing:
        warnings.warn(
            "timesyncd meters no collective of this module: FSDP2 of this torch has no setter for custom collectives",
            stacklevel=4,
        )

    def undo() -> None:
        for step in undoing:
            step()

    return undo


def _stamp(
    job: Job, shard: FSDPModule, attribute: str, put: Callable[[Any], None] | None, kind: Kind
) -> list[Callable[[], None]]:
    """Empty if there is no such collective, or several, which the setter would replace by one."""
    if put is None:
        return []
    groups = [group for group in shard._get_fsdp_state()._fsdp_param_groups if hasattr(group, attribute)]
    if len(groups) != 1:
        return []
    comm = getattr(groups[0], attribute)
    if isinstance(comm, StampedComm):
        comm.steps = None
        comm = comm.comm
    stamped = StampedComm(comm, kind, job)
    put(stamped)

    def undo() -> None:
        stamped.steps = None
        if getattr(groups[0], attribute) is stamped:  # not a later one
            put(comm)

    return [undo]
