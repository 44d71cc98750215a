"""
Requests to agents: a UDP socket that all sessions of an event loop share, and the two versions of the protocol over it.

SNMPv2c follows RFC 1901; SNMPv3 with engine discovery and clock follows RFC 3414 sections 3 and 4.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from timesyncd.clocks import Clocks
from timesyncd.driver import Traffic, current_traffic
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.snmp import ber, messages, security
from timesyncd.snmp.messages import INT32_MAX, INT32_MIN, Pdu, PduType, decode_pdu, encode_request
from timesyncd.snmp.security import LocalizedKeys, MasterKeys
from timesyncd.snmp.values import Community, Oid, User, format_oid

MAX_DATAGRAM = 65535
#: The most datagrams that are read at once, before the event loop's other tasks run.
MAX_DATAGRAMS_PER_WAKEUP = 64

Address = tuple[Any, ...]
"""Numeric host and port, and for IPv6 flow info and scope."""


#: The numbers of so many requests without a response are remembered, to recognize late responses.
MAX_EXPIRED = 256


class Silent(SourceError):
    """
    No response to one request; the agent may respond to others. `late`: a response to an earlier request arrived meanwhile, so the
    agent responds, but too slowly.
    """

    late = False


class NoResponse(Unreachable, Silent):
    """Nothing shows that the agent exists."""


class EncryptedIgnored(Refused, Silent):
    """The agent responds, but not to encrypted requests."""


class Outcome(NamedTuple):
    """
    The response's datagram; or None, a description of what arrived from that address instead ("": nothing), and whether a late response
    to an earlier request did.
    """

    datagram: bytes | None
    stray: str = ""
    late: bool = False


@dataclass(slots=True, eq=False)
class _PendingRequest:
    address: Address
    response: asyncio.Future[bytes]
    traffic: Traffic
    stray: str = ""
    late: bool = False


class SharedSocket:
    """The UDP socket of an event loop and an address family: the first session opens it, the last one closes it."""

    _open: ClassVar[dict[tuple[asyncio.AbstractEventLoop, int], SharedSocket]] = {}

    def __init__(self, loop: asyncio.AbstractEventLoop, family: int) -> None:
        self._family = family
        self._loop = loop
        self._users = 0
        self._pending: dict[int, _PendingRequest] = {}
        self._expired: OrderedDict[int, Address] = OrderedDict()
        try:
            self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise Unreachable(f"cannot open a UDP socket: {error.strerror}") from error
        loop.add_reader(self._socket, self._receive)

    @classmethod
    def acquire(cls, family: int) -> SharedSocket:
        """Raises Unreachable if this machine cannot open a socket of this family."""
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
        """An unused request number of four octets; random, so that an off-path attacker cannot guess it."""
        while (number := 1 << 30 | secrets.randbits(30)) in self._pending:
            pass
        return number

    async def exchange(self, address: Address, number: int, datagram: bytes, timeout_s: float, tries: int) -> Outcome:
        """Send the request until a response with its number arrives from its address. Raises Unreachable if sending fails."""
        pending = _PendingRequest(address, self._loop.create_future(), current_traffic())
        self._pending[number] = pending
        try:
            for _ in range(tries):
                self._send(datagram, address)
                pending.traffic.sent(len(datagram))
                await asyncio.wait((pending.response,), timeout=timeout_s)
                if pending.response.done():
                    return Outcome(pending.response.result())
            self._expire(number, address)
            return Outcome(None, pending.stray, pending.late)
        finally:
            del self._pending[number]

    def _expire(self, number: int, address: Address) -> None:
        self._expired[number] = address
        if len(self._expired) > MAX_EXPIRED:
            self._expired.popitem(last=False)

    def _send(self, datagram: bytes, address: Address) -> None:
        try:
            self._socket.sendto(datagram, address)
        except BlockingIOError:
            pass  # the socket's send queue is full: the datagram counts as lost and is sent again
        except OSError as error:
            raise Unreachable(f"cannot send: {error.strerror}") from error

    def _receive(self) -> None:
        for _ in range(MAX_DATAGRAMS_PER_WAKEUP):
            try:
                datagram, address = self._socket.recvfrom(MAX_DATAGRAM)
            except OSError:
                return
            self._dispatch(datagram, address)

    def _dispatch(self, datagram: bytes, address: Address) -> None:
        try:
            number = number_of(datagram)
        except Malformed as error:
            self._mark_stray(address, f"a datagram that is not SNMP arrived ({error}): {_beginning(datagram)}")
            return
        pending = self._pending.get(number)
        if pending is None:
            self._dispatch_late(number, datagram, address)
        elif pending.address[:2] != address[:2]:
            pending.stray = f"the response arrived from another address, {address[0]}:{address[1]}"
        elif not pending.response.done():
            pending.traffic.received(len(datagram))
            pending.response.set_result(datagram)

    def _dispatch_late(self, number: int, datagram: bytes, address: Address) -> None:
        """A response to no pending request: our own, late or doubled, or another process's."""
        if self._expired.get(number, ())[:2] == address[:2]:
            for other in self._pending.values():
                other.late = other.late or other.address[:2] == address[:2]
            return
        self._mark_stray(
            address,
            f"a response to no pending request (late, or another process's) arrived: {_beginning(datagram)}",
        )

    def _mark_stray(self, address: Address, stray: str) -> None:
        for other in self._pending.values():
            if other.address[:2] == address[:2]:
                other.stray = stray


