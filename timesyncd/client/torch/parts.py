"""
Hooks that see which part of a step this rank is in: DataLoader's `next`, autograd's backward pass, and the optimizers.

They call what they replace with the same arguments, and change no result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from timesyncd.client.step_parts import StepParts
from timesyncd.ipc.job_datagram import OwnPart

#: The iterators of all DataLoaders. A torch without this class has data that no hook sees.
_ITERATOR = "_BaseDataLoaderIter"


def watch_parts(parts: StepParts) -> list[Callable[[], None]]:
    """From now on `parts` knows the part of the step. Returns what undoes it."""
    undoing = [_replaced(torch.autograd, "backward", parts, OwnPart.BACKWARD)]
    iterator = getattr(dataloader, _ITERATOR, None)
    if iterator is not None and "__next__" in iterator.__dict__:
        undoing.append(_replaced(iterator, "__next__", parts, OwnPart.DATA))

    def begin(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parts.enter(OwnPart.OPTIMIZER, optimizer)

    def end(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parts.leave(optimizer)

    return [
        *undoing,
        register_optimizer_step_pre_hook(begin).remove,
        register_optimizer_step_post_hook(end).remove,
    ]


def _replaced(owner: Any, name: str, parts: StepParts, part: OwnPart) -> Callable[[], None]:
    former = owner.__dict__[name]

    @functools.wraps(former)
    def within(*args: Any, **kwargs: Any) -> Any:
        key = object()
        parts.enter(part, key)
        try:
            return former(*args, **kwargs)
        finally:
            parts.leave(key)

    setattr(owner, name, within)

    def restore() -> None:
        if owner.__dict__[name] is within:  # else another library put its own around it, which calls it
            setattr(owner, name, former)

    return restore
