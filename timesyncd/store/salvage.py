"""
Saves the readable rows of a damaged SQLite store into a new one, in short steps, newest rows first.

A damaged file gets another name and is never deleted. While its rows are copied, that name has `.salvage-`; afterwards `.damaged-`.
So a daemon that was stopped meanwhile goes on with it.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Engine, Table

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.store import outbox, tables
from timesyncd.store.engine import shm_of, wal_of
from timesyncd.store.intact import LENIENT_TEXT, storage_class

log = logging.getLogger(__name__)

_SALVAGE, _DAMAGED = ".salvage-", ".damaged-"
#: A disk that damages each file must not be filled with them.
MAX_SET_ASIDE = 5
#: Salvage ends where less is free: the new rows need the space.
MIN_FREE_BYTES = 64 * 2**20
_CHUNK_ROWS = 500
#: How many ids beyond the last readable row are tried where the table's end cannot be read.
_BEYOND_END = 50_000

#: Read at once: they are small, and the store cannot go on without them.
_FIRST = (tables.incarnation, tables.received, tables.finding, tables.outbox, tables.outbox_counter)
#: Then these, the small ones first. Roll-ups wait until all are read.
_THEN = (
    tables.rollup, tables.event, tables.gap, tables.source_event, tables.alarm_event, tables.kernel_sample, tables.phc_sample,
    tables.utc_sample, tables.grandmaster_sample, tables.time_error, tables.clock_sample,
)  # fmt: skip

Values = tuple[Any, ...]


def set_aside(path: Path, now_realtime_ns: int, kind: str = _SALVAGE) -> Path:
    """
    Rename the file and its log; returns the new name. An open connection goes on reading it. Raises OSError; StoreError where
    too many damaged files are there already.
    """
    known = [each for each in path.parent.glob(f"{path.name}{_DAMAGED}*") if not each.name.endswith(("-wal", "-shm"))]
    if kind == _SALVAGE and len(known) >= MAX_SET_ASIDE:
        raise StoreError(
            f"{path}: damaged again; {len(known)} damaged files are beside it: check the disk, and remove them"
        )
    stamp = f"{datetime.fromtimestamp(now_realtime_ns // NS_PER_S, UTC):%Y%m%dT%H%M%SZ}"
    names = (f"{path.name}{kind}{stamp}{f'-{number}' if number else ''}" for number in range(10_000))
    aside = next(each for name in names if not (each := path.with_name(name)).exists())
    _rename(path, aside)
    return aside


def _rename(path: Path, to: Path) -> None:
    for former, new in ((shm_of(path), shm_of(to)), (wal_of(path), wal_of(to)), (path, to)):
        with suppress(FileNotFoundError):
            os.replace(former, new)


def pending(path: Path) -> list[Path]:
    """The files set aside whose rows are not all copied yet, the newest first."""
    found = path.parent.glob(f"{path.name}{_SALVAGE}*")
    return sorted((each for each in found if not each.name.endswith(("-wal", "-shm", "-schema"))), reverse=True)


@dataclass(slots=True)
class SalvageReport:
    copied: int = 0
    left_out: int = 0
    why_ended: str | None = None


class Salvage:
    """
    The copying of one file that was set aside, into the store at `path`, which has its tables.

    `live` is the connection that had the file open, if any: it reads what is in its cache or in a log that was removed. Every
    method raises SQLAlchemyError for the new file; what cannot be read of the old one is left out.
    """

    def __init__(self, aside: Path, path: Path, live: sqlite3.Connection | None) -> None:
        self.aside, self.report = aside, SalvageReport()
        self._path = path
        self._graft: Path | None = None
        if live is not None and not _reads(live):
            live.close()
            live = None
        self._connection = self._opened() if live is None else live
        self._first, self._waiting = (
            [_Rows(source, table) for table in of] if (source := self._connection) is not None else []
            for of in (_FIRST, _THEN)
        )

    @property
    def is_done(self) -> bool:
        return not self._waiting

    def begin(self, connection: Connection, now_realtime_ns: int) -> None:
        """Copy what the store needs at its start, and the newest rows of each table, so that new ids are above all others."""
        for first in self._first:
            for rows in first.chunks():
                self._insert(connection, first.table, rows)
        for waiting in self._waiting:
            self._insert(connection, waiting.table, waiting.next_chunk())
        outbox.begin_stream(connection, now_realtime_ns)

    def step(self, engine: Engine, seconds: float) -> None:
        """Copy for so long."""
        until_s = monotonic() + seconds
        while self._waiting and monotonic() < until_s:
            if shutil.disk_usage(self._path.parent).free < MIN_FREE_BYTES:
                self.report.why_ended = "the disk is nearly full"
                self._waiting.clear()
                return
            waiting = self._waiting[0]
            rows = waiting.next_chunk()
            with engine.begin() as connection:
                self._insert(connection, waiting.table, rows)
            if waiting.is_done:
                self.report.left_out += waiting.left_out
                self._waiting.pop(0)

    def end(self) -> Path:
        """Give the file its final name; returns it."""
        self.close()
        kept = self.aside.with_name(self.aside.name.replace(_SALVAGE, _DAMAGED))
        _rename(self.aside, kept)
        return kept

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None
        if self._graft is not None:
            for each in (self._graft, wal_of(self._graft), shm_of(self._graft)):
                each.unlink(missing_ok=True)

    def _insert(self, connection: Connection, table: Table, rows: list[Values]) -> None:
        whole = [row for row in rows if _is_whole(table, row)]
        self.report.left_out += len(rows) - len(whole)
        if whole:
            names = ", ".join(f'"{column.name}"' for column in table.c)
            marks = ", ".join("?" * len(table.c))
            connection.exec_driver_sql(f"INSERT OR IGNORE INTO {table.name} ({names}) VALUES ({marks})", whole)
        self.report.copied += len(whole)

    def _opened(self) -> sqlite3.Connection | None:
        """The file, else a copy with another store's schema; None where neither can be read."""
        with suppress(sqlite3.Error):
            if _reads(connection := _open(self.aside)):
                return connection
            connection.close()
        self._graft = self.aside.with_name(f"{self.aside.name}-schema")
        try:
            graft_schema(self.aside, self._path, self._graft)
            if _reads(connection := _open(self._graft)):
                return connection
            connection.close()
        except (OSError, sqlite3.Error) as error:
            log.warning("%s: no row can be read: %s", self.aside, error)
        self.report.why_ended = "its schema cannot be read"
        return None


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.text_factory = LENIENT_TEXT
    return connection


