"""SNMP at the wire, for whoever asks an agent or listens to one."""

from timesyncd.snmp.listener import Listener
from timesyncd.snmp.session import Rows, Session
from timesyncd.snmp.values import (
    AuthProtocol,
    Community,
    Credentials,
    Index,
    Oid,
    PrivProtocol,
    Raw,
    User,
    format_oid,
    parse_oid,
)

__all__ = [
    "AuthProtocol",
    "Community",
    "Credentials",
    "Index",
    "Listener",
    "Oid",
    "PrivProtocol",
    "Raw",
    "Rows",
    "Session",
    "User",
    "format_oid",
    "parse_oid",
]
