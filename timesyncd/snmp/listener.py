"""
Traps and informs out of datagrams, and what is answered to them: SNMPv1 (RFC 1157), v2c (RFC 3416), v3 (RFC 3414).

Hears traps and informs on a UDP port.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from timesyncd.clocks import SystemClocks
from timesyncd.errors import Malformed, Refused, Unreachable
from timesyncd.sample import Trap
from timesyncd.snmp import ber, security
from timesyncd.snmp.messages import (
    INT32_MAX,
    IP_ADDRESS,
    TIME_TICKS,
    Kind,
    Pdu,
    Varbind,
    decode_pdu,
    decode_varbinds,
)
from timesyncd.snmp.rate_limit import StormLimit
from timesyncd.snmp.security import Keys, MasterKeys
from timesyncd.snmp.transport import DATAGRAMS_A_TURN, MAX_DATAGRAM
from timesyncd.snmp.values import Community, Oid, Raw, User

#: Senders whose keys and clock are kept: each has shown that it knows a user's key.
MAX_SENDERS = 1024

_UPTIME: Oid = (1, 3, 6, 1, 2, 1, 1, 3, 0)
_TRAP_OID: Oid = (1, 3, 6, 1, 6, 3, 1, 1, 4, 1, 0)
#: A forwarder may add the community (RFC 3584 section 3.1), which is a secret.
_TRAP_COMMUNITY: Oid = (1, 3, 6, 1, 6, 3, 18, 1, 4, 0)
_GENERIC_TRAPS: Oid = (1, 3, 6, 1, 6, 3, 1, 1, 5)
_ENTERPRISE_SPECIFIC = 6


@dataclass(frozen=True, slots=True)
class Notification:
    oid: Oid
    uptime_ticks: int | None
    variables: tuple[tuple[Oid, Raw], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a datagram was, what to answer, and why it was refused: one of a few dozen fixed texts."""

    notification: Notification | None = None
    reply: bytes | None = None
    refused: str | None = None


class Receiver:
    """Decides about datagrams; whatever they hold, nothing is raised."""

    def __init__(
        self, communities: Iterable[Community], users: Iterable[User], engine_id: bytes, boots: int, now_ns: int
    ) -> None:
        self._communities = {community.name.encode() for community in communities}
        self._users = {user.name.encode(): MasterKeys(user) for user in users}
        self._engine_id = engine_id
        self._clock = security.EngineClock(security.Engine(engine_id, boots, 0), now_ns)
        self._own_keys = {name: master.at(engine_id) for name, master in self._users.items()}
        self._reported: Counter[Oid] = Counter()
        self._senders: OrderedDict[tuple[bytes, bytes], tuple[Keys, security.EngineClock]] = OrderedDict()

    def receive(self, datagram: bytes, now_ns: int) -> Outcome:
        try:
            message = ber.Reader(datagram).enter(ber.SEQUENCE, "a message")
            version = message.integer("the version", 0, 3)
            return (
                self._receive_v3(datagram, now_ns) if version == 3 else self._receive_open(message, datagram, version)
            )
        except Refused as error:
            return Outcome(refused=str(error))
        except Malformed:
            return Outcome(refused="malformed")

    def _receive_open(self, message: ber.Reader, datagram: bytes, version: int) -> Outcome:
        """SNMPv1 and v2c."""
        if message.octets("the community") not in self._communities:
            return Outcome(refused="wrong community")
        if version == 0:
            return Outcome(_from_v1(message))
        pdu_at = message.at
        pdu = decode_pdu(message)
        return Outcome(_from_pdu(pdu), _answered(datagram, pdu_at) if pdu.kind is Kind.INFORM else None)

    def _receive_v3(self, datagram: bytes, now_ns: int) -> Outcome:
        """RFC 3414 section 3.2, in its order. We are authoritative for what wants an answer; for a trap its sender is."""
        message = security.parse(datagram)
        ours = bool(message.flags & security.REPORTABLE)
        engine_id = message.engine.engine_id
        if not (engine_id == self._engine_id if ours else 5 <= len(engine_id) <= 32):
            return self._refuse(message, security.UNKNOWN_ENGINE_ID, now_ns)
        if message.user not in self._users:
            return self._refuse(message, security.UNKNOWN_USER, now_ns)
        if not message.flags & security.PRIV:
            return self._refuse(message, security.UNSUPPORTED_LEVEL, now_ns)
        keys, clock = self._engine_of(message, ours, now_ns)
        if not message.verify(keys):
            return self._refuse(message, security.WRONG_DIGEST, now_ns)
        if not (clock.agrees if ours else clock.follow)(message.engine, now_ns):
            return self._refuse(message, security.NOT_IN_TIME_WINDOW, now_ns, keys)
        if not ours:
            self._remember(message, keys, clock)
        try:
            inside = security.open_scoped(message.scoped(keys))
        except Malformed:
            return self._refuse(message, security.DECRYPTION_ERROR, now_ns)
        return self._opened(message, inside, keys, now_ns)

    def _engine_of(self, message: security.Message, ours: bool, now_ns: int) -> tuple[Keys, security.EngineClock]:
        if ours:
            return self._own_keys[message.user], self._clock
        known = self._senders.get((message.engine.engine_id, message.user))
        return known or (
            self._users[message.user].at(message.engine.engine_id),
            security.EngineClock(message.engine, now_ns),
        )

    def _remember(self, message: security.Message, keys: Keys, clock: security.EngineClock) -> None:
        sender = (message.engine.engine_id, message.user)
        self._senders[sender] = (keys, clock)
        self._senders.move_to_end(sender)
        if len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)

    def _opened(self, message: security.Message, inside: ber.Reader, keys: Keys, now_ns: int) -> Outcome:
        pdu_at = inside.at
        pdu = decode_pdu(inside)
        notification = _from_pdu(pdu)
        if pdu.kind is Kind.TRAP:
            return Outcome(notification)
        if not message.flags & security.REPORTABLE:
            raise Refused("an inform that wants no answer")
        scoped = _answered(inside.data, pdu_at)
        return Outcome(
            notification, security.seal(message.number, False, self._clock.at(now_ns), message.user, keys, scoped)
        )

    def _refuse(self, message: security.Message, counter: Oid, now_ns: int, keys: Keys | None = None) -> Outcome:
        """With a report to whom wants one; it is signed where `keys` are given. Discovery is no fault, so it is not counted."""
        refused = (
            security.REPORTS[counter] if message.engine.engine_id or counter != security.UNKNOWN_ENGINE_ID else None
        )
        if not message.flags & security.REPORTABLE:
            return Outcome(refused=security.REPORTS[counter])
        self._reported[counter] += 1
        reply = security.report(message, self._clock.at(now_ns), counter, self._reported[counter], keys)
        return Outcome(reply=reply, refused=refused)


