"""One agent, asked: scalars, tables, subtrees."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Self

from timesyncd.clocks import SystemClocks
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.snmp import ber
from timesyncd.snmp.messages import STATUS_NAMES, TOO_BIG, Kind, Pdu, Varbind
from timesyncd.snmp.transport import Address, Agent, CommunityAgent, Endpoint, Line, UserAgent
from timesyncd.snmp.values import Community, Credentials, Index, Oid, Raw, format_oid

Rows = dict[Oid, dict[Index, Raw]]

#: What one answer should hold at most, so that it fits a datagram of 1500 octets.
MAX_VARBINDS = 40
#: Columns that are walked side by side.
MAX_COLUMNS = 12


class Session:
    """
    One agent. `timeout_s` bounds each try; a lost datagram is sent `retries` times more.

    Everything raises Unreachable (no answer), Refused (a well-formed no: SNMPv3 credentials, an SNMP error status) and
    Malformed (an answer that breaks the protocol); the text begins with the device. Numeric OIDs alone; no MIB is looked up.
    """

    def __init__(self, agent: Agent, endpoint: Endpoint, device: str) -> None:
        self._agent = agent
        self._endpoint = endpoint
        self._device = device

    @classmethod
    async def open(cls, host: str, port: int, credentials: Credentials, timeout_s: float, retries: int = 1) -> Self:
        """Sends nothing yet. Raises Unreachable when the host has no address."""
        device = f"{host}:{port}"
        family, address = await _resolve(device, host, port)
        endpoint = Endpoint.acquire(family)
        line = Line(endpoint, address, timeout_s, 1 + retries)
        if isinstance(credentials, Community):
            return cls(CommunityAgent(line, credentials), endpoint, device)
        return cls(UserAgent(line, credentials, SystemClocks()), endpoint, device)

    def close(self) -> None:
        """Once."""
        self._endpoint.release()

    async def get(self, scalars: Sequence[Oid]) -> Rows:
        """Scalars, asked for without their trailing 0; what the agent does not have is left out."""
        rows: Rows = {}
        for batch in _batches(scalars, MAX_VARBINDS):
            for oid, raw in await self._get([(*scalar, 0) for scalar in batch]):
                if raw is not None:
                    rows[oid[:-1]] = {(0,): raw}
        return rows

    async def _get(self, wanted: Sequence[Oid]) -> list[tuple[Oid, Raw | None]]:
        answer = await self._ask(Kind.GET, wanted)
        if answer.status == TOO_BIG and len(wanted) > 1:
            middle = len(wanted) // 2
            return await self._get(wanted[:middle]) + await self._get(wanted[middle:])
        varbinds = self._varbinds(answer, wanted)
        if [oid for oid, _, _ in varbinds] != wanted:
            raise self._malformed("answers for other objects than those asked for")
        return [(oid, raw) for oid, _, raw in varbinds]

    async def next_below(self, subtrees: Sequence[Oid]) -> dict[Oid, Oid | None]:
        """The first object that is served below each, or None: one GETNEXT for all."""
        below: dict[Oid, Oid | None] = {}
        for batch in _batches(subtrees, MAX_VARBINDS):
            varbinds = self._varbinds(await self._ask(Kind.GET_NEXT, batch), batch)
            if len(varbinds) != len(batch):
                raise self._malformed(f"{len(varbinds)} values came for {len(batch)} asked")
            for subtree, (oid, _, raw) in zip(batch, varbinds, strict=True):
                below[subtree] = oid if raw is not None and self._advances(subtree, oid, subtree) else None
        return below

    async def has_below(self, subtrees: Sequence[Oid]) -> dict[Oid, bool]:
        """Whether anything is served below each."""
        return {subtree: oid is not None for subtree, oid in (await self.next_below(subtrees)).items()}

    async def walk(self, columns: Sequence[Oid], row_cap: int) -> tuple[Rows, list[Oid]]:
        """Columns of tables, and those of them that were cut off after `row_cap` rows."""
        rows: Rows = {}
        cut: list[Oid] = []
        for batch in _batches(columns, MAX_COLUMNS):
            await self._walk_together(batch, row_cap, rows, cut)
        return rows, cut

    async def _walk_together(self, columns: Sequence[Oid], row_cap: int, rows: Rows, cut: list[Oid]) -> None:
        stands_at = {column: column for column in columns}
        repetitions = 2
        while stands_at:
            walked = list(stands_at)
            for position, (oid, _, raw) in enumerate(await self._bulk(list(stands_at.values()), repetitions)):
                column = walked[position % len(walked)]
                if column not in stands_at:
                    continue
                if raw is None or not self._advances(stands_at[column], oid, column):
                    del stands_at[column]
                    continue
                stands_at[column] = oid
                rows.setdefault(column, {})[oid[len(column) :]] = raw
                if len(rows[column]) == row_cap:
                    cut.append(column)
                    del stands_at[column]
            repetitions *= 4

    async def walk_subtree(self, root: Oid, row_cap: int) -> AsyncIterator[tuple[Oid, int, Raw]]:
        """
        Everything below `root` in the agent's order: object, the BER tag of its value (snmprec files have it in decimal:
        2, 4, 6, 64 ...), value. Ends after `row_cap` objects, however many more there are.
        """
        at, count = root, 0
        while count < row_cap:
            for oid, tag, raw in await self._bulk([at], MAX_VARBINDS):
                if raw is None or not self._advances(at, oid, root) or count == row_cap:
                    return
                at, count = oid, count + 1
                yield oid, tag, raw

    def _advances(self, at: Oid, oid: Oid, below: Oid) -> bool:
        """Whether the next object is still in the subtree. Raises Malformed when it does not come after the last one."""
        if oid <= at:
            raise self._malformed(f"does not advance: {format_oid(oid)} came as the next after {format_oid(at)}")
        return oid[: len(below)] == below

    async def _bulk(self, after: Sequence[Oid], repetitions: int) -> list[Varbind]:
        fitting = max(1, min(repetitions, MAX_VARBINDS // len(after)))
        varbinds = self._varbinds(await self._ask(Kind.GET_BULK, after, fitting), after)
        if not varbinds:
            raise self._malformed("an empty answer to GETBULK")
        return varbinds

    async def _ask(self, kind: Kind, oids: Sequence[Oid], repetitions: int = 0) -> Pdu:
        try:
            return await self._agent.ask(kind, oids, repetitions)
        except SourceError as error:
            raise type(error)(f"{self._device}: {error}") from error

    def _varbinds(self, answer: Pdu, asked: Sequence[Oid]) -> list[Varbind]:
        if answer.status:
            raise self._refusal(answer.status, answer.position, asked)
        for oid, tag, _ in answer.varbinds:
            if tag == ber.NULL:
                raise self._malformed(f"no value at {format_oid(oid)}")
        return answer.varbinds

    def _refusal(self, status: int, position: int, asked: Sequence[Oid]) -> SourceError:
        if status >= len(STATUS_NAMES):
            return self._malformed(f"error status {status}, which SNMP does not know")
        at = f" for {format_oid(asked[position - 1])}" if 0 < position <= len(asked) else ""
        return Refused(f"{self._device}: {STATUS_NAMES[status]}{at}")

    def _malformed(self, what: str) -> Malformed:
        return Malformed(f"{self._device}: {what}")


async def _resolve(device: str, host: str, port: int) -> tuple[int, Address]:
    """IPv4 where the host has both: agents that listen on IPv6 are few, and "localhost" has both."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise Unreachable(f"{device}: {error.strerror}") from error
    except UnicodeError as error:
        raise Unreachable(f"{device}: no host name: {error}") from error
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, address


def _batches(oids: Sequence[Oid], size: int) -> list[list[Oid]]:
    remaining = iter(oids)
    return list(iter(lambda: list(islice(remaining, size)), []))
