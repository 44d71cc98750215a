"""
SNMP messages of the simulated grandmasters, v2c and v3, encoded and decoded by pysnmp and pyasn1. No other module imports these two.

It shares no code with `timesyncd.snmp`, which the simulator tests: an error in one codec cannot cancel itself out. pysnmp's engine
is not used, because a lie must be able to change each message.

Sources: RFC 1901 (v2c), RFC 3416 (PDUs), RFC 3412 and 3414 (v3, user-based security), RFC 7860 (SHA-2), RFC 3826 (AES).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from pyasn1.codec.ber import encoder
from pyasn1.codec.der import decoder  # definite lengths alone, as in SNMP (RFC 3417 section 8)
from pyasn1.error import PyAsn1Error
from pyasn1.type import univ
from pysnmp.proto.api import v2c
from pysnmp.proto.error import StatusInformation
from pysnmp.proto.mpmod.rfc3412 import ScopedPDU, SNMPv3Message
from pysnmp.proto.secmod.rfc3414 import service

from timesyncd.errors import Malformed

Oid = tuple[int, ...]
Index = tuple[int, ...]

Raw = int | bytes | Oid
"""INTEGER, counters and TimeTicks as int, OBJECT IDENTIFIER as a tuple, every other type as octets."""

AuthProtocol = Literal["sha1", "sha224", "sha256", "sha384", "sha512"]

PrivProtocol = Literal["aes128", "aes192", "aes256", "aes192-c", "aes256-c"]
"""aes192 and aes256 extend the key by draft-blumenthal-aes-usm-04 (net-snmp); with -c by draft-reeder-snmpv3-usm-3desede (Cisco)."""

VERSION_2C, VERSION_3 = 1, 3
AUTH, PRIV, REPORTABLE = 1, 2, 4
AUTHORIZATION_ERROR, NOT_WRITABLE = 16, 17

_STATS: Oid = (1, 3, 6, 1, 6, 3, 15, 1, 1)
NOT_IN_TIME_WINDOW: Oid = (*_STATS, 2, 0)
UNKNOWN_USER: Oid = (*_STATS, 3, 0)
UNKNOWN_ENGINE_ID: Oid = (*_STATS, 4, 0)
WRONG_DIGEST: Oid = (*_STATS, 5, 0)
DECRYPTION_ERROR: Oid = (*_STATS, 6, 0)
UNKNOWN_CONTEXT: Oid = (1, 3, 6, 1, 6, 3, 12, 1, 5, 0)

#: How many seconds a message may be older or newer than its engine's clock (RFC 3414 section 2.2.3).
_TIME_WINDOW_S = 150
_USM = 3
#: The largest UDP payload.
_MAX_SIZE = 65_507


class ValueTag(IntEnum):
    """The BER tags of values."""

    INTEGER = 0x02
    OCTETS = 0x04
    NULL = 0x05
    OBJECT_ID = 0x06
    IP_ADDRESS = 0x40
    COUNTER32 = 0x41
    GAUGE32 = 0x42
    TIME_TICKS = 0x43
    OPAQUE = 0x44
    COUNTER64 = 0x46
    NO_SUCH_OBJECT = 0x80
    NO_SUCH_INSTANCE = 0x81
    END_OF_MIB_VIEW = 0x82


class PduKind(IntEnum):
    """The BER tags of PDUs."""

    GET = 0xA0
    GET_NEXT = 0xA1
    RESPONSE = 0xA2
    SET = 0xA3
    GET_BULK = 0xA5
    INFORM = 0xA6
    TRAP = 0xA7
    REPORT = 0xA8


class Value(NamedTuple):
    """`raw` is None for NULL and where there is no such object."""

    tag: ValueTag
    raw: Raw | None


Object = tuple[Oid, Value]

NULL = Value(ValueTag.NULL, None)


@dataclass(frozen=True, slots=True)
class WirePdu:
    """
    `number` is the request-id, `status` and `position` are error-status and error-index; in a GETBULK they are non-repeaters and
    max-repetitions.
    """

    kind: PduKind
    number: int
    status: int
    position: int
    varbinds: Sequence[Object]


@dataclass(frozen=True, slots=True)
class ScopedPdu:
    """A PDU with the engine and the context that it is for."""

    engine_id: bytes
    context: bytes
    pdu: WirePdu


@dataclass(frozen=True, slots=True)
class AuthoritativeEngine:
    """The engine whose boots and time prove that a message is fresh."""

    engine_id: bytes
    boots: int
    time: int

    def agrees(self, other: AuthoritativeEngine) -> bool:
        """Whether the other end's estimate of this clock is in the time window (RFC 3414 section 3.2, 7a)."""
        return other.boots == self.boots and abs(other.time - self.time) <= _TIME_WINDOW_S

    def after(self, seconds: int) -> AuthoritativeEngine:
        return replace(self, time=self.time + seconds)


