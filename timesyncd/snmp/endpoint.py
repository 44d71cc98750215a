"""The UDP socket that all sessions of an event loop share: who waits for which answer."""

from __future__ import annotations

import asyncio
import secrets
import socket
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from timesyncd.errors import Malformed, Unreachable
from timesyncd.snmp import ber
from timesyncd.snmp.messages import INT32_MAX, INT32_MIN

MAX_DATAGRAM = 65535
#: So many datagrams are taken in one go before the event loop's other work has its turn.
DATAGRAMS_A_TURN = 64

Address = tuple[Any, ...]
"""Numeric host and port, and what else the family's addresses have."""


class Answer(NamedTuple):
    """`datagram` None: nothing that fits came in time; `heard` is what came instead from that address, or ""."""

    datagram: bytes | None
    heard: str


@dataclass(slots=True, eq=False)
class _Waiting:
    address: Address
    answer: asyncio.Future[bytes]
    heard: str = ""


class Endpoint:
    """One for an event loop and an address family: the first session opens it, the last one closes it."""

    _open: ClassVar[dict[tuple[asyncio.AbstractEventLoop, int], Endpoint]] = {}

    def __init__(self, loop: asyncio.AbstractEventLoop, family: int) -> None:
        self._family = family
        self._loop = loop
        self._users = 0
        self._waiting: dict[int, _Waiting] = {}
        try:
            self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise Unreachable(f"no UDP socket: {error.strerror}") from error
        loop.add_reader(self._socket, self._receive)

    @classmethod
    def acquire(cls, family: int) -> Endpoint:
        """Raises Unreachable when the machine has no such sockets."""
        key = (asyncio.get_running_loop(), family)
        if key not in cls._open:
            cls._open[key] = cls(*key)
        cls._open[key]._users += 1
        return cls._open[key]

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            del self._open[self._loop, self._family]

    def new_number(self) -> int:
        """For a request: nobody off the path can guess it, and it takes four octets. Not in use."""
        while (number := 1 << 30 | secrets.randbits(30)) in self._waiting:
            pass
        return number

    async def ask(self, address: Address, number: int, datagram: bytes, timeout_s: float, tries: int) -> Answer:
        """Sends the request until an answer with its number comes from its address. Raises Unreachable when it cannot be sent."""
        waiting = _Waiting(address, self._loop.create_future())
        self._waiting[number] = waiting
        try:
            for _ in range(tries):
                self._send(datagram, address)
                await asyncio.wait((waiting.answer,), timeout=timeout_s)
                if waiting.answer.done():
                    return Answer(waiting.answer.result(), "")
            return Answer(None, waiting.heard)
        finally:
            del self._waiting[number]

    def _send(self, datagram: bytes, address: Address) -> None:
        try:
            self._socket.sendto(datagram, address)
        except BlockingIOError:
            pass  # the machine's own queue is full: as lost as on the wire, and sent again as that is
        except OSError as error:
            raise Unreachable(f"cannot send: {error.strerror}") from error

    def _receive(self) -> None:
        for _ in range(DATAGRAMS_A_TURN):
            try:
                datagram, address = self._socket.recvfrom(MAX_DATAGRAM)
            except OSError:
                return
            self._take(datagram, address)

    def _take(self, datagram: bytes, address: Address) -> None:
        try:
            waiting = self._waiting.get(number_of(datagram))
            what = "answers that fit no request of now (too late, or another's)"
        except Malformed as error:
            waiting, what = None, f"no SNMP ({error})"
        if waiting is not None and waiting.address[:2] == address[:2]:
            if not waiting.answer.done():
                waiting.answer.set_result(datagram)
            return
        if waiting is not None:
            waiting.heard = f"the answer from another address, {address[0]}:{address[1]}"
            return
        for other in self._waiting.values():
            if other.address[:2] == address[:2]:
                other.heard = f"{what}: {len(datagram)} octets that begin {datagram[:8].hex(' ')}"


def number_of(datagram: bytes) -> int:
    """The request-id of a v2c message, the msgID of a v3 message. Raises Malformed."""
    message = ber.Reader(datagram).enter(ber.SEQUENCE, "a message")
    if message.integer("the version", 0, 3) == 3:
        inside = message.enter(ber.SEQUENCE, "the v3 header")
    else:
        message.octets("the community")
        inside = message.enter(message.next_tag(), "a PDU")
    return inside.integer("the number", INT32_MIN, INT32_MAX)
