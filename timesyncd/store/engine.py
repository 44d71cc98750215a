"""
Where a store is (a SQLite file or a PostgreSQL database) and how it is opened: by its one writer, by readers and for migration.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.config import StoreSettings, check_store_url
from timesyncd.errors import ConfigError, StoreError
from timesyncd.store import postgresql, sqlite


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
        Raises ConfigError for a URL of another kind.
        """
        if "://" not in text:
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
    """For the only writer. `durable`: a power failure loses no commit. Raises StoreError."""
    if location.url is not None:
        return postgresql.writer_engine(location.url, location.password)
    assert location.path is not None
    return sqlite.writer_engine(location.path, durable=durable)


def reader_engine(location: StoreLocation) -> Engine:
    """Reads while the writer writes, and writes nothing. Raises StoreError if the store does not exist or cannot be read."""
    if location.url is not None:
        return postgresql.reader_engine(location.url, location.password)
    assert location.path is not None
    return sqlite.reader_engine(location.path)


@contextmanager
def reading(location: StoreLocation) -> Iterator[Connection]:
    """A read-only connection. Raises StoreError, also for a database error inside the block."""
    engine = reader_engine(location)
    try:
        with engine.connect() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise store_error(location, error) from error
    finally:
        engine.dispose()


def identity(location: StoreLocation) -> int:
    """A number that changes when the store's file is replaced, 0 if there is no file. Always 1 for a server, which reports the loss itself."""
    return 1 if location.path is None else sqlite.identity(location.path)


def migrate(location: StoreLocation) -> None:
    """
    Bring the store to this version's tables, in a child process, so that the daemon does not load Alembic. Blocks.

    Raises StoreError.
    """
    command = [sys.executable, "-P", "-m", "timesyncd.store.migrate", str(location)]
    secret = {} if location.password is None else {"PGPASSWORD": location.password.get_secret_value()}
    try:
        done = subprocess.run(
            command, env=os.environ | secret, check=False, capture_output=True, text=True, timeout=MIGRATION_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"{location}: cannot create or migrate the tables: {error}") from error
    if done.returncode:
        output = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise StoreError(f"{location}: cannot create or migrate the tables: {output[-1]}")


def store_error(location: StoreLocation, error: Exception) -> StoreError:
    """The database's own error text, in one line, without the statement and its parameters."""
    cause = getattr(error, "orig", None) or error
    return StoreError(f"{location}: {cause}".splitlines()[0])
