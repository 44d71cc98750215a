"""A session with one SNMP agent: reads scalars, tables and subtrees."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

from timesyncd.clocks import SystemClocks
from timesyncd.errors import Unreachable
from timesyncd.sample import EngineTime
from timesyncd.snmp.adaptive import (
    MAX_VARBINDS,
    NOT_PROVIDED,
    AdaptiveRequester,
    AgentLimits,
    DeclinedError,
    TooMuchError,
)
from timesyncd.snmp.messages import PduType, Varbind
from timesyncd.snmp.transport import Address, Agent, AgentTransport, CommunityAgent, SharedSocket, UserAgent
from timesyncd.snmp.values import Community, Credentials, Index, Oid, Raw, format_oid

Rows = dict[Oid, dict[Index, Raw]]

#: Columns of a table that are walked together.
MAX_COLUMNS = 12
#: So many objects may an agent decline in a column, or one after another in a subtree, before the rest of it is given up.
MAX_SKIPPED = 8


@dataclass(slots=True)
class _Walk:
    """`declined`: the columns for whose next object the agent reported an error, each with its last object and the reason."""

    row_cap: int
    rows: Rows
    cut: list[Oid]
    declined: dict[Oid, tuple[Oid, str]]
    skipped: Counter[Oid]

    def is_complete(self, column: Oid, cursor: Oid) -> bool:
        """Whether other columns of the table have rows, and none behind the cursor: then the declined object is of another table."""
        indexes = self._indexes_beside(column)
        return bool(indexes) and max(indexes) <= cursor[len(column) :]

    def behind(self, column: Oid, cursor: Oid) -> Oid | None:
        """From where to go on: the next row that another column has, or else the next number of the index; None if there is none."""
        index = cursor[len(column) :]
        beside = min((other for other in self._indexes_beside(column) if other > index), default=None)
        if beside is not None:
            return (*column, *beside)
        return (*cursor[:-1], cursor[-1] + 1) if index else None

    def _indexes_beside(self, column: Oid) -> set[Index]:
        others = (rows for other, rows in self.rows.items() if other != column and other[:-1] == column[:-1])
        return {index for rows in others for index in rows}


class Session:
    """
    A session with one agent. `timeout_s` bounds each try; a request without a response is sent `retries` more times.

    All methods raise Unreachable (no response), Refused (SNMPv3 rejects the credentials, or an SNMP error status) and Malformed
    (a response that breaks the protocol); the text begins with the device. OIDs are numeric; no MIB is used.

    `problems`: the objects that could not be read when they were last requested, or not whole, with the reason.
    """

    def __init__(self, agent: Agent, shared: SharedSocket, device: str, limits: AgentLimits | None = None) -> None:
        self.problems: dict[Oid, str] = {}
        self._requester = AdaptiveRequester(agent, device, limits or AgentLimits())
        self._socket = shared

    @classmethod
    async def open(
        cls, host: str, port: int, credentials: Credentials, timeout_s: float, retries: int = 1,
        limits: AgentLimits | None = None,
    ) -> Self:  # fmt: skip
        """
        Open a session; nothing is sent yet. `limits`: what an earlier session found out about the agent. Raises Unreachable if the host
        name has no address.
        """
        device = f"{host}:{port}"
        family, address = await _resolve(device, host, port)
        shared = SharedSocket.acquire(family)
        transport = AgentTransport(shared, address, timeout_s, 1 + retries)
        if isinstance(credentials, Community):
            return cls(CommunityAgent(transport, credentials), shared, device, limits)
        return cls(UserAgent(transport, credentials, SystemClocks()), shared, device, limits)

    def close(self) -> None:
        """Call it once."""
        self._socket.release()

    def verified_engine(self) -> EngineTime | None:
        """The agent's engine clock now, if a signed message contained it. None over SNMPv2c."""
        engine = self._requester.verified_engine()
        return None if engine is None else EngineTime(engine.engine_id, engine.boots, engine.time)

    async def get(self, scalars: Sequence[Oid]) -> Rows:
        """
        The values of scalars, whose OIDs are given without the trailing 0; objects that the agent lacks or declines are left out.
        """
        rows: Rows = {}
        for batch in _batches(scalars, MAX_VARBINDS):
            objects = await self._requester.objects(PduType.GET, [(*scalar, 0) for scalar in batch])
            self._note_problems(batch, {oid[:-1]: problem for oid, problem in objects.problems.items()})
            rows |= {oid[:-1]: {(0,): each.raw} for oid, each in objects.found.items() if each.raw is not None}
        return rows

    def _note_problems(self, requested: Sequence[Oid], problems: Mapping[Oid, str]) -> None:
        for oid in requested:
            self.problems.pop(oid, None)
        self.problems.update(problems)

    async def next_below(self, subtrees: Sequence[Oid]) -> dict[Oid, Oid | None]:
        """The first object that the agent serves below each subtree, or None."""
        below: dict[Oid, Oid | None] = dict.fromkeys(subtrees)
        for batch in _batches(subtrees, MAX_VARBINDS):
            objects = await self._requester.objects(PduType.GET_NEXT, batch, confirm=True)
            self._note_problems(batch, objects.problems)
            for subtree, (oid, _, raw) in objects.found.items():
                if raw is not None and self._advances(subtree, oid, subtree):
                    below[subtree] = oid
        return below

    async def has_below(self, subtrees: Sequence[Oid]) -> dict[Oid, bool]:
        """Whether the agent serves any object below each subtree."""
        return {subtree: oid is not None for subtree, oid in (await self.next_below(subtrees)).items()}

    async def walk(self, columns: Sequence[Oid], row_cap: int) -> tuple[Rows, list[Oid]]:
        """The rows of table columns, and the list of columns that have more than `row_cap` rows and were cut off there."""
        limits = self._requester.limits
        limits.refresh()
        self._note_problems(columns, {column: NOT_PROVIDED for column in columns if column in limits.silent})
        walk = _Walk(row_cap, {}, [], {}, Counter())
        suspects = [column for column in columns if column in limits.suspects]
        asked = [column for column in columns if column not in limits.suspects and column not in limits.silent]
        for batch in _batches(asked, MAX_COLUMNS):
            await self._walk_batch(walk, batch)
        # Each may have to wait for its timeout.
        alone = await asyncio.gather(*(self._walk_batch(walk, [each]) for each in suspects), return_exceptions=True)
        for error in alone:
            if error is not None:
                raise error
        return walk.rows, walk.cut

    async def _walk_batch(self, walk: _Walk, columns: Sequence[Oid]) -> None:
        await self._walk_together(walk, {column: column for column in columns})
        while walk.declined:
            await self._walk_past(walk)

    async def _walk_together(self, walk: _Walk, last: dict[Oid, Oid], quick_s: float | None = None) -> None:
        """
        Walk columns from the last object of each that is known; at first the column itself. `quick_s`: the agent ignored a larger
        request, so the first one waits only so long.
        """
        limits, repetitions = self._requester.limits, 2 if quick_s is None else 1
        while last:
            columns = list(last)
            if tuple(last.values()) in limits.divided:
                await self._walk_halves(walk, last, quick_s)
                return
            try:
                varbinds = await self._requester.bulk(list(last.values()), repetitions, quick_s)
            except TooMuchError as error:
                await self._walk_apart(walk, last, error, is_patient=quick_s is None)
                return
            except DeclinedError as error:
                if not error.position and len(last) > 1:
                    await self._walk_halves(walk, last, None)
                    return
                column = columns[max(0, error.position - 1)]
                cursor = last.pop(column)
                if not error.is_end:
                    walk.declined[column] = (cursor, error.problem)
                continue
            limits.suspects.difference_update(columns)
            self._add_rows(walk, varbinds, last)
            repetitions, quick_s = 4 * max(1, len(varbinds) // len(columns)), None

    async def _walk_apart(self, walk: _Walk, last: dict[Oid, Oid], error: TooMuchError, is_patient: bool) -> None:
        """The halves of these columns; a single one is given up, and where it was ignored from its start, is a suspect."""
        limits = self._requester.limits
        if len(last) > 1:
            if error.quick_s is not None and list(last) == list(last.values()):
                limits.divided.add(tuple(last))
            await self._walk_halves(walk, last, error.quick_s)
            return
        ((column, cursor),) = last.items()
        self.problems[column] = error.problem
        if error.quick_s is not None and cursor == column:
            self.problems[column] = limits.add_silent(column, is_patient and column in limits.suspects)

    async def _walk_halves(self, walk: _Walk, last: dict[Oid, Oid], quick_s: float | None) -> None:
        cursors = list(last.items())
        for half in (cursors[: len(cursors) // 2], cursors[len(cursors) // 2 :]):
            await self._walk_together(walk, dict(half), quick_s)

    def _add_rows(self, walk: _Walk, varbinds: list[Varbind], last: dict[Oid, Oid]) -> None:
        walked = list(last)
        for position, (oid, _, raw) in enumerate(varbinds):
            column = walked[position % len(walked)]
            if column not in last:
                continue
            if raw is None or not self._advances(last[column], oid, column):
                del last[column]
                continue
            if len(walk.rows.get(column, ())) == walk.row_cap:
                walk.cut.append(column)
                del last[column]
                continue
            last[column] = oid
            walk.rows.setdefault(column, {})[oid[len(column) :]] = raw

    async def _walk_past(self, walk: _Walk) -> None:
        """Go on behind the objects that the agent declined, so that each costs itself alone."""
        declined, walk.declined = walk.declined, {}
        past: dict[Oid, Oid] = {}
        for column, (cursor, problem) in declined.items():
            if walk.is_complete(column, cursor):
                continue
            self.problems.setdefault(column, f"{problem} after {format_oid(cursor)}")
            walk.skipped[column] += 1
            behind = walk.behind(column, cursor)
            if behind is not None and walk.skipped[column] <= MAX_SKIPPED:
                past[column] = behind
        await self._walk_together(walk, past)

    async def walk_subtree(self, root: Oid, row_cap: int) -> AsyncIterator[tuple[Oid, int, Raw]]:
        """
        All objects below `root` in the agent's order: OID, BER tag of the value (as in snmprec files: 2, 4, 6, 64 ...), value.
        Ends after `row_cap` objects, even if there are more.
        """
        at, count, skipped = root, 0, 0
        while count < row_cap:
            try:
                varbinds = await self._requester.bulk([at], MAX_VARBINDS)
            except TooMuchError as error:
                raise self._requester.refused(f"{error.problem} after {format_oid(at)}") from error
            except DeclinedError as error:
                if error.is_end:
                    return
                skipped += 1
                if at == root or skipped > MAX_SKIPPED:
                    raise self._requester.refused(f"{error.problem} after {format_oid(at)}") from error
                self.problems[at] = f"{error.problem} after this object"
                at = (*at[:-1], at[-1] + 1)
                continue
            for oid, tag, raw in varbinds:
                if raw is None or not self._advances(at, oid, root) or count == row_cap:
                    return
                at, count, skipped = oid, count + 1, 0
                yield oid, tag, raw

    def _advances(self, at: Oid, oid: Oid, below: Oid) -> bool:
        """Whether the next object is still in the subtree. Raises Malformed if its OID is not above the last one's."""
        if oid <= at:
            raise self._requester.malformed(
                f"the walk does not advance: {format_oid(oid)} was returned as next after {format_oid(at)}"
            )
        return oid[: len(below)] == below


async def _resolve(device: str, host: str, port: int) -> tuple[int, Address]:
    """Prefers IPv4 if the name has both: few agents listen on IPv6, and "localhost" has both."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise Unreachable(f"{device}: cannot resolve the host name: {error.strerror}") from error
    except UnicodeError as error:
        raise Unreachable(f"{device}: not a host name: {error}") from error
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, address


def _batches(oids: Sequence[Oid], size: int) -> list[list[Oid]]:
    remaining = iter(oids)
    return list(iter(lambda: list(islice(remaining, size)), []))