@dataclass(frozen=True, slots=True)
class UsmUser:
    """A user of SNMPv3 whom an agent knows, or as whom a grandmaster reports."""

    name: str
    auth: AuthProtocol
    auth_pass: str
    priv: PrivProtocol
    priv_pass: str
    context: str = ""

    def __repr__(self) -> str:
        return f"UsmUser({self.name!r}, {self.auth}, {self.priv}, ...)"


_VALUES: dict[ValueTag, Any] = {
    ValueTag.INTEGER: v2c.Integer32,
    ValueTag.OCTETS: v2c.OctetString,
    ValueTag.NULL: univ.Null,
    ValueTag.OBJECT_ID: v2c.ObjectIdentifier,
    ValueTag.IP_ADDRESS: v2c.IpAddress,
    ValueTag.COUNTER32: v2c.Counter32,
    ValueTag.GAUGE32: v2c.Gauge32,
    ValueTag.TIME_TICKS: v2c.TimeTicks,
    ValueTag.OPAQUE: v2c.Opaque,
    ValueTag.COUNTER64: v2c.Counter64,
    ValueTag.NO_SUCH_OBJECT: v2c.NoSuchObject,
    ValueTag.NO_SUCH_INSTANCE: v2c.NoSuchInstance,
    ValueTag.END_OF_MIB_VIEW: v2c.EndOfMibView,
}
_PDUS: dict[PduKind, Any] = {
    PduKind.GET: v2c.GetRequestPDU,
    PduKind.GET_NEXT: v2c.GetNextRequestPDU,
    PduKind.RESPONSE: v2c.ResponsePDU,
    PduKind.SET: v2c.SetRequestPDU,
    PduKind.GET_BULK: v2c.GetBulkRequestPDU,
    PduKind.INFORM: v2c.InformRequestPDU,
    PduKind.TRAP: v2c.SNMPv2TrapPDU,
    PduKind.REPORT: v2c.ReportPDU,
}
#: A component that is encoded already passes without a check of its type.
_UNCHECKED = {"verifyConstraints": False, "matchTags": False, "matchConstraints": False}


@lru_cache(maxsize=8192)  # polls repeat the same objects, and pyasn1 needs 30 us for one
def encode_varbind(found: Object) -> bytes:
    """The whole variable binding. Raises ValueError for a value that its type does not allow."""
    oid, (tag, raw) = found
    varbind = v2c.VarBind()
    try:
        v2c.apiVarBind.set_oid_value(varbind, (oid, _VALUES[tag]("" if raw is None else raw)))
        return bytes(encoder.encode(varbind))
    except PyAsn1Error:
        raise ValueError(f"{raw!r} of type {tag.name} cannot be encoded") from None


def _grammar_of(pdu: WirePdu) -> Any:
    """The PDU as pysnmp has it."""
    made = _PDUS[pdu.kind]()
    made[0], made[1], made[2] = pdu.number, pdu.status, pdu.position
    varbinds = made[3].clear()
    for place, found in enumerate(pdu.varbinds):
        varbinds.setComponentByPosition(place, univ.Any(encode_varbind(found)), **_UNCHECKED)
    return made


def _pdu_of(grammar: Any) -> WirePdu:
    varbinds = [(tuple(oid), _value_of(value)) for oid, value in v2c.apiPDU.get_varbinds(grammar)]
    return WirePdu(PduKind(_tag_of(grammar)), int(grammar[0]), int(grammar[1]), int(grammar[2]), varbinds)


