"""
A recorded trace of ptp4l's measurements, run through the model: the bound at each row, from the rows up to it. Pure.

It also reads the CSV of such a trace and writes that of the bounds; docs/replay.md describes both.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from enum import Enum, auto
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from timesyncd.bound import ClockStatus, ErrorBound, Reference, reference_bound, status_at, steered_ns
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, RawReading
from timesyncd.errors import TraceError
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings, combined, utc_error, wider
from timesyncd.sample import ClockSample, NoSample, PortState, identity_text

if TYPE_CHECKING:
    from _csv import Reader

_SOURCE = "trace"

#: A trace has no readers who could miss a small step of the clock, and a step shows in the offset.
SETTINGS = EnsembleSettings(SourceSettings(step_tolerance_ns=0))

_GRANDMASTER = "000000.0000.000001"
_GNSS = 0x20
_CLASS_UNKNOWN = 248
_ACCURACY_UNKNOWN = 0xFE

#: A trace does not contain the Sync interval, which limits how strongly a servo responds: that of 128 Syncs a second.
_FASTEST_SYNC_NS = NS_PER_S // 128

_FOLLOWING = (None, PortState.SLAVE, PortState.UNCALIBRATED)


class TraceEvent(Enum):
    """An event that makes all earlier samples invalid: the clock was stepped; or ptp4l restarted, or lines are lost."""

    STEPPED = auto()
    RESTARTED = auto()


class TraceRow(NamedTuple):
    """
    One reading of ptp4l by a management client at `t_ns`, or one line of its log; None = absent.

    `offset_ns` is local minus master. `freq_ppb` is as ptp4l logs it: positive = the local clock runs fast, and is
    slowed by so much. `is_sync`: the offset is that of a Sync since the row before, even where it is the same number.
    It arrived after `after_ns` (None: after the row before); `sync_interval_ns` is the shortest of the last ones.
    `parent` numbers the masters in the order in which the clock followed them. An `event` precedes what the row holds.
    """

    t_ns: int
    offset_ns: int | None
    path_delay_ns: int | None = None
    freq_ppb: int | None = None
    port_state: PortState | None = None
    gm_present: bool | None = None
    clock_class: int | None = None
    clock_accuracy: int | None = None
    event: TraceEvent | None = None
    is_sync: bool = False
    after_ns: int | None = None
    sync_interval_ns: int | None = None
    parent: int = 0


class ReplayedRow(NamedTuple):
    """The bounds on |local clock error| at `t_ns`; None = unbounded. `status` is the one against the grandmaster."""

    t_ns: int
    status: ClockStatus
    gm_hard_ns: int | None
    gm_stat_ns: int | None
    utc_hard_ns: int | None
    utc_stat_ns: int | None


class Replay:
    """Runs the rows of a trace through the model, one by one; time must not go back."""

    def __init__(self) -> None:
        self._ensemble = Ensemble({_SOURCE: SETTINGS})
        self._last: TraceRow | None = None
        """The last row with an offset: a row without one does not date the next Sync."""
        self._sample: ClockSample | None = None
        self._known: tuple[int | None, int | None] | None = None
        """The grandmaster's clock class and accuracy in the current bound."""
        self._invalidated: ErrorBound | None = None
        """After an event, the bound that it ended."""

    def accept(self, row: TraceRow) -> ReplayedRow:
        if row.event is not None:
            self._interrupt(row.event, row.t_ns)
        last, ensemble, frequency_ppb = self._last, self._ensemble, _frequency_ppb(row)
        if row.offset_ns is not None:
            self._last = row
        if row.port_state in _FOLLOWING and row.gm_present is not False and last is not None and _is_fresh(row, last):
            self._sample = _sample(row, last.t_ns if row.after_ns is None else row.after_ns)
            update = ensemble.accept(self._sample)
            if update.source_bound is not None:
                self._known = row.clock_class, row.clock_accuracy
            elif ensemble.source_bound(_SOURCE) is None:
                self._invalidated = update.bound or self._invalidated
        else:
            ensemble.accept(NoSample(_SOURCE, row.t_ns, "", port_state=row.port_state, frequency_ppb=frequency_ppb))
        return bounds_at(self._with_newest_grandmaster(row) or self._invalidated, row.t_ns)

    def _interrupt(self, event: TraceEvent, t_ns: int) -> None:
        stepped = event is TraceEvent.STEPPED
        reading = NoSample(_SOURCE, t_ns, "", stepped=stepped, restarted=not stepped)
        self._invalidated = self._ensemble.accept(reading).bound or self._invalidated
        self._last = self._sample = self._known = None

    def _with_newest_grandmaster(self, row: TraceRow) -> ErrorBound | None:
        """A worse clock class or accuracy counts at once, also without a fresh Sync."""
        bound, sample = self._ensemble.source_bound(_SOURCE), self._sample
        if bound is None or sample is None or row.clock_class is None:
            return bound
        if (row.clock_class, row.clock_accuracy) == self._known:
            return bound
        accuracy = _ACCURACY_UNKNOWN if row.clock_accuracy is None else row.clock_accuracy
        announced = utc_error(
            replace(sample, clock_class=row.clock_class, clock_accuracy=accuracy), SETTINGS.source, None
        )
        return replace(
            bound,
            utc_hard=wider(bound.utc_hard, combined(bound.gm_hard, announced)),
            utc_stat=wider(bound.utc_stat, combined(bound.gm_stat, announced)),
        )


