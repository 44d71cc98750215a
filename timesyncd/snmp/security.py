"""
SNMPv3 messages under the user-based security model: RFC 3412 section 6, RFC 3414 sections 2 and 3.

Both ends use it: who asks an agent (the agent is authoritative), and who listens (to traps: the sender is; to informs: we are).

A user's keys: RFC 3414 section 2.6 and appendix A.2, RFC 7860 (SHA-2), RFC 3826 (AES).

The configuration's SNMP users, with their secrets.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from functools import cached_property

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from timesyncd.clocks import NS_PER_S
from timesyncd.config import SecretSettings, SnmpUserSettings
from timesyncd.errors import ConfigError, Malformed, Refused
from timesyncd.snmp import ber
from timesyncd.snmp.messages import INT32_MAX, encode_report
from timesyncd.snmp.values import Oid, User

#: Octets of the digest that are sent.
_DIGEST = {"sha1": 12, "sha224": 16, "sha256": 24, "sha384": 32, "sha512": 48}
_KEY = {"aes128": 16, "aes192": 24, "aes256": 32, "aes192-c": 24, "aes256-c": 32}
#: To so many octets a pass phrase is repeated.
_STRETCHED = 1_048_576


class Keys:
    """A user's keys at one authoritative engine. The privacy key is made when first needed: the `-c` kind costs milliseconds."""

    def __init__(self, master: MasterKeys, engine_id: bytes) -> None:
        self._master = master
        self._engine_id = engine_id
        self._auth_key = master.localized(master.auth, engine_id)
        self._salt = secrets.randbits(64)
        self.hash = master.user.auth
        self.digest_size = _DIGEST[master.user.auth]

    def digest(self, datagram: bytes) -> bytes:
        return hmac.digest(self._auth_key, datagram, self.hash)[: self.digest_size]

    def encrypt(self, boots: int, time: int, plain: bytes) -> tuple[bytes, bytes]:
        """The octets and the salt, which never comes twice with one key."""
        self._salt = (self._salt + 1) % 2**64
        salt = self._salt.to_bytes(8, "big")
        return self._cipher(boots, time, salt).encryptor().update(plain), salt

    def decrypt(self, boots: int, time: int, salt: bytes, octets: bytes) -> bytes:
        return self._cipher(boots, time, salt).decryptor().update(octets)

    def _cipher(self, boots: int, time: int, salt: bytes) -> Cipher[CFB]:
        return Cipher(algorithms.AES(self._priv_key), CFB(boots.to_bytes(4, "big") + time.to_bytes(4, "big") + salt))

    @cached_property
    def _priv_key(self) -> bytes:
        master = self._master
        key = master.localized(master.priv, self._engine_id)
        size = _KEY[master.user.priv]
        while len(key) < size:
            if master.user.priv.endswith("-c"):
                key += master.localized(master.stretched(key), self._engine_id)
            else:
                key += hashlib.new(self.hash, key).digest()
        return key[:size]


class MasterKeys:
    """What a user's pass phrases make before an engine is known (RFC 3414 section 2.6): a few milliseconds each."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.auth = self.stretched(user.auth_pass.encode())
        self.priv = self.stretched(user.priv_pass.encode())

    def at(self, engine_id: bytes) -> Keys:
        return Keys(self, engine_id)

    def stretched(self, phrase: bytes) -> bytes:
        whole = phrase * (_STRETCHED // len(phrase) + 1)
        return hashlib.new(self.user.auth, whole[:_STRETCHED]).digest()

    def localized(self, master: bytes, engine_id: bytes) -> bytes:
        return hashlib.new(self.user.auth, master + engine_id + master).digest()


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


def revealed(secret: SecretSettings, place: str) -> str:
    """Raises ConfigError that begins with `place`, the path of its key."""
    try:
        return secret.reveal().get_secret_value()
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def user_of(settings: SnmpUserSettings, place: str) -> User:
    """Raises ConfigError that begins with `place`, where a secret cannot be read or makes no key."""
    auth_pass = revealed(settings.auth_pass, f"{place}.auth_pass")
    priv_pass = revealed(settings.priv_pass, f"{place}.priv_pass")
    try:
        return User(settings.name, settings.auth, auth_pass, settings.priv, priv_pass, settings.context)
    except ConfigError as error:
        raise ConfigError(f"{place}.{error}") from error
