"""
An SNMP agent for a simulated grandmaster, v2c and v3: GET, GETNEXT and GETBULK are answered, SET is refused.

Its codec is the one that also asks grandmasters. What holds it to the standards is in the tests: net-snmp's programs at either
end, and another implementation as an oracle.

What an agent answers to a PDU (RFC 3416 section 4.2).

SNMPv3 from the agent's side, which is the authoritative one and knows one user: RFC 3414 section 3.2.

What each model serves.

These tables are written from the MIBs and know no profile of the drivers, so that a wrong OID on either side shows. What a
TimeProvider 4100 or 4500 serves beside the IETF's MIBs is not public: here it is what its sister models share.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self

from timesyncd.errors import Malformed, Refused
from timesyncd.simulation.grandmaster import mib as grandmaster_mib
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.lies import ProtocolLie
from timesyncd.simulation.grandmaster.mib import AgentMib, DeviceMib, Tables
from timesyncd.simulation.grandmaster.oids_ntpv4 import ntpv4_tables
from timesyncd.simulation.grandmaster.oids_ptpbase import ptpbase_tables
from timesyncd.simulation.grandmaster.oids_s650 import s650_tables
from timesyncd.simulation.grandmaster.oids_standard import engine_id, standard_tables
from timesyncd.simulation.grandmaster.oids_symm import date_and_time, symm_common_tables
from timesyncd.simulation.grandmaster.oids_tp5000e import tp5000e_tables
from timesyncd.snmp import ber, messages, security
from timesyncd.snmp.messages import Pdu, PduType, Varbind, decode_as, decode_pdu, encode_pdu
from timesyncd.snmp.security import LocalizedKeys, MasterKeys
from timesyncd.snmp.values import Oid, User

#: The tag of what wants to change something.
SET = 0xA3
AUTHORIZATION_ERROR, NOT_WRITABLE = 16, 17
#: GETBULK stops where a datagram on Ethernet is full, as real agents do.
BULK_OCTETS = 1400


def refusal(reader: ber.Reader, status: int) -> Pdu:
    """The PDU at the reader's position, sent back with this error for its first variable. Raises Malformed."""
    same = decode_as(PduType.RESPONSE, reader, reader.next_tag())
    return replace(same, status=status, position=min(1, len(same.varbinds)))


def respond(request: Pdu, mib: AgentMib) -> Pdu | None:
    """None to a kind of request that no agent answers."""
    asked = [varbind.oid for varbind in request.varbinds]
    if request.kind is PduType.GET:
        found = [Varbind(oid, *mib.get(oid)) for oid in asked]
    elif request.kind is PduType.GET_NEXT:
        found = _row(asked, mib)
    elif request.kind is PduType.GET_BULK:
        found = _bulk(asked, request.status, request.position, mib)
    else:
        return None
    return Pdu(PduType.RESPONSE, request.number, 0, 0, found)


def _row(asked: Sequence[Oid], mib: AgentMib) -> list[Varbind]:
    return [Varbind(oid, *value) for oid, value in map(mib.after, asked)]


def _bulk(asked: Sequence[Oid], non_repeaters: int, repetitions: int, mib: AgentMib) -> list[Varbind]:
    found = _row(asked[:non_repeaters], mib)
    repeating = asked[non_repeaters:]
    size = sum(map(_size, found))
    for _ in range(repetitions):
        row = _row(repeating, mib)
        size += sum(map(_size, row))
        if not row or (found and size > BULK_OCTETS):
            break
        found += row
        if all(varbind.tag == grandmaster_mib.END_OF_MIB_VIEW.tag for varbind in row):
            break
        repeating = [varbind.oid for varbind in row]
    return found


def _size(varbind: Varbind) -> int:
    """Octets that it takes, or a few more."""
    raw = varbind.raw
    octets = raw.bit_length() // 8 + 1 if isinstance(raw, int) else len(raw or "")
    return len(ber.encode_oid(varbind.oid)) + octets + 8


class SecurityFault(Exception):
    """`counter` is the OID of the report's counter, `request` 0 where the number of the request could not be read."""

    def __init__(self, counter: Oid, request: int = 0) -> None:
        super().__init__(counter, request)
        self.counter = counter
        self.request = request


_master_keys = lru_cache(maxsize=64)(MasterKeys)


@lru_cache(maxsize=1024)
def keys_at(user: User, engine_id: bytes) -> LocalizedKeys:
    return _master_keys(user).at(engine_id)


