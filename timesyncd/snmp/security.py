"""
SNMPv3 messages under the user-based security model: RFC 3412 section 6, RFC 3414 sections 2 and 3.

Both ends use it: who asks an agent (the agent is authoritative), and who listens (to traps: the sender is; to informs: we are).
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed, Refused
from timesyncd.snmp import ber
from timesyncd.snmp.keys import Keys
from timesyncd.snmp.messages import INT32_MAX, encode_report
from timesyncd.snmp.values import Oid

AUTH, PRIV, REPORTABLE = 1, 2, 4

_STATS: Oid = (1, 3, 6, 1, 6, 3, 15, 1, 1)
UNSUPPORTED_LEVEL: Oid = (*_STATS, 1, 0)
NOT_IN_TIME_WINDOW: Oid = (*_STATS, 2, 0)
UNKNOWN_USER: Oid = (*_STATS, 3, 0)
UNKNOWN_ENGINE_ID: Oid = (*_STATS, 4, 0)
WRONG_DIGEST: Oid = (*_STATS, 5, 0)
DECRYPTION_ERROR: Oid = (*_STATS, 6, 0)
UNKNOWN_CONTEXT: Oid = (1, 3, 6, 1, 6, 3, 12, 1, 5, 0)
#: What a report says, by the counter that it carries.
REPORTS: dict[Oid, str] = {
    UNSUPPORTED_LEVEL: "unsupported security level",
    NOT_IN_TIME_WINDOW: "not in time window",
    UNKNOWN_USER: "unknown user name",
    UNKNOWN_ENGINE_ID: "unknown engine ID",
    WRONG_DIGEST: "wrong digest",
    DECRYPTION_ERROR: "decryption error",
    (1, 3, 6, 1, 6, 3, 11, 2, 1, 1, 0): "unknown security model",
    (1, 3, 6, 1, 6, 3, 11, 2, 1, 3, 0): "unknown PDU handler",
    (1, 3, 6, 1, 6, 3, 12, 1, 4, 0): "unavailable context",
    UNKNOWN_CONTEXT: "unknown context",
}

#: By so many seconds a message may be older than its engine's clock (RFC 3414 section 2.2.3).
_TIME_WINDOW_S = 150
VERSION_3 = 3
_USM = 3
#: We take what UDP can carry.
_MAX_SIZE = 65507


@dataclass(frozen=True, slots=True)
class Engine:
    """Who vouches for a message's freshness, and its clock."""

    engine_id: bytes
    boots: int
    time: int

    def agrees(self, other: Engine) -> bool:
        """Whether another end's idea of this clock is in the time window (RFC 3414 section 3.2, 7a)."""
        return other.boots == self.boots and abs(other.time - self.time) <= _TIME_WINDOW_S


