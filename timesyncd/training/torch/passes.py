"""The training passes of one module: whether DDP reduces in them, and how many of them each update takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from timesyncd.training.policy.row import Row


class Passes:
    """
    A loop switches DDP's reduction off and on by `no_sync`, or by `require_backward_grad_sync` itself, as nanoGPT does.
    The policy decides beside it: DDP reduces where both want it, whatever the loop sets between two passes.

    `reduces`: whether the policy lets DDP reduce. `count`: number of backward passes so far, without those that the
    loop accumulates; it stays 0 where torch.compile has compiled the module's call. `left_out`: the newest step that
    took more of them than the step before it, or was left out while DDP reduces. `empty`: number of updates that were
    left out since DDP reduces. `is_updating`: an update has begun, and the passes of a closure that runs again for it
    are not counted. `on_forward`: called before each forward pass that trains.
    """

    def __init__(self, ddp: DistributedDataParallel, on_forward: Callable[[], None]) -> None:
        self._ddp = ddp
        self.reduces = True
        self.count = 0
        self.empty = 0
        self.left_out: int | None = None
        self.is_updating = False
        self._on_forward = on_forward
        self._wanted = True
        self._of_step = self._of_former = 0
        self._hooks = [
            ddp.register_forward_pre_hook(self.begin),
            ddp.register_forward_hook(self._end, always_call=True),
        ]

    def begin_update(self) -> None:
        self.is_updating = True

    def end_step(self, step: int, is_empty: bool) -> None:
        """The update of this step was made, or left out (`is_empty`)."""
        if self._has_surplus() or (is_empty and self.reduces):
            self.left_out = step
        self.empty += is_empty and self.reduces
        self._of_step, self._of_former = 0, self._of_step
        self.is_updating = False

    def forget_empty_updates(self) -> None:
        """Another policy begins: replicas are equal from here, or need not be."""
        self.empty = 0

    def complete(self, row: Row) -> Row:
        """The row with the fields that this class counts."""
        left_out = row.step if self._has_surplus() and row.step >= 0 else self.left_out
        return dataclasses.replace(row, passes=self.count, empty=self.empty, left_out=left_out)

    def _has_surplus(self) -> bool:
        return 0 < self._of_former < self._of_step

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin(self, *_: object) -> None:
        """A forward pass begins."""
        ddp = self._ddp
        self._wanted = ddp.require_backward_grad_sync
        ddp.require_backward_grad_sync = self._wanted and self.reduces
        if ddp.training and torch.is_grad_enabled():
            self._on_forward()

    def _end(self, ddp: DistributedDataParallel, inputs: object, output: object) -> None:
        """Also after an error. The loop finds what it has set."""
        ddp.require_backward_grad_sync = self._wanted
        if not self._wanted or not ddp.training or torch.compiler.is_compiling():
            return
        counted: list[bool] = []

        def backward(_: torch.Tensor) -> None:
            if not counted and not self.is_updating:
                counted.append(True)
                self.count += 1
                self._of_step += 1

        for tensor in _tensors_with_gradient(output):
            tensor.register_hook(backward)  # type: ignore[no-untyped-call]


def _tensors_with_gradient(output: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
