"""Meters torch.distributed's collectives while a context is open, and provides the barrier over torch.distributed."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from timesyncd.client.barrier import Barrier
from timesyncd.client.fused_barrier import FusedBarrier
from timesyncd.client.job import Job
from timesyncd.client.slack import SchedFifo
from timesyncd.client.torch.ddp import thread_state
from timesyncd.client.torch.host_group import host_group
from timesyncd.client.torch.stamps import HOST
from timesyncd.client.torch.steps import Record, Steps, steps_of
from timesyncd.ipc.job_datagram import Kind, Trait, kinds_with

#: The members of torch.distributed.Work besides wait.
_DELEGATED = (
    "block_current_stream",
    "boxed",
    "exception",
    "get_future",
    "get_future_result",
    "is_completed",
    "is_success",
    "result",
    "source_rank",
    "synchronize",
    "_get_duration",
    "_get_op_type",
    "_source_rank",
)


class TimedWork(dist.Work):
    """
    Delegates everything to the work. The first `wait` calls `before_wait` before it and `after_wait` after it, or
    `not_waited` if it raises. Without a `wait`, the end of this object calls `not_waited`.
    """

    def __init__(
        self,
        work: dist.Work,
        before_wait: Callable[[], None],
        after_wait: Callable[[], None],
        not_waited: Callable[[bool], None],
    ) -> None:
        super().__init__()
        self._work = work
        self._before_wait: Callable[[], None] | None = before_wait
        self._after_wait = after_wait
        self._not_waited = not_waited

    def __del__(self) -> None:
        if self._before_wait is not None:
            self._not_waited(False)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        before_wait, self._before_wait = self._before_wait, None
        if before_wait is None:
            return self._work.wait(*args, **kwargs)
        before_wait()
        try:
            result = self._work.wait(*args, **kwargs)
        except BaseException:
            self._not_waited(True)
            raise
        self._after_wait()
        return result


def _delegating(name: str) -> Callable[..., Any]:
    def method(self: TimedWork, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in _DELEGATED:
    if hasattr(dist.Work, _name):
        setattr(TimedWork, _name, _delegating(_name))

#: The functions of torch's C++ that keep a handle and wait for it later.
_KEEPING = (
    (torch._C._distributed_c10d.Reducer, "_set_forward_pass_work_handle"),  # DDP within torch's Join
    (torch._C._distributed_c10d, "_register_work"),
)


def _given_torch_s_own(original: Callable[..., Any]) -> Callable[..., Any]:
    """C++ would keep of a TimedWork that Python drops an empty handle, which never completes: it gets torch's own."""

    @functools.wraps(original)
    def giving(*args: Any) -> Any:
        return original(*map(_torch_s_own, args))

    return giving


def _torch_s_own(argument: Any) -> Any:
    while isinstance(argument, TimedWork):
        argument = argument._work
    return argument


for _owner, _name in _KEEPING:
    if hasattr(_owner, _name):
        setattr(_owner, _name, _given_torch_s_own(getattr(_owner, _name)))


#: Send and receive are missing: only two ranks take part, and torch has no number for a message.
COLLECTIVE_KINDS = {
    "all_gather": Kind.ALL_GATHER,
    "all_gather_coalesced": Kind.ALL_GATHER,
    "all_gather_into_tensor": Kind.ALL_GATHER,
    "all_gather_object": Kind.ALL_GATHER,
    "all_gather_single": Kind.ALL_GATHER,
    "all_reduce": Kind.ALL_REDUCE,
    "all_reduce_coalesced": Kind.ALL_REDUCE,
    "all_to_all": Kind.ALL_TO_ALL,
    "all_to_all_single": Kind.ALL_TO_ALL,
    "barrier": Kind.BARRIER,
    "broadcast": Kind.BROADCAST,
    "broadcast_object_list": Kind.BROADCAST,
    "gather": Kind.GATHER,
    "gather_object": Kind.GATHER,
    "monitored_barrier": Kind.BARRIER,
    "reduce": Kind.REDUCE,
    "reduce_scatter": Kind.REDUCE_SCATTER,
    "reduce_scatter_single": Kind.REDUCE_SCATTER,
    "reduce_scatter_tensor": Kind.REDUCE_SCATTER,
    "scatter": Kind.SCATTER,
    "scatter_object_list": Kind.SCATTER,
}


