"""
The node's rows (roll-ups and events) that its hubs have not confirmed yet, numbered without a hole.

Every function is one step of the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError
from sqlalchemy import Connection, String, cast, delete, func, insert, select, update

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.messages.fleet import CloudEvent, HistoryRow, Rollup
from timesyncd.store.archive import storable
from timesyncd.store.index_scans import local_node
from timesyncd.store.intact import intact
from timesyncd.store.tables import event, outbox, outbox_counter

_CHUNK_ROWS = 100


@dataclass(frozen=True, slots=True)
class OutboxStream:
    """`stream` is when this outbox began, in Unix seconds; `next_sequence` is the sequence number of the next row."""

    stream: int
    next_sequence: int


@dataclass(frozen=True, slots=True)
class OutboxPage:
    """
    Some rows in order, and the sequence numbers of the `unreadable` rows among them. The outbox holds the rows from `floor` up to,
    not including, `next_sequence`; both are equal when it is empty.
    """

    stream: int
    floor: int
    next_sequence: int
    rows: list[HistoryRow]
    unreadable: list[int] = field(default_factory=list)


def open_stream(connection: Connection, now_realtime_ns: int) -> OutboxStream:
    """The stream of this store, which begins at the first call. Call it before `append` and `page`."""
    if (stream := _stream(connection)) is None:
        stream = begin_stream(connection, now_realtime_ns)
    return stream


def begin_stream(connection: Connection, now_realtime_ns: int) -> OutboxStream:
    """
    Begin a stream above every one that this store knows of its node; its first rows are those that wait.

    Needed where the counter was lost or may be too old: a sequence number that is given twice is a row that no hub takes.
    """
    number = max(now_realtime_ns // NS_PER_S, _last_stream(connection) + 1)
    waiting: list[HistoryRow] = []
    while chunk := _readable(connection, waiting[-1].sequence if waiting else 0, _CHUNK_ROWS)[0]:
        waiting += chunk
    connection.execute(delete(outbox))
    connection.execute(delete(outbox_counter))
    connection.execute(insert(outbox_counter).values(stream=number, next_sequence=1))
    append(connection, [(row.realtime_ns, what) for row in waiting if (what := row.rollup or row.event) is not None])
    return _open_stream(connection)


def _last_stream(connection: Connection) -> int:
    """0 if there is none."""
    known = _stream(connection)
    of_node = select(func.max(event.c.stream)).where(event.c.node == local_node(connection), intact(event.c.stream))
    return max(0 if known is None else known.stream, connection.scalar(of_node) or 0)


def append(connection: Connection, rows: Sequence[tuple[int, Rollup | CloudEvent]]) -> list[int]:
    """Append rows, each with its CLOCK_REALTIME in ns; returns their sequence numbers. Raises StoreError before `open_stream`."""
    if not rows:
        return []
    first = _open_stream(connection).next_sequence
    new = [_row(sequence, realtime_ns, what) for sequence, (realtime_ns, what) in enumerate(rows, first)]
    connection.execute(update(outbox_counter).values(next_sequence=first + len(new)))
    connection.execute(insert(outbox), [_column_values(row) for row in new])
    return [row.sequence for row in new]


def page(connection: Connection, after: int, limit: int) -> OutboxPage:
    """
    The `limit` lowest rows above `after`. Rows that cannot be parsed are skipped and count as lost. Raises StoreError before
    `open_stream`.

    The rows are read last: the floor, read before, cannot be above them even if the writer appends meanwhile.
    """
    stream = _open_stream(connection)
    lowest, _ = _readable(connection, 0, 1)
    rows, unreadable = _readable(connection, after, limit)
    floor = lowest[0].sequence if lowest else stream.next_sequence
    next_sequence = max(stream.next_sequence, rows[-1].sequence + 1) if rows else stream.next_sequence
    return OutboxPage(stream.stream, floor, next_sequence, rows, unreadable)


def _readable(connection: Connection, after: int, limit: int) -> tuple[list[HistoryRow], list[int]]:
    """At most `limit` rows, at least one if there is any, and the sequence numbers of the rows that cannot be parsed."""
    rows: list[HistoryRow] = []
    unreadable: list[int] = []
    in_order = select(outbox.c.sequence, cast(outbox.c.row, String)).order_by(outbox.c.sequence)
    in_order = in_order.where(intact(outbox.c.sequence, outbox.c.realtime_ns))
    chosen = in_order.limit(max(limit, _CHUNK_ROWS))
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
    """Delete the rows up to this sequence number: every hub has stored them."""
    connection.execute(delete(outbox).where(outbox.c.sequence <= up_to))


def trim(connection: Connection, before_realtime_ns: int, max_rows: int) -> int:
    """
    Delete the oldest rows: those before `before_realtime_ns`, and all but `max_rows`; returns the number of rows lost.

    Rows above a younger row are kept whatever their time is, so that no hole arises.
    """
    next_sequence = _open_stream(connection).next_sequence
    young = select(outbox.c.sequence).where(outbox.c.realtime_ns >= before_realtime_ns).order_by(outbox.c.sequence)
    young = young.where(intact(outbox.c.sequence, outbox.c.realtime_ns))
    first_young = connection.scalar(young.limit(1)) or next_sequence
    keep_from = max(first_young, next_sequence - max_rows)
    return connection.execute(delete(outbox).where(outbox.c.sequence < keep_from)).rowcount


def _stream(connection: Connection) -> OutboxStream | None:
    columns = outbox_counter.c
    row = connection.execute(select(columns.stream, columns.next_sequence).where(intact(*columns))).first()
    return None if row is None else OutboxStream(row.stream, row.next_sequence)


def _open_stream(connection: Connection) -> OutboxStream:
    if (stream := _stream(connection)) is None:
        raise StoreError("outbox: no stream is open; start the daemon with this store once")
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
