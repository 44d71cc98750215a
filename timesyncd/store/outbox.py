"""
What a node has made and its hubs have not yet stored: rows numbered without a hole, taken from below, put on top.

Every function is one step of the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError
from sqlalchemy import Connection, String, cast, delete, insert, select, update

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.messages.fleet import CloudEvent, HistoryRow, Rollup
from timesyncd.store.archive import storable
from timesyncd.store.tables import outbox, outbox_counter

_READ_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Stream:
    """`stream` is when this outbox began, in Unix seconds; `next_sequence` the number of the row that comes next."""

    stream: int
    next_sequence: int


@dataclass(frozen=True, slots=True)
class Page:
    """
    Some rows in their order, and the numbers of those near them that are `unreadable`. What the outbox holds goes from `floor` to
    below `next_sequence`; both are equal when it is empty.
    """

    stream: int
    floor: int
    next_sequence: int
    rows: list[HistoryRow]
    unreadable: list[int] = field(default_factory=list)


def open_stream(connection: Connection, now_realtime_ns: int) -> Stream:
    """Begins the stream on first use. Before anything is appended."""
    if (stream := _stream(connection)) is None:
        stream = Stream(now_realtime_ns // NS_PER_S, 1)
        connection.execute(insert(outbox_counter).values(stream=stream.stream, next_sequence=stream.next_sequence))
    return stream


def append(connection: Connection, rows: Sequence[tuple[int, Rollup | CloudEvent]]) -> list[int]:
    """Each with its CLOCK_REALTIME in ns; returns the numbers that they were given. Raises StoreError before `open_stream`."""
    if not rows:
        return []
    first = _opened(connection).next_sequence
    new = [_row(sequence, realtime_ns, what) for sequence, (realtime_ns, what) in enumerate(rows, first)]
    connection.execute(update(outbox_counter).values(next_sequence=first + len(new)))
    connection.execute(insert(outbox), [_column_values(row) for row in new])
    return [row.sequence for row in new]


def page(connection: Connection, after: int, limit: int) -> Page:
    """
    The `limit` lowest rows above `after`. What cannot be read is lost: it is as if it were not there. Raises StoreError before
    `open_stream`.

    The rows are read last: where others write meanwhile, the floor must not lie above them.
    """
    stream = _opened(connection)
    lowest, _ = _readable(connection, 0, 1)
    rows, unreadable = _readable(connection, after, limit)
    floor = lowest[0].sequence if lowest else stream.next_sequence
    next_sequence = max(stream.next_sequence, rows[-1].sequence + 1) if rows else stream.next_sequence
    return Page(stream.stream, floor, next_sequence, rows, unreadable)


def _readable(connection: Connection, after: int, limit: int) -> tuple[list[HistoryRow], list[int]]:
    """At most `limit` rows, one at least if there is any; and the numbers of those passed over."""
    rows: list[HistoryRow] = []
    unreadable: list[int] = []
    in_order = select(outbox.c.sequence, cast(outbox.c.row, String)).order_by(outbox.c.sequence)
    chosen = in_order.limit(max(limit, _READ_AT_ONCE))
    while not rows and (found := connection.execute(chosen.where(outbox.c.sequence > after)).all()):
        for number, text in found:
            if len(rows) == limit:
                break
            if (row := _read(number, text)) is None:
                unreadable.append(number)
            else:
                rows.append(row)
        after = found[-1].sequence
    return rows, unreadable


def cut(connection: Connection, up_to: int) -> None:
    """Forget the rows up to this one: they are stored elsewhere."""
    connection.execute(delete(outbox).where(outbox.c.sequence <= up_to))


def trim(connection: Connection, before_realtime_ns: int, most_rows: int) -> int:
    """
    Forget from below what is older, and what is more than `most_rows`; returns how many rows are lost by it.

    A young row keeps those above it, however old they say that they are: no hole may come into being.
    """
    next_sequence = _opened(connection).next_sequence
    young = select(outbox.c.sequence).where(outbox.c.realtime_ns >= before_realtime_ns).order_by(outbox.c.sequence)
    first_young = connection.scalar(young.limit(1)) or next_sequence
    keep_from = max(first_young, next_sequence - most_rows)
    return connection.execute(delete(outbox).where(outbox.c.sequence < keep_from)).rowcount


def _stream(connection: Connection) -> Stream | None:
    row = connection.execute(select(outbox_counter.c.stream, outbox_counter.c.next_sequence)).first()
    return None if row is None else Stream(row.stream, row.next_sequence)


def _opened(connection: Connection) -> Stream:
    if (stream := _stream(connection)) is None:
        raise StoreError("outbox: its stream was never opened")
    return stream


def _row(sequence: int, realtime_ns: int, what: Rollup | CloudEvent) -> HistoryRow:
    if isinstance(what, Rollup):
        return storable(HistoryRow(sequence=sequence, realtime_ns=realtime_ns, rollup=what))
    return storable(HistoryRow(sequence=sequence, realtime_ns=realtime_ns, event=what))


def _read(sequence: int, text: str | None) -> HistoryRow | None:
    try:
        row = HistoryRow.model_validate_json(text or "")
    except ValidationError:
        return None
    return row if row.sequence == sequence else None


def _column_values(row: HistoryRow) -> dict[str, object]:
    json_row = row.model_dump(mode="json", exclude_none=True)
    return {"sequence": row.sequence, "realtime_ns": row.realtime_ns, "row": json_row}