class EngineClock:
    """An engine's clock as last heard of, counted on by our CLOCK_BOOTTIME: no step of the time of day disturbs it."""

    def __init__(self, engine: Engine, now_ns: int) -> None:
        self.set(engine, now_ns)

    def set(self, engine: Engine, now_ns: int) -> None:
        self._engine = engine
        self._heard_ns = now_ns

    def at(self, now_ns: int) -> Engine:
        passed_s = (now_ns - self._heard_ns) // NS_PER_S
        return Engine(self._engine.engine_id, self._engine.boots, min(self._engine.time + passed_s, INT32_MAX))

    def follow(self, engine: Engine, now_ns: int) -> bool:
        """
        Whether what a signed message says is in the time window (RFC 3414 section 3.2, 7b). The clock goes forward only: else
        recorded messages, each a little older, could set it back step by step.
        """
        now = self.at(now_ns)
        if engine.boots < now.boots or engine.boots == now.boots and engine.time < now.time - _TIME_WINDOW_S:
            return False
        if (engine.boots, engine.time) > (self._engine.boots, self._engine.time):
            self.set(engine, now_ns)
        return True

    def agrees(self, engine: Engine, now_ns: int) -> bool:
        """Whether another end's idea of *our* clock is in the time window."""
        return self.at(now_ns).agrees(engine)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it came: nothing of it is believed before `verify`."""

    datagram: bytes
    number: int
    flags: int
    engine: Engine
    user: bytes
    digest: bytes
    digest_at: int
    salt: bytes
    data_at: int

    def verify(self, keys: Keys) -> bool:
        """Whether it is signed with this key."""
        stop = self.digest_at + len(self.digest)
        blanked = self.datagram[: self.digest_at] + bytes(len(self.digest)) + self.datagram[stop:]
        return hmac.compare_digest(keys.digest(blanked), self.digest)

    def scoped(self, keys: Keys | None) -> ber.Reader:
        """What it carries, decrypted with `keys` where it is encrypted. Raises Malformed."""
        outer = ber.Reader(self.datagram, self.data_at)
        if not self.flags & PRIV:
            return outer
        octets = outer.octets("the encrypted part")
        outer.close("the encrypted part")
        if keys is None or len(self.salt) != 8:
            raise Malformed("encrypted without a salt of 8 octets")
        return ber.Reader(keys.decrypt(self.engine.boots, self.engine.time, self.salt, octets))


def parse(datagram: bytes) -> Message:
    """Raises Malformed; Refused for another security model than USM."""
    outer = ber.Reader(datagram)
    message = outer.enter(ber.SEQUENCE, "a message")
    outer.close("the message")
    message.integer("the version", VERSION_3, VERSION_3)
    header = message.enter(ber.SEQUENCE, "the v3 header")
    number = header.integer("msgID", 0, INT32_MAX)
    header.integer("msgMaxSize", 484, INT32_MAX)
    flags = header.octets("msgFlags")
    if header.integer("msgSecurityModel", 1, INT32_MAX) != _USM:
        raise Refused("another security model than USM")
    header.close("the v3 header")
    if len(flags) != 1 or flags[0] & (AUTH | PRIV) == PRIV:
        raise Malformed(f"msgFlags {flags.hex()}")
    wrapped = message.enter(ber.OCTETS, "the security parameters")
    parameters = wrapped.enter(ber.SEQUENCE, "the security parameters")
    wrapped.close("the security parameters")
    engine = Engine(
        parameters.octets("the engine ID"),
        parameters.integer("engine boots", 0, INT32_MAX),
        parameters.integer("engine time", 0, INT32_MAX),
    )
    user = parameters.octets("the user name")
    digest = parameters.octets("the digest")
    digest_at = parameters.at - len(digest)
    salt = parameters.octets("the salt")
    parameters.close("the security parameters")
    return Message(datagram, number, flags[0], engine, user, digest, digest_at, salt, message.at)


def seal(number: int, reportable: bool, engine: Engine, user: bytes, keys: Keys, scoped: bytes) -> bytes:
    """A message with `scoped`, signed and encrypted."""
    octets, salt = keys.encrypt(engine.boots, engine.time, scoped)
    flags = AUTH | PRIV | (REPORTABLE if reportable else 0)
    data = ber.encode(ber.OCTETS, octets)
    return _sign(_message(number, flags, engine, user, keys.digest_size, salt, data), keys, len(salt) + 2 + len(data))


def plain(number: int, reportable: bool, engine: Engine, user: bytes, scoped: bytes) -> bytes:
    """A message that anybody can read and nobody has signed."""
    return _message(number, REPORTABLE if reportable else 0, engine, user, 0, b"", scoped)


def signed(number: int, engine: Engine, user: bytes, keys: Keys, scoped: bytes) -> bytes:
    """A message that anybody can read, and that is to be believed."""
    return _sign(_message(number, AUTH, engine, user, keys.digest_size, b"", scoped), keys, 2 + len(scoped))


def report(
    message: Message, engine: Engine, counter: Oid, count: int, keys: Keys | None = None, request: int = 0
) -> bytes:
    """Tells who sent `message` why it was refused; signed where `keys` are given."""
    scoped = scoped_pdu(engine.engine_id, b"", encode_report(counter, count, request))
    if keys is None:
        return plain(message.number, False, engine, message.user, scoped)
    return signed(message.number, engine, message.user, keys, scoped)


def _sign(blank: bytes, keys: Keys, after: int) -> bytes:
    """Puts the digest where its zeros stand; the salt and the data come `after`."""
    stop = len(blank) - after
    return blank[: stop - keys.digest_size] + keys.digest(blank) + blank[stop:]


def scoped_pdu(engine_id: bytes, context: bytes, pdu: bytes) -> bytes:
    head = ber.encode(ber.OCTETS, engine_id) + ber.encode(ber.OCTETS, context)
    return ber.encode(ber.SEQUENCE, head + pdu)


def open_scoped(reader: ber.Reader) -> ber.Reader:
    """A reader that stands at the PDU."""
    return open_context(reader)[1]


def open_context(reader: ber.Reader) -> tuple[bytes, ber.Reader]:
    """The context, and a reader that stands at the PDU. Octets after the scoped PDU are padding of the cipher."""
    inside = reader.enter(ber.SEQUENCE, "the scoped PDU")
    inside.octets("the context engine ID")
    return inside.octets("the context"), inside


def _message(number: int, flags: int, engine: Engine, user: bytes, digest_size: int, salt: bytes, data: bytes) -> bytes:
    header = (
        ber.encode_integer(number)
        + ber.encode_integer(_MAX_SIZE)
        + ber.encode(ber.OCTETS, bytes((flags,)))
        + ber.encode_integer(_USM)
    )
    parameters = (
        ber.encode(ber.OCTETS, engine.engine_id)
        + ber.encode_integer(engine.boots)
        + ber.encode_integer(engine.time)
        + ber.encode(ber.OCTETS, user)
        + ber.encode(ber.OCTETS, bytes(digest_size))
        + ber.encode(ber.OCTETS, salt)
    )
    security = ber.encode(ber.OCTETS, ber.encode(ber.SEQUENCE, parameters))
    return ber.encode(ber.SEQUENCE, ber.encode_integer(VERSION_3) + ber.encode(ber.SEQUENCE, header) + security + data)
