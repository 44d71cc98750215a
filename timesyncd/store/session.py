"""
What the store's thread does with an open store: each method is one transaction, or a few short ones.

What the writer says to the database.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic

from sqlalchemy import Connection, Dialect, Table, delete, insert, select, update

from timesyncd.clocks import NS_PER_S, Clocks, real_minus_boot_ns
from timesyncd.errors import Malformed
from timesyncd.messages.fleet import HistoryBatch
from timesyncd.store import archive, outbox, rollups, tables
from timesyncd.store.archive import Progress
from timesyncd.store.backlog import Batch, Gap
from timesyncd.store.engine import Place, identity, writer_engine
from timesyncd.store.rollups import Keeps, Rollups, rollup_values
from timesyncd.store.rows import CLOCK_COLUMNS, EventEntry, Values, stored_columns, values_of


def insert_batch(connection: Connection, batch: Batch) -> None:
    """All of it but its events, which are numbered first."""
    rows: dict[Table, list[Values]] = defaultdict(list)
    for entry in batch.entries:
        if not isinstance(entry, EventEntry):
            rows[entry.table] += entry.values()
    if batch.gaps:
        rows[tables.gap] = [_gap_values(gap) for gap in batch.gaps]
    for table, new in rows.items():
        insert_values(connection, table, new)


def insert_values(connection: Connection, table: Table, rows: Sequence[Values]) -> None:
    """As the driver itself does it: SQLAlchemy's work on each row would take longer than the database's."""
    connection.exec_driver_sql(_insert_text(connection.dialect, table), list(rows))


@lru_cache(maxsize=32)  # each time a store is opened it has another dialect
def _insert_text(dialect: Dialect, table: Table) -> str:
    """
    A finding replaces what was stored of it. A time error or a roll-up that is stored already stays: the former comes again with
    each day's file.

    Both databases understand all of this.
    """
    quoted = dialect.identifier_preparer.quote
    names = [quoted(name) for name in _names(table)]
    marks = ["?" if dialect.paramstyle == "qmark" else "%s"] * len(names)
    text = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(marks)})"
    key = [quoted(column.name) for column in table.primary_key]
    if table is tables.finding:
        text += f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET "
        text += ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    elif table in (tables.time_error, tables.rollup):
        text += " ON CONFLICT DO NOTHING"
    return text


def _names(table: Table) -> tuple[str, ...]:
    """In the order in which an entry has its values."""
    return CLOCK_COLUMNS if table is tables.clock_sample else tuple(column.name for column in stored_columns(table))


def _gap_values(gap: Gap) -> Values:
    """In the order of the table's columns."""
    return gap.source, gap.reason, gap.from_realtime_ns, gap.until_realtime_ns, gap.rows_lost


def end_findings(connection: Connection, now_ns: int) -> None:
    """What stood when the daemon last ended is over: what still stands is raised anew."""
    stands = tables.finding.c.until_realtime_ns.is_(None)
    connection.execute(update(tables.finding).where(stands).values(until_realtime_ns=now_ns))


