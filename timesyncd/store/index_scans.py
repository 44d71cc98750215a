"""The distinct values of a table's indexed columns, by one index seek for each, where DISTINCT would read the whole table."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Column, ColumnElement, Connection, Table, func, select, tuple_

from timesyncd.store.intact import intact, is_name
from timesyncd.store.tables import incarnation


def source_names(connection: Connection, table: Table) -> Iterator[str]:
    """The name of every source in the table, in order."""
    column = table.c.source
    name = connection.scalar(select(func.min(column)).where(is_name(column)))
    while name is not None:
        yield name
        name = connection.scalar(select(func.min(column)).where(column > name, is_name(column)))


def local_node(connection: Connection) -> str | None:
    """The node whose daemon writes this store, by the name of its last start; None if no daemon has started with it."""
    last = (
        select(incarnation.c.node)
        .where(intact(*incarnation.c))
        .order_by(incarnation.c.started_realtime_ns.desc())
        .limit(1)
    )
    return connection.scalar(last)


def distinct_keys(connection: Connection, *columns: Column[str], of: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every distinct value of the columns, which must begin an index, in order; only those whose first values are `of`."""
    given: list[ColumnElement[bool]] = [column == value for column, value in zip(columns, of, strict=False)]
    given.append(is_name(*columns))
    first = select(*columns).where(*given).order_by(*columns).limit(1)
    row = connection.execute(first).first()
    while row is not None:
        yield tuple(row)
        row = connection.execute(first.where(tuple_(*columns) > tuple(row))).first()
