"""The one TOML file -> pydantic models. Every error is one line: file, key path, value, and what is allowed."""

from __future__ import annotations

import os
import socket
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from timesyncd.bound import DEFAULT_HOLDOVER_AFTER_NS, DEFAULT_VOID_AFTER_NS
from timesyncd.errors import ConfigError
from timesyncd.grandmaster import HoldoverCurve
from timesyncd.source_settings import SourceSettings
from timesyncd.system_bound import EnsembleSettings

DEFAULT_PATH = Path("/etc/timesyncd/timesyncd.toml")
DEFAULT_RUNTIME_DIR = Path("/run/timesyncd")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
#: Also of rates. A thousand seconds bound nothing, and sums of larger numbers leave the 64 bits of segment and messages.
Nanoseconds = Annotated[int, Field(ge=0, le=10**12)]


class Section(BaseModel):
    """A table of the file: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Secret(Section):
    """Never in the file itself: `file` holds it, or the environment variable `env` does."""

    file: Path | None = None
    env: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Secret:
        if (self.file is None) == (self.env is None):
            raise ValueError("give either file or env")
        return self

    def reveal(self) -> SecretStr:
        """Raises ConfigError when the file cannot be read or the variable is not set."""
        if self.env is not None and self.env not in os.environ:
            raise ConfigError(f"secret: environment variable {self.env} is not set")
        try:
            return SecretStr(self.file.read_text().rstrip("\n") if self.file else os.environ[self.env or ""])
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"secret: {self.file} cannot be read: {error}") from error


class Node(Section):
    name: Name = Field(default_factory=lambda: socket.gethostname().split(".")[0])
    runtime_dir: Path = DEFAULT_RUNTIME_DIR


_ASSUMED = SourceSettings()


class Bounds(Section):
    """What is assumed of a clock source; docs/error-bound.md explains each."""

    local_drift_ppb: Nanoseconds = _ASSUMED.local_drift_ppb
    drift_floor_ppb: Nanoseconds = _ASSUMED.drift_floor_ppb
    grandmaster_rate_ppb: Nanoseconds = _ASSUMED.grandmaster_rate_ppb
    delay_filter_length: Annotated[int, Field(ge=1, le=1000)] = _ASSUMED.delay_filter_length
    boundary_clock_error_ns: Nanoseconds | None = _ASSUMED.boundary_clock_error_ns
    asymmetry_uncertainty_ns: Nanoseconds = _ASSUMED.asymmetry_uncertainty_ns
    path_minimum_ns: Nanoseconds = _ASSUMED.path_minimum_ns
    grandmaster_holdover_budget_ns: Nanoseconds = _ASSUMED.grandmaster_holdover_budget_ns
    utc_offset_s: int = _ASSUMED.utc_offset_s
    holdover_after_ns: Annotated[int, Field(gt=0)] = DEFAULT_HOLDOVER_AFTER_NS
    void_after_ns: Annotated[int, Field(gt=0)] = DEFAULT_VOID_AFTER_NS

    def settings(self) -> EnsembleSettings:
        """The same for the model."""
        assumed = self.model_dump(exclude={"holdover_after_ns", "void_after_ns"})
        return EnsembleSettings(SourceSettings(**assumed), self.holdover_after_ns, self.void_after_ns)


class Source(Section):
    """A clock source of this node. `options` are the driver's own keys, which stand in the same table."""

    name: Name
    driver: str
    bounds: Bounds = Bounds()
    options: BaseModel


class MeasuredInput(Section):
    """What feeds a PPS or PTP input whose time error the unit measures: another unit, and how far the two ways differ."""

    unit: Name
    uncertainty_ns: Nanoseconds


class Grandmaster(Section):
    name: Name
    driver: str
    identities: list[Annotated[str, Field(pattern=r"^[0-9a-f]{6}\.[0-9a-f]{4}\.[0-9a-f]{6}$")]] = []
    inputs: dict[str, MeasuredInput] = {}
    oscillator: Name | None = None
    options: BaseModel


class Oscillator(Section):
    """How far an oscillator takes a grandmaster off UTC in holdover: points of (seconds since it began, ns)."""

    holdover: list[tuple[Annotated[int, Field(ge=0, le=10**9)], Nanoseconds]]

    @property
    def curve(self) -> HoldoverCurve:
        return HoldoverCurve(tuple(self.holdover))

    @field_validator("holdover")
    @classmethod
    def _rises(cls, points: list[tuple[int, int]]) -> list[tuple[int, int]]:
        HoldoverCurve(tuple(points))
        return points


class SnmpUser(Section):
    """A user of SNMP v3, authPriv. Keys of AES-192 and AES-256 are stretched as net-snmp does it, with -c as Cisco does."""

    name: Annotated[str, Field(min_length=1, max_length=32)]
    auth: Literal["sha1", "sha224", "sha256", "sha384", "sha512"] = "sha256"
    auth_pass: Secret
    priv: Literal["aes128", "aes192", "aes256", "aes192-c", "aes256-c"] = "aes128"
    priv_pass: Secret
    context: str = ""


class Traps(Section):
    """Listen for the traps and informs of the `[[grandmaster]]` units; systemd may pass the socket of a port below 1024."""

    host: str = "0.0.0.0"
    port: Annotated[int, Field(ge=0, le=65535)] = 162
    communities: list[Secret] = []
    users: list[SnmpUser] = []


class Syslog(Section):
    """Listen for the syslog lines of the `[[grandmaster]]` units, over UDP."""

    host: str = "0.0.0.0"
    port: Annotated[int, Field(ge=0, le=65535)] = 514


