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

_started_pids: list[int] = []


def start() -> None:
    """Start metering, once in a process, when its default process group exists."""
    if os.getpid() in _started_pids or not dist.is_initialized():
        return
    _started_pids.append(os.getpid())
    job = Job(name=os.environ.get(JOB_NAME_VARIABLE), rank=dist.get_rank(), world_size=dist.get_world_size())
    stack = contextlib.ExitStack()
    stack.enter_context(meter_collectives(job))
    job.audit_collectives = stack  # type: ignore[attr-defined]  # open for as long as the job lives
    calls = _see_every_call(job)
    _meter_every_ddp(job)
    _meter_at_first_update(job)
    _send_at_the_end(job, calls)


def _see_every_call(job: Job) -> IssuedCalls:
    """What no hook meters is marked or counted, so that the report states it."""
    folder = record_dir()
    path = None if folder is None else folder / f"rank-{job.rank}-{os.getpid()}.calls"
    calls = IssuedCalls(steps_of(job), path)
    with _errors_to_file(job):
        calls.open()
    atexit.register(calls.write)
    return calls


def _meter_every_ddp(job: Job) -> None:
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
        setattr(DistributedDataParallel, wrapper.__name__, wrapper)


def _meter_at_first_update(job: Job) -> None:
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

    watch_updates(updated)


def _sharded_roots() -> list[Any]:
    found = [each for each in gc.get_objects() if issubclass(type(each), FSDPModule)]
    within = {id(inner) for each in found for inner in each.modules() if inner is not each}
    return [each for each in found if id(each) not in within]


def _send_at_the_end(job: Job, calls: IssuedCalls) -> None:
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
            setattr(module, "destroy_process_group", destroy_process_group)  # noqa: B010  mypy knows the module's own alone


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
