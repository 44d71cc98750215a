"""
An SNMP agent for a simulated grandmaster, v2c and v3: GET, GETNEXT and GETBULK are answered, SET is refused.

What an agent answers to a PDU: RFC 3416 section 4.2. SNMPv3 from the agent's side, which is the authoritative one and knows one
user: RFC 3414 section 3.2.

The tables that each model serves are written from the MIBs and know no profile of the drivers, so that a wrong OID on either side
shows. What a TimeProvider 4100 or 4500 serves beside the IETF's MIBs is not public: here it is what its sister models share.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from timesyncd.errors import Malformed
from timesyncd.simulation.grandmaster import mib as grandmaster_mib
from timesyncd.simulation.grandmaster import wire
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.lies import ProtocolLie
from timesyncd.simulation.grandmaster.mib import AgentMib, DeviceMib, Tables
from timesyncd.simulation.grandmaster.oids_ntpv4 import ntpv4_tables
from timesyncd.simulation.grandmaster.oids_ptpbase import ptpbase_tables
from timesyncd.simulation.grandmaster.oids_s650 import s650_tables
from timesyncd.simulation.grandmaster.oids_standard import engine_id, standard_tables
from timesyncd.simulation.grandmaster.oids_symm import date_and_time, symm_common_tables
from timesyncd.simulation.grandmaster.oids_tp5000e import tp5000e_tables
from timesyncd.simulation.grandmaster.wire import (
    AuthoritativeEngine,
    Object,
    Oid,
    PduKind,
    ScopedPdu,
    UsmKeys,
    UsmUser,
    V3Message,
    WirePdu,
)

#: GETBULK stops where its variables fill a datagram on Ethernet, as real agents do; the rest is for the headers of SNMPv3.
BULK_OCTETS = 1250


def refusal(request: WirePdu, status: int) -> WirePdu:
    """The PDU sent back with this error for its first variable."""
    return replace(request, kind=PduKind.RESPONSE, status=status, position=min(1, len(request.varbinds)))


def respond(request: WirePdu, mib: AgentMib) -> WirePdu | None:
    """None to a kind of request that no agent answers."""
    asked = [oid for oid, _ in request.varbinds]
    match request.kind:
        case PduKind.GET:
            found = [(oid, mib.get(oid)) for oid in asked]
        case PduKind.GET_NEXT:
            found = [mib.after(oid) for oid in asked]
        case PduKind.GET_BULK:
            found = _bulk(asked, request.status, request.position, mib)
        case PduKind.SET:
            return refusal(request, wire.NOT_WRITABLE)
        case _:
            return None
    return WirePdu(PduKind.RESPONSE, request.number, 0, 0, found)


def _bulk(asked: Sequence[Oid], non_repeaters: int, repetitions: int, mib: AgentMib) -> list[Object]:
    found = [mib.after(oid) for oid in asked[:non_repeaters]]
    repeating = asked[non_repeaters:]
    size = _size(found)
    for _ in range(repetitions):
        row = [mib.after(oid) for oid in repeating]
        size += _size(row)
        if not row or (found and size > BULK_OCTETS):
            break
        found += row
        if all(value == grandmaster_mib.END_OF_MIB_VIEW for _, value in row):
            break
        repeating = [oid for oid, _ in row]
    return found


def _size(found: Sequence[Object]) -> int:
    return sum(len(wire.encode_varbind(each)) for each in found)


class SecurityFault(Exception):
    """`counter` is the OID of the report's counter, `request` 0 where the number of the request could not be read."""

    def __init__(self, counter: Oid, request: int = 0) -> None:
        super().__init__(counter, request)
        self.counter = counter
        self.request = request


def open_request(message: V3Message, user: UsmUser, keys: UsmKeys, engine: AuthoritativeEngine) -> WirePdu:
    """
    The PDU of a message to us, `engine`, which need not be signed or encrypted.

    Raises SecurityFault.
    """
    if (counter := _distrusted(message, user, keys, engine)) is not None:
        raise SecurityFault(counter, message.data.pdu.number if isinstance(message.data, ScopedPdu) else 0)
    try:
        scoped = message.scoped(keys)
    except Malformed:
        raise SecurityFault(wire.DECRYPTION_ERROR) from None
    if scoped.context != user.context.encode():
        raise SecurityFault(wire.UNKNOWN_CONTEXT, scoped.pdu.number)
    return scoped.pdu


def _distrusted(message: V3Message, user: UsmUser, keys: UsmKeys, engine: AuthoritativeEngine) -> Oid | None:
    """What is wrong with the sender."""
    if message.engine.engine_id != engine.engine_id:
        return wire.UNKNOWN_ENGINE_ID
    if message.user != user.name.encode():
        return wire.UNKNOWN_USER
    if message.flags & wire.AUTH and not message.is_signed_by(keys):
        return wire.WRONG_DIGEST
    if message.flags & wire.AUTH and not engine.agrees(message.engine):
        return wire.NOT_IN_TIME_WINDOW
    return None


