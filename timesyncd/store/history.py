"""Questions to the store. Each reads on a connection of its own, beside the daemon that writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Select, Table, select
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.store.database import reader_engine, store_error
from timesyncd.store.retention import source_names
from timesyncd.store.tables import clock_sample, gap, grandmaster_sample, source_event

Kind = Literal["clock", "grandmaster", "event", "gap"]
Record = dict[str, Any]
"""A row by column names, and its `kind`; the store's own `id` is left out."""

_SAMPLES: dict[Kind, Table] = {"clock": clock_sample, "grandmaster": grandmaster_sample}
_EVENTS: dict[Kind, Table] = {"event": source_event, "gap": gap}


def sources(path: Path) -> dict[str, Kind]:
    """Every source that the store holds, by name; "event" where it never gave a sample. Raises StoreError."""
    kinds: dict[str, Kind] = {}
    with _reading(path) as connection:
        for kind, table in (_EVENTS | _SAMPLES).items():
            if kind != "gap":
                kinds |= {name: kind for name in source_names(connection, table)}
    return dict(sorted(kinds.items()))


def samples(
    path: Path, source: str, since_realtime_ns: int, until_realtime_ns: int, limit: int | None = None
) -> Iterator[Record]:
    """
    The samples of a clock source or a grandmaster in [since, until), oldest first; with a limit the newest so many.

    Raises StoreError.
    """
    with _reading(path) as connection:
        for kind, table in _SAMPLES.items():
            rows = _span(table, source, since_realtime_ns, until_realtime_ns)
            if limit is not None:
                newest = rows.order_by(None).order_by(table.c.realtime_ns.desc(), table.c.id.desc()).limit(limit)
                rows = select(newest.subquery()).order_by("realtime_ns", "id")
            yield from _records(connection, kind, rows)


def events(path: Path, source: str, since_realtime_ns: int, until_realtime_ns: int) -> Iterator[Record]:
    """When a source began to give no samples and why, when it gave them again, and what was not stored. Raises StoreError."""
    with _reading(path) as connection:
        found = [
            record
            for kind, table in _EVENTS.items()
            for record in _records(connection, kind, _span(table, source, since_realtime_ns, until_realtime_ns))
        ]
    yield from sorted(found, key=lambda record: int(record["realtime_ns"]))


def _span(table: Table, source: str, since_ns: int, until_ns: int) -> Select[Any]:
    time = table.c.realtime_ns
    return select(table).where(table.c.source == source, time >= since_ns, time < until_ns).order_by(time, table.c.id)


def _records(connection: Connection, kind: Kind, rows: Select[Any]) -> Iterator[Record]:
    for row in connection.execution_options(yield_per=1_000).execute(rows).mappings():
        record = {"kind": kind, **row}
        del record["id"]
        yield record


@contextmanager
def _reading(path: Path) -> Iterator[Connection]:
    engine = reader_engine(path)
    try:
        with engine.connect() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise store_error(path, error) from error
    finally:
        engine.dispose()