def _beginning(datagram: bytes) -> str:
    return f"{len(datagram)} octets that begin {datagram[:8].hex(' ')}"


def number_of(datagram: bytes) -> int:
    """The request-id of a v2c message or the msgID of a v3 message. Raises Malformed."""
    message = ber.Reader(datagram).enter(ber.SEQUENCE, "a message")
    if message.integer("the version", 0, 3) == 3:
        inside = message.enter(ber.SEQUENCE, "the v3 header")
    else:
        message.octets("the community")
        inside = message.enter(message.next_tag(), "a PDU")
    return inside.integer("the number", INT32_MIN, INT32_MAX)


@dataclass(frozen=True, slots=True)
class AgentTransport:
    """The socket and address of one agent, with the timeout and number of tries for each request."""

    socket: SharedSocket
    address: Address
    timeout_s: float
    tries: int

    async def exchange(self, number: int, datagram: bytes, within_s: float | None = None) -> Outcome:
        """
        The response, if one arrived. `within_s`: the request is sent once, and waits so long. Raises Unreachable (not sent) and
        Malformed (something else arrived).
        """
        timeout_s, tries = (self.timeout_s, self.tries) if within_s is None else (within_s, 1)
        outcome = await self.socket.exchange(self.address, number, datagram, timeout_s, tries)
        if outcome.stray:
            raise Malformed(outcome.stray)
        return outcome


class Agent(Protocol):
    @property
    def timeout_s(self) -> float:
        """How long each try of a request waits."""

    async def request(
        self, kind: PduType, oids: Sequence[Oid], repetitions: int = 0, within_s: float | None = None
    ) -> Pdu:
        """
        The Response PDU, whatever its error status. `within_s`: every datagram is sent once, and waits so long. Errors do not name the
        device; `Silent` if the agent did not respond.
        """

    def verified_engine(self) -> security.SnmpEngine | None:
        """The agent's engine with its clock now, if a signed message contained it; None over SNMPv2c."""


def _silent(kind: type[Silent], text: str, outcome: Outcome) -> Silent:
    error = kind(
        f"{text}; a late response to an earlier request arrived, so timeout_s is too short" if outcome.late else text
    )
    error.late = outcome.late
    return error


class CommunityAgent:
    """An agent over SNMPv2c."""

    def __init__(self, transport: AgentTransport, community: Community) -> None:
        self._transport = transport
        self._community = community.name.encode()

    @property
    def timeout_s(self) -> float:
        return self._transport.timeout_s

    async def request(
        self, kind: PduType, oids: Sequence[Oid], repetitions: int = 0, within_s: float | None = None
    ) -> Pdu:
        number = self._transport.socket.new_number()
        request = messages.message(self._community, encode_request(kind, number, oids, repetitions))
        outcome = await self._transport.exchange(number, request, within_s)
        if outcome.datagram is None:
            raise _silent(
                NoResponse,
                "no SNMP response: the device is down, UDP is filtered, SNMP is disabled, or the community is wrong "
                "(v2c cannot distinguish these)",
                outcome,
            )
        return self._response(outcome.datagram)

    def verified_engine(self) -> None:
        """SNMPv2c has no engines."""

    def _response(self, datagram: bytes) -> Pdu:
        _, message = messages.parse(datagram)
        response = decode_pdu(message)
        message.close("the PDU")
        if response.kind is not PduType.RESPONSE:
            raise Malformed(f"a {response.kind.name} arrived instead of a RESPONSE")
        return response


