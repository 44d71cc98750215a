"""The time series of a quantity, from raw samples, minutes or hours, so that even a long span needs few rows."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, RowMapping, Select, Table, and_, cast, func, select

from timesyncd.clocks import NS_PER_S
from timesyncd.store.engine import StoreLocation, reading
from timesyncd.store.index_scans import distinct_keys, local_node
from timesyncd.store.intact import intact
from timesyncd.store.rollups import HOUR_S, MINUTE_S, QUANTITIES, Span, summary
from timesyncd.store.tables import incarnation, rollup

Record = dict[str, Any]

#: One minute with its grace period, at about 100 samples a second.
_MAX_TAIL_ROWS = 10_000
_MOST = 2**63 - 1
_KEY = (rollup.c.node, rollup.c.source, rollup.c.quantity)
_COLUMNS = ("realtime_ns", "span_s", "minimum", "maximum", "mean", "p50", "p99", "count")


def series(
    location: StoreLocation,
    node: str,
    source: str,
    quantity: str,
    since_ns: int,
    until_ns: int,
    max_rows: int = 2_000,
) -> list[Record]:
    """
    A quantity in [since, until), oldest first, as about `max_rows` records with `realtime_ns` (the begin), `span_s`, `minimum`,
    `maximum`, `mean`, `p50`, `p99` and `count`. A raw sample has span 0. The newest time, which is not rolled up yet, comes in
    finer records. Raises StoreError.
    """
    with reading(location) as connection:
        query = _SeriesQuery(connection, node, source, quantity, max_rows)
        samples = query.samples(since_ns, until_ns)
        if samples is not None:
            return samples
        rolled = query.rolled_up(since_ns, until_ns)
        return rolled + query.tail(_end(rolled, since_ns), until_ns)


def rollup_sources(location: StoreLocation, node: str | None = None) -> dict[str, list[str]]:
    """The rolled-up quantities of each source of a node (None: the store's own node). Raises StoreError."""
    known: dict[str, list[str]] = {}
    with reading(location) as connection:
        of = local_node(connection) if node is None else node
        for _, source, quantity in distinct_keys(connection, *_KEY, of=(of,)) if of is not None else ():
            known.setdefault(source, []).append(quantity)
    return known


def rollup_quantities(location: StoreLocation, node: str, source: str) -> list[str]:
    """The rolled-up quantities of one source: a hub has hundreds, of which `rollup_sources` seeks each. Raises StoreError."""
    with reading(location) as connection:
        keys = distinct_keys(connection, *_KEY, of=(node, source))
        return [quantity for _, _, quantity in keys]


class _SeriesQuery:
    """One query for a series, on one connection."""

    def __init__(self, connection: Connection, node: str, source: str, quantity: str, max_rows: int) -> None:
        self._connection, self._max_rows = connection, max_rows
        self._source, self._quantity = source, quantity
        columns = rollup.c
        self._series = and_(columns.node == node, columns.source == source, columns.quantity == quantity)
        self._raw = self._raw_table(node)

    def samples(self, since_ns: int, until_ns: int) -> list[Record] | None:
        """The raw samples, if they are at most `max_rows` and the span has no older roll-ups; else None."""
        if self._raw is None:
            return None
        within = self._within(self._raw, since_ns, until_ns)
        few = select(self._raw.c.id).where(within).limit(self._max_rows + 1).subquery()
        if (self._connection.scalar(select(func.count()).select_from(few)) or 0) > self._max_rows:
            return None
        found = [_sample(*row) for row in self._connection.execute(self._values(within))]
        first_ns = found[0]["realtime_ns"] if found else until_ns
        older = select(rollup.c.count).where(
            self._series, rollup.c.span_s.in_((MINUTE_S, HOUR_S)), _begin(since_ns, first_ns - HOUR_S * NS_PER_S)
        )
        return None if self._connection.scalar(older.limit(1)) is not None else found

    def rolled_up(self, since_ns: int, until_ns: int) -> list[Record]:
        """Minutes if they are at most `max_rows`, with hours before them; else hours, with minutes after them."""
        if until_ns - since_ns <= self._max_rows * MINUTE_S * NS_PER_S:
            minutes = self._rows(MINUTE_S, since_ns, until_ns)
            first_ns = minutes[0]["realtime_ns"] if minutes else until_ns
            return self._rows(HOUR_S, since_ns, first_ns - HOUR_S * NS_PER_S + 1) + minutes
        hours = self._hours(since_ns, until_ns)
        return hours + self._rows(MINUTE_S, _end(hours, since_ns), until_ns)

    def tail(self, since_ns: int, until_ns: int) -> list[Record]:
        """The samples that are not rolled up yet, as minutes."""
        if self._raw is None:
            return []
        newest = self._values(self._within(self._raw, since_ns, until_ns)).order_by(None)
        rows = self._connection.execute(newest.order_by(self._raw.c.realtime_ns.desc()).limit(_MAX_TAIL_ROWS)).all()
        minutes = groupby(reversed(rows), key=lambda row: int(row[0]) // (MINUTE_S * NS_PER_S))
        return [_minute([(row[0], row[1]) for row in of]) for _, of in minutes]

    def _raw_table(self, node: str) -> Table | None:
        """The table with the source's samples; None for another node, of which the store has roll-ups only."""
        own = self._connection.scalar(select(incarnation.c.node).where(incarnation.c.node == node))
        for table, quantities in QUANTITIES.items() if own is not None else ():
            has_any = select(table.c.id).where(table.c.source == self._source).limit(1)
            if self._quantity in quantities and self._connection.scalar(has_any) is not None:
                return table
        return None

    def _within(self, table: Table, since_ns: int, until_ns: int) -> ColumnElement[bool]:
        at = table.c.realtime_ns
        return and_(table.c.source == self._source, at >= since_ns, at < until_ns)

    def _values(self, within: ColumnElement[bool]) -> Select[Any]:
        assert self._raw is not None
        at, value = self._raw.c.realtime_ns, self._raw.c[self._quantity]
        return select(at, value).where(within, value.is_not(None), intact(at, value)).order_by(at)

    def _rows(self, span_s: Span, since_ns: int, until_ns: int) -> list[Record]:
        """The newest `max_rows` roll-ups of this span, oldest first."""
        columns = [rollup.c[name] for name in _COLUMNS]
        rows = select(*columns).where(self._series, rollup.c.span_s == span_s, _begin(since_ns, until_ns))
        rows = rows.where(intact(*columns))
        newest = rows.order_by(rollup.c.realtime_ns.desc()).limit(self._max_rows)
        return [dict(row) for row in reversed(self._connection.execute(newest).mappings().all())]

    def _hours(self, since_ns: int, until_ns: int) -> list[Record]:
        """Hours, merged to at most `max_rows` groups: `p99` is then the group's largest, `p50` the mean weighted by count."""
        step = -(-(until_ns - since_ns) // (self._max_rows * HOUR_S * NS_PER_S))
        if step == 1:
            return self._rows(HOUR_S, since_ns, until_ns)
        group = rollup.c.realtime_ns // (step * HOUR_S * NS_PER_S)
        of_hours = and_(self._series, rollup.c.span_s == HOUR_S, _begin(since_ns, until_ns), intact(*rollup.c))
        merged = select(*_merged_columns()).where(of_hours).group_by(group).order_by("realtime_ns")
        rows = self._connection.execute(merged).mappings()
        return [_rounded(row) for row in rows]


def _begin(since_ns: int, until_ns: int) -> ColumnElement[bool]:
    return and_(rollup.c.realtime_ns >= since_ns, rollup.c.realtime_ns < until_ns)


def _sample(realtime_ns: int, value: int) -> Record:
    values = dict.fromkeys(("minimum", "maximum", "mean", "p50", "p99"), value)
    return {"realtime_ns": realtime_ns, "span_s": 0, "count": 1} | values


def _minute(samples: list[tuple[int, int]]) -> Record:
    begins_ns = samples[0][0] // (MINUTE_S * NS_PER_S) * MINUTE_S * NS_PER_S
    of = summary([value for _, value in samples])
    return {"realtime_ns": begins_ns, "span_s": MINUTE_S} | of.model_dump()


def _merged_columns() -> list[ColumnElement[Any]]:
    """The columns of one merged group of hours, in floating point: sums of products exceed the database's integers."""
    columns = rollup.c
    first_ns, count = func.min(columns.realtime_ns), func.sum(cast(columns.count, Float))
    weighted = {name: func.sum(cast(columns[name], Float) * columns.count) / count for name in ("mean", "p50")}
    merged = {"minimum": func.min(columns.minimum), "maximum": func.max(columns.maximum)} | weighted
    merged |= {"p99": func.max(columns.p99), "count": count, "realtime_ns": first_ns}
    merged["span_s"] = (func.max(columns.realtime_ns) - first_ns) / NS_PER_S + HOUR_S
    return [merged[name].label(name) for name in _COLUMNS]


def _rounded(row: RowMapping) -> Record:
    """A merged group in integers of 64 bits; mean and p50 stay within minimum and maximum."""
    record = {name: min(round(value), _MOST) for name, value in row.items()}
    low, high = record["minimum"], record["maximum"]
    return record | {name: min(max(record[name], low), high) for name in ("mean", "p50")}


def _end(records: list[Record], otherwise_ns: int) -> int:
    """Where the last record ends."""
    return int(records[-1]["realtime_ns"] + records[-1]["span_s"] * NS_PER_S) if records else otherwise_ns
