"""
Receives SNMP notifications on a UDP port: traps of SNMPv1 (RFC 1157), v2c (RFC 3416) and v3 (RFC 3414), and informs.

`NotificationReceiver` decodes datagrams without I/O; `Listener` owns the socket. `AddressRateLimit` limits how many
datagrams of one address are decoded; the others are counted and dropped.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.errors import Malformed, Refused, Unreachable
from timesyncd.sample import EngineTime, Trap
from timesyncd.snmp import ber, security
from timesyncd.snmp.messages import (
    INT32_MAX,
    IP_ADDRESS,
    TIME_TICKS,
    Pdu,
    PduType,
    Varbind,
    decode_pdu,
    decode_varbinds,
)
from timesyncd.snmp.security import LocalizedKeys, MasterKeys
from timesyncd.snmp.transport import MAX_DATAGRAM, MAX_DATAGRAMS_PER_WAKEUP
from timesyncd.snmp.values import Community, Oid, Raw, User

#: Authenticated senders whose keys and engine clock are kept.
MAX_SENDERS = 1024

_UPTIME: Oid = (1, 3, 6, 1, 2, 1, 1, 3, 0)
_TRAP_OID: Oid = (1, 3, 6, 1, 6, 3, 1, 1, 4, 1, 0)
#: A proxy forwarder may add the community (RFC 3584 section 3.1), which is a secret.
_TRAP_COMMUNITY: Oid = (1, 3, 6, 1, 6, 3, 18, 1, 4, 0)
_STALE = security.REPORTS[security.NOT_IN_TIME_WINDOW]
_GENERIC_TRAPS: Oid = (1, 3, 6, 1, 6, 3, 1, 1, 5)
_ENTERPRISE_SPECIFIC = 6


VerifiedEngine = Callable[[bytes], EngineTime | None]


@dataclass(frozen=True, slots=True)
class Notification:
    """A trap or inform: its snmpTrapOID, the sender's sysUpTime in hundredths of a second, and its other variables."""

    oid: Oid
    uptime_ticks: int | None
    variables: tuple[tuple[Oid, Raw], ...]


@dataclass(frozen=True, slots=True)
class DatagramResult:
    """The datagram's notification, the reply to send, and why the datagram was rejected (one of a few dozen fixed texts)."""

    notification: Notification | None = None
    reply: bytes | None = None
    rejected: str | None = None


