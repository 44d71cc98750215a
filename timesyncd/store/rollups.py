"""
Roll-ups (one row for each minute and hour of a quantity, for long charts and for the hubs) and the deletion of old rows.

Both work in small steps between two batches, so that no batch waits long.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, select, tuple_

from timesyncd.clocks import NS_PER_S
from timesyncd.config import StoreSettings
from timesyncd.messages.fleet import Rollup, Summary
from timesyncd.store.index_scans import source_names
from timesyncd.store.rows import Values
from timesyncd.store.tables import (
    TIMED,
    clock_sample,
    event,
    finding,
    kernel_sample,
    operator_note,
    phc_sample,
    rollup,
    utc_sample,
)

#: The quantities to roll up, by table; a sample may lack any but the first.
QUANTITIES = {
    clock_sample: ("offset_ns", "path_delay_ns", "frequency_ppb", "gm_bound_ns", "utc_bound_ns"),
    phc_sample: ("offset_ns", "frequency_ppb"),
    utc_sample: ("offset_ns", "frequency_ppb", "utc_bound_ns"),
    kernel_sample: ("frequency_ppb",),
}
Span = Literal[60, 3600]
MINUTE_S: Span = 60
HOUR_S: Span = 3_600
#: A sample is dated by the reading before the one that showed it, and reaches the store after it: so long a minute stays open.
GRACE_NS = 5 * NS_PER_S
#: Rows per fetch, so that an hour of a fast clock does not become as many Python objects.
_CHUNK_ROWS = 1_000

_Series = tuple[Table, str, Span]
"""A source's table, its name, and the span in seconds."""


