"""
Decoders from SNMP values to neutral values. Pure.

A value of the wrong SNMP type breaks the protocol and raises Malformed. A value of the right type that cannot be decoded becomes
an `Unknown`: it is reported as it came, neither as a fault nor as zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from timesyncd.errors import Malformed
from timesyncd.sample import ACCURACY_NS, Position, format_identity
from timesyncd.snmp.values import Opaque, Raw

#: The maximum length of DisplayString and SnmpAdminString.
MAX_TEXT = 255
#: The maximum length of a status text of several lines.
MAX_LINES_TEXT = 4096
#: A larger offset of a grandmaster means a wrong byte order or another kind of value.
ABSURD_OFFSET_NS = 1_000_000_000

_UNIT_NS = {"ps": 1e-3, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that is not understood; `text` is `unknown(12)` or `undecodable('n/a')`."""

    text: str


Value = int | float | str | bool | Position | Unknown
Decoder = Callable[[Raw, Mapping[int, str]], Value]


def _integer(raw: Raw) -> int:
    if not isinstance(raw, int) or abs(raw) >= 2**63:
        raise Malformed(f"{raw!r:.80} instead of a 64-bit integer")
    return raw


def _octets(raw: Raw) -> bytes:
    if not isinstance(raw, bytes):
        raise Malformed(f"{raw!r:.80} instead of an octet string")
    return raw


def _short(raw: Raw) -> bytes:
    """The octets to match against a pattern, limited: an agent may send 64 kB, for which some patterns would need seconds."""
    return _octets(raw)[:MAX_TEXT]


def undecodable(raw: Raw) -> Unknown:
    if isinstance(raw, Opaque):
        return Unknown(f"undecodable(0x{raw.hex():.60})")
    return Unknown(f"undecodable({raw!r:.60})")


