"""Profiles: what a family of grandmasters serves over SNMP, as data (profiles/*.toml)."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from timesyncd.drivers._decoders import DECODERS, Raw, Unknown, Value
from timesyncd.errors import ConfigError, Malformed
from timesyncd.sample import ClockState

Oid = tuple[int, ...]
Index = tuple[int, ...]

#: The first profile that knows a field fills it: what a family says of itself before what a standard table says.
SHIPPED = ("tp5000e", "ptpbase", "symm-common", "system")

SampleField = Literal[
    "sys_descr", "sys_name", "sys_object_id", "uptime_s", "model", "serial", "firmware", "clock_identity", "clock_state",
    "clock_class", "clock_accuracy", "offset_scaled_log_variance", "phase_offset_ns", "utc_offset_s", "time_source",
]  # fmt: skip
#: Not in the sample: what the derived fields need.
EvidenceField = Literal[
    "utc_offset_valid", "steps_removed", "offset_from_parent_ns", "gnss_position_mode", "alarm_count"
]
#: One column of a list: the objects of one list are joined by their common index.
RowField = Literal[
    "satellites.number", "satellites.cn0_db_hz", "satellites.health",
    "references.name", "references.qualification",
    "alarms.id", "alarms.index", "alarms.severity", "alarms.text", "alarms.since",
]  # fmt: skip
Confidence = Literal["proven", "inferred", "sister", "unproven"]

_FIELDS = [name for literal in (SampleField, EvidenceField, RowField) for name in get_args(literal)]


def parse_oid(text: object) -> Oid:
    """Raises ValueError when it is not dotted numbers below 1 (iso), where every MIB is."""
    if not isinstance(text, str) or re.fullmatch(r"1\.[0-3](\.\d{1,10}){1,126}", text, re.ASCII) is None:
        raise ValueError("an OID in dotted numbers is wanted, as 1.3.6.1.2.1.1.1")
    return tuple(int(part) for part in text.split("."))


def format_oid(oid: Oid) -> str:
    return ".".join(map(str, oid))


def _known_decoder(name: str) -> str:
    if name not in DECODERS:
        raise ValueError(f"allowed: {', '.join(DECODERS)}")
    return name


def _known_field(name: str) -> str:
    if name not in _FIELDS:
        raise ValueError(f"allowed: {', '.join(_FIELDS)}")
    return name


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Object(_Table):
    """
    One object of a MIB.

    `oid` names a scalar without its trailing .0, or a column of a table, whose index arcs `index` names. `values` is the
    enumeration of this OID and of no other. `confidence` is about the TimeProvider 4100 and 4500: *proven* (every agent
    serves it), *inferred*, *sister* (as sister models serve it), *unproven* (standard, but nobody has seen it served).
    """

    oid: Annotated[Oid, BeforeValidator(parse_oid)]
    index: tuple[str, ...] = ()
    decoder: Annotated[str, AfterValidator(_known_decoder)]
    values: dict[int, str] = {}
    unit: str | None = None
    field: Annotated[str, AfterValidator(_known_field)]
    confidence: Confidence
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _is_consistent(self) -> Object:
        if (self.decoder == "enum") != bool(self.values):
            raise ValueError("values belong to the decoder enum, and it needs them")
        if "." in self.field and not self.index:
            raise ValueError(f"{self.field} is a column: name its index")
        if self.field == "clock_state" and not set(self.values.values()) <= set(ClockState):
            raise ValueError(f"values of clock_state: allowed: {', '.join(ClockState)}")
        return self

    def decode(self, raw: Raw, index: Index) -> Value:
        """Raises Malformed, naming the object, when a value of the wrong type came."""
        try:
            return DECODERS[self.decoder](raw, self.values)
        except Malformed as error:
            raise Malformed(f"{self.field} ({format_oid(self.oid + index)}): {error}") from error


class Profile(_Table):
    """
    A family of agents. It is served where one of `proved_by` has anything below it: sysObjectID decides nothing, since the
    same model changes it between firmware versions.

    `event_alarms` are the alarm ids that report a good turn and are no fault; `antenna_alarms` those that mean the antenna.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    title: str
    proved_by: Annotated[tuple[Annotated[Oid, BeforeValidator(parse_oid)], ...], Field(min_length=1)]
    event_alarms: frozenset[int] = frozenset()
    antenna_alarms: frozenset[int] = frozenset()
    object: Annotated[tuple[Object, ...], Field(min_length=1)]

    def filling(self, field: str) -> tuple[Object, ...]:
        return tuple(entry for entry in self.object if entry.field == field)


def load(name: str) -> Profile:
    """A shipped profile by its name, or any other by the path of its file. Raises ConfigError with one line."""
    shipped = "/" not in name and not name.endswith(".toml")
    if shipped and name not in SHIPPED:
        raise ConfigError(f"profile {name!r}: unknown; shipped are {', '.join(SHIPPED)}; another is given by its path")
    return _read(files("timesyncd.drivers") / "profiles" / f"{name}.toml" if shipped else Path(name))


def _read(path: Traversable) -> Profile:
    try:
        return Profile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"profile {path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"profile {path}: {_one_line(error)}") from error
    except ValueError as error:
        raise ConfigError(f"profile {path}: not TOML: {error}") from error


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place: Any = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    return f"{place} = {first['input']!r:.80}: {first['msg']}"


def shown(value: Value) -> str:
    return value.text if isinstance(value, Unknown) else str(value)
