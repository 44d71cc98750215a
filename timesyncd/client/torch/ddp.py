"""Meters DistributedDataParallel by a communication hook that stamps when each bucket is ready and reduced, and reads an audit's bucket sizes."""

# No `from __future__ import annotations`: torch reads a hook's annotations and needs objects.

import functools
import json
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client.files import read_file
from timesyncd.client.job import Job
from timesyncd.client.packing import Packing
from timesyncd.client.torch.communicators import Channel
from timesyncd.client.torch.own_warnings import warn
from timesyncd.client.torch.peer_loss import reduced_value
from timesyncd.client.torch.stamps import HOST
from timesyncd.client.torch.steps import Record, Steps, steps_of
from timesyncd.ipc.job_datagram import Kind
from timesyncd.ipc.network_record import PackingPart

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]

#: Called with each bucket before it is reduced; the callable that it returns is called after that.
BucketObserver = Callable[[GradBucket], Callable[[], None] | None]

#: `hook` is true while a thread runs a bucket's hook, or another call that is metered: the collectives inside it belong to it.
thread_state = threading.local()

_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: 0)


class Buckets:
    """The state of the stamping hook on one module: the user's hook, and the buckets of the present backward pass."""

    def __init__(self, ddp: DistributedDataParallel, hook: Hook | None, state: object) -> None:
        # Weak: the reducer holds this object, and the garbage collector does not see that reference.
        self._ddp = weakref.ref(ddp)
        # Keeps the group alive longer than the reducer. The last holder of a group joins the group's threads, and the reducer is
        # destroyed with the GIL held, for which those threads may wait. The module's hooks, and so this object, go after the reducer.
        self._group = ddp.process_group
        self._pass: list[Record] = []
        self._divisor = 0.0  #: not known yet
        self._divides = False
        self.hook = hook
        self.state = state
        self.steps: Steps | None = None
        self.channel: Channel | None = None  #: of the module's group, where that is not the job's
        self.meter: object = None
        self.observer: BucketObserver | None = None
        self.passes = 0  #: number of backward passes that the module has begun to reduce

    def __reduce__(self) -> tuple[Any, ...]:
        """None: a saved or copied module has no meter, as torch copies no hooks."""
        return type(None), ()

    def record(self, bucket: GradBucket) -> Record | None:
        """The record of a bucket that is ready; None: metering is closed, or this is the shadow of a step that only other ranks take."""
        steps = self.steps
        if steps is None:
            return None
        if not _in_backward():
            if self.channel is not None:
                self.channel.take_number()  # as the others do
            return None
        with steps.safely:
            return self._record(steps, bucket)
        return None

    def _record(self, steps: Steps, bucket: GradBucket) -> Record:
        if bucket.index() == 0 and self._pass:  # an error ended the pass before this one
            steps.count_lost(len(self._pass))
            for lost in self._pass:
                lost.leave()
            self._pass = []
        if bucket.index() == 0 and (ddp := self._ddp()) is not None:
            self._group = ddp.process_group  # torch can replace a module's group
            steps.start_pass(ddp)
        tensor = bucket.buffer()
        kind = Kind.BUCKET if self.hook is None else Kind.HOOK
        record = Record(kind, bucket_bytes(tensor), steps.stamps_for(tensor), self.channel)
        steps.arrive(record)
        self._pass.append(record)
        if bucket.is_last():
            self._count_used_parameters(steps)
            steps.ready(record.arrival)
            records, self._pass = self._pass, []
            for ready in records:
                ready.last = record.arrival
                steps.keep(ready)
            torch.autograd.Variable._execution_engine.queue_callback(functools.partial(_begin_waiting, steps, records))
        return record

    def _count_used_parameters(self, steps: Steps) -> None:
        """
        Behind the last bucket C++ reduces which parameters were used: for the same ranks, which arrive at the same time. So
        who waits there for a rank has waited for it in that bucket.
        """
        ddp = self._ddp()
        does_so = getattr(ddp, "find_unused_parameters", False) and not getattr(ddp, "static_graph", False)
        if does_so and steps.count_call is not None:
            steps.count_call()

    def all_reduce(self, bucket: GradBucket) -> torch.futures.Future[list[torch.Tensor]]:
        """Does what the reducer does without a hook, by the same operations in the same order: the gradients have the same bits."""
        tensor = bucket.buffer()
        if bucket.index() == 0 or not self._divisor:
            self._start_pass(tensor)
        # A dense gradient is multiplied while it is copied into the bucket; a sparse or batched one is divided.
        if self._divides or tensor.is_sparse:
            tensor.div_(self._divisor)
        else:
            tensor.mul_(1.0 / self._divisor)
        return self._group.allreduce([tensor]).get_future()

    def _start_pass(self, tensor: torch.Tensor) -> None:
        """What is the same for all buckets of a backward pass is read from the module once: its attributes are slow."""
        ddp = self._ddp()
        assert ddp is not None, "a module that reduces is alive"
        self._group = ddp.process_group  # torch can replace a module's group
        self._divides = getattr(ddp, "batched_grad_copy", False)
        self._divisor = self._ranks(ddp, tensor)

    def _ranks(self, ddp: DistributedDataParallel, tensor: torch.Tensor) -> float:
        """
        The group's size; under `join(divide_by_initial_world_size=False)` the number of ranks that have not joined.

        torch gives that number to the reducer only, so each pass counts the ranks again, in a collective of its own.
        """
        if not ddp._join_config.enable or getattr(ddp, "_divide_by_initial_world_size", True):
            return ddp.process_group.size()
        active = torch.full((1,), float(_in_backward()), device=tensor.device)
        ddp.process_group.allreduce([active]).wait()
        return active.item()


