"""What goes over the wire, in plain types: object identifiers, values, credentials, notifications."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from timesyncd.errors import ConfigError

Oid = tuple[int, ...]
Index = tuple[int, ...]

Raw = int | bytes | str
"""INTEGER and its kin as int, OCTET STRING as bytes, OBJECT IDENTIFIER as dotted text."""

AuthProtocol = Literal["sha1", "sha224", "sha256", "sha384", "sha512"]

PrivProtocol = Literal["aes128", "aes192", "aes256", "aes192-c", "aes256-c"]
"""aes192 and aes256 stretch the key as draft-blumenthal-aes-usm-04 says (net-snmp); with -c as draft-reeder-snmpv3-usm-3desede (Cisco)."""


SHORTEST_PASS_PHRASE = 8
"""RFC 3414, 11.2"""


@dataclass(frozen=True, slots=True)
class Community:
    """SNMP v2c."""

    name: str

    def __repr__(self) -> str:
        return "Community(...)"


@dataclass(frozen=True, slots=True)
class User:
    """SNMP v3, always authPriv (RFC 3414, RFC 7860, RFC 3826). Raises ConfigError for a pass phrase that makes no key."""

    name: str
    auth: AuthProtocol
    auth_pass: str
    priv: PrivProtocol
    priv_pass: str
    context: str = ""

    def __post_init__(self) -> None:
        for name in ("auth_pass", "priv_pass"):
            if len(getattr(self, name)) < SHORTEST_PASS_PHRASE:
                raise ConfigError(f"{name}: a pass phrase of at least {SHORTEST_PASS_PHRASE} characters is wanted")

    def __repr__(self) -> str:
        return f"User({self.name!r}, {self.auth}, {self.priv}, ...)"


Credentials = Community | User


def parse_oid(text: object) -> Oid:
    """Raises ValueError when it is not dotted numbers below 1 (iso), where every MIB is."""
    if not isinstance(text, str) or re.fullmatch(r"1\.[0-3](\.\d{1,10}){1,126}", text, re.ASCII) is None:
        raise ValueError("an OID in dotted numbers is wanted, as 1.3.6.1.2.1.1.1")
    return tuple(int(part) for part in text.split("."))


def format_oid(oid: Oid) -> str:
    return ".".join(map(str, oid))
