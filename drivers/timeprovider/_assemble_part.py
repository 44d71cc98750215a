"""What the objects of one unit say together: decoded cells -> one GrandmasterSample. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timesyncd.drivers.timeprovider._assemble import interfaces, ports, sensors, status_lines
from timesyncd.drivers.timeprovider._evidence_part import Evidence, Row, Rows
from timesyncd.drivers.timeprovider._fields import SAMPLE
from timesyncd.drivers.timeprovider._gnss import antenna, gnss_state, is_usable, position, references, satellites
from timesyncd.drivers.timeprovider._profiles import Profile
from timesyncd.sample import Alarm, ClockState, GrandmasterSample

#: What a T-GM's class says where nothing else tells the state (IEEE 1588-2019 table 4, G.8275.1 table 3).
_STATE_OF_CLASS = {
    6: ClockState.LOCKED, 13: ClockState.LOCKED,
    7: ClockState.HOLDOVER, 14: ClockState.HOLDOVER, 135: ClockState.HOLDOVER,
    52: ClockState.HOLDOVER_OUT_OF_SPEC, 187: ClockState.HOLDOVER_OUT_OF_SPEC,
    **dict.fromkeys(range(140, 166), ClockState.HOLDOVER_OUT_OF_SPEC),
    248: ClockState.FREERUN,
}  # fmt: skip

#: What a clock that follows no other knows of its parent, it knows of itself.
_OWN_PARENT = (
    "clock_identity", "clock_class", "clock_accuracy", "offset_scaled_log_variance", "priority1", "priority2",
)  # fmt: skip


def assemble(
    source: str, boottime_ns: int, profiles: Sequence[Profile], rows: Rows, notes: Sequence[str] = ()
) -> GrandmasterSample:
    """`profiles` in order of precedence; `notes` join the sample's `unknown`. Raises Malformed for a wrong type."""
    evidence = Evidence(profiles, rows)
    fields = _direct(evidence)
    inputs, seen, status = references(evidence), satellites(evidence), status_lines(evidence)
    alarms = _alarms(evidence)
    fields["antenna"] = antenna(alarms or (), status)
    usable = is_usable(inputs, fields["clock_state"] is ClockState.LOCKED, fields["time_source"])
    fields["gnss_state"] = gnss_state(fields["antenna"], fields["gnss_state"], seen, usable)
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
        satellites=seen,
        alarms=None if alarms is None else tuple(alarm for alarm, _ in alarms),
        unknown=(*evidence.unknown, *notes),
        **fields,
    )


def _direct(evidence: Evidence) -> dict[str, Any]:
    """The fields that single objects fill, and what they fill in for one another."""
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
    if any(note.startswith("clock_state=") for note in evidence.unknown):
        return ClockState.UNKNOWN
    return None if clock_class is None else _STATE_OF_CLASS.get(clock_class)


def _phase_offset_ns(evidence: Evidence) -> int | None:
    """A clock that follows no other (stepsRemoved 0) measures no offset from a parent, whatever the data set holds."""
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
        evidence.note("leap=insert and delete at once")
        return None
    if leap59 is None and leap61 is None:
        told: str | None = evidence.first("leap")
        return told
    return "insert" if leap61 else "delete" if leap59 else "none"


def _alarms(evidence: Evidence) -> list[tuple[Alarm, Row]] | None:
    """The standing alarms; an event or a cleared alarm is none. A count without rows is told, not taken for silence."""
    count, rows = evidence.first("alarm_count"), evidence.rows("alarms")
    if not rows and count != 0:
        if count is not None:
            evidence.note(f"alarms={count} counted, none listed")
        return None
    found = []
    for row in rows:
        alarm = _alarm(row)
        if alarm is None:
            evidence.note(f"alarms.id=missing ({row.text('text')})")
        elif _stands(alarm, row.profile):
            found.append((alarm, row))
    return found


def _alarm(row: Row) -> Alarm | None:
    alarm_id = row.integer("id")
    if alarm_id is None:
        return None
    ids = row.profile.alarms
    text = row.text("text") or (ids.names.get(alarm_id, "") if ids is not None else "")
    return Alarm(alarm_id, row.integer("index") or 0, row.text("severity") or "unknown", text, row.text("since"))


def _stands(alarm: Alarm, profile: Profile) -> bool:
    is_event = profile.alarms is not None and alarm.id in profile.alarms.events
    return not is_event and alarm.severity not in ("event", "clear")