class StoredReplay:
    """
    Runs the stored readings of a daemon's clock source `source` through the model, in their order.

    With hardware timestamps the bounds are those of the system clock where the PHC was read at each Sync, and otherwise
    those of the measured PHC.
    """

    def __init__(self, source: str, settings: EnsembleSettings) -> None:
        self._source = source
        self._ensemble = Ensemble({source: settings})
        self._last: ClockSample | None = None
        self._bound: ErrorBound | None = None

    def accept(self, reading: ClockSample | NoSample) -> ReplayedRow:
        """The bounds at the moment of the reading."""
        if isinstance(reading, NoSample):
            self._accept(reading)
            return bounds_at(self._bound, reading.boottime_ns)
        if self._last is not None and (broken := _broken(self._last, reading)):
            self._accept(broken)
        self._last = reading
        self._accept(reading if reading.phc else replace(reading, clock="realtime"))
        return bounds_at(self._bound, reading.read_ns)

    def _accept(self, reading: ClockSample | NoSample) -> None:
        """As the daemon publishes: the last bound remains until another one follows."""
        self._bound = self._ensemble.accept(reading).bound or self._bound


def bounds_at(bound: ErrorBound | None, t_ns: int, raw: RawReading | None = None) -> ReplayedRow:
    """The bound's values and status at `t_ns`; hard bounds as a reader has them who measures the clock's steering by `raw`."""
    if bound is None:
        return ReplayedRow(t_ns, ClockStatus.UNKNOWN, None, None, None, None)
    age_ns = max(0, t_ns - bound.as_of_ns)
    status = status_at(bound.gm_status, age_ns, bound.holdover_after_ns, bound.void_after_ns)
    if status in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        return ReplayedRow(t_ns, status, None, None, None, None)
    if raw is None:
        gm_ns, utc_ns = bound.gm_hard.at(age_ns), bound.utc_hard.at(age_ns)
    else:
        gm_ns, utc_ns = (
            reference_bound(bound, each).at(age_ns, steered_ns(bound, raw))
            for each in (Reference.GRANDMASTER, Reference.UTC)
        )
    return ReplayedRow(t_ns, status, gm_ns, bound.gm_stat.at(age_ns), utc_ns, bound.utc_stat.at(age_ns))


def _broken(last: ClockSample, new: ClockSample) -> NoSample | None:
    """The interruption between two stored samples that the daemon saw, but did not store; None: there was none."""
    if new.clock != last.clock or new.read_ns < last.read_ns:
        return NoSample(new.source, new.as_of_ns, "another clock, or another boot", restarted=True)
    stepped_ns = abs(new.real_minus_boot_ns - last.real_minus_boot_ns)
    if new.clock == "realtime" and stepped_ns > STEP_TOLERANCE_NS:
        return NoSample(new.source, new.as_of_ns, "the clock was stepped", stepped=True)
    return None