_EQUAL_SIZES = kinds_with(Trait.EQUAL_SIZES)


class _OpenContext:
    """One open context: the job whose marks it makes, and the group that it meters (None: the default one)."""

    def __init__(self, job: Job, group: dist.ProcessGroup | None) -> None:
        self.steps = steps_of(job)
        self._world_size = job.world_size
        self._group = group

    def begin(self, kind: Kind, group: Any, args: Sequence[Any]) -> tuple[bool, Record | None]:
        """
        Whether a call that starts is metered here: not if it is of another group, or of one that is not the job's, or of a
        thread beside the step. And its record; None: it does not wait for other ranks.
        """
        with self.steps.safely:
            default = distributed_c10d._get_default_group()
            called = default if group is None else group
            if called is not (self._group or default) or called.size() != self._world_size:
                return False, None
            if self.steps.is_beside():
                return False, None
            if called in distributed_c10d._world.pg_coalesce_state:  # queued now, run when the coalescing manager ends
                return False, None
            return True, begin_record(self.steps, kind, args)
        return True, None  # an error, which is a lost mark


def begin_record(steps: Steps, kind: Kind, args: Sequence[Any]) -> Record | None:
    """The record of a collective that starts now, with the step's next number; None: it does not wait for other ranks."""
    tensors = [tensor for argument in args[:2] for tensor in tensors_in(argument)]
    stamps = steps.stamps_for(tensors[0]) if tensors else HOST
    record = Record(kind, max((payload(argument) for argument in args[:2]), default=0), stamps)
    steps.number(record)
    if not is_a_wait(kind, tensors):
        return None
    record.arrive(steps.job.meter, record.key)
    return record


def end_record(steps: Steps, record: Record) -> None:
    """The collective is over on this rank. The step does not wait where a thread beside it does."""
    with steps.safely:
        record.end = record.stamps.now()
        if steps.is_beside():
            record.begin = record.end
        record.leave_at_end()
        steps.complete(record)


def follow_record(steps: Steps, work: dist.Work, record: Record) -> dist.Work:
    """The handle, with its wait stamped: the time before the wait was hidden by compute."""

    def before_wait() -> None:
        with steps.safely:
            record.begin = record.stamps.now()
            record.wait()

    record.go_on()
    return TimedWork(work, before_wait, functools.partial(end_record, steps, record), record.leave)


_open: list[_OpenContext] = []
_wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
_lock = threading.RLock()


@contextmanager
def meter_collectives(job: Job, group: dist.ProcessGroup | None = None) -> Iterator[Steps]:
    """
    Mark the collectives that are called as `torch.distributed.NAME` while this is open, but for threads beside the step.

    Only collectives of `group` (the default one) are marked, and only while it has the job's world size. A call with `async_op=True` ends
    with its handle's `wait()`; without a wait it leaves no mark. A name that was imported before (`from torch.distributed import
    all_reduce`) is not metered. Contexts may be nested: with the same job and group the outer one marks.
    """
    context = _OpenContext(job, group)
    with _lock:
        known = any(other.steps is context.steps and other._group is group for other in _open)
        if not known:
            _open.append(context)
        _install()
    try:
        yield context.steps
    finally:
        with _lock:
            if not known:
                _open.remove(context)
            if not _open:
                _restore()


def _install() -> None:
    for name, kind in COLLECTIVE_KINDS.items():
        original = getattr(dist, name, None)
        if original is not None and name not in _wrapped:
            _wrapped[name] = (original, _metering(original, kind))
            setattr(dist, name, _wrapped[name][1])


def _restore() -> None:
    """A wrapper that another library installed meanwhile stays; our wrapper below it then only delegates."""
    for name, (original, wrapper) in list(_wrapped.items()):
        if getattr(dist, name, None) is wrapper:
            setattr(dist, name, original)
            del _wrapped[name]


