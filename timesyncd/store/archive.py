"""
What a hub keeps of its nodes' histories: each row once, in order, and how far it has each node's.

What a row of history may hold. A node makes its rows so, and a hub takes no others: one would hold up all that come after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, Insert, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.messages.fleet import CloudEvent, HistoryBatch, HistoryRow, Rollup, Summary
from timesyncd.store.tables import event, received, rollup

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


#: On the average since its stream began: far more than any node makes. A larger number is an error, and once believed would
#: shut its node out.
MOST_ROWS_PER_S = 100
#: A stream began in the past. A node's clock and the hub's may differ a little.
MOST_AHEAD_S = 86_400

Values = dict[str, object]


@dataclass(frozen=True, slots=True)
class Progress:
    """A hub has the node's rows of this stream up to `stored_up_to`, all but `lost` of them."""

    node: str
    stream: int
    stored_up_to: int
    lost: int


def progress(connection: Connection, *nodes: str) -> dict[str, Progress]:
    """How far the history of each of these nodes, or of all, is stored, by its name."""
    rows = select(received.c.node, received.c.stream, received.c.stored_up_to, received.c.lost)
    chosen = rows.where(received.c.node.in_(nodes)) if nodes else rows
    return {row.node: Progress(*row) for row in connection.execute(chosen)}


def store(
    connection: Connection, batch: HistoryBatch, known: Progress | None, own_node: str, now_realtime_ns: int
) -> Progress:
    """
    Store what follows without a hole on what is `known` of the batch's node, in the caller's transaction; returns what is known then.

    What is stored already, what comes after a hole, and an older stream change nothing. What lies below the batch's floor
    and was never stored is lost, and counted. Raises Malformed, having stored nothing, when no node would say this.
    """
    latest_s = now_realtime_ns // NS_PER_S + MOST_AHEAD_S
    _check(batch, own_node, latest_s)
    if known is not None and batch.stream < known.stream <= latest_s:
        return known
    now, fresh = _follow(batch, known)
    _insert(connection, rollup, (values for row in fresh for values in _rollup_values(batch.node, row.rollup)))
    _insert(connection, event, (_event_values(batch, row, row.event) for row in fresh if row.event))
    if now != known:
        connection.execute(_replace_progress(connection.dialect.name), asdict(now))
    return now


def _follow(batch: HistoryBatch, known: Progress | None) -> tuple[Progress, list[HistoryRow]]:
    """The progress that the batch makes, and those of its rows that are news."""
    before = known if known and known.stream == batch.stream else Progress(batch.node, batch.stream, 0, 0)
    reached = max(before.stored_up_to, batch.floor - 1)
    fresh = [row for row in batch.rows if row.sequence > reached]
    if fresh and fresh[0].sequence != reached + 1:
        fresh = []
    lost = before.lost + reached - before.stored_up_to
    return Progress(batch.node, batch.stream, reached + len(fresh), lost), fresh


def _check(batch: HistoryBatch, own_node: str, latest_s: int) -> None:
    if batch.node == own_node:
        raise Malformed(f"history of {own_node}, which is this node itself")
    try:
        _check_numbers(batch, latest_s)
        for row in batch.rows:
            check(row)
    except Malformed as error:
        raise Malformed(f"history of {batch.node}: {error}") from error


def _check_numbers(batch: HistoryBatch, latest_s: int) -> None:
    first, last = batch.rows[0].sequence, batch.rows[-1].sequence
    _require(all(b.sequence == a.sequence + 1 for a, b in pairwise(batch.rows)), "its rows are not in order")
    _require(batch.floor <= first, f"row {first} below its floor {batch.floor}")
    _require(batch.stream <= latest_s, f"its stream {batch.stream} begins in the future")
    _require(
        last <= (latest_s - batch.stream) * MOST_ROWS_PER_S, f"row {last} of a stream that began at {batch.stream}"
    )


def _rollup_values(node: str, what: Rollup | None) -> Iterable[Values]:
    if what is None:
        return
    key: Values = {"node": node, "source": what.source, "span_s": what.span_s, "realtime_ns": what.begins_realtime_ns}
    for quantity, summary in what.quantities.items():
        yield {**key, "quantity": quantity, **summary.__dict__}


def _event_values(batch: HistoryBatch, row: HistoryRow, what: CloudEvent) -> Values:
    key: Values = {"node": batch.node, "stream": batch.stream, "sequence": row.sequence, "realtime_ns": row.realtime_ns}
    said: Values = {"type": what.type, "subject": what.subject, "time": what.time, "data": what.data}
    return {**key, "event_id": what.id, **said}


def _insert(connection: Connection, table: Table, values: Iterable[Values]) -> None:
    """What is there already stays: a row whose confirmation was lost comes again, and a new stream may begin with what an old one had."""
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
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
