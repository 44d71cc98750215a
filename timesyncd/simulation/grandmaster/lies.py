"""
How an agent can be wrong: each kind by name, for tests of the reader. `agent.lie = LIES["truncated"]()` sets one.

The last four are no lies but other readings of the MIB, which a reader must stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from timesyncd.simulation.grandmaster import mib as grandmaster_mib
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.hardware import GNSS_IF_INDEX
from timesyncd.simulation.grandmaster.mib import AgentMib, DeviceMib, Table, Tables, numbered
from timesyncd.simulation.grandmaster.oids_ptpbase import CLOCKS
from timesyncd.simulation.grandmaster.oids_symm import SATELLITES
from timesyncd.simulation.grandmaster.wire import Object, Oid, PduKind, Value, ValueTag, WirePdu

ROWS = 1_000_000


class ProtocolLie:
    """Three places to lie at: what is served, the answer, the datagrams that leave. This class itself changes nothing."""

    def mib(self, mib: AgentMib) -> AgentMib:
        return mib

    def answer(self, request: WirePdu, answer: WirePdu) -> WirePdu:
        return answer

    def datagrams(self, octets: bytes) -> Iterable[bytes]:
        return [octets]


class Truncated(ProtocolLie):
    def datagrams(self, octets: bytes) -> Iterable[bytes]:
        return [octets[: len(octets) // 2]]


class LyingLength(ProtocolLie):
    """The message declares a length of two thousand million octets."""

    def datagrams(self, octets: bytes) -> Iterable[bytes]:
        return [b"\x30\x84\x7f\xff\xff\xff" + octets[2:]]


class OtherRequest(ProtocolLie):
    def answer(self, request: WirePdu, answer: WirePdu) -> WirePdu:
        return replace(answer, number=(request.number + 1) % 2**31)


class NotAdvancing(ProtocolLie):
    """A walk that never ends: what follows an object is that object."""

    def answer(self, request: WirePdu, answer: WirePdu) -> WirePdu:
        if request.kind is PduKind.GET:
            return answer
        return replace(answer, varbinds=[(oid, grandmaster_mib.integer(4)) for oid, _ in request.varbinds])


class MillionRows(ProtocolLie):
    """As many satellites, none of which is made before it is asked for."""

    def mib(self, mib: AgentMib) -> AgentMib:
        columns = {column: lambda row: grandmaster_mib.integer(row % 50 + 1) for column in range(2, 7)}
        return _Overlaid(mib, Table(SATELLITES, lambda _: numbered(range(ROWS), (GNSS_IF_INDEX,)), columns))


class Rewriting(ProtocolLie):
    """Objects below `where` as `rewrite` makes them of what they were."""

    def __init__(self, where: Sequence[Oid], rewrite: Callable[[Value], Value]) -> None:
        self._where = tuple(where)
        self._rewrite = rewrite

    def mib(self, mib: AgentMib) -> AgentMib:
        return _Rewritten(mib, self.value)

    def value(self, oid: Oid, value: Value) -> Value:
        return self._rewrite(value) if any(oid[: len(parent)] == parent for parent in self._where) else value


def wrong_types() -> ProtocolLie:
    """Every INTEGER is a text."""
    return Rewriting([()], lambda value: grandmaster_mib.text("locked") if value.tag == ValueTag.INTEGER else value)


def interval_as_text() -> ProtocolLie:
    """TimeInterval as decimal nanoseconds."""
    return Rewriting([(*CLOCKS, 1, 1, column) for column in (5, 6)], lambda _: grandmaster_mib.text("-17.25"))


def truth_zero() -> ProtocolLie:
    """TruthValue false as 0."""
    columns = [(2, 5), (3, 4), (3, 8), *((5, column) for column in (4, 6, 7, 8, 9, 10))]
    where = [(*CLOCKS, table, 1, column) for table, column in columns]
    return Rewriting(
        where, lambda value: grandmaster_mib.integer(0) if value == grandmaster_mib.truth(False) else value
    )


def class_as_text() -> ProtocolLie:
    where = [(*CLOCKS, table, 1, column) for table, column in ((2, 11), (3, 9))]
    return Rewriting(where, lambda value: grandmaster_mib.text(str(_number(value))))


def negative_variance() -> ProtocolLie:
    """offsetScaledLogVariance as a signed 32-bit number with the upper half set."""
    where = [(*CLOCKS, table, 1, column) for table, column in ((2, 13), (3, 11))]
    return Rewriting(where, lambda value: grandmaster_mib.integer(_number(value) - 2**16))


def _number(value: Value) -> int:
    assert isinstance(value.raw, int)
    return value.raw


LIES: dict[str, Callable[[], ProtocolLie]] = {
    "none": ProtocolLie,
    "truncated": Truncated,
    "lying-length": LyingLength,
    "other-request": OtherRequest,
    "not-advancing": NotAdvancing,
    "million-rows": MillionRows,
    "wrong-types": wrong_types,
    "interval-as-text": interval_as_text,
    "truth-zero": truth_zero,
    "class-as-text": class_as_text,
    "negative-variance": negative_variance,
}


class _Rewritten:
    def __init__(self, mib: AgentMib, value: Callable[[Oid, Value], Value]) -> None:
        self._mib = mib
        self._value = value

    def get(self, oid: Oid) -> Value:
        return self._value(oid, self._mib.get(oid))

    def after(self, oid: Oid) -> Object:
        found, value = self._mib.after(oid)
        return found, self._value(found, value)


class _Overlaid:
    """`mib`, with one table in the place of what it has there."""

    def __init__(self, mib: AgentMib, table: Table) -> None:
        self._mib = mib
        self._entry = table.entry
        self._own = DeviceMib(Device(), Tables([table]))

    def get(self, oid: Oid) -> Value:
        return (self._own if self._is_own(oid) else self._mib).get(oid)

    def after(self, oid: Oid) -> Object:
        other = self._mib.after(oid)
        if self._is_own(other[0]):
            other = self._mib.after((*self._entry[:-1], self._entry[-1] + 1))
        found = [pair for pair in (self._own.after(oid), other) if pair[1] != grandmaster_mib.END_OF_MIB_VIEW]
        return min(found, default=(oid, grandmaster_mib.END_OF_MIB_VIEW))

    def _is_own(self, oid: Oid) -> bool:
        return oid[: len(self._entry)] == self._entry
