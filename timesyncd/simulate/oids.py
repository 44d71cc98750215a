"""
What a simulated unit serves, object by object.

This table is written from the MIBs and knows no profile of the drivers, so that a wrong OID on either side shows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pysnmp.proto.rfc1902 import Counter64, Gauge32, Integer32, ObjectIdentifier, OctetString, TimeTicks, Unsigned32

from timesyncd.simulate.device import Device, Servo, SimulatedAlarm

Oid = tuple[int, ...]
View = dict[Oid, Any]
"""Every object that is served, with its value as it goes to the wire; in the order of GETNEXT."""

MIB_2 = (1, 3, 6, 1, 2, 1)
ENT_PHYSICAL_ENTRY = (*MIB_2, 47, 1, 1, 1, 1)
PTPBASE_CLOCKS = (*MIB_2, 241, 1, 2)
SYMM_COMMON = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5)
SYMM_PTP = (*SYMM_COMMON, 1, 1)
SYMM_GNSS = (*SYMM_COMMON, 2, 1)
TP5000E = (*SYMM_COMMON, 7, 1)
NET_SNMP_LINUX = (1, 3, 6, 1, 4, 1, 8072, 3, 2, 10)

ORDINARY_CLOCK = 1
MASTER_PORT = 6
SOURCE_GPS, SOURCE_INTERNAL = 32, 160
#: ptpbaseClockState by servo; what is not here is frequencyLocked, acquiring or nothing of the kind.
PTPBASE_STATE = {
    Servo.WARMUP: 1, Servo.FREERUN: 1, Servo.FAILED: 1, Servo.HOLDOVER: 2, Servo.EXTENDED_HOLDOVER: 2,
    Servo.BRIDGING: 2, Servo.FAST_TRACK: 3, Servo.LOCKED: 5,
}  # fmt: skip
SEVERITY = {"critical": 2, "major": 3, "minor": 4, "event": 5}
#: ifIndex and entPhysicalIndex of what the unit has.
PTP_PORT, GNSS_PORT, CLOCK_MODULE = 1, 9, 2


def view(device: Device) -> View:
    parts = (_system, _inventory, _ptpbase, _symm_ptp, _symm_gnss, _tp5000e_clock, _tp5000e_alarms)
    return dict(sorted((oid, value) for part in parts for oid, value in part(device)))


Objects = Iterator[tuple[Oid, Any]]


def _text(text: str) -> OctetString:
    return OctetString(text.encode())


def _truth(value: bool) -> Integer32:
    return Integer32(1 if value else 2)


def _system(device: Device) -> Objects:
    system = (*MIB_2, 1)
    yield (*system, 1, 0), _text(f"{device.model}, firmware {device.firmware} (simulated)")
    yield (*system, 2, 0), ObjectIdentifier(NET_SNMP_LINUX)
    yield (*system, 3, 0), TimeTicks(int((time.time() - device.started_s) * 100) % 2**32)
    yield (*system, 4, 0), _text("")
    yield (*system, 5, 0), _text(device.name)
    yield (*system, 6, 0), _text("simulated")
    yield (*system, 7, 0), Integer32(72)


def _inventory(device: Device) -> Objects:
    """ENTITY-MIB: the chassis, and its clock module, of which nothing but the name is known."""
    for index, name in ((1, "chassis"), (CLOCK_MODULE, "clock module")):
        yield (*ENT_PHYSICAL_ENTRY, 7, index), _text(name)
    yield (*ENT_PHYSICAL_ENTRY, 9, 1), _text("bootloader 1.0")
    yield (*ENT_PHYSICAL_ENTRY, 10, 1), _text(device.firmware)
    yield (*ENT_PHYSICAL_ENTRY, 11, 1), _text(device.serial)
    yield (*ENT_PHYSICAL_ENTRY, 12, 1), _text("Microchip")
    yield (*ENT_PHYSICAL_ENTRY, 13, 1), _text(device.model)


def _ptpbase(device: Device) -> Objects:
    """RFC 8173: one ordinary clock with one port, which is a grandmaster and so its own parent."""
    clock = (device.domain, ORDINARY_CLOCK, 0)
    identity, log_variance = OctetString(device.clock_identity), device.offset_scaled_log_variance
    tables: dict[int, dict[int, Any]] = {
        1: {4: Unsigned32(0), 5: OctetString(bytes(8)), 6: OctetString(bytes(8))},
        2: {
            4: OctetString(device.clock_identity + bytes(2)), 5: _truth(False), 6: Integer32(0), 7: Integer32(0),
            8: identity, 9: Unsigned32(128), 10: Unsigned32(128), 11: Integer32(device.clock_class),
            12: Integer32(device.clock_accuracy), 13: Unsigned32(log_variance),
        },
        3: {
            4: _truth(True), 5: identity, 6: Unsigned32(128), 7: Unsigned32(128), 8: _truth(False),
            9: Integer32(device.clock_class), 10: Integer32(device.clock_accuracy), 11: Integer32(log_variance),
        },
        4: {4: Integer32(PTPBASE_STATE[device.servo]), 5: Counter64(1_000_000), 6: Counter64(500_000)},
        5: {
            4: _truth(True), 5: Integer32(device.utc_offset_s), 6: _truth(False), 7: _truth(False),
            8: _truth(device.has_time_reference), 9: _truth(device.has_time_reference), 10: _truth(True),
            11: Integer32(SOURCE_GPS if device.has_time_reference else SOURCE_INTERNAL),
        },
    }  # fmt: skip
    yield (*MIB_2, 241, 1, 1, 3, 0), Integer32(2)
    for table, columns in tables.items():
        for column, value in columns.items():
            yield (*PTPBASE_CLOCKS, table, 1, column, *clock), value
    yield (*PTPBASE_CLOCKS, 7, 1, 10, *clock, PTP_PORT), Gauge32(2)
    yield (*PTPBASE_CLOCKS, 9, 1, 6, *clock, PTP_PORT), Integer32(MASTER_PORT)


def _symm_ptp(device: Device) -> Objects:
    """The vendor's PTP status, where class and accuracy are text; column 6 of the configuration is the domain."""
    status, port = (*SYMM_PTP, 1, 1, 1), (PTP_PORT, 1)
    yield (*status, 2, *port), Integer32(1)
    yield (*status, 3, *port), _text(device.clock_identity.hex(":").upper())
    yield (*status, 4, *port), Integer32(6)
    yield (*status, 5, *port), _text(str(device.clock_class))
    yield (*status, 6, *port), _text(f"0x{device.clock_accuracy:02X}")
    yield (*status, 7, *port), Integer32(3)
    yield (*status, 8, *port), Integer32(2)
    yield (*status, 9, *port), _text("1")
    yield (*SYMM_PTP, 2, 1, 1, 6, *port), Integer32(device.domain)


