"""
Readings, findings and events -> rows of the store's tables. Pure.

A grandmaster's long lists are the same from poll to poll, so only some of its rows are whole (`WholeRowSchedule`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, ClassVar

from sqlalchemy import JSON, Column, Table

from timesyncd.bound import Bound, ErrorBound, Rate, Reason, Term
from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import CloudEvent, Rollup
from timesyncd.messages.node import AlarmEventMessage, FindingMessage, status_name
from timesyncd.sample import (
    ClockSample,
    GrandmasterSample,
    KernelSample,
    NoSample,
    NoSampleCause,
    PhcSample,
    PortState,
    Reading,
    TimeErrorSeries,
    UtcSample,
)
from timesyncd.store import tables
from timesyncd.store.tables import SLOW

Row = dict[str, Any]
"""By column names."""

Values = tuple[Any, ...]
"""In the order of the table's columns, with JSON as text: the parameters of an INSERT."""

_GRANDMASTER_FIELDS = tuple(field.name for field in fields(GrandmasterSample))

#: Points per entry: a day of one channel is 86,400 points, too large for one batch or one loss.
SERIES_POINTS = 1_000

_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(slots=True)
class RowEntry:
    """A row on its way to the store. `queued_ns` is CLOCK_BOOTTIME when it was put; a gap names its `source` if it is lost."""

    table: Table
    row: Row
    source: str
    realtime_ns: int
    queued_ns: int

    def __len__(self) -> int:
        return 1

    def values(self) -> Iterator[Values]:
        yield values_of(self.table, self.row)


@dataclass(slots=True)
class SeriesEntry(RowEntry):
    """Several rows of time_error that share `row` and differ in (realtime_ns, value_ns)."""

    points: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.points)

    def values(self) -> Iterator[Values]:
        for realtime_ns, value_ns in self.points:
            yield values_of(self.table, self.row | {"realtime_ns": realtime_ns, "value_ns": value_ns})


@dataclass(slots=True)
class ClockEntry:
    """A sample of a clock. There are many, so the store's thread makes the row when it stores it."""

    sample: ClockSample
    bound: ErrorBound | None
    queued_ns: int

    table: ClassVar[Table] = tables.clock_sample

    @property
    def source(self) -> str:
        return self.sample.source

    @property
    def realtime_ns(self) -> int:
        return self.sample.as_of_ns + self.sample.real_minus_boot_ns

    def __len__(self) -> int:
        return 1

    def values(self) -> tuple[Values]:
        return (clock_values(self.sample, self.bound),)


@dataclass(slots=True)
class EventEntry:
    """A CloudEvent; it gets its sequence number in the node's history when it is stored."""

    event: CloudEvent
    realtime_ns: int
    queued_ns: int

    table: ClassVar[Table] = tables.event

    @property
    def source(self) -> str:
        return self.event.subject or self.event.type

    def __len__(self) -> int:
        return 1


Entry = RowEntry | ClockEntry | EventEntry


def rollup_entries(node: str, made: Rollup, queued_ns: int) -> Iterator[RowEntry]:
    """One row for each quantity."""
    at = {"node": node, "source": made.source, "span_s": made.span_s, "realtime_ns": made.begins_realtime_ns}
    for quantity, of in made.quantities.items():
        row = at | {"quantity": quantity} | of.model_dump()
        yield RowEntry(tables.rollup, row, made.source, made.begins_realtime_ns, queued_ns)


@cache
def stored_columns(table: Table) -> tuple[Column[Any], ...]:
    """All columns but the store's own `id`."""
    return tuple(column for column in table.c if column.name != "id")


def values_of(table: Table, row: Row) -> Values:
    return tuple(_stored(column, row[column.name]) for column in stored_columns(table))


def _stored(column: Column[Any], value: Any) -> Any:
    return value if value is None or not isinstance(column.type, JSON) else _json(value)


@dataclass(frozen=True, slots=True)
class SourceAvailability:
    """
    Whether a source's last reading gave a sample (`cause` None) or why it did not. The store keeps the changes; a new wording of
    `reason`, which is for people, is not a change.
    """

    cause: NoSampleCause | None = None
    reason: str | None = field(default=None, compare=False)
    restarted: bool = False
    port_state: PortState | None = None


def availability_of(reading: Reading) -> SourceAvailability | None:
    """None for a series, which is of the past."""
    match reading:
        case NoSample():
            return SourceAvailability(reading.cause, reading.reason, reading.restarted, reading.port_state)
        case TimeErrorSeries():
            return None
        case _:
            return SourceAvailability()


