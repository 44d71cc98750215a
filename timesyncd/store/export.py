"""Exports a source's rows to CSV or Parquet, in chunks, so that a year of rows needs no more memory than an hour."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, Protocol

from sqlalchemy import BigInteger, Boolean, Column, Connection, Select, Table, func, select

from timesyncd.client.files import replacing
from timesyncd.errors import ConfigError, StoreError
from timesyncd.store.engine import StoreLocation, reading
from timesyncd.store.index_scans import local_node
from timesyncd.store.intact import intact
from timesyncd.store.rollups import HOUR_S, MINUTE_S
from timesyncd.store.rows import stored_columns
from timesyncd.store.tables import (
    clock_sample,
    grandmaster_sample,
    kernel_sample,
    phc_sample,
    rollup,
    utc_sample,
)

ExportSpan = Literal["raw", "minute", "hour"]
Format = Literal["csv", "parquet"]

_CHUNK_ROWS = 10_000
_RAW = (clock_sample, phc_sample, utc_sample, kernel_sample, grandmaster_sample)
_SPANS = {"minute": MINUTE_S, "hour": HOUR_S}


class _Sink(Protocol):
    def write(self, rows: Sequence[Sequence[Any]]) -> None: ...

    def close(self) -> None: ...


def export(
    location: StoreLocation,
    source: str,
    span: ExportSpan,
    since_ns: int,
    until_ns: int,
    path: Path,
    format: Format,
    on_progress: Callable[[int, int], None],
    overwrite: bool = False,
    node: str | None = None,
) -> int:
    """
    Write a source's rows in [since, until), oldest first, with all columns; returns their number. Lists and objects are JSON text.

    Roll-ups (`span` minute or hour) are those of `node`, or of the store's own node if it is None. `on_progress` receives the rows
    written and their total. The file gets its name only when it is complete. Raises StoreError; ConfigError if the file exists or
    pyarrow is missing.
    """
    if os.path.lexists(path) and not overwrite:
        raise ConfigError(f"{path}: the file exists; --force replaces it")
    try:
        with replacing(path) as partial, reading(location) as connection:
            columns, rows = _rows(connection, source, span, node, since_ns, until_ns)
            total = connection.scalar(select(func.count()).select_from(rows.order_by(None).subquery())) or 0
            with closing(_sink(partial, format, columns)) as sink, closing(_chunks(connection, rows)) as chunks:
                for done, chunk in chunks:
                    sink.write(chunk)
                    on_progress(done, total)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    return total


def _rows(
    connection: Connection, source: str, span: ExportSpan, node: str | None, since_ns: int, until_ns: int
) -> tuple[Sequence[Column[Any]], Select[Any]]:
    """Raises StoreError if the store has no such source."""
    if span == "raw":
        table = _raw_table(connection, source)
        of_source = [table.c.source == source]
    else:
        table = rollup
        of_source = [rollup.c.node == (local_node(connection) if node is None else node), rollup.c.source == source]
        of_source.append(rollup.c.span_s == _SPANS[span])
    at = table.c.realtime_ns
    columns = stored_columns(table)
    order = [at, table.c.quantity if table is rollup else table.c.id]
    return columns, select(*columns).where(*of_source, at >= since_ns, at < until_ns, intact(*table.c)).order_by(*order)


def _raw_table(connection: Connection, source: str) -> Table:
    for table in _RAW:
        if connection.scalar(select(table.c.id).where(table.c.source == source).limit(1)) is not None:
            return table
    raise StoreError(f"the store has no samples of source {source!r}")


def _chunks(connection: Connection, rows: Select[Any]) -> Generator[tuple[int, list[list[Any]]], None, None]:
    """Chunks of rows, each with the number of rows up to its end."""
    done = 0
    with connection.execute(rows, execution_options={"yield_per": _CHUNK_ROWS}) as result:
        for chunk in result.partitions():
            done += len(chunk)
            yield done, [[_plain(value) for value in row] for row in chunk]


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _sink(path: Path, format: Format, columns: Sequence[Column[Any]]) -> _Sink:
    return _Csv(path, columns) if format == "csv" else _Parquet(path, columns)


class _Csv:
    """Flags are 0 and 1; NULL is empty."""

    def __init__(self, path: Path, columns: Sequence[Column[Any]]) -> None:
        self._file = path.open("w", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(column.name for column in columns)

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        self._writer.writerows([int(value) if isinstance(value, bool) else value for value in row] for row in rows)

    def close(self) -> None:
        self._file.close()


class _Parquet:
    """64-bit integers, text and booleans; each chunk is a row group."""

    def __init__(self, path: Path, columns: Sequence[Column[Any]]) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ConfigError(
                "format parquet: pyarrow is not installed: in timesyncd's source folder, pip install '.[parquet]'"
            ) from error
        self._schema = pyarrow.schema([(column.name, _arrow_type(pyarrow, column)) for column in columns])
        self._make = pyarrow.RecordBatch.from_arrays
        self._array = pyarrow.array
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema)

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        columns = zip(*rows, strict=True)
        arrays = [self._array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_batch(self._make(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _arrow_type(pyarrow: Any, column: Column[Any]) -> Any:
    match column.type:
        case Boolean():
            return pyarrow.bool_()
        case BigInteger():
            return pyarrow.int64()
        case _:
            return pyarrow.string()