def _value_of(value: Any) -> Value:
    tag = ValueTag(_tag_of(value))
    if isinstance(value, univ.ObjectIdentifier):
        return Value(tag, tuple(value))
    if isinstance(value, univ.Integer):
        return Value(tag, int(value))
    return Value(tag, None if isinstance(value, univ.Null) else bytes(value))


def _tag_of(value: Any) -> int:
    outer = value.tagSet[-1]
    return int(outer.tagClass | outer.tagFormat | outer.tagId)


def _decoded(octets: bytes, grammar: Any, padded: bool = False) -> Any:
    """What the octets hold by this grammar. Raises Malformed; `padded` allows octets after it."""
    try:
        value, rest = decoder.decode(octets, asn1Spec=grammar)
    except (PyAsn1Error, OverflowError):  # the second is pyasn1's for a length of more octets than a machine has
        raise Malformed("not SNMP") from None
    if rest and not padded:
        raise Malformed(f"{len(rest)} unexpected octets after the message")
    return value


def encode_v2c(community: bytes, pdu: WirePdu) -> bytes:
    message = v2c.Message()
    message["version"], message["community"] = VERSION_2C, community
    v2c.apiMessage.set_pdu(message, _grammar_of(pdu))
    return bytes(encoder.encode(message))


def decode_v2c(datagram: bytes) -> tuple[bytes, WirePdu]:
    """The community and the PDU. Raises Malformed."""
    message = _decoded(datagram, v2c.Message())
    if int(message["version"]) != VERSION_2C:
        raise Malformed(f"the version is {message['version']} instead of {VERSION_2C}")
    return bytes(message["community"]), _pdu_of(v2c.apiMessage.get_pdu(message))


#: The services by SNMP's own names for them (RFC 3414 section 8, RFC 7860 section 7).
_AUTH_OIDS: dict[AuthProtocol, Oid] = {
    name: (1, 3, 6, 1, 6, 3, 10, 1, 1, 3 + place) for place, name in enumerate(get_args(AuthProtocol))
}
_PRIV: dict[PrivProtocol, Any] = {
    "aes128": service.aes.Aes(),
    "aes192": service.aes192.AesBlumenthal192(),
    "aes256": service.aes256.AesBlumenthal256(),
    "aes192-c": service.aes192.Aes192(),
    "aes256-c": service.aes256.Aes256(),
}


class UsmKeys:
    """A user's keys at one authoritative engine. Deriving them takes some 30 ms: `keys_at` keeps them."""

    def __init__(self, user: UsmUser, engine_id: bytes) -> None:
        at, protocol = univ.OctetString(engine_id), _AUTH_OIDS[user.auth]
        self._auth, self._priv = service.SnmpUSMSecurityModel.AUTH_SERVICES[protocol], _PRIV[user.priv]
        self._auth_key = self._auth.localize_key(self._auth.hash_passphrase(user.auth_pass.encode()), at)
        hashed = self._priv.hash_passphrase(protocol, univ.OctetString(user.priv_pass.encode()))
        self._priv_key = self._priv.localize_key(protocol, hashed, at)
        self.digest_size = int(self._auth.digest_length)

    def sign(self, blank: bytes) -> bytes:
        """The message with its digest in place of the first zeros of that length."""
        return bytes(self._auth.authenticate_outgoing_message(self._auth_key, blank))

    def verifies(self, digest: bytes, datagram: bytes) -> bool:
        """Whether the digest in the message was made with this key."""
        try:
            self._auth.authenticate_incoming_message(self._auth_key, univ.OctetString(digest), datagram)
        except StatusInformation:
            return False
        return True

    def encrypt(self, engine: AuthoritativeEngine, plain: bytes) -> tuple[bytes, bytes]:
        """The encrypted octets and the salt."""
        octets, salt = self._priv.encrypt_data(self._priv_key, (engine.boots, engine.time, None), plain)
        return bytes(octets), bytes(salt)

    def decrypt(self, engine: AuthoritativeEngine, salt: bytes, octets: bytes) -> bytes:
        """Raises Malformed for a salt that is none."""
        clock = (engine.boots, engine.time, list(salt))
        try:
            return bytes(self._priv.decrypt_data(self._priv_key, clock, univ.OctetString(octets)))
        except StatusInformation:
            raise Malformed(f"the salt has {len(salt)} octets instead of 8") from None


