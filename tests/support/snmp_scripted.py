"""SNMP agents for tests, on a loopback port: one that states what the test states, and an agent with SNMPv3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from timesyncd.errors import SourceError
from timesyncd.snmp import Credentials, Oid, Session, User, ber, security
from timesyncd.snmp.messages import Pdu, PduType, decode_pdu
from timesyncd.snmp.security import MasterKeys

SYSTEM: Oid = (1, 3, 6, 1, 2, 1, 1)
DESCRIPTION: Oid = (*SYSTEM, 1)
TEXT = ber.encode(ber.OCTETS, b"device")

Answer = Callable[[bytes], Iterable[bytes]]


class _Protocol(asyncio.DatagramProtocol):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.received: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self.received.append(data)
        for reply in self._answer(data):
            self._transport.sendto(reply, addr)


@asynccontextmanager
async def running_agent(answer: Answer) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Its port, and what it has received so far."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(lambda: _Protocol(answer), local_addr=("127.0.0.1", 0))
    try:
        yield transport.get_extra_info("sockname")[1], protocol.received
    finally:
        transport.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def session_with(credentials: Credentials, answer: Answer) -> AsyncIterator[tuple[Session, list[bytes]]]:
    async with running_agent(answer) as (port, received):
        session = await Session.open("127.0.0.1", port, credentials, 0.1, retries=0)
        try:
            yield session, received
        finally:
            session.close()


async def outcome_of(request: Awaitable[Any]) -> Any:
    """What a request returns, or the SourceError that it raises, so that a test can compare either."""
    try:
        return await request
    except SourceError as error:
        return error


def v2c_request(datagram: bytes) -> Pdu:
    message = ber.Reader(datagram).enter(ber.SEQUENCE, "a message")
    message.integer("the version", 1, 1)
    message.octets("the community")
    return decode_pdu(message)


def pdu(kind: int, number: int, values: Iterable[tuple[Oid, bytes]], status: int = 0, position: int = 0) -> bytes:
    """`values` are encoded already."""
    varbinds = b"".join(ber.encode(ber.SEQUENCE, ber.encode_oid(oid) + value) for oid, value in values)
    head = b"".join(map(ber.encode_integer, (number, status, position)))
    return ber.encode(kind, head + ber.encode(ber.SEQUENCE, varbinds))


def v2c(body: bytes, community: bytes = b"fifth-floor") -> bytes:
    return ber.encode(ber.SEQUENCE, ber.encode_integer(1) + ber.encode(ber.OCTETS, community) + body)


def texts(request: Pdu) -> bytes:
    """A response with a text for whatever was asked."""
    return pdu(PduType.RESPONSE, request.number, [(varbind.oid, TEXT) for varbind in request.varbinds])


class ScriptedAgent:
    """An authoritative engine, in the order of RFC 3414 section 3.2. It is silent to what it cannot decrypt, as net-snmp is."""

    def __init__(self, user: User, engine_id: bytes = bytes.fromhex("80001f880401020304")) -> None:
        self.engine = security.SnmpEngine(engine_id, 3, 1_000)
        self.user = user
        self.reply: Callable[[security.UsmMessage, Pdu], bytes] = self.response

    def answer(self, datagram: bytes) -> list[bytes]:
        message = security.parse(datagram)
        if message.engine.engine_id != self.engine.engine_id:
            return [self.report(message, security.UNKNOWN_ENGINE_ID)]
        if message.user != self.user.name.encode():
            return [self.report(message, security.UNKNOWN_USER)]
        if not message.verify(self.keys):
            return [self.report(message, security.WRONG_DIGEST)]
        if message.engine.boots != self.engine.boots or abs(message.engine.time - self.engine.time) > 150:
            return [self.report(message, security.NOT_IN_TIME_WINDOW, signed=True)]
        plain = message.scoped(self.keys)
        if plain.next_tag() != ber.SEQUENCE:
            return []
        return [self.reply(message, decode_pdu(security.open_scoped(plain)))]

    @property
    def keys(self) -> Any:
        return MasterKeys(self.user).at(self.engine.engine_id)

    def response(self, message: security.UsmMessage, request: Pdu) -> bytes:
        return self.seal(message.number, texts(request))

    def seal(self, number: int, body: bytes) -> bytes:
        scoped = security.scoped_pdu(self.engine.engine_id, b"", body)
        return security.seal(number, False, self.engine, self.user.name.encode(), self.keys, scoped)

    def report(self, message: security.UsmMessage, counter: Oid, signed: bool = False) -> bytes:
        return security.report(message, self.engine, counter, 1, self.keys if signed else None)