#: What an operator can do about a report.
_HINTS: dict[Oid, str] = {
    security.UNSUPPORTED_LEVEL: "the agent does not permit authPriv for this user",
    security.NOT_IN_TIME_WINDOW: "repeatedly, so the agent's engine clock is not steady",
    security.UNKNOWN_ENGINE_ID: "the agent does not accept the engine ID that it reported",
    security.WRONG_DIGEST: "the authentication pass phrase or protocol is wrong",
    security.DECRYPTION_ERROR: "the privacy pass phrase or protocol is wrong",
}
#: An agent with a new engine ID needs three rounds: its old ID is unknown, our clock for the new one is wrong, the response.
#: A fourth reveals an agent that changes its ID with each message.
_ROUNDS = 4
_UNKNOWN_ENGINE = security.SnmpEngine(b"", 0, 0)


class UserAgent:
    """
    An agent over SNMPv3, always authPriv.

    Each failure discards what is known of the agent's engine, so that the next request starts with discovery.
    """

    def __init__(self, transport: AgentTransport, user: User, clocks: Clocks) -> None:
        self._transport = transport
        self._user = user
        self._clocks = clocks
        self._master = MasterKeys(user)
        self._peer: _Peer | None = None

    @property
    def timeout_s(self) -> float:
        return self._transport.timeout_s

    async def request(
        self, kind: PduType, oids: Sequence[Oid], repetitions: int = 0, within_s: float | None = None
    ) -> Pdu:
        try:
            for _ in range(_ROUNDS):
                if self._peer is None:
                    self._peer = await self._discover(within_s)
                response = await self._request_once(self._peer, kind, oids, repetitions, within_s)
                if response.kind is PduType.RESPONSE:
                    return response
                problem = self._handle_report(response)
            raise Refused(problem)
        except SourceError:
            self._peer = None
            raise

    def verified_engine(self) -> security.SnmpEngine | None:
        return self._peer.now() if self._peer is not None and self._peer.is_verified else None

    async def _discover(self, within_s: float | None) -> _Peer:
        """RFC 3414 section 4. The clock that comes with the engine ID is unsigned, so it is not used."""
        number = self._transport.socket.new_number()
        scoped = security.scoped_pdu(b"", b"", encode_request(PduType.GET, number, ()))
        datagram = security.plain(number, True, _UNKNOWN_ENGINE, b"", scoped)
        outcome = await self._transport.exchange(number, datagram, within_s)
        if outcome.datagram is None:
            text = "no SNMPv3 response: the device is down, UDP is filtered, or SNMPv3 is disabled"
            raise _silent(NoResponse, text, outcome)
        engine_id = security.parse(outcome.datagram).engine.engine_id
        if len(engine_id) not in security.ENGINE_ID_OCTETS:
            raise Malformed(f"the engine ID has {len(engine_id)} octets; allowed: 4 to 32")
        return _Peer(engine_id, self._master.at(engine_id), self._clocks)

    async def _request_once(
        self, peer: _Peer, kind: PduType, oids: Sequence[Oid], repetitions: int, within_s: float | None
    ) -> Pdu:
        number = self._transport.socket.new_number()
        pdu = encode_request(kind, number, oids, repetitions)
        scoped = security.scoped_pdu(peer.engine_id, self._user.context.encode(), pdu)
        request = security.seal(number, True, peer.now(), self._user.name.encode(), peer.keys, scoped)
        outcome = await self._transport.exchange(number, request, within_s)
        if outcome.datagram is None:
            raise peer.no_response_error(outcome)
        response = peer.open(security.parse(outcome.datagram))
        if response.kind is PduType.RESPONSE and response.number != number:
            raise Malformed(f"the response has request-id {response.number} instead of {number}")
        return response

    def _handle_report(self, report: Pdu) -> str:
        """The problem that the report names, if another round may solve it. Raises Refused if not."""
        counter = report.varbinds[0].oid if report.varbinds else ()
        name = security.REPORTS.get(
            counter, f"the agent sent a report of {format_oid(counter) or 'nothing'}, which SNMPv3 does not define"
        )
        problem = f"{name}: {_HINTS[counter]}" if counter in _HINTS else name
        if counter == security.UNKNOWN_ENGINE_ID:
            self._peer = None
        elif counter != security.NOT_IN_TIME_WINDOW:
            raise Refused(problem)
        return problem


