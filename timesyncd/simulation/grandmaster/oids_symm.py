"""The vendor's shared tables (SYMM-COMMON-*): PTP, NTP, GNSS, PPS+ToD, SyncE, date and time, network, extensions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from timesyncd.simulation.grandmaster import mib
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.hardware import (
    CHASSIS,
    CLOCK_MODULE,
    GNSS_IF_INDEX,
    MANUFACTURER,
    SimulatedClient,
)
from timesyncd.simulation.grandmaster.mib import Rows, Table, numbered, scalars
from timesyncd.simulation.grandmaster.oids_standard import by_index
from timesyncd.simulation.grandmaster.wire import Oid, Value

SYMM_COMMON: Oid = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5)
PTP, NTP, NTP_CLIENT = (*SYMM_COMMON, 1, 1), (*SYMM_COMMON, 1, 2), (*SYMM_COMMON, 1, 3, 1)
GNSS, PPS_TOD, SYNCE = (*SYMM_COMMON, 2, 1), (*SYMM_COMMON, 2, 3), (*SYMM_COMMON, 2, 8)
DATE_AND_TIME, NETWORK = (*SYMM_COMMON, 3, 1), (*SYMM_COMMON, 4, 1)
ENTITY_EXTENSION, INTERFACE_EXTENSION = (*SYMM_COMMON, 5, 1), (*SYMM_COMMON, 6, 1)
CLIENT_LIST = (*PTP, 1, 2, 1)
SATELLITES = (*GNSS, 1, 2, 1)

PROFILES = {
    "telecom2008": 1,
    "default": 2,
    "hybrid": 3,
    "G.8265.1": 4,
    "ethernetDefault": 5,
    "G.8275.1": 6,
    "G.8275.2": 7,
}
POSITION_MODES = {"surveying": 1, "hold": 2, "manual": 3}
NTP_LEAPS = {
    "none": "No warning", "insert": "Leap insertion", "delete": "Leap deletion", "unsynchronized": "Not in sync",
}  # fmt: skip
ENABLE, DISABLE = 1, 2
YES, NO = 1, 2
_PTP_TIMESCALE = 3
_GPS_GLONASS_GALILEO = 23
#: Column of a configuration: log2 of seconds between two messages to everybody.
_ANNOUNCE, _SYNC, _DELAY = -3, -4, -4


def symm_common_tables() -> list[Table]:
    return [
        *_ptp_status(), *_ptp_configuration(), _ntp(), _ntp_client(), *_gnss_status(), _gnss_configuration(), _pps_tod(),
        _synce(), date_and_time(), _network(), _entities(), _interfaces(),
    ]  # fmt: skip


def _port_rows(device: Device) -> Rows:
    """By ifIndex and a local index, of which each port has one."""
    return [((port.number, 1), port) for port in device.ports]


def _enabled(port: Any) -> Value:
    return mib.integer(ENABLE if port.enabled else DISABLE)


def _ptp_status() -> list[Table]:
    status = Table((*PTP, 1, 1, 1), lambda device: [(at, (device, port)) for at, port in _port_rows(device)], {
        2: lambda row: _enabled(row[1]),
        3: lambda row: mib.text(row[1].clock_identity.hex(":").upper()),
        4: lambda row: mib.integer(PROFILES[row[1].profile]),
        5: lambda row: mib.text(str(row[0].clock_class)),
        6: lambda row: mib.text(f"0x{row[0].clock_accuracy:02X}"),
        7: lambda _: mib.integer(_PTP_TIMESCALE),
        8: lambda row: mib.integer(row[1].clients),
        9: lambda row: mib.text(str(row[1].load_percent)),
    })  # fmt: skip
    clients = Table(CLIENT_LIST, lambda device: numbered(list(enumerate(device.clients, start=1))), {
        1: lambda row: mib.integer(row[0]),
        2: lambda row: mib.text(_client_line(row[1])),
    })  # fmt: skip
    return [status, clients]


def _client_line(client: SimulatedClient) -> str:
    mode = "static" if client.static else "dynamic"
    intervals = f"{client.log_announce} {client.log_sync} {client.log_delay}"
    identity = client.clock_identity.hex(":").upper()
    return f"sys eth{client.port} {client.address} {client.vlan} 0 {identity} {mode} {intervals}"


def _ptp_configuration() -> list[Table]:
    configuration = Table((*PTP, 2, 1, 1), lambda device: [(at, (device, port)) for at, port in _port_rows(device)], {
        2: lambda row: mib.integer(PROFILES[row[1].profile]),
        4: lambda row: mib.integer(row[0].priority1),
        5: lambda row: mib.integer(row[0].priority2),
        6: lambda row: mib.integer(row[1].domain),
        9: lambda row: _enabled(row[1]),
        10: lambda row: mib.integer(row[1].max_clients),
        14: lambda _: mib.integer(ENABLE),
        17: lambda _: mib.integer(DISABLE),
        18: lambda _: mib.integer(_PTP_TIMESCALE),
        20: lambda _: mib.integer(90),
    })  # fmt: skip
    unicast = Table((*PTP, 2, 2, 1), _port_rows, {
        2: lambda _: mib.integer(ENABLE),
        3: lambda _: mib.integer(300),
    })  # fmt: skip
    multicast = Table((*PTP, 2, 3, 1), _port_rows, {
        2: lambda _: mib.integer(_ANNOUNCE),
        3: lambda _: mib.integer(_SYNC),
        4: lambda _: mib.integer(_DELAY),
        7: lambda _: mib.integer(60),
    })  # fmt: skip
    return [configuration, unicast, multicast]


def _ntp() -> Table:
    return Table((*NTP, 1, 1, 1), lambda device: [((1, 1), device.ntp)], {
        2: lambda _: mib.integer(ENABLE),
        3: lambda _: mib.text("server"),
        4: lambda ntp: mib.text(NTP_LEAPS[ntp.leap]),
        5: lambda ntp: mib.text(str(ntp.stratum)),
        6: lambda _: mib.text("0"),
        7: lambda ntp: mib.text(str(ntp.load_percent)),
        8: lambda _: mib.text("4"),
    })  # fmt: skip


def _ntp_client() -> Table:
    """The grandmaster itself asks no server."""
    return scalars(NTP_CLIENT, {
        1: lambda _: mib.text("0"),
        2: lambda _: mib.text(""),
        3: lambda _: mib.text("disabled"),
        4: lambda _: mib.text(""),
        5: lambda _: mib.text("No warning"),
        6: lambda _: mib.text("16"),
        7: lambda _: mib.text(""),
    })  # fmt: skip


def _gnss_row(device: Device) -> Rows:
    return [((GNSS_IF_INDEX, 1), device)]


def _satellite_rows(device: Device) -> Rows:
    return numbered(device.satellites, prefix=(GNSS_IF_INDEX,))


def _gnss_status() -> list[Table]:
    port = Table((*GNSS, 1, 1, 1), _gnss_row, {
        2: lambda _: mib.text("GNSS-1"),
        3: lambda device: mib.integer(YES if device.has_time_reference else NO),
        4: lambda device: mib.integer(POSITION_MODES[device.receiver.position_mode]),
    })  # fmt: skip
    satellites = Table(SATELLITES, _satellite_rows, {
        2: lambda satellite: mib.integer(satellite.number),
        3: lambda satellite: mib.integer(satellite.cn0_db_hz),
        4: lambda satellite: mib.integer(1 if satellite.healthy else 2),
        5: lambda satellite: mib.integer(satellite.azimuth_deg),
        6: lambda satellite: mib.integer(satellite.elevation_deg),
        7: lambda _: mib.text("GNSS-1"),
    })  # fmt: skip
    position = Table((*GNSS, 1, 3, 1), _gnss_row, {
        2: lambda device: mib.text(_angle("NS", 2, device.receiver.position.latitude_deg)),
        3: lambda device: mib.text(_angle("EW", 3, device.receiver.position.longitude_deg)),
        4: lambda device: mib.text(f"{device.receiver.position.height_m:+07.1f}"),
    })  # fmt: skip
    return [port, satellites, position]


def _angle(sides: str, digits: int, degrees: float) -> str:
    """As N52:31:12.00."""
    hundredths = round(abs(degrees) * 360_000)
    minutes, seconds = divmod(hundredths, 6_000)
    whole, minutes = divmod(minutes, 60)
    return f"{sides[degrees < 0]}{whole:0{digits}}:{minutes:02}:{seconds / 100:05.2f}"


def _gnss_configuration() -> Table:
    return Table((*GNSS, 2, 1, 1), _gnss_row, {
        3: lambda _: mib.integer(_GPS_GLONASS_GALILEO),
        5: lambda device: mib.integer(device.receiver.elevation_mask_deg),
        6: lambda device: mib.integer(device.receiver.cable_delay_ns),
    })  # fmt: skip


def _pps_tod() -> Table:
    """The input exists and is not used."""
    return Table((*PPS_TOD, 1, 1, 1), lambda device: [((GNSS_IF_INDEX + 10, 1), device)], {
        2: lambda _: mib.integer(0),
        4: lambda _: mib.text(""),
    })  # fmt: skip


def _synce() -> Table:
    return Table((*SYNCE, 1, 1, 1), _port_rows, {
        2: _enabled,
        3: lambda _: mib.text("QL-DNU"),
        4: lambda _: mib.text("QL-PRC"),
    })  # fmt: skip


def date_and_time() -> Table:
    return scalars(DATE_AND_TIME + (1,), {
        2: lambda device: mib.text(f"{datetime.fromtimestamp(device.unix_s, UTC):%Y-%m-%d,%H:%M:%S}"),
        3: lambda device: mib.text(f"{_LEAP_PENDING[device.leap]}, {device.utc_offset_s}"),
    })  # fmt: skip


_LEAP_PENDING = {"none": "no leap pending", "insert": "leap insertion pending", "delete": "leap deletion pending"}


def _network() -> Table:
    return Table((*NETWORK, 1, 1, 1), lambda device: by_index(device.interfaces), {
        2: lambda row: mib.integer(row.speed_mbps),
        3: lambda row: mib.integer(1 if row.up else 2),
    })  # fmt: skip


def _entities() -> Table:
    return Table((*ENTITY_EXTENSION, 1, 1), lambda device: by_index(device.modules), {
        1: lambda _: mib.integer(1),
        2: lambda _: mib.text(""),
        3: lambda module: mib.text("1.0" if module.index == CLOCK_MODULE else ""),
        4: lambda module: mib.integer(module.index - CHASSIS),
        9: lambda _: mib.text(MANUFACTURER),
    })  # fmt: skip


def _interfaces() -> Table:
    return Table((*INTERFACE_EXTENSION, 1, 1), lambda device: by_index(device.interfaces), {
        1: lambda _: mib.text("ethernet"),
        3: lambda _: mib.integer(CLOCK_MODULE),
        5: lambda _: mib.integer(1),
    })  # fmt: skip
