"""A Chrome trace's JSON read piece by piece, so that a trace of gigabytes needs no memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from timesyncd.errors import TraceError

EVENTS = "traceEvents"

#: The largest value of its own that is waited for before the file counts as broken, in characters.
LARGEST_VALUE = 1 << 26

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
            if len(self._text) - self._at > LARGEST_VALUE or not self._more():
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
