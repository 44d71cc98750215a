"""What is SQLite's alone: how its file is opened."""

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

#: How long a statement waits for somebody else's lock before it is a problem.
BUSY_S = 5.0

# The driver looks long for how to adapt what has no adapter, and stores it just so: a third of the time of a row with flags and NULLs.
sqlite3.register_adapter(bool, int)
sqlite3.register_adapter(type(None), lambda none: none)


def prepare(path: Path) -> None:
    """With a write-ahead log readers do not wait for the writer. Raises OSError and sqlite3.Error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def writer_engine(path: Path, *, durable: bool) -> Engine:
    """
    Its transactions begin IMMEDIATE, so that a lock is waited for at the start and never half-way.

    With WAL a commit is in the kernel when it returns, so a killed process loses nothing of it; a power cut may take the commits
    since the last checkpoint, and never harms the file. Where it is `durable` a commit is on the disk.
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
    Raises StoreError when there is no such file.

    A file at rest (its daemon stopped cleanly) can be opened with its log only by those who may write to its folder;
    as nobody writes to it then, everybody else reads it as immutable.
    """
    if not path.exists():
        raise StoreError(f"{path}: there is no store (timesyncd run makes it)")
    at_rest = not path.with_name(path.name + "-wal").exists()
    uri = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if at_rest else ''}"
    return create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True, timeout=BUSY_S), poolclass=NullPool
    )


def identity(path: Path) -> int:
    """Another one when somebody has removed or replaced the file: rows would go where nobody finds them. 0: there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
