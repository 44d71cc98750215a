"""What the writer says to the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from sqlalchemy import Connection, Dialect, Table, delete, insert, select, update

from timesyncd.clocks import NS_PER_S
from timesyncd.store import tables
from timesyncd.store.backlog import Batch, Gap
from timesyncd.store.engine import writer_engine
from timesyncd.store.place import Place
from timesyncd.store.rows import CLOCK_COLUMNS, EventEntry, Values, stored_columns


def insert_batch(connection: Connection, batch: Batch) -> None:
    """All of it but its events, which are numbered first."""
    rows: dict[Table, list[Values]] = defaultdict(list)
    for entry in batch.entries:
        if not isinstance(entry, EventEntry):
            rows[entry.table] += entry.values()
    if batch.gaps:
        rows[tables.gap] = [_gap_values(gap) for gap in batch.gaps]
    for table, new in rows.items():
        insert_values(connection, table, new)


def insert_values(connection: Connection, table: Table, rows: Sequence[Values]) -> None:
    """As the driver itself does it: SQLAlchemy's work on each row would take longer than the database's."""
    connection.exec_driver_sql(_insert_text(connection.dialect, table), list(rows))


@lru_cache(maxsize=32)  # each time a store is opened it has another dialect
def _insert_text(dialect: Dialect, table: Table) -> str:
    """
    A finding replaces what was stored of it. A time error or a roll-up that is stored already stays: the former comes again with
    each day's file.

    Both databases understand all of this.
    """
    quoted = dialect.identifier_preparer.quote
    names = [quoted(name) for name in _names(table)]
    marks = ["?" if dialect.paramstyle == "qmark" else "%s"] * len(names)
    text = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(marks)})"
    key = [quoted(column.name) for column in table.primary_key]
    if table is tables.finding:
        text += f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET "
        text += ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    elif table in (tables.time_error, tables.rollup):
        text += " ON CONFLICT DO NOTHING"
    return text


def _names(table: Table) -> tuple[str, ...]:
    """In the order in which an entry has its values."""
    return CLOCK_COLUMNS if table is tables.clock_sample else tuple(column.name for column in stored_columns(table))


def _gap_values(gap: Gap) -> Values:
    """In the order of the table's columns."""
    return gap.source, gap.reason, gap.from_realtime_ns, gap.until_realtime_ns, gap.rows_lost


def end_findings(connection: Connection, now_ns: int) -> None:
    """What stood when the daemon last ended is over: what still stands is raised anew."""
    stands = tables.finding.c.until_realtime_ns.is_(None)
    connection.execute(update(tables.finding).where(stands).values(until_realtime_ns=now_ns))


def next_incarnation(place: Place, node: str, now_ns: int) -> int:
    """On the disk when it is returned: after a power cut the same number must not come again."""
    engine = writer_engine(place, durable=True)
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
