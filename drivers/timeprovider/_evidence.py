"""
What of a unit is read when, and how long it counts. Pure: time is an argument.

What the objects of a unit say, decoded: every cell by the field that it fills, rows joined by their index. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timesyncd.drivers.timeprovider._decoders import Unknown, Value
from timesyncd.drivers.timeprovider._profiles import Group, Object, Profile, value_text
from timesyncd.sample import ClockState
from timesyncd.snmp.values import Index, Oid, Raw

BatchRows = dict[Oid, dict[Index, Raw]]


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """What is read together: all of the state, or the scalars of another group, or one table of it. `fields` names it to people."""

    group: Group
    table: Oid
    fields: tuple[str, ...]
    scalars: tuple[Oid, ...]
    columns: tuple[Oid, ...]


def batches(profiles: Iterable[Profile]) -> list[ReadBatch]:
    """All that these profiles read, the state first; an object that several name is read once a group."""
    found: dict[tuple[Group, Oid], list[Object]] = {}
    for profile in profiles:
        for entry in profile.object:
            table = entry.oid[:-1] if entry.index and entry.group != "state" else ()
            found.setdefault((entry.group, table), []).append(entry)
    return sorted((_batch(group, table, entries) for (group, table), entries in found.items()), key=_order)


def _batch(group: Group, table: Oid, entries: Sequence[Object]) -> ReadBatch:
    fields = dict.fromkeys(entry.field.partition(".")[0] for entry in entries)
    scalars = dict.fromkeys(entry.oid for entry in entries if not entry.index)
    columns = dict.fromkeys(entry.oid for entry in entries if entry.index)
    return ReadBatch(group, table, tuple(fields), tuple(scalars), tuple(columns))


def _order(batch: ReadBatch) -> int:
    return ("state", "table", "inventory").index(batch.group)


def is_due(tried_ns: int | None, now_ns: int, interval_ns: int, phase_ns: int) -> bool:
    """
    At first, and then whenever a multiple of the interval has passed since `phase_ns`, so that units of different phases
    never meet, whenever each of them started.
    """
    return tried_ns is None or (now_ns - phase_ns) // interval_ns > (tried_ns - phase_ns) // interval_ns


def phase_ns(unit: str, table: Oid, interval_ns: int) -> int:
    """The moment within the interval at which this unit's table is read: spread evenly, and the same after a restart."""
    return zlib.crc32(f"{unit} {table}".encode()) * interval_ns >> 32


@dataclass(slots=True)
class _Kept:
    tried_ns: int | None = None
    read_ns: int = 0
    rows: Mapping[Oid, Mapping[Index, Raw]] | None = None
    notes: tuple[str, ...] = ()


class ReadCache:
    """What one unit said, each batch at its own pace. What is older than two of its intervals does not count any more."""

    def __init__(self, unit: str, intervals_ns: Mapping[Group, int]) -> None:
        self._unit = unit
        self._intervals_ns = intervals_ns
        self._kept: dict[ReadBatch, _Kept] = {}

    def due(self, wanted: Iterable[ReadBatch], now_ns: int) -> list[ReadBatch]:
        """What is to be read now, what was never tried first. The state is read at each poll and never waits."""
        due = [batch for batch in wanted if batch.group == "state" or self._is_due(batch, now_ns)]
        return sorted(due, key=lambda batch: (batch.group != "state", self._of(batch).tried_ns or 0))

    def _is_due(self, batch: ReadBatch, now_ns: int) -> bool:
        interval_ns = self._intervals_ns[batch.group]
        phase = phase_ns(self._unit, batch.table, interval_ns)
        return is_due(self._of(batch).tried_ns, now_ns, interval_ns, phase)

    def _of(self, batch: ReadBatch) -> _Kept:
        return self._kept.setdefault(batch, _Kept())

    def keep(
        self, batch: ReadBatch, rows: Mapping[Oid, Mapping[Index, Raw]], now_ns: int, notes: Iterable[str] = ()
    ) -> None:
        self._kept[batch] = _Kept(now_ns, now_ns, rows, tuple(notes))

    def fail(self, batch: ReadBatch, reason: str, now_ns: int) -> None:
        """What was read before still counts for its time; the next try is an interval later."""
        kept = self._of(batch)
        kept.tried_ns = now_ns
        kept.notes = (f"{'/'.join(batch.fields)}=not read: {reason}",)

    def rows_of(self, batch: ReadBatch) -> Mapping[Oid, Mapping[Index, Raw]] | None:
        """What it said last, however long ago; None: nothing yet."""
        return self._of(batch).rows

    def rows(self, now_ns: int) -> BatchRows:
        """All that still counts. An object that is in two batches keeps the newest rows."""
        merged: BatchRows = {}
        for batch, kept in sorted(self._kept.items(), key=lambda item: item[1].read_ns):
            if kept.rows is not None and now_ns - kept.read_ns <= 2 * self._intervals_ns[batch.group]:
                merged |= {oid: dict(rows) for oid, rows in kept.rows.items()}
        return merged

    def notes(self) -> list[str]:
        """What could not be read, or not wholly."""
        return [note for kept in self._kept.values() for note in kept.notes]

    def request_poll(self) -> None:
        """All that may have changed is due."""
        for batch, kept in self._kept.items():
            if batch.group != "inventory":
                kept.tried_ns = None

    def forget(self) -> None:
        self._kept.clear()


