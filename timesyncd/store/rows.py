"""What the daemon hands over -> rows of the store's tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from sqlalchemy import Table

from timesyncd.bound import Bound, ErrorBound, Reason
from timesyncd.messages import AlarmEventMessage, FindingMessage, status_name
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

Row = dict[str, Any]

_UNIT_FIELDS = tuple(field.name for field in fields(GrandmasterSample))

#: A day of one channel is 86,400 points: in pieces, so that neither a batch nor a loss is that large.
SERIES_POINTS = 1_000


@dataclass(frozen=True, slots=True)
class Entry:
    """
    A row on its way; `queued_ns` is CLOCK_BOOTTIME when it was handed over, `source` names whom its loss concerns.

    With `points` it is so many rows of time_error that have `row` in common: (realtime_ns, value_ns) of each.
    """

    table: Table
    row: Row
    source: str
    realtime_ns: int
    queued_ns: int
    points: tuple[tuple[int, int], ...] | None = None

    def __len__(self) -> int:
        return 1 if self.points is None else len(self.points)

    def rows(self) -> Iterator[Row]:
        if self.points is None:
            yield self.row
        else:
            for realtime_ns, value_ns in self.points:
                yield self.row | {"realtime_ns": realtime_ns, "value_ns": value_ns}


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


def clock_entry(sample: ClockSample, bound: ErrorBound | None, now_ns: int) -> Entry:
    row = clock_row(sample, bound)
    return Entry(tables.clock_sample, row, sample.source, row["realtime_ns"], now_ns)


def phc_entry(sample: PhcSample, now_ns: int) -> Entry:
    row = _fields(sample) | {"realtime_ns": sample.as_of_ns + sample.real_minus_boot_ns}
    return Entry(tables.phc_sample, row, sample.source, row["realtime_ns"], now_ns)


def utc_entry(sample: UtcSample, bound: ErrorBound | None, now_ns: int) -> Entry:
    row = _fields(sample) | {"realtime_ns": sample.as_of_ns + sample.real_minus_boot_ns}
    row |= _bound_columns("utc", None if bound is None else bound.utc_hard)
    row["utc_status"] = None if bound is None else status_name(bound.utc_status)
    return Entry(tables.utc_sample, row, sample.source, row["realtime_ns"], now_ns)


def kernel_entry(sample: KernelSample, real_minus_boot_ns: int, now_ns: int) -> Entry:
    row = _fields(sample) | {"realtime_ns": sample.boottime_ns + real_minus_boot_ns}
    return Entry(tables.kernel_sample, row, sample.source, row["realtime_ns"], now_ns)


def grandmaster_entries(
    sample: GrandmasterSample, own_error: Bound | None, real_minus_boot_ns: int, now_ns: int, *, whole: bool
) -> Iterator[Entry]:
    """The sample; with a whole one its newest time errors too, which the unit has dated itself."""
    row = grandmaster_row(sample, own_error, real_minus_boot_ns, whole=whole)
    yield Entry(tables.grandmaster_sample, row, sample.source, row["realtime_ns"], now_ns)
    for newest in (sample.time_errors or ()) if whole else ():
        points = ((newest.at_realtime_ns, newest.value_ns),)
        yield from series_entries(TimeErrorSeries(sample.source, newest.channel, newest.metric, points), now_ns)


def series_entries(series: TimeErrorSeries, now_ns: int) -> Iterator[Entry]:
    row = {"source": series.source, "channel": series.channel, "metric": series.metric}
    for start in range(0, len(series.points), SERIES_POINTS):
        points = series.points[start : start + SERIES_POINTS]
        yield Entry(tables.time_error, row, series.source, points[0][0], now_ns, points)


def alarm_event_entry(message: AlarmEventMessage, now_ns: int) -> Entry:
    row = {
        "source": message.name,
        "realtime_ns": message.published_realtime_ns,
        "alarm_id": message.id,
        "alarm_index": message.index,
    } | {name: getattr(message, name) for name in ("action", "severity", "text", "alarm_sequence", "lost", "at")}
    return Entry(tables.alarm_event, row, message.name, message.published_realtime_ns, now_ns)


def event_entry(source: str, state: SourceState, real_minus_boot_ns: int, now_ns: int) -> Entry:
    realtime_ns = now_ns + real_minus_boot_ns
    row = {
        "source": source,
        "realtime_ns": realtime_ns,
        "boottime_ns": now_ns,
        "reason": state.reason,
        "restarted": state.restarted,
        "port_state": None if state.port_state is None else state.port_state.name,
    }
    return Entry(tables.source_event, row, source, realtime_ns, now_ns)


def finding_entry(finding: FindingMessage, now_ns: int) -> Entry:
    row = finding.model_dump()
    row["finding_id"] = row.pop("id")
    return Entry(tables.finding, row, finding.subject, finding.since_realtime_ns, now_ns)


def clock_row(sample: ClockSample, bound: ErrorBound | None) -> Row:
    row = _fields(sample)
    row["exchanges"] = row["exchanges"] or None
    row["realtime_ns"] = sample.as_of_ns + sample.real_minus_boot_ns
    row["port_state"] = sample.port_state.name
    for name in ("parent", "gm", "utc"):
        row |= _bound_columns(name, None if bound is None else getattr(bound, f"{name}_hard"))
        row |= _stat_columns(name, None if bound is None else getattr(bound, f"{name}_stat"))
    row["gm_status"] = None if bound is None else status_name(bound.gm_status)
    row["utc_status"] = None if bound is None else status_name(bound.utc_status)
    row["utc_seconds_removed"] = None if bound is None else bound.utc_seconds_removed
    row |= {name: None if bound is None else getattr(bound, name) for name in ("terms", "stat_terms", "rates")}
    return row


def _bound_columns(name: str, bound: Bound | None) -> Row:
    """A bound that is not unbounded has no reason to give: NULL."""
    reason = None if bound is None or bound.reason is Reason.OK else bound.reason.name
    bound_ns = None if bound is None else bound.bound_ns
    growth_ppb = None if bound is None or bound_ns is None else bound.growth_ppb
    return {f"{name}_bound_ns": bound_ns, f"{name}_growth_ppb": growth_ppb, f"{name}_reason": reason}


def _stat_columns(name: str, bound: Bound | None) -> Row:
    """Unbounded for the hard one's reason, or not computed yet."""
    columns = _bound_columns(f"{name}_stat", bound)
    del columns[f"{name}_stat_reason"]
    return columns


def grandmaster_row(sample: GrandmasterSample, own_error: Bound | None, real_minus_boot_ns: int, *, whole: bool) -> Row:
    """A row that is not whole says nothing of the slow columns."""
    row = {name: _plain(getattr(sample, name)) for name in _UNIT_FIELDS if whole or name not in tables.SLOW}
    row |= dict.fromkeys(() if whole else tables.SLOW)
    row["realtime_ns"] = sample.boottime_ns + real_minus_boot_ns
    row["clock_state"] = None if sample.clock_state is None else sample.clock_state.value
    row["whole"] = whole
    return row | _bound_columns("utc", own_error)


def _fields(sample: ClockSample | PhcSample | UtcSample | KernelSample) -> Row:
    return {field.name: _plain(getattr(sample, field.name)) for field in fields(sample)}


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
