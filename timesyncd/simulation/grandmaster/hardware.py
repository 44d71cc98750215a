"""
The models, and what one of each is made of: modules, network interfaces, sensors.

The PTP ports of a grandmaster and who is served on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class ModelKind:
    """
    What distinguishes one model from another. `alarm_family` is the numbering of its alarms: tp5000 or s650. `web`: it has the
    TimeProvider 4100's HTTPS interface.
    """

    name: str
    alarm_family: str
    web: bool
    ptp_ports: int
    port_speed_mbps: int
    max_clients: int
    oscillator: str
    firmware: str


MODELS = {
    "tp4100": ModelKind("TimeProvider 4100", "s650", True, 8, 1_000, 256, "ocxo", "2.5.0"),
    "tp4500": ModelKind("TimeProvider 4500", "s650", True, 8, 25_000, 512, "ocxo", "2.5.0"),
    "tp5000e": ModelKind("TimeProvider 5000E", "tp5000", False, 4, 1_000, 1_000, "rb", "1.2.12"),
    "s650": ModelKind("SyncServer S650", "s650", False, 4, 1_000, 500, "rb", "5.0.4"),
}
MANUFACTURER = "Microchip"
#: ifIndex: the PTP ports from 1 on; then these.
GNSS_IF_INDEX, MANAGEMENT_IF_INDEX = 101, 102
#: entPhysicalIndex.
CHASSIS, CLOCK_MODULE, GNSS_MODULE, POWER_A, POWER_B, FAN_1, FAN_2 = 1, 2, 3, 4, 5, 6, 7


@dataclass(frozen=True)
class SimulatedModule:
    """`kind` as ENTITY-MIB names it: chassis, module, powerSupply, fan. Empty text: not served."""

    index: int
    name: str
    kind: str
    hardware: str = ""
    firmware: str = ""
    software: str = ""
    serial: str = ""
    model: str = ""


@dataclass(frozen=True)
class SimulatedInterface:
    index: int
    name: str
    speed_mbps: int
    up: bool
    in_octets: int
    out_octets: int


@dataclass(frozen=True)
class SimulatedSensor:
    """`kind` is temperature (celsius), fan (rpm), power (watts) or antenna (mA); `module` its entPhysicalIndex."""

    index: int
    name: str
    kind: str
    module: int
    value: float
    unit: str
    ok: bool


def modules(kind: ModelKind, serial: str, firmware: str) -> tuple[SimulatedModule, ...]:
    return (
        SimulatedModule(CHASSIS, "chassis", "chassis", "B", "bootloader 1.0", firmware, serial, kind.name),
        SimulatedModule(
            CLOCK_MODULE, "clock module", "module", "C", "", firmware, f"{serial}-C", f"{kind.oscillator} clock"
        ),
        SimulatedModule(GNSS_MODULE, "GNSS receiver", "module", "A", "", "1.3", f"{serial}-G", "GNSS"),
        SimulatedModule(POWER_A, "power supply A", "powerSupply"),
        SimulatedModule(POWER_B, "power supply B", "powerSupply"),
        SimulatedModule(FAN_1, "fan 1", "fan"),
        SimulatedModule(FAN_2, "fan 2", "fan"),
    )


def sensors(at_s: float, antenna_ma: float, failed: frozenset[tuple[str, int]]) -> tuple[SimulatedSensor, ...]:
    """`failed` holds the names and indices of standing alarms; fan 1 or 2, power A (1) or B (2)."""
    room = 38.0 + 2.5 * math.sin(2 * math.pi * at_s / 86_400)
    hot = any(name == "temperature" for name, _ in failed)
    fans = [("fan", place) not in failed for place in (1, 2)]
    powers = [("power", place) not in failed for place in (1, 2)]
    return (
        SimulatedSensor(1, "temperature board", "temperature", CHASSIS, room + 30 * hot, "celsius", not hot),
        SimulatedSensor(2, "temperature oscillator", "temperature", CLOCK_MODULE, room + 9, "celsius", True),
        SimulatedSensor(3, "fan 1", "fan", FAN_1, 5_400.0 * fans[0], "rpm", fans[0]),
        SimulatedSensor(4, "fan 2", "fan", FAN_2, 5_350.0 * fans[1], "rpm", fans[1]),
        SimulatedSensor(5, "power A", "power", POWER_A, 24.0 * powers[0], "watts", powers[0]),
        SimulatedSensor(6, "power B", "power", POWER_B, 23.5 * powers[1], "watts", powers[1]),
        SimulatedSensor(7, "antenna current", "antenna", GNSS_MODULE, antenna_ma, "mA", 5 <= antenna_ma <= 60),
    )


def interfaces(kind: ModelKind, uptime_s: float, down: frozenset[int]) -> tuple[SimulatedInterface, ...]:
    """The PTP ports and the management port; `down` holds ifIndexes."""
    rows = [(place, f"eth{place}", kind.port_speed_mbps) for place in range(1, kind.ptp_ports + 1)]
    rows.append((MANAGEMENT_IF_INDEX, "mgmt", 1_000))
    octets = int(uptime_s * 12_000)
    return tuple(
        SimulatedInterface(index, name, speed, index not in down, octets + index, 2 * octets + index)
        for index, name, speed in rows
    )


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
