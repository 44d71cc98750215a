"""PTPBASE-MIB (RFC 8173): one ordinary clock, a grandmaster and so its own parent, with its ports and their clients."""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from itertools import accumulate
from typing import Any

from timesyncd.simulation.grandmaster import mib
from timesyncd.simulation.grandmaster.device import Device, Servo
from timesyncd.simulation.grandmaster.hardware import SimulatedPort
from timesyncd.simulation.grandmaster.mib import LazyRows, Rows, Table, scalars
from timesyncd.simulation.grandmaster.oids_standard import MIB_2
from timesyncd.simulation.grandmaster.wire import Index, Oid, Value

PTPBASE: Oid = (*MIB_2, 241)
CLOCKS = (*PTPBASE, 1, 2)

ORDINARY_CLOCK, INSTANCE = 1, 0
SOURCE_GPS, SOURCE_INTERNAL = 32, 160
TELECOM, VENDOR_SPECIFIC = 2, 3
#: ptpbaseClockState by servo: freerun 1, holdover 2, acquiring 3, frequencyLocked 4, phaseAligned 5.
CLOCK_STATES = {
    Servo.WARMUP: 1, Servo.FREERUN: 1, Servo.FAILED: 1, Servo.HOLDOVER: 2, Servo.EXTENDED_HOLDOVER: 2,
    Servo.BRIDGING: 2, Servo.FAST_TRACK: 3, Servo.LOCKED: 5,
}  # fmt: skip
PORT_STATES = {
    "initializing": 1, "faulty": 2, "disabled": 3, "listening": 4, "preMaster": 5, "master": 6, "passive": 7,
    "uncalibrated": 8, "slave": 9,
}  # fmt: skip
MASTER_ROLE, END_TO_END, UNICAST, MULTICAST, IPV4 = 1, 1, 1, 2, 1
TRANSPORT_IPV4, TRANSPORT_ETHERNET = (*CLOCKS, 12, 1), (*CLOCKS, 12, 3)
ENCAPSULATION_ETHERNET = (*CLOCKS, 13, 1)


def ptpbase_tables() -> list[Table]:
    return [*_system(), *_data_sets(), *_ports(), _associates()]


def clock_index(device: Device) -> Index:
    return (device.domain, ORDINARY_CLOCK, INSTANCE)


def _system() -> list[Table]:
    return [
        Table((*PTPBASE, 1, 1, 1, 1), lambda device: [((device.domain, INSTANCE), device)], {
            3: lambda device: mib.gauge(device.made_of.ptp_ports),
        }),
        Table((*PTPBASE, 1, 1, 2, 1), lambda _: [((ORDINARY_CLOCK,), None)], {2: lambda _: mib.gauge(1)}),
        scalars((*PTPBASE, 1, 1), {3: lambda device: mib.integer(TELECOM if _telecom(device.profile) else VENDOR_SPECIFIC)}),
    ]  # fmt: skip


def _telecom(profile: str) -> bool:
    return profile.startswith(("G.82", "telecom"))


def _clock_table(number: int, columns: dict[int, Any]) -> Table:
    return Table((*CLOCKS, number, 1), lambda device: [(clock_index(device), device)], columns)


