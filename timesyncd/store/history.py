"""
Queries to the store. Each uses a connection of its own, while the daemon writes.

Timestamps in parameters and records are Unix time (CLOCK_REALTIME) in nanoseconds; a span includes its begin and excludes its end.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Select, Table, func, not_, select, tuple_

from timesyncd.bound import Reason
from timesyncd.errors import ConfigError, StoreError
from timesyncd.sample import CHANGES, ClockSample, ClockState, NoSample, NoSampleCause, PhcSample, PortState, Satellite
from timesyncd.store.engine import StoreLocation, reading
from timesyncd.store.index_scans import source_names
from timesyncd.store.intact import checked, intact
from timesyncd.store.tables import (
    SLOW,
    TIMED,
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

Kind = Literal["clock", "phc", "utc", "kernel", "grandmaster", "event", "gap", "alarm", "time_error"]
Record = dict[str, Any]
"""A row by column name, with its `kind` and without the store's own `id`; every grandmaster's sample is whole."""

_CLOCKS: dict[Kind, Table] = {"clock": clock_sample, "phc": phc_sample, "utc": utc_sample, "kernel": kernel_sample}
_SAMPLES: dict[Kind, Table] = {**_CLOCKS, "grandmaster": grandmaster_sample}
_EVENTS: dict[Kind, Table] = {"event": source_event, "alarm": alarm_event, "gap": gap}

_LOCKED_CLASSES = (None, 6, 13)
#: Reasons of an unbounded holdover whose begin is known, namely the last lock before it.
_DATED = (Reason.HOLDOVER_BUDGET_EXCEEDED.name.lower(),)
#: How many contradictory LOCKED samples in a row are skipped: a poll during a change yields one or two.
_CONTRADICTIONS = 60
_SATELLITES = TypeAdapter(tuple[Satellite, ...])
_PHC = TypeAdapter(PhcSample)
_HOLDOVERS = (ClockState.HOLDOVER.value, ClockState.HOLDOVER_OUT_OF_SPEC.value)


def sources(location: StoreLocation) -> dict[str, Kind]:
    """The kind of every source in the store, by name; "event" for a source that never gave a sample. Raises StoreError."""
    kinds: dict[str, Kind] = {}
    with reading(location) as connection:
        kinds |= dict.fromkeys(source_names(connection, source_event), "event")
        for kind, table in _SAMPLES.items():
            kinds |= dict.fromkeys(source_names(connection, table), kind)
    return dict(sorted(kinds.items()))


def samples(
    location: StoreLocation, source: str, since_realtime_ns: int, until_realtime_ns: int, limit: int | None = None
) -> Iterator[Record]:
    """
    The samples of a clock source or a grandmaster in [since, until), oldest first; at most the `limit` newest.

    Raises StoreError.
    """
    with reading(location) as connection:
        for kind, table in _CLOCKS.items():
            yield from _records(connection, kind, _newest(table, source, since_realtime_ns, until_realtime_ns, limit))
        thin = _records(
            connection, "grandmaster", _newest(grandmaster_sample, source, since_realtime_ns, until_realtime_ns, limit)
        )
        yield from _made_whole(connection, thin)


def events(location: StoreLocation, source: str, since_realtime_ns: int, until_realtime_ns: int) -> Iterator[Record]:
    """
    A source's outages with their reasons and ends, its own alarm events, and its rows that were not stored, oldest first.
    Raises StoreError.
    """
    with reading(location) as connection:
        found = [
            record
            for kind, table in _EVENTS.items()
            for record in _records(connection, kind, _span(table, source, since_realtime_ns, until_realtime_ns))
        ]
    yield from sorted(found, key=lambda record: int(record["realtime_ns"]))


def damaged_rows(location: StoreLocation, source: str, since_realtime_ns: int, until_realtime_ns: int) -> int:
    """
    The number of a source's rows in [since, until) that the other queries leave out: a value of theirs has not its column's type.
    Raises StoreError.
    """
    with reading(location) as connection:
        return sum(
            connection.scalar(
                select(func.count()).where(
                    table.c.source == source,
                    table.c.realtime_ns >= since_realtime_ns,
                    table.c.realtime_ns < until_realtime_ns,
                    not_(intact(*table.c)),
                )
            )
            or 0
            for table in TIMED
        )


def cloud_events(
    location: StoreLocation,
    node: str | None,
    since_realtime_ns: int,
    until_realtime_ns: int,
    after: tuple[int, int, str] | None = None,
    limit: int = 100,
    type: str | None = None,
) -> list[Record]:
    """
    The events of a node (None: of all nodes) in [since, until), newest first, at most `limit`.

    `after` is the (realtime_ns, sequence, node) of the last event of the page before; `type` selects one type of event.
    Raises StoreError.
    """
    columns = event.c
    order = (columns.realtime_ns, columns.sequence, columns.node)
    rows = select(event).where(columns.realtime_ns >= since_realtime_ns, columns.realtime_ns < until_realtime_ns)
    rows = rows.where(intact(*columns))
    if node is not None:
        rows = rows.where(columns.node == node)
    if type is not None:
        rows = rows.where(columns.type == type)
    if after is not None:
        rows = rows.where(columns.realtime_ns <= after[0], tuple_(*order) < after)
    with reading(location) as connection:
        newest = rows.order_by(*(column.desc() for column in order)).limit(limit)
        return [dict(row) for row in connection.execute(newest).mappings()]


def time_errors(
    location: StoreLocation, source: str, since_realtime_ns: int, until_realtime_ns: int, limit: int | None = None
) -> Iterator[Record]:
    """The time errors of a grandmaster's channels in [since, until), oldest first; at most the `limit` newest. Raises StoreError."""
    with reading(location) as connection:
        rows = _newest(time_error, source, since_realtime_ns, until_realtime_ns, limit)
        yield from _records(connection, "time_error", rows)


