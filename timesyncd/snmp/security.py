"""
SNMPv3 with the user-based security model: keys, engine clocks and messages.

Messages follow RFC 3412 section 6 and RFC 3414 sections 2 and 3; keys follow RFC 3414 section 2.6 and appendix A.2, RFC 7860
(SHA-2) and RFC 3826 (AES). The agent's engine is authoritative for queries, the sender's for traps, and ours for informs.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from timesyncd.clocks import NS_PER_S
from timesyncd.config import SecretSettings, SnmpUserSettings
from timesyncd.errors import ConfigError, Malformed, Refused
from timesyncd.snmp import ber
from timesyncd.snmp.messages import INT32_MAX, encode_report
from timesyncd.snmp.values import Oid, User

if TYPE_CHECKING:  # a daemon without a user of v3 does not load it: 6 MiB
    from cryptography.hazmat.decrepit.ciphers.modes import CFB
    from cryptography.hazmat.primitives.ciphers import Cipher

#: They are loaded with the first user, not with the first message.
_CIPHERS = "cryptography.hazmat.primitives.ciphers", "cryptography.hazmat.decrepit.ciphers.modes"

#: Octets of the truncated digest in a message.
_DIGEST = {"sha1": 12, "sha224": 16, "sha256": 24, "sha384": 32, "sha512": 48}
_KEY = {"aes128": 16, "aes192": 24, "aes256": 32, "aes192-c": 24, "aes256-c": 32}
#: A pass phrase is repeated to this many octets (RFC 3414 appendix A.2).
_STRETCHED = 1_048_576


class LocalizedKeys:
    """A user's keys at one authoritative engine. The privacy key is derived on first use: the `-c` kinds need milliseconds."""

    def __init__(self, master: MasterKeys, engine_id: bytes) -> None:
        self.user = master.user
        self._master = master
        self._engine_id = engine_id
        self._auth_key = master.localized(master.auth, engine_id)
        self._salt = secrets.randbits(64)
        self.hash = master.user.auth
        self.digest_size = _DIGEST[master.user.auth]

    def digest(self, datagram: bytes) -> bytes:
        return hmac.digest(self._auth_key, datagram, self.hash)[: self.digest_size]

    def encrypt(self, boots: int, time: int, plain: bytes) -> tuple[bytes, bytes]:
        """The encrypted octets and the salt, which never repeats with one key."""
        self._salt = (self._salt + 1) % 2**64
        salt = self._salt.to_bytes(8, "big")
        return self._cipher(boots, time, salt).encryptor().update(plain), salt

    def decrypt(self, boots: int, time: int, salt: bytes, octets: bytes) -> bytes:
        return self._cipher(boots, time, salt).decryptor().update(octets)

    def _cipher(self, boots: int, time: int, salt: bytes) -> Cipher[CFB]:
        from cryptography.hazmat.decrepit.ciphers.modes import CFB
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

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
    """
    A user's keys before localization to an engine (RFC 3414 section 2.6). Deriving each takes a few milliseconds, and loading the
    ciphers for the first user some more.
    """

    def __init__(self, user: User) -> None:
        for module in _CIPHERS:
            import_module(module)
        self.user = user
        self.auth = self.stretched(user.auth_pass.encode())
        self.priv = self.stretched(user.priv_pass.encode())

    def at(self, engine_id: bytes) -> LocalizedKeys:
        return LocalizedKeys(self, engine_id)

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
#: The meaning of a report, by the counter in it.
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

#: How many seconds a message may be older than its engine's clock (RFC 3414 section 2.2.3).
_TIME_WINDOW_S = 150
VERSION_3 = 3
_USM = 3
#: RFC 3411 requires 5 to 32 octets. Some agents have the enterprise's four alone, and their keys are as good.
ENGINE_ID_OCTETS = range(4, 33)
#: The UDP payload of an Ethernet frame: a response that is larger comes in fragments, which many networks drop.
_MAX_SIZE = 1_472


@dataclass(frozen=True, slots=True)
class SnmpEngine:
    """An authoritative engine with its boots and time: it vouches for a message's freshness."""

    engine_id: bytes
    boots: int
    time: int

    @property
    def is_latched(self) -> bool:
        """Whether boots can count no further: then recorded messages are as good as new ones (RFC 3414 section 2.2.2)."""
        return self.boots == INT32_MAX

    def agrees(self, other: SnmpEngine) -> bool:
        """Whether the other end's estimate of this clock is in the time window (RFC 3414 section 3.2, 7a)."""
        return not self.is_latched and other.boots == self.boots and abs(other.time - self.time) <= _TIME_WINDOW_S


