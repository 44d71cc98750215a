"""
The hub's archive of its nodes' histories: each row is stored once and in order, with the progress of each node.

A row must fit the limits below. A node cuts its rows to them, and a hub rejects a batch that exceeds them: such a row would block
all rows after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Insert, Table, select
from sqlalchemy.dialects import sqlite

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.messages.fleet import CloudEvent, HistoryBatch, HistoryRow, Rollup, Summary
from timesyncd.store.intact import intact
from timesyncd.store.tables import event, received, rollup

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

MAX_QUANTITIES = 32
#: (node, source, quantity) is one key, and so is (node, event id); an index entry of PostgreSQL cannot be longer.
MAX_KEY_CHARACTERS = 128
MAX_CHARACTERS = 1_024
MAX_DATA_BYTES = 131_072


def storable(row: HistoryRow) -> HistoryRow:
    """The row within the hub's limits: an event that is too large keeps its id, type and time and loses its data."""
    event = None if row.event is None else _storable_event(row.event)
    return row.model_copy(update={"realtime_ns": max(0, row.realtime_ns), "event": event})


def check(row: HistoryRow) -> None:
    """Raises Malformed for a row that no node makes."""
    _require(row.realtime_ns >= 0, f"row {row.sequence}: realtime_ns {row.realtime_ns} is negative")
    if row.rollup is not None:
        _check_rollup(row.sequence, row.rollup)
    if row.event is not None:
        _check_event(row.sequence, row.event)


def _storable_event(event: CloudEvent) -> CloudEvent:
    size = _json_bytes(event.data)
    fits = size is not None and size <= MAX_DATA_BYTES
    return event.model_copy(
        update={
            "id": _cut(event.id, MAX_KEY_CHARACTERS),
            "type": _cut(event.type, MAX_CHARACTERS),
            "time": _cut(event.time, MAX_CHARACTERS),
            "subject": event.subject and _cut(event.subject, MAX_CHARACTERS),
            "data": event.data if fits else {"omitted_bytes": size},
        }
    )


def _check_rollup(sequence: int, what: Rollup) -> None:
    on_time = what.begins_realtime_ns >= 0 and what.begins_realtime_ns % (what.span_s * NS_PER_S) == 0
    _require(on_time, f"row {sequence}: the roll-up begins at no multiple of its span of {what.span_s} s")
    count = len(what.quantities)
    _require(0 < count <= MAX_QUANTITIES, f"row {sequence}: {count} quantities; allowed: 1 to {MAX_QUANTITIES}")
    names = (what.source, *what.quantities)
    allowed = f"1 to {MAX_KEY_CHARACTERS} characters without NUL"
    _require(all(_is_text(name, MAX_KEY_CHARACTERS) for name in names), f"row {sequence}: a name is not {allowed}")
    _require(
        all(map(_is_ordered, what.quantities.values())), f"row {sequence}: minimum, mean and maximum are out of order"
    )


def _check_event(sequence: int, what: CloudEvent) -> None:
    texts = (what.type, what.time, what.subject or "-")
    is_valid = _is_text(what.id, MAX_KEY_CHARACTERS) and all(_is_text(text, MAX_CHARACTERS) for text in texts)
    _require(is_valid, f"row {sequence}: the event's id, type, time or subject is empty, too long or contains NUL")
    size = _json_bytes(what.data)
    _require(size is not None, f"row {sequence}: the event's data cannot be written as JSON")
    _require((size or 0) <= MAX_DATA_BYTES, f"row {sequence}: {size} bytes of data; allowed: {MAX_DATA_BYTES}")