def _metering(original: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    parameters = list(inspect.signature(original).parameters)
    position = parameters.index("group") if "group" in parameters else len(parameters)
    with_data = kind is not Kind.BARRIER and "object" not in original.__name__

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)  # dynamo knows and rewrites it
        if not _open or getattr(thread_state, "hook", False):
            return original(*args, **kwargs)
        group = args[position] if len(args) > position else kwargs.get("group")
        data = (*args, *kwargs.values()) if with_data else ()
        begun = [(context, *context.begin(kind, group, data)) for context in tuple(_open)]
        thread_state.hook = any(is_metered for _, is_metered, _ in begun)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            for _, _, record in begun:
                if record is not None:
                    record.leave(failed=True)
            raise
        finally:
            thread_state.hook = False
        for context, _, record in begun:
            if record is None:
                continue
            if isinstance(result, dist.Work):
                result = follow_record(context.steps, result, record)
            else:
                end_record(context.steps, record)
        return result

    return wrapper


def tensors_in(argument: Any) -> Iterator[torch.Tensor]:
    """A tensor, or those of a list, also of a list of lists."""
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from tensors_in(each)


def is_a_wait(kind: Kind, tensors: Sequence[torch.Tensor]) -> bool:
    """Empty tensors are not sent, so no rank waits. This is certain only for collectives whose tensors have the same size on all ranks."""
    return kind not in _EQUAL_SIZES or not tensors or any(tensor.is_sparse or tensor.numel() for tensor in tensors)


def payload(argument: Any) -> int:
    """The octets of its tensors."""
    return sum(0 if tensor.is_sparse else tensor.nbytes for tensor in tensors_in(argument))


def all_reduce(job: Job, step: int, tensor: torch.Tensor) -> None:
    """
    `torch.distributed.all_reduce` over all ranks, marked as a synchronization of the step.

    On a CUDA device the mark is made later, in another call or at a later step's end, when the device's times are known.
    """
    steps, record = steps_of(job), None
    with steps.safely:
        record = Record(Kind.ALL_REDUCE, payload(tensor), steps.stamps_for(tensor))
        steps.number(record, step)
        if is_a_wait(Kind.ALL_REDUCE, [tensor]):
            record.arrive(job.meter, record.key)
    try:
        distributed_c10d.all_reduce(tensor)
    except BaseException:
        if record is not None:
            record.leave(failed=True)
        raise
    if record is not None and is_a_wait(Kind.ALL_REDUCE, [tensor]):
        with steps.safely:
            record.end = record.stamps.now()
            record.leave_at_end()
            record.stamps.anchor()
            steps.complete(record)


def barrier(
    job: Job, group: dist.ProcessGroup | None = None, fused: bool = False, scheduling: SchedFifo | None = None
) -> Barrier:
    """
    A Barrier over torch.distributed's group (the default one). All its ranks call this at the same time.

    It holds hosts: beside a group that takes no CPU tensors (NCCL) it uses a gloo group (`host_group`), and waits for no device. For what
    a device does, call `torch.cuda.synchronize()` before it. `fused`, the same on every rank: a FusedBarrier, which is one all-reduce
    instead of a barrier and a broadcast.
    """
    chosen = host_group(group)
    if fused:
        return FusedBarrier(job, functools.partial(_largest, chosen), scheduling)
    number = torch.zeros(1, dtype=torch.int64)

    def broadcast(value: int) -> int:
        number[0] = value
        distributed_c10d.broadcast(number, group_src=0, group=chosen)
        return int(number[0])

    return Barrier(job, functools.partial(distributed_c10d.barrier, group=chosen), broadcast, scheduling)


def _largest(group: dist.ProcessGroup, numbers: Sequence[int]) -> list[int]:
    """The largest of all ranks' numbers, position by position."""
    words = torch.tensor(numbers, dtype=torch.int64)
    distributed_c10d.all_reduce(words, op=dist.ReduceOp.MAX, group=group)
    return [int(word) for word in words.tolist()]
