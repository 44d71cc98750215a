"""
Profiles: the objects that a family of grandmasters serves over SNMP and the notifications that it sends, as data (profiles/*.toml).

`FIELDS` are the neutral fields that a profile's objects may fill, with their types; `ALLOWED_WORDS` are the values of enumerated fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from timesyncd.config import read_file, toml_tables, validation_text
from timesyncd.drivers.timeprovider._decoders import DECODERS, KINDS, Unknown, Value, undecodable
from timesyncd.errors import ConfigError, Malformed
from timesyncd.sample import ClockState, PortState, Position
from timesyncd.snmp.values import Index, Oid, Opaque, Raw, format_oid, parse_oid

#: Fields of the sample itself.
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

#: Fields from which fields of the sample are derived. `parent_...` are a PTP clock's values of the grandmaster that it follows, which
#: is the clock itself if it follows none.
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

#: Columns of lists: the objects of one list are joined by their index.
ROWS: dict[str, type] = {
    "satellites.number": int,
    "satellites.cn0_db_hz": int,
    "satellites.health": str,
    "satellites.azimuth_deg": int,
    "satellites.elevation_deg": int,
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

#: The values of enumerated fields.
ALLOWED_WORDS: dict[str, frozenset[str]] = {
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


def accepts(field: str, decoder: str) -> bool:
    """Whether the decoder's values have the field's type."""
    return KINDS[decoder] is FIELDS[field]


#: The first profile with a field fills it, so that a family's own objects come before the standard tables. The first profile also
#: defines the alarm ids of a grandmaster that serves no profile with them: the S650 is the best guess for a TimeProvider 4100.
DEFAULT = ("s650", "tp5000e", "tp5000", "ptpbase", "ntpv4", "symm-common", "system")
SHIPPED = ("tp4100", "tp4500", *DEFAULT)

Confidence = Literal["proven", "inferred", "sister", "unproven"]
"""
Evidence for the TimeProvider 4100 and 4500: *proven* (every agent serves it), *inferred*, *sister* (sister models serve it),
*unproven* (a standard or a guess; no recording shows it).
"""
Group = Literal["state", "table", "inventory"]
"""How often an object is read: the state at each poll, tables each minute, the inventory each hour (by default)."""

DottedOid = Annotated[Oid, BeforeValidator(parse_oid)]
Antenna = Literal["open", "short", "fault"]
VariableRole = Literal["module", "id", "index", "severity", "action", "at", "text", "sequence"]


def _known_decoder(name: str) -> str:
    if name not in DECODERS:
        raise ValueError(f"allowed: {', '.join(DECODERS)}")
    return name


def _known_field(name: str) -> str:
    if name not in FIELDS:
        raise ValueError(f"allowed: {', '.join(FIELDS)}")
    return name


def _regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Object(_Table):
    """
    One object of a MIB.

    `oid` is a scalar without its trailing .0, or a column of a table, whose index arcs `index` names. `values` is the enumeration of
    this OID only. `patterns` map free text to words: the first regular expression that matches, ignoring case, gives the word.
    """

    oid: DottedOid
    index: tuple[str, ...] = ()
    group: Group = "table"
    decoder: Annotated[str, AfterValidator(_known_decoder)]
    values: dict[int, str] = {}
    patterns: tuple[tuple[Annotated[str, AfterValidator(_regex)], str], ...] = ()
    unit: str | None = None
    field: Annotated[str, AfterValidator(_known_field)]
    confidence: Confidence
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _is_consistent(self) -> Object:
        if (self.decoder == "enum") != bool(self.values):
            raise ValueError("values belong to the decoder enum, and it needs them")
        if self.patterns and self.decoder != "text":
            raise ValueError("patterns belong to the decoder text")
        if self.field in ROWS and not self.index:
            raise ValueError(f"{self.field} is a column: name its index")
        if not accepts(self.field, self.decoder):
            fitting = (name for name in DECODERS if accepts(self.field, name))
            raise ValueError(f"decoder of {self.field}: allowed: {', '.join(fitting)}")
        return self._with_known_words()

    def _with_known_words(self) -> Object:
        words, known = {*self.values.values(), *(word for _, word in self.patterns)}, ALLOWED_WORDS.get(self.field)
        if known is not None and (not words or not words <= known):
            kind = "values" if self.decoder == "enum" else "patterns"
            raise ValueError(f"{kind} of {self.field}: allowed: {', '.join(sorted(known))}")
        return self

    def decode(self, raw: Raw, index: Index) -> Value:
        """Raises Malformed, naming the object, for a value of the wrong type. An opaque value is undecodable in every object."""
        if isinstance(raw, Opaque):
            return undecodable(raw)
        try:
            value = DECODERS[self.decoder](raw, self.values)
        except Malformed as error:
            raise Malformed(f"{self.field} ({format_oid(self.oid + index)}): {error}") from error
        return self._word(raw, value) if self.patterns and isinstance(value, str) else value

    def _word(self, raw: Raw, text: str) -> Value:
        found = (word for pattern, word in self.patterns if re.search(pattern, text, re.IGNORECASE))
        return next(found, undecodable(raw))


class AlarmIds(_Table):
    """
    The meaning of a family's alarm ids; severities come from the grandmaster itself. `events` are changes that are not faults,
    `antenna` are antenna faults; `fan` and `power` are about these parts.
    """

    confidence: Confidence
    source: Annotated[str, Field(min_length=1)]
    names: dict[int, str]
    events: frozenset[int] = frozenset()
    antenna: dict[int, Antenna] = {}
    fan: frozenset[int] = frozenset()
    power: frozenset[int] = frozenset()


class NotificationType(_Table):
    """
    A trap or inform. `oid` is its own OID or, with `id_in_oid`, that OID without its last arc, which is the alarm's id.

    `variables` maps roles to the OIDs of variables, in any order. `actions` is the enumeration of the variable with the action; "state"
    derives the action from the severity: clear, or else raise. An "event" (`kind`) is never an active alarm.
    """

    oid: DottedOid
    id_in_oid: bool = False
    kind: Literal["alarm", "event"]
    text: str = ""
    variables: dict[VariableRole, DottedOid] = {}
    severities: dict[int, str] = {}
    actions: dict[int, Literal["state", "clear", "raise", "event"]] = {}
    confidence: Confidence
    source: Annotated[str, Field(min_length=1)]


class Profile(_Table):
    """
    A family of agents. An agent serves it if one of `proved_by` has an object below it; sysObjectID is not used, since it changes
    between firmware versions of one model. `composes` names profiles that follow it in the order of precedence.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    title: str
    composes: tuple[str, ...] = ()
    proved_by: tuple[DottedOid, ...] = ()
    alarms: AlarmIds | None = None
    object: tuple[Object, ...] = ()
    notification: tuple[NotificationType, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Profile:
        if not (self.object or self.notification or self.alarms or self.composes):
            raise ValueError("the profile is empty; give object, notification, alarms or composes")
        if self.object and not self.proved_by:
            raise ValueError("proved_by is missing; give the subtree that shows that the objects are served")
        return self

    def filling(self, field: str) -> tuple[Object, ...]:
        return tuple(entry for entry in self.object if entry.field == field)


def load(name: str) -> Profile:
    """A shipped profile by its name, or any other by the path of its file. Raises ConfigError with one line."""
    shipped = "/" not in name and not name.endswith(".toml")
    if shipped and name not in SHIPPED:
        raise ConfigError(f"profile {name!r}: unknown; allowed: {', '.join(SHIPPED)}, or the path of a profile's file")
    return _shipped(name) if shipped else _read(Path(name))


@cache
def _shipped(name: str) -> Profile:
    """Cached, since all grandmasters use the same few profiles."""
    with as_file(files("timesyncd.drivers.timeprovider") / "profiles" / f"{name}.toml") as path:
        return _read(path)


def load_all(names: Iterable[str]) -> list[Profile]:
    """These profiles and those that they compose, each once, in order of precedence. Raises ConfigError."""
    found: dict[str, Profile] = {}

    def add(name: str) -> None:
        profile = load(name)
        if profile.name not in found:
            found[profile.name] = profile
            for part in profile.composes:
                add(part)

    for name in names:
        add(name)
    return list(found.values())


def _read(path: Path) -> Profile:
    try:
        return Profile.model_validate(toml_tables(read_file(path)))
    except OSError as error:
        raise ConfigError(f"profile {path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"profile {path}: {validation_text(error, model=Profile)}") from error
    except ValueError as error:
        raise ConfigError(f"profile {path}: not TOML: {error}") from error


def value_text(value: Value) -> str:
    return value.text if isinstance(value, Unknown) else str(value)


@dataclass(frozen=True, slots=True)
class Proof:
    """A row of the table of evidence for the TimeProvider 4100 and 4500: one object or one kind of notification."""

    profile: str
    what: str
    oid: str
    confidence: Confidence
    source: str


def proven_table(names: Sequence[str] = SHIPPED) -> list[Proof]:
    """The evidence for each entry of the profiles. Raises ConfigError."""
    return [proof for profile in map(load, names) for proof in _proofs(profile)]


def _proofs(profile: Profile) -> Iterable[Proof]:
    for entry in profile.object:
        yield Proof(profile.name, entry.field, format_oid(entry.oid), entry.confidence, entry.source)
    for notification in profile.notification:
        oid = format_oid(notification.oid) + (".ID" if notification.id_in_oid else "")
        yield Proof(
            profile.name, f"notification ({notification.kind})", oid, notification.confidence, notification.source
        )
    if profile.alarms is not None:
        yield Proof(profile.name, "alarm ids", "", profile.alarms.confidence, profile.alarms.source)
