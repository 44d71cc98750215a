"""
What a rank knows of its network: its TCP connections, the counters of its interfaces, and what packing cost it. The rank
writes it as JSON beside its marks, for `timesyncd audit`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

from timesyncd.ipc.tcp_info import TcpInfo

VERSION = 1

#: The file's name is that of the rank's marks, with this suffix.
NETWORK_SUFFIX = ".network"

#: The most connections and interfaces of a rank, the largest file that is read, and the longest text in it.
MAX_CONNECTIONS, MAX_INTERFACES = 4_096, 64
MAX_RECORD_BYTES = 4 << 20
_MAX_TEXT = 64

#: The counters of an interface that are recorded, as /sys/class/net/*/statistics names them.
COUNTERS = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped", "rx_errors", "tx_errors")

_LARGEST = 2**63 - 1

#: What every kernel gives.
_ALWAYS = ("state", "rto_ns", "retransmitted")


class Endpoint(NamedTuple):
    """An IP address as text, and a port."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a TCP connection."""

    local: Endpoint
    peer: Endpoint
    info: TcpInfo


class PackingPart(StrEnum):
    """
    What packed: communication hooks, whose marks include it, or the averaging of parameters, whose marks do not.
    """

    HOOKS = "hooks"
    AVERAGING = "averaging"


class PackingTime(NamedTuple):
    """The CPU time in ns that the rank spent on packing and compressing so many octets."""

    cpu_ns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class NetworkRecord:
    """
    From `began_ns` to `read_ns`, CLOCK_MONOTONIC of this rank: the counters of its interfaces at both, and its
    connections at the end. `addresses`: this host's, with their interfaces. `packing`: by `PackingPart`.
    """

    began_ns: int
    read_ns: int
    addresses: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    after: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    connections: tuple[Connection, ...] = ()
    packing: Mapping[PackingPart, PackingTime] = field(default_factory=dict)


def encode_network(record: NetworkRecord) -> bytes:
    """The file's content."""
    connections = [[*one.local, *one.peer, asdict(one.info)] for one in record.connections]
    return json.dumps(
        {
            "version": VERSION,
            "began_ns": record.began_ns,
            "read_ns": record.read_ns,
            "addresses": dict(record.addresses),
            "before": {name: dict(counters) for name, counters in record.before.items()},
            "after": {name: dict(counters) for name, counters in record.after.items()},
            "connections": connections,
            "packing": {part.value: list(time) for part, time in record.packing.items()},
        }
    ).encode()


def parse_network(data: bytes) -> NetworkRecord:
    """A rank's file. Raises ValueError."""
    try:
        content = json.loads(data)
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']!r} is unknown; this timesyncd reads version {VERSION}")
        return NetworkRecord(
            began_ns=_number(content["began_ns"]),
            read_ns=_number(content["read_ns"]),
            addresses={_text(address): _text(name) for address, name in content["addresses"].items()},
            before=_interfaces(content["before"]),
            after=_interfaces(content["after"]),
            connections=tuple(map(_connection, content["connections"][:MAX_CONNECTIONS])),
            packing={PackingPart(part): PackingTime(*map(_number, time)) for part, time in content["packing"].items()},
        )
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no record of a network: {error}") from error


def _interfaces(value: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    return {
        _text(name): {_text(counter): _number(count) for counter, count in counters.items()}
        for name, counters in value.items()
    }


def _connection(value: Any) -> Connection:
    local, local_port, peer, peer_port, info = value
    words: dict[str, Any] = {name: _number(info[name]) for name in _ALWAYS}
    words |= {each.name: _number_or_none(info[each.name]) for each in fields(TcpInfo) if each.name not in _ALWAYS}
    return Connection(
        Endpoint(_text(local), _number(local_port)), Endpoint(_text(peer), _number(peer_port)), TcpInfo(**words)
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise ValueError(f"{str(value)[:_MAX_TEXT]!r} is not a name")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{str(value)[:_MAX_TEXT]!r} is not a count")
    return value


def _number_or_none(value: object) -> int | None:
    return None if value is None else _number(value)
