"""SNMP v2c for drivers: one engine a process, one session a device. Numeric OIDs alone; no MIB is looked up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

from pyasn1.type import univ
from pysnmp.carrier.asyncio.dgram import udp
from pysnmp.carrier.asyncio.dispatch import AsyncioDispatcher
from pysnmp.entity import config
from pysnmp.error import PySnmpError
from pysnmp.hlapi.v3arch.asyncio import (
    CommunityData,
    ContextData,
    ObjectIdentity,
    ObjectType,
    SnmpEngine,
    UdpTransportTarget,
    bulk_cmd,
    get_cmd,
    next_cmd,
)
from pysnmp.proto.api import v2c
from pysnmp.proto.errind import RequestTimedOut
from pysnmp.proto.rfc1905 import EndOfMibView, NoSuchInstance, NoSuchObject

from timesyncd.drivers._decoders import Raw
from timesyncd.drivers._profiles import Index, Oid, format_oid
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable

Address = tuple[str, int]

#: What one answer should hold at most, so that it fits a datagram of 1500 octets.
MAX_VARBINDS = 40
#: Columns that are walked side by side.
MAX_COLUMNS = 12
#: The engine looks for time-outs this often; its default of 0.1 s costs more idle CPU.
_TICK_S = 0.25

ERROR_STATUS = {number: str(name) for name, number in v2c.ResponsePDU()["error-status"].namedValues.items() if number}


class _Socket(udp.UdpAsyncioTransport):  # type: ignore[misc]  # pysnmp has no types
    """pysnmp's UDP socket, which remembers what it heard last from whom it asked: pysnmp drops what it cannot read."""

    def __init__(self, heard: dict[Address, str], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._heard = heard

    def datagram_received(self, datagram: bytes, transportAddress: Address) -> None:
        """At once and not in the loop's next round, in which the socket may be closed."""
        if self._callback_function is None:
            return
        address = (transportAddress[0], transportAddress[1])
        if address in self._heard:
            self._heard[address] = f"{len(datagram)} octets that begin {datagram[:8].hex(' ')}"
        # The parser meets hostile bytes with any exception, TypeError among them. Nothing is lost: the request times out, and
        # what was heard is then told as a malformed answer.
        with suppress(Exception):
            self._callback_function(self, transportAddress, datagram)


class _SharedEngine:
    """
    pysnmp's engine (6 MiB) and its UDP socket, shared by every session of the event loop: the engine stays for good, since
    building one takes 70 ms; socket and timer go with the last session.
    """

    def __init__(self) -> None:
        self.engine: Any = None
        self.heard: dict[Address, str] = {}
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def acquire(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._users, self.engine = loop, 0, SnmpEngine()
            self.engine.register_transport_dispatcher(AsyncioDispatcher(timeout=_TICK_S, loop=loop))
        if self._users == 0:
            config.add_transport(self.engine, udp.DOMAIN_NAME, _Socket(self.heard, loop).open_client_mode())
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            config.delete_transport(self.engine, udp.DOMAIN_NAME).close_transport()
            self.heard.clear()


_shared = _SharedEngine()


class Session:
    """
    One agent. `timeout_s` bounds each try; a lost datagram is sent once more.

    Raises Unreachable (no answer), Refused (an SNMP error status), Malformed (an answer that breaks the protocol).
    """

    def __init__(self, target: UdpTransportTarget, community: str, device: str) -> None:
        self._target = target
        self._community = CommunityData(community, mpModel=1)
        self._device = device
        _shared.acquire()

    @classmethod
    async def open(cls, host: str, port: int, community: str, timeout_s: float) -> Session:
        device = f"{host}:{port}"
        try:
            target = await UdpTransportTarget.create((host, port), timeout=round(timeout_s, 2), retries=1)
        except (PySnmpError, UnicodeError) as error:
            raise Unreachable(f"{device}: {error}") from error
        return cls(target, community, device)

    def close(self) -> None:
        _shared.release()

    async def get(self, scalars: Sequence[Oid]) -> dict[Oid, dict[Index, Raw]]:
        """Scalars, asked for without their trailing 0; what the agent does not have is left out."""
        rows: dict[Oid, dict[Index, Raw]] = {}
        for batch in _batches(scalars, MAX_VARBINDS):
            wanted = [(*scalar, 0) for scalar in batch]
            answer = await self._ask(get_cmd, wanted)
            if [oid for oid, _ in answer] != wanted:
                raise self._malformed("answers for other objects than those asked for")
            rows |= {oid[:-1]: {(0,): raw} for oid, raw in answer if raw is not None}
        return rows

    async def has_below(self, subtrees: Sequence[Oid]) -> dict[Oid, bool]:
        """Whether anything is served below each: one GETNEXT for all."""
        answer = await self._ask(next_cmd, subtrees)
        if len(answer) != len(subtrees):
            raise self._malformed(f"{len(answer)} values came for {len(subtrees)} asked")
        pairs = zip(subtrees, answer, strict=True)
        return {subtree: raw is not None and oid[: len(subtree)] == subtree for subtree, (oid, raw) in pairs}

    async def walk(self, columns: Sequence[Oid], row_cap: int) -> tuple[dict[Oid, dict[Index, Raw]], list[Oid]]:
        """Columns of tables, and those of them that were cut off after `row_cap` rows."""
        rows: dict[Oid, dict[Index, Raw]] = {}
        cut: list[Oid] = []
        for batch in _batches(columns, MAX_COLUMNS):
            await self._walk_together(batch, row_cap, rows, cut)
        return rows, cut

    async def _walk_together(
        self, columns: Sequence[Oid], row_cap: int, rows: dict[Oid, dict[Index, Raw]], cut: list[Oid]
    ) -> None:
        stands_at = {column: column for column in columns}
        repetitions = 2
        while stands_at:
            walked = list(stands_at)
            for position, (oid, raw) in enumerate(await self._bulk(list(stands_at.values()), repetitions)):
                column = walked[position % len(walked)]
                if column not in stands_at:
                    continue
                if raw is not None and oid <= stands_at[column]:
                    was_at = format_oid(stands_at[column])
                    raise self._malformed(f"does not advance: {format_oid(oid)} came as the next after {was_at}")
                if raw is None or oid[: len(column)] != column:
                    del stands_at[column]
                    continue
                stands_at[column] = oid
                rows.setdefault(column, {})[oid[len(column) :]] = raw
                if len(rows[column]) == row_cap:
                    cut.append(column)
                    del stands_at[column]
            repetitions *= 4

    async def _bulk(self, after: Sequence[Oid], repetitions: int) -> list[tuple[Oid, Raw | None]]:
        answer = await self._ask(bulk_cmd, after, 0, max(1, min(repetitions, MAX_VARBINDS // len(after))))
        if not answer:
            raise self._malformed("an empty answer to GETBULK")
        return answer

    async def _ask(
        self, command: Callable[..., Awaitable[Any]], oids: Sequence[Oid], *numbers: int
    ) -> list[tuple[Oid, Raw | None]]:
        _shared.heard[self._target.transport_address] = ""
        objects = [_asked(oid) for oid in oids]
        try:
            error, status, position, varbinds = await command(
                _shared.engine, self._community, self._target, ContextData(), *numbers, *objects, lookupMib=False
            )
        except PySnmpError as failure:
            raise Unreachable(f"{self._device}: {failure}") from failure
        if error is not None:
            raise self._no_answer() if isinstance(error, RequestTimedOut) else self._malformed(str(error))
        if status:
            raise self._refusal(int(status), int(position), oids)
        return [(tuple(oid), self._raw(oid, value)) for oid, value in varbinds]

    def _raw(self, oid: Iterable[int], value: object) -> Raw | None:
        """None: the agent says that it has no such object."""
        if isinstance(value, NoSuchObject | NoSuchInstance | EndOfMibView):
            return None
        if isinstance(value, univ.ObjectIdentifier):
            return format_oid(tuple(value))
        if isinstance(value, univ.Integer):
            return int(value)
        if isinstance(value, univ.OctetString):
            return bytes(value)
        raise self._malformed(f"no value at {format_oid(tuple(oid))}")

    def _refusal(self, status: int, position: int, asked: Sequence[Oid]) -> SourceError:
        if status not in ERROR_STATUS:
            return self._malformed(f"error status {status}, which SNMP does not know")
        at = f" for {format_oid(asked[position - 1])}" if 0 < position <= len(asked) else ""
        return Refused(f"{self._device}: {ERROR_STATUS[status]}{at}")

    def _malformed(self, what: str) -> Malformed:
        return Malformed(f"{self._device}: {what}")

    def _no_answer(self) -> SourceError:
        if heard := _shared.heard[self._target.transport_address]:
            return self._malformed(f"its answers fit no request (not SNMP v2c, or too late): {heard}")
        return Unreachable(
            f"{self._device}: no SNMP answer: unit down, UDP filtered, SNMP switched off, or a wrong community "
            "(v2c does not tell these apart)"
        )


@lru_cache(maxsize=1024)
def _asked(oid: Oid) -> ObjectType:
    """pysnmp resolves each new object in 0.1 ms, and a poll asks for the same ones again."""
    return ObjectType(ObjectIdentity(oid))


def _batches(oids: Sequence[Oid], size: int) -> list[list[Oid]]:
    remaining = iter(oids)
    return list(iter(lambda: list(islice(remaining, size)), []))
