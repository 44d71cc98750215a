"""The PTP ports of a unit and who is served on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

PROFILE_G8275_1 = "G.8275.1"


@dataclass(frozen=True)
class SimulatedClient:
    """A client of one port. Intervals are log2 of seconds."""

    port: int
    address: str
    clock_identity: bytes
    vlan: int = 100
    static: bool = False
    log_announce: int = -3
    log_sync: int = -4
    log_delay: int = -4


@dataclass(frozen=True)
class SimulatedPort:
    """
    `state` is a PTP port state in lower case; `number` counts from 1 and is its ifIndex too. `profile` is one of default,
    telecom2008, G.8265.1, G.8275.1, G.8275.2.
    """

    number: int
    name: str
    state: str
    profile: str
    domain: int
    clock_identity: bytes
    clients: int
    max_clients: int
    enabled: bool = True

    @property
    def load_percent(self) -> int:
        return round(100 * self.clients / self.max_clients)

    def unplugged(self) -> SimulatedPort:
        return replace(self, state="disabled", clients=0)


@dataclass(frozen=True)
class SimulatedReference:
    """An input: disabled, qualified, disqualified or selected."""

    name: str
    if_index: int
    qualification: str


@dataclass(frozen=True)
class SimulatedNtp:
    """`mode` is as NTPv4-MIB has it (syncToRefclock, notSynchronized); `leap` none, insert, delete or unsynchronized."""

    mode: str
    stratum: int
    leap: str
    load_percent: int
    requests: int


def shared_out(total: int, ports: int) -> list[int]:
    """So many clients over so many ports, as evenly as can be."""
    return [total // ports + (1 if place < total % ports else 0) for place in range(ports)]


@lru_cache(maxsize=256)
def clients(counts: tuple[int, ...], seed: int) -> tuple[SimulatedClient, ...]:
    """The clients of all ports, port by port."""
    found = []
    for port, count in enumerate(counts, start=1):
        for place in range(1, count + 1):
            address = f"10.{seed % 200 + 20}.{((port - 1) << 5) + place // 250}.{place % 250 + 1}"
            identity = bytes.fromhex("b04f13fffe") + bytes([port, place // 250, place % 250])
            found.append(SimulatedClient(port, address, identity, static=place == 1))
    return tuple(found)
