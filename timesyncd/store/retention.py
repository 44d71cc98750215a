"""Old rows go in small steps between two batches, so that no batch waits long."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, Table, delete, func, select

from timesyncd.store.tables import TIMED, finding

STEP_ROWS = 500


def delete_step(connection: Connection, before_realtime_ns: int) -> int:
    """Delete at most STEP_ROWS rows that are older; returns how many. Fewer than STEP_ROWS: none is left."""
    left = STEP_ROWS
    for table in TIMED:
        for source in source_names(connection, table):
            left -= _delete_oldest(connection, table, source, before_realtime_ns, left)
            if left == 0:
                return STEP_ROWS
    connection.execute(delete(finding).where(finding.c.until_realtime_ns < before_realtime_ns))
    return STEP_ROWS - left


def source_names(connection: Connection, table: Table) -> Iterator[str]:
    """Every source of a table: one seek of its index each, where DISTINCT would read the whole of it."""
    column = table.c.source
    name = connection.scalar(select(func.min(column)))
    while name is not None:
        yield name
        name = connection.scalar(select(func.min(column)).where(column > name))


def _delete_oldest(connection: Connection, table: Table, source: str, before_realtime_ns: int, limit: int) -> int:
    oldest = (
        select(table.c.id)
        .where(table.c.source == source, table.c.realtime_ns < before_realtime_ns)
        .order_by(table.c.realtime_ns)
        .limit(limit)
    )
    return connection.execute(delete(table).where(table.c.id.in_(oldest))).rowcount