_NEUTRAL = [*standard_tables(), *ptpbase_tables(), *ntpv4_tables()]
_SHARED = [*_NEUTRAL, *symm_common_tables()]

TABLES = {
    "tp4100": Tables(_SHARED),
    "tp4500": Tables(_SHARED),
    "tp5000e": Tables([*_SHARED, *tp5000e_tables()]),
    "s650": Tables([*standard_tables(), *ntpv4_tables(), date_and_time(), *s650_tables()]),
}


def mib_of(device: Device) -> DeviceMib:
    """What the grandmaster serves now."""
    return DeviceMib(device, TABLES[device.kind])


class SnmpAgent(asyncio.DatagramProtocol):
    """
    Serves `device` until stopped; `mib` is what it serves instead of what the device holds. `port` 0 takes a free one;
    `start` returns it. Without a `user` version 3 gets no answer. `lie` is how its answers are wrong, and may be set at
    any time.
    """

    def __init__(
        self,
        device: Device,
        host: str = "127.0.0.1",
        port: int = 0,
        community: str = "public",
        user: UsmUser | None = None,
        mib: AgentMib | None = None,
    ) -> None:
        self.device = device
        self.host = host
        self.port = port
        self.community = community
        self.user = user
        self.lie = ProtocolLie()
        self.reports: Counter[Oid] = Counter()
        self._mib = mib
        self._chance = random.Random(device.serial)
        self._transport: asyncio.DatagramTransport | None = None

    async def start(self) -> int:
        """Raises OSError when the address cannot be bound."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(self.host, self.port))
        self.port = int(self._transport.get_extra_info("sockname")[1])
        return self.port

    async def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self.device.catch_up()
        if not self.device.answering or self._lost():
            return
        answer = self.answer(data)
        for octets in () if answer is None else self.lie.datagrams(answer):
            if not self._lost():
                asyncio.get_running_loop().call_later(self.device.answer_delay_s, self._send, octets, addr)

    def _send(self, octets: bytes, addr: tuple[str | Any, int]) -> None:
        if self._transport is not None:
            self._transport.sendto(octets, addr)

    def _lost(self) -> bool:
        return self._chance.random() < self.device.loss

    def served(self) -> AgentMib:
        return self._mib or mib_of(self.device)

    @property
    def engine(self) -> AuthoritativeEngine:
        return AuthoritativeEngine(engine_id(self.device), self.device.engine_boots, int(self.device.uptime_s))

    def answer(self, datagram: bytes) -> bytes | None:
        """None to what is no SNMP, and to another community, as RFC 3416 agents keep silent."""
        for answer in (self._answer_v2c, self._answer_v3):
            with suppress(Malformed):
                return answer(datagram)
        return None

    def _answer_v2c(self, datagram: bytes) -> bytes | None:
        """Raises Malformed."""
        community, request = wire.decode_v2c(datagram)
        if community != self.community.encode():
            return None
        answer = self._respond(request)
        return None if answer is None else wire.encode_v2c(community, answer)

    def _answer_v3(self, datagram: bytes) -> bytes | None:
        """An answer as safe as its question. Raises Malformed."""
        message, user, engine = wire.decode_v3(datagram), self.user, self.engine
        if user is None:
            return None
        keys = wire.keys_at(user, engine.engine_id)
        try:
            request = open_request(message, user, keys, engine)
        except SecurityFault as fault:
            return self._report(message, fault, keys, engine)
        if message.flags & wire.PRIV:
            answer = self._respond(request)
        else:
            answer = refusal(request, wire.AUTHORIZATION_ERROR)
        if answer is None:
            return None
        scoped = ScopedPdu(engine.engine_id, user.context.encode(), answer)
        flags = message.flags & (wire.AUTH | wire.PRIV)
        return wire.encode_v3(message.number, flags, engine, message.user, keys, scoped)

    def _respond(self, request: WirePdu) -> WirePdu | None:
        answer = respond(request, self.lie.mib(self.served()))
        return None if answer is None else self.lie.answer(request, answer)

    def _report(
        self, message: V3Message, fault: SecurityFault, keys: UsmKeys, engine: AuthoritativeEngine
    ) -> bytes | None:
        """Reports why the message was refused; only "not in time window" is signed (RFC 3414, section 3.2)."""
        self.reports[fault.counter] += 1
        if not message.flags & wire.REPORTABLE:
            return None
        counted = (fault.counter, grandmaster_mib.counter(self.reports[fault.counter]))
        scoped = ScopedPdu(engine.engine_id, b"", WirePdu(PduKind.REPORT, fault.request, 0, 0, [counted]))
        flags = wire.AUTH if fault.counter == wire.NOT_IN_TIME_WINDOW else 0
        return wire.encode_v3(message.number, flags, engine, message.user, keys, scoped)
