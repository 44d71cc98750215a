"""The neutral fields that a profile's objects may fill, the kind of value that each takes, and its words where they are closed."""

from __future__ import annotations

from timesyncd.drivers.timeprovider._decoders import KINDS
from timesyncd.sample import ClockState, PortState, Position

#: Of the sample itself.
SAMPLE: dict[str, type] = {
    **dict.fromkeys(
        ("sys_descr", "sys_name", "sys_object_id", "model", "serial", "firmware", "oscillator", "clock_state", "clock_identity",
         "selected_reference", "leap", "gnss_state", "gnss_position_mode", "ntp_mode", "ntp_leap"), str
    ),
    **dict.fromkeys(
        ("uptime_s", "engine_boots", "phase_offset_ns", "clock_class", "clock_accuracy", "offset_scaled_log_variance",
         "priority1", "priority2", "domain", "utc_offset_s", "time_source", "steps_removed", "ntp_stratum"), int
    ),
    "time_traceable": bool,
    "frequency_traceable": bool,
    "position": Position,
}  # fmt: skip

#: Not in the sample: what its derived fields need. `parent_...` is what a PTP clock knows of the grandmaster that it follows,
#: which is itself where it follows none.
EVIDENCE: dict[str, type] = {
    "utc_offset_valid": bool,
    "leap59": bool,
    "leap61": bool,
    "offset_from_parent_ns": int,
    "parent_clock_identity": str,
    "parent_clock_class": int,
    "parent_clock_accuracy": int,
    "parent_offset_scaled_log_variance": int,
    "parent_priority1": int,
    "parent_priority2": int,
    "alarm_count": int,
    "satellite_list": str,
    "hardware_status": str,
}

#: Columns of lists: the objects of one list are joined by their common index.
ROWS: dict[str, type] = {
    "satellites.number": int,
    "satellites.cn0_db_hz": int,
    "satellites.health": str,
    "antennas.latitude": float,
    "antennas.longitude": float,
    "antennas.height": float,
    "references.name": str,
    "references.qualification": str,
    "ports.name": str,
    "ports.if_index": int,
    "ports.state": str,
    "ports.enabled": bool,
    "ports.profile": str,
    "ports.domain": int,
    "ports.clock_identity": str,
    "ports.clients": int,
    "ports.max_clients": int,
    "ports.client_load_percent": int,
    "alarms.id": int,
    "alarms.index": int,
    "alarms.severity": str,
    "alarms.text": str,
    "alarms.since": str,
    "interfaces.name": str,
    "interfaces.description": str,
    "interfaces.state": str,
    "interfaces.speed_mbps": int,
    "entities.name": str,
    "entities.class": str,
    "entities.state": str,
    "entities.sensor_type": str,
    "entities.sensor_scale": int,
    "entities.sensor_precision": int,
    "entities.sensor_value": int,
    "entities.sensor_status": str,
}

FIELDS = {**SAMPLE, **EVIDENCE, **ROWS}

_LEAP = frozenset({"none", "insert", "delete"})

#: Fields that take none but these words.
WORDS: dict[str, frozenset[str]] = {
    "clock_state": frozenset(ClockState),
    "leap": _LEAP,
    "gnss_state": frozenset({"none", "tracking", "locked", "antenna_fault"}),
    "satellites.health": frozenset({"healthy", "unhealthy"}),
    "references.qualification": frozenset({"disabled", "disqualified", "qualified", "selected"}),
    "ports.state": frozenset(state.name.lower() for state in PortState),
    "alarms.severity": frozenset({"critical", "major", "minor", "warning", "event", "clear"}),
    "interfaces.state": frozenset({"up", "down", "unknown"}),
    "entities.state": frozenset({"enabled", "disabled", "testing", "unknown"}),
    "entities.sensor_status": frozenset({"ok", "unavailable", "nonoperational"}),
}


def takes(field: str, decoder: str) -> bool:
    """Whether what the decoder makes is of the field's kind."""
    return KINDS[decoder] is FIELDS[field]
