"""
A recorded walk as text, one object a line: OID|type|value, the format of snmpsim and LibreNMS (snmprec).

The type is the BER tag as a decimal number. An `x` after it marks a hexadecimal value.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from timesyncd.errors import Malformed
from timesyncd.snmp.values import Oid, Raw, format_oid

INTEGER, OCTETS, NULL, OBJECT_ID = 2, 4, 5, 6
IP_ADDRESS, COUNTER32, GAUGE32, TIMETICKS, OPAQUE, COUNTER64 = 64, 65, 66, 67, 68, 70
NUMBERS = (INTEGER, COUNTER32, GAUGE32, TIMETICKS, COUNTER64)
_TAGS = {str(tag): tag for tag in (*NUMBERS, OCTETS, NULL, OBJECT_ID, IP_ADDRESS, OPAQUE)}


class RecordedObject(NamedTuple):
    """`value` is an int for the number types, dotted text for an OBJECT IDENTIFIER, else octets (an IpAddress has four)."""

    oid: Oid
    tag: int
    value: Raw


def format_snmprec(rows: Iterable[RecordedObject]) -> str:
    """The rows as text, in the order of OIDs."""
    return "".join(_line(row) for row in sorted(rows, key=itemgetter(0)))


def _line(row: RecordedObject) -> str:
    tag, value = str(row.tag), row.value
    if row.tag == IP_ADDRESS and isinstance(value, bytes) and len(value) == 4:
        value = str(ipaddress.IPv4Address(value))
    elif isinstance(value, bytes):
        plain = row.tag == OCTETS and value.isascii() and value.decode("ascii").isprintable() and value == value.strip()
        tag, value = (tag, value.decode()) if plain else (f"{tag}x", value.hex())
    return f"{format_oid(row.oid)}|{tag}|{value}\n"


def parse_snmprec(text: str) -> list[RecordedObject]:
    """The rows in the order of OIDs; empty lines and lines that begin with # are skipped. Raises Malformed, naming the line."""
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                rows.append(_row(line.removesuffix("\r")))
            except ValueError as error:
                raise Malformed(f"snmprec line {number}: {error}") from None
    return sorted(rows, key=itemgetter(0))


def _row(line: str) -> RecordedObject:
    """Raises ValueError."""
    parts = line.split("|", 2)
    if len(parts) != 3:
        raise ValueError("not OID|type|value")
    dotted, kind, text = parts
    tag = _TAGS.get(kind.removesuffix("x"))
    if tag is None:
        raise ValueError(f"type {kind!r} is unknown; allowed: {', '.join(_TAGS)}, each with or without x")
    return RecordedObject(_oid(dotted), tag, _value(tag, text, kind.endswith("x")))


def _oid(dotted: str) -> Oid:
    """An OID that BER can encode, since a simulator replays it."""
    oid = tuple(int(arc) for arc in dotted.removeprefix(".").split("."))
    if len(oid) < 2 or any(not 0 <= arc < 2**32 for arc in oid) or oid[0] > 2 or (oid[0] < 2 and oid[1] >= 40):
        raise ValueError(f"{dotted!r} is not an OID")
    return oid


def _value(tag: int, text: str, hexadecimal: bool) -> Raw:
    if hexadecimal:
        octets = bytes.fromhex(text)
        return int.from_bytes(octets, "big") if tag in NUMBERS else octets
    if tag in NUMBERS:
        return int(text)
    if tag == OBJECT_ID:
        return format_oid(_oid(text))
    if tag == IP_ADDRESS:
        return ipaddress.IPv4Address(text).packed
    return text.encode()