class EngineClock:
    """An engine's clock as last received, extrapolated on CLOCK_BOOTTIME, so that no step of CLOCK_REALTIME disturbs it."""

    def __init__(self, engine: SnmpEngine, now_ns: int) -> None:
        self.set(engine, now_ns)

    def set(self, engine: SnmpEngine, now_ns: int) -> None:
        self._engine = engine
        self._set_ns = now_ns

    def at(self, now_ns: int) -> SnmpEngine:
        passed_s = (now_ns - self._set_ns) // NS_PER_S
        return SnmpEngine(self._engine.engine_id, self._engine.boots, min(self._engine.time + passed_s, INT32_MAX))

    def follow(self, engine: SnmpEngine, now_ns: int) -> bool:
        """
        Whether a signed message is in the time window (RFC 3414 section 3.2, 7b); if so, the clock follows it. The clock goes
        forward only: otherwise recorded messages, each a little older, could set it back step by step.
        """
        now = self.at(now_ns)
        if (
            engine.is_latched
            or engine.boots < now.boots
            or engine.boots == now.boots
            and engine.time < now.time - _TIME_WINDOW_S
        ):
            return False
        if (engine.boots, engine.time) > (self._engine.boots, self._engine.time):
            self.set(engine, now_ns)
        return True

    def agrees(self, engine: SnmpEngine, now_ns: int) -> bool:
        """Whether the other end's estimate of *our* clock is in the time window."""
        return self.at(now_ns).agrees(engine)


@dataclass(frozen=True, slots=True)
class UsmMessage:
    """A received message; nothing in it is authenticated before `verify`."""

    datagram: bytes
    number: int
    flags: int
    engine: SnmpEngine
    user: bytes
    digest: bytes
    digest_at: int
    salt: bytes
    data_at: int

    def verify(self, keys: LocalizedKeys) -> bool:
        """Whether the digest was made with this key."""
        stop = self.digest_at + len(self.digest)
        blanked = self.datagram[: self.digest_at] + bytes(len(self.digest)) + self.datagram[stop:]
        return hmac.compare_digest(keys.digest(blanked), self.digest)

    def scoped(self, keys: LocalizedKeys | None) -> ber.Reader:
        """A reader of the scoped PDU, decrypted with `keys` if it is encrypted. Raises Malformed."""
        outer = ber.Reader(self.datagram, self.data_at)
        if not self.flags & PRIV:
            return outer
        octets = outer.octets("the encrypted part")
        outer.close("the encrypted part")
        if keys is None or len(self.salt) != 8:
            raise Malformed(f"encrypted message with a salt of {len(self.salt)} octets instead of 8")
        return ber.Reader(keys.decrypt(self.engine.boots, self.engine.time, self.salt, octets))


def parse(datagram: bytes) -> UsmMessage:
    """
    Decode a message; octets after it are ignored, as they are not signed. Raises Malformed, and Refused for a security model other
    than USM.
    """
    message = ber.Reader(datagram).enter(ber.SEQUENCE, "a message")
    datagram = datagram[: message.end]
    message.integer("the version", VERSION_3, VERSION_3)
    header = message.enter(ber.SEQUENCE, "the v3 header")
    number = header.integer("msgID", 0, INT32_MAX)
    header.integer("msgMaxSize", 484, INT32_MAX)
    flags = header.octets("msgFlags")
    if header.integer("msgSecurityModel", 1, INT32_MAX) != _USM:
        raise Refused("security model other than USM")
    header.close("the v3 header")
    if len(flags) != 1 or flags[0] & (AUTH | PRIV) == PRIV:
        raise Malformed(f"msgFlags are {flags.hex()}: privacy without authentication, or not one octet")
    wrapped = message.enter(ber.OCTETS, "the security parameters")
    parameters = wrapped.enter(ber.SEQUENCE, "the security parameters")
    wrapped.close("the security parameters")
    engine = SnmpEngine(
        parameters.octets("the engine ID"),
        parameters.integer("engine boots", 0, INT32_MAX),
        parameters.integer("engine time", 0, INT32_MAX),
    )
    user = parameters.octets("the user name")
    digest = parameters.octets("the digest")
    digest_at = parameters.at - len(digest)
    salt = parameters.octets("the salt")
    parameters.close("the security parameters")
    return UsmMessage(datagram, number, flags[0], engine, user, digest, digest_at, salt, message.at)


