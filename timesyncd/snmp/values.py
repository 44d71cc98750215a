"""SNMP's values in plain types: object identifiers, raw values and credentials."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from timesyncd.errors import ConfigError

Oid = tuple[int, ...]
Index = tuple[int, ...]


class Opaque(bytes):
    """
    Octets that are no text: the content of an Opaque value, or the whole element (tag, length, content) of a value that SNMP does
    not define or permit. One such value of a careless agent costs no other value of its reply.
    """


Raw = int | bytes | str
"""INTEGER, counters and TimeTicks as int, OCTET STRING as bytes, Opaque as `Opaque`, OBJECT IDENTIFIER as dotted text."""

AuthProtocol = Literal["sha1", "sha224", "sha256", "sha384", "sha512"]

PrivProtocol = Literal["aes128", "aes192", "aes256", "aes192-c", "aes256-c"]
"""aes192 and aes256 extend the key by draft-blumenthal-aes-usm-04 (net-snmp); with -c by draft-reeder-snmpv3-usm-3desede (Cisco)."""

#: RFC 3414 section 11.2.
MIN_PASS_PHRASE_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Community:
    """SNMP v2c."""

    name: str

    def __repr__(self) -> str:
        return "Community(...)"


@dataclass(frozen=True, slots=True)
class User:
    """SNMP v3, always authPriv (RFC 3414, RFC 7860, RFC 3826). Raises ConfigError for a pass phrase that is too short."""

    name: str
    auth: AuthProtocol
    auth_pass: str
    priv: PrivProtocol
    priv_pass: str
    context: str = ""

    def __post_init__(self) -> None:
        for name in ("auth_pass", "priv_pass"):
            if len(getattr(self, name)) < MIN_PASS_PHRASE_LENGTH:
                needed = f"SNMPv3 needs at least {MIN_PASS_PHRASE_LENGTH} characters"
                raise ConfigError(f"{name}: the pass phrase is too short; {needed}")

    def __repr__(self) -> str:
        return f"User({self.name!r}, {self.auth}, {self.priv}, ...)"


Credentials = Community | User


def parse_oid(text: object) -> Oid:
    """Raises ValueError unless it is dotted numbers below 1 (iso), where every MIB is."""
    if not isinstance(text, str) or re.fullmatch(r"1\.[0-3](\.\d{1,10}){1,126}", text, re.ASCII) is None:
        raise ValueError("give an OID in dotted numbers, such as 1.3.6.1.2.1.1.1")
    return tuple(int(part) for part in text.split("."))


def format_oid(oid: Oid) -> str:
    return ".".join(map(str, oid))