def next_incarnation(place: Place, node: str, now_ns: int) -> int:
    """On the disk when it is returned: after a power cut the same number must not come again."""
    engine = writer_engine(place, durable=True)
    table = tables.incarnation
    try:
        with engine.begin() as connection:
            last = connection.scalar(select(table.c.incarnation).where(table.c.node == node))
            number = max(now_ns // NS_PER_S, 0 if last is None else last + 1)
            connection.execute(delete(table).where(table.c.node == node))
            connection.execute(insert(table).values(node=node, incarnation=number, started_realtime_ns=now_ns))
    finally:
        engine.dispose()
    return number


log = logging.getLogger(__name__)

#: So long at once roll-ups are made, or old rows deleted; then the backlog has its turn.
WORK_S = 0.2
RETENTION_EVERY_NS = 60 * NS_PER_S
#: Of so many nodes at most it is told that what they say cannot be.
MOST_COMPLAINTS = 100


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """What waits for the hubs is lost, oldest first, beyond so many rows or so great an age."""

    rows: int
    age_ns: int


@dataclass(slots=True)
class Counts:
    """Since the daemon's start: spans rolled up, rows of other nodes' histories stored, and those that they no longer had."""

    rolled_up: int = 0
    history_stored: int = 0
    history_lost: int = 0

    def archived(self, before: Progress | None, now: Progress) -> None:
        if before is None or before.stream != now.stream:
            before = Progress(now.node, now.stream, 0, 0)
        lost = now.lost - before.lost
        self.history_lost += lost
        self.history_stored += now.stored_up_to - before.stored_up_to - lost


class Session:
    """From when the store is opened until it is closed. Every method raises SQLAlchemyError."""

    def __init__(
        self, place: Place, node: str, clocks: Clocks, keeps: Keeps, limits: OutboxLimits | None, counts: Counts
    ) -> None:
        """Raises StoreError, too."""
        self._place, self._node, self._clocks, self._keeps, self._limits = place, node, clocks, keeps, limits
        self._counts = counts
        self._rollups = Rollups(node)
        self._retain_at_ns = 0
        self._real_minus_boot_ns = real_minus_boot_ns(clocks)
        self._complained: set[str] = set()
        # What hubs may have heard of must not be taken back: its numbers would be given again.
        self._engine = writer_engine(place, durable=limits is not None)
        with self._engine.begin() as connection:
            end_findings(connection, clocks.realtime_ns())
            outbox.open_stream(connection, clocks.realtime_ns())
        self._identity = identity(place)

    @property
    def is_current(self) -> bool:
        """False when somebody has removed or replaced the store's file: rows would go where nobody finds them."""
        return identity(self._place) == self._identity

    def close(self) -> None:
        """The next transaction opens it again; of what the last ones did nothing is taken for certain."""
        self._engine.dispose()
        self._rollups.forget()

    def write(self, batch: Batch) -> bool:
        """Whether anything was added to the outbox."""
        events = [entry for entry in batch.entries if isinstance(entry, EventEntry)]
        with self._engine.begin() as connection:
            insert_batch(connection, batch)
            self._add_events(connection, events)
        return bool(events) and self._limits is not None

    def roll_up(self) -> bool:
        """Whether anything was added to the outbox. What is left after WORK_S is for the next call."""
        until_s, added = monotonic() + WORK_S, False
        now_ns = self._clocks.realtime_ns()
        while self._rollups.are_due(now_ns) and monotonic() < until_s:
            with self._engine.begin() as connection:
                made = self._roll_up_step(connection, now_ns)
            self._counts.rolled_up += made
            added |= made > 0
        return added and self._limits is not None

    def archive(self, batches: list[HistoryBatch]) -> tuple[list[Progress], int]:
        """How far the history of each of their nodes is stored now; and how many batches no node would say."""
        known: dict[str, Progress] = {}
        refused, now_ns = 0, self._clocks.realtime_ns()
        with self._engine.begin() as connection:
            before = archive.progress(connection, *{batch.node for batch in batches})
            for batch in batches:
                try:
                    last = known.get(batch.node) or before.get(batch.node)
                    known[batch.node] = archive.store(connection, batch, last, self._node, now_ns)
                except Malformed as error:
                    refused += 1
                    self._complain(batch.node, error)
        for node, now in known.items():
            self._counts.archived(before.get(node), now)
        return list(known.values()), refused

    def _complain(self, node: str, error: Malformed) -> None:
        """Once: it comes again and again."""
        if node not in self._complained and len(self._complained) < MOST_COMPLAINTS:
            self._complained.add(node)
            log.warning("%s: %s", self._place, error)

    def cut_outbox(self, stream: int, up_to: int) -> None:
        with self._engine.begin() as connection:
            if outbox.open_stream(connection, self._clocks.realtime_ns()).stream == stream:
                outbox.cut(connection, up_to)

    def retain(self) -> int:
        """Delete what is old, for at most WORK_S; when nothing is left, rest. Returns how many rows the outbox lost."""
        now_ns = self._clocks.boottime_ns()
        if now_ns < self._retain_at_ns:
            return 0
        until_s = monotonic() + WORK_S
        while monotonic() < until_s:
            with self._engine.begin() as connection:
                deleted = rollups.delete_step(connection, self._clocks.realtime_ns(), self._keeps)
            if deleted < rollups.STEP_ROWS:
                self._retain_at_ns = now_ns + RETENTION_EVERY_NS
                return self._trim_outbox()
        return 0

    def _add_events(self, connection: Connection, entries: list[EventEntry]) -> None:
        """Numbered by the outbox also where nobody waits for it: then it forgets them at once."""
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
        """Each once. Of a commit whose answer was lost everything comes again, and a second number would be a second event."""
        by_id = {entry.event.id: entry for entry in entries}
        columns = tables.event.c
        of_these = (columns.node == self._node, columns.event_id.in_(by_id))
        for id in connection.scalars(select(columns.event_id).where(*of_these)) if by_id else ():
            del by_id[id]
        return list(by_id.values())

    def _roll_up_step(self, connection: Connection, now_ns: int) -> int:
        """How many were made."""
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
            return outbox.trim(connection, self._age_now_ns() - self._limits.age_ns, self._limits.rows)

    def _age_now_ns(self) -> int:
        """CLOCK_REALTIME as it would be had it never been set forward since the start: that makes no row older."""
        self._real_minus_boot_ns = min(self._real_minus_boot_ns, real_minus_boot_ns(self._clocks))
        return self._clocks.boottime_ns() + self._real_minus_boot_ns