class NotificationReceiver:
    """
    Decodes and authenticates datagrams. It raises nothing, whatever they contain.

    `verified` returns the clock of the engine with this ID, if a poller has it from a signed response to a request of its own.
    """

    def __init__(
        self, communities: Iterable[Community], users: Iterable[User], engine_id: bytes, boots: int, now_ns: int,
        verified: VerifiedEngine = lambda _: None,
    ) -> None:  # fmt: skip
        self._verified = verified
        self._communities = {community.name.encode() for community in communities}
        self._users = {user.name.encode(): MasterKeys(user) for user in users}
        self._engine_id = engine_id
        self._clock = security.EngineClock(security.SnmpEngine(engine_id, boots, 0), now_ns)
        self._own_keys = {name: master.at(engine_id) for name, master in self._users.items()}
        self._reported: Counter[Oid] = Counter()
        self._senders: OrderedDict[tuple[bytes, bytes], tuple[LocalizedKeys, security.EngineClock]] = OrderedDict()

    def receive(self, datagram: bytes, now_ns: int) -> DatagramResult:
        try:
            message = ber.Reader(datagram).enter(ber.SEQUENCE, "a message")
            version = message.integer("the version", 0, 3)
            return (
                self._receive_v3(datagram, now_ns)
                if version == 3
                else self._receive_community(message, datagram, version)
            )
        except Refused as error:
            return DatagramResult(rejected=str(error))
        except Malformed:
            return DatagramResult(rejected="malformed message")

    def _receive_community(self, message: ber.Reader, datagram: bytes, version: int) -> DatagramResult:
        """SNMPv1 and v2c."""
        if message.octets("the community") not in self._communities:
            return DatagramResult(rejected="wrong community")
        if version == 0:
            return DatagramResult(_from_v1(message))
        pdu_at = message.at
        pdu = decode_pdu(message)
        return DatagramResult(_from_pdu(pdu), _response(datagram, pdu_at) if pdu.kind is PduType.INFORM else None)

    def _receive_v3(self, datagram: bytes, now_ns: int) -> DatagramResult:
        """
        The steps of RFC 3414 section 3.2, in its order. Our engine is authoritative for a message that requests a response (an
        inform); for a trap, the sender's engine is.
        """
        message = security.parse(datagram)
        ours = bool(message.flags & security.REPORTABLE)
        engine_id = message.engine.engine_id
        if not (engine_id == self._engine_id if ours else len(engine_id) in security.ENGINE_ID_OCTETS):
            return self._refuse(message, security.UNKNOWN_ENGINE_ID, now_ns)
        if message.user not in self._users:
            return self._refuse(message, security.UNKNOWN_USER, now_ns)
        if not message.flags & security.PRIV:
            return self._refuse(message, security.UNSUPPORTED_LEVEL, now_ns)
        keys, clock = self._engine_of(message, ours, now_ns)
        if not message.verify(keys):
            return self._refuse(message, security.WRONG_DIGEST, now_ns)
        if not (clock.agrees(message.engine, now_ns) if ours else self._follows(clock, message.engine, now_ns)):
            return self._refuse(message, security.NOT_IN_TIME_WINDOW, now_ns, keys)
        if not ours:
            self._remember(message, keys, clock)
        try:
            inside = security.open_scoped(message.scoped(keys))
        except Malformed:
            return self._refuse(message, security.DECRYPTION_ERROR, now_ns)
        return self._accept(message, inside, keys, now_ns)

    def _follows(self, clock: security.EngineClock, engine: security.SnmpEngine, now_ns: int) -> bool:
        """
        Whether a signed trap is in the time window. A sender that was reset restarts its count of boots, and its traps look like recorded ones:
        then the poller's clock of it, which no recorded message can set back, corrects ours.
        """
        if clock.follow(engine, now_ns):
            return True
        verified = self._verified(engine.engine_id)
        if verified is None or not security.SnmpEngine(*verified).agrees(engine):
            return False
        clock.set(security.SnmpEngine(*verified), now_ns)
        return True

    def _engine_of(
        self, message: security.UsmMessage, ours: bool, now_ns: int
    ) -> tuple[LocalizedKeys, security.EngineClock]:
        if ours:
            return self._own_keys[message.user], self._clock
        known = self._senders.get((message.engine.engine_id, message.user))
        return known or (
            self._users[message.user].at(message.engine.engine_id),
            security.EngineClock(message.engine, now_ns),
        )

    def _remember(self, message: security.UsmMessage, keys: LocalizedKeys, clock: security.EngineClock) -> None:
        sender = (message.engine.engine_id, message.user)
        self._senders[sender] = (keys, clock)
        self._senders.move_to_end(sender)
        if len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)

    def _accept(
        self, message: security.UsmMessage, inside: ber.Reader, keys: LocalizedKeys, now_ns: int
    ) -> DatagramResult:
        pdu_at = inside.at
        pdu = decode_pdu(inside)
        notification = _from_pdu(pdu)
        if pdu.kind is PduType.TRAP:
            return DatagramResult(notification)
        if not message.flags & security.REPORTABLE:
            raise Refused("inform without the reportable flag")
        scoped = _response(inside.data, pdu_at)
        return DatagramResult(
            notification, security.seal(message.number, False, self._clock.at(now_ns), message.user, keys, scoped)
        )

    def _refuse(
        self, message: security.UsmMessage, counter: Oid, now_ns: int, keys: LocalizedKeys | None = None
    ) -> DatagramResult:
        """
        Reject the message, with a report if it is reportable; the report is signed if `keys` are given. Discovery (an empty
        engine ID) is the protocol's normal first step, so it does not count as rejected.
        """
        is_discovery = not message.engine.engine_id and counter == security.UNKNOWN_ENGINE_ID
        rejected = None if is_discovery else security.REPORTS[counter]
        if not message.flags & security.REPORTABLE:
            return DatagramResult(rejected=security.REPORTS[counter])
        self._reported[counter] += 1
        reply = security.report(message, self._clock.at(now_ns), counter, self._reported[counter], keys)
        return DatagramResult(reply=reply, rejected=rejected)


def _response(datagram: bytes, pdu_at: int) -> bytes:
    """The response to an inform is the same message with another PDU tag (RFC 3416 section 4.2.7)."""
    return datagram[:pdu_at] + bytes((PduType.RESPONSE,)) + datagram[pdu_at + 1 :]


def _from_pdu(pdu: Pdu) -> Notification:
    if pdu.kind not in (PduType.TRAP, PduType.INFORM):
        raise Refused("not a trap or inform")
    values = {varbind.oid: varbind.raw for varbind in reversed(pdu.varbinds)}
    oid, uptime = values.get(_TRAP_OID), values.get(_UPTIME)
    if not isinstance(oid, str):
        raise Refused("notification without snmpTrapOID")
    return Notification(
        tuple(map(int, oid.split("."))), uptime if isinstance(uptime, int) else None, _variables(pdu.varbinds)
    )


