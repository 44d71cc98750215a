"""
An SNMP agent for a simulated unit, v2c and v3: GET, GETNEXT and GETBULK are answered, SET is refused.

Its codec is the one that also asks units. What holds it to the standards is in the tests: net-snmp's programs at either
end, and another implementation as an oracle.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Self

from timesyncd.errors import Malformed, Refused
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.lies import Lie
from timesyncd.simulation.grandmaster.mib import Mib
from timesyncd.simulation.grandmaster.oids import mib_of
from timesyncd.simulation.grandmaster.oids_standard import engine_id
from timesyncd.simulation.grandmaster.responses import AUTHORIZATION_ERROR, NOT_WRITABLE, SET, refusal, respond
from timesyncd.simulation.grandmaster.security import SecurityFault, keys_at, open_request, seal_response
from timesyncd.snmp import ber, security, v2c
from timesyncd.snmp.keys import Keys
from timesyncd.snmp.messages import Pdu, decode_pdu, encode_pdu
from timesyncd.snmp.values import Oid, User


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
        mib: Mib | None = None,
    ) -> None:
        self.device = device
        self.host = host
        self.port = port
        self.community = community
        self.user = user
        self.lie = Lie()
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

    def served(self) -> Mib:
        return self._mib or mib_of(self.device)

    @property
    def engine(self) -> security.Engine:
        return security.Engine(engine_id(self.device), self.device.engine_boots, int(self.device.uptime_s))

    def answer(self, datagram: bytes) -> bytes | None:
        """None to what is no SNMP, and to another community, as RFC 3416 agents keep silent."""
        try:
            version = (
                ber.Reader(datagram).enter(ber.SEQUENCE, "a message").integer("the version", 0, security.VERSION_3)
            )
            if version == v2c.VERSION_2C:
                return self._answer_v2c(datagram)
            if version == security.VERSION_3 and self.user is not None:
                return self._answer_v3(security.parse(datagram), self.user)
        except (Malformed, Refused):
            return None
        return None

    def _answer_v2c(self, datagram: bytes) -> bytes | None:
        community, request = v2c.parse(datagram)
        if community != self.community.encode():
            return None
        answer = self._respond(request)
        return None if answer is None else v2c.message(community, encode_pdu(answer))

    def _answer_v3(self, message: security.Message, user: User) -> bytes | None:
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
        self, message: security.Message, fault: SecurityFault, keys: Keys, engine: security.Engine
    ) -> bytes | None:
        """Tells why the message was refused; only "not in time window" is signed (RFC 3414, section 3.2)."""
        self.reports[fault.counter] += 1
        if not message.flags & security.REPORTABLE:
            return None
        signing = keys if fault.counter == security.NOT_IN_TIME_WINDOW else None
        return security.report(message, engine, fault.counter, self.reports[fault.counter], signing, fault.request)
