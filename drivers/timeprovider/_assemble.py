"""
Assembles the decoded cells of one grandmaster into a GrandmasterSample: its parts, its GNSS receiver, its clock and alarms. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from timesyncd.drivers.timeprovider._decoders import printable
from timesyncd.drivers.timeprovider._evidence import Evidence, Rows, TableRow
from timesyncd.drivers.timeprovider._profiles import SAMPLE, Profile
from timesyncd.sample import (
    Alarm,
    ClockState,
    GrandmasterSample,
    InputReference,
    Interface,
    Position,
    PtpPort,
    Satellite,
    Sensor,
)

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
_GOOD_RATINGS = ("ok", "normal", "good")
_UNITS_SCALE = 9
"""entPhySensorScale of the base unit; each step up or down is a factor of 1000."""


def interfaces(evidence: Evidence) -> tuple[Interface, ...] | None:
    rows = evidence.rows("interfaces")
    found = tuple(Interface(_interface_name(row), _is_up(row), row.integer("speed_mbps")) for row in rows)
    return found if rows else None


def _interface_name(row: TableRow) -> str:
    return row.word("name") or row.word("description") or f"if{row.arc('ifIndex')}"


def _is_up(row: TableRow) -> bool | None:
    return {"up": True, "down": False}.get(row.text("state") or "")


def ports(evidence: Evidence) -> tuple[PtpPort, ...] | None:
    """The PTP ports. Rows of several tables about one interface are one port; the first profile with a field fills it."""
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


def _port_name(row: TableRow, names: dict[int | None, str | None]) -> str:
    if_index = row.integer("if_index") or row.arc("ifIndex")
    return (names.get(if_index) if if_index else None) or row.word("name") or f"port {if_index or row.index[-1]}"


def _port(name: str, row: TableRow) -> PtpPort:
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
    evidence: Evidence, alarms: Sequence[tuple[Alarm, TableRow]], status: dict[str, str]
) -> tuple[Sensor, ...] | None:
    """The sensors of ENTITY-SENSOR and of the hardware's status text, and the fans and power supplies that alarms name."""
    entities = [_entity(row, evidence) for row in evidence.rows("entities")]
    lines = [_of_line(key, value) for key, value in status.items() if "antenna" not in key.lower()]
    found = (*(sensor for sensor in entities if sensor is not None), *lines, *_alarmed(alarms))
    return found or None


def _entity(row: TableRow, evidence: Evidence) -> Sensor | None:
    """A sensor with a value, or a fan or power supply that has only a state."""
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


def _scaled(row: TableRow, evidence: Evidence) -> float | None:
    """The value in its unit (RFC 3433): scale is a power of 1000, precision is a number of decimal places."""
    value, scale, precision = (row.integer(f"sensor_{column}") for column in ("value", "scale", "precision"))
    if value is None:
        return None
    if scale is None or not 1 <= scale <= 17 or precision is None or not -8 <= precision <= 9:
        evidence.add_unknown(f"entities.sensor_value={value} with scale {scale} and precision {precision}")
        return None
    power = 3 * (scale - _UNITS_SCALE) - max(precision, 0)
    return value * 10.0**power if power >= 0 else value / 10.0**-power


def status_lines(evidence: Evidence) -> dict[str, str]:
    """The lines of the status text, such as "GPS Current : 24mA", by key; of a key in several modules' texts the first counts."""
    found: dict[str, str] = {}
    for text in evidence.all("hardware_status"):
        for line in str(text).splitlines():
            key, separator, value = line.partition(":")
            if separator and key.strip():
                found.setdefault(key.strip(), value.strip())
    return found


def _of_line(key: str, value: str) -> Sensor:
    """A sensor from a status line: a number with its unit, or a rating, of which "ok" and "normal" are good."""
    measured = re.fullmatch(r"([+-]?\d{1,9}(?:\.\d{1,6})?) ?(mA|A|mV|V|W|C|rpm)", value)
    if measured:
        return Sensor(key, _UNITS[measured[2]], float(measured[1]), measured[2], None)
    kind = "power" if re.search(r"\d+ ?V\b|power|supply", key, re.IGNORECASE) else "other"
    return Sensor(key, kind, None, None, value.lower() in _GOOD_RATINGS if value else None)


