"""
Sees the collectives and messages that this process issues, by whatever name the script calls them: torch's Python
functions call methods of ProcessGroup, and functional collectives (DTensor) call operators `_c10d_functional`.

A collective of the default group that nothing else meters is marked here. One of another group, a functional one and a
message are marked as synchronizations of their communicator, where the rank's marks are recorded. All others are counted
by name and group, so that a report states what it does not know. Nothing is registered with torch's dispatcher: there the
calls of C++ would wait for the GIL, with C++'s locks held.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import distributed_c10d

from timesyncd.client.step_parts import StepParts
from timesyncd.client.torch.collectives import (
    begin_record,
    end_record,
    follow_record,
    is_a_wait,
    payload,
    tensors_in,
)
from timesyncd.client.torch.communicators import Channel, Communicators, dimension_of
from timesyncd.client.torch.ddp import thread_state
from timesyncd.client.torch.parts import watch_parts
from timesyncd.client.torch.stamps import HOST
from timesyncd.client.torch.steps import Record, Steps
from timesyncd.ipc.group_marks import MAX_UNMETERED_PART
from timesyncd.ipc.job_datagram import Kind, Trait, kinds_with

#: By method of ProcessGroup: its name for people, and its kind; None: it is counted alone.
METHODS: dict[str, tuple[str, Kind | None]] = {
    "_allgather_base": ("all_gather", Kind.ALL_GATHER),
    "_reduce_scatter_base": ("reduce_scatter", Kind.REDUCE_SCATTER),
    "all_gather_single": ("all_gather", Kind.ALL_GATHER),
    "all_gather_single_coalesced": ("all_gather", Kind.ALL_GATHER),
    "all_to_all_single": ("all_to_all", Kind.ALL_TO_ALL),
    "allgather": ("all_gather", Kind.ALL_GATHER),
    "allgather_coalesced": ("all_gather", Kind.ALL_GATHER),
    "allgather_into_tensor_coalesced": ("all_gather", Kind.ALL_GATHER),
    "allreduce": ("all_reduce", Kind.ALL_REDUCE),
    "allreduce_coalesced": ("all_reduce", Kind.ALL_REDUCE),
    "alltoall": ("all_to_all", Kind.ALL_TO_ALL),
    "alltoall_base": ("all_to_all", Kind.ALL_TO_ALL),
    "barrier": ("barrier", Kind.BARRIER),
    "broadcast": ("broadcast", Kind.BROADCAST),
    "gather": ("gather", Kind.GATHER),
    "monitored_barrier": ("monitored_barrier", Kind.BARRIER),
    "recv": ("recv", Kind.RECEIVE),
    "recv_anysource": ("recv", None),
    "reduce": ("reduce", Kind.REDUCE),
    "reduce_scatter": ("reduce_scatter", Kind.REDUCE_SCATTER),
    "reduce_scatter_single": ("reduce_scatter", Kind.REDUCE_SCATTER),
    "reduce_scatter_single_coalesced": ("reduce_scatter", Kind.REDUCE_SCATTER),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", Kind.REDUCE_SCATTER),
    "scatter": ("scatter", Kind.SCATTER),
    "send": ("send", Kind.SEND),
}

#: By operator of functional collectives: its name for people, and how many collectives are issued: with a gradient, backward issues one too.
FUNCTIONAL: dict[str, tuple[str, int]] = {
    "_c10d_functional.all_gather_into_tensor": ("all_gather", 1),
    "_c10d_functional.all_gather_into_tensor_coalesced": ("all_gather", 1),
    "_c10d_functional.all_gather_into_tensor_out": ("all_gather", 1),
    "_c10d_functional.all_reduce": ("all_reduce", 1),
    "_c10d_functional.all_reduce_": ("all_reduce", 1),
    "_c10d_functional.all_reduce_coalesced": ("all_reduce", 1),
    "_c10d_functional.all_reduce_coalesced_": ("all_reduce", 1),
    "_c10d_functional.all_to_all_single": ("all_to_all", 1),
    "_c10d_functional.batch_p2p_ops": ("batch_p2p_ops", 1),
    "_c10d_functional.broadcast": ("broadcast", 1),
    "_c10d_functional.broadcast_": ("broadcast", 1),
    "_c10d_functional.irecv": ("recv", 1),
    "_c10d_functional.isend": ("send", 1),
    "_c10d_functional.reduce_scatter_tensor": ("reduce_scatter", 1),
    "_c10d_functional.reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "_c10d_functional.reduce_scatter_tensor_out": ("reduce_scatter", 1),
    "_c10d_functional_autograd.all_gather_into_tensor": ("all_gather", 2),
    "_c10d_functional_autograd.all_to_all_single": ("all_to_all", 2),
    "_c10d_functional_autograd.reduce_scatter_tensor": ("reduce_scatter", 2),
    "_dtensor.shard_dim_alltoall": ("all_to_all", 1),
}

#: The kinds of functional collectives, by their name for people. Messages among them are counted alone.
_KINDS = {label: kind for label, kind in METHODS.values() if kind is not None and Trait.COLLECTIVE in kind.traits}

#: What backward issues for a functional collective with a gradient.
_BACKWARD = {"all_gather": "reduce_scatter", "all_to_all": "all_to_all", "reduce_scatter": "all_gather"}

#: A functional collective that waits before it returns.
_WAITS_INSIDE = "_dtensor.shard_dim_alltoall"

_MESSAGES = kinds_with(Trait.MESSAGE)

#: So many functional collectives may be issued and not waited for yet; the oldest counts as not metered.
_MAX_ISSUED = 4_096

#: It issues nothing: a rank waits in it.
WAIT = "_c10d_functional.wait_tensor"

#: Modules are made and groups are tried in the first step, and DDP agrees on its buckets at the head of the second.
FIRST_COUNTED_STEP = 2

_CallKey = tuple[str, int, str | None]
"""Name, ranks of the group, and the group's dimension of a mesh or None."""