Rows = Mapping[Oid, Mapping[Index, Raw]]
"""By the OID of the object: what came, by index; a scalar's index is (0,)."""


@dataclass(frozen=True, slots=True)
class Cell:
    profile: Profile
    entry: Object
    index: Index
    value: Value


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a list; `arcs` names the arcs of its index."""

    profile: Profile
    index: Index
    arcs: tuple[str, ...]
    values: dict[str, Value]

    def integer(self, column: str) -> int | None:
        value = self.values.get(column)
        return value if isinstance(value, int) else None

    def number(self, column: str) -> float | None:
        value = self.values.get(column)
        return value if isinstance(value, float) else None

    def flag(self, column: str) -> bool | None:
        value = self.values.get(column)
        return value if isinstance(value, bool) else None

    def text(self, column: str) -> str | None:
        """What came in words, be it unknown(7)."""
        value = self.values.get(column)
        return None if value is None else value_text(value)

    def word(self, column: str) -> str | None:
        """What came, if it is understood and not empty."""
        value = self.values.get(column)
        return value if isinstance(value, str) and value else None

    def arc(self, name: str) -> int | None:
        return _arc(self.arcs, self.index, name)


class Evidence:
    """`profiles` in order of precedence. `unknown` gathers what came and no map explains."""

    def __init__(self, profiles: Sequence[Profile], rows: Rows) -> None:
        """Raises Malformed when a value has the wrong type."""
        self.unknown: list[str] = []
        self._cells: dict[str, list[Cell]] = {}
        for profile in profiles:
            for entry in profile.object:
                for index, raw in sorted(rows.get(entry.oid, {}).items()):
                    self._add(Cell(profile, entry, index, entry.decode(raw, index)))

    def _add(self, cell: Cell) -> None:
        field = cell.entry.field
        self._cells.setdefault(field, []).append(cell)
        if isinstance(cell.value, Unknown):
            self.note(f"{field}={cell.value.text}")

    def note(self, note: str) -> None:
        if note not in self.unknown:
            self.unknown.append(note)

    def first(self, field: str) -> Any:
        """The first value that says something; a standby module's "unknown" gives way to the next row."""
        values = [c.value for c in self._cells.get(field, []) if not isinstance(c.value, Unknown) and c.value != ""]
        return next((value for value in values if value != ClockState.UNKNOWN), values[0] if values else None)

    def all(self, field: str) -> list[Value]:
        return [cell.value for cell in self._cells.get(field, [])]

    def arc(self, field: str, name: str) -> int | None:
        """What the index of the field's first cell says."""
        cell = next(iter(self._cells.get(field, [])), None)
        return None if cell is None else _arc(cell.entry.index, cell.index, name)

    def rows(self, kind: str) -> list[TableRow]:
        """The list `kind` of the first profile that serves it."""
        rows = self.all_rows(kind)
        return [row for row in rows if row.profile is rows[0].profile]

    def all_rows(self, kind: str) -> list[TableRow]:
        """The lists `kind` of all profiles, those of higher precedence first, each joined by its index."""
        lists: dict[str, dict[Index, TableRow]] = {}
        for field, cells in self._cells.items():
            if not field.startswith(f"{kind}."):
                continue
            for cell in cells:
                joined = lists.setdefault(cell.profile.name, {})
                row = joined.setdefault(cell.index, TableRow(cell.profile, cell.index, cell.entry.index, {}))
                row.values.setdefault(field.removeprefix(f"{kind}."), cell.value)
        return [joined[index] for joined in lists.values() for index in sorted(joined)]


def _arc(arcs: tuple[str, ...], index: Index, name: str) -> int | None:
    place = arcs.index(name) if name in arcs else len(index)
    return index[place] if place < len(index) else None
