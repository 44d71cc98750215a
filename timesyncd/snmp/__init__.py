"""SNMP at the wire: queries to an agent, and a listener for notifications. docs/why-own-snmp.md says why it is our own."""

from timesyncd.snmp.adaptive import AgentLimits
from timesyncd.snmp.listener import Listener
from timesyncd.snmp.session import Rows, Session
from timesyncd.snmp.values import (
    AuthProtocol,
    Community,
    Credentials,
    Index,
    Oid,
    Opaque,
    PrivProtocol,
    Raw,
    User,
    format_oid,
    parse_oid,
)

__all__ = [
    "AgentLimits",
    "AuthProtocol",
    "Community",
    "Credentials",
    "Index",
    "Listener",
    "Oid",
    "Opaque",
    "PrivProtocol",
    "Raw",
    "Rows",
    "Session",
    "User",
    "format_oid",
    "parse_oid",
]
