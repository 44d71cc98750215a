"""What the objects of a unit say, decoded: every cell by the field that it fills, rows joined by their index. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timesyncd.drivers.timeprovider._decoders import Unknown, Value
from timesyncd.drivers.timeprovider._profiles import Object, Profile, shown
from timesyncd.sample import ClockState
from timesyncd.snmp.values import Index, Oid, Raw

Rows = Mapping[Oid, Mapping[Index, Raw]]
"""By the OID of the object: what came, by index; a scalar's index is (0,)."""


@dataclass(frozen=True, slots=True)
class Cell:
    profile: Profile
    entry: Object
    index: Index
    value: Value


@dataclass(frozen=True, slots=True)
class Row:
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
        return None if value is None else shown(value)

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

    def rows(self, kind: str) -> list[Row]:
        """The list `kind` of the first profile that serves it."""
        rows = self.all_rows(kind)
        return [row for row in rows if row.profile is rows[0].profile]

    def all_rows(self, kind: str) -> list[Row]:
        """The lists `kind` of all profiles, those of higher precedence first, each joined by its index."""
        lists: dict[str, dict[Index, Row]] = {}
        for field, cells in self._cells.items():
            if not field.startswith(f"{kind}."):
                continue
            for cell in cells:
                joined = lists.setdefault(cell.profile.name, {})
                row = joined.setdefault(cell.index, Row(cell.profile, cell.index, cell.entry.index, {}))
                row.values.setdefault(field.removeprefix(f"{kind}."), cell.value)
        return [joined[index] for joined in lists.values() for index in sorted(joined)]


def _arc(arcs: tuple[str, ...], index: Index, name: str) -> int | None:
    place = arcs.index(name) if name in arcs else len(index)
    return index[place] if place < len(index) else None
