"""BER as SNMP uses it (RFC 3417 section 8): definite lengths, tags of one octet. Everything else raises Malformed."""

from __future__ import annotations

from functools import lru_cache

from timesyncd.errors import Malformed
from timesyncd.snmp.values import Oid

INTEGER, OCTETS, NULL, OID, SEQUENCE = 0x02, 0x04, 0x05, 0x06, 0x30

_MAX_ARC = 0xFFFF_FFFF
_MAX_ARCS = 128


def element(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Tag, start and stop of the element at `at`, which must not extend beyond `end`."""
    if at + 2 > end:
        raise Malformed("BER is truncated")
    length = data[at + 1]
    start = at + 2
    if length >= 0x80:
        octets = length & 0x7F
        if not 1 <= octets <= 4 or start + octets > end:
            raise Malformed("BER length is indefinite or longer than four octets")
        length = int.from_bytes(data[start : start + octets], "big")
        start += octets
    if start + length > end:
        raise Malformed("BER length extends beyond the message")
    return data[at], start, start + length


class Reader:
    """Reads one constructed element from front to back."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def next_tag(self) -> int:
        return self.data[self.at] if self.at < self.end else -1

    def enter(self, tag: int, what: str) -> Reader:
        """A reader of the constructed element at this position."""
        start, stop = self._take(tag, what)
        return Reader(self.data, start, stop)

    def octets(self, what: str, tag: int = OCTETS) -> bytes:
        start, stop = self._take(tag, what)
        return self.data[start:stop]

    def integer(self, what: str, low: int, high: int, tag: int = INTEGER) -> int:
        value = decode_integer(self.octets(what, tag))
        if not low <= value <= high:
            raise Malformed(f"{what} is {value}; allowed: {low} to {high}")
        return value

    def close(self, what: str) -> None:
        if self.at != self.end:
            raise Malformed(f"{self.end - self.at} unexpected octets after {what}")

    def _take(self, tag: int, what: str) -> tuple[int, int]:
        found, start, stop = element(self.data, self.at, self.end)
        if found != tag:
            raise Malformed(f"BER tag 0x{found:02x} instead of {what}")
        self.at = stop
        return start, stop


def decode_integer(body: bytes) -> int:
    if not 1 <= len(body) <= 9:
        raise Malformed(f"INTEGER has {len(body)} octets; allowed: 1 to 9")
    return int.from_bytes(body, "big", signed=True)


@lru_cache(maxsize=4096)  # polls repeat the same OIDs
def decode_oid(body: bytes) -> Oid:
    if not body or body[-1] >= 0x80 or len(body) > 5 * _MAX_ARCS:
        raise Malformed("OBJECT IDENTIFIER is empty, too long or cut off")
    arcs: list[int] = []
    arc = 0
    for octet in body:
        if octet == 0x80 and arc == 0:
            raise Malformed("OBJECT IDENTIFIER has an arc with leading zeros")
        arc = arc << 7 | octet & 0x7F
        if octet < 0x80:
            arcs.append(arc)
            arc = 0
    first = min(arcs[0] // 40, 2)
    if max(arcs) > _MAX_ARC or len(arcs) >= _MAX_ARCS:
        raise Malformed("OBJECT IDENTIFIER exceeds 128 arcs or an arc exceeds 32 bits")
    return (first, arcs[0] - 40 * first, *arcs[1:])


def encode(tag: int, body: bytes) -> bytes:
    length = len(body)
    if length < 0x80:
        return bytes((tag, length)) + body
    octets = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(octets))) + octets + body


def encode_integer(value: int, tag: int = INTEGER) -> bytes:
    bits = (value if value >= 0 else ~value).bit_length()
    return encode(tag, value.to_bytes(bits // 8 + 1, "big", signed=True))


@lru_cache(maxsize=4096)
def encode_oid(oid: Oid) -> bytes:
    """The whole element. Raises ValueError for an OID that BER cannot encode."""
    if len(oid) < 2 or not 0 <= oid[0] <= 2 or oid[0] < 2 and oid[1] >= 40 or min(oid) < 0 or max(oid) > _MAX_ARC:
        raise ValueError(f"not an OBJECT IDENTIFIER: {oid}")
    return encode(OID, b"".join(map(_encode_arc, (40 * oid[0] + oid[1], *oid[2:]))))


def _encode_arc(arc: int) -> bytes:
    if arc < 0x80:
        return bytes((arc,))
    octets = [arc & 0x7F]
    while arc := arc >> 7:
        octets.append(0x80 | arc & 0x7F)
    return bytes(reversed(octets))
