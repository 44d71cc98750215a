"""A session with one SNMP agent: reads scalars, tables and subtrees."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Self

from timesyncd.clocks import SystemClocks
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.snmp import ber
from timesyncd.snmp.messages import OPAQUE, STATUS_NAMES, TOO_BIG, Pdu, PduType, Varbind
from timesyncd.snmp.transport import Address, Agent, AgentTransport, CommunityAgent, SharedSocket, UserAgent
from timesyncd.snmp.values import Community, Credentials, Index, Oid, Opaque, Raw, format_oid

Rows = dict[Oid, dict[Index, Raw]]

#: The most variables that one response should carry, so that it fits a datagram of 1500 octets.
MAX_VARBINDS = 40
#: Columns of a table that are walked together.
MAX_COLUMNS = 12


class Session:
    """
    A session with one agent. `timeout_s` bounds each try; a request without a response is sent `retries` more times.

    All methods raise Unreachable (no response), Refused (SNMPv3 rejects the credentials, or an SNMP error status) and Malformed
    (a response that breaks the protocol); the text begins with the device. OIDs are numeric; no MIB is used.
    """

    def __init__(self, agent: Agent, shared: SharedSocket, device: str) -> None:
        self._agent = agent
        self._socket = shared
        self._device = device

    @classmethod
    async def open(cls, host: str, port: int, credentials: Credentials, timeout_s: float, retries: int = 1) -> Self:
        """Open a session; nothing is sent yet. Raises Unreachable if the host name has no address."""
        device = f"{host}:{port}"
        family, address = await _resolve(device, host, port)
        shared = SharedSocket.acquire(family)
        transport = AgentTransport(shared, address, timeout_s, 1 + retries)
        if isinstance(credentials, Community):
            return cls(CommunityAgent(transport, credentials), shared, device)
        return cls(UserAgent(transport, credentials, SystemClocks()), shared, device)

    def close(self) -> None:
        """Call it once."""
        self._socket.release()

    async def get(self, scalars: Sequence[Oid]) -> Rows:
        """The values of scalars, whose OIDs are given without the trailing 0; objects that the agent lacks are left out."""
        rows: Rows = {}
        for batch in _batches(scalars, MAX_VARBINDS):
            for oid, raw in await self._get([(*scalar, 0) for scalar in batch]):
                if raw is not None:
                    rows[oid[:-1]] = {(0,): raw}
        return rows

    async def _get(self, wanted: Sequence[Oid]) -> list[tuple[Oid, Raw | None]]:
        response = await self._request(PduType.GET, wanted)
        if response.status == TOO_BIG and len(wanted) > 1:
            middle = len(wanted) // 2
            return await self._get(wanted[:middle]) + await self._get(wanted[middle:])
        varbinds = self._varbinds(response, wanted)
        if [oid for oid, _, _ in varbinds] != wanted:
            raise self._malformed("the response contains other objects than the request")
        return [(oid, raw) for oid, _, raw in varbinds]

    async def next_below(self, subtrees: Sequence[Oid]) -> dict[Oid, Oid | None]:
        """The first object that the agent serves below each subtree, or None, by one GETNEXT for all."""
        below: dict[Oid, Oid | None] = {}
        for batch in _batches(subtrees, MAX_VARBINDS):
            varbinds = self._varbinds(await self._request(PduType.GET_NEXT, batch), batch)
            if len(varbinds) != len(batch):
                raise self._malformed(f"the response has {len(varbinds)} variables instead of {len(batch)}")
            for subtree, (oid, _, raw) in zip(batch, varbinds, strict=True):
                below[subtree] = oid if raw is not None and self._advances(subtree, oid, subtree) else None
        return below

    async def has_below(self, subtrees: Sequence[Oid]) -> dict[Oid, bool]:
        """Whether the agent serves any object below each subtree."""
        return {subtree: oid is not None for subtree, oid in (await self.next_below(subtrees)).items()}

    async def walk(self, columns: Sequence[Oid], row_cap: int) -> tuple[Rows, list[Oid]]:
        """The rows of table columns, and the list of columns that have more than `row_cap` rows and were cut off there."""
        rows: Rows = {}
        cut: list[Oid] = []
        for batch in _batches(columns, MAX_COLUMNS):
            await self._walk_together(batch, row_cap, rows, cut)
        return rows, cut

    async def _walk_together(self, columns: Sequence[Oid], row_cap: int, rows: Rows, cut: list[Oid]) -> None:
        last = {column: column for column in columns}
        repetitions = 2
        while last:
            walked = list(last)
            for position, (oid, _, raw) in enumerate(await self._bulk(list(last.values()), repetitions)):
                column = walked[position % len(walked)]
                if column not in last:
                    continue
                if raw is None or not self._advances(last[column], oid, column):
                    del last[column]
                    continue
                if len(rows.get(column, ())) == row_cap:
                    cut.append(column)
                    del last[column]
                    continue
                last[column] = oid
                rows.setdefault(column, {})[oid[len(column) :]] = raw
            repetitions *= 4

    async def walk_subtree(self, root: Oid, row_cap: int) -> AsyncIterator[tuple[Oid, int, Raw]]:
        """
        All objects below `root` in the agent's order: OID, BER tag of the value (as in snmprec files: 2, 4, 6, 64 ...), value.
        Ends after `row_cap` objects, even if there are more.
        """
        at, count = root, 0
        while count < row_cap:
            for oid, tag, raw in await self._bulk([at], MAX_VARBINDS):
                if raw is None or not self._advances(at, oid, root) or count == row_cap:
                    return
                at, count = oid, count + 1
                yield oid, tag, raw

    def _advances(self, at: Oid, oid: Oid, below: Oid) -> bool:
        """Whether the next object is still in the subtree. Raises Malformed if its OID is not above the last one's."""
        if oid <= at:
            raise self._malformed(
                f"the walk does not advance: {format_oid(oid)} was returned as next after {format_oid(at)}"
            )
        return oid[: len(below)] == below

    async def _bulk(self, after: Sequence[Oid], repetitions: int) -> list[Varbind]:
        fitting = max(1, min(repetitions, MAX_VARBINDS // len(after)))
        varbinds = self._varbinds(await self._request(PduType.GET_BULK, after, fitting), after)
        if not varbinds:
            raise self._malformed("the response to GETBULK is empty")
        return varbinds

    async def _request(self, kind: PduType, oids: Sequence[Oid], repetitions: int = 0) -> Pdu:
        try:
            return await self._agent.request(kind, oids, repetitions)
        except SourceError as error:
            raise type(error)(f"{self._device}: {error}") from error

    def _varbinds(self, response: Pdu, requested: Sequence[Oid]) -> list[Varbind]:
        if response.status:
            raise self._status_error(response.status, response.position, requested)
        return [varbind if varbind.tag != ber.NULL else _opaque_null(varbind.oid) for varbind in response.varbinds]

    def _status_error(self, status: int, position: int, requested: Sequence[Oid]) -> SourceError:
        if status >= len(STATUS_NAMES):
            return self._malformed(f"the response has error status {status}, which SNMP does not define")
        at = f" for {format_oid(requested[position - 1])}" if 0 < position <= len(requested) else ""
        return Refused(f"{self._device}: the agent reports {STATUS_NAMES[status]}{at}")

    def _malformed(self, problem: str) -> Malformed:
        return Malformed(f"{self._device}: {problem}")


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


def _opaque_null(oid: Oid) -> Varbind:
    """NULL is the value of a request; in a response it is neither a value nor "no such object"."""
    return Varbind(oid, OPAQUE, Opaque(b"\x05\x00"))


def _batches(oids: Sequence[Oid], size: int) -> list[list[Oid]]:
    remaining = iter(oids)
    return list(iter(lambda: list(islice(remaining, size)), []))
