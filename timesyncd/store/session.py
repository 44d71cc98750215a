"""An open store, used by the writer thread alone: each method of `StoreSession` is one transaction, or a few short ones."""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import monotonic

from sqlalchemy import Connection, Dialect, Table, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.clocks import NS_PER_S, Clocks, real_minus_boot_ns
from timesyncd.errors import Malformed
from timesyncd.messages.fleet import HistoryBatch
from timesyncd.store import archive, outbox, rollups, tables
from timesyncd.store.archive import ArchiveProgress
from timesyncd.store.backlog import Gap, RowBatch
from timesyncd.store.engine import StoreLocation, identity, inode_of, wal_of, writer_engine
from timesyncd.store.intact import intact
from timesyncd.store.rollups import Retention, RollupBuilder, rollup_values
from timesyncd.store.rows import CLOCK_COLUMNS, EventEntry, Values, stored_columns, values_of
from timesyncd.store.salvage import Salvage


def insert_batch(connection: Connection, batch: RowBatch) -> None:
    """Insert the batch's rows and gaps; its events are inserted after they got their sequence numbers."""
    rows: dict[Table, list[Values]] = defaultdict(list)
    for entry in batch.entries:
        if not isinstance(entry, EventEntry):
            rows[entry.table] += entry.values()
    if batch.gaps:
        rows[tables.gap] = [_gap_values(gap) for gap in batch.gaps]
    for table, new in rows.items():
        insert_values(connection, table, new)


def insert_values(connection: Connection, table: Table, rows: Sequence[Values]) -> None:
    """Insert rows through the database driver: SQLAlchemy's work on each row would take longer than the database's."""
    connection.exec_driver_sql(_insert_text(connection.dialect, table), list(rows))


@lru_cache(maxsize=32)  # each opening of a store creates another dialect
def _insert_text(dialect: Dialect, table: Table) -> str:
    """
    A finding replaces its stored row. A time error, a roll-up or a note that is stored already stays: each day's file repeats time errors.

    Both databases accept this SQL.
    """
    quoted = dialect.identifier_preparer.quote
    names = [quoted(name) for name in _names(table)]
    marks = ["?" if dialect.paramstyle == "qmark" else "%s"] * len(names)
    text = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(marks)})"
    key = [quoted(column.name) for column in table.primary_key]
    if table is tables.finding:
        text += f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET "
        text += ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    elif table in (tables.time_error, tables.rollup, tables.operator_note):
        text += " ON CONFLICT DO NOTHING"
    return text


def _names(table: Table) -> tuple[str, ...]:
    """The column names in the order of an entry's values."""
    return CLOCK_COLUMNS if table is tables.clock_sample else tuple(column.name for column in stored_columns(table))


def _gap_values(gap: Gap) -> Values:
    """In the order of the table's columns."""
    reason = gap.reason
    return gap.source, reason.code, reason.value, gap.from_realtime_ns, gap.until_realtime_ns, gap.rows_lost


def end_findings(connection: Connection, now_ns: int) -> None:
    """Clear the findings that were active when the daemon last stopped: it raises those again that still hold."""
    is_active = tables.finding.c.until_realtime_ns.is_(None)
    connection.execute(update(tables.finding).where(is_active).values(until_realtime_ns=now_ns))


