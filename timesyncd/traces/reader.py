"""
A Chrome trace's JSON read piece by piece, so that a trace of gigabytes needs no memory.

What a trace holds, from one look through it: whose it is, when it was, and which processes and annotations are in it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from timesyncd.client.anchors import ANNOTATION
from timesyncd.errors import TraceError

EVENTS = "traceEvents"

#: The largest value of its own that is waited for before the file counts as broken, in characters.
MAX_VALUE_CHARS = 1 << 26

_SPACE = re.compile(r"[ \t\n\r]*")

# What is no JSON, as NaN, would make the merged file unreadable; control characters in a name do not.
_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


def read_trace(chunks: Iterator[str], name: str) -> Iterator[tuple[str, Any]]:
    """
    The top object's (key, value) pairs in order, and of the list `traceEvents` each event by itself under that key; a dict.

    Raises TraceError, also while it iterates: no JSON, cut off, or not of this form.
    """
    text = _Text(chunks, name)
    if text.next() != "{":
        text.fail("no profiler's trace: a JSON object with traceEvents is wanted")
    found, separator = False, text.next()
    while separator != "}":
        key = text.key(separator)
        if key == EVENTS:
            found = True
            yield from ((EVENTS, event) for event in _events(text))
        else:
            yield key, text.value()
        if (separator := text.next()) not in (",", "}"):
            text.fail("a comma or the object's end is wanted")
        separator = text.next() if separator == "," else separator
    if not found:
        text.fail("it has no traceEvents")
    text.end()


def _events(text: _Text) -> Iterator[dict[str, Any]]:
    if text.next() != "[":
        text.fail("traceEvents is no list")
    if text.peek() == "]":
        text.next()
        return
    while True:
        event = text.value()
        if not isinstance(event, dict):
            text.fail("an event is no object")
        yield event
        separator = text.next()
        if separator == "]":
            return
        if separator != ",":
            text.fail("a comma or the list's end is wanted")


class _Text:
    """The text from here on. What was read is dropped with the next chunk."""

    def __init__(self, chunks: Iterator[str], name: str) -> None:
        self._chunks = chunks
        self._name = name
        self._text = ""
        self._at = 0
        self._dropped = 0

    def peek(self) -> str:
        """The next character that is no space."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                self.fail("it ends too early: was it cut off?")

    def next(self) -> str:
        character = self.peek()
        self._at += 1
        return character

    def key(self, first: str) -> str:
        self._at -= 1
        key = self.value() if first == '"' else None
        if not isinstance(key, str) or self.next() != ":":
            self.fail("a key and its colon are wanted")
        return key

    def value(self) -> Any:
        """One whole value. A number may go on after what is there of it ("1.5e"), so what ends so is read again with more."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except ValueError as error:  # also a number of thousands of digits
                problem = f"{str(error).partition(':')[0]}, or it is cut off"
            except RecursionError:
                self.fail("it is nested too deeply")
            else:
                if self._text[end : end + 3].strip(".eE+-"):
                    self._at = end
                    return value
                problem = "it ends too early: was it cut off?"
            # What is wrong may be only that it is not all there; it is, when this much follows.
            if len(self._text) - self._at > MAX_VALUE_CHARS or not self._more():
                self.fail(problem)

    def end(self) -> None:
        """Nothing but space may follow."""
        while True:
            if self._text[self._at :].strip(" \t\n\r"):
                self.fail("something follows its end")
            self._at = len(self._text)
            if not self._more():
                return

    def fail(self, problem: str) -> NoReturn:
        raise TraceError(f"{self._name}: character {self._dropped + self._at}: {problem}")

    def _more(self) -> bool:
        """As much again as there is, so that a long value is not tried for each chunk."""
        rest = self._text[self._at :]
        chunks = [rest]
        wanted = max(1, len(rest))
        while wanted > 0 and (chunk := next(self._chunks, "")):
            chunks.append(chunk)
            wanted -= len(chunk)
        self._dropped += self._at
        self._text, self._at = "".join(chunks), 0
        return len(chunks) > 1


_LARGEST_NS = 2.0**63

#: A process or thread as a trace calls it; the profiler's own rows have words for numbers.
TraceId = int | float | str | None


@dataclass(slots=True)
class TraceOutline:
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
    processes: dict[TraceId, str] = field(default_factory=dict)
    labels: dict[TraceId, str] = field(default_factory=dict)
    orders: dict[TraceId, int] = field(default_factory=dict)
    annotations: dict[int, tuple[int, int]] = field(default_factory=dict)

    def pids(self) -> set[int]:
        return {pid for pid in self.processes if isinstance(pid, int)}


def read_outline(entries: Iterable[tuple[str, Any]], name: str) -> TraceOutline:
    """Of what `read_trace` gives. Raises TraceError."""
    found = TraceOutline(name)
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


def event_span(event: dict[str, Any], base_ns: int, name: str) -> tuple[int, int] | None:
    """When an event began and ended, ns on the profiler's CLOCK_REALTIME; None: it has no time, as metadata. Raises TraceError."""
    if "ts" not in event:
        return None
    begin_ns = base_ns + _ns(event, "ts", name)
    return begin_ns, begin_ns + (_ns(event, "dur", name) if "dur" in event else 0)


def _look(found: TraceOutline, event: dict[str, Any]) -> None:
    found.events += 1
    pid = event_id(event, "pid", found.name)
    if not is_global_instant(event):
        found.processes.setdefault(pid, "")
    if event.get("ph") == "M":
        return _name(found, pid, event)
    span = event_span(event, found.base_ns, found.name)
    if span is None:
        return
    found.begin_ns = span[0] if found.begin_ns is None else min(found.begin_ns, span[0])
    found.end_ns = span[1] if found.end_ns is None else max(found.end_ns, span[1])
    title = event.get("name")
    if isinstance(title, str) and title.startswith(ANNOTATION) and title[len(ANNOTATION) :].isdecimal():
        found.annotations[int(title[len(ANNOTATION) :][:18])] = span


def _name(found: TraceOutline, pid: TraceId, event: dict[str, Any]) -> None:
    args = event.get("args")
    if not isinstance(args, dict):
        return
    if event.get("name") == "process_name":
        found.processes[pid] = str(args.get("name", ""))
    elif event.get("name") == "process_labels":
        found.labels[pid] = str(args.get("labels", ""))
    elif event.get("name") == "process_sort_index" and type(order := args.get("sort_index")) is int:
        found.orders[pid] = order


def is_global_instant(event: dict[str, Any]) -> bool:
    """Whether it is an instant of all processes, as those that PyTorch's profiler marks its start and its end with."""
    return event.get("s") == "g"


def event_id(event: dict[str, Any], key: str, name: str) -> TraceId:
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
