"""
Copies a SQLite store while its daemon writes, and asks the daemon to put a copy in its store's place.

For PostgreSQL, `pg_dump` and `pg_restore` do this.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from timesyncd.client.files import replacing
from timesyncd.errors import ConfigError, StoreError
from timesyncd.store.damage import damage_of
from timesyncd.store.engine import StoreLocation, shm_of, wal_of
from timesyncd.store.tables import metadata

_PAGES_PER_STEP = 4_096
_TABLES = set(metadata.tables)


def requested_restore(path: Path) -> Path:
    """Where a backup waits for the daemon, which alone may replace an open file: its log belongs to the former one."""
    return path.with_name(f"{path.name}.restore")


def back_up(
    location: StoreLocation, to: Path, on_progress: Callable[[int, int], None], *, overwrite: bool = False
) -> int:
    """
    Copy the store as it is at this moment into one file, and check the copy; returns its size in bytes. Blocks.

    `on_progress` gets the pages that were copied, and their number. The copy gets its name only when it is whole. Raises ConfigError
    for a server or an existing file, StoreError.
    """
    path = _sqlite_path(location, "pg_dump -Fc URL > FILE makes a backup while the daemon runs")
    if os.path.lexists(to) and not overwrite:
        raise ConfigError(f"{to}: the file exists; --force replaces it")
    _check_store(path)
    try:
        with replacing(to) as partial:
            _copy_checked(path, partial, on_progress)
        return to.stat().st_size
    except OSError as error:
        raise StoreError(f"{to}: {error.strerror or error}") from error


def request_restore(location: StoreLocation, backup: Path) -> Path:
    """
    Check the backup, and put a copy where the daemon takes it, within a second or at its next start; returns the copy's path.

    Blocks. Raises ConfigError for a server, StoreError.
    """
    path = _sqlite_path(
        location, "stop the daemon, then pg_restore --clean --if-exists -d URL FILE; docs/store.md says what to empty"
    )
    _check_store(backup)
    if os.path.lexists(path) and not os.path.isfile(path):
        raise StoreError(f"{path}: not a regular file, so it is no store")
    request = requested_restore(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(request) as partial:
            _copy_checked(backup, partial, lambda done, total: None)
            owner = (path if path.exists() else path.parent).stat()
            os.chown(partial, owner.st_uid, owner.st_gid)
            if path.exists():
                shutil.copymode(path, partial)
    except OSError as error:
        raise StoreError(f"{request}: {error.strerror or error}") from error
    return request


def _copy_checked(path: Path, to: Path, on_progress: Callable[[int, int], None]) -> None:
    """Without the files that SQLite keeps beside a database. Raises StoreError and OSError."""
    to.touch(mode=0o644)  # SQLite does not say which of the two files it cannot open
    try:
        _copy(path, to, on_progress)
        _check_copy(to)
    finally:
        for each in (wal_of(to), shm_of(to)):
            with suppress(OSError):
                each.unlink(missing_ok=True)


def _sqlite_path(location: StoreLocation, otherwise: str) -> Path:
    if location.path is None:
        raise ConfigError(f"{location}: a PostgreSQL database: {otherwise}")
    return location.path


def _check_store(path: Path) -> None:
    """Raises StoreError where the file is none of timesyncd's stores, or damaged."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if not is_file:  # SQLite would wait for ever for a FIFO's writer
        raise StoreError(f"{path}: not a regular file, so it is no store")
    if damage := damage_of(path, has_tables=True):
        raise StoreError(f"{path}: {damage}")


def _copy(path: Path, to: Path, on_progress: Callable[[int, int], None]) -> None:
    """In one read transaction: without it the copying would begin again at each commit of the daemon."""
    uri = f"{path.absolute().as_uri()}?mode=ro{'' if wal_of(path).exists() else '&immutable=1'}"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as source, closing(sqlite3.connect(to)) as copy:
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(copy, pages=_PAGES_PER_STEP, progress=lambda _, left, total: on_progress(total - left, total))
            copy.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from error


def _check_copy(path: Path) -> None:
    with closing(sqlite3.connect(path)) as copy:
        problems = [text for (text,) in copy.execute("PRAGMA quick_check(1)")]
    if problems != ["ok"]:
        raise StoreError(f"the copy is damaged, as the store is: {' '.join(problems[0].split())}")