_Begin = Callable[[Sequence[Any], dict[str, Any]], Record | None]


class IssuedCalls:
    """
    What was issued from the third step on: `metered` calls have marks; `unmetered` ones do not, by (name, ranks of the
    group, the group's dimension of a mesh or None). A call counts as unmetered until its end is known.

    `beside`: the calls of threads beside the step, which cost it nothing by themselves.

    They are written to `path` as JSON: {"metered": 3, "unmetered": [["send", 2, "pp", 8]], "beside": 0}. Two threads may lose a count
    to one another: a lock would stop a signal handler that communicates.
    """

    def __init__(self, steps: Steps, path: Path | None) -> None:
        self._steps = steps
        self._path = path
        self._world_size = steps.job.world_size
        self._restores: list[Callable[[], None]] = []
        self._works: WeakSet[Any] = WeakSet()
        self.entered: set[object] = set()  #: one object for each call that this rank is inside of
        self._issued: dict[int, Record] = {}
        self._seen = 0
        self.metered = self.beside = 0
        self.unmetered: Counter[_CallKey] = Counter()
        self._expected: Counter[_CallKey] = (
            Counter()
        )  #: of these, what backward will issue, and may issue in C++ unseen
        meter = steps.job.open_group_meter()
        self.communicators = None if meter is None else Communicators(meter, self._marked)

    def open(self) -> None:
        """See the calls from now on, for as long as the process lives."""
        for name, (label, kind) in METHODS.items():
            if name in dist.ProcessGroup.__dict__:
                self._replace(
                    dist.ProcessGroup, name, _method(self, getattr(dist.ProcessGroup, name), name, label, kind)
                )
        for path, (label, calls) in FUNCTIONAL.items():
            self._replace_operator(path, functools.partial(self._begin_functional, label, calls))
        self._replace_operator(WAIT, None)
        if hasattr(dist, "_broadcast_coalesced"):
            self._replace(dist, "_broadcast_coalesced", self._coalesced(dist._broadcast_coalesced))
        self._steps.communicators, self._steps.count_call = self.communicators, self.count_metered
        if self.communicators is not None:
            self.communicators.is_account = self.is_account
            self._steps.parts = StepParts()
            self._restores += watch_parts(self._steps.parts)
        self._steps.job.meter.hide_presence_while(self._may_be_inside)
        os.register_at_fork(after_in_child=self.close)  # a process that is forked is no rank, or starts as one itself

    def close(self) -> None:
        """torch's own functions alone, as before, and no file any more."""
        self._path = self._steps.communicators = self._steps.count_call = self._steps.parts = None
        while self._restores:
            self._restores.pop()()

    def _replace(self, owner: Any, name: str, made: Any) -> None:
        former = owner.__dict__[name]
        setattr(owner, name, made)

        def restore() -> None:
            if owner.__dict__[name] is made:  # else another library put its own around it, which calls it
                setattr(owner, name, former)

        self._restores.append(restore)

    def _replace_operator(self, path: str, begin: _Begin | None) -> None:
        """
        Of the operator and of its overload, which compiled graphs call. torch reads an operator's types and hash, which
        stay. `begin` None: the operator waits for others.
        """
        namespace, name = path.split(".")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        for found in (packet, getattr(packet, "default", None)):
            if found is not None and "_op" in found.__dict__:
                counted = (
                    WaitOperator(self, found._op)
                    if begin is None
                    else CountedOperator(self, found._op, begin, path == _WAITS_INSIDE)
                )
                _register_for_scripts(found._op, counted)
                self._replace(found, "_op", counted)

    def begin(self, operator: tuple[str, Kind | None], group: dist.ProcessGroup, data: Sequence[Any]) -> Record | None:
        """The record of a collective or a message; None: the call is counted."""
        name, kind = operator
        with self._steps.safely:
            if kind is None or kind in _MESSAGES:
                return self._begin_message(name, kind, group, data)
            by_torch = _is_called_by_torch(kind, data)
            if by_torch and self._is_job_s(group):
                if self._steps.is_beside():
                    self._count_unmetered(name, group)
                    return None
                self.count_metered()
                return begin_record(self._steps, kind, data)
            return self._begin_in(self._channel_of(group), name, group, kind, data[:2], by_torch)
        return None  # an error, which is a lost mark

    def _channel_of(self, group: dist.ProcessGroup) -> Channel | None:
        return None if self.communicators is None else self.communicators.of(group)

    def _begin_message(
        self, name: str, kind: Kind | None, group: dist.ProcessGroup, data: Sequence[Any]
    ) -> Record | None:
        """`data` of a send: the tensors, the receiver in the group and the tag; of a receive with the sender."""
        if self.communicators is None or kind is None or len(data) < 3:
            if self.communicators is not None:
                self.communicators.receive_from_any(group)
            self._count_unmetered(name, group)
            return None
        own, peer = group.rank(), data[1]
        sender, receiver = (own, peer) if kind is Kind.SEND else (peer, own)
        channel = self.communicators.of_messages(group, sender, receiver, data[2])
        return self._begin_in(channel, name, group, kind, data[:1])

    def _begin_in(
        self,
        channel: Channel | None,
        name: str,
        group: dist.ProcessGroup,
        kind: Kind,
        data: Sequence[Any],
        is_followed: bool = True,
        calls: int = 1,
    ) -> Record | None:
        """
        The record of a call in the channel, whose next number it takes in any case: the other ranks take it too. None: the
        call is counted.
        """
        number = 0 if channel is None else channel.take_number()
        counted = self._count_unmetered(name, group, calls, channel)
        if channel is None or not is_followed or self._steps.is_beside():
            return None
        if group in distributed_c10d._world.pg_coalesce_state:
            return None
        tensors = [tensor for argument in data for tensor in tensors_in(argument)]
        record = Record(kind, max(map(payload, data), default=0), self._stamps_for(tensors), channel)
        record.number, record.counted = number, counted
        record.key = self._steps.job.meter.step_key(self._steps.step)
        if kind not in _MESSAGES and not is_a_wait(kind, tensors):
            self._marked(record)
            return None
        record.arrive(self._steps.job.meter, record.key)
        return record

    def _stamps_for(self, tensors: Sequence[torch.Tensor]) -> Any:
        return self._steps.stamps_for(tensors[0]) if tensors else HOST

    def _marked(self, record: Record) -> None:
        """What was counted as not metered has its mark."""
        counted, record.counted = record.counted, None
        if counted is not None:
            key, calls = counted
            self.metered += calls
            self.unmetered[key] -= calls
            if self.unmetered[key] <= 0:
                del self.unmetered[key]

    def _is_job_s(self, group: dist.ProcessGroup) -> bool:
        """The calls of another group of all ranks have an order of their own: a checkpoint's thread may issue them."""
        return group is dist.group.WORLD and group.size() == self._world_size

    def end(self, result: Any, record: Record | None) -> Any:
        """What the call returned: its handle, with the wait stamped."""
        if not isinstance(result, dist.Work):
            if record is not None and record.kind in _MESSAGES:
                record.leave()
            elif record is not None:
                end_record(self._steps, record)
            return result
        if record is not None:
            return follow_record(self._steps, result, record)
        self._works.add(result)
        return result

    def inside(
        self, record: Record | None, original: Callable[..., Any], args: Sequence[Any], rest: dict[str, Any]
    ) -> Any:
        """What torch's function returns: this rank may wait in it. The record's synchronization may fail there."""
        token = object()
        self.entered.add(token)
        try:
            return original(*args, **rest)
        except BaseException:
            if record is not None:
                record.leave(failed=True)
            raise
        finally:
            self.entered.discard(token)

    def count_metered(self, calls: int = 1) -> None:
        """A hook meters what is issued now."""
        if self._steps.step >= FIRST_COUNTED_STEP:
            self.metered += calls

    def _count_unmetered(
        self, name: str, group: dist.ProcessGroup, calls: int = 1, channel: Channel | None = None
    ) -> tuple[_CallKey, int] | None:
        """
        Under which key; None: nothing is counted yet, or the call is of a thread beside the step. `channel`: of the group,
        where that is known.
        """
        if self._steps.step < FIRST_COUNTED_STEP:
            return None
        if self._steps.is_beside():
            self.beside += calls
            return None
        if channel is None:
            key = name, group.size(), dimension_of(group)
        else:
            key = name, channel.size, channel.dimension
        self.unmetered[key] += calls
        self._seen += calls
        if self._seen & self._seen - 1 == 0:  # now and then, for a process that is killed
            self.write()
        return key, calls

    def _begin_functional(self, name: str, calls: int, args: Sequence[Any], rest: dict[str, Any]) -> Record | None:
        """The name of the group is the last argument by position."""
        group: Any = rest.get("group_name", args[-1] if args else None)
        if isinstance(group, str):
            group = _resolve_process_group(group)  # type: ignore[arg-type]  # a name of newer torch has a type of its own
        if calls > 1 and torch.is_grad_enabled() and getattr(args[0], "requires_grad", False):
            counted = self._count_unmetered(_BACKWARD[name], group, calls - 1)
            self._expected.update({} if counted is None else dict([counted]))
        elif self._expected and torch._C._current_graph_task_id() != -1:
            self._see_backward((name, group.size(), dimension_of(group)))
        kind = _KINDS.get(name)
        if kind is None:
            self._count_unmetered(name, group)
            return None
        return self._begin_in(self._channel_of(group), name, group, kind, args[:1])

    def _see_backward(self, key: _CallKey) -> None:
        """Backward issues in Python what was counted when forward ran: it counts by itself."""
        if self._expected[key] > 0:
            self._expected[key] -= 1
            self.unmetered[key] -= 1
            if self.unmetered[key] <= 0:
                del self.unmetered[key]

    def issue(self, record: Record, result: Any) -> None:
        """A functional collective is on its way: it ends where one of its tensors is waited for."""
        with self._steps.safely:
            record.go_on()
            for tensor in tensors_in(result):
                self._issued.pop(key := _storage(tensor), None)
                self._issued[key] = record
            while len(self._issued) > _MAX_ISSUED:
                self._issued.pop(next(iter(self._issued))).leave()

    def wait(self, args: Sequence[Any]) -> Record | None:
        """The record of what is waited for now, unless it is over or unknown."""
        if not self._issued or not args or type(args[0]) is not torch.Tensor:
            return None
        with self._steps.safely:
            record = self._issued.pop(_storage(args[0]), None)
            if record is not None and record.begin is None:
                record.begin = record.stamps.now()
                record.wait()
                return record
        return None

    def end_wait(self, record: Record) -> None:
        end_record(self._steps, record)

    def _coalesced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """C++ broadcasts several tensors, as DDP does with buffers: once for each type of numbers."""

        @functools.wraps(original)
        def _broadcast_coalesced(group: dist.ProcessGroup, tensors: Any, *args: Any, **rest: Any) -> Any:
            record = None
            with self._steps.safely:
                calls = len({tensor.dtype for tensor in tensors})
                if getattr(thread_state, "hook", False):
                    self.count_metered(calls)
                else:
                    record = self._begin_in(
                        self._channel_of(group), "broadcast", group, Kind.BROADCAST, [tensors], calls=calls
                    )
            result = self.inside(record, original, (group, tensors, *args), rest)
            if record is not None:
                end_record(self._steps, record)
            return result

        return _broadcast_coalesced

    def write(self) -> None:
        """At the end. Without a folder for recordings nothing is written."""
        if self.communicators is not None:
            self.communicators.write()
        if self._path is None or not self.unmetered and not self.metered:
            return
        unmetered = [[*key, calls] for key, calls in sorted(self.unmetered.items(), key=str)]
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"metered": self.metered, "unmetered": unmetered, "beside": self.beside}))

    def is_account(self) -> bool:
        """Whether nearly all calls have marks."""
        unmetered = self.unmetered.total()
        return unmetered <= MAX_UNMETERED_PART * (self.metered + unmetered)

    def _may_be_inside(self) -> bool:
        """
        Whether this rank may wait in a call that is no synchronization of all ranks: it is inside one, or someone still
        holds a handle.
        """
        in_group = self.communicators is not None and bool(self.communicators.open_records)
        return in_group or bool(self.entered) or len(self._works) > 0

    def begin_operator(self, begin: _Begin, args: Sequence[Any], rest: dict[str, Any]) -> Record | None:
        """A functional collective is issued now, unless torch only traces it."""
        with self._steps.safely:
            if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
                return None
            if not getattr(thread_state, "hook", False):
                return begin(args, rest)
            self.count_metered()
        return None


