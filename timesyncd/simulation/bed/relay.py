"""
A relay between a grandmaster and a node that makes a known truth: it adds x(t) to the grandmaster's timestamps.

The node then sees a grandmaster that is ahead by x, so its true offset is -x. It also delays one direction or both.
As a transparent clock it corrects the time that event messages spend in it, as a good switch does.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from timesyncd.clocks import NS_PER_S

EVENT_PORT = 319
GENERAL_PORT = 320
PTP_GROUP = "224.0.1.129"

SYNC = 0
DELAY_REQ = 1
FOLLOW_UP = 8
DELAY_RESP = 9
_CORRECTION = slice(8, 16)
_SOURCE_PORT = slice(20, 30)
_SEQUENCE = slice(30, 32)
_TIMESTAMP_AT = 34
_TIMESTAMP_END = 44
_REQUESTING_PORT = slice(44, 54)

#: Linux's number; Python does not name it.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")


@dataclass(frozen=True, slots=True)
class Piece:
    """x from `start_ns` (CLOCK_REALTIME) on: x_ns at the start, growing by rate_ppb."""

    start_ns: int
    x_ns: int = 0
    rate_ppb: int = 0

    def at(self, realtime_ns: int) -> int:
        return self.x_ns + self.rate_ppb * (realtime_ns - self.start_ns) // NS_PER_S


@dataclass(slots=True)
class OffsetProfile:
    """x(t) piece by piece; 0 before the first."""

    pieces: list[Piece] = field(default_factory=list)

    def x_ns(self, realtime_ns: int) -> int:
        """How far ahead the grandmaster is made to look at this moment."""
        for piece in reversed(self.pieces):
            if piece.start_ns <= realtime_ns:
                return piece.at(realtime_ns)
        return 0

    def next_piece(self, start_ns: int, x_ns: int | None, rate_ppb: int) -> Piece:
        """The piece that begins now; x_ns None = without a step."""
        return Piece(start_ns, self.x_ns(start_ns) if x_ns is None else x_ns, rate_ppb)


def shift_timestamp(datagram: bytes, x_ns: Callable[[int], int]) -> bytes:
    """
    A datagram from the grandmaster with its timestamp moved by x(that timestamp); anything but Follow_Up and Delay_Resp
    (IEEE 1588-2019, 13.7 and 13.8) as it is. The timescale is arbitrary: a timestamp is CLOCK_REALTIME.
    """
    if len(datagram) < _TIMESTAMP_END or datagram[0] & 0x0F not in (FOLLOW_UP, DELAY_RESP):
        return datagram
    high, low, nanoseconds = struct.unpack_from(">HII", datagram, _TIMESTAMP_AT)
    timestamp_ns = (high << 32 | low) * NS_PER_S + nanoseconds
    seconds, nanoseconds = divmod(timestamp_ns + x_ns(timestamp_ns), NS_PER_S)
    shifted = struct.pack(">HII", seconds >> 32, seconds & 0xFFFF_FFFF, nanoseconds)
    return datagram[:_TIMESTAMP_AT] + shifted + datagram[_TIMESTAMP_END:]


class ResidenceTimes:
    """
    A two-step transparent clock's correction (IEEE 1588-2019, 10.2): how long each event message was inside goes into the
    correctionField of the general message that follows it. The newest are kept, since a general message may be lost.
    """

    NEWEST = 64

    def __init__(self) -> None:
        self._ns: dict[bytes, int] = {}

    def add(self, event: bytes, ns: int) -> None:
        """A Sync or Delay_Req was inside for so long."""
        if len(event) < _TIMESTAMP_END or event[0] & 0x0F not in (SYNC, DELAY_REQ):
            return
        self._ns[event[_SOURCE_PORT] + event[_SEQUENCE]] = ns
        while len(self._ns) > self.NEWEST:
            del self._ns[next(iter(self._ns))]

    def correct(self, general: bytes) -> bytes:
        """A Follow_Up or Delay_Resp with the correction of its Sync or Delay_Req; anything else as it is."""
        ports = {FOLLOW_UP: _SOURCE_PORT, DELAY_RESP: _REQUESTING_PORT}
        if len(general) < _TIMESTAMP_END or (port := ports.get(general[0] & 0x0F)) is None:
            return general
        ns = self._ns.pop(general[port] + general[_SEQUENCE], 0)
        scaled = struct.unpack(">q", general[_CORRECTION])[0] + (ns << 16)
        return general[: _CORRECTION.start] + struct.pack(">q", scaled) + general[_CORRECTION.stop :]


class Direction:
    """Forwards in the order of arrival, each datagram after `delay_ns`. `residence` None: no transparent clock."""

    def __init__(self, change: Callable[[bytes], bytes], residence: ResidenceTimes | None = None) -> None:
        self.delay_ns = 0
        self._change = change
        self._residence = residence
        self._waiting: deque[tuple[socket.socket, int, bytes]] = deque()

    def forward(self, source: socket.socket, target: socket.socket, port: int) -> None:
        """Called when `source` is readable."""
        if self._residence is not None:
            self._forward_corrected(self._residence, source, target, port)
            return
        datagram = source.recv(2048)
        self._waiting.append((target, port, self._change(datagram)))
        if self.delay_ns or len(self._waiting) > 1:
            asyncio.get_running_loop().call_later(self.delay_ns / NS_PER_S, self._send_next)
        else:
            self._send_next()

    def _send_next(self) -> None:
        target, port, datagram = self._waiting.popleft()
        target.sendto(datagram, (PTP_GROUP, port))

    def _forward_corrected(
        self, residence: ResidenceTimes, source: socket.socket, target: socket.socket, port: int
    ) -> None:
        """
        At once. What the kernel still needs to send stays uncorrected: it counts as path delay, so that the bound has it.
        """
        datagram, received_ns = receive_stamped(source)
        sent = residence.correct(self._change(datagram))
        now_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        target.sendto(sent, (PTP_GROUP, port))
        residence.add(datagram, max(0, now_ns - received_ns))


def receive_stamped(endpoint: socket.socket) -> tuple[bytes, int]:
    """A datagram, and when the kernel received it (CLOCK_REALTIME)."""
    datagram, ancillary, _, _ = endpoint.recvmsg(2048, socket.CMSG_SPACE(_TIMESPEC.size))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = _TIMESPEC.unpack(data[: _TIMESPEC.size])
            return datagram, seconds * NS_PER_S + nanoseconds
    return datagram, time.clock_gettime_ns(time.CLOCK_REALTIME)


class Relay:
    """
    Between two interfaces of the namespace that we are in; runs in the present event loop until closed. As a transparent
    clock it delays nothing on purpose.
    """

    def __init__(self, grandmaster_interface: str, node_interface: str, is_transparent: bool = False) -> None:
        self.profile = OffsetProfile()
        residence = ResidenceTimes() if is_transparent else None
        self.to_node = Direction(lambda datagram: shift_timestamp(datagram, self.profile.x_ns), residence)
        self.to_grandmaster = Direction(lambda datagram: datagram, residence)
        self._sockets: list[socket.socket] = []
        for port in (EVENT_PORT, GENERAL_PORT):
            grandmaster = multicast_socket(grandmaster_interface, port)
            node = multicast_socket(node_interface, port)
            self._sockets += [grandmaster, node]
            loop = asyncio.get_running_loop()
            forward = self._forward_to_node if is_transparent else self.to_node.forward
            loop.add_reader(grandmaster, forward, grandmaster, node, port)
            loop.add_reader(node, self.to_grandmaster.forward, node, grandmaster, port)
            if is_transparent:
                for endpoint in (grandmaster, node):
                    endpoint.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def _forward_to_node(self, grandmaster: socket.socket, node: socket.socket, port: int) -> None:
        """Each Sync before its Follow_Up, which needs its correction: both may have come since the loop last looked."""
        if port == GENERAL_PORT:
            event, event_target = self._sockets[:2]
            while select.select([event], [], [], 0)[0]:
                self.to_node.forward(event, event_target, EVENT_PORT)
        elif not select.select([grandmaster], [], [], 0)[0]:
            return  # the general message that came with it has brought it along
        self.to_node.forward(grandmaster, node, port)

    def close(self) -> None:
        for endpoint in self._sockets:
            asyncio.get_running_loop().remove_reader(endpoint)
            endpoint.close()


def multicast_socket(interface: str, port: int) -> socket.socket:
    """Joins PTP's multicast group on this interface and port; does not receive its own datagrams."""
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    group = struct.pack("4s4si", socket.inet_aton(PTP_GROUP), bytes(4), socket.if_nametoindex(interface))
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    endpoint.bind(("", port))
    endpoint.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    endpoint.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, group)
    endpoint.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
    endpoint.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    return endpoint