def _alarmed(alarms: Sequence[tuple[Alarm, TableRow]]) -> Iterator[Sensor]:
    for alarm, row in alarms:
        ids = row.profile.alarms
        for kind, meant in (("fan", ids.fan), ("power", ids.power)) if ids is not None else ():
            if alarm.id in meant:
                yield Sensor(alarm.text or kind, kind, None, None, ok=False)


_ANTENNA_FAULT = re.compile(r"open|short|fault|fail|alarm|error|bad|abnormal|over|under|not ok", re.IGNORECASE)

#: With fewer healthy satellites a receiver cannot determine the time.
MIN_SATELLITES = 4
#: timeSource (IEEE 1588-2019, table 6).
GNSS_TIME_SOURCE = 0x20


def satellites(evidence: Evidence) -> tuple[Satellite, ...] | None:
    """The satellites. An empty table means "no satellites" only if another object of the receiver shows that it is served."""
    rows = evidence.rows("satellites")
    if rows:
        found = [_satellite(row) for row in rows]
        if None in found:
            evidence.add_unknown("satellites.number=missing")
        return tuple(satellite for satellite in found if satellite is not None)
    listed = evidence.first("satellite_list")
    if listed is not None:
        return _listed(listed, evidence)
    return () if evidence.first("gnss_position_mode") is not None else None


def _satellite(row: TableRow) -> Satellite | None:
    number = row.integer("number")
    healthy = {"healthy": True, "unhealthy": False}.get(row.text("health") or "")
    if number is None:
        return None
    azimuth_deg = _within(row.integer("azimuth_deg"), 0, 360)
    return Satellite(
        number, row.integer("cn0_db_hz"), healthy, azimuth_deg, _within(row.integer("elevation_deg"), -90, 90)
    )


def _within(value: int | None, lowest: int, highest: int) -> int | None:
    """The value; None where no direction can have it, as a receiver may report of one that it does not know."""
    return value if value is not None and lowest <= value <= highest else None


def _listed(text: str, evidence: Evidence) -> tuple[Satellite, ...] | None:
    """Satellites from a line such as "2,X5,Y1,CGPS,X7,Y2,CGPS": the leading count holds even if the line was cut off."""
    count = re.match(r"\s*(\d{1,3})(?!\d)", text)
    if count is None:
        evidence.add_unknown(f"satellite_list=undecodable({text!r:.60})")
        return None
    found = tuple(Satellite(int(number), None, None) for number in re.findall(r"\bX(\d{1,3})\b", text))
    if len(found) != int(count[1]):
        evidence.add_unknown(f"satellites={count[1]} counted, {len(found)} listed")
    return found


def position(evidence: Evidence) -> Position | None:
    for row in evidence.rows("antennas"):
        latitude_deg, longitude_deg = row.number("latitude"), row.number("longitude")
        if latitude_deg is not None and longitude_deg is not None and abs(latitude_deg) <= 90:
            return Position(latitude_deg, longitude_deg, row.number("height"))
    found: Position | None = evidence.first("position")
    return found


def antenna(alarms: Sequence[tuple[Alarm, TableRow]], status: dict[str, str]) -> str | None:
    """
    The antenna's state: ok, open, short or fault; of several antennas the worst. An alarm takes precedence over the hardware status;
    no alarm proves nothing.
    """
    for alarm, row in alarms:
        ids = row.profile.alarms
        if ids is not None and alarm.id in ids.antenna:
            return ids.antenna[alarm.id]
        if "antenna" in alarm.text.lower():
            return _antenna_word(alarm.text)
    ratings = [_antenna_rating(value) for key, value in status.items() if "antenna" in key.lower()]
    return next((word for word in ("open", "short", "fault", "ok") if word in ratings), None)


