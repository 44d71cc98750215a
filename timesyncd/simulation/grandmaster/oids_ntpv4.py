"""NTPv4-MIB (RFC 5907) of a server whose one reference is its own clock."""

from __future__ import annotations

from timesyncd.simulation.grandmaster import mib
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.mib import Table, scalars
from timesyncd.simulation.grandmaster.oids_standard import MIB_2
from timesyncd.simulation.grandmaster.wire import Oid, Value

NTPV4: Oid = (*MIB_2, 197, 1)

MODES = {
    "notRunning": 1, "notSynchronized": 2, "noneConfigured": 3, "syncToLocal": 4, "syncToRefclock": 5,
    "syncToRemoteServer": 6,
}  # fmt: skip
_LEAPS = {"insert": 1, "delete": -1}
_SERVER_MODE = 4
_ASSOCIATION = 1
#: Seconds from 1900 (NTP) to 1970 (Unix).
_ERA_0_S = 2_208_988_800


def ntpv4_tables() -> list[Table]:
    return [_info(), _status(), _modes(), *_associations()]


def _info() -> Table:
    return scalars((*NTPV4, 1), {
        1: lambda _: mib.text("ntpd"),
        2: lambda _: mib.text("4.2.8"),
        3: lambda _: mib.text("ntp.org"),
        4: lambda _: mib.text("Linux"),
        5: lambda _: mib.gauge(1_000_000),
        6: lambda _: mib.integer(-20),
        7: lambda _: mib.text("0.001 ms"),
    })  # fmt: skip


def _status() -> Table:
    return scalars((*NTPV4, 2), {
        1: lambda device: mib.integer(MODES[device.ntp.mode]),
        2: lambda device: mib.gauge(device.ntp.stratum),
        3: lambda device: mib.gauge(_ASSOCIATION if _synchronized(device) else 0),
        4: lambda device: mib.text("GPS" if _synchronized(device) else ""),
        5: lambda _: mib.text("0.000 ms"),
        6: lambda _: mib.gauge(1),
        7: lambda _: mib.text("0.001 ms"),
        8: lambda device: mib.ticks(int(device.uptime_s * 100)),
        9: lambda device: mib.octets(_date(device.unix_s) if _synchronized(device) else bytes(16)),
        10: lambda device: mib.octets(bytes(16) if device.leap_at_s is None else _date(device.leap_at_s)),
        11: lambda device: mib.integer(_LEAPS.get(device.leap, 0)),
        12: _requests,
        13: _requests,
        14: lambda _: mib.counter(0),
        15: lambda _: mib.counter(0),
    })  # fmt: skip


def _synchronized(device: Device) -> bool:
    return device.ntp.stratum < 16


def _requests(device: Device) -> Value:
    return mib.counter(device.ntp.requests)


def _date(unix_s: float) -> bytes:
    """NtpDateTime: era, seconds in it, and the fraction as 64 bits, which is left at 0."""
    era, seconds = divmod(int(unix_s) + _ERA_0_S, 2**32)
    return era.to_bytes(4, "big") + seconds.to_bytes(4, "big") + bytes(8)


def _modes() -> Table:
    return Table((*NTPV4, 2, 17, 1), lambda device: [((_SERVER_MODE,), device)], {2: _requests, 3: _requests})


def _associations() -> list[Table]:
    status = Table((*NTPV4, 3, 1, 1), lambda device: [((_ASSOCIATION,), device)], {
        2: lambda _: mib.text("GPS"),
        3: lambda _: mib.text("GPS"),
        4: lambda _: mib.integer(1),
        5: lambda _: mib.octets(bytes((127, 127, 20, 0))),
        6: lambda _: mib.text("0.000 ms"),
        7: lambda _: mib.gauge(0),
        8: lambda _: mib.text("0.001 ms"),
        9: lambda _: mib.text("0.000 ms"),
        10: lambda _: mib.text("0.001 ms"),
    })  # fmt: skip
    statistics = Table((*NTPV4, 3, 2, 1), lambda device: [((_ASSOCIATION,), device)], {
        1: lambda device: mib.counter(int(device.uptime_s)),
        2: lambda device: mib.counter(int(device.uptime_s)),
        3: lambda _: mib.counter(0),
    })  # fmt: skip
    return [status, statistics]
