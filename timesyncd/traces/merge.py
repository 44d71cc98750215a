"""The events of several traces as those of one: on one axis, with ids that do not meet, and with what is known of each clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from timesyncd.clocks import NS_PER_S
from timesyncd.traces.alignment import REFERENCE_TEXTS, CommonAxis, TraceAlignment
from timesyncd.traces.anchors import AnchorFile
from timesyncd.traces.reader import TraceId, TraceOutline, event_id, event_span, is_global_instant
from timesyncd.units import duration_text

TraceEvent = dict[str, Any]

#: A process' own names and places are written anew.
_REPLACED = {"process_name", "process_labels", "process_sort_index"}

_PROCESSES_A_RANK = 1_000

#: The place of a process to which its file gives none.
_LAST = 2**31


class TraceFile:
    """One file of the merge."""

    def __init__(
        self, outline: TraceOutline, anchored: AnchorFile | None, alignment: TraceAlignment, position: int
    ) -> None:
        self.outline = outline
        self.alignment = alignment
        self.position = position
        self.rank = outline.rank if anchored is None else anchored.owner.rank
        self.node = outline.host_name if anchored is None else anchored.owner.node

    @property
    def who(self) -> str:
        rank = self.outline.name if self.rank is None else f"rank {self.rank}"
        who = rank if self.node is None else f"{rank} on {self.node}"
        return "".join(each if each.isprintable() else "?" for each in who)  # it is shown on terminals too

    def aligned_text(self, reference: str) -> str:
        if self.alignment.bound_ns is None:
            return f"NOT ALIGNED: {self.alignment.reason}"
        return f"within {duration_text(self.alignment.bound_ns)} of {REFERENCE_TEXTS[reference]}"

    def begin_ns(self) -> int | None:
        return None if self.outline.begin_ns is None else self.alignment.at(self.outline.begin_ns)


class IdNumbers:
    """One number for each process, thread and flow of each file; a main thread keeps its process' number, as the kernel has it."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], int] = {}

    def pid(self, position: int, pid: TraceId) -> int:
        return self._of(position, "pid", pid)

    def tid(self, position: int, pid: TraceId, tid: TraceId) -> int:
        return self.pid(position, pid) if tid == pid else self._of(position, pid, "tid", tid)

    def flow(self, position: int, flow: TraceId) -> int:
        return self._of(position, "flow", flow)

    def _of(self, *key: Any) -> int:
        return self._known.setdefault(key, len(self._known) + 1)


