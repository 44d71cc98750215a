"""
What the daemon hands over -> rows of the store's tables. Pure.

Which of a grandmaster's samples are stored whole: its long lists are the same from poll to poll.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, ClassVar

from sqlalchemy import JSON, Column, Table

from timesyncd.bound import Bound, ErrorBound, Rate, Reason, Term
from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import CloudEvent
from timesyncd.messages.node import AlarmEventMessage, FindingMessage, status_name
from timesyncd.sample import (
    ClockSample,
    GrandmasterSample,
    KernelSample,
    NoSample,
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
"""In the order of the table's columns, JSON as text: what the database takes."""

_UNIT_FIELDS = tuple(field.name for field in fields(GrandmasterSample))

#: A day of one channel is 86,400 points: in pieces, so that neither a batch nor a loss is that large.
SERIES_POINTS = 1_000

_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(slots=True)
class RowEntry:
    """A row on its way; `queued_ns` is CLOCK_BOOTTIME when it was handed over, `source` names whom its loss concerns."""

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
    """So many rows of time_error that have `row` in common: (realtime_ns, value_ns) of each."""

    points: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.points)

    def values(self) -> Iterator[Values]:
        for realtime_ns, value_ns in self.points:
            yield values_of(self.table, self.row | {"realtime_ns": realtime_ns, "value_ns": value_ns})


@dataclass(slots=True)
class ClockEntry:
    """A sample of a clock, of which there are many: its row is made when it is stored, by the store's thread."""

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
    """A CloudEvent, whose number in the node's history it gets when it is stored."""

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


@cache
def stored_columns(table: Table) -> tuple[Column[Any], ...]:
    """All but the store's own `id`."""
    return tuple(column for column in table.c if column.name != "id")


def values_of(table: Table, row: Row) -> Values:
    return tuple(_stored(column, row[column.name]) for column in stored_columns(table))


def _stored(column: Column[Any], value: Any) -> Any:
    return value if value is None or not isinstance(column.type, JSON) else _json(value)


@dataclass(frozen=True, slots=True)
class SourceState:
    """What a source's readings were last: samples (`reason` None), or none, and why. Only its changes are stored."""

    reason: str | None = None
    restarted: bool = False
    port_state: PortState | None = None


def state_of(reading: Reading) -> SourceState | None:
    """None for a series: it is of the past and says nothing of the present."""
    match reading:
        case NoSample():
            return SourceState(reading.reason, reading.restarted, reading.port_state)
        case TimeErrorSeries():
            return None
        case _:
            return SourceState()


def phc_entry(sample: PhcSample, now_ns: int) -> RowEntry:
    row = _fields(sample) | {"realtime_ns": sample.as_of_ns + sample.real_minus_boot_ns}
    return RowEntry(tables.phc_sample, row, sample.source, row["realtime_ns"], now_ns)


def utc_entry(sample: UtcSample, bound: ErrorBound | None, now_ns: int) -> RowEntry:
    row = _fields(sample) | {"realtime_ns": sample.as_of_ns + sample.real_minus_boot_ns}
    row |= _bound_columns("utc", None if bound is None else bound.utc_hard)
    row["utc_status"] = None if bound is None else status_name(bound.utc_status)
    return RowEntry(tables.utc_sample, row, sample.source, row["realtime_ns"], now_ns)


def kernel_entry(sample: KernelSample, real_minus_boot_ns: int, now_ns: int) -> RowEntry:
    row = _fields(sample) | {"realtime_ns": sample.boottime_ns + real_minus_boot_ns}
    return RowEntry(tables.kernel_sample, row, sample.source, row["realtime_ns"], now_ns)


def grandmaster_entries(
    sample: GrandmasterSample, own_error: Bound | None, real_minus_boot_ns: int, now_ns: int, *, whole: bool
) -> Iterator[RowEntry]:
    """The sample; with a whole one its newest time errors too, which the unit has dated itself."""
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


def event_entry(source: str, state: SourceState, real_minus_boot_ns: int, now_ns: int) -> RowEntry:
    realtime_ns = now_ns + real_minus_boot_ns
    row = {
        "source": source,
        "realtime_ns": realtime_ns,
        "boottime_ns": now_ns,
        "reason": state.reason,
        "restarted": state.restarted,
        "port_state": None if state.port_state is None else state.port_state.name,
    }
    return RowEntry(tables.source_event, row, source, realtime_ns, now_ns)


