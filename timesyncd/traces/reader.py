"""
Reads a Chrome trace's JSON piece by piece, so that a trace of gigabytes needs little memory; and its outline, from one
pass over it: which rank it is of, when it was, and which processes and annotations it contains.

This is a reader of our own because ijson does not fit. With its C backend (3.6.0, yajl2_c) ijson rejects what profilers
write: NaN and Infinity, control characters in a name, integers above 64 bits. It does not give the character at which a
file is broken. And it is slower: for 100 MB with 278,000 events it takes 2.3 s for the events alone, and 3.9 s with the
other keys of the file, where this reader takes 1.1 s (memory 21, 29 and 30 MB).
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

#: Length limit of one value, in characters. A file with a longer one counts as broken.
MAX_VALUE_CHARS = 1 << 26

_SPACE = re.compile(r"[ \t\n\r]*")

# NaN and Infinity are not JSON, and would make the merged file unreadable; control characters in a name do not.
_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


def read_trace(chunks: Iterator[str], name: str) -> Iterator[tuple[str, Any]]:
    """
    The top object's (key, value) pairs in order. For the key `traceEvents`, one pair for each event of the list, which
    is a dict.

    Raises TraceError, also during the iteration, for a text that is not JSON, is truncated, or has another form.
    """
    text = _Text(chunks, name)
    if text.next() != "{":
        text.fail("the file is not a profiler's trace; it must be a JSON object with traceEvents")
    found, separator = False, text.next()
    while separator != "}":
        key = text.key(separator)
        if key == EVENTS:
            found = True
            yield from ((EVENTS, event) for event in _events(text))
        else:
            yield key, text.value()
        if (separator := text.next()) not in (",", "}"):
            text.fail("a comma or the object's end is missing")
        separator = text.next() if separator == "," else separator
    if not found:
        text.fail("the object has no traceEvents")
    text.end()


def _events(text: _Text) -> Iterator[dict[str, Any]]:
    if text.next() != "[":
        text.fail("traceEvents is not a list")
    if text.peek() == "]":
        text.next()
        return
    while True:
        event = text.value()
        if not isinstance(event, dict):
            text.fail("an event is not an object")
        yield event
        separator = text.next()
        if separator == "]":
            return
        if separator != ",":
            text.fail("a comma or the list's end is missing")


class _Text:
    """The text from here on. What was read is dropped with the next chunk."""

    def __init__(self, chunks: Iterator[str], name: str) -> None:
        self._chunks = chunks
        self._name = name
        self._text = ""
        self._at = 0
        self._dropped = 0

    def peek(self) -> str:
        """The next character that is not white space."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                self.fail("the file ends too early; it may be truncated")

    def next(self) -> str:
        character = self.peek()
        self._at += 1
        return character

    def key(self, first: str) -> str:
        self._at -= 1
        key = self.value() if first == '"' else None
        if not isinstance(key, str) or self.next() != ":":
            self.fail("a key and its colon are missing")
        return key

    def value(self) -> Any:
        """
        One complete value. A number at the end of the text ("1.5e") may continue, so it is read again with more text.
        """
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except ValueError as error:  # also a number of thousands of digits
                problem = f"{str(error).partition(':')[0]}, or the file is truncated"
            except RecursionError:
                self.fail("a value is nested too deeply")
            else:
                if self._text[end : end + 3].strip(".eE+-"):
                    self._at = end
                    return value
                problem = "the file ends too early; it may be truncated"
            # The error may be only that a part is missing, unless this much text follows.
            if len(self._text) - self._at > MAX_VALUE_CHARS or not self._more():
                self.fail(problem)

    def end(self) -> None:
        """Only white space may follow."""
        while True:
            if self._text[self._at :].strip(" \t\n\r"):
                self.fail("text follows the end of the object")
            self._at = len(self._text)
            if not self._more():
                return

    def fail(self, problem: str) -> NoReturn:
        raise TraceError(f"{self._name}: character {self._dropped + self._at}: {problem}")

    def _more(self) -> bool:
        """Doubles the text, so that a long value is not parsed again for each chunk."""
        rest = self._text[self._at :]
        chunks = [rest]
        missing = max(1, len(rest))
        while missing > 0 and (chunk := next(self._chunks, "")):
            chunks.append(chunk)
            missing -= len(chunk)
        self._dropped += self._at
        self._text, self._at = "".join(chunks), 0
        return len(chunks) > 1