class Merge:
    """Of these members; `base_ns` is what the merged trace's time counts from, on the common clock."""

    def __init__(self, members: list[TraceFile], axis: CommonAxis) -> None:
        self.members = members
        self.axis = axis
        begins = [begin_ns for member in members if (begin_ns := member.begin_ns()) is not None]
        self.base_ns = min(begins, default=0) // NS_PER_S * NS_PER_S
        self._numbers = IdNumbers()

    def about(self, member: TraceFile) -> Iterator[TraceEvent]:
        """The names of its processes, and the bound on its clock: as labels, as an event to click on, and as a counter."""
        text = member.aligned_text(self.axis.reference)
        for place, pid in enumerate(_ordered(member.outline)):
            name = member.outline.processes[pid]
            number = self._numbers.pid(member.position, pid)
            old = ", ".join(filter(None, (member.outline.labels.get(pid), text)))
            title = f"{member.who}: {name or pid or 'trace'}" + (f" ({pid})" if name else "")
            if member.alignment.bound_ns is None:
                title += " NOT ALIGNED"
            yield _metadata("process_name", number, {"name": title})
            yield _metadata("process_labels", number, {"labels": old})
            order = (member.position if member.rank is None else member.rank) * _PROCESSES_A_RANK + place
            yield _metadata("process_sort_index", number, {"sort_index": order})
        yield from self._clock(member)

    def _clock(self, member: TraceFile) -> Iterator[TraceEvent]:
        outline, alignment = member.outline, member.alignment
        if outline.begin_ns is None:
            return
        pid = self._numbers.pid(member.position, _main(outline))
        begin_ns = alignment.at(outline.begin_ns)
        args = self.told(member)
        told = {"ph": "i", "s": "p", "cat": "timesyncd", "name": "clock alignment", "pid": pid, "tid": pid}
        yield told | {"ts": self._us(begin_ns), "args": args}
        for point in alignment.points:
            at_ns = max(begin_ns, point.realtime_ns - point.offset_ns)
            counter = {"ph": "C", "cat": "timesyncd", "name": "clock bound", "pid": pid, "tid": pid}
            yield counter | {"ts": self._us(at_ns), "args": {"ns": point.bound_ns + alignment.profiler_ns}}

    def told(self, member: TraceFile) -> dict[str, Any]:
        """What is known of a file's place on the axis."""
        alignment = member.alignment
        return {
            "file": member.outline.name,
            "rank": member.rank,
            "node": member.node,
            "aligned": alignment.bound_ns is not None,
            "reason": alignment.reason,
            "reference": self.axis.reference,
            "bound_ns": alignment.bound_ns,
            "profiler_bound_ns": alignment.profiler_ns,
            "profiler_measured": alignment.profiler_measured,
            "profiler_offset_ns": alignment.profiler_offset_ns,
            "offset_ns": alignment.points[0].offset_ns if alignment.points else None,
            "anchors": alignment.anchors,
            "events": member.outline.events,
        }

    def events(self, member: TraceFile, events: Iterable[TraceEvent]) -> Iterator[TraceEvent]:
        """Its own events, moved and renumbered; what it says of all processes is its own process' alone. Raises TraceError."""
        outline = member.outline
        named: set[TraceId] = set()
        for event in events:
            if event.get("ph") == "M" and event.get("name") in _REPLACED:
                continue
            pid, tid = event_id(event, "pid", outline.name), event_id(event, "tid", outline.name)
            if is_global_instant(event):
                event["s"], pid, tid = "p", _main(outline), _main(outline)
            if isinstance(tid, str) and tid and tid not in named:  # Perfetto takes an empty name for an error
                named.add(tid)
                yield _metadata("thread_name", self._numbers.pid(member.position, pid), {"name": tid}) | {
                    "tid": self._numbers.tid(member.position, pid, tid)
                }
            yield self._moved(member, event, pid, tid)

    def _moved(self, member: TraceFile, event: TraceEvent, pid: TraceId, tid: TraceId) -> TraceEvent:
        outline, position = member.outline, member.position
        span = event_span(event, outline.base_ns, outline.name)
        if span is not None:
            begin_ns = member.alignment.at(span[0])
            event["ts"] = self._us(begin_ns)
            if "dur" in event:
                event["dur"] = (member.alignment.at(span[1]) - begin_ns) / 1_000
        event["pid"] = self._numbers.pid(position, pid)
        if "tid" in event:
            event["tid"] = self._numbers.tid(position, pid, tid)
        for key in ("id", "bind_id"):
            if key in event:
                event[key] = self._numbers.flow(position, event_id(event, key, outline.name))
        if isinstance(ids := event.get("id2"), dict) and "global" in ids:
            ids["global"] = hex(self._numbers.flow(position, event_id(ids, "global", outline.name)))
        return event

    def _us(self, common_ns: int) -> float:
        return (common_ns - self.base_ns) / 1_000


def _main(outline: TraceOutline) -> TraceId:
    """The process that the profiler ran in: devices, which a trace calls processes too, have small numbers."""
    return max(outline.pids(), default=next(iter(outline.processes), None))


def _ordered(outline: TraceOutline) -> list[TraceId]:
    """The profiler's process, and the others as the file has them."""
    main, orders = _main(outline), outline.orders
    return sorted(outline.processes, key=lambda pid: (pid != main, orders.get(pid, _LAST), str(pid)))


def _metadata(name: str, pid: int, args: dict[str, Any]) -> TraceEvent:
    return {"ph": "M", "name": name, "pid": pid, "tid": pid, "args": args}
