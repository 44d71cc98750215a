"""
How one agent is asked: SNMPv2c (RFC 1901), and SNMPv3 with discovery and clock (RFC 3414 sections 3 and 4).

The UDP socket that all sessions of an event loop share: who waits for which answer.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from timesyncd.clocks import Clocks
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.snmp import ber, messages, security
from timesyncd.snmp.messages import INT32_MAX, INT32_MIN, Kind, Pdu, decode_pdu, encode_request
from timesyncd.snmp.security import Keys, MasterKeys
from timesyncd.snmp.values import Community, Oid, User, format_oid

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


@dataclass(frozen=True, slots=True)
class Line:
    """The way to one agent."""

    endpoint: Endpoint
    address: Address
    timeout_s: float
    tries: int

    async def exchange(self, number: int, datagram: bytes) -> bytes | None:
        """None: silence. Raises Unreachable (not sent), Malformed (what came instead of an answer)."""
        answer, heard = await self.endpoint.ask(self.address, number, datagram, self.timeout_s, self.tries)
        if heard:
            raise Malformed(heard)
        return answer


class Agent(Protocol):
    async def ask(self, kind: Kind, oids: Sequence[Oid], repetitions: int = 0) -> Pdu:
        """A Response; its error status is not looked at. Errors do not name the device."""


class CommunityAgent:
    """SNMPv2c."""

    def __init__(self, line: Line, community: Community) -> None:
        self._line = line
        self._community = community.name.encode()

    async def ask(self, kind: Kind, oids: Sequence[Oid], repetitions: int = 0) -> Pdu:
        number = self._line.endpoint.new_number()
        request = messages.message(self._community, encode_request(kind, number, oids, repetitions))
        answer = await self._line.exchange(number, request)
        if answer is None:
            raise Unreachable(
                "no SNMP answer: unit down, UDP filtered, SNMP switched off, or a wrong community "
                "(v2c does not tell these apart)"
            )
        return self._response(answer)

    def _response(self, datagram: bytes) -> Pdu:
        _, message = messages.parse(datagram)
        response = decode_pdu(message)
        message.close("the PDU")
        if response.kind is not Kind.RESPONSE:
            raise Malformed(f"{response.kind.name} where a RESPONSE belongs")
        return response


#: What an operator can do about a report.
_HINTS: dict[Oid, str] = {
    security.UNSUPPORTED_LEVEL: "this user may not use authentication with privacy",
    security.NOT_IN_TIME_WINDOW: "again and again, so the unit's engine clock does not hold still",
    security.UNKNOWN_ENGINE_ID: "the unit does not answer to the one that it told",
    security.WRONG_DIGEST: "wrong authentication pass phrase or protocol",
    security.DECRYPTION_ERROR: "wrong privacy pass phrase or protocol",
}
#: A unit with a new engine ID takes three: that the old one is unknown, that our clock for the new one is wrong, the answer.
#: One more finds out a unit that changes it always.
_ROUNDS = 4
_NOBODY = security.Engine(b"", 0, 0)


class UserAgent:
    """
    SNMPv3, always authPriv.

    What is known of the unit's engine is dropped with every failure, so whatever happened to the unit, the next request
    starts from discovery.
    """

    def __init__(self, line: Line, user: User, clocks: Clocks) -> None:
        self._line = line
        self._user = user
        self._clocks = clocks
        self._master = MasterKeys(user)
        self._peer: _Peer | None = None

    async def ask(self, kind: Kind, oids: Sequence[Oid], repetitions: int = 0) -> Pdu:
        try:
            for _ in range(_ROUNDS):
                if self._peer is None:
                    self._peer = await self._discovered()
                response = await self._ask_once(self._peer, kind, oids, repetitions)
                if response.kind is Kind.RESPONSE:
                    return response
                about = self._heed(response)
            raise Refused(about)
        except SourceError:
            self._peer = None
            raise

    async def _discovered(self) -> _Peer:
        """RFC 3414 section 4. The clock that comes with the engine ID is unsigned, so it is not believed."""
        number = self._line.endpoint.new_number()
        scoped = security.scoped_pdu(b"", b"", encode_request(Kind.GET, number, ()))
        answer = await self._line.exchange(number, security.plain(number, True, _NOBODY, b"", scoped))
        if answer is None:
            raise Unreachable("no SNMPv3 answer: unit down, UDP filtered, or SNMPv3 switched off")
        engine_id = security.parse(answer).engine.engine_id
        if not 5 <= len(engine_id) <= 32:
            raise Malformed(f"an engine ID of {len(engine_id)} octets")
        return _Peer(engine_id, self._master.at(engine_id), self._clocks)

    async def _ask_once(self, peer: _Peer, kind: Kind, oids: Sequence[Oid], repetitions: int) -> Pdu:
        number = self._line.endpoint.new_number()
        pdu = encode_request(kind, number, oids, repetitions)
        scoped = security.scoped_pdu(peer.engine_id, self._user.context.encode(), pdu)
        request = security.seal(number, True, peer.now(), self._user.name.encode(), peer.keys, scoped)
        answer = await self._line.exchange(number, request)
        if answer is None:
            raise peer.silence()
        response = peer.opened(security.parse(answer))
        if response.kind is Kind.RESPONSE and response.number != number:
            raise Malformed(f"answers request {response.number} where {number} was asked")
        return response

    def _heed(self, report: Pdu) -> str:
        """What is wrong, where another round may cure it. Raises Refused where not."""
        counter = report.varbinds[0].oid if report.varbinds else ()
        name = security.REPORTS.get(
            counter, f"a report of {format_oid(counter) or 'nothing'}, which SNMPv3 does not know"
        )
        problem = f"{name}: {_HINTS[counter]}" if counter in _HINTS else name
        if counter == security.UNKNOWN_ENGINE_ID:
            self._peer = None
        elif counter != security.NOT_IN_TIME_WINDOW:
            raise Refused(problem)
        return problem


class _Peer:
    """The unit's authoritative engine as we know it. Its clock stands at 0 at first: a signed report then tells it."""

    def __init__(self, engine_id: bytes, keys: Keys, clocks: Clocks) -> None:
        self.engine_id = engine_id
        self.keys = keys
        self._clocks = clocks
        self._clock = security.EngineClock(security.Engine(engine_id, 0, 0), clocks.boottime_ns())
        self._signs = False
        self._decrypts = False

    def now(self) -> security.Engine:
        return self._clock.at(self._clocks.boottime_ns())

    def silence(self) -> SourceError:
        if self._signs and not self._decrypts:
            return Refused(
                "knows the user and the authentication key, but is silent to what is encrypted: "
                "wrong privacy pass phrase or protocol"
            )
        return Unreachable("no SNMPv3 answer any more, though the unit told its engine ID")

    def opened(self, message: security.Message) -> Pdu:
        """Response or Report. A Response is signed and encrypted, and so must be signed what sets our idea of the clock."""
        signed = bool(message.flags & security.AUTH)
        if signed and (message.engine.engine_id != self.engine_id or not message.verify(self.keys)):
            raise Malformed("an answer whose digest is not the unit's")
        pdu = decode_pdu(security.open_scoped(message.scoped(self.keys)))
        if pdu.kind is Kind.REPORT:
            self._take_report(message, pdu, signed)
        elif pdu.kind is not Kind.RESPONSE or not message.flags & security.PRIV:
            raise Malformed(f"{pdu.kind.name} without privacy where a RESPONSE belongs")
        elif not self._clock.follow(message.engine, self._clocks.boottime_ns()):
            raise Refused("not in time window: an answer older than the unit's engine clock")
        else:
            self._decrypts = True
        return pdu

    def _take_report(self, message: security.Message, report: Pdu, signed: bool) -> None:
        """
        A signed report may set the clock back: it has the number of a request just sent, so nobody recorded it before, and a
        unit whose boots went back to 1 in the factory is to be heard again.
        """
        if signed:
            self._clock.set(message.engine, self._clocks.boottime_ns())
            self._signs = True
        elif report.varbinds and report.varbinds[0].oid == security.NOT_IN_TIME_WINDOW:
            raise Malformed("not in time window, but unsigned")
