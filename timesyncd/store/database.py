"""How the store's file is opened: by its one writer, by its readers, and by the process that migrates it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.errors import StoreError

#: How long a statement waits for somebody else's lock before it is a problem.
BUSY_S = 5.0
MIGRATION_LIMIT_S = 600.0


def writer_engine(path: Path, synchronous: Literal["NORMAL", "FULL"] = "NORMAL") -> Engine:
    """
    For the only writer. Its transactions begin IMMEDIATE, so that a lock is waited for at the start and never half-way.

    NORMAL with WAL: a commit is in the kernel when it returns, so a killed process loses nothing of it; a power cut may
    take the commits since the last checkpoint, and never harms the file. FULL: a commit is on the disk.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": BUSY_S},
        json_serializer=partial(json.dumps, separators=(",", ":")),
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA synchronous={synchronous}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def reader_engine(path: Path) -> Engine:
    """
    Reads beside the writer and writes nothing. Raises StoreError when there is no such file or it cannot be read.

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


def migrate(path: Path) -> None:
    """
    Bring the file to this version's tables, in a process of its own: Alembic stays out of the daemon. Blocks.

    Raises StoreError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "timesyncd.store.migrate", str(path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=MIGRATION_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"{path}: cannot be made ready: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise StoreError(f"{path}: cannot be made ready: {said[-1]}")


def store_error(path: Path, error: SQLAlchemyError | sqlite3.Error) -> StoreError:
    """What the database said, in one line, without the statement and its parameters."""
    said = getattr(error, "orig", None) or error
    return StoreError(f"{path}: {said}".splitlines()[0])
