"""
Questions to the store. Each reads on a connection of its own, beside the daemon that writes.

What the store holds of a clock source, as the readings that they were.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Literal

from sqlalchemy import Connection, Select, Table, func, select, tuple_

from timesyncd.bound import Reason
from timesyncd.errors import ConfigError
from timesyncd.sample import ClockSample, ClockState, NoSample, PortState
from timesyncd.store.engine import Place, reading
from timesyncd.store.names import source_names
from timesyncd.store.series import course, rollup_sources
from timesyncd.store.tables import (
    SLOW,
    alarm_event,
    clock_sample,
    event,
    gap,
    grandmaster_sample,
    kernel_sample,
    phc_sample,
    source_event,
    time_error,
    utc_sample,
)

__all__ = [
    "Kind", "Record", "cloud_events", "course", "events", "last_locked", "rollup_sources", "samples", "sources",
    "time_error_course", "time_errors",
]  # fmt: skip

Kind = Literal["clock", "phc", "utc", "kernel", "grandmaster", "event", "gap", "alarm", "time_error"]
Record = dict[str, Any]
"""A row by column names, and its `kind`; the store's own `id` is left out, and every grandmaster's sample is whole."""

_CLOCKS: dict[Kind, Table] = {"clock": clock_sample, "phc": phc_sample, "utc": utc_sample, "kernel": kernel_sample}
_SAMPLES: dict[Kind, Table] = {**_CLOCKS, "grandmaster": grandmaster_sample}
_EVENTS: dict[Kind, Table] = {"event": source_event, "alarm": alarm_event, "gap": gap}

_LOCKED_CLASSES = (None, 6, 13)
#: With what a holdover may stand that is known to go back to its last lock.
_DATED = (Reason.HOLDOVER_BUDGET_EXCEEDED.name,)
#: How many samples in a row are passed over that contradict themselves: a poll that a change falls into gives one or two.
_CONTRADICTIONS = 60
_HOLDOVERS = (ClockState.HOLDOVER.value, ClockState.HOLDOVER_OUT_OF_SPEC.value)


def sources(place: Place) -> dict[str, Kind]:
    """Every source that the store holds, by name; "event" where it never gave a sample. Raises StoreError."""
    kinds: dict[str, Kind] = {}
    with reading(place) as connection:
        kinds |= dict.fromkeys(source_names(connection, source_event), "event")
        for kind, table in _SAMPLES.items():
            kinds |= dict.fromkeys(source_names(connection, table), kind)
    return dict(sorted(kinds.items()))


def samples(
    place: Place, source: str, since_realtime_ns: int, until_realtime_ns: int, limit: int | None = None
) -> Iterator[Record]:
    """
    The samples of a clock source or a grandmaster in [since, until), oldest first; with a limit the newest so many.

    Raises StoreError.
    """
    with reading(place) as connection:
        for kind, table in _CLOCKS.items():
            yield from _records(connection, kind, _newest(table, source, since_realtime_ns, until_realtime_ns, limit))
        thin = _records(
            connection, "grandmaster", _newest(grandmaster_sample, source, since_realtime_ns, until_realtime_ns, limit)
        )
        yield from _made_whole(connection, thin)


def events(place: Place, source: str, since_realtime_ns: int, until_realtime_ns: int) -> Iterator[Record]:
    """
    When a source began to give no samples and why, when it gave them again, what it reported by itself, and what was not
    stored. Raises StoreError.
    """
    with reading(place) as connection:
        found = [
            record
            for kind, table in _EVENTS.items()
            for record in _records(connection, kind, _span(table, source, since_realtime_ns, until_realtime_ns))
        ]
    yield from sorted(found, key=lambda record: int(record["realtime_ns"]))


def cloud_events(
    place: Place,
    node: str | None,
    since_realtime_ns: int,
    until_realtime_ns: int,
    after: tuple[int, int, str] | None = None,
    limit: int = 100,
    type: str | None = None,
) -> list[Record]:
    """
    What happened on a node (None: on all) in [since, until), the newest first: at most `limit`, of those that come `after` the one
    with this (realtime_ns, sequence, node), and of this `type` alone. Raises StoreError.
    """
    columns = event.c
    order = (columns.realtime_ns, columns.sequence, columns.node)
    rows = select(event).where(columns.realtime_ns >= since_realtime_ns, columns.realtime_ns < until_realtime_ns)
    if node is not None:
        rows = rows.where(columns.node == node)
    if type is not None:
        rows = rows.where(columns.type == type)
    if after is not None:
        rows = rows.where(columns.realtime_ns <= after[0], tuple_(*order) < after)
    with reading(place) as connection:
        newest = rows.order_by(*(column.desc() for column in order)).limit(limit)
        return [dict(row) for row in connection.execute(newest).mappings()]


def time_errors(
    place: Place, source: str, since_realtime_ns: int, until_realtime_ns: int, limit: int | None = None
) -> Iterator[Record]:
    """The time errors of a unit's channels in [since, until), oldest first, with a limit the newest so many. Raises StoreError."""
    with reading(place) as connection:
        rows = _newest(time_error, source, since_realtime_ns, until_realtime_ns, limit)
        yield from _records(connection, "time_error", rows)