def _readable(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def _without_control(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).strip()


def printable(octets: bytes) -> str:
    """Text without control characters, which must not reach a terminal or a page."""
    return _without_control(_readable(octets)[:MAX_TEXT])


def text(raw: Raw, _values: Mapping[int, str]) -> Value:
    return printable(_octets(raw))


def lines(raw: Raw, _values: Mapping[int, str]) -> Value:
    """Text of several lines, each without control characters."""
    return "\n".join(map(_without_control, _readable(_octets(raw)[:MAX_LINES_TEXT]).splitlines()))


def integer(raw: Raw, _values: Mapping[int, str]) -> Value:
    return _integer(raw)


def leading_integer(raw: Raw, _values: Mapping[int, str]) -> Value:
    """An integer, or text that begins with one, such as "12 %"."""
    if isinstance(raw, int):
        return _integer(raw)
    match = re.match(rb"\s*(\d{1,9})(?!\d)", _octets(raw))
    return int(match[1]) if match else undecodable(raw)


def ticks(raw: Raw, _values: Mapping[int, str]) -> Value:
    """TimeTicks (hundredths of a second) -> seconds."""
    return _integer(raw) // 100


def oid(raw: Raw, _values: Mapping[int, str]) -> Value:
    if not isinstance(raw, str):
        raise Malformed(f"{raw!r:.80} instead of an object identifier")
    return raw


def enum(raw: Raw, values: Mapping[int, str]) -> Value:
    """The word for the integer, from the map of this OID: the same integer has another meaning in other objects."""
    number = _integer(raw)
    return values.get(number, Unknown(f"unknown({number})"))


def truth(raw: Raw, _values: Mapping[int, str]) -> Value:
    """TruthValue: 1 is true; everything else is false, since some agents send 0 for false."""
    return _integer(raw) == 1


def low_16_bits(raw: Raw, _values: Mapping[int, str]) -> Value:
    """offsetScaledLogVariance, which is signed in one table of RFC 8173 and unsigned in another."""
    return _integer(raw) & 0xFFFF


def identity(raw: Raw, _values: Mapping[int, str]) -> Value:
    """clockIdentity as eight octets, or as text of sixteen hexadecimal digits with any separators."""
    octets = _octets(raw)
    if len(octets) != 8:
        try:
            octets = bytes.fromhex(re.sub(r"[\s\0:.-]|^0x", "", octets.decode("ascii")))
        except ValueError:
            return undecodable(raw)
    return format_identity(octets) if len(octets) == 8 else undecodable(raw)


def port_identity(raw: Raw, _values: Mapping[int, str]) -> Value:
    """portIdentity -> its clockIdentity: ten octets, of which the last two are the port's number."""
    octets = _octets(raw)
    return format_identity(octets[:8]) if len(octets) == 10 else undecodable(raw)


def clock_class(raw: Raw, _values: Mapping[int, str]) -> Value:
    """0 to 255 as an integer, or text that begins with it, such as "6 (locked)"."""
    if isinstance(raw, bytes):
        match = re.match(rb"\s*(\d{1,3})(?!\d)", raw)
        number = int(match[1]) if match else -1
    else:
        number = _integer(raw)
    return number if 0 <= number <= 255 else undecodable(raw)


def clock_accuracy(raw: Raw, _values: Mapping[int, str]) -> Value:
    """The enumerated octet as an integer, as text ("0x21"), or as its range ("within 100 ns")."""
    if isinstance(raw, bytes):
        number = _accuracy_of(raw.decode("latin-1").lower())
    else:
        number = _integer(raw)
    return number if 0 <= number <= 255 else undecodable(raw)


def _accuracy_of(words: str) -> int:
    """-1 if not understood. Digits alone are ambiguous: "23" may be decimal or hexadecimal."""
    if match := re.search(r"0x([0-9a-f]{2})\b", words):
        return int(match[1], 16)
    if match := re.fullmatch(r"(?:within|<=?|\+/?-)?\s*(\d{1,6}(?:\.\d{1,3})?)\s*(ps|ns|us|ms|s)\W*", words):
        limit_ns = -(-float(match[1]) * _UNIT_NS[match[2]] // 1)
        return next((code for code, upper_ns in ACCURACY_NS.items() if upper_ns == limit_ns), -1)
    return -1


def nanoseconds(raw: Raw, _values: Mapping[int, str]) -> Value:
    """Decimal text with or without the unit "ns", rounded; an integer unchanged."""
    return _integer(raw) if isinstance(raw, int) else _text_ns(_short(raw))


def time_interval(raw: Raw, _values: Mapping[int, str]) -> Value:
    """TimeInterval: eight octets (2^-16 ns, signed, big-endian) or text; RFC 8173 permits either interpretation."""
    octets = _short(raw)
    if len(octets) == 8:
        interval_ns = round(int.from_bytes(octets, "big", signed=True) / 65536)
        if abs(interval_ns) < ABSURD_OFFSET_NS:
            return interval_ns
    return _text_ns(octets)


def _text_ns(octets: bytes) -> Value:
    match = re.fullmatch(rb"\s*([+-]?\d{1,10}(?:\.\d{1,9})?)\s*(?:ns)?[\s\0]*", octets, re.IGNORECASE)
    if match is None or abs(float(match[1])) >= ABSURD_OFFSET_NS:
        return undecodable(octets)
    return round(float(match[1]))


_NUMBER = r"([+-]?\d{1,6}(?:\.\d{1,6})?)"
_SEXAGESIMAL = r"(\d{1,3})[\s:]+(\d{1,2})[\s:]+(\d{1,2}(?:\.\d{1,9})?)"


def metres(raw: Raw, _values: Mapping[int, str]) -> Value:
    """Decimal text, such as "+0058.1" or "58 m"."""
    match = re.fullmatch(rf"\s*{_NUMBER}\s*m?[\s\0]*", _readable(_short(raw)), re.ASCII)
    return float(match[1]) if match else undecodable(raw)


def degrees(raw: Raw, _values: Mapping[int, str]) -> Value:
    """Degrees north or east, from text such as "N38:23:51.30" or "W122:42:53.20"."""
    match = re.fullmatch(rf"\s*([NSEW+-])\s*{_SEXAGESIMAL}[\s\0]*", _readable(_short(raw)), re.ASCII)
    angle_deg = _angle_deg(match.groups()) if match else None
    return undecodable(raw) if angle_deg is None else angle_deg


def position(raw: Raw, _values: Mapping[int, str]) -> Value:
    """
    Latitude, longitude and height in one line: "12 55 57.387  1 77 36 13.809  1 881.61" (S650 MIB, gnssPosition). The sign is
    after its angle: 1 north or east, -1 south or west.
    """
    angle = rf"{_SEXAGESIMAL}\s+([+-]?1)"
    match = re.fullmatch(rf"\s*{angle}\s+{angle}\s+{_NUMBER}\s*m?[\s\0]*", _readable(_short(raw)), re.ASCII)
    if match is None:
        return undecodable(raw)
    *latitude, latitude_sign = match.groups()[:4]
    *longitude, longitude_sign = match.groups()[4:8]
    latitude_deg, longitude_deg = _angle_deg((latitude_sign, *latitude)), _angle_deg((longitude_sign, *longitude))
    if latitude_deg is None or longitude_deg is None or abs(latitude_deg) > 90:
        return undecodable(raw)
    return Position(latitude_deg, longitude_deg, float(match[9]))


def _angle_deg(parts: tuple[str, ...]) -> float | None:
    sign, whole, minutes, seconds = parts
    angle_deg = (int(whole) * 3600 + int(minutes) * 60 + float(seconds)) / 3600
    if int(minutes) >= 60 or float(seconds) >= 60 or angle_deg > 180:
        return None
    return -angle_deg if sign in ("S", "W", "-", "-1") else angle_deg


DECODERS: dict[str, Decoder] = {
    decoder.__name__: decoder
    for decoder in (
        text, lines, integer, leading_integer, ticks, oid, enum, truth, low_16_bits, identity, port_identity, clock_class,
        clock_accuracy, nanoseconds, time_interval, metres, degrees, position,
    )
}  # fmt: skip

#: The type of each decoder's value.
KINDS: dict[str, type] = {
    **dict.fromkeys(DECODERS, int),
    **dict.fromkeys(("text", "lines", "oid", "enum", "identity", "port_identity"), str),
    **dict.fromkeys(("metres", "degrees"), float),
    "truth": bool,
    "position": Position,
}
