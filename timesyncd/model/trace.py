"""The CSV of a recorded trace, and of the bounds that the model makes of it; docs/replay.md explains both. Pure."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING

from timesyncd.bound import ClockStatus
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import TraceError
from timesyncd.model.replay import ReplayedRow, TraceRow
from timesyncd.sample import PortState

if TYPE_CHECKING:
    from _csv import Reader

#: In the order in which they are written; they may be read in any.
COLUMNS = (
    "t_s", "offset_ns", "path_delay_ns", "freq_ppb", "port_state", "gm_present", "clock_class", "clock_accuracy",
)  # fmt: skip

REPLAYED_HEADER = "t_s,status,gm_hard_ns,gm_stat_ns,utc_hard_ns,utc_stat_ns\n"

#: Three centuries of nanoseconds: what is beyond is no reading of a clock.
_LARGEST = 2**63
_LARGEST_OCTET = 0xFF

#: As pmc and ptp4l write them: a port of the grandmaster itself is a master.
_STATES = {state.name: state for state in PortState} | {"GRAND_MASTER": PortState.MASTER}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_STATUSES = {status: status.name for status in ClockStatus}

_Pick = Callable[[list[str]], tuple[str, ...]]


def read_trace(lines: Iterable[str], name: str) -> Iterator[tuple[str, TraceRow]]:
    """
    Each row with its `t_s` as it was written. The header is read at once, and each row when it is asked for, not before. Columns
    that nobody knows count for nothing; an empty line is no row. Raises TraceError, also while it iterates.
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
    """As `t_s` is written, to the nanosecond."""
    return f"{unix_ns // NS_PER_S}.{unix_ns % NS_PER_S:09d}"


def _picker(header: list[str]) -> _Pick:
    """Of a line's cells those that `COLUMNS` names, in that order."""
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
    """What is no plain integer, as 12.0 or 1e3."""
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
    """Decimal, or as the standard writes it: 0x21."""
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
    """Escaped and cut, as it may be anything."""
    shown = repr(cell) if len(cell) <= 40 else f"{cell[:40]!r}..."
    return ValueError(f"{column} = {shown} {what}")