class Mqtt(Section):
    host: Annotated[str, Field(min_length=1)]
    port: Port = 1883
    username: str | None = None
    password: Secret | None = None
    topic_prefix: Annotated[str, Field(pattern=r"^[^#+/]+(/[^#+/]+)*$")] = "timesyncd/v1"
    state_every_s: Annotated[float, Field(gt=0, le=3600)] = 2.0


class Store(Section):
    path: Path = Path("/var/lib/timesyncd/history.sqlite")
    keep_days: Annotated[float, Field(gt=0)] = 7


class ClockBound(Section):
    """Also write a segment that clients of AWS ClockBound (v2) understand."""

    path: Path = Path("/var/run/clockbound/shm0")


class Web(Section):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8319


class Hub(Section):
    """This daemon joins the jobs' marks. `nodes` are the nodes expected; `window_steps` the steps that a signal looks back on."""

    nodes: list[Name] = []
    window_steps: Annotated[int, Field(ge=1, le=10_000)] = 100


class Config(Section):
    """The whole file. A section that is there switches its part on, be it empty."""

    node: Node = Node()
    source: list[Source] = []
    grandmaster: list[Grandmaster] = []
    oscillator: dict[Name, Oscillator] = {}
    traps: Traps | None = None
    syslog: Syslog | None = None
    mqtt: Mqtt | None = None
    store: Store | None = None
    web: Web | None = None
    clockbound: ClockBound | None = None
    hub: Hub | None = None

    def curve_of(self, unit: Grandmaster) -> HoldoverCurve | None:
        """Its holdover budget; None: none is configured."""
        return self.oscillator[unit.oscillator].curve if unit.oscillator is not None else None


def secrets_of(part: object, place: str = "") -> Iterator[tuple[str, Secret]]:
    """Every secret below, by the path of its key."""
    match part:
        case Secret():
            yield place, part
        case BaseModel():
            for name in type(part).model_fields:
                below = "" if name == "options" else f".{name}"
                yield from secrets_of(getattr(part, name), (place + below).lstrip("."))
        case list() | tuple():
            for index, each in enumerate(part):
                yield from secrets_of(each, f"{place}[{index}]")


OptionsOf = Callable[[str], type[BaseModel]]
"""A driver's Options model by the driver's name; raises ConfigError when there is no such driver."""


def load(path: Path, options_of: OptionsOf) -> Config:
    """Read the file. Raises ConfigError with one line for the first thing that is wrong."""
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    return parse(data, options_of, str(path))


def parse(data: dict[str, Any], options_of: OptionsOf, origin: str) -> Config:
    """The same from a parsed table; `origin` names it in errors."""
    data = dict(data)
    for key, model in (("source", Source), ("grandmaster", Grandmaster)):
        tables = data.get(key, [])
        if not isinstance(tables, list):
            raise ConfigError(f"{origin}: {key} = {tables!r}: write it as [[{key}]]")
        data[key] = [_with_options(t, model, options_of, f"{origin}: {key}[{i}]") for i, t in enumerate(tables)]
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {_one_line(error.errors()[0])}") from error
    _no_duplicates(config, origin)
    _oscillators_known(config, origin)
    return config


def _with_options(table: Any, model: type[Section], options_of: OptionsOf, where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} = {table!r}: a table is wanted")
    own = {key: value for key, value in table.items() if key in model.model_fields and key != "options"}
    rest = {key: value for key, value in table.items() if key not in own}
    if not isinstance(own.get("driver"), str):
        raise ConfigError(
            f"{where}.driver = {own.get('driver')!r}: the name of a driver is wanted (timesyncd drivers lists them)"
        )
    try:
        options = options_of(own["driver"])
    except ConfigError as error:
        raise ConfigError(f"{where}.driver = {own['driver']!r}: {error}") from error
    try:
        own["options"] = options.model_validate(rest)
    except ValidationError as error:
        allowed = sorted((set(model.model_fields) - {"options"}) | set(options.model_fields))
        raise ConfigError(_one_line(error.errors()[0], where, allowed)) from error
    return own


def _one_line(error: ErrorDetails, where: str = "", allowed: list[str] | None = None) -> str:
    parts = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in error["loc"])
    path = (where + parts).lstrip(".")
    if error["type"] == "extra_forbidden":
        keys = ", ".join(allowed or _keys_at(error["loc"][:-1]))
        return f"{path} = {error['input']!r}: unknown key; allowed here: {keys}"
    if error["type"] == "missing":
        return f"{path}: missing"
    if isinstance(error["input"], dict) and error["type"] == "value_error":  # what keys of one table mean together
        return f"{path}: {error['msg'].removeprefix('Value error, ')}"
    return f"{path} = {error['input']!r}: {error['msg']}"


def _key(part: str) -> str:
    """A quoted key may hold a line end; an error has one line."""
    return part if part.isprintable() else repr(part)


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    """The keys allowed in the table at this place of the file."""
    model: Any = Config
    for part in location:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return sorted(set(model.model_fields) - {"options"})


def _no_duplicates(config: Config, origin: str) -> None:
    names = [source.name for source in config.source] + [unit.name for unit in config.grandmaster]
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(
                f"{origin}: name = {name!r}: given {times} times; names of sources and grandmasters are unique"
            )


def _oscillators_known(config: Config, origin: str) -> None:
    for index, unit in enumerate(config.grandmaster):
        if unit.oscillator is not None and unit.oscillator not in config.oscillator:
            known = ", ".join(sorted(config.oscillator)) or "none"
            raise ConfigError(
                f"{origin}: grandmaster[{index}].oscillator = {unit.oscillator!r}: there is no "
                f"[oscillator.{unit.oscillator}]; those there are: {known}"
            )