def _is_fresh(row: TraceRow, last: TraceRow) -> bool:
    if row.offset_ns is None or row.path_delay_ns is None:
        return False
    return row.is_sync or row.offset_ns != last.offset_ns


def _sample(row: TraceRow, last_ns: int) -> ClockSample:
    assert row.offset_ns is not None and row.path_delay_ns is not None
    return ClockSample(
        source=_SOURCE,
        clock="realtime",
        as_of_ns=last_ns,
        read_ns=row.t_ns,
        real_minus_boot_ns=0,
        offset_ns=row.offset_ns,
        path_delay_ns=row.path_delay_ns,
        granularity_ns=1,
        ingress_time_ns=row.t_ns,
        port_state=row.port_state or PortState.SLAVE,
        grandmaster_identity=_GRANDMASTER,
        parent_identity=_GRANDMASTER if row.parent == 0 else identity_text(1 + row.parent),
        steps_removed=1,
        clock_class=_CLASS_UNKNOWN if row.clock_class is None else row.clock_class,
        clock_accuracy=_ACCURACY_UNKNOWN if row.clock_accuracy is None else row.clock_accuracy,
        ptp_timescale=True,
        time_traceable=True,
        current_utc_offset_s=SETTINGS.source.utc_offset_s,
        time_source=_GNSS,
        sync_interval_ns=_FASTEST_SYNC_NS if row.sync_interval_ns is None else row.sync_interval_ns,
        delay_interval_ns=NS_PER_S,
        frequency_ppb=_frequency_ppb(row),
    )


def _frequency_ppb(row: TraceRow) -> int | None:
    return None if row.freq_ppb is None else -row.freq_ppb


#: In the order of writing; a trace may have them in any order.
COLUMNS = (
    "t_s", "offset_ns", "path_delay_ns", "freq_ppb", "port_state", "gm_present", "clock_class", "clock_accuracy",
)  # fmt: skip

REPLAYED_HEADER = "t_s,status,gm_hard_ns,gm_stat_ns,utc_hard_ns,utc_stat_ns\n"

#: Three centuries in nanoseconds: a larger value is not a clock's reading.
_LARGEST = 2**63
_LARGEST_OCTET = 0xFF

#: As pmc and ptp4l write them: a port of the grandmaster itself is a master.
_STATES = {state.name: state for state in PortState} | {"GRAND_MASTER": PortState.MASTER}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_STATUSES = {status: status.name for status in ClockStatus}

_Pick = Callable[[list[str]], tuple[str, ...]]


def read_trace(lines: Iterable[str], name: str) -> Iterator[tuple[str, TraceRow]]:
    """
    Yields each row with its `t_s` as written. The header is read at once, each row on demand.

    Unknown columns and empty lines are ignored. Raises TraceError, also during iteration.
    """
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, [])
        return _rows(reader, _picker(header), len(header), name)
    except (ValueError, csv.Error) as error:
        raise TraceError(f"{name}:1: {error}") from error


def replayed_line(t_s: str, row: ReplayedRow) -> str:
    _, status, gm_hard, gm_stat, utc_hard, utc_stat = row
    return (
        f"{t_s},{_STATUSES[status]},{'' if gm_hard is None else gm_hard},{'' if gm_stat is None else gm_stat},"
        f"{'' if utc_hard is None else utc_hard},{'' if utc_stat is None else utc_stat}\n"
    )


def seconds_text(unix_ns: int) -> str:
    """The time as `t_s` is written, to the nanosecond."""
    return f"{unix_ns // NS_PER_S}.{unix_ns % NS_PER_S:09d}"