def _begin_waiting(steps: Steps, records: Sequence[Record]) -> None:
    """
    The backward pass has computed all, also what it computes behind the last bucket: gradients of inputs and of parameters
    that are not reduced. The engine calls the reducer after this, since it called the hook before it queued its own callback.
    """
    with steps.safely:
        computed = records[-1].stamps.now()
        steps.ready(computed)
        for record in records:
            record.last = computed


class HookList(list[tuple[Any, object]]):
    """
    The list of hooks that torch keeps in a module, which is saved and copied with it: a plain list without ours, so that
    a file that a script saves can be loaded where timesyncd is not installed.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, ([(hook, state) for hook, state in self if hook is not stamping_hook],)


def stamping_hook(state: Buckets, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """
    The hook that the reducer calls. Errors of the user's hook propagate unchanged.

    Without a hook of the user all of its time counts as the meter's own: the reducer would reduce the bucket without calling Python.
    """
    steps = state.steps
    if bucket.index() == 0:
        state.passes += 1
    if steps is None or state.hook is not None:
        return _reduced(state, bucket, steps, None if steps is None else state.record(bucket))
    meter = steps.job.meter
    started_ns, own_ns = time.monotonic_ns(), meter.own_overhead_ns
    future = _reduced(state, bucket, steps, state.record(bucket))
    meter.add_overhead(started_ns, own_ns)
    return future


def _reduced(
    state: Buckets, bucket: GradBucket, steps: Steps | None, record: Record | None
) -> torch.futures.Future[torch.Tensor]:
    if state.hook is None:
        on_reduced = state.observer(bucket) if state.observer is not None else None
        thread_state.hook = steps is not None
        try:
            reduced = state.all_reduce(bucket)
        finally:
            thread_state.hook = False
        if on_reduced is not None:
            reduced = reduced.then(functools.partial(_notify, on_reduced))
        if record is not None and record.stamps is HOST:
            return reduced.then(record.stamp_end_of_all_reduce)
        future = reduced.then(_first)
    else:
        future = _hooked(state.hook, state.state, bucket, record)
    if steps is not None and record is not None:
        with steps.safely:
            return _stamp_end(future, record, steps)
    return future


def _hooked(hook: Hook, state: object, bucket: GradBucket, record: Record | None) -> torch.futures.Future[torch.Tensor]:
    thread_state.hook = True
    try:
        if record is None or record.stamps is not HOST:  # a device packs by itself
            return hook(state, bucket)
        with Packing(PackingPart.HOOKS, record.bytes):
            return hook(state, bucket)
    except BaseException:
        if record is not None:
            record.leave(failed=True)
        raise
    finally:
        thread_state.hook = False


def _notify(on_reduced: Callable[[], None], finished: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
    tensors = finished.value()
    on_reduced()
    return tensors


def _stamp_end(
    future: torch.futures.Future[torch.Tensor], record: Record, steps: Steps
) -> torch.futures.Future[torch.Tensor]:
    """
    Stamp the end of the reduction in a chained future.

    It is chained and not a callback, because the reducer waits for it: so the stamp exists when backward is over. On a device only a
    chained callback runs in a stream behind the collective.
    """
    if record.stamps is HOST:
        return future.then(record.stamp_end)

    def follow(finished: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        with steps.safely:
            record.end = record.stamps.now()
        try:
            value = finished.value()
        except BaseException:
            record.leave(failed=True)
            raise
        record.leave_at_end()
        return value

    return future.then(follow)


def _first(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return reduced_value(future)[0]


def bucket_bytes(tensor: torch.Tensor) -> int:
    """The size of dense or sparse gradients in octets."""
    if tensor.is_sparse:
        return tensor._values().nbytes + tensor._indices().nbytes
    return tensor.nbytes


def _in_backward() -> bool:
    """Whether this thread runs a backward pass: a rank that has joined reduces zeros outside of one."""
    return bool(_graph_task() != -1)


def attach(job: Job, ddp: DistributedDataParallel, hook: Hook | None, state: object) -> Callable[[], None]:
    """
    Put the stamping hook on the module, or give the stamping hook that is there another user's hook. Returns what ends the metering;
    the hook itself stays, as torch keeps hooks.

    A module whose buckets cannot be metered gets the user's hook alone, and a warning gives the reason.
    """
    found = _attached(ddp)
    refusal = None if found is not None else _refusal(job, ddp)
    if refusal is not None:
        warn(f"timesyncd does not meter the buckets of this module: {refusal}", stacklevel=4)
        if hook is not None:
            ddp.register_comm_hook(state, hook)
        return lambda: None
    if hook is not None:
        ddp._check_comm_hook(hook)  # type: ignore[no-untyped-call]
    if found is None:
        found = _register(ddp, hook, state)
    elif hook is not None:
        found.hook, found.state = hook, state
    buckets = found
    buckets.steps, buckets.channel = steps_of(job), None
    if ddp.process_group.size() != job.world_size:
        buckets.channel = _channel_of(job, ddp)
        buckets.steps = None if buckets.channel is None else buckets.steps
    buckets.meter = meter = object()

    def detach() -> None:
        if buckets.meter is meter:  # not a later one
            buckets.steps = None

    return detach


def show_buckets(ddp: DistributedDataParallel) -> None:
    """Let a module that is not metered reduce its buckets from Python, with the same bits, where its calls can be counted."""
    if not ddp._comm_hooks and not getattr(ddp, "_use_python_reducer", False):
        _register(ddp, None, None)


def _register(ddp: DistributedDataParallel, hook: Hook | None, state: object) -> Buckets:
    """Put the stamping hook on the module."""
    found = Buckets(ddp, hook, state)
    ddp._comm_hooks = HookList(ddp._comm_hooks)
    ddp.register_comm_hook(found, stamping_hook)
    return found


def set_hook(ddp: DistributedDataParallel, hook: Hook | None, state: object) -> None:
    """
    Set the user's hook from the next backward pass on; None: the module's own all-reduce.

    Raises ValueError if the module has a hook that is not ours.
    """
    found = _attached(ddp)
    if found is None:
        if hook is None:
            return
        if ddp._comm_hooks:
            raise ValueError(
                "the module already has a communication hook, so no compression can be added: remove that hook"
            )
        found = _register(ddp, None, None)
    found.hook, found.state = hook, state


def observe_buckets(ddp: DistributedDataParallel, observer: BucketObserver | None) -> None:
    """Call the observer for each bucket that the module reduces without a user's hook; None: stop. Only metered modules call it."""
    found = _attached(ddp)
    if found is not None:
        found.observer = observer


