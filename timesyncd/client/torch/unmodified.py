"""Meters an unmodified training script: `timesyncd run-audit` starts it in each process of the script."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from timesyncd.client.job import Job, record_dir
from timesyncd.client.torch.collectives import meter_collectives
from timesyncd.client.torch.ddp import attach, show_buckets, stamping_hook
from timesyncd.client.torch.issued_calls import IssuedCalls
from timesyncd.client.torch.metering import count_update, meter_ddp, meter_fsdp, metered, watch_updates
from timesyncd.client.torch.own_warnings import collected_warnings
from timesyncd.client.torch.steps import steps_of

#: The environment variable with the name of the job, the same in all processes of the script.
JOB_NAME_VARIABLE = "TIMESYNCD_AUDIT_JOB"

#: By process, the job that is metered, and what ends its metering.
_metered: dict[int, tuple[Job, contextlib.ExitStack]] = {}


def start() -> None:
    """
    Start metering when the default process group exists. A script may make that group again: with this rank and as many
    ranks the job goes on, else the ranks have other numbers, and another job begins.
    """
    if not dist.is_initialized():
        return
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if os.getpid() in _metered:
        former, ending = _metered[os.getpid()]
        if (former.rank, former.world_size) == (rank, world_size):
            return
        ending.close()
    job = Job(name=os.environ.get(JOB_NAME_VARIABLE), rank=rank, world_size=world_size)
    stack = contextlib.ExitStack()
    _metered[os.getpid()] = job, stack
    stack.callback(job.close)
    stack.enter_context(meter_collectives(job))
    calls = _see_every_call(job, stack)
    _meter_every_ddp(job, stack)
    _meter_at_first_update(job, stack)
    _send_at_the_end(job, calls, stack)


def _see_every_call(job: Job, stack: contextlib.ExitStack) -> IssuedCalls:
    """What no hook meters is marked or counted, so that the report states it."""
    folder = record_dir()
    path = None if folder is None else folder / f"rank-{job.rank}-{os.getpid()}.calls"
    calls = IssuedCalls(steps_of(job), path)
    stack.callback(calls.close)
    with _errors_to_file(job):
        calls.open()
    atexit.register(calls.write)
    stack.callback(atexit.unregister, calls.write)
    stack.callback(calls.write)
    return calls


def _replace(owner: Any, name: str, made: Any, stack: contextlib.ExitStack) -> None:
    """Until the stack is closed."""
    former = getattr(owner, name)
    setattr(owner, name, made)

    def restore() -> None:
        if getattr(owner, name) is made:  # else another library put its own around it, which calls it
            setattr(owner, name, former)

    stack.callback(restore)


def _meter_every_ddp(job: Job, stack: contextlib.ExitStack) -> None:
    """
    A module gets the stamping hook when it is made, loaded or copied; a hook that the script registers later is called
    inside it.
    """
    make = DistributedDataParallel.__init__
    load = DistributedDataParallel.__setstate__
    register = DistributedDataParallel.register_comm_hook
    register_builtin = DistributedDataParallel._register_builtin_comm_hook
    hooked: WeakSet[DistributedDataParallel] = WeakSet()

    def meter(module: DistributedDataParallel) -> None:
        with _errors_to_file(job):
            meter_ddp(job, module)
            show_buckets(module)

    @functools.wraps(make)
    def __init__(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        meter(self)

    @functools.wraps(load)
    def __setstate__(self: DistributedDataParallel, state: Any) -> None:
        load(self, state)  # type: ignore[no-untyped-call]
        meter(self)

    @functools.wraps(register)
    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Any) -> None:
        is_first = hook is not stamping_hook and self not in hooked
        if is_first and any(found is stamping_hook for found, _ in self._comm_hooks):
            hooked.add(self)
            attach(job, self, hook, state)
        else:
            register(self, state, hook)

    @functools.wraps(register_builtin)
    def _register_builtin_comm_hook(self: DistributedDataParallel, comm_hook_type: Any) -> None:
        if not any(found is stamping_hook for found, _ in self._comm_hooks):
            register_builtin(self, comm_hook_type)  # type: ignore[no-untyped-call]
        elif comm_hook_type == BuiltinCommHookType.FP16_COMPRESS:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            register_comm_hook(self, self.process_group, fp16_compress_hook)

    for wrapper in (__init__, __setstate__, register_comm_hook, _register_builtin_comm_hook):
        _replace(DistributedDataParallel, wrapper.__name__, wrapper, stack)


def _meter_at_first_update(job: Job, stack: contextlib.ExitStack) -> None:
    """FSDP2 modules, and scripts that reduce their gradients themselves, are found at the first update of parameters."""
    steps = steps_of(job)

    def updated(optimizer: Optimizer) -> None:
        if steps.ending_optimizers:
            return
        with _errors_to_file(job):
            roots = _sharded_roots()
            if not roots:
                metered(job, optimizer)
                steps.end()
            for root in roots:
                meter_fsdp(job, root)
            for root in roots:
                count_update(root, optimizer)

    stack.callback(watch_updates(updated))


def _sharded_roots() -> list[Any]:
    found = [each for each in gc.get_objects() if issubclass(type(each), FSDPModule)]
    within = {id(inner) for each in found for inner in each.modules() if inner is not each}
    return [each for each in found if id(each) not in within]


def _send_at_the_end(job: Job, calls: IssuedCalls, stack: contextlib.ExitStack) -> None:
    """A process that multiprocessing forked ends without running the interpreter's exit handlers."""
    destroy = distributed_c10d.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        job.record_network()
        destroy(*args, **kwargs)
        job.meter.announce()
        calls.write()

    for module in (dist, distributed_c10d):
        if getattr(module, "destroy_process_group", None) is destroy:
            _replace(module, "destroy_process_group", destroy_process_group, stack)


@contextlib.contextmanager
def _errors_to_file(job: Job) -> Iterator[None]:
    """Errors and warnings are written to a file beside the marks: the script continues, and its output is unchanged."""
    with collected_warnings() as texts:
        try:
            yield
        except Exception as error:  # noqa: BLE001  the script continues
            _write_note(job, f"{type(error).__name__}: {error}")
    for text in texts:
        _write_note(job, text)


def _write_note(job: Job, text: str) -> None:
    folder = record_dir()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"rank-{job.rank}-{os.getpid()}.note").open("a") as file:
            file.write(f"{text} (torch {torch.__version__})\n")
