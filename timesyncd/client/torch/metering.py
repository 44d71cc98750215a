"""
What a training script calls: meter a module or an optimizer for a job until it is closed.

A job's steps end with the updates of parameters, which torch's optimizers report by hooks. FSDP2 (`fully_shard`) has
setters for custom collectives, which put in ones that stamp.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from timesyncd.client.job import Job
from timesyncd.client.torch import ddp as buckets
from timesyncd.client.torch.collectives import TimedWork
from timesyncd.client.torch.ddp import thread_state
from timesyncd.client.torch.module_buffers import stamp_buffers
from timesyncd.client.torch.own_warnings import warn
from timesyncd.client.torch.steps import Record, Steps, steps_of
from timesyncd.ipc.job_datagram import Kind

_update_callbacks: list[Callable[[torch.optim.Optimizer], None]] = []

_thread_updates = threading.local()

#: Of the function in which torch calls an optimizer's `step` and its hooks.
_STEP_CODE = Optimizer.profile_hook_step(lambda: None).__code__  # type: ignore[arg-type, attr-defined, misc, unused-ignore]


def watch_updates(updated: Callable[[torch.optim.Optimizer], None]) -> Callable[[], None]:
    """
    Call `updated` after each update by any optimizer. Returns what ends that; both may be called inside `updated`.

    An optimizer that updates within the step of another one is a part of that (ZeRO's local one, before ZeRO broadcasts the
    parameters): the outer one's update counts.
    """
    _register_hook()
    _update_callbacks.append(updated)
    return functools.partial(_update_callbacks.remove, updated)


@functools.cache
def _register_hook() -> None:
    """Once for the process: torch fails if one of its hooks is added or removed while it calls them."""
    register_optimizer_step_pre_hook(_begin_update)
    register_optimizer_step_post_hook(_updated)


def _begin_update(updating: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    begun = _begun_updates()
    own = weakref.ref(updating)
    if own in begun:  # an error ended its last step
        del begun[begun.index(own) :]
    if begun:
        begun[:] = [one for one in begun if _is_stepping(one())]
    begun.append(own)


def _is_stepping(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether this thread is inside the optimizer's step, which an error may have ended."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # Only of torch's own frames: a frame whose locals were read keeps them alive.
        if frame.f_code is _STEP_CODE and frame.f_locals.get("self") is optimizer:
            return optimizer is not None
        frame = frame.f_back
    return False


def _begun_updates() -> list[weakref.ref[torch.optim.Optimizer]]:
    """Of this thread, the outer ones first. Weak: a script that drops an optimizer after an error gets its memory back."""
    begun: list[weakref.ref[torch.optim.Optimizer]] | None = getattr(_thread_updates, "begun", None)
    if begun is None:
        begun = _thread_updates.begun = []
    return begun


def _updated(updating: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    begun, own = _begun_updates(), weakref.ref(updating)
    if own in begun:
        del begun[begun.index(own) :]
    if begun:
        return
    for updated in tuple(_update_callbacks):
        updated(updating)


#: More than an optimizer updates in one step beside another one of the same module.
_UPDATES_UNTIL_REPLACED = 8


class StepEnd:
    """What ends the job's steps: the optimizer, or (None) the first one that updates any of the module's parameters."""

    def __init__(
        self,
        steps: Steps,
        optimizer: torch.optim.Optimizer | None,
        parameters: Iterable[torch.Tensor] = (),
        module: torch.nn.Module | None = None,
    ) -> None:
        self._steps = steps
        self._watched = {id(parameter): weakref.ref(parameter) for parameter in parameters}
        self._found: weakref.ref[torch.optim.Optimizer] | None = None
        self._other: weakref.ref[torch.optim.Optimizer] | None = None
        self._other_updates = 0  # of `_other`, since `_found` updated
        forget = steps.end_with(self, module)
        if optimizer is None:
            stop = watch_updates(self.updated_by)
        else:
            if not hasattr(
                optimizer, "_optimizer_step_post_hooks"
            ):  # accelerate's wrapper around the optimizer that updates
                optimizer = getattr(optimizer, "optimizer", optimizer)
            stop = optimizer.register_step_post_hook(lambda updating, args, kwargs: steps.update(self)).remove
        self._undoing = [stop, forget]

    def undo(self) -> None:
        """Repeated calls have no effect."""
        while self._undoing:
            self._undoing.pop()()

    def updated_by(self, updating: torch.optim.Optimizer) -> None:
        """An optimizer has updated, which may be another one."""
        if self._found is None or self._found() is None:
            if all(parameter() is None for parameter in self._watched.values()):
                self.undo()
            if not self._is_of_the_module(updating):
                return
            self._found = weakref.ref(updating)
        if self._found() is not updating and not self._replaces(updating):
            return
        self._found, self._other = weakref.ref(updating), None
        self._steps.update(self)

    def _replaces(self, updating: torch.optim.Optimizer) -> bool:
        """Whether a script goes on with this optimizer, and only keeps the former one."""
        if not self._is_of_the_module(updating):
            return False
        if self._other is None or self._other() is not updating:
            self._other, self._other_updates = weakref.ref(updating), 0
        self._other_updates += 1
        return self._other_updates >= _UPDATES_UNTIL_REPLACED

    def _is_of_the_module(self, updating: torch.optim.Optimizer) -> bool:
        return any(_is_in(self._watched, each) for group in updating.param_groups for each in group["params"])


def end_steps_with(
    steps: Steps, optimizer: torch.optim.Optimizer | None, parameters: Iterable[torch.Tensor] = ()
) -> Callable[[], None]:
    """
    End the step after each update by the optimizer, and by all others that end the job's steps.

    None: by the first optimizer that updates any of the parameters, until all of them are gone. Returns what undoes it; once is enough.
    """
    return StepEnd(steps, optimizer, parameters).undo


def _is_in(watched: dict[int, weakref.ref[torch.Tensor]], parameter: torch.Tensor) -> bool:
    """An id alone is not enough: it is reused after its owner is gone."""
    found = watched.get(id(parameter))
    return found is not None and found() is parameter


#: By module, what ends its steps.
_ends_by_module: WeakKeyDictionary[torch.nn.Module, StepEnd] = WeakKeyDictionary()


class Metered:
    """A metered module or optimizer. All of one job share the job's steps."""

    def __init__(self, steps: Steps, undoing: Sequence[Callable[[], None]]) -> None:
        self._steps = steps
        self._undoing = list(undoing)

    @property
    def step(self) -> int:
        """
        The current step: counted from 0, one more after each update. Or set it at the start of a step, to the same number on every rank.

        If no optimizer ends the steps, setting the next number does.
        """
        return self._steps.step

    @step.setter
    def step(self, number: int) -> None:
        self._steps.step = number

    def begin(self) -> None:
        """The step starts now, and not where the last one ended: call it after an evaluation or a checkpoint between steps."""
        self._steps.begin()

    def close(self) -> None:
        """Stop metering. The module and the optimizer stay as they are."""
        undoing, self._undoing = self._undoing, []
        for undo in undoing:
            undo()
        if undoing and not self._steps.ending_optimizers:  # else another one marks the kept records at its next end
            self._steps.close()