def _json_bytes(data: dict[str, Any]) -> int | None:
    """The size of the data as JSON; None if they cannot be written as JSON."""
    try:
        return len(json.dumps(data, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        return None


def _cut(text: str, limit: int) -> str:
    return text.encode(errors="replace").decode().replace("\0", "?")[:limit] or "-"


def _is_text(text: str, limit: int) -> bool:
    """PostgreSQL stores no NUL."""
    return 0 < len(text) <= limit and "\0" not in text


def _is_ordered(what: Summary) -> bool:
    return what.minimum <= what.p50 <= what.p99 <= what.maximum and what.minimum <= what.mean <= what.maximum


def _require(is_valid: bool, problem: str) -> None:
    if not is_valid:
        raise Malformed(problem)


#: Mean rate since the stream began, far above any node's. A larger sequence number is an error; accepting it would make the hub
#: ignore all later rows of this node.
MAX_ROWS_PER_S = 100
#: How far a stream may begin in the hub's future, since the two clocks may differ.
MAX_AHEAD_S = 86_400

Values = dict[str, object]


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    """The hub has stored the node's rows of this stream up to sequence `stored_up_to`, except `lost` of them."""

    node: str
    stream: int
    stored_up_to: int
    lost: int


def progress(connection: Connection, *nodes: str) -> dict[str, ArchiveProgress]:
    """The progress of each of these nodes, or of all nodes if none is given, by node name."""
    rows = select(received.c.node, received.c.stream, received.c.stored_up_to, received.c.lost)
    rows = rows.where(intact(*received.c))
    chosen = rows.where(received.c.node.in_(nodes)) if nodes else rows
    return {row.node: ArchiveProgress(*row) for row in connection.execute(chosen)}


def store(
    connection: Connection, batch: HistoryBatch, known: ArchiveProgress | None, local_node: str, now_realtime_ns: int
) -> ArchiveProgress:
    """
    Store the rows that continue the node's progress `known` without a hole, in the caller's transaction; returns the new progress.

    Rows that are stored already, rows after a hole and rows of an older stream change nothing. Rows below the batch's floor that
    were never stored are counted as lost. Raises Malformed, having stored nothing, for a batch that no node makes.
    """
    latest_s = now_realtime_ns // NS_PER_S + MAX_AHEAD_S
    _check(batch, local_node, latest_s)
    if known is not None and batch.stream < known.stream <= latest_s:
        return known
    now, fresh = _follow(batch, known)
    _insert(connection, rollup, (values for row in fresh for values in _rollup_values(batch.node, row.rollup)))
    _insert(connection, event, (_event_values(batch, row, row.event) for row in fresh if row.event))
    if now != known:
        connection.execute(_replace_progress(connection.dialect.name), asdict(now))
    return now


def _follow(batch: HistoryBatch, known: ArchiveProgress | None) -> tuple[ArchiveProgress, list[HistoryRow]]:
    """The node's progress after this batch, and the rows of the batch that are new."""
    before = known if known and known.stream == batch.stream else ArchiveProgress(batch.node, batch.stream, 0, 0)
    reached = max(before.stored_up_to, batch.floor - 1)
    fresh = [row for row in batch.rows if row.sequence > reached]
    if fresh and fresh[0].sequence != reached + 1:
        fresh = []
    lost = before.lost + reached - before.stored_up_to
    return ArchiveProgress(batch.node, batch.stream, reached + len(fresh), lost), fresh


def _check(batch: HistoryBatch, local_node: str, latest_s: int) -> None:
    if batch.node == local_node:
        raise Malformed(
            f"history of {local_node}: rejected, since that is this node's own name; give each node its own name"
        )
    try:
        _check_numbers(batch, latest_s)
        for row in batch.rows:
            check(row)
    except Malformed as error:
        raise Malformed(f"history of {batch.node}: {error}") from error


def _check_numbers(batch: HistoryBatch, latest_s: int) -> None:
    first, last = batch.rows[0].sequence, batch.rows[-1].sequence
    in_order = all(after.sequence == before.sequence + 1 for before, after in pairwise(batch.rows))
    _require(in_order, "the sequence numbers of its rows are not consecutive")
    _require(batch.floor <= first, f"row {first} is below the batch's floor {batch.floor}")
    _require(batch.stream <= latest_s, f"stream {batch.stream} begins in the future; check the node's clock")
    highest = (latest_s - batch.stream) * MAX_ROWS_PER_S
    _require(last <= highest, f"row {last} exceeds {highest}, the most that stream {batch.stream} can have by now")


def _rollup_values(node: str, what: Rollup | None) -> Iterable[Values]:
    if what is None:
        return
    key: Values = {"node": node, "source": what.source, "span_s": what.span_s, "realtime_ns": what.begins_realtime_ns}
    for quantity, summary in what.quantities.items():
        yield {**key, "quantity": quantity, **summary.__dict__}


def _event_values(batch: HistoryBatch, row: HistoryRow, what: CloudEvent) -> Values:
    key: Values = {"node": batch.node, "stream": batch.stream, "sequence": row.sequence, "realtime_ns": row.realtime_ns}
    content: Values = {"type": what.type, "subject": what.subject, "time": what.time, "data": what.data}
    return {**key, "event_id": what.id, **content}


def _insert(connection: Connection, table: Table, values: Iterable[Values]) -> None:
    """A row that is stored already stays: a node repeats rows whose confirmation was lost, and a new stream may repeat old rows."""
    if new := list(values):
        connection.execute(_insert_new(connection.dialect.name, table), new)


@cache
def _insert_new(dialect: str, table: Table) -> Insert:
    return _insert_into(dialect, table).on_conflict_do_nothing()


@cache
def _replace_progress(dialect: str) -> Insert:
    statement = _insert_into(dialect, received)
    others = {name: statement.excluded[name] for name in ("stream", "stored_up_to", "lost")}
    return statement.on_conflict_do_update(index_elements=["node"], set_=others)


def _insert_into(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    if dialect != "postgresql":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # 2 MiB, which a store in a file need not take

    return postgresql.insert(table)
