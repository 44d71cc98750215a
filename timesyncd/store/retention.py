"""Old rows go in small steps between two batches, so that no batch waits long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Table, delete, select, tuple_

from timesyncd.clocks import NS_PER_S
from timesyncd.sections import Store as Settings
from timesyncd.store.names import source_names
from timesyncd.store.rollups import HOUR_S, MINUTE_S
from timesyncd.store.tables import TIMED, event, finding, rollup

STEP_ROWS = 500
_NS_PER_DAY = 86_400 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Keeps:
    """For how long: raw samples; minutes; hours, and events with them."""

    raw_ns: int
    minutes_ns: int
    hours_ns: int

    @classmethod
    def of(cls, settings: Settings) -> Keeps:
        days = (settings.keep_days, settings.keep_minutes_days, settings.keep_hours_days)
        return cls(*(int(each * _NS_PER_DAY) for each in days))


def delete_step(connection: Connection, now_realtime_ns: int, keeps: Keeps) -> int:
    """Delete at most STEP_ROWS rows that are older; returns how many. Fewer than STEP_ROWS: none is left."""
    left = STEP_ROWS
    for table, old in _old(connection, now_realtime_ns, keeps):
        left -= _delete_oldest(connection, table, old, left)
        if left == 0:
            return STEP_ROWS
    raw_before_ns = now_realtime_ns - keeps.raw_ns
    connection.execute(delete(finding).where(finding.c.until_realtime_ns < raw_before_ns))
    return STEP_ROWS - left


def _old(connection: Connection, now_ns: int, keeps: Keeps) -> Iterator[tuple[Table, ColumnElement[bool]]]:
    """Each a range of an index."""
    for table in TIMED:
        for source in source_names(connection, table):
            yield table, (table.c.source == source) & (table.c.realtime_ns < now_ns - keeps.raw_ns)
    for span_s, keep_ns in ((MINUTE_S, keeps.minutes_ns), (HOUR_S, keeps.hours_ns)):
        yield rollup, (rollup.c.span_s == span_s) & (rollup.c.realtime_ns < now_ns - keep_ns)
    yield event, event.c.realtime_ns < now_ns - keeps.hours_ns


def _delete_oldest(connection: Connection, table: Table, old: ColumnElement[bool], limit: int) -> int:
    key = list(table.primary_key)
    oldest = select(*key).where(old).order_by(table.c.realtime_ns).limit(limit)
    is_one = key[0].in_(oldest) if len(key) == 1 else tuple_(*key).in_(oldest)
    return connection.execute(delete(table).where(is_one)).rowcount