def _data_sets() -> list[Table]:
    return [
        _clock_table(1, {
            4: lambda _: mib.gauge(0), 5: lambda _: interval(0), 6: lambda _: interval(0),
        }),
        _clock_table(2, {
            4: lambda device: mib.octets(device.clock_identity + bytes(2)),
            5: lambda _: mib.truth(False), 6: lambda _: mib.integer(0), 7: lambda _: mib.integer(0),
            8: lambda device: mib.octets(device.clock_identity),
            9: lambda device: mib.gauge(device.priority1), 10: lambda device: mib.gauge(device.priority2),
            11: lambda device: mib.integer(device.clock_class), 12: lambda device: mib.integer(device.clock_accuracy),
            13: lambda device: mib.gauge(device.offset_scaled_log_variance),
        }),
        _clock_table(3, {
            4: lambda _: mib.truth(True), 5: lambda device: mib.octets(device.clock_identity),
            6: lambda device: mib.gauge(device.priority1), 7: lambda device: mib.gauge(device.priority2),
            8: lambda _: mib.truth(False),
            9: lambda device: mib.integer(device.clock_class), 10: lambda device: mib.integer(device.clock_accuracy),
            11: lambda device: mib.integer(device.offset_scaled_log_variance),
        }),
        _clock_table(4, {
            4: lambda device: mib.integer(CLOCK_STATES[device.servo]),
            5: lambda device: mib.counter64(_sent(device)), 6: lambda device: mib.counter64(_sent(device) // 2),
        }),
        _clock_table(5, {
            4: lambda _: mib.truth(True), 5: lambda device: mib.integer(device.utc_offset_s),
            6: lambda device: mib.truth(device.leap == "delete"), 7: lambda device: mib.truth(device.leap == "insert"),
            8: lambda device: mib.truth(device.clock_class in (6, 7)),
            9: lambda device: mib.truth(device.clock_class in (6, 7, 140, 150, 160)),
            10: lambda _: mib.truth(True),
            11: lambda device: mib.integer(SOURCE_GPS if device.has_time_reference else SOURCE_INTERNAL),
        }),
    ]  # fmt: skip


def _sent(device: Device) -> int:
    """Sixteen Syncs a second to each client."""
    return int(device.uptime_s) * 16 * device.client_total


def interval(value_ns: int) -> Value:
    """TimeInterval as most agents send it: 2**-16 ns in eight octets."""
    return mib.octets((value_ns << 16).to_bytes(8, "big", signed=True))


def _port_rows(device: Device) -> Rows:
    return [((*clock_index(device), port.number), port) for port in device.ports]


def _ports() -> list[Table]:
    return [
        Table((*CLOCKS, 7, 1), _port_rows, {
            5: lambda port: mib.text(port.name), 6: lambda _: mib.integer(MASTER_ROLE),
            7: lambda _: mib.truth(True), 10: lambda port: mib.gauge(port.clients),
        }),
        Table((*CLOCKS, 8, 1), _port_rows, {
            5: lambda port: mib.text(port.name),
            6: lambda port: mib.octets(port.clock_identity + port.number.to_bytes(2, "big")),
            7: lambda _: mib.integer(-3), 8: lambda _: mib.integer(3), 9: lambda _: mib.integer(-4),
            10: lambda _: mib.integer(-4), 11: lambda _: mib.integer(0), 12: lambda _: mib.integer(END_TO_END),
            13: lambda _: interval(0), 14: lambda _: mib.gauge(300), 15: lambda _: mib.integer(2),
        }),
        Table((*CLOCKS, 9, 1), _port_rows, {
            5: lambda port: mib.text(port.name), 6: lambda port: mib.integer(PORT_STATES[port.state]),
            7: lambda _: mib.integer(MASTER_ROLE), 8: lambda port: mib.integer(port.number),
            9: lambda port: mib.object_id(TRANSPORT_ETHERNET if _multicast(port) else TRANSPORT_IPV4),
            10: lambda _: mib.object_id(ENCAPSULATION_ETHERNET),
            11: lambda port: mib.integer(MULTICAST if _multicast(port) else UNICAST),
            12: lambda port: mib.integer(MULTICAST if _multicast(port) else UNICAST),
            13: lambda _: mib.counter64(0), 14: lambda _: mib.counter64(0),
        }),
    ]  # fmt: skip


def _multicast(port: SimulatedPort) -> bool:
    return port.profile == "G.8275.1"


def _client_rows(device: Device) -> LazyRows:
    """The clients of all ports, each numbered within its port."""
    clock = clock_index(device)
    starts = [0, *accumulate(port.clients for port in device.ports)]

    def index_of(place: int) -> Index:
        port = bisect_right(starts, place)
        return (*clock, port, place - starts[port - 1] + 1)

    return LazyRows(device.clients, index_of)


def _associates() -> Table:
    return Table((*CLOCKS, 11, 1), _client_rows, {
        6: lambda _: mib.integer(IPV4),
        7: lambda client: mib.octets(ipaddress.IPv4Address(client.address).packed),
        8: lambda _: mib.counter64(1_000_000), 9: lambda _: mib.counter64(500_000),
        10: lambda _: mib.counter64(0), 11: lambda _: mib.counter64(0),
    })  # fmt: skip