def metered(job: Job, target: torch.nn.Module | FSDPModule | Optimizer, optimizer: Optimizer | None = None) -> Metered:
    """
    Meter a DistributedDataParallel or FSDP2 module, compiled or not, or an optimizer alone.

    `optimizer`: the one whose update ends a step of the module; None: the first that updates a parameter of the module.
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

    `hook` and `state` are what you would give to `register_comm_hook`, which torch accepts once. None: the module's own all-reduce, with
    the same bits. Another call for the same module replaces this one.
    """
    steps = steps_of(job)
    detach = buckets.attach(job, ddp, hook, state)
    undoing = [detach, _end_steps(steps, ddp, optimizer)]
    if ddp.process_group.size() == job.world_size:
        undoing.append(stamp_buffers(steps, ddp))
    return Metered(steps, undoing)


def meter_fsdp(job: Job, module: FSDPModule, optimizer: Optimizer | None = None) -> Metered:
    """Meter the all-gathers and reduce-scatters of a `fully_shard` module and of the sharded modules inside it, and its steps."""
    steps = steps_of(job)
    assert isinstance(module, torch.nn.Module)
    return Metered(steps, [stamp_collectives(job, module), _end_steps(steps, module, optimizer)])


def _end_steps(steps: Steps, module: torch.nn.Module, optimizer: Optimizer | None) -> Callable[[], None]:
    """Replaces what ended the module's steps so far. Returns what undoes it."""
    former = _ends_by_module.pop(module, None)
    if former is not None:
        former.undo()
    _ends_by_module[module] = end = StepEnd(steps, optimizer, module.parameters(), module)
    return end.undo


