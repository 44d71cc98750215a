"""A grandmaster that is asked without a network: an SNMP session over recorded rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from timesyncd.drivers.timeprovider import _grandmaster_reader
from timesyncd.errors import SourceError, Unreachable
from timesyncd.snmp import AgentLimits, Rows
from timesyncd.snmp.values import Credentials, Index, Oid, Raw, parse_oid

UPTIME, BOOTS = "1.3.6.1.2.1.1.3", "1.3.6.1.6.3.10.2.1.2"
SERVO, ALARM_COUNT = "1.3.6.1.4.1.9070.1.2.5.7.1.8.1.1.1.2", "1.3.6.1.4.1.9070.1.2.5.7.1.2.4"
ALARMS, FIRMWARE = "1.3.6.1.4.1.9070.1.2.5.7.1.2.1.1", "1.3.6.1.2.1.47.1.1.1.1.10"


@dataclass
class RecordedGrandmaster:
    """What it serves, what it fails at, and what it was asked since `asked` was cleared."""

    served: dict[Oid, dict[Index, Raw]] = field(default_factory=dict)
    failing: dict[Oid, SourceError] = field(default_factory=dict)
    is_down: bool = False
    hanging: set[Oid] = field(default_factory=set)
    asked: list[Oid] = field(default_factory=list)
    problems: dict[Oid, str] = field(default_factory=dict)
    limits: list[object] = field(default_factory=list)
    opened: int = 0

    def serve(self, oid: str, raw: Raw, index: Index = (0,)) -> None:
        self.served.setdefault(parse_oid(oid), {})[index] = raw

    def drop(self, oid: str) -> None:
        del self.served[parse_oid(oid)]

    def fail(self, oid: str, error: SourceError) -> None:
        self.failing[parse_oid(oid)] = error

    def was_asked(self, oid: str) -> bool:
        return parse_oid(oid) in self.asked

    async def answer(self, oids: Sequence[Oid]) -> Rows:
        self.asked += oids
        if self.hanging.intersection(oids):
            await asyncio.Event().wait()
        if self.is_down:
            raise Unreachable("gm:161: no SNMP response")
        for oid in oids:
            if oid in self.failing:
                raise self.failing[oid]
        return {oid: dict(self.served[oid]) for oid in oids if oid in self.served}


class RecordedSession:
    """Replaces `timesyncd.snmp.Session`."""

    def __init__(self, grandmaster: RecordedGrandmaster) -> None:
        self._grandmaster = grandmaster
        self.problems = grandmaster.problems

    def close(self) -> None:
        self._grandmaster.opened -= 1

    async def get(self, scalars: Sequence[Oid]) -> Rows:
        return await self._grandmaster.answer(scalars)

    async def has_below(self, subtrees: Sequence[Oid]) -> dict[Oid, bool]:
        await self._grandmaster.answer(subtrees)
        return {
            subtree: any(oid[: len(subtree)] == subtree for oid in self._grandmaster.served) for subtree in subtrees
        }

    async def walk(self, columns: Sequence[Oid], row_cap: int) -> tuple[Rows, list[Oid]]:
        rows = await self._grandmaster.answer(columns)
        cut = [oid for oid in columns if len(rows.get(oid, {})) > row_cap]
        return {oid: dict(sorted(values.items())[:row_cap]) for oid, values in rows.items()}, cut


def answer_from(grandmaster: RecordedGrandmaster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every session that is opened from now on is with this grandmaster."""

    class Opener:
        @staticmethod
        async def open(
            host: str, port: int, credentials: Credentials, timeout_s: float, limits: AgentLimits | None = None
        ) -> RecordedSession:
            grandmaster.opened += 1
            grandmaster.limits.append(limits)
            return RecordedSession(grandmaster)

    monkeypatch.setattr(_grandmaster_reader, "Session", Opener)


def tp5000e() -> RecordedGrandmaster:
    """Locked, up for a day, without an alarm."""
    grandmaster = RecordedGrandmaster()
    grandmaster.serve(UPTIME, 8_640_000)
    grandmaster.serve(BOOTS, 4)
    grandmaster.serve(SERVO, 4, (2, 1))
    grandmaster.serve(ALARM_COUNT, 0)
    grandmaster.serve(FIRMWARE, b"1.2", (1,))
    return grandmaster


def raise_alarm(grandmaster: RecordedGrandmaster) -> None:
    grandmaster.serve(ALARM_COUNT, 1)
    columns: dict[int, Raw] = {3: 12, 4: 0, 5: b"2026-01-02,03:04:05", 6: 4, 7: b"short"}
    for column, raw in columns.items():
        grandmaster.serve(f"{ALARMS}.{column}", raw, (1,))
