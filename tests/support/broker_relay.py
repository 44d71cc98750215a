"""A relay between daemons and a real broker that does what a broken broker or network does."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from enum import Enum
from typing import Self

from timesyncd.mqtt.packets import PUBLISH, Packet, PacketSplitter

PUBACK, SUBACK = 4, 9
#: The flag of a PUBLISH that the broker is to keep (MQTT 5.0, 3.3.1.3).
RETAIN = 1
#: More than the daemon accepts: the relay itself limits nothing.
MAX_PACKET_BYTES = 2**28
LATENCY_S = 1.0


class BrokerFault(Enum):
    """What the relay does instead of passing everything on."""

    NONE = "none"
    SILENT = "silent"
    """Connections stay open, and nothing comes from the broker."""
    HALF_OPEN = "half-open"
    """Nothing passes in either direction, and no end of a connection either."""
    REFUSING = "refusing"
    """Every connection is refused, and the present ones are reset."""
    DROPPING = "dropping"
    """Every connection is accepted and closed at once."""
    GARBAGE = "garbage"
    """Random bytes come with the broker's."""
    WRONG_ACKNOWLEDGEMENTS = "wrong acknowledgements"
    """PUBACK and SUBACK name another packet."""
    LATENCY = "1 s of latency"


class BrokerRelay:
    """
    `async with BrokerRelay(broker.port) as relay:` listens at `relay.port`. `await set_fault()` changes what it does.
    `connections` counts those that it accepted, `forwarded` the bytes that it passed on to the daemons. `keeps` False: the broker
    keeps no message, as one that knows no retained messages.
    """

    def __init__(self, broker_port: int, keeps: bool = True) -> None:
        self._keeps = keeps
        self.connections = self.forwarded = 0
        self.port = 0
        self.fault = BrokerFault.NONE
        self._broker_port = broker_port
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._to_daemons: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def set_fault(self, fault: BrokerFault) -> None:
        was, self.fault = self.fault, fault
        if fault is BrokerFault.REFUSING:
            await self._close()
        elif was is BrokerFault.REFUSING:
            await self._listen()
        if fault is BrokerFault.DROPPING:
            self._reset_all()
        if fault is BrokerFault.HALF_OPEN:
            self._flowing.clear()
        else:
            self._flowing.set()

    async def send(self, data: bytes) -> None:
        """These bytes to every daemon that is connected, as far as it reads them."""
        for writer in set(self._to_daemons):
            with suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
                self.forwarded += len(data)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._reset_all()
        self._server = None

    def _reset_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.fault is BrokerFault.DROPPING:
            writer.transport.abort()
            return
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, to_broker}
        self._writers |= ends
        self._to_daemons.add(writer)
        pumps = [
            asyncio.create_task(self._pump(reader, to_broker, False)),
            asyncio.create_task(self._pump(from_broker, writer, True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            await self._flowing.wait()
        finally:
            for pump in pumps:
                pump.cancel()
            for end in ends:
                end.transport.abort()
            self._writers -= ends
            self._to_daemons.discard(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_daemon: bool) -> None:
        splitter = PacketSplitter(MAX_PACKET_BYTES)
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                await self._flowing.wait()
                if self.fault is BrokerFault.LATENCY:
                    loop.call_later(LATENCY_S, _write, writer, data)
                    continue
                if not to_daemon and not self._keeps:
                    data = b"".join(encoded(_not_kept(packet)) for packet in splitter.split(data))
                if to_daemon:
                    data = self._changed(data, splitter)
                    self.forwarded += len(data)
                _write(writer, data)
                await writer.drain()

    def _changed(self, data: bytes, splitter: PacketSplitter) -> bytes:
        """What the daemon gets in place of the broker's bytes."""
        packets = splitter.split(data)
        match self.fault:
            case BrokerFault.SILENT:
                return b""
            case BrokerFault.GARBAGE:
                return data + random.randbytes(32)
            case BrokerFault.WRONG_ACKNOWLEDGEMENTS:
                return b"".join(encoded(_misnamed(packet)) for packet in packets)
            case _:
                return data


def encoded(packet: Packet) -> bytes:
    return bytes([packet.first_byte]) + variable_length(len(packet.body)) + packet.body


def variable_length(length: int) -> bytes:
    """A variable byte integer (MQTT 5.0, 1.5.5)."""
    found = b""
    while length > 127:
        found += bytes([length & 127 | 128])
        length >>= 7
    return found + bytes([length])


def _misnamed(packet: Packet) -> Packet:
    if packet.type not in (PUBACK, SUBACK):
        return packet
    return Packet(packet.first_byte, (int.from_bytes(packet.body[:2]) ^ 0x5555).to_bytes(2) + packet.body[2:])


def _not_kept(packet: Packet) -> Packet:
    return packet._replace(first_byte=packet.first_byte & ~RETAIN) if packet.type == PUBLISH else packet


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.transport.is_closing():
        writer.write(data)
