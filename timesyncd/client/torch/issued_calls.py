"""
Sees the collectives and messages that this process issues, by whatever name the script calls them: torch's Python
functions call methods of ProcessGroup, and functional collectives (DTensor) call operators `_c10d_functional`.

A collective of the default group that nothing else meters is marked here. All others that nothing meters are counted by name and
group, so that a report states what it does not know. Nothing is registered with torch's dispatcher: there the calls of
C++ would wait for the GIL, with C++'s locks held.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

from timesyncd.client.torch.collectives import begin_record, end_record, follow_record
from timesyncd.client.torch.ddp import thread_state
from timesyncd.client.torch.steps import Record, Steps
from timesyncd.ipc.job_datagram import Kind

#: By method of ProcessGroup: its name for people, and its kind; None: it is no collective.
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
    "recv": ("recv", None),
    "recv_anysource": ("recv", None),
    "reduce": ("reduce", Kind.REDUCE),
    "reduce_scatter": ("reduce_scatter", Kind.REDUCE_SCATTER),
    "reduce_scatter_single": ("reduce_scatter", Kind.REDUCE_SCATTER),
    "reduce_scatter_single_coalesced": ("reduce_scatter", Kind.REDUCE_SCATTER),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", Kind.REDUCE_SCATTER),
    "scatter": ("scatter", Kind.SCATTER),
    "send": ("send", None),
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

#: It issues nothing: a rank waits in it.
WAIT = "_c10d_functional.wait_tensor"

#: Modules are made and groups are tried in the first step, and DDP agrees on its buckets at the head of the second.
FIRST_COUNTED_STEP = 2

#: What a device mesh puts before the name of a dimension, as the description of the dimension's groups.
_MESH = "mesh_"


class IssuedCalls:
    """
    What was issued from the third step on: `metered` calls have marks; `unmetered` ones do not, by (name, ranks of the
    group, the group's dimension of a mesh or None).

    They are written to `path` as JSON: {"metered": 3, "unmetered": [["send", 2, "pp", 8]]}. Two threads may lose a count
    to one another: a lock would stop a signal handler that communicates.
    """

    def __init__(self, steps: Steps, path: Path | None) -> None:
        self._steps = steps
        self._path = path
        self._world_size = steps.job.world_size
        self._restores: list[Callable[[], None]] = []
        self._works: WeakSet[Any] = WeakSet()
        self._inside: set[object] = set()
        self.metered = 0
        self.unmetered: Counter[tuple[str, int, str | None]] = Counter()

    def open(self) -> None:
        """See the calls from now on, for as long as the process lives."""
        for name, (label, kind) in METHODS.items():
            if name in dist.ProcessGroup.__dict__:
                self._replace(
                    dist.ProcessGroup, name, _method(self, getattr(dist.ProcessGroup, name), name, label, kind)
                )
        for path, (label, calls) in FUNCTIONAL.items():
            self._replace_operator(path, functools.partial(self._count_functional, label, calls))
        self._replace_operator(WAIT, _count_nothing)
        if hasattr(dist, "_broadcast_coalesced"):
            self._replace(dist, "_broadcast_coalesced", self._coalesced(dist._broadcast_coalesced))
        self._steps.job.meter.hide_presence_while(self._may_be_inside)
        os.register_at_fork(after_in_child=self.close)  # a process that is forked is no rank, or starts as one itself

    def close(self) -> None:
        """torch's own functions alone, as before, and no file any more."""
        self._path = None
        while self._restores:
            self._restores.pop()()

    def _replace(self, owner: Any, name: str, made: Any) -> None:
        former = owner.__dict__[name]
        setattr(owner, name, made)

        def restore() -> None:
            if owner.__dict__[name] is made:  # else another library put its own around it, which calls it
                setattr(owner, name, former)

        self._restores.append(restore)

    def _replace_operator(self, path: str, count: Callable[[Sequence[Any], dict[str, Any]], None]) -> None:
        """Of the operator and of its overload, which compiled graphs call. torch reads an operator's types and hash, which stay."""
        namespace, name = path.split(".")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        for found in (packet, getattr(packet, "default", None)):
            if found is not None and "_op" in found.__dict__:
                counted = CountedOperator(self, found._op, count)
                _register_for_scripts(found._op, counted)
                self._replace(found, "_op", counted)

    def begin(self, operator: tuple[str, Kind | None], group: dist.ProcessGroup, data: Sequence[Any]) -> Record | None:
        """The record of a collective of all ranks; None: the call is counted."""
        name, kind = operator
        with self._steps.safely:
            if kind is None or not self._is_job_s(group) or not _is_called_by_torch(kind, data):
                self._count_unmetered(name, group)
                return None
            self.count_metered()
            return begin_record(self._steps, kind, data)
        return None  # an error, which is a lost mark

    def _is_job_s(self, group: dist.ProcessGroup) -> bool:
        """The calls of another group of all ranks have an order of their own: a checkpoint's thread may issue them."""
        return group is dist.group.WORLD and group.size() == self._world_size

    def end(self, result: Any, record: Record | None) -> Any:
        """What the call returned: its handle, with the wait stamped."""
        if not isinstance(result, dist.Work):
            if record is not None:
                end_record(self._steps, record)
            return result
        if record is not None:
            return follow_record(self._steps, result, record)
        self._works.add(result)
        return result

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This rank may wait in a call."""
        token = object()
        self._inside.add(token)
        try:
            yield
        finally:
            self._inside.discard(token)

    def count_metered(self, calls: int = 1) -> None:
        """A hook meters what is issued now."""
        if self._steps.step >= FIRST_COUNTED_STEP:
            self.metered += calls

    def _count_unmetered(self, name: str, group: dist.ProcessGroup, calls: int = 1) -> None:
        if self._steps.step < FIRST_COUNTED_STEP:
            return
        self.unmetered[name, group.size(), _dimension(group)] += calls
        total = self.unmetered.total()
        if total & total - 1 == 0:  # now and then, for a process that is killed
            self.write()

    def _count_functional(self, name: str, calls: int, args: Sequence[Any], rest: dict[str, Any]) -> None:
        """The name of the group is the last argument by position."""
        group: Any = rest.get("group_name", args[-1] if args else None)
        if isinstance(group, str):
            group = _resolve_process_group(group)  # type: ignore[arg-type]  # a name of newer torch has a type of its own
        with_gradient = calls > 1 and torch.is_grad_enabled() and getattr(args[0], "requires_grad", False)
        self._count_unmetered(name, group, calls if with_gradient else 1)

    def _coalesced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """C++ broadcasts several tensors, as DDP does with buffers: once for each type of numbers."""

        @functools.wraps(original)
        def _broadcast_coalesced(group: dist.ProcessGroup, tensors: Any, *args: Any, **rest: Any) -> Any:
            with self._steps.safely:
                calls = len({tensor.dtype for tensor in tensors})
                if getattr(thread_state, "hook", False):
                    self.count_metered(calls)
                else:
                    self._count_unmetered("broadcast", group, calls)
            with self.inside():
                return original(group, tensors, *args, **rest)

        return _broadcast_coalesced

    def write(self) -> None:
        """At the end. Without a folder for recordings nothing is written."""
        if self._path is None or not self.unmetered and not self.metered:
            return
        unmetered = [[*key, calls] for key, calls in sorted(self.unmetered.items(), key=str)]
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"metered": self.metered, "unmetered": unmetered}))

    def _may_be_inside(self) -> bool:
        """Whether this rank may wait in a call that nothing meters: it is inside one, or someone still holds a handle."""
        return bool(self._inside) or len(self._works) > 0

    def count_operator(
        self, count: Callable[[Sequence[Any], dict[str, Any]], None], args: Sequence[Any], rest: Any
    ) -> None:
        """A functional collective is issued now, unless torch only traces it."""
        with self._steps.safely:
            if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
                return
            if getattr(thread_state, "hook", False):
                self.count_metered()
            else:
                count(args, rest)


class CountedOperator:
    """
    Instead of the function that an operator of torch calls. torch reads the function's attributes, and its hash for the
    operator's own.
    """

    def __init__(
        self, calls: IssuedCalls, original: Callable[..., Any], count: Callable[[Sequence[Any], dict[str, Any]], None]
    ) -> None:
        self._calls = calls
        self._original = original
        self._count = count

    def __call__(self, *args: Any, **rest: Any) -> Any:
        if getattr(thread_state, "functional", False):  # a dispatch mode calls the operator inside the operator
            return self._original(*args, **rest)
        thread_state.functional = True
        try:
            self._calls.count_operator(self._count, args, rest)
            with self._calls.inside():
                return self._original(*args, **rest)
        finally:
            thread_state.functional = False

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _method(
    calls: IssuedCalls, original: Callable[..., Any], name: str, label: str, kind: Kind | None
) -> Callable[..., Any]:
    operator = label, kind

    def method(self: dist.ProcessGroup, *args: Any, **rest: Any) -> Any:
        if getattr(thread_state, "hook", False):
            calls.count_metered()
            return original(self, *args, **rest)
        record = calls.begin(operator, self, args)
        with calls.inside():
            try:
                result = original(self, *args, **rest)
            except BaseException:
                if record is not None:
                    record.leave(failed=True)
                raise
        return calls.end(result, record)

    functools.update_wrapper(method, original)
    # C++ of a group that is written in Python looks for a method in Python, and stops where the calling function has its name.
    method.__code__ = method.__code__.replace(co_name=name)
    return method


def _is_called_by_torch(kind: Kind, data: Sequence[Any]) -> bool:
    """torch's functions give options, and wait or return the handle. What other callers do with the handle is unknown."""
    return kind is Kind.BARRIER or bool(data) and hasattr(data[-1], "asyncOp")


def _dimension(group: dist.ProcessGroup) -> str | None:
    description = str(group.group_desc)
    return description.removeprefix(_MESH) if description.startswith(_MESH) else None


def _count_nothing(args: Sequence[Any], rest: dict[str, Any]) -> None:
    pass


def _register_for_scripts(original: Any, counted: Any) -> None:
    """torch.jit.script knows an operator by its function's id."""
    builtins: Any = torch.jit._builtins
    name = builtins._find_builtin(original)
    if name is not None:
        builtins._register_builtin(counted, name)
