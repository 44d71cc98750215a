"""The file in which a rank records its network."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from timesyncd.ipc.network_record import (
    Connection,
    Endpoint,
    NetworkRecord,
    PackingPart,
    PackingTime,
    encode_network,
    parse_network,
)
from timesyncd.ipc.tcp_info import parse_tcp_info

COUNTERS = {"rx_bytes": 5, "tx_bytes": 7, "rx_dropped": 0, "tx_dropped": 1, "rx_errors": 0, "tx_errors": 0}
INFO = parse_tcp_info(bytes([1]) + bytes(183))
RECORD = NetworkRecord(
    began_ns=1,
    read_ns=2_000_000_000,
    addresses={"10.0.0.1": "eth0", "fe80::1": "eth0"},
    before={"eth0": COUNTERS},
    after={"eth0": COUNTERS | {"tx_bytes": 9_000}},
    connections=(Connection(Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 29_500), INFO),),
    packing={PackingPart.HOOKS: PackingTime(1_000, 4_096)},
)


def test_a_record_is_read_as_it_was_written() -> None:
    """With all of its parts, and with what the kernel does not give as unknown."""
    found = parse_network(encode_network(RECORD))

    assert found == RECORD
    assert found.connections[0].info.sndbuf_limited_ns is None


def test_an_empty_record_is_one() -> None:
    """A rank without connections and without counters."""
    empty = replace(RECORD, addresses={}, before={}, after={}, connections=(), packing={})

    assert parse_network(encode_network(empty)) == empty


def broken(**change: Any) -> bytes:
    return json.dumps(json.loads(encode_network(RECORD)) | change).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        broken(version=2),
        broken(read_ns=-1),
        broken(read_ns=True),
        broken(began_ns=2**70),
        broken(addresses={"10.0.0.1": 5}),
        broken(addresses={"a" * 100: "eth0"}),
        broken(before=[1]),
        broken(after={"eth0": {"tx_bytes": "7"}}),
        broken(connections=[["10.0.0.1", 1, "10.0.0.2", 2, {}]]),
        broken(connections=[["10.0.0.1", 1]]),
        broken(connections=3),
        broken(packing={"other": [1, 2]}),
        broken(packing={"hooks": [1]}),
        broken(packing={"hooks": [1, 2, 3]}),
    ],
)
def test_a_damaged_record_is_refused(data: bytes) -> None:
    """One error, whatever is wrong: the audit goes on without it."""
    with pytest.raises(ValueError):
        parse_network(data)