class _Peer:
    """The agent's authoritative engine. Its clock is 0 at first, until a signed report carries its true value."""

    def __init__(self, engine_id: bytes, keys: LocalizedKeys, clocks: Clocks) -> None:
        self.engine_id = engine_id
        self.keys = keys
        self._clocks = clocks
        self._clock = security.EngineClock(security.SnmpEngine(engine_id, 0, 0), clocks.boottime_ns())
        self._user = keys.user.name.encode()
        self._context = keys.user.context.encode()
        self._signs = False
        self._decrypts = False

    @property
    def is_verified(self) -> bool:
        """Whether a signed message has set the clock."""
        return self._signs or self._decrypts

    def now(self) -> security.SnmpEngine:
        return self._clock.at(self._clocks.boottime_ns())

    def no_response_error(self, outcome: Outcome) -> Silent:
        if self._signs and not self._decrypts:
            return _silent(
                EncryptedIgnored,
                "the agent accepts the user and the authentication key but does not respond to encrypted requests: "
                "the privacy pass phrase or protocol is wrong",
                outcome,
            )
        return _silent(NoResponse, "no SNMPv3 response, although the agent reported its engine ID", outcome)

    def open(self, message: security.UsmMessage) -> Pdu:
        """The Response or Report. A Response must be signed and encrypted, a Report that sets our clock must be signed."""
        signed = bool(message.flags & security.AUTH)
        if signed and (message.engine.engine_id != self.engine_id or not message.verify(self.keys)):
            raise Malformed("the response's digest or engine ID is not the agent's")
        if signed and message.user != self._user:
            raise Malformed(f"the response names the user {message.user!r} instead of {self._user!r}")
        if signed and message.engine.is_latched:
            raise Refused(
                f"the agent's snmpEngineBoots has reached {INT32_MAX}, so recorded messages could pass for new ones: "
                "give the agent a new engine ID (RFC 3414 section 2.2.2)"
            )
        engine_id, context, inside = security.open_names(message.scoped(self.keys))
        pdu = decode_pdu(inside)
        if pdu.kind is PduType.REPORT:
            self._apply_report(message, pdu, signed)
        elif pdu.kind is not PduType.RESPONSE or not message.flags & security.PRIV:
            raise Malformed(f"an unencrypted {pdu.kind.name} arrived instead of an encrypted RESPONSE")
        elif not self._clock.follow(message.engine, self._clocks.boottime_ns()):
            raise Refused("not in time window: the response is older than the agent's engine clock")
        else:
            self._require_names(engine_id, context)
            self._decrypts = True
        return pdu

    def _require_names(self, engine_id: bytes, context: bytes) -> None:
        """RFC 3412 section 7.2.12: a response to our request names what the request named."""
        if engine_id != self.engine_id:
            raise Malformed(f"the response names another engine as its context: {engine_id.hex() or 'none'}")
        if context != self._context:
            raise Malformed(f"the response names the context {context!r} instead of {self._context!r}")

    def _apply_report(self, message: security.UsmMessage, report: Pdu, signed: bool) -> None:
        """
        A signed report may set the clock back: it carries the number of a request just sent, so it is no replay, and an agent
        whose boots counter was reset to 1 must become readable again.
        """
        if signed:
            self._clock.set(message.engine, self._clocks.boottime_ns())
            self._signs = True
        elif report.varbinds and report.varbinds[0].oid == security.NOT_IN_TIME_WINDOW:
            raise Malformed("the report 'not in time window' is unsigned")