def _antenna_word(text: str) -> str:
    return next((word for word in ("open", "short") if word in text.lower()), "fault")


def _antenna_rating(text: str) -> str | None:
    """None: no rating, such as the voltage or the current of the antenna, or an input without one."""
    if text.lower() in _GOOD_RATINGS:
        return "ok"
    return _antenna_word(text) if _ANTENNA_FAULT.search(text) else None


def gnss_state(
    antenna: str | None, reported: str | None, tracked: Sequence[Satellite] | None, is_usable: bool
) -> str | None:
    """
    antenna_fault, none, tracking or locked. An antenna fault comes first, then the state that the grandmaster reports; otherwise the
    state is derived: locked requires a usable GNSS input and enough healthy satellites.
    """
    if antenna in ("open", "short", "fault"):
        return "antenna_fault"
    if reported is not None or tracked is None:
        return reported
    if not tracked:
        return "none"
    healthy = sum(satellite.healthy is True for satellite in tracked)
    return "locked" if is_usable and healthy >= MIN_SATELLITES else "tracking"


def is_usable(references: Sequence[InputReference] | None, is_locked: bool, time_source: int | None) -> bool:
    """Whether a GNSS input is selected or qualified; without a table of inputs, whether the clock is locked with time source GNSS."""
    if references is None:
        return is_locked and time_source == GNSS_TIME_SOURCE
    return any(_is_usable_gnss(reference) for reference in references)


def _is_usable_gnss(reference: InputReference) -> bool:
    name = reference.name.upper()
    return reference.qualification in ("qualified", "selected") and ("GNSS" in name or "GPS" in name)


def references(evidence: Evidence) -> tuple[InputReference, ...] | None:
    rows = evidence.rows("references")
    found = tuple(InputReference(_reference_name(row), row.text("qualification") or "unknown") for row in rows)
    return found if rows else None


def _reference_name(row: TableRow) -> str:
    """The name column, or the text in the table's index: its length, then one arc per character."""
    length_at = 1
    return row.text("name") or printable(bytes(arc & 0xFF for arc in row.index[length_at + 1 :]))


#: The state that a T-GM's clock class implies if no object reports the state (IEEE 1588-2019 table 4, G.8275.1 table 3).
_STATE_OF_CLASS = {
    6: ClockState.LOCKED, 13: ClockState.LOCKED,
    7: ClockState.HOLDOVER, 14: ClockState.HOLDOVER, 135: ClockState.HOLDOVER,
    52: ClockState.HOLDOVER_OUT_OF_SPEC, 187: ClockState.HOLDOVER_OUT_OF_SPEC,
    **dict.fromkeys(range(140, 166), ClockState.HOLDOVER_OUT_OF_SPEC),
    248: ClockState.FREERUN,
}  # fmt: skip

#: Fields of the parent data set that describe the clock itself if it follows no other clock.
_OWN_PARENT = (
    "clock_identity", "clock_class", "clock_accuracy", "offset_scaled_log_variance", "priority1", "priority2",
)  # fmt: skip


def assemble(
    source: str, boottime_ns: int, profiles: Sequence[Profile], rows: Rows, notes: Sequence[str] = ()
) -> GrandmasterSample:
    """`profiles` are in order of precedence; `notes` join the sample's `unknown`."""
    evidence = Evidence(profiles, rows)
    fields = _direct(evidence)
    inputs, tracked, status = references(evidence), satellites(evidence), status_lines(evidence)
    alarms = _alarms(evidence)
    fields["antenna"] = antenna(alarms or (), status)
    usable = is_usable(inputs, fields["clock_state"] is ClockState.LOCKED, fields["time_source"])
    fields["gnss_state"] = gnss_state(fields["antenna"], fields["gnss_state"], tracked, usable)
    selected = next((reference.name for reference in inputs or () if reference.qualification == "selected"), None)
    fields["selected_reference"] = selected or fields["selected_reference"] or _followed_clock(evidence)
    fields["position"] = position(evidence)
    fields["ports"] = ports(evidence)
    fields["sensors"] = sensors(evidence, alarms or (), status)
    fields["interfaces"] = interfaces(evidence)
    return GrandmasterSample(
        source=source,
        boottime_ns=boottime_ns,
        profiles=tuple(profile.name for profile in profiles),
        references=inputs,
        satellites=tracked,
        alarms=None if alarms is None else tuple(alarm for alarm, _ in alarms),
        unknown=(*evidence.unknown, *notes),
        **fields,
    )


