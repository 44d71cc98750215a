"""
What torch's profiler records of a rank that communicates on its host (gloo, MPI, UCC): annotations of the collectives on
the threads that run them, messages from the call until the rank saw them end, and torch's operators.

PyTorch's ProcessGroupGloo.cpp is the source. It annotates neither barriers nor every collective, and no group.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from timesyncd.traces.operations import RECV, SEND, EndKind, UnplacedCall, communication_kind, merged

#: The prefixes of the annotations of collectives that a host runs.
_BACKENDS = ("gloo:", "mpi:", "ucc:")

#: Operators of these namespaces communicate, or wait for what does.
_COMMUNICATING = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd")

#: What gloo runs without an annotation.
_NOT_ANNOTATED = ("barrier",)


@dataclass(frozen=True, slots=True)
class _Issued:
    """A call to a process group, from the thread that made it."""

    kind: str
    begin_ns: int
    end_ns: int
    peer: int | None
    elements: int | None


@dataclass(slots=True)
class HostEvents:
    """
    What one pass over a trace keeps of a host. `operators`: begins and ends by thread; `communicating`: the begins of
    those that communicate or wait.
    """

    annotated: list[tuple[int, int, str, int | None, int | None]] = field(default_factory=list)
    issued: list[_Issued] = field(default_factory=list)
    operators: dict[Any, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    communicating: dict[Any, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))

    def add_annotation(self, title: str, span: tuple[int, int], event: Mapping[str, Any]) -> None:
        if title.startswith(_BACKENDS):
            thread = event.get("tid")
            lane = thread if type(thread) is int else None
            self.annotated.append((*span, title.partition(":")[2], lane, _elements_of(event)))

    def add_operator(self, title: str, span: tuple[int, int], event: Mapping[str, Any]) -> None:
        thread = event.get("tid")
        thread = thread if isinstance(thread, int | str) else None
        namespace, _, name = title.partition("::")
        if namespace == "c10d" and (kind := communication_kind(name)) is not None:
            self.issued.append(_Issued(kind, *span, _peer(event), _elements_of(event)))
        if namespace in _COMMUNICATING:
            self.communicating[thread].append(span[0])
        else:
            self.operators[thread].extend(span)

    def has_communication(self) -> bool:
        return bool(self.annotated)

    def computing(self) -> tuple[tuple[int, int], ...]:
        """
        When operators ran, of threads other than those that run collectives. An operator that communicates inside, as a
        hook of the backward pass, may wait there, so only what is inside it counts.
        """
        lanes = {thread for _, _, title, thread, _ in self.annotated if communication_kind(title) not in (SEND, RECV)}
        lanes -= self.communicating.keys()
        spans: list[tuple[int, int]] = []
        for thread, flat in self.operators.items():
            if thread not in lanes:
                calls = sorted(self.communicating.get(thread, ()))
                spans += (
                    (begin, end)
                    for begin, end in zip(flat[::2], flat[1::2], strict=True)
                    if bisect_left(calls, begin) == bisect_left(calls, end)
                )
        return merged(spans)

    def calls(self) -> Iterator[UnplacedCall | str]:
        """The communications in the order of their begins; a text: the name of one that is not known."""
        issued = self._innermost()
        annotated: Counter[str] = Counter()
        for begin, end, title, thread, size in sorted(self.annotated, key=lambda each: each[0]):
            kind = communication_kind(title)
            if kind is None:
                yield title
            elif kind in (SEND, RECV):
                # The message is under way when its annotation begins: a busy host may pause in between.
                made = _around(issued.get(kind, ()), begin)
                called_ns = begin if made is None else made.begin_ns
                yield UnplacedCall(kind, called_ns, end, None, made.peer if made else None, size, EndKind.SEEN)
            else:
                annotated[kind] += 1
                lane = None if thread in self.communicating else thread
                yield UnplacedCall(kind, begin, end, lane, None, size, EndKind.OWN)
        for kind in _NOT_ANNOTATED:
            for call in issued.get(kind, ()) if not annotated[kind] else ():
                yield UnplacedCall(call.kind, call.begin_ns, call.begin_ns, None, None, call.elements, EndKind.NONE)

    def _innermost(self) -> dict[str, list[_Issued]]:
        """By kind in order. An operator may call itself once more, below autograd."""
        found: dict[str, list[_Issued]] = defaultdict(list)
        for call in sorted(self.issued, key=lambda call: (call.begin_ns, -call.end_ns)):
            same = found[call.kind]
            if same and call.end_ns <= same[-1].end_ns:
                same.pop()
            same.append(call)
        return found


def _around(issued: Sequence[_Issued], at_ns: int) -> _Issued | None:
    """The call that was in progress then."""
    place = bisect_right(issued, at_ns, key=lambda call: call.begin_ns) - 1
    return issued[place] if place >= 0 and issued[place].end_ns >= at_ns else None


def _peer(event: Mapping[str, Any]) -> int | None:
    """The rank in the group, which `record_shapes=True` records."""
    args = event.get("args")
    inputs = args.get("Concrete Inputs") if isinstance(args, dict) else None
    value = inputs[2] if isinstance(inputs, list) and len(inputs) > 2 else None
    return int(str(value)) if re.fullmatch(r"\d{1,7}", str(value)) else None


def _elements_of(event: Mapping[str, Any]) -> int | None:
    """The elements of the first tensor; None: shapes are not recorded."""
    args = event.get("args")
    dims = args.get("Input Dims") if isinstance(args, dict) else None
    return None if not isinstance(dims, list) else _elements(dims)


def _elements(dims: list[Any], depth: int = 3) -> int | None:
    for each in dims if depth else ():
        if isinstance(each, list) and each:
            if all(type(size) is int and 0 <= size < 1 << 40 for size in each):
                found = 1
                for size in each:
                    found *= size
                return found
            if (inner := _elements(each, depth - 1)) is not None:
                return inner
    return None