_MAX_NS = 2.0**63

#: The id of a process or thread in a trace; the profiler's own rows have words instead of numbers.
TraceId = int | float | str | None


@dataclass(slots=True)
class TraceOutline:
    """
    What a trace contains, without its events.

    `base_ns`: the CLOCK_REALTIME from which `ts` counts. `begin_ns`, `end_ns`: the profiler's CLOCK_REALTIME of the
    first and last event; None: no event has a time. `orders`: the sort index of each process. `annotations`: (begin,
    end) in ns by an anchor's number.
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
    """The outline of the entries of `read_trace`. Raises TraceError."""
    found = TraceOutline(name)
    for key, value in entries:
        if key == EVENTS:
            _add_event(found, value)
        elif key == "baseTimeNanoseconds":
            if type(value) is not int or not 0 <= value < 2**63:
                raise TraceError(
                    f"{name}: baseTimeNanoseconds is {str(value)[:40]}; it must be whole nanoseconds since 1970, "
                    "below 2^63"
                )
            if found.events:
                raise TraceError(f"{name}: baseTimeNanoseconds follows the events; it must come before them")
            found.base_ns = value
        elif key == "host_name":
            found.host_name = value if isinstance(value, str) else None
        elif key == "distributedInfo" and isinstance(value, dict):
            found.rank = value["rank"] if type(value.get("rank")) is int else None
    return found


def event_span(event: dict[str, Any], base_ns: int, name: str) -> tuple[int, int] | None:
    """
    An event's begin and end, in ns of the profiler's CLOCK_REALTIME; None: it has no time, as metadata. Raises
    TraceError.
    """
    if "ts" not in event:
        return None
    begin_ns = base_ns + _ns(event, "ts", name)
    return begin_ns, begin_ns + (_ns(event, "dur", name) if "dur" in event else 0)


def _add_event(found: TraceOutline, event: dict[str, Any]) -> None:
    found.events += 1
    pid = event_id(event, "pid", found.name)
    if not is_global_instant(event):
        found.processes.setdefault(pid, "")
    if event.get("ph") == "M":
        return _add_metadata(found, pid, event)
    span = event_span(event, found.base_ns, found.name)
    if span is None:
        return
    found.begin_ns = span[0] if found.begin_ns is None else min(found.begin_ns, span[0])
    found.end_ns = span[1] if found.end_ns is None else max(found.end_ns, span[1])
    title = event.get("name")
    if isinstance(title, str) and title.startswith(ANNOTATION) and title[len(ANNOTATION) :].isdecimal():
        found.annotations[int(title[len(ANNOTATION) :][:18])] = span


def _add_metadata(found: TraceOutline, pid: TraceId, event: dict[str, Any]) -> None:
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
    """Whether the event is an instant of all processes, with which PyTorch's profiler marks its start and its end."""
    return event.get("s") == "g"


def event_id(event: dict[str, Any], key: str, name: str) -> TraceId:
    value = event.get(key)
    if value is None or isinstance(value, int | float | str):
        return value
    raise TraceError(f"{name}: an event's {key} is {str(value)[:40]!r}; it must be a number or a string")


def _ns(event: dict[str, Any], key: str, name: str) -> int:
    """
    A time in ns. Traces have microseconds with three decimals. Below 2^43 us (PyTorch counts at most three months) a
    float represents them, but its product with 1,000 does not: an event that ended together with the event around it
    would end a nanosecond after it.
    """
    us = event[key]
    if isinstance(us, int | float) and not isinstance(us, bool) and math.isfinite(us) and abs(us) * 1_000 < _MAX_NS:
        whole = int(us)
        return whole * 1_000 + round((us - whole) * 1_000)
    raise TraceError(
        f"{name}: an event's {key} is {str(us)[:40]!r}; it must be microseconds, with a magnitude below 2^63 ns"
    )