def next_incarnation(location: StoreLocation, node: str, now_ns: int) -> int:
    """On the disk when it is returned, so that the same number cannot come again after a power failure."""
    engine = writer_engine(location, durable=True)
    table = tables.incarnation
    try:
        with engine.begin() as connection:
            last = connection.scalar(select(table.c.incarnation).where(table.c.node == node, intact(*table.c)))
            number = max(now_ns // NS_PER_S, 0 if last is None else last + 1)
            connection.execute(delete(table).where(table.c.node == node))
            connection.execute(insert(table).values(node=node, incarnation=number, started_realtime_ns=now_ns))
    finally:
        engine.dispose()
    return number


log = logging.getLogger(__name__)

#: How long roll-ups are made or old rows deleted without a break; then the backlog has its turn.
WORK_S = 0.2
RETENTION_EVERY_NS = 60 * NS_PER_S
#: For at most so many nodes a rejected history is logged.
MAX_LOGGED_NODES = 100


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """Rows beyond this number or age are lost, oldest first, although the hubs have not confirmed them."""

    rows: int
    age_ns: int


@dataclass(slots=True)
class StoreCounters:
    """
    Since the daemon's start: spans rolled up, damaged values that they leave out, rows of other nodes' histories stored, and rows
    that those nodes lost before.
    """

    rolled_up: int = 0
    damaged_values: int = 0
    history_stored: int = 0
    history_lost: int = 0

    def add_archived(self, before: ArchiveProgress | None, now: ArchiveProgress) -> None:
        if before is None or before.stream != now.stream:
            before = ArchiveProgress(now.node, now.stream, 0, 0)
        lost = now.lost - before.lost
        self.history_lost += lost
        self.history_stored += now.stored_up_to - before.stored_up_to - lost


class StoreSession:
    """One opening of the store. Every method raises SQLAlchemyError."""

    def __init__(
        self,
        location: StoreLocation,
        node: str,
        clocks: Clocks,
        retention: Retention,
        limits: OutboxLimits | None,
        counts: StoreCounters,
    ) -> None:
        """Raises StoreError and SQLAlchemyError."""
        self._location, self._node, self._clocks, self._retention, self._limits = (
            location,
            node,
            clocks,
            retention,
            limits,
        )
        self._counts = counts
        self._rollups = RollupBuilder(node)
        self._delete_at_ns = 0
        self._real_minus_boot_ns = real_minus_boot_ns(clocks)
        self._logged_nodes: set[str] = set()
        # A commit that hubs may have received must not be lost: its sequence numbers would be used again.
        self._engine = writer_engine(location, durable=limits is not None)
        try:
            with self._engine.begin() as connection:
                end_findings(connection, clocks.realtime_ns())
                outbox.open_stream(connection, clocks.realtime_ns())
        except SQLAlchemyError:
            self._engine.dispose()  # nothing else would close its connections
            raise
        self._identity = identity(location)
        self._log = Path() if location.path is None else wal_of(location.path)
        self._log_inode: int | None = None

    @property
    def is_current(self) -> bool:
        """False if the store's file was removed or replaced: rows would go to a file that has no name."""
        return identity(self._location) == self._identity

    @property
    def has_log(self) -> bool:
        """False if the file's write-ahead log was removed or replaced: what it holds would end with this connection."""
        return self._log_inode is None or inode_of(self._log) == self._log_inode

    def live_connection(self) -> sqlite3.Connection:
        """The open connection to a SQLite file, taken from this session, which must not be used any more."""
        borrowed = self._engine.raw_connection()
        connection = borrowed.driver_connection
        assert isinstance(connection, sqlite3.Connection)
        borrowed.detach()
        return connection

    def salvage(self, salvage: Salvage, seconds: float) -> None:
        """Copy rows of a damaged file for so long."""
        salvage.step(self._engine, seconds)

    def close(self) -> None:
        """The next transaction opens the store again; nothing is assumed about the last commits."""
        self._engine.dispose()
        self._log_inode = None
        self._rollups.forget()

    def write(self, batch: RowBatch) -> bool:
        """Store a batch; returns whether rows were added to the outbox."""
        events = [entry for entry in batch.entries if isinstance(entry, EventEntry)]
        with self._engine.begin() as connection:
            insert_batch(connection, batch)
            self._add_events(connection, events)
        if self._log_inode is None and self._location.path is not None:
            self._log_inode = inode_of(self._log)
        return bool(events) and self._limits is not None

    def roll_up(self) -> bool:
        """Make roll-ups for at most WORK_S; returns whether rows were added to the outbox."""
        until_s, added = monotonic() + WORK_S, False
        now_ns = self._clocks.realtime_ns()
        while self._rollups.are_due(now_ns) and monotonic() < until_s:
            with self._engine.begin() as connection:
                made = self._roll_up_step(connection, now_ns)
            self._counts.rolled_up += made
            self._count_damaged()
            added |= made > 0
        return added and self._limits is not None

    def _count_damaged(self) -> None:
        """Logged once: all values of a damaged page may be left out."""
        new, self._rollups.damaged_values = self._rollups.damaged_values, 0
        if new and not self._counts.damaged_values:
            log.warning("%s: damaged values are left out of the roll-ups and counted (%d so far)", self._location, new)
        self._counts.damaged_values += new

    def archive(self, batches: list[HistoryBatch]) -> tuple[list[ArchiveProgress], int]:
        """Store other nodes' batches; returns the new progress of each node and the number of malformed batches."""
        known: dict[str, ArchiveProgress] = {}
        rejected, now_ns = 0, self._clocks.realtime_ns()
        with self._engine.begin() as connection:
            before = archive.progress(connection, *{batch.node for batch in batches})
            for batch in batches:
                try:
                    last = known.get(batch.node) or before.get(batch.node)
                    known[batch.node] = archive.store(connection, batch, last, self._node, now_ns)
                except Malformed as error:
                    rejected += 1
                    self._log_rejected(batch.node, error)
        for node, now in known.items():
            self._counts.add_archived(before.get(node), now)
        return list(known.values()), rejected

    def _log_rejected(self, node: str, error: Malformed) -> None:
        """Once a node: it repeats the batch again and again."""
        if node not in self._logged_nodes and len(self._logged_nodes) < MAX_LOGGED_NODES:
            self._logged_nodes.add(node)
            log.warning("%s: %s", self._location, error)

    def cut_outbox(self, stream: int, up_to: int) -> None:
        with self._engine.begin() as connection:
            if outbox.open_stream(connection, self._clocks.realtime_ns()).stream == stream:
                outbox.cut(connection, up_to)

    def delete_old(self) -> int:
        """
        Delete old rows for at most WORK_S; when none is left, pause for RETENTION_EVERY_NS. Returns the number of rows that the
        outbox lost.
        """
        now_ns = self._clocks.boottime_ns()
        if now_ns < self._delete_at_ns:
            return 0
        until_s = monotonic() + WORK_S
        while monotonic() < until_s:
            with self._engine.begin() as connection:
                deleted = rollups.delete_step(connection, self._clocks.realtime_ns(), self._retention)
            if deleted < rollups.STEP_ROWS:
                self._delete_at_ns = now_ns + RETENTION_EVERY_NS
                return self._trim_outbox()
        return 0

    def _add_events(self, connection: Connection, entries: list[EventEntry]) -> None:
        """Store events. The outbox numbers them even if there is no hub; then it deletes them at once."""
        new = self._not_stored(connection, entries)
        if not new:
            return
        stream = outbox.open_stream(connection, self._clocks.realtime_ns()).stream
        numbers = outbox.append(connection, [(entry.realtime_ns, entry.event) for entry in new])
        rows = [
            {"node": self._node, "stream": stream, "sequence": number, "realtime_ns": entry.realtime_ns}
            | {name: getattr(entry.event, name) for name in ("type", "subject", "time", "data")}
            | {"event_id": entry.event.id}
            for number, entry in zip(numbers, new, strict=True)
        ]
        insert_values(connection, tables.event, [values_of(tables.event, row) for row in rows])
        if self._limits is None:
            outbox.cut(connection, numbers[-1])

    def _not_stored(self, connection: Connection, entries: list[EventEntry]) -> list[EventEntry]:
        """The entries that are not stored yet: a batch whose commit was not confirmed is written again."""
        by_id = {entry.event.id: entry for entry in entries}
        columns = tables.event.c
        of_these = (columns.node == self._node, columns.event_id.in_(by_id))
        for id in connection.scalars(select(columns.event_id).where(*of_these)) if by_id else ():
            del by_id[id]
        return list(by_id.values())

    def _roll_up_step(self, connection: Connection, now_ns: int) -> int:
        """Returns the number of spans rolled up."""
        made = self._rollups.step(connection, now_ns) or []
        for each in made:
            insert_values(connection, tables.rollup, rollup_values(self._node, each))
            if self._limits is not None:
                outbox.append(connection, [(now_ns, each)])
        return len(made)

    def _trim_outbox(self) -> int:
        if self._limits is None:
            return 0
        with self._engine.begin() as connection:
            return outbox.trim(connection, self._unstepped_realtime_ns() - self._limits.age_ns, self._limits.rows)

    def _unstepped_realtime_ns(self) -> int:
        """CLOCK_REALTIME without the steps forward since the start, since such a step makes no row older."""
        self._real_minus_boot_ns = min(self._real_minus_boot_ns, real_minus_boot_ns(self._clocks))
        return self._clocks.boottime_ns() + self._real_minus_boot_ns