def _picker(header: list[str]) -> _Pick:
    """A function that picks the cells of `COLUMNS` from a line, in that order. Raises ValueError."""
    names = [name.strip().lstrip("\ufeff") for name in header]
    if not any(names):
        raise ValueError(f"no header; a trace begins with {','.join(COLUMNS)}")
    if missing := [column for column in COLUMNS if column not in names]:
        raise ValueError(f"the header has no {', '.join(missing)}; a trace begins with {','.join(COLUMNS)}")
    if twice := [column for column in COLUMNS if names.count(column) > 1]:
        raise ValueError(f"the header has {twice[0]} more than once")
    return itemgetter(*map(names.index, COLUMNS))


def _rows(reader: Reader, pick: _Pick, width: int, name: str) -> Iterator[tuple[str, TraceRow]]:
    last_ns, line = -_LARGEST, reader.line_num + 1
    try:
        for cells in reader:
            if cells:
                if len(cells) != width:
                    raise ValueError(f"{len(cells)} cells, where the header has {width}: is the line cut off?")
                t_s, offset, delay, frequency, state, present, clock_class, accuracy = pick(cells)
                last_ns = _time_ns(t_s, last_ns)
                row = TraceRow(
                    last_ns,
                    _integer(offset, "offset_ns"),
                    _integer(delay, "path_delay_ns"),
                    _integer(frequency, "freq_ppb"),
                    _state(state),
                    _flag(present),
                    _octet(clock_class, "clock_class"),
                    _octet(accuracy, "clock_accuracy"),
                )
                yield t_s, row
            line = reader.line_num + 1
    except (ValueError, csv.Error) as error:
        raise TraceError(f"{name}:{line}: {error}") from error


def _time_ns(cell: str, last_ns: int) -> int:
    """Exact, where a float of a Unix time is off by 100 ns."""
    seconds, _, fraction = cell.partition(".")
    if seconds.isdecimal() and fraction.isdecimal():
        t_ns = int(seconds + (fraction + "000000000")[:9])
    else:
        t_ns = int(_number(cell, "t_s") * NS_PER_S)
    if last_ns <= t_ns < _LARGEST:
        return t_ns
    raise _wrong("t_s", cell, "goes back" if -_LARGEST < t_ns < _LARGEST else "is out of range")


def _integer(cell: str, column: str) -> int | None:
    if not cell:
        return None
    try:
        value = int(cell)
    except ValueError:
        return round(_number(cell, column)) if cell.strip() else None
    if -_LARGEST < value < _LARGEST:
        return value
    raise _wrong(column, cell, "is out of range")


def _number(cell: str, column: str) -> Decimal:
    """A number that is not written as a plain integer, as 12.0 or 1e3. Raises ValueError."""
    try:
        value = Decimal(cell.strip())
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite():
        raise _wrong(column, cell, "is not a number")
    if not -_LARGEST < value < _LARGEST:
        raise _wrong(column, cell, "is out of range")
    return value


@lru_cache
def _octet(cell: str, column: str) -> int | None:
    """An integer up to 255, in decimal or hexadecimal as in the standard: 0x21. Raises ValueError."""
    text = cell.strip().lower()
    if not text:
        return None
    try:
        value = int(text, 16) if text.startswith("0x") else _integer(text, column)
    except ValueError:
        value = None
    if value is None or not 0 <= value <= _LARGEST_OCTET:
        raise _wrong(column, cell, f"is not an integer from 0 to {_LARGEST_OCTET}")
    return value


@lru_cache
def _state(cell: str) -> PortState | None:
    text = cell.strip()
    if text and text not in _STATES:
        raise _wrong("port_state", cell, f"is not one of {', '.join(_STATES)}")
    return _STATES.get(text)


@lru_cache
def _flag(cell: str) -> bool | None:
    text = cell.strip().lower()
    if text and text not in _FLAGS:
        raise _wrong("gm_present", cell, "is not true or false")
    return _FLAGS.get(text)


def _wrong(column: str, cell: str, what: str) -> ValueError:
    """The cell is escaped and cut: it may contain anything."""
    shown = repr(cell) if len(cell) <= 40 else f"{cell[:40]!r}..."
    return ValueError(f"{column} = {shown} {what}")
