"""The updates of parameters, as torch's optimizers tell them: they end a job's steps."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from timesyncd.client.torch.steps import Steps

_watching: list[Callable[[torch.optim.Optimizer], None]] = []


def watch_updates(updated: Callable[[torch.optim.Optimizer], None]) -> Callable[[], None]:
    """Call it after each update by any optimizer. Returns what ends that; both may be called in such a call."""
    _watch()
    _watching.append(updated)
    return functools.partial(_watching.remove, updated)


@functools.cache
def _watch() -> None:
    """Once, and for good: torch fails where one of its hooks is added or removed while it calls them."""
    register_optimizer_step_post_hook(_updated)


def _updated(updating: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for updated in tuple(_watching):
        updated(updating)


def end_with(
    steps: Steps, optimizer: torch.optim.Optimizer | None, parameters: Iterable[torch.Tensor] = ()
) -> Callable[[], None]:
    """
    End the step after each update by the optimizer; None: by the first optimizer seen to update any of the parameters, until
    all of them are gone.

    Returns what undoes it; once is enough.
    """
    watched = {id(parameter): weakref.ref(parameter) for parameter in parameters}
    found: weakref.ref[torch.optim.Optimizer] | None = None

    def updated(updating: torch.optim.Optimizer) -> None:
        nonlocal found
        if found is None or found() is None:
            if all(parameter() is None for parameter in watched.values()):
                undo()
            if not any(_is_in(watched, parameter) for group in updating.param_groups for parameter in group["params"]):
                return
            found = weakref.ref(updating)
        if found() is updating:
            steps.end()

    if optimizer is None:
        stop = watch_updates(updated)
    else:
        if not hasattr(optimizer, "_optimizer_step_post_hooks"):  # accelerate's, around the one that updates
            optimizer = getattr(optimizer, "optimizer", optimizer)
        stop = optimizer.register_step_post_hook(lambda updating, args, kwargs: steps.end()).remove
    steps.endings += 1
    undoing = [stop]

    def undo() -> None:
        while undoing:
            undoing.pop()()
            steps.endings -= 1

    return undo


def _is_in(watched: dict[int, weakref.ref[torch.Tensor]], parameter: torch.Tensor) -> bool:
    """An id alone says nothing: it is used again when its owner is gone."""
    found = watched.get(id(parameter))
    return found is not None and found() is parameter
