"""
A relay between a grandmaster and a node that makes a known truth: it adds x(t) to the grandmaster's timestamps.

The node then sees a grandmaster that is ahead by x, so its true offset is -x. It also delays one direction or both.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from timesyncd.clocks import NS_PER_S

EVENT_PORT = 319
GENERAL_PORT = 320
PTP_GROUP = "224.0.1.129"

FOLLOW_UP = 8
DELAY_RESP = 9
_TIMESTAMP_AT = 34
_TIMESTAMP_END = 44


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


class Direction:
    """Forwards in the order of arrival, each datagram after `delay_ns`."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self.delay_ns = 0
        self._change = change
        self._waiting: deque[tuple[socket.socket, int, bytes]] = deque()

    def forward(self, source: socket.socket, target: socket.socket, port: int) -> None:
        """Called when `source` is readable."""
        datagram = source.recv(2048)
        self._waiting.append((target, port, self._change(datagram)))
        if self.delay_ns or len(self._waiting) > 1:
            asyncio.get_running_loop().call_later(self.delay_ns / NS_PER_S, self._send_next)
        else:
            self._send_next()

    def _send_next(self) -> None:
        target, port, datagram = self._waiting.popleft()
        target.sendto(datagram, (PTP_GROUP, port))


class Relay:
    """Between two interfaces of the namespace that we are in; runs in the present event loop until closed."""

    def __init__(self, grandmaster_interface: str, node_interface: str) -> None:
        self.profile = OffsetProfile()
        self.to_node = Direction(lambda datagram: shift_timestamp(datagram, self.profile.x_ns))
        self.to_grandmaster = Direction(lambda datagram: datagram)
        self._sockets: list[socket.socket] = []
        for port in (EVENT_PORT, GENERAL_PORT):
            grandmaster = multicast_socket(grandmaster_interface, port)
            node = multicast_socket(node_interface, port)
            self._sockets += [grandmaster, node]
            loop = asyncio.get_running_loop()
            loop.add_reader(grandmaster, self.to_node.forward, grandmaster, node, port)
            loop.add_reader(node, self.to_grandmaster.forward, node, grandmaster, port)

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
