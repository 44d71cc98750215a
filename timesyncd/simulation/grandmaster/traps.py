"""
Sends what a grandmaster reports by itself: as traps, or as informs, which are repeated until they are acknowledged.

Sends a grandmaster's alarms as the lines that its alarm daemon writes, over UDP.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.simulation.grandmaster import mib, wire
from timesyncd.simulation.grandmaster.agent import SnmpAgent
from timesyncd.simulation.grandmaster.alarms import DeviceEvent
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.notifications import SentNotification, notifications_of, syslog_line
from timesyncd.simulation.grandmaster.wire import (
    AuthoritativeEngine,
    Oid,
    PduKind,
    ScopedPdu,
    UsmUser,
    V3Message,
    WirePdu,
)

SYS_UPTIME: Oid = (1, 3, 6, 1, 2, 1, 1, 3, 0)
SNMP_TRAP_OID: Oid = (1, 3, 6, 1, 6, 3, 1, 1, 4, 1, 0)
#: An inform is repeated after this time, so often; a grandmaster whose receiver is away forgets what it has no room for.
RETRY_S, TRIES, WAITING = 1.0, 5, 200

_NOBODY = AuthoritativeEngine(b"", 0, 0)
T = TypeVar("T")


class TrapSender(asyncio.DatagramProtocol):
    """
    Reports for the grandmaster of `agent` to one receiver: v2c with the agent's community, or v3 as `user`.

    `async with` it, and hand it each event of the device.
    """

    def __init__(
        self, agent: SnmpAgent, host: str, port: int, *, user: UsmUser | None = None, inform: bool = False
    ) -> None:
        self._agent = agent
        self._target = (host, port)
        self._user = user
        self._inform = inform
        self._sequence: Counter[Oid] = Counter()
        self._numbers = itertools.count(1)
        self._waiting: asyncio.Queue[WirePdu] = asyncio.Queue(WAITING)
        self._heard: asyncio.Queue[bytes] = asyncio.Queue()
        self._peer: tuple[AuthoritativeEngine, int] | None = None

    async def __aenter__(self) -> Self:
        """Raises OSError when the receiver's name is none."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, remote_addr=self._target)
        self._worker = asyncio.create_task(self._deliver())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()
        self._worker.cancel()
        with suppress(asyncio.CancelledError):
            await self._worker

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._heard.put_nowait(data)

    def report(self, event: DeviceEvent) -> None:
        if event.alarm is None:
            self._sequence.clear()
        for notification in notifications_of(event, self._agent.device.made_of.alarm_family):
            pdu = self._pdu(notification)
            if self._inform and not self._waiting.full():
                self._waiting.put_nowait(pdu)
            elif not self._inform:
                self._transport.sendto(self._trap(pdu))

    def _pdu(self, notification: SentNotification) -> WirePdu:
        varbinds = [
            (SYS_UPTIME, mib.ticks(int(self._agent.device.uptime_s * 100))),
            (SNMP_TRAP_OID, mib.object_id(notification.oid)),
            *notification.varbinds,
        ]
        if notification.sequence_at is not None:
            self._sequence[notification.oid] += 1
            varbinds.append((notification.sequence_at, mib.integer(self._sequence[notification.oid])))
        return WirePdu(PduKind.INFORM if self._inform else PduKind.TRAP, next(self._numbers), 0, 0, varbinds)

    def _trap(self, pdu: WirePdu) -> bytes:
        """Of a trap the sender is the authoritative engine."""
        if self._user is None:
            return self._open(pdu)
        return self._secured(self._user, self._agent.engine, False, pdu)

    def _open(self, pdu: WirePdu) -> bytes:
        return wire.encode_v2c(self._agent.community.encode(), pdu)

    def _secured(self, user: UsmUser, engine: AuthoritativeEngine, reportable: bool, pdu: WirePdu) -> bytes:
        scoped = ScopedPdu(self._agent.engine.engine_id, user.context.encode(), pdu)
        flags = wire.AUTH | wire.PRIV | (wire.REPORTABLE if reportable else 0)
        keys = wire.keys_at(user, engine.engine_id)
        return wire.encode_v3(pdu.number, flags, engine, user.name.encode(), keys, scoped)

    async def _deliver(self) -> None:
        while True:
            pdu = await self._waiting.get()
            if self._user is None:
                await self._inform_v2c(pdu)
            else:
                await self._inform_v3(self._user, pdu)

    async def _inform_v2c(self, pdu: WirePdu) -> None:
        await self._ask(self._open(pdu), lambda data: _acknowledges(data, pdu))

    async def _inform_v3(self, user: UsmUser, pdu: WirePdu) -> None:
        """Of an inform the receiver is the authoritative engine: ask who it is, take its time, and then inform."""
        for _ in range(3):
            answer = await self._ask(self._inform_datagram(user, pdu), lambda data: _message_for(data, pdu))
            if answer is None or answer.flags & wire.PRIV:
                return
            self._peer = answer.engine, time.monotonic_ns()

    def _inform_datagram(self, user: UsmUser, pdu: WirePdu) -> bytes:
        if self._peer is None:
            question = ScopedPdu(b"", b"", WirePdu(PduKind.GET, pdu.number, 0, 0, []))
            return wire.encode_v3(pdu.number, wire.REPORTABLE, _NOBODY, b"", None, question)
        engine, at_ns = self._peer
        return self._secured(user, engine.after((time.monotonic_ns() - at_ns) // NS_PER_S), True, pdu)

    async def _ask(self, datagram: bytes, accept: Callable[[bytes], T | None]) -> T | None:
        """What `accept` makes of the answer; None when none came to any of the tries."""
        for _ in range(TRIES):
            self._transport.sendto(datagram)
            try:
                async with asyncio.timeout(RETRY_S):
                    while True:
                        accepted = accept(await self._heard.get())
                        if accepted is not None:
                            return accepted
            except TimeoutError:
                continue
        return None


def _acknowledges(datagram: bytes, pdu: WirePdu) -> bool | None:
    try:
        _, answer = wire.decode_v2c(datagram)
    except Malformed:
        return None
    return (answer.kind, answer.number) == (PduKind.RESPONSE, pdu.number) or None


def _message_for(datagram: bytes, pdu: WirePdu) -> V3Message | None:
    try:
        message = wire.decode_v3(datagram)
    except Malformed:
        return None
    return message if message.number == pdu.number else None


class SyslogSender(asyncio.DatagramProtocol):
    """`async with` it, and hand it each event of the device."""

    def __init__(self, device: Device, host: str, port: int) -> None:
        self._device = device
        self._target = (host, port)

    async def __aenter__(self) -> Self:
        """Raises OSError when the receiver's name is none."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, remote_addr=self._target)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()
        await asyncio.sleep(0)

    def report(self, event: DeviceEvent) -> None:
        line = syslog_line(event, self._device.made_of.alarm_family, self._device.name)
        if line is not None:
            self._transport.sendto(line)
