"""What the writer says to the database."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from sqlalchemy import Connection, Executable, Table, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from timesyncd.clocks import NS_PER_S
from timesyncd.store import tables
from timesyncd.store.backlog import Batch, Gap
from timesyncd.store.database import writer_engine
from timesyncd.store.rows import Row


def insert_batch(connection: Connection, batch: Batch) -> None:
    rows: dict[Table, list[Row]] = defaultdict(list)
    for entry in batch.entries:
        rows[entry.table] += entry.rows()
    rows[tables.gap] += [_gap_row(gap) for gap in batch.gaps]
    for table, new in rows.items():
        if new:
            connection.execute(_insert(table), new)


def _insert(table: Table) -> Executable:
    """A finding replaces what was stored of it. A time error that is stored already stays: it comes again with each day's file."""
    if table is tables.finding:
        return insert(table).prefix_with("OR REPLACE")
    if table is tables.time_error:
        return sqlite_insert(table).on_conflict_do_nothing()
    return insert(table)


def _gap_row(gap: Gap) -> Row:
    return {
        "source": gap.source,
        "reason": "the store fell behind",
        "realtime_ns": gap.from_realtime_ns,
        "until_realtime_ns": gap.until_realtime_ns,
        "rows_lost": gap.rows_lost,
    }


def end_findings(connection: Connection, now_ns: int) -> None:
    """What stood when the daemon last ended is over: what still stands is raised anew."""
    stands = tables.finding.c.until_realtime_ns.is_(None)
    connection.execute(update(tables.finding).where(stands).values(until_realtime_ns=now_ns))


def next_incarnation(path: Path, node: str, now_ns: int) -> int:
    """Committed with an fsync: after a power cut the same number must not come again."""
    engine = writer_engine(path, synchronous="FULL")
    table = tables.incarnation
    try:
        with engine.begin() as connection:
            last = connection.scalar(select(table.c.incarnation).where(table.c.node == node))
            number = max(now_ns // NS_PER_S, 0 if last is None else last + 1)
            connection.execute(delete(table).where(table.c.node == node))
            connection.execute(insert(table).values(node=node, incarnation=number, started_realtime_ns=now_ns))
    finally:
        engine.dispose()
    return number