def reduced_passes(ddp: DistributedDataParallel) -> int | None:
    """
    Number of backward passes that the module has begun to reduce, each of which ends after all ranks have begun it. None:
    unknown, or they end before that, as on a device.
    """
    found = _attached(ddp)
    return None if found is None or ddp.device_type != "cpu" else found.passes


def _attached(ddp: DistributedDataParallel) -> Buckets | None:
    return next((state for hook, state in ddp._comm_hooks if isinstance(state, Buckets)), None)


def _refusal(job: Job, ddp: DistributedDataParallel) -> str | None:
    """Why the module's buckets cannot be metered; None: they can be."""
    ddp._comm_hooks[:] = [
        (hook, state) for hook, state in ddp._comm_hooks if hook is not stamping_hook
    ]  # left over in a loaded module
    if ddp._comm_hooks:
        return "it already has a communication hook; give that hook to meter_ddp instead of register_comm_hook"
    if getattr(ddp, "_use_python_reducer", False):
        return "torch.compile's python_reducer calls no hook with buckets"
    if ddp.process_group.size() != job.world_size and _channel_of(job, ddp) is None:
        return (
            f"its group has {ddp.process_group.size()} ranks and the job {job.world_size}; "
            "give it a Job of its own, with that group's rank and world_size"
        )
    return None


def _channel_of(job: Job, ddp: DistributedDataParallel) -> Channel | None:
    """Of the module's group, where groups of some ranks are recorded."""
    communicators = steps_of(job).communicators
    return None if communicators is None else communicators.of(ddp.process_group)


#: A report has a part for each step that it shows.
MAX_REPORT_BYTES = 1 << 28


def bucket_options(report: Path | str) -> dict[str, Any]:
    """
    The options for DistributedDataParallel that an audit's report.json suggests.

    `bucket_cap_mb`, or `bucket_cap_mb_list` where the sizes differ; empty if the report suggests none. Every rank must read the same
    report. Raises ValueError if there is no report, or if it has no bucket sizes.
    """
    try:
        content = json.loads(read_file(Path(report), MAX_REPORT_BYTES))
        caps = None if content["buckets"] is None else content["buckets"]["caps_mib"]
    except OSError as error:
        raise ValueError(f"{report}: cannot be read: {error.strerror or error}; run `timesyncd audit` first") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{report}: this is not a report.json of `timesyncd audit`") from error
    return _options(report, caps)


def _options(report: Path | str, caps: object) -> dict[str, Any]:
    if caps is None:
        return {}
    if not isinstance(caps, list) or not caps or not all(isinstance(cap, int | float) and cap > 0 for cap in caps):
        raise ValueError(f"{report}: buckets.caps_mib = {caps!r}: it must be a list of sizes in MiB above 0")
    return {"bucket_cap_mb": caps[0]} if len(caps) == 1 else {"bucket_cap_mb_list": caps}
