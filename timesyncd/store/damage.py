"""
What is wrong with a SQLite store, as a fresh connection sees it: an open connection does not notice, since it reads its cache.

PostgreSQL checks its own pages; `initdb --data-checksums` makes it do so.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from timesyncd.store.engine import BUSY_S, wal_of
from timesyncd.store.intact import LENIENT_TEXT
from timesyncd.store.tables import metadata

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
#: SQLITE_CORRUPT and SQLITE_NOTADB. Other errors (locked, full, not permitted) are no damage.
_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite says that the file is damaged."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE_CODES


class FileHead:
    """
    The first octets of a file, read without a close between two reads.

    A process that closes any descriptor of a file loses all its locks on it (fcntl(2)), SQLite's too. Then another program
    that reads the store believes to be alone, and removes the write-ahead log at its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> bytes:
        """Raises OSError."""
        descriptor = self._descriptor
        if descriptor is None or not os.path.samestat(os.fstat(descriptor), self._path.stat()):
            opened = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self.close()  # of a file that was renamed or removed
            self._descriptor = descriptor = opened
        return os.pread(descriptor, _HEADER_BYTES, 0)

    def close(self) -> None:
        """After the last connection of this process to the file was closed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def damage_of(path: Path, *, has_tables: bool, head: FileHead | None = None) -> str | None:
    """
    What is wrong; None: nothing that shows, or the file cannot be opened, which its writer reports.

    `has_tables`: the store is in use, so its tables must be there. Looks at the header, at the length, at the schema and at both
    ends of each table. Blocks, some milliseconds. `head`: where this process has a connection to the file.
    """
    reader = head or FileHead(path)
    try:
        return _wrong_length(path, has_tables, reader) or _wrong_content(path, has_tables)
    except OSError:
        return None
    finally:
        if head is None:
            reader.close()


def _wrong_length(path: Path, has_tables: bool, head: FileHead) -> str | None:
    size = path.stat().st_size
    header = head.read()
    if not size:
        return "the file was truncated to 0 bytes" if has_tables or _wal_pages(path, 0) else None
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        return "the file is not a database: its header is damaged"
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65_536 if page_size == 1 else page_size
    pages = int.from_bytes(header[28:32], "big") if header[24:28] == header[92:96] else 0
    present = size // page_size if page_size else pages
    if present < pages and not set(range(present + 1, pages + 1)) <= _wal_pages(path, page_size):
        return f"the file was truncated: it has {size} of {pages * page_size} bytes"
    return None


def _wal_pages(path: Path, page_size: int) -> set[int]:
    """
    The pages in the write-ahead log; {0} for a log whose page size is not asked for. A checkpoint that a crash interrupted may have
    written the header and not yet the pages after it.
    """
    try:
        log = wal_of(path).read_bytes()
    except OSError:
        return set()
    if not page_size:
        return {0} if len(log) > _WAL_HEADER_BYTES else set()
    salts = log[16:24]
    starts = range(_WAL_HEADER_BYTES, len(log) - _FRAME_HEADER_BYTES, _FRAME_HEADER_BYTES + page_size)
    return {int.from_bytes(log[at : at + 4], "big") for at in starts if log[at + 8 : at + 16] == salts}


def _wrong_content(path: Path, has_tables: bool) -> str | None:
    """Opened without a write: a fresh connection must not make a new log beside an open one."""
    query = "mode=ro" if wal_of(path).exists() else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?{query}", uri=True, timeout=BUSY_S)) as fresh:
            fresh.text_factory = LENIENT_TEXT
            present = {name for (name,) in fresh.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if has_tables and (missing := set(metadata.tables) - present):
                return f"the schema is damaged: no table {', '.join(sorted(missing))}"
            for name in present & set(metadata.tables):
                for order in ("ASC", "DESC"):
                    fresh.execute(f"SELECT * FROM {name} ORDER BY {_key(name)} {order} LIMIT 1").fetchall()
    except sqlite3.Error as error:
        return str(error) if is_damage(error) else None
    return None


def _key(name: str) -> str:
    table = metadata.tables[name]
    is_keyed = table.dialect_options["sqlite"]["with_rowid"] is False
    return ", ".join(column.name for column in table.primary_key) if is_keyed else "rowid"