def finding_entry(finding: FindingMessage, now_ns: int) -> RowEntry:
    row = finding.model_dump()
    row["finding_id"] = row.pop("id")
    return RowEntry(tables.finding, row, finding.subject, finding.since_realtime_ns, now_ns)


_CLOCK_FIELDS = tuple(field.name for field in fields(ClockSample) if field.name not in ("port_state", "exchanges"))
_of_sample = attrgetter(*_CLOCK_FIELDS)
_OK = Reason.OK
_REASONS = {reason: reason.name for reason in Reason}
_PORT_STATES = {state: state.name for state in PortState}
_BOUND_NAMES = ("parent", "gm", "utc")
_BOUND_COLUMNS = (
    *(f"{name}_{column}" for name in _BOUND_NAMES for column in ("bound_ns", "growth_ppb", "reason")),
    *(f"{name}_stat_{column}" for name in _BOUND_NAMES for column in ("bound_ns", "growth_ppb")),
    "gm_status", "utc_status", "utc_seconds_removed", "terms", "stat_terms", "rates",
)  # fmt: skip
_NO_BOUND = (None,) * len(_BOUND_COLUMNS)

#: The order in which `clock_values` has them.
CLOCK_COLUMNS = (*_CLOCK_FIELDS, "realtime_ns", "port_state", "exchanges", *_BOUND_COLUMNS)


def clock_values(sample: ClockSample, bound: ErrorBound | None) -> Values:
    """The row of a sample, in the order of CLOCK_COLUMNS: of all rows only these are so many that their making counts."""
    seen = sample.exchanges
    return (
        *_of_sample(sample),
        sample.as_of_ns + sample.real_minus_boot_ns,
        _PORT_STATES[sample.port_state],
        _json(_plain(seen)) if seen else None,
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
    """As JSON, in half the time: the names are the same from sample to sample."""
    return _numbers_format(tuple(named)) % tuple(named.values())


@lru_cache(maxsize=64)
def _numbers_format(names: tuple[str, ...]) -> str:
    return "{" + ",".join(f"{_json(name)}:".replace("%", "%%") + "%d" for name in names) + "}"


def _columns(bound: Bound) -> tuple[int | None, int | None, str | None]:
    """Its columns bound_ns, growth_ppb and reason; one that is not unbounded has no reason to give: NULL."""
    bound_ns, growth_ppb, reason = bound
    return bound_ns, None if bound_ns is None else growth_ppb, None if reason is _OK else _REASONS[reason]


def _bound_columns(name: str, bound: Bound | None) -> Row:
    names = (f"{name}_bound_ns", f"{name}_growth_ppb", f"{name}_reason")
    return dict(zip(names, (None, None, None) if bound is None else _columns(bound), strict=True))


def grandmaster_row(sample: GrandmasterSample, own_error: Bound | None, real_minus_boot_ns: int, *, whole: bool) -> Row:
    """A row that is not whole says nothing of the slow columns."""
    row = {name: _plain(getattr(sample, name)) for name in _UNIT_FIELDS if whole or name not in tables.SLOW}
    row |= dict.fromkeys(() if whole else tables.SLOW)
    row["realtime_ns"] = sample.boottime_ns + real_minus_boot_ns
    row["clock_state"] = None if sample.clock_state is None else sample.clock_state.value
    row["whole"] = whole
    return row | _bound_columns("utc", own_error)


def _fields(sample: PhcSample | UtcSample | KernelSample) -> Row:
    return {field.name: _plain(getattr(sample, field.name)) for field in fields(sample)}


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


#: However little changes: what deleting old rows, or a file made anew, takes away stands again after this.
WHOLE_EVERY_NS = 3_600 * NS_PER_S


class WholeRows:
    """Of each unit, what its last whole row held."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[object, ...], int]] = {}

    def is_due(self, sample: GrandmasterSample) -> bool:
        """Whether anything slow differs from the last whole row, or that is an hour old. True makes this one the last."""
        values = tuple(getattr(sample, name) for name in SLOW)
        last, since_ns = self._last.get(sample.source, (None, 0))
        if last == values and sample.boottime_ns - since_ns < WHOLE_EVERY_NS:
            return False
        self._last[sample.source] = values, sample.boottime_ns
        return True

    def forget(self) -> None:
        """A whole row may have been lost: each unit's next row is whole."""
        self._last.clear()