def _direct(evidence: Evidence) -> dict[str, Any]:
    """The fields that single objects fill, with their substitutes for one another."""
    fields: dict[str, Any] = {field: evidence.first(field) for field in SAMPLE}
    if fields["steps_removed"] == 0:
        for field in _OWN_PARENT:
            if fields[field] is None:
                fields[field] = evidence.first(f"parent_{field}")
    fields["clock_state"] = _clock_state(evidence, fields["clock_class"])
    fields["phase_offset_ns"] = _phase_offset_ns(evidence)
    fields["leap"] = _leap(evidence)
    if fields["domain"] is None:
        fields["domain"] = evidence.arc("clock_class", "domain")
    if evidence.first("utc_offset_valid") is False:
        fields["utc_offset_s"] = None
    return fields


def _clock_state(evidence: Evidence, clock_class: int | None) -> ClockState | None:
    state = evidence.first("clock_state")
    if state is not None:
        return ClockState(state)
    if evidence.is_undecoded("clock_state"):
        return ClockState.UNKNOWN
    return None if clock_class is None else _STATE_OF_CLASS.get(clock_class)


def _phase_offset_ns(evidence: Evidence) -> int | None:
    """The phase offset. A clock that follows no other (stepsRemoved 0) has no offset from a parent, whatever its data set contains."""
    phase_offset_ns: int | None = evidence.first("phase_offset_ns")
    if phase_offset_ns is None and evidence.first("steps_removed"):
        phase_offset_ns = evidence.first("offset_from_parent_ns")
    return phase_offset_ns


def _followed_clock(evidence: Evidence) -> str | None:
    parent = evidence.first("parent_clock_identity")
    return f"PTP {parent}" if parent is not None and evidence.first("steps_removed") else None


def _leap(evidence: Evidence) -> str | None:
    leap59, leap61 = evidence.first("leap59"), evidence.first("leap61")
    if leap59 and leap61:
        return "both"
    if leap59 is None and leap61 is None:
        reported: str | None = evidence.first("leap")
        return reported
    return "insert" if leap61 else "delete" if leap59 else "none"


def _alarms(evidence: Evidence) -> list[tuple[Alarm, TableRow]] | None:
    """The active alarms, without events and cleared alarms. A count without rows becomes a note: it does not mean "no alarm"."""
    count, rows = evidence.first("alarm_count"), evidence.rows("alarms")
    if not rows and count != 0:
        if count is not None:
            evidence.add_unknown(f"alarms={count} counted, none listed")
        return None
    found = []
    for row in rows:
        alarm = _alarm(row)
        if alarm is None:
            evidence.add_unknown(f"alarms.id=missing ({row.text('text')})")
        elif _is_active(alarm, row.profile):
            found.append((alarm, row))
    return found


def _alarm(row: TableRow) -> Alarm | None:
    alarm_id = row.integer("id")
    if alarm_id is None:
        return None
    ids = row.profile.alarms
    text = row.text("text") or (ids.names.get(alarm_id, "") if ids is not None else "")
    return Alarm(alarm_id, row.integer("index") or 0, row.text("severity") or "unknown", text, row.text("since"))


def _is_active(alarm: Alarm, profile: Profile) -> bool:
    is_event = profile.alarms is not None and alarm.id in profile.alarms.events
    return not is_event and alarm.severity not in ("event", "clear")
