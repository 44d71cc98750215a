"""
The time errors that a store holds, as readings for `timesyncd.stability`: a node's measured offsets, a grandmaster's channels.

Times in parameters are Unix times in ns; a span includes its begin and excludes its end. Each raises StoreError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Select, Table, select

from timesyncd.stability.readings import Reading
from timesyncd.store.engine import StoreLocation, reading
from timesyncd.store.history import sources
from timesyncd.store.intact import intact
from timesyncd.store.tables import clock_sample, time_error, utc_sample

_NS_PER_S = 1_000_000_000
_MOMENTARY = "te"


def time_error_channels(location: StoreLocation, source: str, since_ns: int, until_ns: int) -> list[str]:
    """The channels of a grandmaster with momentary time errors in the span, by name."""
    columns = time_error.c
    rows = _span(select(columns.channel).distinct(), time_error, source, since_ns, until_ns)
    with reading(location) as connection:
        return sorted(connection.scalars(rows.where(columns.metric == _MOMENTARY)))


def channel_readings(
    location: StoreLocation, source: str, channel: str, since_ns: int, until_ns: int
) -> Iterator[Reading]:
    """The momentary time errors of one channel, the oldest first. The store does not keep the channel's reference."""
    columns = time_error.c
    rows = _span(select(columns.realtime_ns, columns.value_ns), time_error, source, since_ns, until_ns)
    rows = rows.where(columns.channel == channel, columns.metric == _MOMENTARY).order_by(columns.realtime_ns)
    with reading(location) as connection:
        for at_ns, value_ns in _rows(connection, rows):
            yield Reading(at_ns, value_ns)


def offset_readings(location: StoreLocation, source: str, since_ns: int, until_ns: int) -> Iterator[Reading] | None:
    """The measured offsets of a source against PTP or UTC, the oldest first; None for a source that measures neither."""
    kind = sources(location).get(source)
    if kind == "clock":
        return _ptp_readings(location, source, since_ns, until_ns)
    return _utc_readings(location, source, since_ns, until_ns) if kind == "utc" else None


def _ptp_readings(location: StoreLocation, source: str, since_ns: int, until_ns: int) -> Iterator[Reading]:
    """At the Sync's ingress time where it is known: it is as regular as the Syncs, and the same on two nodes for one Sync."""
    columns = clock_sample.c
    names = (
        columns.realtime_ns, columns.ingress_time_ns, columns.clock, columns.ptp_timescale, columns.current_utc_offset_s,
        columns.offset_ns, columns.grandmaster_identity,
    )  # fmt: skip
    rows = _span(select(*names), clock_sample, source, since_ns, until_ns).order_by(columns.realtime_ns, columns.id)
    with reading(location) as connection:
        for realtime_ns, ingress_ns, clock, ptp_timescale, utc_offset_s, offset_ns, reference in _rows(
            connection, rows
        ):
            # A hardware clock is on the grandmaster's timescale, which is TAI where it is PTP's.
            tai_s = utc_offset_s if ptp_timescale and clock.startswith("phc") else 0
            usable = ingress_ns > 0 and tai_s is not None
            yield Reading(ingress_ns - tai_s * _NS_PER_S if usable else realtime_ns, offset_ns, reference)


def _utc_readings(location: StoreLocation, source: str, since_ns: int, until_ns: int) -> Iterator[Reading]:
    columns = utc_sample.c
    names = (columns.realtime_ns, columns.offset_ns, columns.reference)
    rows = _span(select(*names), utc_sample, source, since_ns, until_ns).order_by(columns.realtime_ns, columns.id)
    with reading(location) as connection:
        for row in _rows(connection, rows):
            yield Reading(*row)


def _span(rows: Select[Any], table: Table, source: str, since_ns: int, until_ns: int) -> Select[Any]:
    at = table.c.realtime_ns
    return rows.where(table.c.source == source, at >= since_ns, at < until_ns, intact(*table.c))


def _rows(connection: Connection, rows: Select[Any]) -> Iterator[Any]:
    with connection.execution_options(yield_per=1_000).execute(rows) as result:
        yield from result
