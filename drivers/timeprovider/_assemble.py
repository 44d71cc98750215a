"""What a unit says of its parts: interfaces, PTP ports, sensors, fans and power supplies. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from timesyncd.drivers.timeprovider._evidence_part import Evidence, Row
from timesyncd.sample import Alarm, Interface, PtpPort, Sensor

_SENSORS = {
    "volts AC": ("voltage", "V"), "volts DC": ("voltage", "V"), "amperes": ("current", "A"), "watts": ("power", "W"),
    "hertz": ("frequency", "Hz"), "celsius": ("temperature", "C"), "percent RH": ("humidity", "%"), "rpm": ("fan", "rpm"),
    "cmm": ("airflow", "m3/min"),
}  # fmt: skip
_UNITS = {
    "C": "temperature",
    "mA": "current",
    "A": "current",
    "V": "voltage",
    "mV": "voltage",
    "W": "power",
    "rpm": "fan",
}
_UNITS_SCALE = 9
"""entPhySensorScale of the unit itself; each step up or down is a factor of 1000."""


def interfaces(evidence: Evidence) -> tuple[Interface, ...] | None:
    rows = evidence.rows("interfaces")
    found = tuple(Interface(_interface_name(row), _is_up(row), row.integer("speed_mbps")) for row in rows)
    return found if rows else None


def _interface_name(row: Row) -> str:
    return row.word("name") or row.word("description") or f"if{row.arc('ifIndex')}"


def _is_up(row: Row) -> bool | None:
    return {"up": True, "down": False}.get(row.text("state") or "")


def ports(evidence: Evidence) -> tuple[PtpPort, ...] | None:
    """What several tables say of one interface is one port; the first profile that knows a field fills it."""
    names = {row.arc("ifIndex"): row.word("name") for row in evidence.rows("interfaces")}
    found: dict[str, PtpPort] = {}
    filled_by: dict[str, set[str]] = {}
    rows = evidence.all_rows("ports")
    for row in rows:
        name = _port_name(row, names)
        if row.profile.name in filled_by.get(name, ()):  # several PTP ports on one interface
            name = f"{name}/{row.index[-1]}"
        filled_by.setdefault(name, set()).add(row.profile.name)
        port = _port(name, row)
        found[name] = _completed(found[name], port) if name in found else port
    return tuple(found.values()) if rows else None


def _port_name(row: Row, names: dict[int | None, str | None]) -> str:
    if_index = row.integer("if_index") or row.arc("ifIndex")
    return (names.get(if_index) if if_index else None) or row.word("name") or f"port {if_index or row.index[-1]}"


def _port(name: str, row: Row) -> PtpPort:
    domain = row.integer("domain")
    return PtpPort(
        name=name,
        state=row.text("state"),
        enabled=row.flag("enabled"),
        profile=row.text("profile"),
        domain=row.arc("domain") if domain is None else domain,
        clock_identity=row.word("clock_identity"),
        clients=row.integer("clients"),
        max_clients=row.integer("max_clients"),
        client_load_percent=row.integer("client_load_percent"),
    )


def _completed(port: PtpPort, other: PtpPort) -> PtpPort:
    missing = [field.name for field in fields(PtpPort) if getattr(port, field.name) is None]
    return replace(port, **{name: getattr(other, name) for name in missing})


def sensors(
    evidence: Evidence, alarms: Sequence[tuple[Alarm, Row]], status: dict[str, str]
) -> tuple[Sensor, ...] | None:
    """Of ENTITY-SENSOR, of the hardware's status text, and fans and power supplies that an alarm is about."""
    entities = [_entity(row, evidence) for row in evidence.rows("entities")]
    lines = [_of_line(key, value) for key, value in status.items() if "antenna" not in key.lower()]
    found = (*(sensor for sensor in entities if sensor is not None), *lines, *_alarmed(alarms))
    return found or None


def _entity(row: Row, evidence: Evidence) -> Sensor | None:
    """A sensor by its value; a fan or a power supply that has none, by its state."""
    name, part = row.word("name") or f"entity {row.index[-1]}", row.text("class")
    kind, unit = _SENSORS.get(row.text("sensor_type") or "", ("other", None))
    status = row.text("sensor_status")
    if "sensor_value" in row.values:
        value = _scaled(row, evidence) if status in (None, "ok") else None
        return Sensor(name, kind, value, unit, {"ok": True, "nonoperational": False}.get(status or ""))
    if part not in ("fan", "power supply"):
        return None
    is_ok = {"enabled": True, "disabled": False}.get(row.text("state") or "")
    return Sensor(name, "fan" if part == "fan" else "power", None, None, is_ok)


def _scaled(row: Row, evidence: Evidence) -> float | None:
    """The number in its unit (RFC 3433): scale is a power of 1000, precision counts decimal places."""
    value, scale, precision = (row.integer(f"sensor_{column}") for column in ("value", "scale", "precision"))
    if value is None:
        return None
    if scale is None or not 1 <= scale <= 17 or precision is None or not -8 <= precision <= 9:
        evidence.note(f"entities.sensor_value={value} of scale {scale}, precision {precision}")
        return None
    power = 3 * (scale - _UNITS_SCALE) - max(precision, 0)
    return value * 10.0**power if power >= 0 else value / 10.0**-power


def status_lines(evidence: Evidence) -> dict[str, str]:
    """The status text's lines as "GPS Current : 24mA"; of the same key in several modules' texts the first counts."""
    found: dict[str, str] = {}
    for text in evidence.all("hardware_status"):
        for line in str(text).splitlines():
            key, separator, value = line.partition(":")
            if separator and key.strip():
                found.setdefault(key.strip(), value.strip())
    return found


def _of_line(key: str, value: str) -> Sensor:
    """A number with its unit, or a rating; "ok" is what rates well."""
    measured = re.fullmatch(r"([+-]?\d{1,9}(?:\.\d{1,6})?) ?(mA|A|mV|V|W|C|rpm)", value)
    if measured:
        return Sensor(key, _UNITS[measured[2]], float(measured[1]), measured[2], None)
    kind = "power" if re.search(r"\d+ ?V\b|power|supply", key, re.IGNORECASE) else "other"
    return Sensor(key, kind, None, None, value.lower() in ("ok", "normal") if value else None)


def _alarmed(alarms: Sequence[tuple[Alarm, Row]]) -> Iterator[Sensor]:
    for alarm, row in alarms:
        ids = row.profile.alarms
        for kind, meant in (("fan", ids.fan), ("power", ids.power)) if ids is not None else ():
            if alarm.id in meant:
                yield Sensor(alarm.text or kind, kind, None, None, ok=False)
