"""
What SNMP messages carry (RFC 3416), encoded and decoded. Whatever breaks the rules is Malformed.

SNMPv2c messages: a community and a PDU (RFC 1901 section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from timesyncd.errors import Malformed
from timesyncd.snmp import ber
from timesyncd.snmp.values import Oid, Raw, format_oid

INT32_MAX = 2**31 - 1
INT32_MIN = -(2**31)

IP_ADDRESS, COUNTER32, GAUGE32, TIME_TICKS, OPAQUE, COUNTER64 = 0x40, 0x41, 0x42, 0x43, 0x44, 0x46
NO_SUCH_OBJECT, NO_SUCH_INSTANCE, END_OF_MIB_VIEW = 0x80, 0x81, 0x82


class Kind(IntEnum):
    """The tags of PDUs. SetRequest is not among them: nothing here can be encoded that changes an agent."""

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
TOO_BIG = 1


class Varbind(NamedTuple):
    """`tag` is the BER tag of the value, which snmprec files name in decimal. `raw` None: the agent has no such object."""

    oid: Oid
    tag: int
    raw: Raw | None


@dataclass(frozen=True, slots=True)
class Pdu:
    """`status` and `position` are non-repeaters and max-repetitions in a GETBULK."""

    kind: Kind
    number: int
    status: int
    position: int
    varbinds: list[Varbind]


def encode_request(kind: Kind, number: int, oids: Sequence[Oid], repetitions: int = 0) -> bytes:
    """The PDU of a GET, GETNEXT or GETBULK (there `repetitions` of all `oids`)."""
    head = ber.encode_integer(number) + b"\x02\x01\x00" + ber.encode_integer(repetitions)
    return ber.encode(kind, head + ber.encode(ber.SEQUENCE, b"".join(map(_asked, oids))))


@lru_cache(maxsize=4096)
def _asked(oid: Oid) -> bytes:
    return ber.encode(ber.SEQUENCE, ber.encode_oid(oid) + b"\x05\x00")


def encode_report(counter: Oid, count: int, number: int = 0) -> bytes:
    """The PDU of a report. `number` is 0 where the request's could not be read: the other end goes by the message's."""
    return encode_pdu(Pdu(Kind.REPORT, number, 0, 0, [Varbind(counter, COUNTER32, count % 2**32)]))


def encode_pdu(pdu: Pdu) -> bytes:
    """What `decode_pdu` reads."""
    head = b"".join(map(ber.encode_integer, (pdu.number, pdu.status, pdu.position)))
    return ber.encode(pdu.kind, head + ber.encode(ber.SEQUENCE, b"".join(map(_encode_varbind, pdu.varbinds))))


def _encode_varbind(varbind: Varbind) -> bytes:
    return ber.encode(ber.SEQUENCE, ber.encode_oid(varbind.oid) + encode_value(varbind.tag, varbind.raw))


def encode_value(tag: int, raw: Raw | None) -> bytes:
    """The whole element. Raises ValueError for text that is no OBJECT IDENTIFIER."""
    if isinstance(raw, int):
        return ber.encode_integer(raw, tag)
    if isinstance(raw, str):
        return ber.encode_oid(tuple(map(int, raw.split("."))))
    return ber.encode(tag, raw or b"")


def decode_pdu(reader: ber.Reader) -> Pdu:
    """Any PDU of RFC 3416 that stands at the reader; not the trap of SNMPv1."""
    tag = reader.next_tag()
    if tag not in _KINDS:
        raise Malformed(f"BER tag 0x{tag:02x} where a PDU belongs" if tag >= 0 else "truncated BER")
    return decode_as(_KINDS[tag], reader, tag)


def decode_as(kind: Kind, reader: ber.Reader, tag: int) -> Pdu:
    """The PDU with this tag, taken as one of `kind`."""
    inside = reader.enter(tag, "a PDU")
    number = inside.integer("request-id", INT32_MIN, INT32_MAX)
    status = inside.integer("error-status", 0, INT32_MAX)
    position = inside.integer("error-index", 0, INT32_MAX)
    varbinds = decode_varbinds(inside)
    inside.close("the variables")
    return Pdu(kind, number, status, position, varbinds)


_KINDS = {int(kind): kind for kind in Kind if kind is not Kind.TRAP_V1}


def decode_varbinds(reader: ber.Reader) -> list[Varbind]:
    """The one hot loop of a poll, so it does without a Reader for each variable."""
    inside = reader.enter(ber.SEQUENCE, "the variables")
    data, at, end = inside.data, inside.at, inside.end
    element = ber.element
    varbinds = []
    while at < end:
        tag, start, at = element(data, at, end)
        oid_tag, oid_start, oid_stop = element(data, start, at)
        value_tag, value_start, value_stop = element(data, oid_stop, at)
        if tag != ber.SEQUENCE or oid_tag != ber.OID or value_stop != at:
            raise Malformed("a variable that is no pair of OBJECT IDENTIFIER and value")
        decode = _VALUES.get(value_tag)
        if decode is None:
            raise Malformed(f"a value of BER tag 0x{value_tag:02x}, which SNMP does not know")
        varbinds.append(
            Varbind(ber.decode_oid(data[oid_start:oid_stop]), value_tag, decode(data[value_start:value_stop]))
        )
    return varbinds


def _integer(body: bytes) -> int:
    value = ber.decode_integer(body)
    if not INT32_MIN <= value <= INT32_MAX:
        raise Malformed(f"an INTEGER of {value}")
    return value


def _unsigned(width: int) -> Callable[[bytes], int]:
    def decode(body: bytes) -> int:
        value = ber.decode_integer(body)
        # Many an agent forgets the leading 0 of a counter whose highest bit is set; net-snmp reads it as it was meant.
        if value < 0 and len(body) == width:
            value += 1 << 8 * width
        if not 0 <= value < 1 << 8 * width:
            raise Malformed(f"a counter of {value}")
        return value

    return decode


def _ip_address(body: bytes) -> bytes:
    if len(body) != 4:
        raise Malformed(f"an IpAddress of {len(body)} octets")
    return body


def _nothing(body: bytes) -> None:
    if body:
        raise Malformed("a NULL that is not empty")


_VALUES: dict[int, Callable[[bytes], Raw | None]] = {
    ber.INTEGER: _integer,
    ber.OCTETS: bytes,
    ber.NULL: _nothing,
    ber.OID: lambda body: format_oid(ber.decode_oid(body)),
    IP_ADDRESS: _ip_address,
    COUNTER32: _unsigned(4),
    GAUGE32: _unsigned(4),
    TIME_TICKS: _unsigned(4),
    OPAQUE: bytes,
    COUNTER64: _unsigned(8),
    NO_SUCH_OBJECT: _nothing,
    NO_SUCH_INSTANCE: _nothing,
    END_OF_MIB_VIEW: _nothing,
}


VERSION_2C = 1
_VERSION_ENCODED = ber.encode_integer(VERSION_2C)


def message(community: bytes, pdu: bytes) -> bytes:
    return ber.encode(ber.SEQUENCE, _VERSION_ENCODED + ber.encode(ber.OCTETS, community) + pdu)


def parse(datagram: bytes) -> tuple[bytes, ber.Reader]:
    """The community, and a reader that stands at the PDU. Raises Malformed."""
    outer = ber.Reader(datagram)
    inside = outer.enter(ber.SEQUENCE, "a message")
    outer.close("the message")
    inside.integer("the version", VERSION_2C, VERSION_2C)
    return inside.octets("the community"), inside