def _symm_gnss(device: Device) -> Objects:
    port, satellite_entry = (*SYMM_GNSS, 1, 1, 1), (*SYMM_GNSS, 1, 2, 1)
    yield (*port, 2, GNSS_PORT, 1), _text("GNSS-1")
    yield (*port, 3, GNSS_PORT, 1), Integer32(1)
    yield (*port, 4, GNSS_PORT, 1), Integer32(2)
    for place, satellite in enumerate(device.satellites, start=1):
        yield (*satellite_entry, 2, GNSS_PORT, place), Integer32(satellite.number)
        yield (*satellite_entry, 3, GNSS_PORT, place), Integer32(satellite.cn0_db_hz)
        yield (*satellite_entry, 4, GNSS_PORT, place), Integer32(1 if satellite.healthy else 2)
        yield (*satellite_entry, 5, GNSS_PORT, place), Integer32(satellite.azimuth_deg)
        yield (*satellite_entry, 6, GNSS_PORT, place), Integer32(satellite.elevation_deg)
        yield (*satellite_entry, 7, GNSS_PORT, place), _text("GNSS-1")


def _tp5000e_clock(device: Device) -> Objects:
    """Servo and input references; a reference's index is its ifIndex and its name: length, then its characters."""
    servo, module = (*TP5000E, 8, 1, 1, 1), (CLOCK_MODULE, 1)
    yield (*servo, 2, *module), Integer32(device.servo.number)
    if device.has_time_reference:
        yield (*servo, 3, *module), _text(f"{device.phase_offset_ns:.1f}")
    references = {"GNSS-1": 3 if device.has_time_reference else 2, "PTP-1": 0}
    for name, qualification in references.items():
        index = (GNSS_PORT, len(name), *name.encode())
        yield (*TP5000E, 6, 1, 1, 1, *index), _text(name)
        yield (*TP5000E, 6, 1, 1, 2, *index), Integer32(2)
        yield (*TP5000E, 6, 1, 1, 3, *index), Integer32(qualification)


def _tp5000e_alarms(device: Device) -> Objects:
    standing = [alarm for alarm in device.alarms if alarm.severity != "event"]
    yield (*TP5000E, 2, 4, 0), Integer32(len(standing))
    for row, alarm in enumerate(device.alarms, start=1):
        for column, value in _alarm_columns(row, alarm):
            yield (*TP5000E, 2, 1, 1, column, row), value


def _alarm_columns(row: int, alarm: SimulatedAlarm) -> Iterator[tuple[int, Any]]:
    raised = datetime.fromtimestamp(alarm.raised_s, UTC)
    yield 1, Integer32(row)
    yield 2, Integer32(1)
    yield 3, Integer32(alarm.id)
    yield 4, Integer32(alarm.index)
    yield 5, _text(f"{raised:%Y-%m-%d,%H:%M:%S}")
    yield 6, Integer32(SEVERITY[alarm.severity])
    yield 7, _text(alarm.text)