def _from_v1(message: ber.Reader) -> Notification:
    """A trap of SNMPv1, translated by RFC 3584 section 3.1."""
    trap = message.enter(PduType.TRAP_V1, "a v1 trap")
    enterprise = ber.decode_oid(trap.octets("the enterprise", ber.OID))
    trap.octets("the agent's address", IP_ADDRESS)
    generic = trap.integer("generic-trap", 0, _ENTERPRISE_SPECIFIC)
    specific = trap.integer("specific-trap", 0, INT32_MAX)
    uptime_ticks = trap.integer("the uptime", 0, 2**32 - 1, TIME_TICKS)
    oid = (*enterprise, 0, specific) if generic == _ENTERPRISE_SPECIFIC else (*_GENERIC_TRAPS, generic + 1)
    return Notification(oid, uptime_ticks, _variables(decode_varbinds(trap)))


def _variables(varbinds: list[Varbind]) -> tuple[tuple[Oid, Raw], ...]:
    left_out = (_UPTIME, _TRAP_OID, _TRAP_COMMUNITY)
    return tuple((oid, raw) for oid, _, raw in varbinds if raw is not None and oid not in left_out)


class Listener:
    """
    Receives traps and informs; an inform is acknowledged after `on_trap` returned. Received data raise nothing and are not
    logged: `rejected` counts datagrams by the reason of their rejection, `suppressed` those dropped by the rate limit by address.

    `engine_id` (5 to 32 octets) must never change, and `engine_boots` must grow with each start: a sender of v3 informs remembers
    our engine clock and rejects one that went back as a replay. `on_stale` gets the address of a sender whose signed trap is outside of
    the time window; `verified` is of `NotificationReceiver`.
    """

    def __init__(
        self,
        communities: Iterable[Community],
        users: Iterable[User],
        on_trap: Callable[[Trap], None],
        engine_id: bytes,
        engine_boots: int,
        verified: VerifiedEngine = lambda _: None,
        on_stale: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.rejected: Counter[str] = Counter()
        self._on_trap = on_trap
        self._clocks = SystemClocks()
        self._limit = AddressRateLimit()
        self._on_stale = on_stale
        now_ns = self._clocks.boottime_ns()
        self._receiver = NotificationReceiver(communities, users, engine_id, engine_boots, now_ns, verified)
        self._socket: socket.socket | None = None

    @property
    def suppressed(self) -> dict[str, int]:
        """Datagrams that the rate limit dropped, by the sender's address."""
        return self._limit.suppressed

    async def start(self, where: tuple[str, int] | socket.socket) -> int:
        """
        `where`: host and port (0: any free port), or a bound UDP socket, as systemd passes it, which `stop` closes. Returns the
        port. Raises Unreachable if the address cannot be bound.
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
        for _ in range(MAX_DATAGRAMS_PER_WAKEUP):
            try:
                datagram, sender = listening.recvfrom(MAX_DATAGRAM)
            except OSError:
                return
            reply = self._handle(datagram, sender)
            if reply is not None:
                with suppress(OSError):  # a sender without a response repeats its inform
                    listening.sendto(reply, sender)

    def _handle(self, datagram: bytes, sender: tuple[Any, ...]) -> bytes | None:
        now_ns = self._clocks.boottime_ns()
        address = sender[0].removeprefix("::ffff:")  # IPv4 on a socket of both families
        if not self._limit.allows(address, now_ns):
            return None
        result = self._receiver.receive(datagram, now_ns)
        if result.rejected is not None:
            self.rejected[result.rejected] += 1
            if result.rejected == _STALE:
                self._on_stale(address)
        if (notification := result.notification) is not None:
            variables = notification.variables
            self._on_trap(Trap(address, now_ns, notification.oid, notification.uptime_ticks, variables))
        return result.reply


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
        raise Unreachable(f"cannot receive traps on UDP {host}:{port}: {error}") from error
    return listening


#: A grandmaster that restarts sends all its active alarms at once: some dozens.
BURST = 50
#: Decoding so many datagrams a second costs below 1 % of a core.
PER_S = 20
#: A fleet has a few dozen grandmasters; sender addresses can be forged.
MAX_ADDRESSES = 1024

_INTERVAL_NS = NS_PER_S // PER_S


@dataclass(slots=True)
class _Sender:
    full_at_ns: int = 0
    suppressed: int = 0


class AddressRateLimit:
    """A token bucket for each address, stored as the time at which it is full again. The least recent address is evicted first."""

    def __init__(self) -> None:
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    @property
    def suppressed(self) -> dict[str, int]:
        """The number of dropped datagrams of each address that sent too many."""
        return {address: sender.suppressed for address, sender in self._senders.items() if sender.suppressed}

    def allows(self, address: str, now_ns: int) -> bool:
        sender = self._senders.setdefault(address, _Sender())
        self._senders.move_to_end(address)
        if len(self._senders) > MAX_ADDRESSES:
            self._senders.popitem(last=False)
        full_at_ns = max(sender.full_at_ns, now_ns)
        if full_at_ns - now_ns > (BURST - 1) * _INTERVAL_NS:
            sender.suppressed += 1
            return False
        sender.full_at_ns = full_at_ns + _INTERVAL_NS
        return True
