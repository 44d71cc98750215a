"""
What an agent serves: tables over a device, asked lazily, so that a poll costs what it asks for and no more.

A scalar is a table with the one index (0,). Rows come in the order of their indexes.

What an agent's objects hold: the types of SMIv2 (RFC 2578), and TruthValue (RFC 2579).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, overload

from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.wire import Index, Object, Oid, Value, ValueTag

NO_SUCH_OBJECT = Value(ValueTag.NO_SUCH_OBJECT, None)
NO_SUCH_INSTANCE = Value(ValueTag.NO_SUCH_INSTANCE, None)
END_OF_MIB_VIEW = Value(ValueTag.END_OF_MIB_VIEW, None)


def integer(value: int) -> Value:
    return Value(ValueTag.INTEGER, value)


def octets(content: bytes) -> Value:
    return Value(ValueTag.OCTETS, content)


def text(content: str) -> Value:
    return Value(ValueTag.OCTETS, content.encode())


def object_id(oid: Oid) -> Value:
    return Value(ValueTag.OBJECT_ID, oid)


def truth(value: bool) -> Value:
    return Value(ValueTag.INTEGER, 1 if value else 2)


def gauge(value: int) -> Value:
    return Value(ValueTag.GAUGE32, value)


def counter(value: int) -> Value:
    return Value(ValueTag.COUNTER32, value % 2**32)


def counter64(value: int) -> Value:
    return Value(ValueTag.COUNTER64, value % 2**64)


def ticks(value: int) -> Value:
    """TimeTicks: hundredths of a second."""
    return Value(ValueTag.TIME_TICKS, value % 2**32)


Rows = Sequence[tuple[Index, Any]]
"""Each with its index; sorted by it. Need not be a list: a million rows are made as they are asked for."""

_index = itemgetter(0)


class AgentMib(Protocol):
    """What answers: GET, and GETNEXT, which ends with endOfMibView."""

    def get(self, oid: Oid) -> Value: ...

    def after(self, oid: Oid) -> Object: ...


@dataclass(frozen=True)
class Table:
    """`columns`, in order, give a row's value, None where the row has none; `rows` are those that the device has now."""

    entry: Oid
    rows: Callable[[Device], Rows]
    columns: Mapping[int, Callable[[Any], Value | None]]

    @property
    def start(self) -> Oid:
        return (*self.entry, min(self.columns))


def scalars(parent: Oid, values: Mapping[int, Callable[[Device], Value | None]]) -> Table:
    return Table(parent, lambda device: [((0,), device)], values)


class LazyRows(Sequence[tuple[Index, Any]]):
    """Rows over any sequence, made as they are asked for; `index_of` gives the index of the one at a place."""

    def __init__(self, rows: Sequence[Any], index_of: Callable[[int], Index]) -> None:
        self._rows = rows
        self._index_of = index_of

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> tuple[Index, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> Rows: ...
    def __getitem__(self, place: int | slice) -> tuple[Index, Any] | Rows:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        return self._index_of(place), self._rows[place]


def numbered(rows: Sequence[Any], prefix: Index = ()) -> LazyRows:
    """With the indexes prefix.1, prefix.2, ..."""
    return LazyRows(rows, lambda place: (*prefix, place + 1))


class Tables:
    """Of a model, in the order of their first objects. Scalars may stand behind a table that lies below them."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self.sorted = sorted(tables, key=lambda table: table.start)
        self.starts = [table.start for table in self.sorted]


class DeviceMib:
    """The tables as one device fills them at one moment: make a new one for each request."""

    def __init__(self, device: Device, tables: Tables) -> None:
        self._device = device
        self._tables = tables
        self._rows: dict[int, Rows] = {}

    def get(self, oid: Oid) -> Value:
        table = self._tables.sorted[max(0, self._place(oid))]
        depth = len(table.entry)
        if oid[:depth] != table.entry or len(oid) < depth + 2 or oid[depth] not in table.columns:
            return NO_SUCH_OBJECT
        rows, index = self._rows_of(table), oid[depth + 1 :]
        at = bisect_left(rows, index, key=_index)
        if at == len(rows) or rows[at][0] != index:
            return NO_SUCH_INSTANCE
        value = table.columns[oid[depth]](rows[at][1])
        return NO_SUCH_INSTANCE if value is None else value

    def after(self, oid: Oid) -> Object:
        for table in self._tables.sorted[max(0, self._place(oid)) :]:
            found = self._first_after(table, oid)
            if found is not None:
                return found
        return oid, END_OF_MIB_VIEW

    def _first_after(self, table: Table, oid: Oid) -> Object | None:
        depth = len(table.entry)
        if oid[:depth] == table.entry:
            column, index = (*oid[depth : depth + 1], 0)[0], oid[depth + 1 :]
        elif oid < table.entry:
            column, index = 0, ()
        else:
            return None
        rows = self._rows_of(table)
        for number, value_of in table.columns.items():
            if number < column:
                continue
            start = bisect_right(rows, index, key=_index) if number == column else 0
            for at in range(start, len(rows)):
                value = value_of(rows[at][1])
                if value is not None:
                    return (*table.entry, number, *rows[at][0]), value
        return None

    def _place(self, oid: Oid) -> int:
        """Of the last table that does not begin after the OID; -1 when every one does."""
        return bisect_right(self._tables.starts, oid) - 1

    def _rows_of(self, table: Table) -> Rows:
        """Made once a request, so that the rows do not change between two of its answers."""
        if id(table) not in self._rows:
            self._rows[id(table)] = table.rows(self._device)
        return self._rows[id(table)]


class RecordedMib:
    """A walk as it was taken."""

    def __init__(self, objects: Iterable[Object]) -> None:
        self._objects = dict(sorted(objects))
        self._oids = list(self._objects)

    def get(self, oid: Oid) -> Value:
        return self._objects.get(oid, NO_SUCH_INSTANCE)

    def after(self, oid: Oid) -> Object:
        at = bisect_right(self._oids, oid)
        return (self._oids[at], self._objects[self._oids[at]]) if at < len(self._oids) else (oid, END_OF_MIB_VIEW)