def phc_entry(sample: PhcSample, now_ns: int) -> RowEntry:
    row = _columns_of(sample) | {"realtime_ns": sample.as_of_ns + sample.real_minus_boot_ns}
    return RowEntry(tables.phc_sample, row, sample.source, row["realtime_ns"], now_ns)


def utc_entry(sample: UtcSample, bound: ErrorBound | None, now_ns: int) -> RowEntry:
    row = _columns_of(sample) | {"realtime_ns": sample.as_of_ns + sample.real_minus_boot_ns}
    row |= _utc_columns(None if bound is None else bound.utc_hard)
    row["utc_status"] = None if bound is None else status_name(bound.utc_status)
    return RowEntry(tables.utc_sample, row, sample.source, row["realtime_ns"], now_ns)


def kernel_entry(sample: KernelSample, real_minus_boot_ns: int, now_ns: int) -> RowEntry:
    row = _columns_of(sample) | {"realtime_ns": sample.boottime_ns + real_minus_boot_ns}
    return RowEntry(tables.kernel_sample, row, sample.source, row["realtime_ns"], now_ns)


def grandmaster_entries(
    sample: GrandmasterSample, own_error: Bound | None, real_minus_boot_ns: int, now_ns: int, *, whole: bool
) -> Iterator[RowEntry]:
    """The sample's row and, if the row is whole, rows of its newest time errors, dated by the grandmaster itself."""
    row = grandmaster_row(sample, own_error, real_minus_boot_ns, whole=whole)
    yield RowEntry(tables.grandmaster_sample, row, sample.source, row["realtime_ns"], now_ns)
    for newest in (sample.time_errors or ()) if whole else ():
        points = ((newest.at_realtime_ns, newest.value_ns),)
        yield from series_entries(TimeErrorSeries(sample.source, newest.channel, newest.metric, points), now_ns)


def series_entries(series: TimeErrorSeries, now_ns: int) -> Iterator[RowEntry]:
    row = {"source": series.source, "channel": series.channel, "metric": series.metric}
    for start in range(0, len(series.points), SERIES_POINTS):
        points = series.points[start : start + SERIES_POINTS]
        yield SeriesEntry(tables.time_error, row, series.source, points[0][0], now_ns, points)


def alarm_event_entry(message: AlarmEventMessage, now_ns: int) -> RowEntry:
    row = {
        "source": message.name,
        "realtime_ns": message.published_realtime_ns,
        "alarm_id": message.id,
        "alarm_index": message.index,
    } | {name: getattr(message, name) for name in ("action", "severity", "text", "alarm_sequence", "lost", "at")}
    return RowEntry(tables.alarm_event, row, message.name, message.published_realtime_ns, now_ns)


def source_event_entry(source: str, state: SourceAvailability, real_minus_boot_ns: int, now_ns: int) -> RowEntry:
    realtime_ns = now_ns + real_minus_boot_ns
    row = {
        "source": source,
        "realtime_ns": realtime_ns,
        "boottime_ns": now_ns,
        "reason_code": None if state.cause is None else state.cause.value,
        "reason": state.reason,
        "restarted": state.restarted,
        "port_state": None if state.port_state is None else state.port_state.name,
    }
    return RowEntry(tables.source_event, row, source, realtime_ns, now_ns)


def finding_entry(finding: FindingMessage, now_ns: int) -> RowEntry:
    row = finding.model_dump()
    row["finding_id"] = row.pop("id")
    return RowEntry(tables.finding, row, finding.subject, finding.since_realtime_ns, now_ns)


_CONVERTED = ("port_state", "exchanges", "phc")
_CLOCK_FIELDS = tuple(field.name for field in fields(ClockSample) if field.name not in _CONVERTED)
_of_sample = attrgetter(*_CLOCK_FIELDS)
_OK = Reason.OK
_REASON_CODES = {reason: reason.name.lower() for reason in Reason}
_PORT_STATES = {state: state.name for state in PortState}
_BOUND_NAMES = ("parent", "gm", "utc")
_BOUND_COLUMNS = (
    *(f"{name}_{column}" for name in _BOUND_NAMES for column in ("bound_ns", "growth_ppb", "reason_code")),
    *(f"{name}_stat_{column}" for name in _BOUND_NAMES for column in ("bound_ns", "growth_ppb")),
    "gm_status", "utc_status", "utc_seconds_removed", "terms", "stat_terms", "rates",
)  # fmt: skip
_NO_BOUND = (None,) * len(_BOUND_COLUMNS)