def summary(values: Sequence[int]) -> Summary:
    """The summary of one value or more. A percentile is one of the values: the lowest that reaches the share (nearest rank)."""
    ordered = sorted(values)
    count = len(ordered)
    return Summary(
        count=count,
        minimum=ordered[0],
        maximum=ordered[-1],
        mean=(2 * sum(ordered) + count) // (2 * count),
        p50=ordered[-(-50 * count // 100) - 1],
        p99=ordered[-(-99 * count // 100) - 1],
    )


def rollup_values(node: str, made: Rollup) -> list[Values]:
    """One row for each quantity, in the order of the table's columns."""
    at = (made.span_s, made.begins_realtime_ns)
    return [
        (node, made.source, quantity, *at, of.count, of.minimum, of.maximum, of.mean, of.p50, of.p99)
        for quantity, of in made.quantities.items()
    ]


class RollupBuilder:
    """
    Makes the node's roll-ups one by one. The table shows which exist, so that neither a restart nor a clock that steps back
    doubles or changes one. `damaged_values` counts the values that it left out: they have not their column's type.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self.damaged_values = 0
        self.forget()

    def forget(self) -> None:
        """Read the state from the table again: the last steps may not have been committed."""
        self._next_ns: dict[_Series, int] = {}
        self._open: list[_Series] | None = None
        self._passed_minute = 0

    def are_due(self, now_ns: int) -> bool:
        """Whether a minute of CLOCK_REALTIME has ended since the last complete pass, or a pass is in progress."""
        return self._open is not None or _minute(now_ns) != self._passed_minute

    def step(self, connection: Connection, now_ns: int) -> list[Rollup] | None:
        """Roll up at most one minute or hour of one series; returns it, or [] if it had none. None: the pass is complete."""
        if self._open is None:
            self._open = _all_series(connection)
        if not self._open:
            self._open, self._passed_minute = None, _minute(now_ns)
            return None
        begins_ns = self._next(connection, self._open[-1], now_ns)
        if begins_ns is None:
            self._open.pop()
            return []
        if _is_made(connection, self._node, self._open[-1], begins_ns):
            return []
        made, damaged_values = _rolled_up(connection, self._open[-1], begins_ns)
        self.damaged_values += damaged_values
        return [made] if made.quantities else []

    def _next(self, connection: Connection, series: _Series, now_ns: int) -> int | None:
        """Where the next span begins that has samples and has ended; None if there is none."""
        table, source, span_s = series
        from_ns = self._next_ns.get(series)
        if from_ns is None or from_ns > now_ns:
            from_ns = _first_to_make(connection, self._node, series, now_ns)
        span_ns = span_s * NS_PER_S
        at = table.c.realtime_ns
        first_ns = connection.scalar(select(func.min(at)).where(table.c.source == source, at >= from_ns, at <= now_ns))
        begins_ns = from_ns if first_ns is None else first_ns // span_ns * span_ns
        if first_ns is None or begins_ns + span_ns + GRACE_NS > now_ns:
            self._next_ns[series] = from_ns
            return None
        self._next_ns[series] = begins_ns + span_ns
        return begins_ns


def _minute(now_ns: int) -> int:
    """The number of the last minute that has ended, including its grace period."""
    return (now_ns - GRACE_NS) // (MINUTE_S * NS_PER_S)


def _all_series(connection: Connection) -> list[_Series]:
    names = [(table, source) for table in QUANTITIES for source in source_names(connection, table)]
    return [(*name, span_s) for span_s in (HOUR_S, MINUTE_S) for name in names]


def _first_to_make(connection: Connection, node: str, series: _Series, now_ns: int) -> int:
    """The end of the newest roll-up that is not in the future, in Unix ns; 0 if there is none."""
    made = _made(node, series)
    last_ns = connection.scalar(select(func.max(rollup.c.realtime_ns)).where(made, rollup.c.realtime_ns <= now_ns))
    return 0 if last_ns is None else last_ns + series[2] * NS_PER_S


def _is_made(connection: Connection, node: str, series: _Series, begins_ns: int) -> bool:
    made = select(rollup.c.count).where(_made(node, series), rollup.c.realtime_ns == begins_ns)
    return connection.scalar(made) is not None


def _made(node: str, series: _Series) -> ColumnElement[bool]:
    table, source, span_s = series
    first = QUANTITIES[table][0]
    columns = rollup.c
    return and_(columns.node == node, columns.source == source, columns.quantity == first, columns.span_s == span_s)


def _rolled_up(connection: Connection, series: _Series, begins_ns: int) -> tuple[Rollup, int]:
    """The roll-up, and the number of damaged values, which are left out."""
    table, source, span_s = series
    names = QUANTITIES[table]
    within = (table.c.realtime_ns >= begins_ns, table.c.realtime_ns < begins_ns + span_s * NS_PER_S)
    rows = select(*(table.c[name] for name in names)).where(table.c.source == source, *within)
    values, damaged_values = [array("q") for _ in names], 0
    for chunk in connection.execute(rows, execution_options={"yield_per": _CHUNK_ROWS}).partitions():
        for of, column in zip(values, zip(*chunk, strict=True), strict=True):
            of.extend(intact := [value for value in column if isinstance(value, int)])
            damaged_values += len(column) - len(intact) - column.count(None)
    quantities = {name: summary(of) for name, of in zip(names, values, strict=True) if of}
    rolled_up = Rollup(source=source, span_s=span_s, begins_realtime_ns=begins_ns, quantities=quantities)
    return rolled_up, damaged_values


STEP_ROWS = 500
_NS_PER_DAY = 86_400 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows are kept: raw samples, minutes, and hours with the events."""

    raw_ns: int
    minutes_ns: int
    hours_ns: int

    @classmethod
    def of(cls, settings: StoreSettings) -> Retention:
        days = (settings.keep_days, settings.keep_minutes_days, settings.keep_hours_days)
        return cls(*(int(each * _NS_PER_DAY) for each in days))


def delete_step(connection: Connection, now_realtime_ns: int, retention: Retention) -> int:
    """Delete at most STEP_ROWS of the rows that are too old; returns their number. Fewer than STEP_ROWS: no old row is left."""
    left = STEP_ROWS
    for table, old in _old(connection, now_realtime_ns, retention):
        left -= _delete_oldest(connection, table, old, left)
        if left == 0:
            return STEP_ROWS
    raw_before_ns = now_realtime_ns - retention.raw_ns
    connection.execute(delete(finding).where(finding.c.until_realtime_ns < raw_before_ns))
    return STEP_ROWS - left


def _old(connection: Connection, now_ns: int, retention: Retention) -> Iterator[tuple[Table, ColumnElement[bool]]]:
    """Each table with the condition of its old rows; each is one range of an index."""
    for table in TIMED:
        for source in source_names(connection, table):
            yield table, (table.c.source == source) & (table.c.realtime_ns < now_ns - retention.raw_ns)
    for span_s, keep_ns in ((MINUTE_S, retention.minutes_ns), (HOUR_S, retention.hours_ns)):
        yield rollup, (rollup.c.span_s == span_s) & (rollup.c.realtime_ns < now_ns - keep_ns)
    yield event, event.c.realtime_ns < now_ns - retention.hours_ns
    yield operator_note, operator_note.c.realtime_ns < now_ns - retention.hours_ns


def _delete_oldest(connection: Connection, table: Table, old: ColumnElement[bool], limit: int) -> int:
    key = list(table.primary_key)
    oldest = select(*key).where(old).order_by(table.c.realtime_ns).limit(limit)
    is_one = key[0].in_(oldest) if len(key) == 1 else tuple_(*key).in_(oldest)
    return connection.execute(delete(table).where(is_one)).rowcount
