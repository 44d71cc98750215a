"""Reads one grandmaster over SNMP: finds the profiles that it serves, and reads each group of objects at its own interval."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from timesyncd.drivers.timeprovider._evidence import BatchRows, Evidence, ReadBatch, ReadCache, batches
from timesyncd.drivers.timeprovider._profiles import Group, Profile
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.sample import EngineTime
from timesyncd.snmp import AgentLimits, Credentials, Session
from timesyncd.snmp.values import Index, Oid, Raw

#: More rows than any table of these profiles should have (125 satellites); a longer column is cut off, with a note.
ROW_CAP = 200
#: How long after its start, in hundredths of a second, an agent may still gain subtrees.
SETTLED_TICKS = 60_000

#: A change of one of these fields suggests that the tables changed too.
_TRIGGER_FIELDS = ("clock_state", "alarm_count")
#: A change of one of these fields means another firmware or another device.
_IDENTITY_FIELDS = ("firmware", "serial", "sys_descr", "sys_object_id")

ObjectRows = Mapping[Oid, Mapping[Index, Raw]]


@dataclass(frozen=True, slots=True)
class GrandmasterRows:
    """The profiles that the grandmaster serves, their valid rows, and notes on what could not be read."""

    profiles: Sequence[Profile]
    rows: BatchRows
    notes: Sequence[str]


class GrandmasterReader:
    """
    Reads one grandmaster. The state is read at each poll, and its failure fails the poll; a failed read of another group becomes a
    note.

    `open` and `read` raise SourceError; `close` never raises, and `open` may follow it. After a restart or a change of firmware, the
    grandmaster is probed and read again from scratch.
    """

    def __init__(
        self, grandmaster: str, address: tuple[str, int], credentials: Credentials, try_s: float, profiles: Sequence[Profile],
        intervals_ns: Mapping[Group, int],
    ) -> None:  # fmt: skip
        """`try_s`: the timeout of each try; a request without a response is sent once more."""
        self.served: Sequence[Profile] = ()
        self._address = address
        self._credentials = credentials
        self._try_s = try_s
        self._profiles = [profile for profile in profiles if profile.object]
        self._cache = ReadCache(grandmaster, intervals_ns)
        self._batches: list[ReadBatch] = []
        self._session: Session | None = None
        self._limits = AgentLimits()
        self._is_settled = self._is_another = False

    async def open(self) -> None:
        """Find the profiles that the grandmaster serves."""
        host, port = self._address
        self._session = await Session.open(host, port, self._credentials, self._try_s, limits=self._limits)
        try:
            await self._probe(self._session)
        except SourceError:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def verified_engine(self) -> EngineTime | None:
        """As `Session.verified_engine`; None while no session is open."""
        return None if self._session is None else self._session.verified_engine()

    def request_poll(self) -> None:
        """Make everything except the inventory due at the next read."""
        self._cache.request_poll()

    async def read(self, now_ns: int, until: float) -> GrandmasterRows:
        """Read what is due. Reads that `until` (the event loop's time) does not permit are left to the next call."""
        if self._session is None:
            raise Unreachable(f"{self._device}: the session is not open")
        if self._is_another:
            self._forget()
        if self._is_another or not self._is_settled:
            await self._probe(self._session)
        self._is_another = False
        if await self._read_state(self._session, now_ns):
            self._forget()
            await self._probe(self._session)
            await self._read_state(self._session, now_ns)
        await self._read_rest(self._session, now_ns, until)
        return GrandmasterRows(self.served, self._cache.rows(now_ns), self._cache.notes())

    def _forget(self) -> None:
        self._cache.clear()
        self._limits.clear()

    @property
    def _device(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    async def _probe(self, session: Session) -> None:
        subtrees = dict.fromkeys(subtree for profile in self._profiles for subtree in profile.proved_by)
        below = await session.has_below(list(subtrees))
        served = [profile for profile in self._profiles if any(below[subtree] for subtree in profile.proved_by)]
        if not served:
            names = ", ".join(profile.name for profile in self._profiles)
            raise Refused(
                f"{self._device}: the agent serves none of the profiles {names}; add its own profile to `profiles`"
            )
        if served != self.served:
            self.served, self._batches = served, batches(served)
            self._cache.clear()

    async def _read_state(self, session: Session, now_ns: int) -> bool:
        """Read the state; returns whether the grandmaster has restarted since the last read."""
        has_restarted = False
        for batch in self._batches:
            if batch.group == "state":
                before = self._cache.rows_of(batch)
                await self._read(session, batch, now_ns)
                after = self._cache.rows_of(batch) or {}
                self._is_settled = _number(after, self._oids("uptime_s")) >= SETTLED_TICKS
                has_restarted = before is not None and self._has_restarted(before, after)
                if before is not None and self._differs(before, after, _TRIGGER_FIELDS):
                    self._cache.request_poll()
        return has_restarted

    async def _read_rest(self, session: Session, now_ns: int, until: float) -> None:
        for batch in self._cache.due(self._batches, now_ns):
            if batch.group == "state":
                continue
            if asyncio.get_running_loop().time() >= until:
                return
            before = self._cache.rows_of(batch)
            try:
                async with asyncio.timeout_at(until):
                    await self._read(session, batch, now_ns)
            except TimeoutError:
                self._cache.fail(batch, "no answer within the time of a poll", now_ns)
                return
            except SourceError as error:
                self._cache.fail(batch, str(error), now_ns)
                if isinstance(error, Unreachable):
                    return
            if before is not None and self._differs(before, self._cache.rows_of(batch) or {}, _IDENTITY_FIELDS):
                self._is_another = True

    async def _read(self, session: Session, batch: ReadBatch, now_ns: int) -> None:
        """Read the whole batch or nothing. Integers that are mostly of another type raise Malformed."""
        rows = await session.get(batch.scalars) if batch.scalars else {}
        walked, cut = await session.walk(batch.columns, ROW_CAP) if batch.columns else ({}, [])
        evidence = Evidence(self.served, rows | walked)
        if evidence.is_mostly_wrong:
            raise Malformed(f"{self._device}: {evidence.wrong_types[0]}")
        problems = {oid: f"cut off after {ROW_CAP} rows" for oid in cut}
        problems |= {oid: text for oid in (*batch.scalars, *batch.columns) if (text := session.problems.get(oid))}
        notes = [f"{field}={problem}" for oid, problem in problems.items() for field in self._fields(oid)]
        self._cache.keep(batch, rows | walked, now_ns, notes)

    def _fields(self, oid: Oid) -> list[str]:
        return [entry.field for profile in self.served for entry in profile.object if entry.oid == oid]

    def _oids(self, *fields: str) -> set[Oid]:
        return {entry.oid for profile in self.served for entry in profile.object if entry.field in fields}

    def _has_restarted(self, before: ObjectRows, after: ObjectRows) -> bool:
        boots, uptime = self._oids("engine_boots"), self._oids("uptime_s")
        rebooted = _number(before, boots) >= 0 and _number(after, boots) != _number(before, boots)
        return rebooted or 0 <= _number(after, uptime) < _number(before, uptime)

    def _differs(self, before: ObjectRows, after: ObjectRows, fields: Iterable[str]) -> bool:
        return any(before.get(oid) != after.get(oid) for oid in self._oids(*fields))


def _number(rows: ObjectRows, oids: Iterable[Oid]) -> int:
    """The value of the first of these objects that is served; -1 if none is."""
    found = (raw for oid in oids for raw in rows.get(oid, {}).values() if isinstance(raw, int))
    return next(found, -1)
