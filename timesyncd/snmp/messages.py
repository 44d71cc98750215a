"""
Codec of PDUs (RFC 3416) and of SNMPv2c messages, which are a community and a PDU (RFC 1901 section 3).

Decoders raise Malformed for input that breaks these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from timesyncd.errors import Malformed
from timesyncd.snmp import ber
from timesyncd.snmp.values import Oid, Opaque, Raw, format_oid

INT32_MAX = 2**31 - 1
INT32_MIN = -(2**31)

IP_ADDRESS, COUNTER32, GAUGE32, TIME_TICKS, OPAQUE, COUNTER64 = 0x40, 0x41, 0x42, 0x43, 0x44, 0x46
NO_SUCH_OBJECT, NO_SUCH_INSTANCE, END_OF_MIB_VIEW = 0x80, 0x81, 0x82


class PduType(IntEnum):
    """The tags of PDUs. SetRequest is missing on purpose: this module cannot encode a request that changes an agent."""

    GET = 0xA0
    GET_NEXT = 0xA1
    RESPONSE = 0xA2
    TRAP_V1 = 0xA4
    GET_BULK = 0xA5
    INFORM = 0xA6
    TRAP = 0xA7
    REPORT = 0xA8


STATUS_NAMES = (
    "noError", "tooBig", "noSuchName", "badValue", "readOnly", "genErr", "noAccess", "wrongType", "wrongLength",
    "wrongEncoding", "wrongValue", "noCreation", "inconsistentValue", "resourceUnavailable", "commitFailed",
    "undoFailed", "authorizationError", "notWritable", "inconsistentName",
)  # fmt: skip
TOO_BIG, NO_SUCH_NAME = 1, 2


class Varbind(NamedTuple):
    """
    `tag` is the BER tag of the value, decimal in snmprec files; OPAQUE for a value that SNMP does not define or permit. `raw` None:
    the agent has no such object, or the value is NULL.
    """

    oid: Oid
    tag: int
    raw: Raw | None


@dataclass(frozen=True, slots=True)
class Pdu:
    """
    `number` is the request-id, `status` and `position` are error-status and error-index; in a GETBULK they are non-repeaters and
    max-repetitions.
    """

    kind: PduType
    number: int
    status: int
    position: int
    varbinds: list[Varbind]


def encode_request(kind: PduType, number: int, oids: Sequence[Oid], repetitions: int = 0) -> bytes:
    """The PDU of a GET, GETNEXT or GETBULK; a GETBULK asks for `repetitions` of all `oids`."""
    head = ber.encode_integer(number) + b"\x02\x01\x00" + ber.encode_integer(repetitions)
    return ber.encode(kind, head + ber.encode(ber.SEQUENCE, b"".join(map(_null_varbind, oids))))


@lru_cache(maxsize=4096)
def _null_varbind(oid: Oid) -> bytes:
    return ber.encode(ber.SEQUENCE, ber.encode_oid(oid) + b"\x05\x00")


def encode_report(counter: Oid, count: int, number: int = 0) -> bytes:
    """The PDU of a report. `number` is 0 if the request's could not be decoded: the receiver goes by the msgID then."""
    return encode_pdu(Pdu(PduType.REPORT, number, 0, 0, [Varbind(counter, COUNTER32, count % 2**32)]))


def encode_pdu(pdu: Pdu) -> bytes:
    """The inverse of `decode_pdu`."""
    head = b"".join(map(ber.encode_integer, (pdu.number, pdu.status, pdu.position)))
    return ber.encode(pdu.kind, head + ber.encode(ber.SEQUENCE, b"".join(map(_encode_varbind, pdu.varbinds))))


def _encode_varbind(varbind: Varbind) -> bytes:
    return ber.encode(ber.SEQUENCE, ber.encode_oid(varbind.oid) + encode_value(varbind.tag, varbind.raw))


def encode_value(tag: int, raw: Raw | None) -> bytes:
    """The whole element. Raises ValueError for text that is not an OBJECT IDENTIFIER."""
    if isinstance(raw, int):
        return ber.encode_integer(raw, tag)
    if isinstance(raw, str):
        return ber.encode_oid(tuple(map(int, raw.split("."))))
    return ber.encode(tag, raw or b"")


