"""
How a store is opened, whichever database it is in: by its one writer, by its readers, and by the process that migrates it.

Where a store is: a file of SQLite, or a database of PostgreSQL.
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
class Place:
    """Either `path` or `url` is given. As text it names the store in messages to people, without the password."""

    path: Path | None = None
    url: str | None = None
    password: SecretStr | None = None

    @classmethod
    def of(cls, settings: StoreSettings) -> Place:
        """Reads the password. Raises ConfigError."""
        if settings.url is None:
            return cls(path=settings.path)
        return cls(url=settings.url, password=settings.password.reveal() if settings.password else None)

    @classmethod
    def named(cls, text: str) -> Place:
        """
        As somebody wrote it on a command line: a path or a URL. The password is then PGPASSWORD's, or that of ~/.pgpass. Raises
        ConfigError for any other URL.
        """
        if "://" not in text:
            return cls(path=Path(text))
        try:
            check_store_url(text)
        except ValueError:
            raise ConfigError(
                "store: neither a path nor postgresql://user@host:5432/database, whose password is in PGPASSWORD or ~/.pgpass"
            ) from None
        return cls(url=text)

    def __str__(self) -> str:
        return str(self.path) if self.url is None else self.url


MIGRATION_LIMIT_S = 600.0


def writer_engine(place: Place, *, durable: bool = False) -> Engine:
    """For the only writer. `durable`: no power cut takes back what was committed. Raises StoreError."""
    if place.url is not None:
        return postgresql.writer_engine(place.url, place.password)
    assert place.path is not None
    return sqlite.writer_engine(place.path, durable=durable)


def reader_engine(place: Place) -> Engine:
    """Reads beside the writer and writes nothing. Raises StoreError when there is no such store or it cannot be read."""
    if place.url is not None:
        return postgresql.reader_engine(place.url, place.password)
    assert place.path is not None
    return sqlite.reader_engine(place.path)


@contextmanager
def reading(place: Place) -> Iterator[Connection]:
    """A connection of one's own, beside the daemon that writes. Raises StoreError, also for what goes wrong within."""
    engine = reader_engine(place)
    try:
        with engine.connect() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise store_error(place, error) from error
    finally:
        engine.dispose()


def identity(place: Place) -> int:
    """Another one when the store was replaced by another under the same name, 0 when there is none. A server tells that itself."""
    return 1 if place.path is None else sqlite.identity(place.path)


def migrate(place: Place) -> None:
    """
    Bring the store to this version's tables, in a process of its own: Alembic stays out of the daemon. Blocks.

    Raises StoreError.
    """
    command = [sys.executable, "-P", "-m", "timesyncd.store.migrate", str(place)]
    secret = {} if place.password is None else {"PGPASSWORD": place.password.get_secret_value()}
    try:
        done = subprocess.run(
            command, env=os.environ | secret, check=False, capture_output=True, text=True, timeout=MIGRATION_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"{place}: cannot be made ready: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise StoreError(f"{place}: cannot be made ready: {said[-1]}")


def store_error(place: Place, error: Exception) -> StoreError:
    """What the database said, in one line, without the statement and its parameters."""
    said = getattr(error, "orig", None) or error
    return StoreError(f"{place}: {said}".splitlines()[0])