class CountedOperator:
    """
    Instead of the function that an operator of torch calls. torch reads the function's attributes, and its hash for the
    operator's own.
    """

    def __init__(
        self, calls: IssuedCalls, original: Callable[..., Any], begin: _Begin, waits_inside: bool = False
    ) -> None:
        self._calls = calls
        self._original = original
        self._begin = begin
        self._waits_inside = waits_inside

    def __call__(self, *args: Any, **rest: Any) -> Any:
        if getattr(thread_state, "functional", False):  # a dispatch mode calls the operator inside the operator
            return self._original(*args, **rest)
        thread_state.functional = True
        try:
            record = self._calls.begin_operator(self._begin, args, rest)
            result = self._calls.inside(record, self._original, args, rest)
            if record is not None and self._waits_inside:
                self._calls.end_wait(record)
            elif record is not None:
                self._calls.issue(record, result)
            return result
        finally:
            thread_state.functional = False

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class WaitOperator(CountedOperator):
    """Instead of the function that waits for a tensor. Also where another operator calls it, for a tensor on its way."""

    def __init__(self, calls: IssuedCalls, original: Callable[..., Any]) -> None:
        super().__init__(calls, original, _begin_nothing)

    def __call__(self, *args: Any, **rest: Any) -> Any:
        record = self._calls.wait(args)
        result = self._calls.inside(record, self._original, args, rest)
        if record is not None:
            self._calls.end_wait(record)
        return result


