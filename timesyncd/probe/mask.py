"""
What a recording reveals about its owner, replaced by invented values: the same one everywhere by the same. Pure.

What is what is known of the standard MIBs and, by the field that an object fills, from the profiles. In the vendor's other
objects, addresses and positions are found by how they are written, serial numbers and the host's name by having been met
where they stand by themselves. That finds much and proves nothing: who publishes a recording reads it first.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from timesyncd.drivers.timeprovider._profiles import Profile
from timesyncd.snmp import Oid, Raw, parse_oid
from timesyncd.snmp.snmprec import IP_ADDRESS, OCTETS, OPAQUE, RecordedObject

Kind = Literal["serials", "positions", "names", "addresses"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_Treated = Literal["serial", "host", "name", "position", "identity", "inet", "engine", "version"]


def _oids(*texts: str) -> tuple[Oid, ...]:
    return tuple(map(parse_oid, texts))


#: Who may ask, and where what is sent: communities, users, targets; programs that run, with their arguments. Never stored.
SECRET_TREES = _oids(
    "1.3.6.1.6.3.12", "1.3.6.1.6.3.13", "1.3.6.1.6.3.15", "1.3.6.1.6.3.16", "1.3.6.1.6.3.18", "1.3.6.1.2.1.25.4",
    "1.3.6.1.4.1.2021.8", "1.3.6.1.4.1.8072.1.3", "1.3.6.1.4.1.8072.1.9",
)  # fmt: skip

#: Their indices are addresses: left out where addresses are masked. No profile reads any of them.
ADDRESSED_TREES = _oids(
    "1.3.6.1.2.1.3", *(f"1.3.6.1.2.1.4.{arc}" for arc in (20, 21, 22, 24, *range(27, 40))),
    "1.3.6.1.2.1.5.29", "1.3.6.1.2.1.6.13", "1.3.6.1.2.1.6.19", "1.3.6.1.2.1.6.20", "1.3.6.1.2.1.7.5", "1.3.6.1.2.1.7.7",
    "1.3.6.1.2.1.16", "1.3.6.1.2.1.17", "1.3.6.1.2.1.55", "1.3.6.1.2.1.92",
)  # fmt: skip

_STANDARD: dict[Oid, _Treated] = {
    parse_oid("1.3.6.1.2.1.1.4"): "name",
    parse_oid("1.3.6.1.2.1.1.5"): "host",
    parse_oid("1.3.6.1.2.1.1.6"): "name",
    parse_oid("1.3.6.1.2.1.2.2.1.6"): "identity",
    parse_oid("1.3.6.1.2.1.31.1.1.1.18"): "name",
    **dict.fromkeys(_oids(*(f"1.3.6.1.2.1.47.1.1.1.1.{arc}" for arc in (8, 9, 10))), "version"),
    parse_oid("1.3.6.1.2.1.47.1.1.1.1.11"): "serial",
    **dict.fromkeys(_oids(*(f"1.3.6.1.2.1.47.1.1.1.1.{arc}" for arc in (14, 15, 18))), "name"),
    parse_oid("1.3.6.1.2.1.197.1.3.1.1.5"): "inet",
    parse_oid("1.3.6.1.2.1.241.1.2.2.1.4"): "identity",
    parse_oid("1.3.6.1.2.1.241.1.2.7.1.9"): "inet",
    parse_oid("1.3.6.1.2.1.241.1.2.8.1.6"): "identity",
    parse_oid("1.3.6.1.2.1.241.1.2.11.1.7"): "inet",
    parse_oid("1.3.6.1.6.3.10.2.1.1"): "engine",
}  # fmt: skip

_FIELDS: dict[str, _Treated] = {
    "serial": "serial",
    "sys_name": "host",
    "position": "position",
    "antennas.latitude": "position",
    "antennas.longitude": "position",
    "antennas.height": "position",
    "clock_identity": "identity",
    "parent_clock_identity": "identity",
    "ports.clock_identity": "identity",
    "firmware": "version",
}

_NEEDED: dict[_Treated, Kind] = {
    "serial": "serials", "host": "names", "name": "names", "position": "positions", "identity": "addresses",
    "inet": "addresses", "engine": "addresses", "version": "addresses",
}  # fmt: skip

#: A shorter serial number is replaced as a word of its own, not within other text, where it may mean anything.
SHORTEST_TOKEN = 4
#: Many an agent's sysDescr holds the host's name, and that may be short.
SHORTEST_HOST = 2

_HEX = "[0-9A-Fa-f]"
#: An EUI-64 in text looks like an address of IPv6, so the identities are tried first.
_ADDRESS = re.compile(
    rf"(?P<identity>(?<![0-9A-Za-z])(?:{_HEX}{{2}}(?:[:.-]{_HEX}{{2}}){{7}}|{_HEX}{{2}}(?:[:-]{_HEX}{{2}}){{5}}"
    rf"|{_HEX}{{6}}\.?[Ff]{{2}}[Ff][Ee]\.?{_HEX}{{6}}|{_HEX}{{4}}\.{_HEX}{{4}}\.{_HEX}{{4}})(?![0-9A-Za-z]))"
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)"
    rf"|(?<![\w:.])(?:{_HEX}{{0,4}}:){{2,7}}{_HEX}{{0,4}}(?![\w:])",
    re.ASCII,
)
#: An angle whose sign, 1 or -1, follows it: 12 55 57.387  1.
_SIGN_LAST = re.compile(r"(?<![\w.])(\d{1,3}\s+\d{1,2}\s+\d{1,2}\.\d+)(\s+)[+-]?1(?!\S)", re.ASCII)
#: N 38d23'51.3", with a degree sign in whatever encoding; + 38 23 51.300; 38.39758, -122.71478.
_ANGLE = re.compile(
    r"(?<![A-F])[NSEW]\s*\d{1,3}(?:[\s:d]|[^\0-\x7f])+\d{1,2}(?:[\s:'m]|[^\0-\x7f])+\d{1,2}(?:\.\d+)?"
    r"|[+-]\s*\d{1,3}\s+\d{1,2}\s+\d{1,2}\.\d+"
    r"|(?<![\w.])\d{1,3}\.\d{4,}[,\s]{1,3}[+-]?\d{1,3}\.\d{4,}",
    re.ASCII,
)
_SIXTEEN_DIGITS = re.compile(rf"(?<!{_HEX})(?:{_HEX}{{2}}[\s:.-]?){{7}}{_HEX}{{2}}(?!{_HEX})", re.ASCII)

_MASKED_NETWORK = int(ipaddress.IPv4Address("198.18.0.0"))
_MASKED_NETWORK_6 = int(ipaddress.IPv6Address("2001:db8::"))


@dataclass(frozen=True, slots=True)
class Masked:
    """`left_out` objects are not stored: their value or their index cannot be replaced."""

    rows: list[RecordedObject]
    left_out: int


def _zeroed_angle(found: re.Match[str]) -> str:
    """The sign stays valid, so that the text is decoded as before, and no longer names the hemisphere."""
    return re.sub(r"\d", "0", found[1]) + found[2] + "1"


def _zeroed_position(text: str) -> str:
    either = re.compile(rf"{_SIGN_LAST.pattern}|\d", re.ASCII)
    return either.sub(lambda found: "0" if found[1] is None else _zeroed_angle(found), text)


class Masker:
    """For one recording: what the walk taught is replaced in the other answers too, so the walk comes first."""

    def __init__(self, kinds: Collection[Kind], secrets: Collection[str], profiles: Iterable[Profile]) -> None:
        """`secrets` are never stored, whatever the `kinds`."""
        self._kinds = kinds
        self._secrets = {secret.encode() for secret in secrets if secret}
        self._treated = dict(_STANDARD)
        for profile in profiles:
            for entry in profile.object:
                if entry.field in _FIELDS:
                    self._treated.setdefault(entry.oid, _FIELDS[entry.field])
        self._lengths = {len(oid) for oid in self._treated}
        self._tokens: dict[str, str] = {}
        self._numbers: dict[tuple[str, object], int] = {}
        self._counts: Counter[str] = Counter()
        self._met: set[bytes] = {secret for secret in self._secrets if len(secret) >= SHORTEST_TOKEN}
        self._pattern = self._tokens_pattern()

    def walk(self, rows: Sequence[RecordedObject], models: Collection[str] = ()) -> Masked:
        """`models` are names of products: where a grandmaster's host name or serial number is one of them, it stays in other text."""
        for row in rows:
            self._learn(row, models)
        self._pattern = self._tokens_pattern()
        values = [(row, self._value(row)) for row in rows if not self._is_withheld(row.oid)]
        kept = [row._replace(value=value) for row, value in values if not self._tells(row.oid)]
        return Masked(kept, len(rows) - len(kept))

    def body(self, body: bytes) -> bytes:
        """An answer over HTTPS."""
        return self._text(self._without_secrets(body).decode("latin-1")).encode("latin-1")

    def masked_text(self, text: str) -> str:
        """A text about the recording: an error may name another host."""
        return self.body(text.encode()).decode()

    def _learn(self, row: RecordedObject, models: Collection[str]) -> None:
        treated = self._how(row.oid)
        if treated not in ("serial", "host") or not isinstance(row.value, bytes):
            return
        text = row.value.decode("latin-1").strip(" \0")
        if len(text) >= (SHORTEST_TOKEN if treated == "serial" else SHORTEST_HOST) and text not in models:
            self._tokens[text] = self._invented("serial" if treated == "serial" else "name", text)
            if treated == "host" and len(label := text.partition(".")[0]) >= SHORTEST_HOST and label not in models:
                self._tokens.setdefault(label, self._tokens[text])
        if len(text) >= SHORTEST_TOKEN:
            self._met.add(text.encode("latin-1"))

    def _tokens_pattern(self) -> re.Pattern[str]:
        """The longest first: one serial number may begin with another."""
        words = sorted(self._tokens, key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words)) or '(?!)'})(?!\w)")

    def _how(self, oid: Oid) -> _Treated | None:
        """How the object is treated, where that kind is masked."""
        found = next((self._treated[oid[:n]] for n in self._lengths if oid[:n] in self._treated), None)
        return found if found is not None and _NEEDED[found] in self._kinds else None

    def _is_withheld(self, oid: Oid) -> bool:
        trees = SECRET_TREES + (ADDRESSED_TREES if "addresses" in self._kinds else ())
        return any(oid[: len(tree)] == tree for tree in trees)

    def _tells(self, oid: Oid) -> bool:
        """Whether a replaced value is in the index, an arc an octet."""
        lengths = {len(met) for met in self._met}
        return any(
            bytes(arcs) in self._met
            for length in lengths
            for at in range(7, len(oid) - length + 1)
            if max(arcs := oid[at : at + length]) < 256
        )

    def _value(self, row: RecordedObject) -> Raw:
        treated, value = self._how(row.oid), row.value
        if isinstance(value, int):
            return 0 if treated == "position" else value
        if isinstance(value, str):
            return value
        if row.tag == IP_ADDRESS:
            return self._ip(value)
        return self._octets(treated, value) if row.tag in (OCTETS, OPAQUE) else value

    def _octets(self, treated: _Treated | None, value: bytes) -> bytes:
        value = self._without_secrets(value)
        text = value.decode("latin-1")
        match treated:
            case "serial" | "host" | "name":
                kind = "serial" if treated == "serial" else "name"
                return self._invented(kind, text.strip(" \0")).encode() if text.strip(" \0") else value
            case "position":
                return _zeroed_position(text).encode("latin-1")
            case "inet":
                return self._inet(value)
            case "engine":
                return self._engine(value)
        if (eui := self._binary(treated, value)) != value:
            return eui
        if treated == "identity":
            text = _SIXTEEN_DIGITS.sub(self._written_identity, text)
        return self._text(text, addresses=treated != "version").encode("latin-1")

    def _without_secrets(self, octets: bytes) -> bytes:
        for secret in self._secrets:
            if octets == secret:
                return b"masked"
            if len(secret) >= SHORTEST_TOKEN:
                octets = octets.replace(secret, b"masked")
        return octets

    def _text(self, text: str, addresses: bool = True) -> str:
        text = self._pattern.sub(lambda found: self._tokens[found[0]], text)
        if "positions" in self._kinds:
            text = _ANGLE.sub(lambda found: re.sub(r"\d", "0", found[0]), _SIGN_LAST.sub(_zeroed_angle, text))
        if addresses and "addresses" in self._kinds:
            text = _ADDRESS.sub(self._written, text)
        return text

    def _binary(self, treated: _Treated | None, value: bytes) -> bytes:
        """Eight octets with FFFE in their middle are an EUI-64, ten with it a port's; others only where they are known to be."""
        if "addresses" not in self._kinds or _is_text(value):
            return value
        is_eui = len(value) in (8, 10) and value[3:5] == b"\xff\xfe"
        if is_eui or (treated == "identity" and len(value) in (6, 8, 10)):
            return self._identity(value[:8]) + value[8:]
        return value

    def _identity(self, octets: bytes) -> bytes:
        """Six or eight octets; the vendor's three stay. An EUI-64 that was made of a MAC address stays one of it."""
        if not any(octets):
            return octets
        self._met.add(octets)
        number = self._number("nic", (octets[:3], octets[-3:]))
        middle = octets[3:5] if len(octets) == 8 else b""
        return octets[:3] + middle + number.to_bytes(3, "big")

    def _written(self, found: re.Match[str]) -> str:
        return self._written_identity(found) if found["identity"] else self._written_ip(found)

    def _written_identity(self, found: re.Match[str]) -> str:
        digits = "".join(c for c in found[0] if c.isalnum())
        masked = iter(self._identity(bytes.fromhex(digits)).hex())
        replaced = "".join(next(masked) if c.isalnum() else c for c in found[0])
        return replaced.upper() if found[0].upper() == found[0] else replaced

    def _written_ip(self, found: re.Match[str]) -> str:
        try:
            octets = ipaddress.ip_address(found[0]).packed
        except ValueError:
            return found[0]
        return str(ipaddress.ip_address(self._inet(octets)))

    def _ip(self, octets: bytes) -> bytes:
        return self._inet(octets) if "addresses" in self._kinds else octets

    def _inet(self, octets: bytes) -> bytes:
        """Addresses that identify no network stay; so does what is none."""
        if len(octets) not in (4, 16):
            return octets
        address = ipaddress.ip_address(octets)
        says_nothing = address.is_loopback or address.is_multicast or address.is_unspecified or octets[0] == 255
        if says_nothing:
            return octets
        self._met.add(octets)
        number = self._number("ip", octets)
        if len(octets) == 4:
            return (_MASKED_NETWORK + number % 2**17).to_bytes(4, "big")
        return (_MASKED_NETWORK_6 + number).to_bytes(16, "big")

    def _engine(self, octets: bytes) -> bytes:
        """RFC 3411, section 5: four octets of the enterprise, one for the format of the rest."""
        if octets[4:5] == b"\x03" and len(octets) == 11:
            return octets[:5] + self._identity(octets[5:])
        self._met.add(octets)
        return octets[:5] + self._number("engine", octets).to_bytes(max(4, len(octets) - 5), "big")

    def _invented(self, kind: str, text: str) -> str:
        return f"{kind}-{self._number(kind, text)}"

    def _number(self, kind: str, what: object) -> int:
        """Counted from 1, of each kind, in the order in which they are met."""
        if (kind, what) not in self._numbers:
            self._counts[kind] += 1
            self._numbers[kind, what] = self._counts[kind]
        return self._numbers[kind, what]


def _is_text(octets: bytes) -> bool:
    return all(0x20 <= octet < 0x7F or octet in b"\t\r\n\0" for octet in octets)
