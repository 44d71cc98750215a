"""Recorded rows of grandmasters, as their agents served them, and the sample that they make."""

from __future__ import annotations

from timesyncd.drivers.timeprovider._assemble import assemble
from timesyncd.drivers.timeprovider._profiles import DEFAULT, load
from timesyncd.sample import GrandmasterSample
from timesyncd.snmp.values import Index, Oid, Raw, parse_oid

Served = dict[str, dict[Index, Raw]]

TP5000E = "1.3.6.1.4.1.9070.1.2.5.7.1"
PTPBASE = "1.3.6.1.2.1.241.1.2"
SYMM_GNSS = "1.3.6.1.4.1.9070.1.2.5.2.1.1"
SYMM_PTP = "1.3.6.1.4.1.9070.1.2.5.1.1.1.1.1"
SYMM_PTP_CONFIG = "1.3.6.1.4.1.9070.1.2.5.1.1.2.1.1"
TP5000 = "1.3.6.1.4.1.9070.1.2.4.6"
S650 = "1.3.6.1.4.1.9070.1.2.5.7.8"
NTPV4 = "1.3.6.1.2.1.197.1.2"
ENTITY, SENSOR, ENTITY_STATE = "1.3.6.1.2.1.47.1.1.1.1", "1.3.6.1.2.1.99.1.1.1", "1.3.6.1.2.1.131.1.1.1"
IF_NAME, IF_STATE, IF_SPEED = "1.3.6.1.2.1.31.1.1.1.1", "1.3.6.1.2.1.2.2.1.8", "1.3.6.1.2.1.31.1.1.1.15"
SERVO = f"{TP5000E}.8.1.1.1.2"
CLOCK = (24, 1, 0)
HARDWARE = b"-48V-A : ok\n-48V-B : fail\nTemperature : 38.0C\nGPS Antenna : %s\nGPS Current : 24mA\nno key"


def sample(served: Served, profiles: tuple[str, ...] = DEFAULT) -> GrandmasterSample:
    rows: dict[Oid, dict[Index, Raw]] = {parse_oid(oid): values for oid, values in served.items()}
    return assemble("gm-a", 1, [load(name) for name in profiles], rows)


def alarm(row: int, **columns: Raw) -> Served:
    """One row of the TP5000E's alarm table; defaults are an active alarm."""
    values: dict[str, Raw] = {"id": 12, "index": 0, "since": b"2026-01-02,03:04:05", "severity": 4, "text": b"short"}
    numbers = {"id": 3, "index": 4, "since": 5, "severity": 6, "text": 7}
    return {f"{TP5000E}.2.1.1.{numbers[name]}": {(row,): raw} for name, raw in (values | columns).items()}


def sky(healthy: int, unhealthy: int = 0) -> Served:
    places = range(1, healthy + unhealthy + 1)
    return {
        f"{SYMM_GNSS}.2.1.2": {(9, place): 10 + place for place in places},
        f"{SYMM_GNSS}.2.1.3": {(9, place): 40 for place in places},
        f"{SYMM_GNSS}.2.1.4": {(9, place): 1 if place <= healthy else 2 for place in places},
    }


def reference(name: str, qualification: int) -> Served:
    index = (9, len(name), *name.encode())
    return {f"{TP5000E}.6.1.1.1": {index: name.encode()}, f"{TP5000E}.6.1.1.3": {index: qualification}}


def scalar(raw: Raw) -> dict[Index, Raw]:
    return {(0,): raw}
