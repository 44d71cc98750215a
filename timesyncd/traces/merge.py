"""Merges the events of several traces into one: on one axis, with disjoint ids, and with the bound of each clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from timesyncd.clocks import NS_PER_S
from timesyncd.traces.alignment import AxisReference, CommonAxis, TraceAlignment
from timesyncd.traces.anchors import AnchorFile
from timesyncd.traces.reader import TraceId, TraceOutline, event_id, event_span, is_global_instant
from timesyncd.units import duration_text

TraceEvent = dict[str, Any]

#: The merged trace has such events of its own, so those of the files are dropped.
_REPLACED = {"process_name", "process_labels", "process_sort_index"}

_PROCESSES_PER_RANK = 1_000

#: The sort index of a process whose file has none.
_NO_SORT_INDEX = 2**31


class TraceFile:
    """
    One of the merged files. `position`: its number among them. `rank`, `node`: by its anchors, else by the trace; None:
    unknown.
    """

    def __init__(
        self, outline: TraceOutline, anchored: AnchorFile | None, alignment: TraceAlignment, position: int
    ) -> None:
        self.outline = outline
        self.alignment = alignment
        self.position = position
        self.rank = outline.rank if anchored is None else anchored.owner.rank
        self.node = outline.host_name if anchored is None else anchored.owner.node

    @property
    def display_name(self) -> str:
        rank = self.outline.name if self.rank is None else f"rank {self.rank}"
        name = rank if self.node is None else f"{rank} on {self.node}"
        return "".join(each if each.isprintable() else "?" for each in name)  # it goes to terminals too

    def alignment_text(self, reference: AxisReference) -> str:
        if self.alignment.bound_ns is None:
            return f"NOT ALIGNED: {self.alignment.reason}"
        return f"within {duration_text(self.alignment.bound_ns)} of {reference.text}"

    def begin_ns(self) -> int | None:
        return None if self.outline.begin_ns is None else self.alignment.at(self.outline.begin_ns)


class IdNumbers:
    """
    Unique numbers for the processes, threads and flows of all files. A main thread has the number of its process, as in
    the kernel.
    """

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
    """Merges files. `base_ns`: the common clock's time from which the merged trace counts."""

    def __init__(self, files: list[TraceFile], axis: CommonAxis) -> None:
        self.files = files
        self.axis = axis
        begins = [begin_ns for file in files if (begin_ns := file.begin_ns()) is not None]
        self.base_ns = min(begins, default=0) // NS_PER_S * NS_PER_S
        self._numbers = IdNumbers()

    def descriptions(self, file: TraceFile) -> Iterator[TraceEvent]:
        """The names of the file's processes, and the bound of its clock: as labels, as an event, and as a counter."""
        text = file.alignment_text(self.axis.reference)
        for place, pid in enumerate(_ordered(file.outline)):
            name = file.outline.processes[pid]
            number = self._numbers.pid(file.position, pid)
            labels = ", ".join(filter(None, (file.outline.labels.get(pid), text)))
            title = f"{file.display_name}: {name or pid or 'trace'}" + (f" ({pid})" if name else "")
            if file.alignment.bound_ns is None:
                title += " NOT ALIGNED"
            yield _metadata("process_name", number, {"name": title})
            yield _metadata("process_labels", number, {"labels": labels})
            order = (file.position if file.rank is None else file.rank) * _PROCESSES_PER_RANK + place
            yield _metadata("process_sort_index", number, {"sort_index": order})
        yield from self._clock(file)

    def _clock(self, file: TraceFile) -> Iterator[TraceEvent]:
        outline, alignment = file.outline, file.alignment
        if outline.begin_ns is None:
            return
        pid = self._numbers.pid(file.position, _main(outline))
        begin_ns = alignment.at(outline.begin_ns)
        args = self.report(file)
        event = {"ph": "i", "s": "p", "cat": "timesyncd", "name": "clock alignment", "pid": pid, "tid": pid}
        yield event | {"ts": self._us(begin_ns), "args": args}
        for point in alignment.points:
            at_ns = max(begin_ns, point.realtime_ns - point.offset_ns)
            counter = {"ph": "C", "cat": "timesyncd", "name": "clock bound", "pid": pid, "tid": pid}
            yield counter | {"ts": self._us(at_ns), "args": {"ns": point.bound_ns + alignment.profiler_ns}}

    def report(self, file: TraceFile) -> dict[str, Any]:
        """A file's alignment, for programs."""
        alignment = file.alignment
        return {
            "file": file.outline.name,
            "rank": file.rank,
            "node": file.node,
            "aligned": alignment.bound_ns is not None,
            "reason_code": alignment.reason_code,
            "reason": alignment.reason,
            "reference": self.axis.reference,
            "bound_ns": alignment.bound_ns,
            "profiler_bound_ns": alignment.profiler_ns,
            "profiler_measured": alignment.profiler_measured,
            "profiler_offset_ns": alignment.profiler_offset_ns,
            "offset_ns": alignment.points[0].offset_ns if alignment.points else None,
            "anchors": alignment.anchors,
            "events": file.outline.events,
        }

    def events(self, file: TraceFile, events: Iterable[TraceEvent]) -> Iterator[TraceEvent]:
        """
        The file's events, with times on the axis and new ids. An instant of all processes becomes one of its own.
        Raises TraceError.
        """
        outline = file.outline
        named: set[TraceId] = set()
        for event in events:
            if event.get("ph") == "M" and event.get("name") in _REPLACED:
                continue
            pid, tid = event_id(event, "pid", outline.name), event_id(event, "tid", outline.name)
            if is_global_instant(event):
                event["s"], pid, tid = "p", _main(outline), _main(outline)
            if isinstance(tid, str) and tid and tid not in named:  # Perfetto counts an empty name as an error
                named.add(tid)
                yield _metadata("thread_name", self._numbers.pid(file.position, pid), {"name": tid}) | {
                    "tid": self._numbers.tid(file.position, pid, tid)
                }
            yield self._moved(file, event, pid, tid)

    def _moved(self, file: TraceFile, event: TraceEvent, pid: TraceId, tid: TraceId) -> TraceEvent:
        outline, position = file.outline, file.position
        span = event_span(event, outline.base_ns, outline.name)
        if span is not None:
            begin_ns = file.alignment.at(span[0])
            event["ts"] = self._us(begin_ns)
            if "dur" in event:
                event["dur"] = (file.alignment.at(span[1]) - begin_ns) / 1_000
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
    """The process that the profiler ran in. Devices are processes in a trace too, with small numbers."""
    return max(outline.pids(), default=next(iter(outline.processes), None))


def _ordered(outline: TraceOutline) -> list[TraceId]:
    """The profiler's process first, then the others in the order of the file's sort indices."""
    main, orders = _main(outline), outline.orders
    return sorted(outline.processes, key=lambda pid: (pid != main, orders.get(pid, _NO_SORT_INDEX), str(pid)))


def _metadata(name: str, pid: int, args: dict[str, Any]) -> TraceEvent:
    return {"ph": "M", "name": name, "pid": pid, "tid": pid, "args": args}