def _storage(tensor: torch.Tensor) -> int:
    """By what torch knows a tensor that is on its way: views and copies of the Python object share it."""
    return int(tensor.untyped_storage()._cdata)


def _method(
    calls: IssuedCalls, original: Callable[..., Any], name: str, label: str, kind: Kind | None
) -> Callable[..., Any]:
    operator = label, kind

    def method(self: dist.ProcessGroup, *args: Any, **rest: Any) -> Any:
        if getattr(thread_state, "hook", False):
            calls.count_metered()
            return original(self, *args, **rest)
        record = calls.begin(operator, self, args)
        token = object()
        calls.entered.add(token)
        try:
            # Called here: see the name of this function, below.
            result = original(self, *args, **rest)
        except BaseException:
            if record is not None:
                record.leave(failed=True)
            raise
        finally:
            calls.entered.discard(token)
        return calls.end(result, record)

    functools.update_wrapper(method, original)
    # C++ of a group that is written in Python looks for a method in Python, and stops where the calling function has its name.
    method.__code__ = method.__code__.replace(co_name=name)
    return method


def _is_called_by_torch(kind: Kind, data: Sequence[Any]) -> bool:
    """torch's functions give options, and wait or return the handle. What other callers do with the handle is unknown."""
    return kind is Kind.BARRIER or bool(data) and hasattr(data[-1], "asyncOp")


def _begin_nothing(args: Sequence[Any], rest: dict[str, Any]) -> None:
    pass


def _register_for_scripts(original: Any, counted: Any) -> None:
    """torch.jit.script knows an operator by its function's id."""
    builtins: Any = torch.jit._builtins
    name = builtins._find_builtin(original)
    if name is not None:
        builtins._register_builtin(counted, name)
