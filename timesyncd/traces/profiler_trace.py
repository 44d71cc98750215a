"""
Reads one rank's profiler trace (Kineto, as torch.profiler writes it) into its communications and its computing.

With kernels of a GPU, its streams count: what NCCL and its like launch are communications, all else is computing. Without
them the host counts: gloo's own annotations, and the operators of torch. PyTorch's ParamCommsUtils and Kineto's
output_json.cpp are the source of the arguments' names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from timesyncd.errors import TraceError
from timesyncd.traces.host_trace import HostEvents
from timesyncd.traces.operations import (
    MAX_RANKS,
    RECV,
    SEND,
    Communication,
    ProcessGroup,
    RankTrace,
    UnplacedCall,
    UnusableTrace,
    communication_kind,
    merged,
)
from timesyncd.traces.reader import EVENTS, event_span

_DEVICE_LIBRARIES = ("nccl", "rccl", "hccl", "oneccl", "xccl")
_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep\*?#\d+")
_UPDATE = "Optimizer.step#"
_KERNEL = re.compile(r"(?:nccl|rccl|hccl|oneccl|xccl)[A-Za-z]*?_([A-Za-z]+)", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)

#: A thread that waits sees the end of a collective so much earlier or later than the thread that runs it.
_HOST_READING_NS = 200_000

_MAX_BASE_NS = 1 << 62

#: An event further than this from the trace's first one is damage: no profile takes a year.
_MAX_LENGTH_NS = 366 * 86_400 * 1_000_000_000

_BYTES = {
    "float": 4, "int": 4, "long": 8, "double": 8, "half": 2, "bfloat16": 2, "byte": 1, "char": 1, "bool": 1, "short": 2,
}  # fmt: skip


@dataclass(slots=True)
class _Events:
    """
    What one pass over the trace keeps: spans in ns. `device_calls`: (begin, end, kernel, arguments).
    """

    device_busy: list[tuple[int, int]] = field(default_factory=list)
    device_calls: list[tuple[int, int, str, Mapping[str, Any]]] = field(default_factory=list)
    host: HostEvents = field(default_factory=HostEvents)
    parameters: dict[Any, Mapping[str, Any]] = field(default_factory=dict)
    steps: set[str] = field(default_factory=set)
    updates: int = 0


def read_profiler_trace(entries: Iterable[tuple[str, Any]], name: str) -> RankTrace | UnusableTrace:
    """One rank's trace from the entries of `read_trace`. Raises TraceError."""
    head: dict[str, Any] = {}
    events = _Events()
    for key, value in entries:
        if key == EVENTS:
            _add(events, value, name)
        else:
            head[key] = value
    info = head.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = _rank(info, name)
    size = _count(info.get("world_size"))
    groups = _groups(info)
    if events.device_calls:
        try:
            calls = _device_calls(events, groups, rank, size)
        except _Unknown as unknown:
            return UnusableTrace(name, rank, size, str(unknown))
        return _trace(head, name, rank, size, events, calls, merged(events.device_busy))
    if not events.host.has_communication():
        return UnusableTrace(name, rank, size, "the trace has no collective and no message between ranks")
    unplaced = []
    for call in events.host.calls():
        if isinstance(call, str):
            return UnusableTrace(name, rank, size, f"the collective {call[:40]!r} is not known")
        unplaced.append(call)
    found = _trace(head, name, rank, size, events, [], events.host.computing())
    base_ns = _base_ns(head, name)
    listed = tuple(group for group in groups.values() if len(group.ranks) > 1)
    every = (ProcessGroup("all", tuple(range(size))),) if size is not None and size > 1 else ()
    return replace(
        found,
        reading_ns=_HOST_READING_NS,
        unplaced=tuple(_moved(call, base_ns) for call in sorted(unplaced, key=lambda call: call.begin_ns)),
        groups=listed or every,
    )


def _trace(
    head: Mapping[str, Any],
    name: str,
    rank: int,
    size: int | None,
    events: _Events,
    calls: Sequence[Communication],
    busy: Sequence[tuple[int, int]],
) -> RankTrace:
    base_ns = _base_ns(head, name)
    return RankTrace(
        name=name,
        rank=rank,
        world_size=size,
        host=str(head.get("host_name") or ""),
        communications=tuple(_moved(call, base_ns) for call in sorted(calls, key=lambda call: call.begin_ns)),
        busy=tuple((begin + base_ns, end + base_ns) for begin, end in busy),
        steps=len(events.steps) or events.updates or None,
    )


class _Unknown(Exception):
    """The trace does not show who communicated with whom."""


_Call = TypeVar("_Call", Communication, UnplacedCall)


def _moved(call: _Call, base_ns: int) -> _Call:
    return replace(call, begin_ns=call.begin_ns + base_ns, end_ns=call.end_ns + base_ns)


def _rank(info: Mapping[str, Any], name: str) -> int:
    rank = _whole(info.get("rank"))
    if rank is None and (found := _RANK_IN_NAME.findall(name.rsplit("/", 1)[-1])):
        rank = int(found[-1])
    if rank is None or not 0 <= rank < MAX_RANKS:
        raise TraceError(
            f"{name}: the trace has no distributedInfo with its rank: name the file rank-N.json, or profile after "
            "init_process_group"
        )
    return rank


