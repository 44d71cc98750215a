"""What an agent's objects hold: the types of SMIv2 (RFC 2578), and TruthValue (RFC 2579)."""

from __future__ import annotations

from typing import NamedTuple

from timesyncd.snmp import ber, messages
from timesyncd.snmp.values import Oid, Raw, format_oid


class Value(NamedTuple):
    """`tag` is BER's; `raw` is None where there is no such object."""

    tag: int
    raw: Raw | None


Object = tuple[Oid, Value]

NO_SUCH_OBJECT = Value(messages.NO_SUCH_OBJECT, None)
NO_SUCH_INSTANCE = Value(messages.NO_SUCH_INSTANCE, None)
END_OF_MIB_VIEW = Value(messages.END_OF_MIB_VIEW, None)


def integer(value: int) -> Value:
    return Value(ber.INTEGER, value)


def octets(content: bytes) -> Value:
    return Value(ber.OCTETS, content)


def text(content: str) -> Value:
    return Value(ber.OCTETS, content.encode())


def object_id(oid: Oid) -> Value:
    return Value(ber.OID, format_oid(oid))


def truth(value: bool) -> Value:
    return Value(ber.INTEGER, 1 if value else 2)


def gauge(value: int) -> Value:
    return Value(messages.GAUGE32, value)


def counter(value: int) -> Value:
    return Value(messages.COUNTER32, value % 2**32)


def counter64(value: int) -> Value:
    return Value(messages.COUNTER64, value % 2**64)


def ticks(value: int) -> Value:
    """TimeTicks: hundredths of a second."""
    return Value(messages.TIME_TICKS, value % 2**32)