def seal(number: int, reportable: bool, engine: SnmpEngine, user: bytes, keys: LocalizedKeys, scoped: bytes) -> bytes:
    """A signed and encrypted message with the scoped PDU `scoped`."""
    octets, salt = keys.encrypt(engine.boots, engine.time, scoped)
    flags = AUTH | PRIV | (REPORTABLE if reportable else 0)
    data = ber.encode(ber.OCTETS, octets)
    return _sign(_message(number, flags, engine, user, keys.digest_size, salt, data), keys, len(salt) + 2 + len(data))


def plain(number: int, reportable: bool, engine: SnmpEngine, user: bytes, scoped: bytes) -> bytes:
    """A message that is neither signed nor encrypted."""
    return _message(number, REPORTABLE if reportable else 0, engine, user, 0, b"", scoped)


def signed(number: int, engine: SnmpEngine, user: bytes, keys: LocalizedKeys, scoped: bytes) -> bytes:
    """A message that is signed and not encrypted."""
    return _sign(_message(number, AUTH, engine, user, keys.digest_size, b"", scoped), keys, 2 + len(scoped))


def report(
    message: UsmMessage,
    engine: SnmpEngine,
    counter: Oid,
    count: int,
    keys: LocalizedKeys | None = None,
    request: int = 0,
) -> bytes:
    """A report to the sender of `message` on why it was rejected; signed if `keys` are given."""
    scoped = scoped_pdu(engine.engine_id, b"", encode_report(counter, count, request))
    if keys is None:
        return plain(message.number, False, engine, message.user, scoped)
    return signed(message.number, engine, message.user, keys, scoped)


def _sign(blank: bytes, keys: LocalizedKeys, after: int) -> bytes:
    """Insert the digest in place of its zeros; `after` is the number of octets after it (salt and data)."""
    stop = len(blank) - after
    return blank[: stop - keys.digest_size] + keys.digest(blank) + blank[stop:]


def scoped_pdu(engine_id: bytes, context: bytes, pdu: bytes) -> bytes:
    head = ber.encode(ber.OCTETS, engine_id) + ber.encode(ber.OCTETS, context)
    return ber.encode(ber.SEQUENCE, head + pdu)


def open_scoped(reader: ber.Reader) -> ber.Reader:
    """A reader positioned at the PDU."""
    return open_context(reader)[1]


def open_context(reader: ber.Reader) -> tuple[bytes, ber.Reader]:
    """The context, and a reader positioned at the PDU."""
    return open_names(reader)[1:]


def open_names(reader: ber.Reader) -> tuple[bytes, bytes, ber.Reader]:
    """The context's engine ID, the context, and a reader at the PDU. Octets after the scoped PDU are padding of the cipher."""
    inside = reader.enter(ber.SEQUENCE, "the scoped PDU")
    engine_id = inside.octets("the context engine ID")
    return engine_id, inside.octets("the context"), inside


def _message(
    number: int, flags: int, engine: SnmpEngine, user: bytes, digest_size: int, salt: bytes, data: bytes
) -> bytes:
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


def revealed(secret: SecretSettings, key_path: str) -> str:
    """The secret's text. Raises ConfigError that begins with `key_path`, such as "user.auth_pass"."""
    try:
        return secret.reveal().get_secret_value()
    except ConfigError as error:
        raise ConfigError(f"{key_path}: {error}") from error


def user_of(settings: SnmpUserSettings, key_path: str) -> User:
    """The configured user. Raises ConfigError that begins with `key_path` if a secret cannot be read or is too short."""
    auth_pass = revealed(settings.auth_pass, f"{key_path}.auth_pass")
    priv_pass = revealed(settings.priv_pass, f"{key_path}.priv_pass")
    try:
        return User(settings.name, settings.auth, auth_pass, settings.priv, priv_pass, settings.context)
    except ConfigError as error:
        raise ConfigError(f"{key_path}.{error}") from error
