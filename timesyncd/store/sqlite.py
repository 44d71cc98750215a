"""The connection to a SQLite file."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL

from timesyncd.errors import StoreError

#: How long a statement waits for another connection's lock before it fails.
BUSY_S = 5.0

# For a type without an adapter, sqlite3 searches for one at each value: a third of the time of a row with flags and NULLs.
sqlite3.register_adapter(bool, int)
sqlite3.register_adapter(type(None), lambda none: none)


def prepare(path: Path) -> None:
    """Create the file with a write-ahead log, so that readers do not wait for the writer. Raises OSError and sqlite3.Error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def writer_engine(path: Path, *, durable: bool) -> Engine:
    """
    Transactions begin IMMEDIATE, so that they wait for the lock at their start and not half-way.

    With WAL a commit is in the kernel when it returns, so a killed process loses nothing of it. A power failure may lose the
    commits since the last checkpoint and never damages the file. With `durable`, a commit is on the disk when it returns.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": BUSY_S},
        json_serializer=partial(json.dumps, separators=(",", ":")),
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def reader_engine(path: Path) -> Engine:
    """
    Raises StoreError if the file does not exist.

    SQLite must create the log of a file at rest (its daemon stopped cleanly), which needs write access to the folder.
    No process writes to such a file, so it is opened as immutable, without a log.
    """
    if not path.exists():
        raise StoreError(f"{path}: no such store; `timesyncd run` creates it")
    at_rest = not path.with_name(path.name + "-wal").exists()
    uri = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if at_rest else ''}"
    return create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True, timeout=BUSY_S), poolclass=NullPool
    )


def identity(path: Path) -> int:
    """The file's inode number, which changes when the file is replaced; 0 if there is no file."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
