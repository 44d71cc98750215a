"""What every model serves of the IETF's MIBs: system, SNMP engine, IF, ENTITY, ENTITY-SENSOR, ENTITY-STATE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from timesyncd.simulation.grandmaster import mib
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.hardware import MANUFACTURER, SimulatedInterface, SimulatedModule, SimulatedSensor
from timesyncd.simulation.grandmaster.mib import Rows, Table, scalars
from timesyncd.simulation.grandmaster.wire import Index, Oid, Value

MIB_2: Oid = (1, 3, 6, 1, 2, 1)
SYSTEM, INTERFACES, IF_X_ENTRY = (*MIB_2, 1), (*MIB_2, 2), (*MIB_2, 31, 1, 1, 1)
ENT_PHYSICAL_ENTRY, ENT_SENSOR_ENTRY = (*MIB_2, 47, 1, 1, 1, 1), (*MIB_2, 99, 1, 1, 1)
ENT_STATE_ENTRY = (*MIB_2, 131, 1, 1, 1)
SNMP_ENGINE: Oid = (1, 3, 6, 1, 6, 3, 10, 2, 1)

_VENDOR: Oid = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5, 7)
#: What the TimeProviders 4100 and 4500 serve is unknown; many grandmasters on Linux answer as net-snmp does.
_NET_SNMP_LINUX: Oid = (1, 3, 6, 1, 4, 1, 8072, 3, 2, 10)
_OBJECT_IDS = {"tp5000e": (*_VENDOR, 1), "s650": (*_VENDOR, 8)}

_UP, _DOWN = 1, 2
_ETHERNET = 6
_CLASSES = {"chassis": 3, "powerSupply": 6, "fan": 7, "sensor": 8, "module": 9}
#: EntitySensorDataType with its scale (milli 8, units 9); then the decimals that are served.
_SENSOR_TYPES = {"celsius": (8, 9, 1), "rpm": (10, 9, 0), "watts": (6, 9, 1), "mA": (5, 8, 1)}
_SENSOR_OK, _SENSOR_BROKEN = 1, 3
#: entPhysicalIndex of a sensor: behind those of the modules.
SENSOR_0 = 100
_ENABLED, _DISABLED = 3, 2
_MAJOR_BIT = 3


def engine_id(device: Device) -> bytes:
    """RFC 3411, section 5: the vendor's enterprise number, then the grandmaster's MAC address."""
    identity = device.clock_identity
    return bytes.fromhex("8000236e03") + identity[:3] + identity[5:]


def indexed(rows: Mapping[Index, Any]) -> Rows:
    return sorted(rows.items())


def by_index(rows: Iterable[Any], first: int = 0) -> Rows:
    """Rows that know their own index."""
    return indexed({(first + row.index,): row for row in rows})


def standard_tables() -> list[Table]:
    return [_system(), _engine(), *_interfaces(), _entities(), _sensors(), _states()]


def _system() -> Table:
    return scalars(SYSTEM, {
        1: lambda device: mib.text(f"{device.model}, firmware {device.firmware} (simulated)"),
        2: lambda device: mib.object_id(_OBJECT_IDS.get(device.kind, _NET_SNMP_LINUX)),
        3: lambda device: mib.ticks(int(device.uptime_s * 100)),
        4: lambda _: mib.text(""),
        5: lambda device: mib.text(device.name),
        6: lambda _: mib.text("simulated"),
        7: lambda _: mib.integer(72),
    })  # fmt: skip


def _engine() -> Table:
    return scalars(SNMP_ENGINE, {
        1: lambda device: mib.octets(engine_id(device)),
        2: lambda device: mib.integer(device.engine_boots),
        3: lambda device: mib.integer(int(device.uptime_s)),
        4: lambda _: mib.integer(65_507),
    })  # fmt: skip


def _interfaces() -> list[Table]:
    number = scalars(INTERFACES, {1: lambda device: mib.integer(len(device.interfaces))})
    interfaces = Table((*INTERFACES, 2, 1), lambda device: by_index(device.interfaces), {
        1: lambda row: mib.integer(row.index),
        2: lambda row: mib.text(row.name),
        3: lambda _: mib.integer(_ETHERNET),
        4: lambda _: mib.integer(1_500),
        5: lambda row: mib.gauge(min(row.speed_mbps * 1_000_000, 2**32 - 1)),
        7: lambda _: mib.integer(_UP),
        8: lambda row: mib.integer(_UP if row.up else _DOWN),
        10: lambda row: mib.counter(row.in_octets),
        14: lambda _: mib.counter(0),
        16: lambda row: mib.counter(row.out_octets),
        20: lambda _: mib.counter(0),
    })  # fmt: skip
    high_capacity = Table(IF_X_ENTRY, lambda device: by_index(device.interfaces), {
        1: lambda row: mib.text(row.name),
        6: lambda row: mib.counter64(row.in_octets),
        10: lambda row: mib.counter64(row.out_octets),
        15: lambda row: mib.gauge(row.speed_mbps),
        18: _alias,
        19: lambda _: mib.ticks(0),
    })  # fmt: skip
    return [number, interfaces, high_capacity]


def _alias(row: SimulatedInterface) -> Value:
    return mib.text("management" if row.name == "mgmt" else "")


def _entities() -> Table:
    """Modules, and the sensors in them, of which only name and place are served. What a module does not serve is empty."""
    return Table(ENT_PHYSICAL_ENTRY, _physical, {
        2: lambda row: mib.text(row.name),
        4: lambda row: mib.integer(_container(row)),
        5: lambda row: mib.integer(_CLASSES["sensor" if isinstance(row, SimulatedSensor) else row.kind]),
        7: lambda row: mib.text(row.name),
        8: _of_module("hardware"),
        9: _of_module("firmware"),
        10: _of_module("software"),
        11: _of_module("serial"),
        12: lambda row: mib.text(MANUFACTURER if isinstance(row, SimulatedModule) else ""),
        13: _of_module("model"),
    })  # fmt: skip


def _physical(device: Device) -> Rows:
    return [*by_index(device.modules), *by_index(device.sensors, SENSOR_0)]


def _container(row: SimulatedModule | SimulatedSensor) -> int:
    if isinstance(row, SimulatedSensor):
        return row.module
    return 0 if row.kind == "chassis" else 1


def _of_module(field: str) -> Any:
    return lambda row: mib.text(getattr(row, field, ""))


def _sensors() -> Table:
    return Table(ENT_SENSOR_ENTRY, lambda device: by_index(device.sensors, SENSOR_0), {
        1: lambda row: mib.integer(_SENSOR_TYPES[row.unit][0]),
        2: lambda row: mib.integer(_SENSOR_TYPES[row.unit][1]),
        3: lambda row: mib.integer(_SENSOR_TYPES[row.unit][2]),
        4: lambda row: mib.integer(round(row.value * 10 ** _SENSOR_TYPES[row.unit][2])),
        5: lambda row: mib.integer(_SENSOR_BROKEN if _broken(row) else _SENSOR_OK),
        6: lambda row: mib.text(row.unit),
    })  # fmt: skip


def _broken(row: SimulatedSensor) -> bool:
    """A temperature out of range is measured all the same; a fan that does not turn counts as broken."""
    return not row.ok and row.kind in ("fan", "power")


def _states() -> Table:
    return Table(ENT_STATE_ENTRY, _rated_modules, {
        3: lambda ok: mib.integer(_ENABLED if ok else _DISABLED),
        5: lambda ok: mib.octets(bytes(1) if ok else bytes((0x80 >> _MAJOR_BIT,))),
    })  # fmt: skip


def _rated_modules(device: Device) -> Rows:
    failed = {sensor.module for sensor in device.sensors if not sensor.ok}
    return [((module.index,), module.index not in failed) for module in device.modules]
