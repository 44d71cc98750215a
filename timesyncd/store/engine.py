"""
Where a store is (a SQLite file or a PostgreSQL database) and how it is opened: by its one writer, by readers and for
migration.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import SecretStr
from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.config import StoreSettings, check_store_url
from timesyncd.errors import ConfigError, StoreError
from timesyncd.store.intact import LENIENT_TEXT, decoded

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Either `path` or `url` is given. Its text names the store in messages, without the password."""

    path: Path | None = None
    url: str | None = None
    password: SecretStr | None = None

    @classmethod
    def of(cls, settings: StoreSettings) -> StoreLocation:
        """Reads the password. Raises ConfigError."""
        if settings.url is None:
            return cls(path=settings.path)
        return cls(url=settings.url, password=settings.password.reveal() if settings.password else None)

    @classmethod
    def named(cls, text: str) -> StoreLocation:
        """
        The location that a command line names: a path or a URL. psycopg takes the password from PGPASSWORD or ~/.pgpass.
        Raises ConfigError for a URL of another kind, and for a path that names no file.
        """
        if "://" not in text and Path(text).name:
            return cls(path=Path(text))
        try:
            check_store_url(text)
        except ValueError:
            raise ConfigError(
                "store: give a path or postgresql://user@host:5432/database, with its password in PGPASSWORD or ~/.pgpass"
            ) from None
        return cls(url=text)

    def __str__(self) -> str:
        return str(self.path) if self.url is None else self.url


MIGRATION_LIMIT_S = 600.0


def writer_engine(location: StoreLocation, *, durable: bool = False) -> Engine:
    """
    For the only writer. `durable`: a power failure loses no commit. On a server, a commit is on its disk when it returns,
    as its configuration says. Raises StoreError.
    """
    if location.url is not None:
        return _postgresql_engine(location.url, location.password, read_only=False)
    assert location.path is not None
    return _sqlite_writer(location.path, durable=durable)


def reader_engine(location: StoreLocation) -> Engine:
    """Reads while the writer writes, and writes nothing. Raises StoreError if the store does not exist or cannot be read."""
    if location.path is not None:
        _require_file(location.path)
    return _reader_engine(location)


@lru_cache(maxsize=8)
def _reader_engine(location: StoreLocation) -> Engine:
    """An engine keeps the statements that it compiled, and with NullPool no connection."""
    if location.url is not None:
        return _postgresql_engine(location.url, location.password, read_only=True, poolclass=NullPool)
    assert location.path is not None
    creator = partial(_sqlite_reader, location.path)
    return create_engine("sqlite://", creator=creator, poolclass=NullPool, json_deserializer=decoded)


@contextmanager
def reading(location: StoreLocation) -> Iterator[Connection]:
    """A read-only connection. Raises StoreError, also for a database error inside the block."""
    try:
        with reader_engine(location).connect() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise store_error(location, error) from error


def identity(location: StoreLocation) -> int:
    """
    The number of the store's inode, which changes when the file is replaced; 0 if there is no file. Always 1 for a
    server, which reports the loss itself.
    """
    return 1 if location.path is None else inode_of(location.path)


def wal_of(path: Path) -> Path:
    """The file's write-ahead log."""
    return path.with_name(f"{path.name}-wal")


def shm_of(path: Path) -> Path:
    """The index of the file's write-ahead log."""
    return path.with_name(f"{path.name}-shm")


def inode_of(path: Path) -> int:
    """0 if there is no file."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


#: Exit status of `timesyncd.store.migrate` for a damaged file.
DAMAGED_STATUS = 3


class StoreDamaged(StoreError):
    """SQLite finds the file damaged."""


class MigrationFailed(StoreError):
    """The child process that migrates could not do it: to try again costs most of a second of CPU."""


def migrate(location: StoreLocation) -> None:
    """
    Bring the store to this version's tables, in a child process, so that the daemon does not load Alembic. Blocks.

    Raises MigrationFailed, StoreDamaged.
    """
    command = [sys.executable, "-P", "-m", "timesyncd.store.migrate", str(location)]
    secret = {} if location.password is None else {"PGPASSWORD": location.password.get_secret_value()}
    try:
        done = subprocess.run(
            command, env=os.environ | secret, check=False, capture_output=True, text=True, timeout=MIGRATION_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MigrationFailed(f"{location}: cannot create or migrate the tables: {error}") from error
    if done.returncode:
        output = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        failure = StoreDamaged if done.returncode == DAMAGED_STATUS else MigrationFailed
        raise failure(f"{location}: cannot create or migrate the tables: {output[-1]}")


def store_error(location: StoreLocation, error: Exception) -> StoreError:
    """The database's own error text, in one line, without the statement and its parameters."""
    cause = getattr(error, "orig", None) or error
    return StoreError(f"{location}: {cause}".splitlines()[0])


