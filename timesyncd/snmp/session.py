"""A session with one SNMP agent: reads scalars, tables and subtrees."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Self

from timesyncd.clocks import SystemClocks
from timesyncd.errors import Unreachable
from timesyncd.snmp.adaptive import MAX_VARBINDS, AdaptiveRequester, AgentLimits, TooMuchError
from timesyncd.snmp.messages import TOO_BIG, PduType, Varbind
from timesyncd.snmp.transport import Address, Agent, AgentTransport, CommunityAgent, SharedSocket, UserAgent
from timesyncd.snmp.values import Community, Credentials, Index, Oid, Raw, format_oid

Rows = dict[Oid, dict[Index, Raw]]

#: Columns of a table that are walked together.
MAX_COLUMNS = 12


class Session:
    """
    A session with one agent. `timeout_s` bounds each try; a request without a response is sent `retries` more times.

    All methods raise Unreachable (no response), Refused (SNMPv3 rejects the credentials, or an SNMP error status) and Malformed
    (a response that breaks the protocol); the text begins with the device. OIDs are numeric; no MIB is used.

    `problems`: the columns that the last walk of them could not read, or not to their end, with the reason.
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

    async def get(self, scalars: Sequence[Oid]) -> Rows:
        """The values of scalars, whose OIDs are given without the trailing 0; objects that the agent lacks are left out."""
        rows: Rows = {}
        for batch in _batches(scalars, MAX_VARBINDS):
            for oid, raw in await self._get([(*scalar, 0) for scalar in batch]):
                if raw is not None:
                    rows[oid[:-1]] = {(0,): raw}
        return rows

    async def _get(self, wanted: Sequence[Oid]) -> list[tuple[Oid, Raw | None]]:
        response = await self._requester.request(PduType.GET, wanted)
        if response.status == TOO_BIG and len(wanted) > 1:
            middle = len(wanted) // 2
            return await self._get(wanted[:middle]) + await self._get(wanted[middle:])
        varbinds = self._requester.varbinds(response, wanted)
        if [oid for oid, _, _ in varbinds] != wanted:
            raise self._requester.malformed("the response contains other objects than the request")
        return [(oid, raw) for oid, _, raw in varbinds]

    async def next_below(self, subtrees: Sequence[Oid]) -> dict[Oid, Oid | None]:
        """The first object that the agent serves below each subtree, or None, by one GETNEXT for all."""
        below: dict[Oid, Oid | None] = {}
        for batch in _batches(subtrees, MAX_VARBINDS):
            response = await self._requester.request(PduType.GET_NEXT, batch)
            varbinds = self._requester.varbinds(response, batch)
            if len(varbinds) != len(batch):
                raise self._requester.malformed(f"the response has {len(varbinds)} variables instead of {len(batch)}")
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
        for column in columns:
            self.problems.pop(column, None)
        for batch in _batches(columns, MAX_COLUMNS):
            await self._walk_together({column: column for column in batch}, row_cap, rows, cut)
        return rows, cut

    async def _walk_together(
        self, last: dict[Oid, Oid], row_cap: int, rows: Rows, cut: list[Oid], quick_s: float | None = None
    ) -> None:
        """
        Walk columns from the last object of each that is known; at first the column itself. `quick_s`: the agent ignored a larger
        request, so the first one waits only so long.
        """
        repetitions = 2 if quick_s is None else 1
        while last:
            try:
                varbinds = await self._requester.bulk(list(last.values()), repetitions, quick_s)
            except TooMuchError as error:
                await self._walk_apart(last, error, row_cap, rows, cut)
                return
            self._add_rows(varbinds, last, row_cap, rows, cut)
            repetitions, quick_s = repetitions * 4, None

    async def _walk_apart(
        self, last: dict[Oid, Oid], error: TooMuchError, row_cap: int, rows: Rows, cut: list[Oid]
    ) -> None:
        """The halves of these columns; a single one is given up."""
        if len(last) == 1:
            self.problems.update(dict.fromkeys(last, error.problem))
            return
        cursors = list(last.items())
        for half in (cursors[: len(cursors) // 2], cursors[len(cursors) // 2 :]):
            await self._walk_together(dict(half), row_cap, rows, cut, error.quick_s)

    def _add_rows(
        self, varbinds: list[Varbind], last: dict[Oid, Oid], row_cap: int, rows: Rows, cut: list[Oid]
    ) -> None:
        walked = list(last)
        for position, (oid, _, raw) in enumerate(varbinds):
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

    async def walk_subtree(self, root: Oid, row_cap: int) -> AsyncIterator[tuple[Oid, int, Raw]]:
        """
        All objects below `root` in the agent's order: OID, BER tag of the value (as in snmprec files: 2, 4, 6, 64 ...), value.
        Ends after `row_cap` objects, even if there are more.
        """
        at, count = root, 0
        while count < row_cap:
            for oid, tag, raw in await self._following(at):
                if raw is None or not self._advances(at, oid, root) or count == row_cap:
                    return
                at, count = oid, count + 1
                yield oid, tag, raw

    async def _following(self, at: Oid) -> list[Varbind]:
        try:
            return await self._requester.bulk([at], MAX_VARBINDS)
        except TooMuchError as error:
            raise self._requester.refused(f"{error.problem} after {format_oid(at)}") from error

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