def time_error_course(
    place: Place, source: str, since_realtime_ns: int, until_realtime_ns: int, steps: int
) -> list[Record]:
    """
    The same to be drawn: of each channel and metric the lowest and the highest value within each of so many equal steps, so
    that no peak is lost, with the step's beginning as `realtime_ns`. Steps without a value are left out. Raises StoreError.
    """
    step_ns = max(1, (until_realtime_ns - since_realtime_ns) // steps)
    columns = time_error.c
    at = since_realtime_ns + (columns.realtime_ns - since_realtime_ns) // step_ns * step_ns
    rows = (
        select(
            columns.channel,
            columns.metric,
            at.label("realtime_ns"),
            func.min(columns.value_ns).label("lowest_ns"),
            func.max(columns.value_ns).label("highest_ns"),
        )
        .where(
            columns.source == source, columns.realtime_ns >= since_realtime_ns, columns.realtime_ns < until_realtime_ns
        )
        .group_by(columns.channel, columns.metric, at)
        .order_by(columns.channel, columns.metric, at)
    )
    with reading(place) as connection:
        return [dict(row) for row in connection.execute(rows).mappings()]


def last_locked(place: Place, source: str) -> Record | None:
    """
    The newest sample in which a unit was LOCKED and is to be believed: a holdover that stands now began after it. As for a
    daemon that was there all the time, what does not count in between is a state that was not told, and a LOCKED that
    contradicts itself: without a satellite, or with another class. None: there is no such sample among the newest; or its
    clock was in another state since; or the unit was held to be astray since, as after a jump. Raises StoreError.
    """
    columns = grandmaster_sample.c
    of_unit = select(grandmaster_sample).where(columns.source == source).order_by(columns.realtime_ns.desc())
    told = columns.clock_state.not_in((*_HOLDOVERS, ClockState.UNKNOWN.value))
    astray = columns.clock_state.in_(_HOLDOVERS) & columns.utc_reason.not_in(_DATED)
    with reading(place) as connection:
        newest = list(_records(connection, "grandmaster", of_unit.where(told).limit(_CONTRADICTIONS + 1)))
        # One by one: what a row leaves out may stand in a row between them, of a holdover.
        for row in (whole for each in newest for whole in _made_whole(connection, [each])):
            if row["clock_state"] != ClockState.LOCKED.value:
                return None
            satellites = row.get("satellites")
            saw_any = satellites is None or any(satellite["healthy"] is not False for satellite in satellites)
            if row["clock_class"] in _LOCKED_CLASSES and saw_any:
                since = of_unit.where(astray, columns.realtime_ns >= row["realtime_ns"]).limit(1)
                return row if connection.execute(since).first() is None else None
    return None


def _newest(table: Table, source: str, since_ns: int, until_ns: int, limit: int | None) -> Select[Any]:
    """Oldest first."""
    rows = _span(table, source, since_ns, until_ns)
    if limit is None:
        return rows
    newest = rows.order_by(None).order_by(table.c.realtime_ns.desc(), table.c.id.desc()).limit(limit)
    return select(newest.subquery()).order_by("realtime_ns", "id")


def _made_whole(connection: Connection, records: Iterable[Record]) -> Iterator[Record]:
    """What a row leaves out is as in the last whole one before it. The oldest comes first."""
    slow: Record | None = None
    for record in records:
        if record.pop("whole"):
            slow = {name: record[name] for name in SLOW}
        elif slow is None:
            slow = _slow_before(connection, record)
        yield record | (slow or {})


def _slow_before(connection: Connection, record: Record) -> Record:
    columns = grandmaster_sample.c
    last = (
        select(*(columns[name] for name in SLOW))
        .where(columns.source == record["source"], columns.realtime_ns <= record["realtime_ns"], columns.whole)
        .order_by(columns.realtime_ns.desc())
        .limit(1)
    )
    row = connection.execute(last).mappings().first()
    return dict(row) if row else {}


def _span(table: Table, source: str, since_ns: int, until_ns: int) -> Select[Any]:
    time = table.c.realtime_ns
    return select(table).where(table.c.source == source, time >= since_ns, time < until_ns).order_by(time, table.c.id)


def _records(connection: Connection, kind: Kind, rows: Select[Any]) -> Iterator[Record]:
    with connection.execution_options(yield_per=1_000).execute(rows) as result:
        for row in result.mappings():
            record = {"kind": kind, **row}
            del record["id"]
            yield record


_STORED = {field.name for field in fields(ClockSample)} - {"port_state", "read_ns", "exchanges"}


def clock_readings(place: Place, source: str, span_ns: int | None) -> Iterator[tuple[int, ClockSample | NoSample]]:
    """
    The samples of so long ago and younger, and when they failed to come, each with the Unix time at which it was read. Raises ConfigError
    when there is no such PTP source, and StoreError.
    """
    known = sources(place)
    if known.get(source) not in ("clock", "event"):
        clocks = ", ".join(name for name, kind in known.items() if kind == "clock")
        what = f"{source!r} is none" if source in known else f"{place} has no {source!r}"
        raise ConfigError(f"only PTP sources (ptp4l) can be replayed, and {what}; {place} has: {clocks or 'none yet'}")
    now_ns = time.time_ns()
    since_ns = 0 if span_ns is None else now_ns - span_ns
    return _readings(place, source, (since_ns, now_ns))


def _readings(place: Place, source: str, span: tuple[int, int]) -> Iterator[tuple[int, ClockSample | NoSample]]:
    found = heapq.merge(
        events(place, source, *span), samples(place, source, *span), key=lambda row: int(row["realtime_ns"])
    )
    for record in found:
        if record["kind"] == "clock":
            sample = _clock_sample(record)
            yield sample.read_ns + sample.real_minus_boot_ns, sample
        elif record["kind"] == "event" and record["reason"] is not None:
            yield record["realtime_ns"], no_sample(record)


def _clock_sample(record: Record) -> ClockSample:
    """Of a row that does not tell when it was read nothing younger is known than `as_of_ns`."""
    read_ns = record.get("read_ns")
    return ClockSample(
        port_state=PortState[record["port_state"]],
        read_ns=record["as_of_ns"] if read_ns is None else read_ns,
        **{name: record[name] for name in _STORED},
    )


def no_sample(record: Record) -> NoSample:
    state = record["port_state"]
    return NoSample(
        record["source"],
        record["boottime_ns"],
        record["reason"],
        restarted=record["restarted"],
        port_state=None if state is None else PortState[state],
    )