#: How long a statement waits for another connection's lock before it fails.
BUSY_S = 5.0

# For a type without an adapter, sqlite3 searches for one at each value: a third of the time of a row with flags and NULLs.
sqlite3.register_adapter(bool, int)
sqlite3.register_adapter(type(None), lambda none: none)


def prepare_file(path: Path) -> None:
    """Create the file with a write-ahead log, so that readers do not wait for the writer. Raises OSError and sqlite3.Error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def _sqlite_writer(path: Path, *, durable: bool) -> Engine:
    """
    Transactions begin IMMEDIATE, so that they wait for the lock at their start and not half-way.

    With WAL a commit is in the kernel when it returns, so a killed process loses nothing of it. A power failure may lose the
    commits since the last checkpoint and never damages the file. With `durable`, a commit is on the disk when it returns.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": BUSY_S},
        json_serializer=partial(json.dumps, separators=(",", ":")),
        json_deserializer=decoded,
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None
        connection.text_factory = LENIENT_TEXT
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _require_file(path: Path) -> None:
    """Raises StoreError if the file does not exist, or is in a folder that may not be entered."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        raise StoreError(f"{path}: permission denied; read it as root, or as a user in the daemon's group") from error
    except OSError as error:
        raise StoreError(f"{path}: no such store; `timesyncd run` creates it") from error
    if not is_file:  # SQLite would wait for ever for a FIFO's writer
        raise StoreError(f"{path}: not a regular file; give the store's file, as [store] path names it")


def _sqlite_reader(path: Path) -> sqlite3.Connection:
    """
    SQLite must create the log of a file at rest (its daemon stopped cleanly), which needs write access to the folder.
    No process writes to such a file, so it is opened as immutable, without a log.
    """
    at_rest = not wal_of(path).exists()
    uri = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if at_rest else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S)
    connection.text_factory = LENIENT_TEXT
    return connection


#: Longer than any statement of the writer takes; a migration has no limit.
STATEMENT_S = 60.0
#: A server that vanishes closes no connection: after so long without an acknowledgement the connection is given up.
GONE_S = 10.0
_CONNECT_S = 5


def _postgresql_engine(url: str, password: SecretStr | None, *, read_only: bool, **pooling: Any) -> Engine:
    try:
        engine = create_engine(
            _with_password(url, password),
            connect_args={"connect_timeout": _CONNECT_S, "application_name": "timesyncd"} | _gone_after(GONE_S),
            paramstyle="format",
            json_serializer=partial(json.dumps, separators=(",", ":")),
            json_deserializer=decoded,
            **pooling,
        )
    except ImportError as error:
        raise StoreError(
            f"{url}: psycopg is not installed: in timesyncd's source folder, pip install '.[postgresql]'"
        ) from error
    except (SQLAlchemyError, ValueError) as error:
        raise StoreError(f"{url}: not a database URL; give postgresql://user@host:5432/database") from error

    @event.listens_for(engine, "connect")
    def _connected(connection: psycopg.Connection[Any], _: Any) -> None:
        connection.autocommit = True
        connection.execute(f"SET lock_timeout = {round(BUSY_S * 1_000)}")
        if not read_only:
            connection.execute(f"SET statement_timeout = {round(STATEMENT_S * 1_000)}")
        connection.autocommit = False
        connection.read_only = read_only
        _replace_nul(connection)

    return engine


def _gone_after(seconds: float) -> dict[str, int]:
    """libpq's keepalive options; its default is two hours."""
    every_s = max(1, round(seconds / 5))
    idle = {"keepalives_idle": every_s, "keepalives_interval": every_s, "keepalives_count": 4}
    return idle | {"tcp_user_timeout": round(seconds * 1_000)}


def _with_password(url: str, password: SecretStr | None) -> URL:
    at = make_url(url).set(drivername="postgresql+psycopg")
    return at if password is None else at.set(password=password.get_secret_value())


def _replace_nul(connection: psycopg.Connection[Any]) -> None:
    """PostgreSQL text cannot contain U+0000; a device's text that does must not fail a whole batch."""
    from psycopg.types.string import StrDumperUnknown

    class WithoutNul(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    connection.adapters.register_dumper(str, WithoutNul)
