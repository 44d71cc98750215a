"""What a trace holds, from one look through it: whose it is, when it was, and which processes and annotations are in it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from timesyncd.client.anchors import ANNOTATION
from timesyncd.errors import TraceError
from timesyncd.traces.reader import EVENTS

_LARGEST_NS = 2.0**63

#: A process or thread as a trace calls it; the profiler's own rows have words for numbers.
Id = int | float | str | None


@dataclass(slots=True)
class Outline:
    """
    `base_ns` is what `ts` counts from: CLOCK_REALTIME less the trace's own time, ns. `begin_ns` and `end_ns` are CLOCK_REALTIME,
    as the profiler has it, of its first and last event; None: it has none. `orders` has what processes are sorted by, `annotations`
    (begin, end) by an anchor's number.
    """

    name: str
    base_ns: int = 0
    host_name: str | None = None
    rank: int | None = None
    begin_ns: int | None = None
    end_ns: int | None = None
    events: int = 0
    processes: dict[Id, str] = field(default_factory=dict)
    labels: dict[Id, str] = field(default_factory=dict)
    orders: dict[Id, int] = field(default_factory=dict)
    annotations: dict[int, tuple[int, int]] = field(default_factory=dict)

    def pids(self) -> set[int]:
        return {pid for pid in self.processes if isinstance(pid, int)}


def outline(entries: Iterable[tuple[str, Any]], name: str) -> Outline:
    """Of what `read_trace` gives. Raises TraceError."""
    found = Outline(name)
    for key, value in entries:
        if key == EVENTS:
            _look(found, value)
        elif key == "baseTimeNanoseconds":
            if type(value) is not int or not 0 <= value < 2**63:
                raise TraceError(
                    f"{name}: baseTimeNanoseconds = {str(value)[:40]}: whole nanoseconds since 1970 are wanted"
                )
            if found.events:
                raise TraceError(f"{name}: baseTimeNanoseconds stands after the events")
            found.base_ns = value
        elif key == "host_name":
            found.host_name = value if isinstance(value, str) else None
        elif key == "distributedInfo" and isinstance(value, dict):
            found.rank = value["rank"] if type(value.get("rank")) is int else None
    return found


def span_of(event: dict[str, Any], base_ns: int, name: str) -> tuple[int, int] | None:
    """When an event began and ended, ns on the profiler's CLOCK_REALTIME; None: it has no time, as metadata. Raises TraceError."""
    if "ts" not in event:
        return None
    begin_ns = base_ns + _ns(event, "ts", name)
    return begin_ns, begin_ns + (_ns(event, "dur", name) if "dur" in event else 0)


def _look(found: Outline, event: dict[str, Any]) -> None:
    found.events += 1
    pid = id_of(event, "pid", found.name)
    if not is_of_all(event):
        found.processes.setdefault(pid, "")
    if event.get("ph") == "M":
        return _name(found, pid, event)
    span = span_of(event, found.base_ns, found.name)
    if span is None:
        return
    found.begin_ns = span[0] if found.begin_ns is None else min(found.begin_ns, span[0])
    found.end_ns = span[1] if found.end_ns is None else max(found.end_ns, span[1])
    title = event.get("name")
    if isinstance(title, str) and title.startswith(ANNOTATION) and title[len(ANNOTATION) :].isdecimal():
        found.annotations[int(title[len(ANNOTATION) :][:18])] = span


def _name(found: Outline, pid: Id, event: dict[str, Any]) -> None:
    args = event.get("args")
    if not isinstance(args, dict):
        return
    if event.get("name") == "process_name":
        found.processes[pid] = str(args.get("name", ""))
    elif event.get("name") == "process_labels":
        found.labels[pid] = str(args.get("labels", ""))
    elif event.get("name") == "process_sort_index" and type(order := args.get("sort_index")) is int:
        found.orders[pid] = order


def is_of_all(event: dict[str, Any]) -> bool:
    """Whether it is an instant of all processes, as those that PyTorch's profiler marks its start and its end with."""
    return event.get("s") == "g"


def id_of(event: dict[str, Any], key: str, name: str) -> Id:
    value = event.get(key)
    if value is None or isinstance(value, int | float | str):
        return value
    raise TraceError(f"{name}: an event's {key} is {str(value)[:40]!r}: a number or a word is wanted")


def _ns(event: dict[str, Any], key: str, name: str) -> int:
    """
    Traces count microseconds, with three decimals. Below 2^43 us (PyTorch counts three months at most) a float tells them apart, but
    its thousandfold does not: an event that ended with the one around it would end a nanosecond after it.
    """
    us = event[key]
    if isinstance(us, int | float) and not isinstance(us, bool) and math.isfinite(us) and abs(us) * 1_000 < _LARGEST_NS:
        whole = int(us)
        return whole * 1_000 + round((us - whole) * 1_000)
    raise TraceError(f"{name}: an event's {key} is {str(us)[:40]!r}: microseconds are wanted")
