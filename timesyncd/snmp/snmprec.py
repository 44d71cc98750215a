"""
Writes a recorded walk as text, one object a line: OID|type|value, the format of snmpsim and LibreNMS (snmprec).

The type is the BER tag as a decimal number. An `x` after it marks a hexadecimal value. The simulator has the reader.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from timesyncd.snmp.values import Oid, Raw, format_oid

INTEGER, OCTETS, NULL, OBJECT_ID = 2, 4, 5, 6
IP_ADDRESS, COUNTER32, GAUGE32, TIMETICKS, OPAQUE, COUNTER64 = 64, 65, 66, 67, 68, 70


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
