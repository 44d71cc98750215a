"""
Gradient scalers under a policy. A scaler leaves out the update where it finds an infinite gradient.

Without a policy DDP's reduction makes all ranks find it together. Where each rank updates by gradients of its own, one
rank finds it alone, and leaves out an update that the others make.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.amp import GradScaler

from timesyncd.client.torch.host_group import host_group

_watches: WeakKeyDictionary[torch.optim.Optimizer, ScalerWatch] = WeakKeyDictionary()


class ScalerWatch:
    """
    Calls `skipped` where a scaler left out an update of the optimizer. `updated` is called in each update that is made.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, skipped: Callable[[], None]) -> None:
        _watch_scalers()
        self._skipped = skipped
        self._updates = 0
        self._scaler: weakref.ref[GradScaler] | None = None
        self._optimizer = optimizer
        _watches[optimizer] = self

    def close(self) -> None:
        _watches.pop(self._optimizer, None)

    def updated(self) -> None:
        self._updates += 1

    def follow(self, scaler: GradScaler, step: Callable[[], Any]) -> Any:
        """Do the scaler's step, and report that it made no update."""
        if scaler.is_enabled():
            self._scaler = weakref.ref(scaler)
        before = self._updates
        result = step()
        if self._updates == before:
            self._skipped()
        return result

    @torch.no_grad()
    def unscale_fused(self, gradients: Iterable[torch.Tensor]) -> None:
        """
        Divide gradients that a fused optimizer would divide itself, in its update: their mean over ranks of different
        scales would be wrong. Infinite ones become 0. It reads no value.
        """
        optimizer: Any = self._optimizer
        scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if found is None:
            return
        for gradient in gradients:
            if scale is not None:
                gradient.mul_(scale.to(gradient.device).double().reciprocal().to(gradient.dtype))
            torch.where(found.to(gradient.device) > 0, torch.zeros_like(gradient), gradient, out=gradient)
        optimizer.grad_scale = None
        found.zero_()

    def equalize(self, group: dist.ProcessGroup) -> None:
        """
        Give the scalers of all ranks the smallest of their scales: DDP is about to reduce gradients that are scaled.

        Every rank of the group calls it. It does nothing where no scaler is used.
        """
        scaler = None if self._scaler is None else self._scaler()
        if scaler is None:
            return
        state = scaler.state_dict()
        numbers = torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)
        dist.all_reduce(numbers, op=dist.ReduceOp.MIN, group=host_group(group))
        scaler.load_state_dict(state | {"scale": float(numbers[0]), "_growth_tracker": int(numbers[1])})


@cache
def _watch_scalers() -> None:
    """Once for the process. A scaler of an optimizer without a policy behaves as before."""
    original = GradScaler.step

    @wraps(original)
    def step(scaler: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        watch = _watches.get(optimizer)
        if watch is None:
            return original(scaler, optimizer, *args, **kwargs)
        return watch.follow(scaler, lambda: original(scaler, optimizer, *args, **kwargs))

    GradScaler.step = step  # type: ignore[method-assign, assignment]
