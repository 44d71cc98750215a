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
from pyasn1.type import namedtype, univ
from pysnmp.proto.api import v2c
from pysnmp.proto.error import StatusInformation
from pysnmp.proto.mpmod.rfc3412 import HeaderData, ScopedPDU, SNMPv3Message
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
MAX_SIZE = 65_507


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


def _opened(grammar: Any) -> Any:
    """The grammar, with its last component left as it is encoded: what polls repeat there is encoded and decoded once."""
    *parts, last = grammar.componentType.namedTypes
    types = namedtype.NamedTypes(*parts, namedtype.NamedType(last.name, univ.Any()))
    return type(grammar.__name__, (grammar,), {"componentType": types})


_PDUS: dict[PduKind, Any] = {
    PduKind.GET: _opened(v2c.GetRequestPDU),
    PduKind.GET_NEXT: _opened(v2c.GetNextRequestPDU),
    PduKind.RESPONSE: _opened(v2c.ResponsePDU),
    PduKind.SET: _opened(v2c.SetRequestPDU),
    PduKind.GET_BULK: _opened(v2c.GetBulkRequestPDU),
    PduKind.INFORM: _opened(v2c.InformRequestPDU),
    PduKind.TRAP: _opened(v2c.SNMPv2TrapPDU),
    PduKind.REPORT: _opened(v2c.ReportPDU),
}
_V2C, _V3, _SCOPED = _opened(v2c.Message), _opened(SNMPv3Message), _opened(ScopedPDU)
#: A SEQUENCE whose content is encoded already.
_ENCODED_SEQUENCE = univ.OctetString(tagSet=univ.SequenceOf.tagSet)


@lru_cache(maxsize=8192)
def encode_varbind(found: Object) -> bytes:
    """The whole variable binding. Raises ValueError for a value that its type does not allow."""
    oid, (kind, raw) = found
    try:
        return _encode(_ENCODED_SEQUENCE.clone(_encoded_oid(oid) + _encode(_VALUES[kind]("" if raw is None else raw))))
    except PyAsn1Error:
        raise ValueError(f"{raw!r} of type {kind.name} cannot be encoded") from None


@lru_cache(maxsize=8192)
def _encoded_oid(oid: Oid) -> bytes:
    return _encode(v2c.ObjectIdentifier(oid))


def _encoded(pdu: WirePdu) -> bytes:
    varbinds = b"".join(map(encode_varbind, pdu.varbinds))
    return _encoded_parts(
        _PDUS[pdu.kind], pdu.number, pdu.status, pdu.position, _encode(_ENCODED_SEQUENCE.clone(varbinds))
    )


def _encoded_parts(grammar: Any, *parts: int | bytes) -> bytes:
    """A SEQUENCE of these components."""
    made = grammar()
    for place, part in enumerate(parts):
        made[place] = part
    return _encode(made)


def _encode(grammar: Any) -> bytes:
    return bytes(encoder.encode(grammar))


def _pdu_of(octets: bytes) -> WirePdu:
    """Raises Malformed."""
    if octets[0] not in _KINDS:
        raise Malformed(f"0x{octets[0]:02x} is the tag of no PDU")
    kind = _KINDS[octets[0]]
    number, status, position, varbinds = _decoded(octets, _PDUS[kind]()).values()
    return WirePdu(kind, int(number), int(status), int(position), _varbinds_of(bytes(varbinds)))


_KINDS = {int(kind): kind for kind in PduKind}


@lru_cache(maxsize=1024)
def _varbinds_of(octets: bytes) -> tuple[Object, ...]:
    """Raises Malformed."""
    found = map(v2c.apiVarBind.get_oid_value, _decoded(octets, v2c.VarBindList()))
    return tuple((tuple(oid), _value_of(value)) for oid, value in found)


def _value_of(value: Any) -> Value:
    outer = value.tagSet[-1]
    kind = ValueTag(outer.tagClass | outer.tagFormat | outer.tagId)
    if isinstance(value, univ.ObjectIdentifier):
        return Value(kind, tuple(value))
    if isinstance(value, univ.Integer):
        return Value(kind, int(value))
    return Value(kind, None if isinstance(value, univ.Null) else bytes(value))


def _decoded(octets: bytes, grammar: Any, is_padded: bool = False) -> Any:
    """What the octets hold by this grammar. Raises Malformed; octets after it are allowed as padding."""
    try:
        value, rest = decoder.decode(octets, asn1Spec=grammar)
    except (PyAsn1Error, OverflowError):  # the second is pyasn1's for a length of more octets than a machine has
        raise Malformed("not SNMP") from None
    if rest and not is_padded:
        raise Malformed(f"{len(rest)} unexpected octets after the message")
    return value


def encode_v2c(community: bytes, pdu: WirePdu) -> bytes:
    return _encoded_parts(_V2C, VERSION_2C, community, _encoded(pdu))


def decode_v2c(datagram: bytes) -> tuple[bytes, WirePdu]:
    """The community and the PDU. Raises Malformed."""
    version, community, pdu = _decoded(datagram, _V2C()).values()
    if int(version) != VERSION_2C:
        raise Malformed(f"the version is {int(version)} instead of {VERSION_2C}")
    return bytes(community), _pdu_of(bytes(pdu))


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
        return _scoped_of(keys.decrypt(self.engine, self.salt, self.data), is_padded=True)


def _scoped_of(octets: bytes, is_padded: bool = False) -> ScopedPdu:
    """Raises Malformed."""
    engine_id, context, pdu = _decoded(octets, _SCOPED(), is_padded).values()
    return ScopedPdu(bytes(engine_id), bytes(context), _pdu_of(bytes(pdu)))


def decode_v3(datagram: bytes) -> V3Message:
    """Raises Malformed, also for another security model than USM."""
    version, header, security, data = _decoded(datagram, _V3()).values()
    number, _, flags, model = header.values()
    if (int(version), int(model)) != (VERSION_3, _USM):
        raise Malformed(f"version {int(version)} with security model {int(model)} instead of 3 with USM")
    (level,), octets = bytes(flags), bytes(data)
    if level & (AUTH | PRIV) == PRIV:
        raise Malformed("privacy without authentication")
    parameters = _decoded(bytes(security), service.UsmSecurityParameters()).values()
    engine_id, boots, time, user, digest, salt = parameters
    engine = AuthoritativeEngine(bytes(engine_id), int(boots), int(time))
    inside = bytes(_decoded(octets, univ.OctetString())) if level & PRIV else _scoped_of(octets)
    return V3Message(datagram, int(number), level, engine, bytes(user), bytes(digest), bytes(salt), inside)


def encode_v3(
    number: int, flags: int, engine: AuthoritativeEngine, user: bytes, keys: UsmKeys | None, scoped: ScopedPdu
) -> bytes:
    """A message that is signed and encrypted as `flags` say; both need `keys`."""
    data, salt, digest = _encoded_parts(_SCOPED, scoped.engine_id, scoped.context, _encoded(scoped.pdu)), b"", b""
    if keys and flags & PRIV:
        octets, salt = keys.encrypt(engine, data)
        data = _encode(univ.OctetString(octets))
    if keys and flags & AUTH:
        digest = bytes(keys.digest_size)
    header = HeaderData()
    for place, part in enumerate((number, MAX_SIZE, bytes((flags,)), _USM)):
        header[place] = part
    security = _encoded_parts(
        service.UsmSecurityParameters, engine.engine_id, engine.boots, engine.time, user, digest, salt
    )
    blank = _encoded_parts(_V3, VERSION_3, header, security, data)
    return keys.sign(blank) if keys and flags & AUTH else blank
