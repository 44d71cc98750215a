"""SNMPv2c messages: a community and a PDU (RFC 1901 section 3)."""

from __future__ import annotations

from timesyncd.snmp import ber

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