def _reads(connection: sqlite3.Connection) -> bool:
    """Whether the schema, or the connection's own copy of it, names the store's tables."""
    try:
        for table in (*_FIRST, *_THEN):
            connection.execute(f"EXPLAIN SELECT * FROM {table.name}").fetchone()
        connection.execute("SELECT count(*) FROM outbox_counter").fetchone()
    except sqlite3.Error:
        return False
    return True


def _is_whole(table: Table, row: Values) -> bool:
    """Whether each value has its column's type."""
    types = (int if storage_class(column) == "integer" else str for column in table.c)
    return all(
        column.nullable if value is None else isinstance(value, of)
        for column, of, value in zip(table.c, types, row, strict=True)
    )


class _Rows:
    """
    A table's rows by descending key, and, where a page cannot be read, from the other end up to that page. Between two pages that
    cannot be read, rows with an id are read one by one. `left_out` counts the ids of which nothing could be read.
    """

    def __init__(self, connection: sqlite3.Connection, table: Table) -> None:
        self.table, self.left_out, self.is_done = table, 0, False
        self._connection = connection
        names = ", ".join(f'"{column.name}"' for column in table.c)
        self._has_rowid = table.dialect_options["sqlite"]["with_rowid"] is not False
        self._key = ["rowid"] if self._has_rowid else [f'"{column.name}"' for column in table.primary_key]
        self._select = f"SELECT {', '.join(self._key)}, {names} FROM {table.name} NOT INDEXED"
        self._low: Values | None = None
        self._high: Values | None = None
        self._passes = self._all_passes()

    def next_chunk(self) -> list[Values]:
        """Up to some hundred rows; empty where the next rows cannot be read, or where none is left (`is_done`)."""
        chunk = next(self._passes, None)
        self.is_done = chunk is None
        return chunk or []

    def chunks(self) -> Iterator[list[Values]]:
        while not self.is_done:
            yield self.next_chunk()

    def _all_passes(self) -> Iterator[list[Values]]:
        is_complete = yield from self._scan("DESC")
        if not is_complete:
            yield from self._scan("ASC")
            if self._has_rowid:
                yield from self._between()

    def _scan(self, order: str) -> Generator[list[Values], None, bool]:
        """From one end until a row cannot be read; returns whether the other end, or the other scan, was reached."""
        while True:
            rows, is_readable = self._read(order)
            if rows:
                yield rows
            if not is_readable:
                return False
            if len(rows) < _CHUNK_ROWS:
                return True

    def _read(self, order: str) -> tuple[list[Values], bool]:
        bounds = ((self._low, ">"), (self._high, "<"))
        key, marks = ", ".join(self._key), ", ".join("?" * len(self._key))
        conditions = [f"({key}) {sign} ({marks})" for value, sign in bounds if value is not None]
        values = [each for value, _ in bounds if value is not None for each in value]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        by = ", ".join(f"{name} {order}" for name in self._key)
        rows: list[Values] = []
        is_readable = True
        try:
            rows.extend(self._connection.execute(f"{self._select}{where} ORDER BY {by} LIMIT {_CHUNK_ROWS}", values))
        except (sqlite3.Error, OverflowError):
            is_readable = False
        if rows and order == "DESC":
            self._high = rows[-1][: len(self._key)]
        elif rows:
            self._low = rows[-1][: len(self._key)]
        return [row[len(self._key) :] for row in rows], is_readable

    def _between(self) -> Iterator[list[Values]]:
        first = 1 if self._low is None else self._low[0] + 1
        end = first + _BEYOND_END if self._high is None else self._high[0]
        for start in range(first, end, _CHUNK_ROWS):
            rows = [row for id in range(start, min(start + _CHUNK_ROWS, end)) for row in self._one(id)]
            if self._high is not None:
                self.left_out += min(start + _CHUNK_ROWS, end) - start - len(rows)
            yield rows

    def _one(self, id: int) -> list[Values]:
        try:
            return [row[1:] for row in self._connection.execute(f"{self._select} WHERE rowid = ?", (id,))]
        except sqlite3.Error:
            return []