keys_at = lru_cache(maxsize=1024)(UsmKeys)


@dataclass(frozen=True, slots=True)
class V3Message:
    """A received message; nothing in it is authenticated before `is_signed_by`. `data` is octets if it is encrypted."""

    datagram: bytes
    number: int
    flags: int
    engine: AuthoritativeEngine
    user: bytes
    digest: bytes
    salt: bytes
    data: ScopedPdu | bytes

    def is_signed_by(self, keys: UsmKeys) -> bool:
        return keys.verifies(self.digest, self.datagram)

    def scoped(self, keys: UsmKeys | None) -> ScopedPdu:
        """Decrypted with `keys` if it is encrypted. Raises Malformed."""
        if isinstance(self.data, ScopedPdu):
            return self.data
        if keys is None:
            raise Malformed("the message is encrypted")
        plain = keys.decrypt(self.engine, self.salt, self.data)
        return _scoped_of(_decoded(plain, ScopedPDU(), padded=True))


def _scoped_of(grammar: Any) -> ScopedPdu:
    return ScopedPdu(
        bytes(grammar["contextEngineId"]), bytes(grammar["contextName"]), _pdu_of(grammar["data"].getComponent())
    )


def decode_v3(datagram: bytes) -> V3Message:
    """Raises Malformed, also for another security model than USM."""
    message = _decoded(datagram, SNMPv3Message())
    header, inside = message["msgGlobalData"], message["msgData"].getComponent()
    flags, is_encrypted = bytes(header["msgFlags"])[0], isinstance(inside, univ.OctetString)
    if (int(message["msgVersion"]), int(header["msgSecurityModel"])) != (VERSION_3, _USM):
        raise Malformed("the version is not 3, or the security model is not USM")
    if bool(flags & PRIV) != is_encrypted or flags & (AUTH | PRIV) == PRIV:
        raise Malformed(f"msgFlags are 0x{flags:02x}, which the message contradicts")
    engine_id, boots, time, user, digest, salt = _decoded(
        bytes(message["msgSecurityParameters"]), service.UsmSecurityParameters()
    ).values()
    engine = AuthoritativeEngine(bytes(engine_id), int(boots), int(time))
    data = bytes(inside) if is_encrypted else _scoped_of(inside)
    return V3Message(datagram, int(header["msgID"]), flags, engine, bytes(user), bytes(digest), bytes(salt), data)


def encode_v3(
    number: int, flags: int, engine: AuthoritativeEngine, user: bytes, keys: UsmKeys | None, scoped: ScopedPdu
) -> bytes:
    """A message that is signed and encrypted as `flags` say; both need `keys`."""
    message, salt = SNMPv3Message(), b""
    inside = message["msgData"]["plaintext"]
    inside["contextEngineId"], inside["contextName"] = scoped.engine_id, scoped.context
    inside["data"].setComponentByType(_PDUS[scoped.pdu.kind].tagSet, _grammar_of(scoped.pdu), **_UNCHECKED)
    if keys and flags & PRIV:
        octets, salt = keys.encrypt(engine, bytes(encoder.encode(inside)))
        message["msgData"]["encryptedPDU"] = octets
    header = message["msgGlobalData"]
    message["msgVersion"], header["msgID"], header["msgMaxSize"] = VERSION_3, number, _MAX_SIZE
    header["msgFlags"], header["msgSecurityModel"] = bytes((flags,)), _USM
    parameters = service.UsmSecurityParameters()
    digest = bytes(keys.digest_size) if keys and flags & AUTH else b""
    for place, value in enumerate((engine.engine_id, engine.boots, engine.time, user, digest, salt)):
        parameters[place] = value
    message["msgSecurityParameters"] = encoder.encode(parameters)
    blank = bytes(encoder.encode(message))
    return keys.sign(blank) if keys and flags & AUTH else blank
