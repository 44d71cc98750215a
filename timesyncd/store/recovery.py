"""
What the writer does about a damaged SQLite file, and about a backup that is to be put in its place. PostgreSQL's server does both itself.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection

from timesyncd.clocks import NS_PER_S, Clocks
from timesyncd.errors import StoreError
from timesyncd.store import outbox, salvage
from timesyncd.store.backup import requested_restore
from timesyncd.store.damage import FileHead, damage_of
from timesyncd.store.engine import StoreLocation, writer_engine
from timesyncd.store.salvage import Salvage
from timesyncd.store.session import WORK_S, StoreSession

log = logging.getLogger(__name__)

CHECK_EVERY_NS = 20 * NS_PER_S


class Recovery:
    """
    Used by the writer thread alone. `on_damage` is called with one line when a file is set aside, and again when its rows are
    copied. Methods raise StoreError.
    """

    def __init__(self, location: StoreLocation, clocks: Clocks, on_damage: Callable[[str], None]) -> None:
        self._location, self._path, self._clocks, self._on_damage = location, location.path, clocks, on_damage
        self._salvage: Salvage | None = None
        self._live: sqlite3.Connection | None = None
        self._damage = "set aside before this start"
        self._is_restored = False
        self._next_check_ns = 0
        self._head = FileHead(location.path or Path())

    @property
    def is_salvaging(self) -> bool:
        return self._salvage is not None

    @property
    def has_request(self) -> bool:
        """Whether a backup waits to be put in the store's place."""
        return self._path is not None and requested_restore(self._path).exists()

    def prepare(self) -> None:
        """Before the store is opened: put a backup in its place, or set a damaged file aside."""
        if self._path is None:
            return
        if self.has_request:
            self._restore(self._path)
        elif self._path.exists() and (damage := damage_of(self._path, has_tables=False, head=self._head)):
            self.set_aside(damage, None)

    def damage(self, session: StoreSession) -> str | None:
        """What is wrong with the open store's file, looked for each CHECK_EVERY_NS; None: nothing."""
        now_ns = self._clocks.boottime_ns()
        if self._path is None:
            return None
        if not session.has_log:
            return "its write-ahead log (-wal) was removed or replaced"
        if now_ns < self._next_check_ns:
            return None
        self._next_check_ns = now_ns + CHECK_EVERY_NS
        return damage_of(self._path, has_tables=True, head=self._head)

    def set_aside(self, damage: str, session: StoreSession | None) -> None:
        """Give the damaged file another name. What the session's connection still reads is copied by `begin`."""
        assert self._path is not None
        self.stop()
        live = session.live_connection() if session is not None else None
        try:
            aside = salvage.set_aside(self._path, self._clocks.realtime_ns())
        except OSError as error:
            raise StoreError(f"{self._path}: damaged ({damage}), and cannot be renamed: {error.strerror}") from error
        self._live, self._damage = live, damage
        if live is not None:
            _write_back(live)
        self._report(
            f"{self._path}: {damage}; set aside as {aside.name}; a new file is begun, and the readable rows are copied"
        )

    def begin(self) -> None:
        """After the store has its tables: begin to copy the rows of a file that was set aside, if any."""
        if self._path is None or self._salvage is not None:
            return
        if self._is_restored:
            self._in_transaction(outbox.begin_stream)
            self._is_restored = False
        for aside in salvage.pending(self._path)[:1]:
            begun, self._live = Salvage(aside, self._path, self._live), None
            self._in_transaction(begun.begin)
            self._salvage = begun

    def _in_transaction(self, do: Callable[[Connection, int], object]) -> None:
        """With the time. Raises SQLAlchemyError."""
        engine = writer_engine(self._location)
        try:
            with engine.begin() as connection:
                do(connection, self._clocks.realtime_ns())
        finally:
            engine.dispose()

    def step(self, session: StoreSession) -> None:
        """Copy rows for WORK_S at most."""
        if self._salvage is None:
            return
        session.salvage(self._salvage, WORK_S)
        if not self._salvage.is_done:
            return
        kept, report = self._salvage.end(), self._salvage.report
        self._salvage = None
        ended = f"; the copying ended early: {report.why_ended}" if report.why_ended else ""
        left_out = (
            f"{report.left_out} rows could not be read" if report.left_out else "no row that it had is known to be lost"
        )
        self._report(
            f"{self._path}: {self._damage}; kept as {kept.name}: {report.copied} rows were copied into the new store; {left_out}{ended}"
        )
        self.begin()

    def close(self) -> None:
        """After the store's own connections were closed."""
        self._head.close()

    def stop(self) -> None:
        """The next start goes on with a file whose rows are not all copied."""
        if self._salvage is not None:
            self._salvage.close()
        if self._live is not None:
            self._live.close()
        self._salvage = self._live = None

    def _restore(self, path: Path) -> None:
        try:
            former = salvage.set_aside(path, self._clocks.realtime_ns(), ".replaced-") if path.exists() else None
            os.replace(requested_restore(path), path)
        except OSError as error:
            raise StoreError(f"{path}: a backup cannot be put in its place: {error.strerror}") from error
        self._is_restored = True
        log.warning("%s: restored from a backup; the former store is %s", path, former)

    def _report(self, evidence: str) -> None:
        log.warning("%s", evidence)
        self._on_damage(evidence)


def _write_back(live: sqlite3.Connection) -> None:
    """What is in the log alone, into the file that was set aside: a log that was removed ends with this process."""
    try:
        live.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        log.warning("the log of the damaged store cannot be written back: %s", error)
