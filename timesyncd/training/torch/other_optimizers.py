"""Sees that a loop goes on with another optimizer than the one that its policy was given."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

#: So many updates of another optimizer in a row mean that it has replaced the one of the policy. Two may alternate.
MAX_OTHER_UPDATES = 3

_watches: WeakSet[OptimizerWatch] = WeakSet()


class OptimizerWatch:
    """
    Calls `replaced` before another optimizer updates some of the optimizer's parameters, where it has done so
    MAX_OTHER_UPDATES times, that one included, since the optimizer's last update.

    Call `end_update` when the optimizer has made or left out an update. What others do within its update is its own.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, replaced: Callable[[torch.optim.Optimizer], None]) -> None:
        _watch_updates()
        self._optimizer, self._replaced = optimizer, replaced
        self._others: int | None = 0  #: None: within the optimizer's own update
        _watches.add(self)

    def close(self) -> None:
        _watches.discard(self)

    def end_update(self) -> None:
        self._others = 0

    def begin_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Of any optimizer."""
        if optimizer is self._optimizer:
            self._others = None
        elif self._others is not None and _parameters(optimizer) & _parameters(self._optimizer):
            self._others += 1
            if self._others >= MAX_OTHER_UPDATES:
                self._replaced(optimizer)


def _parameters(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


@cache
def _watch_updates() -> None:
    """Once for the process."""

    def begin_update(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for watch in list(_watches):
            watch.begin_update(optimizer)

    register_optimizer_step_pre_hook(begin_update)