#: The order in which `clock_values` has them.
CLOCK_COLUMNS = (*_CLOCK_FIELDS, "realtime_ns", *_CONVERTED, *_BOUND_COLUMNS)


def clock_values(sample: ClockSample, bound: ErrorBound | None) -> Values:
    """The row of a sample, in the order of CLOCK_COLUMNS. Only these rows are so frequent that their cost matters."""
    exchanges = sample.exchanges
    return (
        *_of_sample(sample),
        sample.as_of_ns + sample.real_minus_boot_ns,
        _PORT_STATES[sample.port_state],
        _json(_plain(exchanges)) if exchanges else None,
        _json(_columns_of(sample.phc)) if sample.phc else None,
        *(_NO_BOUND if bound is None else _bound_values(bound)),
    )


def _bound_values(bound: ErrorBound) -> Values:
    return (
        *_columns(bound.parent_hard),
        *_columns(bound.gm_hard),
        *_columns(bound.utc_hard),
        *_columns(bound.parent_stat)[:2],
        *_columns(bound.gm_stat)[:2],
        *_columns(bound.utc_stat)[:2],
        status_name(bound.gm_status),
        status_name(bound.utc_status),
        bound.utc_seconds_removed,
        _numbers(bound.terms),
        _numbers(bound.stat_terms),
        _numbers(bound.rates),
    )


def _numbers(named: Mapping[Term, int] | Mapping[Rate, int]) -> str:
    """The numbers as JSON, by a cached format string in half the time: the names are the same from sample to sample."""
    return _numbers_format(tuple(named)) % tuple(named.values())


@lru_cache(maxsize=64)
def _numbers_format(names: tuple[str, ...]) -> str:
    return "{" + ",".join(f"{_json(name)}:".replace("%", "%%") + "%d" for name in names) + "}"


def _columns(bound: Bound) -> tuple[int | None, int | None, str | None]:
    """The values of bound_ns, growth_ppb and reason_code; the code is NULL where the reason is OK."""
    bound_ns, growth_ppb, reason = bound
    return bound_ns, None if bound_ns is None else growth_ppb, None if reason is _OK else _REASON_CODES[reason]


def _utc_columns(bound: Bound | None) -> Row:
    names = ("utc_bound_ns", "utc_growth_ppb", "utc_reason_code")
    return dict(zip(names, (None, None, None) if bound is None else _columns(bound), strict=True))


def grandmaster_row(sample: GrandmasterSample, own_error: Bound | None, real_minus_boot_ns: int, *, whole: bool) -> Row:
    """The slow columns of a row that is not whole are NULL."""
    row = {name: _plain(getattr(sample, name)) for name in _GRANDMASTER_FIELDS if whole or name not in tables.SLOW}
    row |= dict.fromkeys(() if whole else tables.SLOW)
    row["realtime_ns"] = sample.boottime_ns + real_minus_boot_ns
    row["clock_state"] = None if sample.clock_state is None else sample.clock_state.value
    row["whole"] = whole
    return row | _utc_columns(own_error)


def _columns_of(sample: PhcSample | UtcSample | KernelSample) -> Row:
    return {field.name: _plain(getattr(sample, field.name)) for field in fields(sample)}


def _plain(value: Any) -> Any:
    """The value in JSON's types."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


#: A whole row is due at least so often: deleting old rows, or a new file, removes the last one.
WHOLE_EVERY_NS = 3_600 * NS_PER_S


class WholeRowSchedule:
    """Decides which rows of each grandmaster are whole, by the slow values of its last whole row."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[object, ...], int]] = {}

    def is_due(self, sample: GrandmasterSample) -> bool:
        """Whether a slow value differs from the last whole row or that row is an hour old. True makes this row the last one."""
        compared = _without_directions(sample)
        values = tuple(getattr(compared, name) for name in SLOW)
        last, since_ns = self._last.get(sample.source, (None, 0))
        if last == values and sample.boottime_ns - since_ns < WHOLE_EVERY_NS:
            return False
        self._last[sample.source] = values, sample.boottime_ns
        return True

    def reset(self) -> None:
        """A whole row may have been lost: make each grandmaster's next row whole."""
        self._last.clear()


def _without_directions(sample: GrandmasterSample) -> GrandmasterSample:
    """Satellites move by a degree each few minutes: that alone makes no row whole."""
    if sample.satellites is None:
        return sample
    still = tuple(replace(each, azimuth_deg=None, elevation_deg=None) for each in sample.satellites)
    return replace(sample, satellites=still)
