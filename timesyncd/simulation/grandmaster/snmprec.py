"""
Reads a recorded walk, one object a line: OID|type|value, the format of snmpsim and LibreNMS (snmprec).

The type is the BER tag as a decimal number. An `x` after it marks a hexadecimal value.
"""

from __future__ import annotations

import ipaddress
from operator import itemgetter

from timesyncd.errors import Malformed
from timesyncd.simulation.grandmaster.wire import NULL, Object, Oid, Raw, Value, ValueTag, encode_varbind

_NUMBERS = {ValueTag.INTEGER, ValueTag.COUNTER32, ValueTag.GAUGE32, ValueTag.TIME_TICKS, ValueTag.COUNTER64}
_TAGS = {str(int(tag)): tag for tag in ValueTag if tag < ValueTag.NO_SUCH_OBJECT}
_MAX_ARC = 2**32 - 1


def parse_snmprec(text: str) -> list[Object]:
    """The objects in the order of OIDs; empty lines and lines that begin with # are skipped. Raises Malformed, naming the line."""
    objects = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                objects.append(_object(line.removesuffix("\r")))
            except ValueError as error:
                raise Malformed(f"snmprec line {number}: {error}") from None
    return sorted(objects, key=itemgetter(0))


def _object(line: str) -> Object:
    """An object that the simulator can serve. Raises ValueError."""
    parts = line.split("|", 2)
    if len(parts) != 3:
        raise ValueError("not OID|type|value")
    dotted, kind, text = parts
    tag = _TAGS.get(kind.removesuffix("x"))
    if tag is None:
        raise ValueError(f"type {kind!r} is unknown; allowed: {', '.join(_TAGS)}, each with or without x")
    found = _oid(dotted), NULL if tag is ValueTag.NULL else Value(tag, _raw(tag, text, kind.endswith("x")))
    encode_varbind(found)
    return found


def _oid(dotted: str) -> Oid:
    oid = tuple(int(arc) for arc in dotted.removeprefix(".").split("."))
    if len(oid) < 2 or not 0 <= min(oid) <= max(oid) <= _MAX_ARC or oid[0] > 2 or (oid[0] < 2 and oid[1] >= 40):
        raise ValueError(f"{dotted!r} is not an OID")
    return oid


def _raw(tag: ValueTag, text: str, is_hexadecimal: bool) -> Raw:
    if is_hexadecimal:
        octets = bytes.fromhex(text)
        return int.from_bytes(octets, "big") if tag in _NUMBERS else octets
    if tag in _NUMBERS:
        return int(text)
    if tag is ValueTag.OBJECT_ID:
        return _oid(text)
    if tag is ValueTag.IP_ADDRESS:
        return ipaddress.IPv4Address(text).packed
    return text.encode()
