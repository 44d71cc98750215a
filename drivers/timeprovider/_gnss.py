"""What a unit says of its receiver: satellites, position, antenna, and the state that follows from them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from timesyncd.drivers.timeprovider._decoders import printable
from timesyncd.drivers.timeprovider._evidence_part import Evidence, Row
from timesyncd.sample import Alarm, InputReference, Position, Satellite

#: With fewer healthy satellites a receiver fixes no time.
MIN_SATELLITES = 4
#: timeSource (IEEE 1588-2019, table 6).
GNSS_TIME_SOURCE = 0x20


def satellites(evidence: Evidence) -> tuple[Satellite, ...] | None:
    """An empty table is "no satellites" only where another table of the receiver shows that it is served."""
    rows = evidence.rows("satellites")
    if rows:
        found = [_satellite(row) for row in rows]
        if None in found:
            evidence.note("satellites.number=missing")
        return tuple(satellite for satellite in found if satellite is not None)
    listed = evidence.first("satellite_list")
    if listed is not None:
        return _listed(listed, evidence)
    return () if evidence.first("gnss_position_mode") is not None else None


def _satellite(row: Row) -> Satellite | None:
    number = row.integer("number")
    healthy = {"healthy": True, "unhealthy": False}.get(row.text("health") or "")
    return None if number is None else Satellite(number, row.integer("cn0_db_hz"), healthy)


def _listed(text: str, evidence: Evidence) -> tuple[Satellite, ...] | None:
    """A line as "2,X5,Y1,CGPS,X7,Y2,CGPS": the count says how many there are, also where the line was cut."""
    count = re.match(r"\s*(\d{1,3})(?!\d)", text)
    if count is None:
        evidence.note(f"satellite_list=undecodable({text!r:.60})")
        return None
    found = tuple(Satellite(int(number), None, None) for number in re.findall(r"\bX(\d{1,3})\b", text))
    if len(found) != int(count[1]):
        evidence.note(f"satellites={count[1]} counted, {len(found)} listed")
    return found


def position(evidence: Evidence) -> Position | None:
    for row in evidence.rows("antennas"):
        latitude_deg, longitude_deg = row.number("latitude"), row.number("longitude")
        if latitude_deg is not None and longitude_deg is not None and abs(latitude_deg) <= 90:
            return Position(latitude_deg, longitude_deg, row.number("height"))
    found: Position | None = evidence.first("position")
    return found


def antenna(alarms: Sequence[tuple[Alarm, Row]], status: dict[str, str]) -> str | None:
    """ok, open, short or fault. An alarm says more than the hardware status; no alarm at all says nothing."""
    for alarm, row in alarms:
        ids = row.profile.alarms
        if ids is not None and alarm.id in ids.antenna:
            return ids.antenna[alarm.id]
        if "antenna" in alarm.text.lower():
            return _antenna_word(alarm.text, "fault")
    told = next((value for key, value in status.items() if "antenna" in key.lower()), None)
    return None if told is None else "ok" if told.lower() in ("ok", "normal") else _antenna_word(told, "fault")


def _antenna_word(text: str, otherwise: str) -> str:
    return next((word for word in ("open", "short") if word in text.lower()), otherwise)


def gnss_state(antenna: str | None, told: str | None, seen: Sequence[Satellite] | None, is_usable: bool) -> str | None:
    """
    antenna_fault, none, tracking or locked. `told` is what the unit itself says, where it says anything. Else derived: locked
    needs a usable GNSS input and enough healthy satellites.
    """
    if antenna in ("open", "short", "fault"):
        return "antenna_fault"
    if told is not None or seen is None:
        return told
    if not seen:
        return "none"
    healthy = sum(satellite.healthy is True for satellite in seen)
    return "locked" if is_usable and healthy >= MIN_SATELLITES else "tracking"


def is_usable(references: Sequence[InputReference] | None, is_locked: bool, time_source: int | None) -> bool:
    """A GNSS input is selected or qualified; where no table says so, the clock is locked and names GNSS as its source of time."""
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


def _reference_name(row: Row) -> str:
    """Its column, else the text in the table's index: length, then one arc a character."""
    length_at = 1
    return row.text("name") or printable(bytes(arc & 0xFF for arc in row.index[length_at + 1 :]))
