"""
Meters the broadcast of a module's buffers, which DistributedDataParallel makes before a forward pass (BatchNorm's mean and variance).

A rank waits there for others, so its later lateness in the backward pass may be theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client.torch.ddp import thread_state
from timesyncd.client.torch.steps import Record, Steps
from timesyncd.ipc.job_datagram import Kind

_steps_by_module: WeakKeyDictionary[DistributedDataParallel, Steps] = WeakKeyDictionary()


def stamp_buffers(steps: Steps, ddp: DistributedDataParallel) -> Callable[[], None]:
    """Mark the module's broadcasts from now on. Returns what ends that."""
    _wrap()
    _steps_by_module[ddp] = steps

    def undo() -> None:
        if _steps_by_module.get(ddp) is steps:
            del _steps_by_module[ddp]

    return undo


@functools.cache
def _wrap() -> None:
    """Once for the process: an attribute of the module itself would be saved and copied with it."""
    original: Any = getattr(DistributedDataParallel, "_sync_buffers", None)
    if original is None:  # another torch: no mark
        return

    @functools.wraps(original)
    def _sync_buffers(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        steps = None if torch.compiler.is_compiling() else _steps_by_module.get(self)
        if steps is None or steps.is_beside():
            return original(self, *args, **kwargs)
        record = _begun(steps, self)
        was_hook, thread_state.hook = getattr(thread_state, "hook", False), True
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            if record is not None:
                record.leave(failed=True)
            raise
        finally:
            thread_state.hook = was_hook
        if record is not None:
            _end(steps, record)
        return result

    DistributedDataParallel._sync_buffers = _sync_buffers  # type: ignore[method-assign]
    _wrap_shadow()


def _wrap_shadow() -> None:
    """A rank that has joined broadcasts for those that have not: it takes no step, so that leaves no mark."""
    original: Any = getattr(DistributedDataParallel, "_check_and_sync_module_buffers", None)
    if original is None:
        return

    @functools.wraps(original)
    def _check_and_sync_module_buffers(self: DistributedDataParallel) -> Any:
        was_hook = getattr(thread_state, "hook", False)
        thread_state.hook = was_hook or self in _steps_by_module
        try:
            return original(self)
        finally:
            thread_state.hook = was_hook

    DistributedDataParallel._check_and_sync_module_buffers = _check_and_sync_module_buffers  # type: ignore[method-assign]


def _begun(steps: Steps, ddp: DistributedDataParallel) -> Record | None:
    with steps.safely:
        steps.start_pass(ddp)
        buffers = ddp.modules_buffers
        # What a hook for buffers does is not known.
        kind = Kind.CUSTOM if hasattr(ddp, "buffer_hook") else Kind.BROADCAST
        record = Record(
            kind, sum(buffer.nbytes for buffer in buffers), steps.stamps_for(buffers[0] if buffers else None)
        )
        steps.number(record)
        record.arrive(steps.job.meter, record.key)
        return record
    return None


def _end(steps: Steps, record: Record) -> None:
    with steps.safely:
        record.end = record.stamps.now()
        record.leave_at_end()
        steps.complete(record)