def decode_pdu(reader: ber.Reader) -> Pdu:
    """The PDU of RFC 3416 at the reader's position; a trap of SNMPv1 is not one."""
    tag = reader.next_tag()
    if tag not in _PDU_TYPES:
        raise Malformed(f"BER tag 0x{tag:02x} instead of a PDU" if tag >= 0 else "BER is truncated")
    return decode_as(_PDU_TYPES[tag], reader, tag)


def decode_as(kind: PduType, reader: ber.Reader, tag: int) -> Pdu:
    """The PDU with this tag, decoded as one of type `kind`."""
    inside = reader.enter(tag, "a PDU")
    number = inside.integer("request-id", INT32_MIN, INT32_MAX)
    status = inside.integer("error-status", 0, INT32_MAX)
    position = inside.integer("error-index", 0, INT32_MAX)
    varbinds = decode_varbinds(inside)
    inside.close("the variables")
    return Pdu(kind, number, status, position, varbinds)


_PDU_TYPES = {int(kind): kind for kind in PduType if kind is not PduType.TRAP_V1}


def decode_varbinds(reader: ber.Reader) -> list[Varbind]:
    """
    The variables. A value that SNMP does not define or permit is kept as an `Opaque`.

    The hot loop of a poll, so it uses no Reader for each variable.
    """
    inside = reader.enter(ber.SEQUENCE, "the variables")
    data, at, end = inside.data, inside.at, inside.end
    element = ber.element
    varbinds = []
    while at < end:
        tag, start, at = element(data, at, end)
        oid_tag, oid_start, oid_stop = element(data, start, at)
        value_tag, value_start, value_stop = element(data, oid_stop, at)
        if tag != ber.SEQUENCE or oid_tag != ber.OID or value_stop != at:
            raise Malformed("variable is not a pair of OBJECT IDENTIFIER and value")
        oid = ber.decode_oid(data[oid_start:oid_stop])
        try:
            varbinds.append(Varbind(oid, value_tag, _VALUES[value_tag](data[value_start:value_stop])))
        except (KeyError, Malformed):
            varbinds.append(Varbind(oid, OPAQUE, Opaque(data[oid_stop:at])))
    return varbinds


def _integer(body: bytes) -> int:
    value = ber.decode_integer(body)
    if not INT32_MIN <= value <= INT32_MAX:
        raise Malformed(f"INTEGER is {value}; allowed: 32 bits")
    return value


def _unsigned(width: int) -> Callable[[bytes], int]:
    def decode(body: bytes) -> int:
        value = ber.decode_integer(body)
        # Some agents omit the leading 0 of a counter whose highest bit is set; net-snmp accepts it too.
        if value < 0 and len(body) == width:
            value += 1 << 8 * width
        if not 0 <= value < 1 << 8 * width:
            raise Malformed(f"counter is {value}; allowed: 0 to {2 ** (8 * width) - 1}")
        return value

    return decode


def _ip_address(body: bytes) -> bytes:
    if len(body) != 4:
        raise Malformed(f"IpAddress has {len(body)} octets instead of 4")
    return body


def _null(body: bytes) -> None:
    if body:
        raise Malformed("NULL is not empty")


_VALUES: dict[int, Callable[[bytes], Raw | None]] = {
    ber.INTEGER: _integer,
    ber.OCTETS: bytes,
    ber.NULL: _null,
    ber.OID: lambda body: format_oid(ber.decode_oid(body)),
    IP_ADDRESS: _ip_address,
    COUNTER32: _unsigned(4),
    GAUGE32: _unsigned(4),
    TIME_TICKS: _unsigned(4),
    OPAQUE: Opaque,
    COUNTER64: _unsigned(8),
    NO_SUCH_OBJECT: _null,
    NO_SUCH_INSTANCE: _null,
    END_OF_MIB_VIEW: lambda _: None,  # whatever it contains: a walk must not go on behind it
}


VERSION_2C = 1
_VERSION_ENCODED = ber.encode_integer(VERSION_2C)


def message(community: bytes, pdu: bytes) -> bytes:
    return ber.encode(ber.SEQUENCE, _VERSION_ENCODED + ber.encode(ber.OCTETS, community) + pdu)


def parse(datagram: bytes) -> tuple[bytes, ber.Reader]:
    """The community, and a reader positioned at the PDU. Octets after the message are ignored. Raises Malformed."""
    inside = ber.Reader(datagram).enter(ber.SEQUENCE, "a message")
    inside.integer("the version", VERSION_2C, VERSION_2C)
    return inside.octets("the community"), inside