_INTERIOR_TABLE_PAGE = 5
#: The schema is made first.
_SCHEMA_BYTES = 2**20


def graft_schema(damaged: Path, fresh: Path, to: Path) -> None:
    """
    Copy the damaged file with the schema's pages of a new store: both were made by the same steps, so their tables begin on the
    same pages. Raises OSError; sqlite3.Error where the new store cannot be read.
    """
    shutil.copyfile(damaged, to)
    with suppress(FileNotFoundError):
        shutil.copyfile(wal_of(damaged), wal_of(to))
    with fresh.open("rb") as file:
        template = file.read(_SCHEMA_BYTES)
    size = int.from_bytes(template[16:18], "big")
    with to.open("r+b") as file:
        for number in _schema_pages(template, size):
            file.seek((number - 1) * size)
            file.write(template[(number - 1) * size : number * size])
        file.seek(28)
        file.write((to.stat().st_size // size).to_bytes(4, "big") + bytes(8))
        if not wal_of(to).exists():
            file.seek(18)
            file.write(b"\1\1")  # no log is needed to read it


def _schema_pages(data: bytes, size: int) -> Iterator[int]:
    """The b-tree of sqlite_master, from page 1 (SQLite's file format, section 1.6)."""
    waiting = [1]
    while waiting:
        number = waiting.pop()
        yield number
        page, at = data[(number - 1) * size : number * size], 100 if number == 1 else 0
        if page[at] == _INTERIOR_TABLE_PAGE:
            cells = int.from_bytes(page[at + 3 : at + 5], "big")
            pointers = (int.from_bytes(page[at + 12 + 2 * each : at + 14 + 2 * each], "big") for each in range(cells))
            waiting += [int.from_bytes(page[cell : cell + 4], "big") for cell in pointers]
            waiting.append(int.from_bytes(page[at + 8 : at + 12], "big"))