def open_request(
    message: security.UsmMessage, user: User, keys: LocalizedKeys, engine: security.SnmpEngine
) -> ber.Reader:
    """
    A reader at the PDU of a message to us, `engine`, which need not be signed or encrypted.

    Raises SecurityFault; Malformed where what is not encrypted is no PDU.
    """
    if (counter := _distrusted(message, user, keys, engine)) is not None:
        raise SecurityFault(
            counter, 0 if message.flags & security.PRIV else _number(security.open_scoped(message.scoped(None)))
        )
    context, inside = _opened(message, keys)
    if context != user.context.encode():
        raise SecurityFault(security.UNKNOWN_CONTEXT, _number(inside))
    return inside


def _distrusted(
    message: security.UsmMessage, user: User, keys: LocalizedKeys, engine: security.SnmpEngine
) -> Oid | None:
    """What is wrong with the sender."""
    if message.engine.engine_id != engine.engine_id:
        return security.UNKNOWN_ENGINE_ID
    if message.user != user.name.encode():
        return security.UNKNOWN_USER
    if message.flags & security.AUTH and not message.verify(keys):
        return security.WRONG_DIGEST
    if message.flags & security.AUTH and not engine.agrees(message.engine):
        return security.NOT_IN_TIME_WINDOW
    return None


def _number(reader: ber.Reader) -> int:
    return decode_as(PduType.RESPONSE, reader, reader.next_tag()).number


def _opened(message: security.UsmMessage, keys: LocalizedKeys) -> tuple[bytes, ber.Reader]:
    try:
        return security.open_context(message.scoped(keys))
    except Malformed:
        if not message.flags & security.PRIV:
            raise
        raise SecurityFault(security.DECRYPTION_ERROR) from None


def seal_response(
    message: security.UsmMessage, keys: LocalizedKeys, engine: security.SnmpEngine, scoped: bytes
) -> bytes:
    """An answer as safe as its question."""
    if message.flags & security.PRIV:
        return security.seal(message.number, False, engine, message.user, keys, scoped)
    if message.flags & security.AUTH:
        return security.signed(message.number, engine, message.user, keys, scoped)
    return security.plain(message.number, False, engine, message.user, scoped)


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
        user: User | None = None,
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
    def engine(self) -> security.SnmpEngine:
        return security.SnmpEngine(engine_id(self.device), self.device.engine_boots, int(self.device.uptime_s))

    def answer(self, datagram: bytes) -> bytes | None:
        """None to what is no SNMP, and to another community, as RFC 3416 agents keep silent."""
        try:
            version = (
                ber.Reader(datagram).enter(ber.SEQUENCE, "a message").integer("the version", 0, security.VERSION_3)
            )
            if version == messages.VERSION_2C:
                return self._answer_v2c(datagram)
            if version == security.VERSION_3 and self.user is not None:
                return self._answer_v3(security.parse(datagram), self.user)
        except (Malformed, Refused):
            return None
        return None

    def _answer_v2c(self, datagram: bytes) -> bytes | None:
        community, request = messages.parse(datagram)
        if community != self.community.encode():
            return None
        answer = self._respond(request)
        return None if answer is None else messages.message(community, encode_pdu(answer))

    def _answer_v3(self, message: security.UsmMessage, user: User) -> bytes | None:
        engine = self.engine
        keys = keys_at(user, engine.engine_id)
        try:
            request = open_request(message, user, keys, engine)
        except SecurityFault as fault:
            return self._report(message, fault, keys, engine)
        if message.flags & security.PRIV:
            answer = self._respond(request)
        else:
            answer = refusal(request, AUTHORIZATION_ERROR)
        if answer is None:
            return None
        scoped = security.scoped_pdu(engine.engine_id, user.context.encode(), encode_pdu(answer))
        return seal_response(message, keys, engine, scoped)

    def _respond(self, reader: ber.Reader) -> Pdu | None:
        if reader.next_tag() == SET:
            return refusal(reader, NOT_WRITABLE)
        request = decode_pdu(reader)
        answer = respond(request, self.lie.mib(self.served()))
        return None if answer is None else self.lie.answer(request, answer)

    def _report(
        self, message: security.UsmMessage, fault: SecurityFault, keys: LocalizedKeys, engine: security.SnmpEngine
    ) -> bytes | None:
        """Reports why the message was refused; only "not in time window" is signed (RFC 3414, section 3.2)."""
        self.reports[fault.counter] += 1
        if not message.flags & security.REPORTABLE:
            return None
        signing = keys if fault.counter == security.NOT_IN_TIME_WINDOW else None
        return security.report(message, engine, fault.counter, self.reports[fault.counter], signing, fault.request)