def count_update(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The optimizer has updated before the module was metered, maybe parameters of the module."""
    _ends_by_module[module].updated_by(optimizer)


def _nothing() -> None:
    pass


_FSDP_COLLECTIVES = (
    ("_all_gather_comm", "set_custom_all_gather", Kind.ALL_GATHER),
    ("_reduce_scatter_comm", "set_custom_reduce_scatter", Kind.REDUCE_SCATTER),
)


class StampedComm:
    """FSDP2 calls it instead of `comm`, and it calls `comm`."""

    def __init__(self, comm: Any, kind: Kind, job: Job, root: torch.nn.Module | None = None) -> None:
        self.comm = comm
        self._root = None if root is None else weakref.ref(root)  #: the metered module that this one is within
        self._kind = kind
        self._world_size = job.world_size
        self.steps: Steps | None = steps_of(job)
        self.is_waited_for = False  #: a device's compute stream waits elsewhere
        self.gathered: Record | None = None  #: for which it has not waited yet

    def __reduce__(self) -> tuple[Any, ...]:
        """A saved or copied module has the collective without the meter."""
        return _itself, (self.comm,)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        tensor: torch.Tensor = self.comm.allocate(size, dtype=dtype, device=device)
        return tensor

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, **rest: Any) -> Any:
        record = self._begin(output_tensor, input_tensor, group)
        thread_state.hook = record is not None
        try:
            work = self.comm(output_tensor=output_tensor, input_tensor=input_tensor, group=group, **rest)
        except BaseException:
            if record is not None:
                record.leave(failed=True)
            raise
        finally:
            thread_state.hook = False
        if record is None or self.steps is None:
            return work
        if self.is_waited_for and input_tensor.is_cuda and not isinstance(work, dist.Work):
            self._keep(self.steps, record)
            return work
        if not isinstance(work, dist.Work):
            _stamp_end(self.steps, record)
            return work
        record.go_on()
        before_wait = functools.partial(_stamp_begin, self.steps, record)
        return TimedWork(work, before_wait, functools.partial(_stamp_end, self.steps, record), record.leave)

    def _begin(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any) -> Record | None:
        """None: metering is closed, the group is not the job's and not recorded, or the thread is beside the step."""
        if self.steps is None or self.steps.is_beside():
            return None
        channel = None
        if group.size() != self._world_size:
            communicators = self.steps.communicators
            channel = None if communicators is None else communicators.of(group)
            if channel is None:
                return None
        with self.steps.safely:
            if self._root is not None and (root := self._root()) is not None:
                self.steps.start_pass(root)
            larger = max(output_tensor.nbytes, input_tensor.nbytes)
            record = Record(self._kind, larger, self.steps.stamps_for(input_tensor), channel)
            self.steps.number(record)
            record.arrive(self.steps.job.meter, record.key)
            if self._kind is Kind.REDUCE_SCATTER:
                self.steps.ready(record.arrival)
            return record
        return None

    def _keep(self, steps: Steps, record: Record) -> None:
        """Until compute waits for it. One that compute did not wait for was hidden as a whole."""
        former, self.gathered = self.gathered, record
        with steps.safely:
            record.end = record.stamps.now()
            record.leave_at_end()
            if former is not None:
                former.begin = former.end
                steps.complete(former)


def _itself(comm: Any) -> Any:
    return comm


def _stamp_begin(steps: Steps, record: Record) -> None:
    with steps.safely:
        record.begin = record.stamps.now()
        record.wait()


def _stamp_end(steps: Steps, record: Record) -> None:
    with steps.safely:
        record.end = record.stamps.now()
        record.leave_at_end()
        steps.complete(record)


def stamp_collectives(job: Job, module: FSDPModule) -> Callable[[], None]:
    """Put stamping collectives into the module and all sharded modules inside it. Returns what removes them."""
    assert isinstance(module, torch.nn.Module)
    undoing = []
    for shard in module.modules():
        if isinstance(shard, FSDPModule):
            for attribute, setter, kind in _FSDP_COLLECTIVES:
                undoing += _stamp(job, shard, attribute, getattr(shard, setter, None), kind, module)
    if not undoing:
        warn(
            "timesyncd meters no collective of this module: FSDP2 of this torch has no setter for custom collectives",
            stacklevel=4,
        )

    def undo() -> None:
        for step in undoing:
            step()

    return undo


def _parameter_groups(shard: FSDPModule) -> list[Any]:
    """torch 2.13 has several groups in a module, torch 2.11 one, or None."""
    state: Any = shard._get_fsdp_state()
    found = getattr(state, "_fsdp_param_groups", None)
    groups = [getattr(state, "_fsdp_param_group", None)] if found is None else found
    return [group for group in groups if group is not None]


def _stamp_waits(group: Any, stamped: StampedComm) -> Callable[[], None]:
    """
    Compute waits for a gather where FSDP2 unshards the group's parameters, in another stream than the gather's. From there on the gather
    is not hidden. Returns what removes it.
    """
    wait = getattr(group, "wait_for_unshard", None)
    if wait is None:
        return _nothing
    stamped.is_waited_for = True

    @functools.wraps(wait)
    def wait_for_unshard() -> None:
        record, stamped.gathered = stamped.gathered, None
        steps = stamped.steps
        if steps is not None and record is not None:
            with steps.safely:
                record.begin = record.stamps.now()
                steps.complete(record)
        wait()

    group.wait_for_unshard = wait_for_unshard

    def undo() -> None:
        if group.__dict__.get("wait_for_unshard") is wait_for_unshard:  # not a later one
            del group.wait_for_unshard

    return undo


def _stamp(
    job: Job,
    shard: FSDPModule,
    attribute: str,
    put: Callable[[Any], None] | None,
    kind: Kind,
    root: torch.nn.Module,
) -> list[Callable[[], None]]:
    """Empty if there is no such collective, or several, which the setter would replace by one."""
    if put is None:
        return []
    groups = [group for group in _parameter_groups(shard) if hasattr(group, attribute)]
    if len(groups) != 1:
        return []
    comm = getattr(groups[0], attribute)
    if isinstance(comm, StampedComm):
        comm.steps = None
        comm = comm.comm
    stamped = StampedComm(comm, kind, job, root)
    put(stamped)
    forget_waits = _stamp_waits(groups[0], stamped) if kind is Kind.ALL_GATHER else _nothing

    def undo() -> None:
        stamped.steps = None
        forget_waits()
        if getattr(groups[0], attribute) is stamped:  # not a later one
            put(comm)

    return [undo]