def _answered(datagram: bytes, pdu_at: int) -> bytes:
    """What acknowledges an inform is the same with another tag (RFC 3416 section 4.2.7)."""
    return datagram[:pdu_at] + bytes((Kind.RESPONSE,)) + datagram[pdu_at + 1 :]


def _from_pdu(pdu: Pdu) -> Notification:
    if pdu.kind not in (Kind.TRAP, Kind.INFORM):
        raise Refused("no notification")
    values = {varbind.oid: varbind.raw for varbind in reversed(pdu.varbinds)}
    oid, uptime = values.get(_TRAP_OID), values.get(_UPTIME)
    if not isinstance(oid, str):
        raise Refused("no snmpTrapOID")
    return Notification(
        tuple(map(int, oid.split("."))), uptime if isinstance(uptime, int) else None, _variables(pdu.varbinds)
    )


def _from_v1(message: ber.Reader) -> Notification:
    """As RFC 3584 section 3.1 translates it."""
    trap = message.enter(Kind.TRAP_V1, "a v1 trap")
    enterprise = ber.decode_oid(trap.octets("the enterprise", ber.OID))
    trap.octets("the agent's address", IP_ADDRESS)
    generic = trap.integer("generic-trap", 0, _ENTERPRISE_SPECIFIC)
    specific = trap.integer("specific-trap", 0, INT32_MAX)
    uptime_ticks = trap.integer("the uptime", 0, 2**32 - 1, TIME_TICKS)
    oid = (*enterprise, 0, specific) if generic == _ENTERPRISE_SPECIFIC else (*_GENERIC_TRAPS, generic + 1)
    return Notification(oid, uptime_ticks, _variables(decode_varbinds(trap)))


def _variables(varbinds: list[Varbind]) -> tuple[tuple[Oid, Raw], ...]:
    told = (_UPTIME, _TRAP_OID, _TRAP_COMMUNITY)
    return tuple((oid, raw) for oid, _, raw in varbinds if raw is not None and oid not in told)


class Listener:
    """
    Traps of SNMPv1, v2c and v3, and informs, which are answered once `on_trap` has them. Nothing that comes raises, and nothing
    is logged of it: `refused` counts by reason what is no notification for us, `suppressed` by address what was too much.

    `engine_id` (5 to 32 octets) is ours for ever, and `engine_boots` counts our starts: whoever sends v3 informs remembers our
    clock, and takes one that went back for a forgery.
    """

    def __init__(
        self,
        communities: Iterable[Community],
        users: Iterable[User],
        on_trap: Callable[[Trap], None],
        engine_id: bytes,
        engine_boots: int,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._on_trap = on_trap
        self._clocks = SystemClocks()
        self._limit = StormLimit()
        self._receiver = Receiver(communities, users, engine_id, engine_boots, self._clocks.boottime_ns())
        self._socket: socket.socket | None = None

    @property
    def suppressed(self) -> dict[str, int]:
        """Datagrams that were not looked at, by the address of who sent too many."""
        return self._limit.suppressed

    async def start(self, where: tuple[str, int] | socket.socket) -> int:
        """
        `where`: host and port (0: a free one), or a bound UDP socket, as systemd passes it, which `stop` closes. Returns the port.
        Raises Unreachable when the address cannot be had.
        """
        self._socket = where if isinstance(where, socket.socket) else await _bound(*where)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._receive, self._socket)
        return int(self._socket.getsockname()[1])

    async def stop(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _receive(self, listening: socket.socket) -> None:
        for _ in range(DATAGRAMS_A_TURN):
            try:
                datagram, sender = listening.recvfrom(MAX_DATAGRAM)
            except OSError:
                return
            reply = self._take(datagram, sender)
            if reply is not None:
                with suppress(OSError):  # whoever misses an answer asks again
                    listening.sendto(reply, sender)

    def _take(self, datagram: bytes, sender: tuple[Any, ...]) -> bytes | None:
        now_ns = self._clocks.boottime_ns()
        address = sender[0].removeprefix("::ffff:")  # IPv4 on a socket of both families
        if not self._limit.allows(address, now_ns):
            return None
        outcome = self._receiver.receive(datagram, now_ns)
        if outcome.refused is not None:
            self.refused[outcome.refused] += 1
        if (told := outcome.notification) is not None:
            self._on_trap(Trap(address, now_ns, told.oid, told.uptime_ticks, told.variables))
        return outcome.reply


async def _bound(host: str, port: int) -> socket.socket:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"no traps can be heard at {host}:{port}: {error}") from error
    return listening
