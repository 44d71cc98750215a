"""
What a training script calls: meter a module or an optimizer for a job, until it is closed.

The updates of parameters, as torch's optimizers tell them: they end a job's steps.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from timesyncd.client.job import Job
from timesyncd.client.torch import ddp as buckets
from timesyncd.client.torch import fsdp
from timesyncd.client.torch.steps import Steps, steps_of

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


def end_steps_with(
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


#: What undoes the ending of steps, by module.
_ending: WeakKeyDictionary[torch.nn.Module, Callable[[], None]] = WeakKeyDictionary()


class Metered:
    """A module or optimizer that is metered. All of one job count its steps together."""

    def __init__(self, steps: Steps, undoing: Sequence[Callable[[], None]]) -> None:
        self._steps = steps
        self._undoing = list(undoing)

    @property
    def step(self) -> int:
        """
        The current step: counted from 0, one up after each update; or set it, at a step's begin and alike on every rank.

        Where no optimizer ends the steps, setting the next number does.
        """
        return self._steps.step

    @step.setter
    def step(self, number: int) -> None:
        self._steps.step = number

    def begin(self) -> None:
        """The step begins now, not where the former one ended: call it after an evaluation or a checkpoint between steps."""
        self._steps.begin()

    def close(self) -> None:
        """Meter no more. The module and the optimizer go on as they are."""
        undoing, self._undoing = self._undoing, []
        for undo in undoing:
            undo()
        if undoing and not self._steps.endings:  # else what is kept is marked at the next end by another
            self._steps.close()


def metered(job: Job, target: torch.nn.Module | FSDPModule | Optimizer, optimizer: Optimizer | None = None) -> Metered:
    """
    Meter a DistributedDataParallel or FSDP2 module, compiled or not, or an optimizer alone.

    `optimizer`: the one whose update ends a step of the module; None: the first that is seen to update a parameter of it.
    Raises TypeError for anything else.
    """
    module = getattr(target, "_orig_mod", target)
    if isinstance(module, DistributedDataParallel):
        return meter_ddp(job, module, optimizer)
    if isinstance(module, FSDPModule):
        return meter_fsdp(job, module, optimizer)
    if isinstance(module, Optimizer):
        return Metered(steps_of(job), [end_steps_with(steps_of(job), module)])
    raise TypeError(
        f"{type(target).__name__} cannot be metered: give a DistributedDataParallel or fully_shard module, or an optimizer"
    )


def meter_ddp(
    job: Job,
    ddp: DistributedDataParallel,
    optimizer: Optimizer | None = None,
    hook: buckets.Hook | None = None,
    state: object = None,
) -> Metered:
    """
    Meter each gradient bucket of the module, and its steps.

    `hook` and `state` are what you would give to `register_comm_hook`, which torch takes once; None: the all-reduce that the
    module does without a hook, to the same bits. Called again for the same module, it takes the place of the former call.
    """
    steps = steps_of(job)
    detach = buckets.attach(job, ddp, hook, state)
    return Metered(steps, [detach, _end_steps(steps, ddp, optimizer)])


def meter_fsdp(job: Job, module: FSDPModule, optimizer: Optimizer | None = None) -> Metered:
    """Meter the all-gathers and reduce-scatters of a `fully_shard` module, all that it holds included, and its steps."""
    steps = steps_of(job)
    assert isinstance(module, torch.nn.Module)
    return Metered(steps, [fsdp.attach(job, module), _end_steps(steps, module, optimizer)])


def _end_steps(steps: Steps, module: torch.nn.Module, optimizer: Optimizer | None) -> Callable[[], None]:
    """In the place of what ended the module's steps so far. Returns what undoes it."""
    _ending.pop(module, _nothing)()
    _ending[module] = undo = end_steps_with(steps, optimizer, module.parameters())
    return undo


def _nothing() -> None:
    pass
