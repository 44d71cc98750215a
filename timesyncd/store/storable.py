"""What a row of history may hold. A node makes its rows so, and a hub takes no others: one would hold up all that come after it."""

from __future__ import annotations

import json
from typing import Any

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.messages.fleet import CloudEvent, HistoryRow, Rollup, Summary

MOST_QUANTITIES = 32
#: Node, source and quantity are one key, and so are node and id of an event: an index of PostgreSQL takes no longer one.
MOST_KEY_CHARACTERS = 128
MOST_CHARACTERS = 1_024
MOST_DATA_BYTES = 131_072


def storable(row: HistoryRow) -> HistoryRow:
    """As much of it as a hub takes: that it happened is kept, of an event too large the data stay behind."""
    event = None if row.event is None else _storable_event(row.event)
    return row.model_copy(update={"realtime_ns": max(0, row.realtime_ns), "event": event})


def check(row: HistoryRow) -> None:
    """Raises Malformed when no node would say this."""
    _require(row.realtime_ns >= 0, f"row {row.sequence} is before 1970")
    if row.rollup is not None:
        _check_rollup(row.sequence, row.rollup)
    if row.event is not None:
        _check_event(row.sequence, row.event)


def _storable_event(event: CloudEvent) -> CloudEvent:
    size = _json_bytes(event.data)
    fits = size is not None and size <= MOST_DATA_BYTES
    return event.model_copy(
        update={
            "id": _cut(event.id, MOST_KEY_CHARACTERS),
            "type": _cut(event.type, MOST_CHARACTERS),
            "time": _cut(event.time, MOST_CHARACTERS),
            "subject": event.subject and _cut(event.subject, MOST_CHARACTERS),
            "data": event.data if fits else {"omitted_bytes": size},
        }
    )


def _check_rollup(sequence: int, what: Rollup) -> None:
    on_time = what.begins_realtime_ns >= 0 and what.begins_realtime_ns % (what.span_s * NS_PER_S) == 0
    _require(on_time, f"row {sequence} begins at no whole {what.span_s} s")
    _require(0 < len(what.quantities) <= MOST_QUANTITIES, f"row {sequence} has {len(what.quantities)} quantities")
    texts = (what.source, *what.quantities)
    _require(all(_is_text(text, MOST_KEY_CHARACTERS) for text in texts), f"row {sequence} has no proper names")
    _require(all(map(_is_summary, what.quantities.values())), f"row {sequence} is of no possible values")


def _check_event(sequence: int, what: CloudEvent) -> None:
    texts = (what.type, what.time, what.subject or "-")
    proper = _is_text(what.id, MOST_KEY_CHARACTERS) and all(_is_text(text, MOST_CHARACTERS) for text in texts)
    _require(proper, f"row {sequence} has no proper names")
    size = _json_bytes(what.data)
    _require(size is not None, f"row {sequence} has data that are not JSON")
    _require((size or 0) <= MOST_DATA_BYTES, f"row {sequence} has {size} bytes of data")


def _json_bytes(data: dict[str, Any]) -> int | None:
    """None: it cannot be written as JSON."""
    try:
        return len(json.dumps(data, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        return None


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace").decode().replace("\0", "?")[:most] or "-"


def _is_text(text: str, most: int) -> bool:
    """PostgreSQL takes no NUL."""
    return 0 < len(text) <= most and "\0" not in text


def _is_summary(what: Summary) -> bool:
    return what.minimum <= what.p50 <= what.p99 <= what.maximum and what.minimum <= what.mean <= what.maximum


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Malformed(otherwise)
