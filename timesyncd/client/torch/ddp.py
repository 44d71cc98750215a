"""
DistributedDataParallel: a communication hook around the user's own that stamps when each bucket is ready and reduced.

The sizes of gradient buckets that an audit suggests, as what DistributedDataParallel is made with.
"""

# No `from __future__ import annotations`: torch looks at a hook's annotations, and wants objects.

import functools
import json
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client.job import Job
from timesyncd.client.torch.peer_loss import reduced_value
from timesyncd.client.torch.steps import HOST, Record, Steps, steps_of
from timesyncd.ipc.job_datagram import Kind

# No `from __future__ import annotations`: torch looks at a hook's annotations, and wants objects.


Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]

#: Sees each bucket before it is reduced; what it returns is called when it is.
BucketObserver = Callable[[GradBucket], Callable[[], None] | None]

#: `hook` is true in a thread that runs a bucket's hook: the collectives that it calls are part of the bucket.
thread_state = threading.local()

_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: 0)


class Buckets:
    """The state of the hook on one module: the hook within, and the buckets of the backward pass that is under way."""

    def __init__(self, ddp: DistributedDataParallel, hook: Hook | None, state: object) -> None:
        # Weak: the reducer holds this, where the garbage collector does not see it.
        self._ddp = weakref.ref(ddp)
        # So that the reducer is not the group's last holder, which joins the group's threads: it goes with the GIL held, for
        # which they may wait. The module's list of hooks, and this with it, goes after the reducer.
        self._group = ddp.process_group
        self._pass: list[Record] = []
        self._living = 1.0
        self.hook = hook
        self.state = state
        self.steps: Steps | None = None
        self.meter: object = None
        self.watching: BucketObserver | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """None: a module that is saved or copied takes no meter along, as torch takes no hook along."""
        return type(None), ()

    def arrived(self, bucket: GradBucket) -> Record | None:
        """None where this is not metered: closed, or the shadow of a step that only other ranks take."""
        steps = self.steps
        if steps is None or not _in_backward():
            return None
        with steps.safely:
            return self._arrived(steps, bucket)
        return None

    def _arrived(self, steps: Steps, bucket: GradBucket) -> Record:
        if bucket.index() == 0 and self._pass:  # an error ended the pass before this one
            steps.lost(len(self._pass))
            self._pass = []
        if bucket.index() == 0 and (ddp := self._ddp()) is not None:
            self._group = ddp.process_group  # torch can give a module another one
        tensor = bucket.buffer()
        kind = Kind.BUCKET if self.hook is None else Kind.HOOK
        record = Record(kind, _nbytes(tensor), steps.stamps_for(tensor))
        self._pass.append(record)
        if bucket.is_last():
            steps.ready(record.arrival)
            records, self._pass = self._pass, []
            for ready in records:
                ready.last = record.arrival
                steps.keep(ready)
        return record

    def all_reduce(self, bucket: GradBucket) -> torch.futures.Future[list[torch.Tensor]]:
        """What the reducer does without a hook, by the same operations in the same order: the gradients are the same bits."""
        ddp = self._ddp()
        assert ddp is not None, "a module that reduces is alive"
        tensor, divisor = bucket.buffer(), self._divisor(ddp, bucket)
        # A dense gradient is multiplied while it is copied into the bucket; a sparse or batched one is divided.
        if tensor.is_sparse or getattr(ddp, "batched_grad_copy", False):
            tensor.div_(divisor)
        else:
            tensor.mul_(1.0 / divisor)
        return ddp.process_group.allreduce([tensor]).get_future()

    def _divisor(self, ddp: DistributedDataParallel, bucket: GradBucket) -> float:
        """
        The group's size; under `join(divide_by_initial_world_size=False)` the number of ranks that have not joined.

        torch tells that number to the reducer alone, so there each pass counts once more, in a collective of its own.
        """
        if not ddp._join_config.enable or getattr(ddp, "_divide_by_initial_world_size", True):
            return ddp.process_group.size()
        if bucket.index() == 0:
            living = torch.full((1,), float(_in_backward()), device=bucket.buffer().device)
            ddp.process_group.allreduce([living]).wait()
            self._living = living.item()
        return self._living


