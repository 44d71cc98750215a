"""
What is read of a grandmaster, when, and how long it stays valid (`ReadCache`), and its decoded cells (`Evidence`).

Pure: time is an argument.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timesyncd.drivers.timeprovider._decoders import Unknown, Value, undecodable
from timesyncd.drivers.timeprovider._profiles import Group, Object, Profile, value_text
from timesyncd.errors import Malformed
from timesyncd.sample import ClockState
from timesyncd.snmp.values import Index, Oid, Raw

BatchRows = dict[Oid, dict[Index, Raw]]


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """
    Objects that are read together: the whole state, the scalars of another group, or one table of it. `fields` names it in messages.
    """

    group: Group
    table: Oid
    fields: tuple[str, ...]
    scalars: tuple[Oid, ...]
    columns: tuple[Oid, ...]


def batches(profiles: Iterable[Profile]) -> list[ReadBatch]:
    """All reads of these profiles, the state first; an object that several profiles name is read once per group."""
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
    True before the first read, and then at each multiple of the interval since `phase_ns`, so that grandmasters with different
    phases are never read at the same time, whenever each of them was started.
    """
    return tried_ns is None or (now_ns - phase_ns) // interval_ns > (tried_ns - phase_ns) // interval_ns


def phase_ns(grandmaster: str, table: Oid, interval_ns: int) -> int:
    """When within the interval this grandmaster's table is read: spread evenly, and the same after a restart."""
    return zlib.crc32(f"{grandmaster} {table}".encode()) * interval_ns >> 32


@dataclass(slots=True)
class _CachedRead:
    tried_ns: int | None = None
    read_ns: int = 0
    rows: Mapping[Oid, Mapping[Index, Raw]] | None = None
    notes: tuple[str, ...] = ()


class ReadCache:
    """The last rows of each batch of one grandmaster. Rows older than two of the batch's intervals are no longer valid."""

    def __init__(self, grandmaster: str, intervals_ns: Mapping[Group, int]) -> None:
        self._grandmaster = grandmaster
        self._intervals_ns = intervals_ns
        self._reads: dict[ReadBatch, _CachedRead] = {}

    def due(self, wanted: Iterable[ReadBatch], now_ns: int) -> list[ReadBatch]:
        """The batches to read now, the least recently tried first. The state is due at each poll and comes before all others."""
        due = [batch for batch in wanted if batch.group == "state" or self._is_due(batch, now_ns)]
        return sorted(due, key=lambda batch: (batch.group != "state", self._of(batch).tried_ns or 0))

    def _is_due(self, batch: ReadBatch, now_ns: int) -> bool:
        interval_ns = self._intervals_ns[batch.group]
        phase = phase_ns(self._grandmaster, batch.table, interval_ns)
        return is_due(self._of(batch).tried_ns, now_ns, interval_ns, phase)

    def _of(self, batch: ReadBatch) -> _CachedRead:
        return self._reads.setdefault(batch, _CachedRead())

    def keep(
        self, batch: ReadBatch, rows: Mapping[Oid, Mapping[Index, Raw]], now_ns: int, notes: Iterable[str] = ()
    ) -> None:
        self._reads[batch] = _CachedRead(now_ns, now_ns, rows, tuple(notes))

    def fail(self, batch: ReadBatch, reason: str, now_ns: int) -> None:
        """Note a failed read. The rows read before stay valid for their time; the next try is an interval later."""
        read = self._of(batch)
        read.tried_ns = now_ns
        read.notes = (f"{'/'.join(batch.fields)}=not read: {reason}",)

    def rows_of(self, batch: ReadBatch) -> Mapping[Oid, Mapping[Index, Raw]] | None:
        """The last rows of the batch, whatever their age; None if it was never read."""
        return self._of(batch).rows

    def rows(self, now_ns: int) -> BatchRows:
        """All valid rows. For an object in two batches, the newest rows count."""
        merged: BatchRows = {}
        for batch, read in sorted(self._reads.items(), key=lambda item: item[1].read_ns):
            if read.rows is not None and now_ns - read.read_ns <= 2 * self._intervals_ns[batch.group]:
                merged |= {oid: dict(rows) for oid, rows in read.rows.items()}
        return merged

    def notes(self) -> list[str]:
        """What could not be read, or not completely."""
        return [note for read in self._reads.values() for note in read.notes]

    def request_poll(self) -> None:
        """Make every batch due except the inventory."""
        for batch, read in self._reads.items():
            if batch.group != "inventory":
                read.tried_ns = None

    def clear(self) -> None:
        self._reads.clear()


Rows = Mapping[Oid, Mapping[Index, Raw]]
"""The raw values of each object (by OID), by index; a scalar's index is (0,)."""


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
        """The value as text, even if it is unknown(7)."""
        value = self.values.get(column)
        return None if value is None else value_text(value)

    def word(self, column: str) -> str | None:
        """The value, if it is text that is understood and not empty."""
        value = self.values.get(column)
        return value if isinstance(value, str) and value else None

    def arc(self, name: str) -> int | None:
        return _arc(self.arcs, self.index, name)


#: The decoders that take an INTEGER and nothing else.
_INTEGERS = frozenset({"enum", "integer", "truth", "low_16_bits"})


class Evidence:
    """
    The decoded cells of one grandmaster, by the field that they fill; `profiles` are in order of precedence. `unknown` lists the
    values that no profile explains, as sentences for people. A value of another SNMP type than the MIB's is one of these: it hides
    no other value.
    """

    def __init__(self, profiles: Sequence[Profile], rows: Rows) -> None:
        self.unknown: list[str] = []
        self.wrong_types: list[str] = []
        self._undecoded: set[str] = set()
        self._cells: dict[str, list[Cell]] = {}
        for profile in profiles:
            for entry in profile.object:
                for index, raw in sorted(rows.get(entry.oid, {}).items()):
                    self._add(Cell(profile, entry, index, self._decoded(entry, index, raw)))

    def _decoded(self, entry: Object, index: Index, raw: Raw) -> Value:
        try:
            return entry.decode(raw, index)
        except Malformed as error:
            if entry.decoder in _INTEGERS:
                self.wrong_types.append(str(error))
            return undecodable(raw)

    def _add(self, cell: Cell) -> None:
        field = cell.entry.field
        self._cells.setdefault(field, []).append(cell)
        if isinstance(cell.value, Unknown):
            self._undecoded.add(field)
            self.add_unknown(f"{field}={cell.value.text}")

    @property
    def is_mostly_wrong(self) -> bool:
        """Whether several integers are of a wrong type, and few are not: then the agent breaks the protocol."""
        integers = sum(cell.entry.decoder in _INTEGERS for cells in self._cells.values() for cell in cells)
        wrong = len(self.wrong_types)
        return wrong > 1 and wrong > 2 * (integers - wrong)

    def add_unknown(self, note: str) -> None:
        if note not in self.unknown:
            self.unknown.append(note)

    def is_undecoded(self, field: str) -> bool:
        """Whether a value of the field is not understood."""
        return field in self._undecoded

    def first(self, field: str) -> Any:
        """The first known value; a standby module's "unknown" gives way to the next row's value."""
        values = [c.value for c in self._cells.get(field, []) if not isinstance(c.value, Unknown) and c.value != ""]
        return next((value for value in values if value != ClockState.UNKNOWN), values[0] if values else None)

    def all(self, field: str) -> list[Value]:
        return [cell.value for cell in self._cells.get(field, [])]

    def arc(self, field: str, name: str) -> int | None:
        """The named arc in the index of the field's first cell."""
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
    position = arcs.index(name) if name in arcs else len(index)
    return index[position] if position < len(index) else None
