"""What a table knows, by few seeks of its index, where DISTINCT would read the whole of it."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Column, Connection, Table, func, select, tuple_

from timesyncd.store.tables import incarnation


def source_names(connection: Connection, table: Table) -> Iterator[str]:
    """Every source of a table."""
    column = table.c.source
    name = connection.scalar(select(func.min(column)))
    while name is not None:
        yield name
        name = connection.scalar(select(func.min(column)).where(column > name))


def own_node(connection: Connection) -> str | None:
    """Whose store this is: the name under which its daemon was last started. None: none ever was."""
    last = select(incarnation.c.node).order_by(incarnation.c.started_realtime_ns.desc()).limit(1)
    return connection.scalar(last)


def distinct_keys(connection: Connection, *columns: Column[str], of: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every value of the columns, which begin an index, in their order; only those that begin with `of`."""
    given = [column == value for column, value in zip(columns, of, strict=False)]
    first = select(*columns).where(*given).order_by(*columns).limit(1)
    row = connection.execute(first).first()
    while row is not None:
        yield tuple(row)
        row = connection.execute(first.where(tuple_(*columns) > tuple(row))).first()