def _whole(value: object) -> int | None:
    """A whole number, which some versions write as text."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        return int(value)
    return value if type(value) is int else None


def _count(value: object) -> int | None:
    """A number of ranks."""
    found = _whole(value)
    return found if found is not None and 0 < found <= MAX_RANKS else None


def _base_ns(head: Mapping[str, Any], name: str) -> int:
    """What the events' times count from. Raises TraceError."""
    base = head.get("baseTimeNanoseconds", 0)
    found = _whole(base)
    if found is None or not 0 <= found < _MAX_BASE_NS:
        raise TraceError(
            f"{name}: baseTimeNanoseconds is {str(base)[:40]}; it must be whole nanoseconds since 1970, below 2^62"
        )
    return found


def _groups(info: Mapping[str, Any]) -> dict[str, ProcessGroup]:
    """The process groups by name, as far as the trace lists them."""
    found = {}
    config = info.get("pg_config")
    for each in config if isinstance(config, list) else ():
        if isinstance(each, dict) and (ranks := _ranks(each.get("ranks"))):
            name = str(each.get("pg_name", ""))
            found[name] = ProcessGroup(f"{name} {each.get('pg_desc', '')}".strip(), ranks)
    return found


def _ranks(value: object) -> tuple[int, ...] | None:
    """A list of ranks, also as text. None: it is none, or shortened by dots."""
    if isinstance(value, str):
        if not re.fullmatch(r"\[\s*(\d+\s*(,\s*\d+\s*)*)?\]", value.strip()):
            return None
        value = [int(each) for each in re.findall(r"\d+", value)]
    if isinstance(value, list) and all(type(each) is int and 0 <= each < MAX_RANKS for each in value):
        return tuple(sorted(set(value))) or None
    return None


def _add(events: _Events, event: dict[str, Any], name: str) -> None:
    if event.get("ph") != "X" or (span := event_span(event, 0, name)) is None:
        return
    if span[1] < span[0] or span[1] - span[0] > _MAX_LENGTH_NS or abs(span[0]) >= _MAX_BASE_NS:
        raise TraceError(
            f"{name}: an event {str(event.get('name'))[:40]!r} begins at {str(event['ts'])[:40]} and takes "
            f"{str(event.get('dur'))[:40]} us, which is no time of one profile"
        )
    title = event.get("name")
    title = title if isinstance(title, str) else ""
    category = str(event.get("cat", "")).lower()
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if category in _DEVICE_WORK:
        if category == "kernel" and any(library in title.lower() for library in _DEVICE_LIBRARIES):
            events.device_calls.append((*span, title, args))
        else:
            events.device_busy.append(span)
    elif category == "user_annotation":
        if _STEP.fullmatch(title):
            events.steps.add(title)
        elif title.startswith(_UPDATE):
            events.updates += 1
        else:
            events.host.add_annotation(title, span, event)
    elif title == "record_param_comms":
        events.parameters[args.get("External id")] = args
    elif category == "cpu_op":
        events.host.add_operator(title, span, event)


def _device_calls(
    events: _Events, groups: Mapping[str, ProcessGroup], rank: int, size: int | None
) -> list[Communication]:
    found = []
    for begin, end, title, own in events.device_calls:
        args = own if "Collective name" in own else {**own, **events.parameters.get(own.get("External id"), {})}
        kind = communication_kind(str(args.get("Collective name", ""))) or _kernel_kind(title)
        if kind is None:
            raise _Unknown(
                f"the kernel {title[:60]!r} has no collective name and no source or destination rank: PyTorch records "
                "them since 2.3, but not of messages in a batch (batch_isend_irecv)"
            )
        if kind in (SEND, RECV):
            peer = _whole(args.get("Dst Rank" if kind == SEND else "Src Rank"))
            if peer is None or not 0 <= peer < MAX_RANKS:
                raise _Unknown(f"a {kind} has no {'Dst' if kind == SEND else 'Src'} Rank, so its peer is unknown")
            ends = (rank, peer) if kind == SEND else (peer, rank)
            found.append(Communication(kind, "messages", ends, None, begin, end, _bytes(args)))
        else:
            group = _group(args, groups, size)
            found.append(
                Communication(kind, group.name, group.ranks, _whole(args.get("Seq")), begin, end, _bytes(args))
            )
    return found


def _kernel_kind(title: str) -> str | None:
    match = _KERNEL.match(title)
    return None if match is None else communication_kind(match[1])


def _group(args: Mapping[str, Any], groups: Mapping[str, ProcessGroup], size: int | None) -> ProcessGroup:
    name = str(args.get("Process Group Name", ""))
    listed = groups.get(name)
    text = f"{name} {args.get('Process Group Description', '')}".strip()
    ranks = _ranks(args.get("Process Group Ranks")) or (listed.ranks if listed is not None else None)
    count = _count(args.get("Group size"))
    if ranks is None and (start := _whole(args.get("Global rank start"))) is not None and count:
        ranks = tuple(start + each * (_whole(args.get("Global rank stride")) or 1) for each in range(count))
    if ranks is None and size is not None and count in (size, None) and len(groups) == 1:
        ranks = tuple(range(size))
    if ranks is None:
        raise _Unknown(f"the ranks of process group {name!r} are not recorded")
    return ProcessGroup(text, ranks)


def _bytes(args: Mapping[str, Any]) -> int | None:
    count = _whole(args.get("In msg nelems"))
    width = _BYTES.get(str(args.get("dtype", "")).lower())
    return None if count is None or width is None else count * width
