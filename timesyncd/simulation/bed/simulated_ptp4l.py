"""
A ptp4l that is not there: a UNIX datagram server that answers management questions as ptp4l 3.1.1 would of a slave port.

For machines without ptp4l, or without the right to make namespaces. Its node's true offset is chosen, and can move; what it reports
is that with noise. It serves eight Syncs (or `sync_rate`) and eight delay measurements a second, all computed from the time of the question.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from timesyncd.clocks import NS_PER_S
from timesyncd.simulation.bed.ptp4l import DOMAIN
from timesyncd.simulation.bed.relay import OffsetProfile, Piece

GRANDMASTER_IDENTITY = bytes.fromhex("00a069fffe0000a1")
SYNC_INTERVAL_NS = DELAY_INTERVAL_NS = NS_PER_S // 8

_GET, _SET, _RESPONSE = 0, 1, 2
_SUBSCRIBE_EVENTS_NP = 0xC003
_NO_SUCH_ID, _NOT_SUPPORTED = 2, 6
_SLAVE = 9
#: currentUtcOffsetValid, ptpTimescale, timeTraceable, frequencyTraceable.
_TRACEABLE = 0x3C

# Every number here is of IEEE 1588-2019, clause 15, or of linuxptp; the driver's codec is not used, so that each checks the other.
_HEADER = struct.Struct(">BBHBB14x8sHHBb")
_TARGET = struct.Struct(">8sH2xBx")
_TLV = struct.Struct(">HHH")
_REQUEST_SIZE = 54


@dataclass(frozen=True, slots=True)
class SlavePort:
    """
    Port 1 of a clock that has followed a grandmaster since `start_ns` (CLOCK_REALTIME). `identity` is the clock's. The noise of
    an offset stays below the path delay, as that of real exchanges does. `is_traceable`: its grandmaster announces the PTP timescale,
    traceable and with a valid UTC offset, else an arbitrary one. `log_sync_interval` is that of the standard: -3 = eight a second.
    """

    identity: bytes
    true_offset_ns: int
    start_ns: int
    path_delay_ns: int = 20_000
    noise_ns: int = 5_000
    clock_class: int = 6
    is_traceable: bool = False
    log_sync_interval: int = -3
    grandmaster_identity: bytes = GRANDMASTER_IDENTITY

    def answer(self, datagram: bytes, realtime_ns: int) -> bytes | None:
        """What ptp4l would send back; None where it keeps silent: not a question, or for another domain."""
        if len(datagram) < _REQUEST_SIZE:
            return None
        kind, version, _, domain, _, asker, asker_port, sequence, _, _ = _HEADER.unpack_from(datagram)
        if kind != 0x0D or version & 0xF != 2 or domain != DOMAIN:
            return None
        action = datagram[46] & 0xF
        _, _, number = _TLV.unpack_from(datagram, 48)
        if action not in (_GET, _SET):
            return None
        tlv = self._granted(datagram) if action == _SET else self._answer_to(number, realtime_ns)
        target = _TARGET.pack(asker, asker_port, _RESPONSE)
        length = _HEADER.size + len(target) + len(tlv)
        return _HEADER.pack(0x0D, 2, length, domain, 0, self.identity, 1, sequence, 4, 0x7F) + target + tlv

    def _answer_to(self, number: int, realtime_ns: int) -> bytes:
        body = self._bodies(realtime_ns).get(number)
        return _error(number, _NO_SUCH_ID) if body is None else _TLV.pack(1, 2 + len(body), number) + body

    def _granted(self, request: bytes) -> bytes:
        """A subscription is granted whatever it asks for, and nothing is ever pushed; nothing else can be set here."""
        _, _, number = _TLV.unpack_from(request, 48)
        return request[48:] if number == _SUBSCRIBE_EVENTS_NP else _error(number, _NOT_SUPPORTED)

    def _bodies(self, realtime_ns: int) -> dict[int, bytes]:
        """The answers by managementId."""
        elapsed_ns = max(0, realtime_ns - self.start_ns)
        interval_ns = round(NS_PER_S * 2.0**self.log_sync_interval)
        syncs, delays = elapsed_ns // interval_ns, elapsed_ns // DELAY_INTERVAL_NS
        noise = random.Random(syncs)
        offset_ns = self.true_offset_ns + noise.randint(-self.noise_ns, self.noise_ns)
        delay = (self.path_delay_ns + noise.randint(0, self.noise_ns)) << 16
        ingress_ns = self.start_ns + syncs * interval_ns if syncs else 0
        port = self.identity + struct.pack(">H", 1)
        parent = self.grandmaster_identity + struct.pack(">H", 1)
        return {
            0x2000: struct.pack(">BxHBBBHB8sBx", 3, 1, 128, 255, 0xFE, 0xFFFF, 128, self.identity, DOMAIN),
            0x2001: struct.pack(">Hqq", 1, offset_ns << 16, delay),
            0x2002: parent
            + struct.pack(">2xHiBBBHB8s", 0xFFFF, 0x7FFFFFFF, 10, self.clock_class, 0x21, 0xFFFF, 128, parent[:8]),
            0x2003: struct.pack(">hBB", 37, _TRACEABLE if self.is_traceable else 0, 0xA0),
            0x2004: port + struct.pack(">BbqbBbBbB", _SLAVE, -3, 0, 0, 3, self.log_sync_interval, 1, 0, 2),
            0xC000: struct.pack(">qq22xi8s", offset_ns, ingress_ns, 1, self.grandmaster_identity),
            0xC004: port + struct.pack(">BBB", _SLAVE, 0, 4) + b"sim0" + b"\0",
            0xC005: port + _counters(received={0: syncs, 8: syncs, 9: delays, 11: delays // 8}, sent={1: delays}),
        }


def _counters(received: dict[int, int], sent: dict[int, int]) -> bytes:
    """By messageType; little-endian, as linuxptp has them."""
    return struct.pack("<32Q", *(messages.get(kind, 0) for messages in (received, sent) for kind in range(16)))


def _error(number: int, error: int) -> bytes:
    return struct.pack(">HHHH4x", 2, 8, error, number)


class SimulatedPtp4l(asyncio.DatagramProtocol):
    """`async with SimulatedPtp4l(path, true_offset_ns):` serves at `path`, from the running loop."""

    def __init__(
        self,
        uds_address: Path,
        true_offset_ns: int,
        is_traceable: bool = False,
        log_sync_interval: int = -3,
        grandmaster_identity: bytes = GRANDMASTER_IDENTITY,
    ) -> None:
        self._uds_address = uds_address
        self._profile = OffsetProfile([Piece(0, -true_offset_ns)])
        identity = random.randbytes(3) + b"\xff\xfe" + random.randbytes(3)
        self._port = SlavePort(
            identity,
            true_offset_ns,
            start_ns=time.time_ns(),
            is_traceable=is_traceable,
            log_sync_interval=log_sync_interval,
            grandmaster_identity=grandmaster_identity,
        )

    def announce(self, clock_class: int) -> None:
        """What its grandmaster announces from now on."""
        self._port = replace(self._port, clock_class=clock_class)

    def move(self, rate_ppb: int) -> None:
        """From now on the true offset grows by this rate; without a step."""
        self._profile.pieces.append(self._profile.next_piece(time.time_ns(), None, -rate_ppb))

    def true_offset_ns(self, realtime_ns: int) -> int:
        return -self._profile.x_ns(realtime_ns)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=str(self._uds_address), family=socket.AF_UNIX
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()
        self._uds_address.unlink()

    def datagram_received(self, data: bytes, addr: str | None) -> None:  # type: ignore[override]
        now_ns = time.time_ns()
        answer = replace(self._port, true_offset_ns=self.true_offset_ns(now_ns)).answer(data, now_ns)
        if answer is not None:
            self._transport.sendto(answer, addr)