def time_error_envelope(
    location: StoreLocation, source: str, since_realtime_ns: int, until_realtime_ns: int, steps: int
) -> list[Record]:
    """
    The time errors as a chart needs them: the minimum and maximum of each channel and metric in each of `steps` equal steps.

    So no peak is lost. `realtime_ns` is where the step begins; steps without a value are left out. Raises StoreError.
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
        .where(intact(*columns))
        .group_by(columns.channel, columns.metric, at)
        .order_by(columns.channel, columns.metric, at)
    )
    with reading(location) as connection:
        return [dict(row) for row in connection.execute(rows).mappings()]


def last_locked(location: StoreLocation, source: str) -> Record | None:
    """
    The newest credible LOCKED sample of a grandmaster that is in holdover now: the holdover began after it.

    As in a daemon that ran all the time, samples without a clock state are skipped, and so are LOCKED samples that contradict
    themselves: without a healthy satellite, or with the clock class of another state. None if the newest samples contain no such
    sample, if the clock was in another state since, or if its holdover was judged invalid since, as after a phase jump.
    Raises StoreError.
    """
    columns = grandmaster_sample.c
    of_source = select(grandmaster_sample).where(columns.source == source, intact(*columns))
    of_source = of_source.order_by(columns.realtime_ns.desc())
    not_holdover = columns.clock_state.not_in((*_HOLDOVERS, ClockState.UNKNOWN.value))
    invalid = columns.clock_state.in_(_HOLDOVERS) & columns.utc_reason_code.not_in(_DATED)
    with reading(location) as connection:
        newest = list(_records(connection, "grandmaster", of_source.where(not_holdover).limit(_CONTRADICTIONS + 1)))
        # One by one: the slow columns that a row leaves out may be in a holdover row between two of these.
        for row in (whole for each in newest for whole in _made_whole(connection, [each])):
            if row["clock_state"] != ClockState.LOCKED.value:
                return None
            if row["clock_class"] in _LOCKED_CLASSES and _has_satellite(row.get("satellites")):
                since = of_source.where(invalid, columns.realtime_ns >= row["realtime_ns"]).limit(1)
                return row if connection.execute(since).first() is None else None
    return None


def _has_satellite(stored: object) -> bool:
    """Whether one is healthy, or none is reported. A damaged list shows none."""
    satellites = checked(_SATELLITES, stored)
    return stored is None or any(each.healthy is not False for each in satellites or ())


def _newest(table: Table, source: str, since_ns: int, until_ns: int, limit: int | None) -> Select[Any]:
    """The newest rows, oldest first."""
    rows = _span(table, source, since_ns, until_ns)
    if limit is None:
        return rows
    newest = rows.order_by(None).order_by(table.c.realtime_ns.desc(), table.c.id.desc()).limit(limit)
    return select(newest.subquery()).order_by("realtime_ns", "id")


def _made_whole(connection: Connection, records: Iterable[Record]) -> Iterator[Record]:
    """Fill the slow columns of each record from the last whole record before it. `records` come oldest first."""
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
        .where(intact(*columns))
        .order_by(columns.realtime_ns.desc())
        .limit(1)
    )
    row = connection.execute(last).mappings().first()
    return dict(row) if row else {}


def _span(table: Table, source: str, since_ns: int, until_ns: int) -> Select[Any]:
    time = table.c.realtime_ns
    within = (table.c.source == source, time >= since_ns, time < until_ns, intact(*table.c))
    return select(table).where(*within).order_by(time, table.c.id)


def _records(connection: Connection, kind: Kind, rows: Select[Any]) -> Iterator[Record]:
    with connection.execution_options(yield_per=1_000).execute(rows) as result:
        for row in result.mappings():
            record = {"kind": kind, **row}
            del record["id"]
            yield record


_STORED = {field.name for field in fields(ClockSample)} - {"port_state", "exchanges", "phc"}


def clock_readings(
    location: StoreLocation, source: str, span_ns: int | None
) -> Iterator[tuple[int, ClockSample | NoSample]]:
    """
    The readings of a PTP source in the last `span_ns` (None: all), with and without a sample, each with the Unix time of its reading.

    Raises ConfigError if the store has no such PTP source, and StoreError.
    """
    known = sources(location)
    if known.get(source) not in ("clock", "event"):
        clocks = ", ".join(name for name, kind in known.items() if kind == "clock")
        problem = "is no PTP source (ptp4l)" if source in known else "is not in the store"
        raise ConfigError(
            f"{location}: source {source!r} {problem}; PTP sources that can be replayed: {clocks or 'none yet'}"
        )
    now_ns = time.time_ns()
    since_ns = 0 if span_ns is None else now_ns - span_ns
    return _readings(location, source, (since_ns, now_ns))


def _readings(
    location: StoreLocation, source: str, span: tuple[int, int]
) -> Iterator[tuple[int, ClockSample | NoSample]]:
    found = heapq.merge(
        events(location, source, *span), samples(location, source, *span), key=lambda row: int(row["realtime_ns"])
    )
    for record in found:
        try:
            reading = _reading(record)
        except (KeyError, TypeError, ValueError) as error:
            when = f"the row of {source} at {record['realtime_ns']} ns"
            raise StoreError(f"{location}: {when} is damaged: {type(error).__name__}: {error}") from error
        if reading is not None:
            yield reading


def _reading(record: Record) -> tuple[int, ClockSample | NoSample] | None:
    if record["kind"] == "clock":
        sample = _clock_sample(record)
        return sample.read_ns + sample.real_minus_boot_ns, sample
    if record["kind"] == "event" and record["reason_code"] is not None:
        return record["realtime_ns"], no_sample(record)
    return None


def _clock_sample(record: Record) -> ClockSample:
    stored = {name: record[name] for name in _STORED}
    return ClockSample(port_state=PortState[record["port_state"]], phc=_phc(record["phc"]), **stored)


def _phc(stored: object) -> PhcSample | None:
    """Raises ValueError, in one line, for what is none."""
    try:
        return None if stored is None else _PHC.validate_python(stored)
    except ValidationError as error:
        raise ValueError(f"phc: {error.errors()[0]['msg']}") from error


_POLL_FAILURES = (NoSampleCause.SOURCE_UNREACHABLE, NoSampleCause.SOURCE_MALFORMED, NoSampleCause.SOURCE_REFUSED)


def no_sample(record: Record) -> NoSample:
    state, cause = record["port_state"], NoSampleCause(record["reason_code"])
    return NoSample(
        record["source"],
        record["boottime_ns"],
        record["reason"],
        restarted=record["restarted"],
        stepped=cause is NoSampleCause.CLOCK_STEPPED,
        port_state=None if state is None else PortState[state],
        poll_failure=cause if cause in _POLL_FAILURES else None,
        change=cause if cause in CHANGES else None,
    )
