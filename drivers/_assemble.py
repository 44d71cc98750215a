"""What the objects of one poll say together: decoded cells -> one GrandmasterSample. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from timesyncd.drivers._decoders import Raw, Unknown, Value, printable
from timesyncd.drivers._profiles import Index, Oid, Profile, SampleField, shown
from timesyncd.sample import Alarm, ClockState, GrandmasterSample, Satellite

Rows = Mapping[Oid, Mapping[Index, Raw]]
"""By the OID of the object: what came, by index; a scalar's index is (0,)."""

#: With fewer healthy satellites a receiver fixes no time.
MIN_SATELLITES = 4

#: What a T-GM's class says where nothing else tells the state (IEEE 1588-2019 table 4, G.8275.1 table 3).
_STATE_OF_CLASS = {
    6: ClockState.LOCKED, 13: ClockState.LOCKED,
    7: ClockState.HOLDOVER, 14: ClockState.HOLDOVER, 135: ClockState.HOLDOVER,
    52: ClockState.HOLDOVER_OUT_OF_SPEC, 187: ClockState.HOLDOVER_OUT_OF_SPEC,
    **dict.fromkeys(range(140, 166), ClockState.HOLDOVER_OUT_OF_SPEC),
    248: ClockState.FREERUN,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Cell:
    profile: Profile
    index: Index
    value: Value


@dataclass(frozen=True, slots=True)
class _Row:
    profile: Profile
    index: Index
    values: dict[str, Value]

    def integer(self, column: str) -> int | None:
        value = self.values.get(column)
        return value if isinstance(value, int) else None

    def text(self, column: str) -> str | None:
        value = self.values.get(column)
        return None if value is None else shown(value)


class _Decoded:
    """Every cell by the field it fills, the profiles of higher precedence first."""

    def __init__(self, profiles: Sequence[Profile], rows: Rows) -> None:
        """Raises Malformed when a value has the wrong type."""
        self.unknown: list[str] = []
        self._cells: dict[str, list[_Cell]] = {}
        for profile in profiles:
            for entry in profile.object:
                for index, raw in sorted(rows.get(entry.oid, {}).items()):
                    self._add(entry.field, _Cell(profile, index, entry.decode(raw, index)))

    def _add(self, field: str, cell: _Cell) -> None:
        self._cells.setdefault(field, []).append(cell)
        if isinstance(cell.value, Unknown):
            self.note(f"{field}={cell.value.text}")

    def note(self, note: str) -> None:
        if note not in self.unknown:
            self.unknown.append(note)

    def first(self, field: str) -> Any:
        """The first value that says something; a standby module's "unknown" gives way to the next row."""
        values = [c.value for c in self._cells.get(field, []) if not isinstance(c.value, Unknown) and c.value != ""]
        return next((value for value in values if value != ClockState.UNKNOWN), values[0] if values else None)

    def rows(self, kind: str) -> list[_Row]:
        """The list `kind` of the first profile that serves it, joined by index."""
        columns = {f.removeprefix(f"{kind}."): cells for f, cells in self._cells.items() if f.startswith(f"{kind}.")}
        profile = next((cell.profile for cells in columns.values() for cell in cells), None)
        joined: dict[Index, _Row] = {}
        for column, cells in columns.items():
            for cell in cells:
                if cell.profile is profile:
                    row = joined.setdefault(cell.index, _Row(profile, cell.index, {}))
                    row.values[column] = cell.value
        return [joined[index] for index in sorted(joined)]


def assemble(
    source: str, boottime_ns: int, profiles: Sequence[Profile], rows: Rows, notes: Sequence[str] = ()
) -> GrandmasterSample:
    """`profiles` in order of precedence; `notes` join the sample's `unknown`. Raises Malformed for a wrong type."""
    decoded = _Decoded(profiles, rows)
    fields: dict[str, Any] = {field: decoded.first(field) for field in get_args(SampleField)}
    fields["clock_state"] = _clock_state(decoded)
    fields["phase_offset_ns"] = _phase_offset_ns(decoded)
    if decoded.first("utc_offset_valid") is False:
        fields["utc_offset_s"] = None
    satellites, references = _satellites(decoded), decoded.rows("references")
    alarm_rows = decoded.rows("alarms")
    alarms = _alarms(alarm_rows, decoded)
    antenna_fault = any(_means_antenna(alarm, alarm_rows[0].profile) for alarm in alarms or ())
    selected = (_reference_name(row) for row in references if row.text("qualification") == "selected")
    return GrandmasterSample(
        source=source,
        boottime_ns=boottime_ns,
        profiles=tuple(profile.name for profile in profiles),
        gnss_state="antenna_fault" if antenna_fault else _gnss_state(satellites, references),
        satellites=satellites,
        selected_reference=next(selected, None),
        alarms=alarms,
        unknown=(*decoded.unknown, *notes),
        **fields,
    )


def _clock_state(decoded: _Decoded) -> ClockState | None:
    state = decoded.first("clock_state")
    if state is not None:
        return ClockState(state)
    if any(note.startswith("clock_state=") for note in decoded.unknown):
        return ClockState.UNKNOWN
    return _STATE_OF_CLASS.get(decoded.first("clock_class"))


def _phase_offset_ns(decoded: _Decoded) -> int | None:
    """A clock that follows no other (stepsRemoved 0) measures no offset from a parent, whatever the data set holds."""
    phase_offset_ns: int | None = decoded.first("phase_offset_ns")
    if phase_offset_ns is None and decoded.first("steps_removed"):
        phase_offset_ns = decoded.first("offset_from_parent_ns")
    return phase_offset_ns


def _satellites(decoded: _Decoded) -> tuple[Satellite, ...] | None:
    """An empty table is "no satellites" only where another table of the receiver shows that it is served."""
    found = []
    rows = decoded.rows("satellites")
    for row in rows:
        number = row.integer("number")
        if number is None:
            decoded.note("satellites.number=missing")
            continue
        healthy = {"healthy": True, "unhealthy": False}.get(row.text("health") or "")
        found.append(Satellite(number, row.integer("cn0_db_hz"), healthy))
    return tuple(found) if rows or decoded.first("gnss_position_mode") is not None else None


def _alarms(rows: Sequence[_Row], decoded: _Decoded) -> tuple[Alarm, ...] | None:
    """The standing alarms; an event or a cleared alarm is none. A count without rows is told, not taken for silence."""
    count = decoded.first("alarm_count")
    if not rows and count != 0:
        if count is not None:
            decoded.note(f"alarms={count} counted, none listed")
        return None
    found = []
    for row in rows:
        alarm_id = row.integer("id")
        if alarm_id is None:
            decoded.note(f"alarms.id=missing ({row.text('text')})")
        elif row.text("severity") not in ("event", "clear") and alarm_id not in row.profile.event_alarms:
            found.append(_alarm(alarm_id, row))
    return tuple(found)


def _alarm(alarm_id: int, row: _Row) -> Alarm:
    severity = row.text("severity") or "unknown"
    return Alarm(alarm_id, row.integer("index") or 0, severity, row.text("text") or "", row.text("since"))


def _reference_name(row: _Row) -> str:
    """Its column, else the text in the table's index: length, then one arc a character."""
    length_at = 1
    return row.text("name") or printable(bytes(arc & 0xFF for arc in row.index[length_at + 1 :]))


def _means_antenna(alarm: Alarm, profile: Profile) -> bool:
    return alarm.id in profile.antenna_alarms or "antenna" in alarm.text.lower()


def _gnss_state(satellites: Sequence[Satellite] | None, references: Sequence[_Row]) -> str | None:
    """none, tracking or locked: derived, since no device of the family serves one object that says it."""
    if satellites is None:
        return None
    if not satellites:
        return "none"
    usable = any(
        row.text("qualification") in ("qualified", "selected")
        and any(word in _reference_name(row).upper() for word in ("GNSS", "GPS"))
        for row in references
    )
    healthy = sum(satellite.healthy is True for satellite in satellites)
    return "locked" if usable and healthy >= MIN_SATELLITES else "tracking"