def stamping_hook(state: Buckets, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook that the reducer calls. Errors of the hook within go through as they are."""
    steps, record = state.steps, state.arrived(bucket)
    if state.hook is None:
        seen = state.watching(bucket) if state.watching is not None else None
        reduced = state.all_reduce(bucket)
        if seen is not None:
            reduced = reduced.then(functools.partial(_seen, seen))
        if steps is not None and record is not None and record.stamps is HOST:
            with steps.safely:
                return reduced.then(record.follow_reduced)
        future = reduced.then(_first)
    else:
        thread_state.hook = True
        try:
            future = state.hook(state.state, bucket)
        finally:
            thread_state.hook = False
    if steps is not None and record is not None:
        with steps.safely:
            return _watched(future, record, steps)
    return future


def _seen(seen: Callable[[], None], finished: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
    tensors = finished.value()
    seen()
    return tensors


def _watched(
    future: torch.futures.Future[torch.Tensor], record: Record, steps: Steps
) -> torch.futures.Future[torch.Tensor]:
    """
    A chained one, not a callback beside it: the reducer waits for it, so that the stamp is there when backward is over; and on a
    device only a chained callback runs in a stream behind the collective.
    """
    if record.stamps is HOST:
        return future.then(record.follow)

    def follow(finished: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        with steps.safely:
            record.end = record.stamps.now()
        return finished.value()

    return future.then(follow)


def _first(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return reduced_value(future)[0]


def _nbytes(tensor: torch.Tensor) -> int:
    if tensor.is_sparse:
        return tensor._values().nbytes + tensor._indices().nbytes
    return tensor.nbytes


def _in_backward() -> bool:
    """Whether this thread runs a backward pass: a rank that has joined reduces zeros outside of any."""
    return bool(_graph_task() != -1)


def attach(job: Job, ddp: DistributedDataParallel, hook: Hook | None, state: object) -> Callable[[], None]:
    """
    Put the stamping hook on the module, or give the one that is there another hook within. Returns what ends its metering; the
    hook stays, as torch keeps hooks.

    A module whose buckets cannot be metered gets the user's hook alone, and a warning says why.
    """
    found = _attached(ddp)
    refusal = None if found is not None else _refusal(job, ddp)
    if refusal is not None:
        warnings.warn(f"timesyncd does not meter the buckets of this module: {refusal}", stacklevel=4)
        if hook is not None:
            ddp.register_comm_hook(state, hook)
        return lambda: None
    if hook is not None:
        ddp._check_comm_hook(hook)  # type: ignore[no-untyped-call]
    if found is None:
        found = Buckets(ddp, hook, state)
        ddp.register_comm_hook(found, stamping_hook)
    elif hook is not None:
        found.hook, found.state = hook, state
    buckets = found
    buckets.steps = steps_of(job)
    buckets.meter = meter = object()

    def detach() -> None:
        if buckets.meter is meter:  # not a later one
            buckets.steps = None

    return detach


def set_hook(ddp: DistributedDataParallel, hook: Hook | None, state: object) -> None:
    """
    Another hook within, from the next backward pass on; None: what the module does without one.

    Raises ValueError where the module has a hook that is not ours.
    """
    found = _attached(ddp)
    if found is None:
        if hook is None:
            return
        if ddp._comm_hooks:
            raise ValueError(
                "the module has a communication hook of its own: it can not be given a compression as well"
            )
        found = Buckets(ddp, None, None)
        ddp.register_comm_hook(found, stamping_hook)
    found.hook, found.state = hook, state


def observe_buckets(ddp: DistributedDataParallel, watching: BucketObserver | None) -> None:
    """Let it see each bucket that the module reduces without a hook; None: no longer. A module whose buckets are not metered shows none."""
    found = _attached(ddp)
    if found is not None:
        found.watching = watching


def _attached(ddp: DistributedDataParallel) -> Buckets | None:
    return next((state for hook, state in ddp._comm_hooks if isinstance(state, Buckets)), None)


def _refusal(job: Job, ddp: DistributedDataParallel) -> str | None:
    """Why the module's buckets cannot be metered; None: they can."""
    ddp._comm_hooks[:] = [
        (hook, state) for hook, state in ddp._comm_hooks if hook is not stamping_hook
    ]  # of a loaded module
    if ddp._comm_hooks:
        return "it has a communication hook already; give the hook to meter_ddp instead of register_comm_hook"
    if getattr(ddp, "_use_python_reducer", False):
        return "torch.compile's python_reducer calls no hook with buckets"
    if ddp.process_group.size() != job.world_size:
        return (
            f"its group has {ddp.process_group.size()} ranks and the job {job.world_size}; "
            "give it a Job of its own, with that group's rank and world_size"
        )
    return None


def bucket_options(report: Path | str) -> dict[str, Any]:
    """
    `bucket_cap_mb`, or `bucket_cap_mb_list` where the sizes differ, of an audit's report.json; empty where it suggests none. Every rank has to
    read the same report. Raises ValueError: there is none, or it tells nothing of buckets.
    """
    try:
        told = json.loads(Path(report).read_text(encoding="utf-8"))
        caps = None if told["buckets"] is None else told["buckets"]["caps_mib"]
    except OSError as error:
        raise ValueError(f"{report}: cannot be read: {error.strerror or error}; run the audit first") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{report}: this is no report.json of `timesyncd audit`") from error
    return _options(report, caps)


def _options(report: Path | str, caps: object) -> dict[str, Any]:
    if caps is None:
        return {}
    if not isinstance(caps, list) or not caps or not all(isinstance(cap, int | float) and cap > 0 for cap in caps):
        raise ValueError(f"{report}: buckets.caps_mib has to be a list of sizes above 0, not {caps!r}")
    return {"bucket_cap_mb": caps[0]} if len(caps) == 1 else {"bucket_cap_mb_list": caps}
