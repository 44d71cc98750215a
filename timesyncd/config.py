"""
The one TOML file -> pydantic models. Every error is one line: file, key path, value, and what is allowed.

The parts of the configuration that stand alone: what every section is made of, and the sections of the services.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from timesyncd.bound import DEFAULT_HOLDOVER_AFTER_NS, DEFAULT_VOID_AFTER_NS
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import ConfigError
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.grandmaster import HoldoverCurve
from timesyncd.model.source import SourceSettings
from timesyncd.training.policy.text import parse_policy

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
#: Also of rates. A thousand seconds bound nothing, and sums of larger numbers leave the 64 bits of segment and messages.
Nanoseconds = Annotated[int, Field(ge=0, le=10**12)]


class Section(BaseModel):
    """A table of the file: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SecretSettings(Section):
    """Never in the file itself: `file` holds it, or the environment variable `env` does."""

    file: Path | None = None
    env: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> SecretSettings:
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


class SnmpUserSettings(Section):
    """A user of SNMP v3, authPriv. Keys of AES-192 and AES-256 are stretched as net-snmp does it, with -c as Cisco does."""

    name: Annotated[str, Field(min_length=1, max_length=32)]
    auth: Literal["sha1", "sha224", "sha256", "sha384", "sha512"] = "sha256"
    auth_pass: SecretSettings
    priv: Literal["aes128", "aes192", "aes256", "aes192-c", "aes256-c"] = "aes128"
    priv_pass: SecretSettings
    context: str = ""


class TrapSettings(Section):
    """Listen for the traps and informs of the `[[grandmaster]]` units; systemd may pass the socket of a port below 1024."""

    host: str = "0.0.0.0"
    port: Annotated[int, Field(ge=0, le=65535)] = 162
    communities: list[SecretSettings] = []
    users: list[SnmpUserSettings] = []


class SyslogSettings(Section):
    """Listen for the syslog lines of the `[[grandmaster]]` units, over UDP."""

    host: str = "0.0.0.0"
    port: Annotated[int, Field(ge=0, le=65535)] = 514


class MqttSettings(Section):
    """
    `port` None: 1883, or with `tls` 8883. `hubs` names those that must have stored what this node sends before its outbox is
    cut; none named: one of them, whichever. What waits longer than `outbox_days`, or beyond `outbox_rows`, is lost and counted.
    """

    host: Annotated[str, Field(min_length=1)]
    port: Port | None = None
    username: str | None = None
    password: SecretSettings | None = None
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    topic_prefix: Annotated[str, Field(pattern=r"^[^#+/]+(/[^#+/]+)*$")] = "timesyncd/v1"
    state_every_s: Annotated[float, Field(gt=0, le=3600)] = 2.0
    hubs: list[Name] = []
    outbox_days: Annotated[float, Field(gt=0, le=3650)] = 7
    outbox_rows: Annotated[int, Field(ge=1_000, le=10_000_000)] = 100_000

    @model_validator(mode="after")
    def _certificates_need_tls(self) -> MqttSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together: give both or neither")
        if not self.tls and (self.ca or self.certificate):
            raise ValueError("ca, certificate and key need tls = true")
        return self

    @property
    def broker_port(self) -> int:
        return self.port if self.port is not None else 8883 if self.tls else 1883


_POSTGRESQL = r"postgresql://([^:@/]+@)?[^@/]+/[^/?@]+(\?[^#]*)?"


def check_store_url(url: str) -> None:
    """Raises ValueError, which does not say the URL: a password may be in it."""
    if re.match(r"[a-z0-9+]*://[^@/]*:[^@?]*@", url, re.IGNORECASE) or "password=" in url:
        raise ValueError("a password has no place in url: give it as password = { file = ... }")
    if not re.fullmatch(_POSTGRESQL, url):
        raise ValueError("url: it is no postgresql://user@host:5432/database")


class StoreSettings(Section):
    """
    A file of SQLite, or with `url` a database of PostgreSQL, as postgresql://user@host/name, whose password stands apart. Raw
    samples are kept for `keep_days`, what is rolled up to minutes and to hours for longer.
    """

    path: Path = Path("/var/lib/timesyncd/history.sqlite")
    url: str | None = None
    password: SecretSettings | None = None
    keep_days: Annotated[float, Field(gt=0)] = 7
    keep_minutes_days: Annotated[float, Field(gt=0)] = 90
    keep_hours_days: Annotated[float, Field(gt=0)] = 1_095

    @model_validator(mode="after")
    def _one_place(self) -> StoreSettings:
        if self.url is not None and "path" in self.model_fields_set:
            raise ValueError("give either path or url")
        if self.url is None and self.password is not None:
            raise ValueError("password needs url")
        if self.url is not None:
            check_store_url(self.url)
        return self

    @model_validator(mode="after")
    def _coarser_is_kept_longer(self) -> StoreSettings:
        if not self.keep_days <= self.keep_minutes_days <= self.keep_hours_days:
            raise ValueError("keep_days <= keep_minutes_days <= keep_hours_days: what is coarser is kept no less long")
        return self


class ClockBoundSettings(Section):
    """Also write a segment that clients of AWS ClockBound (v2) understand."""

    path: Path = Path("/var/run/clockbound/shm0")


Role = Literal["reader", "job", "admin"]


class TokenSettings(Section):
    """Who shows this secret may do what `role` allows: job < reader < admin."""

    name: Name
    role: Role = "reader"
    secret: SecretSettings


class WebSettings(Section):
    """
    On loopback everybody on this machine may read, unless there are tokens or `client_ca`. On any other address whoever asks needs a
    token, or a certificate that `client_ca` signed, which gives `client_role`.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8319
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    client_role: Role = "reader"
    token: list[TokenSettings] = []

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    @property
    def is_askable(self) -> bool:
        """Others can ask at its `host`: not where that is this machine's own, or stands for all its addresses."""
        try:
            return not self.is_local and not ip_address(self.host).is_unspecified
        except ValueError:
            return bool(self.host)

    @model_validator(mode="after")
    def _is_guarded(self) -> WebSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together: give both or neither")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs certificate and key")
        if not self.is_local and not self.token and self.client_ca is None:
            raise ValueError(
                f"host = {self.host!r} is no loopback address: [[web.token]] or client_ca is required there"
            )
        return self


class HubSettings(Section):
    """This daemon joins the jobs' marks. `nodes` are the nodes expected; `window_steps` the steps that a signal looks back on."""

    nodes: list[Name] = []
    window_steps: Annotated[int, Field(ge=1, le=10_000)] = 100


def checked_policy(text: str) -> str:
    """As a policy is written. Raises ValueError: it is none."""
    return str(parse_policy(text))


class JobSettings(Section):
    """What a hub wants of the jobs of this name, whoever runs them."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    policy: Annotated[str, AfterValidator(checked_policy)]


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def secrets_of(part: object, place: str = "") -> Iterator[tuple[str, SecretSettings]]:
    """Every secret below, by the path of its key."""
    match part:
        case SecretSettings():
            yield place, part
        case BaseModel():
            for name in type(part).model_fields:
                below = "" if name == "options" else f".{name}"
                yield from secrets_of(getattr(part, name), (place + below).lstrip("."))
        case list() | tuple():
            for index, each in enumerate(part):
                yield from secrets_of(each, f"{place}[{index}]")


DEFAULT_PATH = Path("/etc/timesyncd/timesyncd.toml")
DEFAULT_RUNTIME_DIR = Path("/run/timesyncd")

#: Without a broker: how often findings are judged while nobody looks.
DEFAULT_STATE_EVERY_NS = 2 * NS_PER_S


class NodeSettings(Section):
    """
    `topology` says where the node stands, outermost part first, as "hall-1/rack-12": nodes of one rack share their network. `link` names
    the link that the jobs of this node send through and share with others, as "rack-7".
    """

    name: Name = Field(default_factory=lambda: socket.gethostname().split(".")[0])
    runtime_dir: Path = DEFAULT_RUNTIME_DIR
    topology: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$", max_length=255)] = ""
    link: Name | None = None


_ASSUMED = SourceSettings()


class BoundSettings(Section):
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


class ClockSource(Section):
    """A clock source of this node. `options` are the driver's own keys, which stand in the same table."""

    name: Name
    driver: str
    bounds: BoundSettings = BoundSettings()
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


class OscillatorSettings(Section):
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


class Config(Section):
    """The whole file. A section that is there switches its part on, be it empty."""

    node: NodeSettings = NodeSettings()
    source: list[ClockSource] = []
    grandmaster: list[Grandmaster] = []
    oscillator: dict[Name, OscillatorSettings] = {}
    traps: TrapSettings | None = None
    syslog: SyslogSettings | None = None
    mqtt: MqttSettings | None = None
    store: StoreSettings | None = None
    web: WebSettings | None = None
    clockbound: ClockBoundSettings | None = None
    hub: HubSettings | None = None
    job: list[JobSettings] = []

    @property
    def policies(self) -> dict[str, str]:
        """By the names of jobs."""
        return {job.name: job.policy for job in self.job}

    @property
    def state_every_ns(self) -> int:
        """A node's state is told twice within each source's holdover_after at least: in between a reader lets it age."""
        wanted_ns = DEFAULT_STATE_EVERY_NS if self.mqtt is None else int(self.mqtt.state_every_s * NS_PER_S)
        return min([wanted_ns, *(source.bounds.holdover_after_ns // 2 for source in self.source)])

    @property
    def notes(self) -> list[str]:
        """What runs, and is hardly meant so."""
        found = []
        if self.hub is not None and self.mqtt is not None and self.store is None:
            found.append(
                "hub: without [store] it keeps nothing of the history that nodes send: it waits in their outboxes, and is lost there"
            )
        if self.job and self.hub is None and self.mqtt is not None:
            found.append("job: this daemon is no hub, so no job hears of it: [[job]] is for the daemons with [hub]")
        return found

    def curve_of(self, unit: Grandmaster) -> HoldoverCurve | None:
        """Its holdover budget; None: none is configured."""
        return self.oscillator[unit.oscillator].curve if unit.oscillator is not None else None


OptionsOf = Callable[[str], type[BaseModel]]
"""A driver's Options model by the driver's name; raises ConfigError when there is no such driver."""


def load(path: Path, options_of: OptionsOf) -> Config:
    """Read the file. Raises ConfigError with one line for the first thing that is wrong."""
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        hint = "; write it, or name yours with --config" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{hint}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    return parse(data, options_of, str(path))


def parse(data: dict[str, Any], options_of: OptionsOf, origin: str) -> Config:
    """The same from a parsed table; `origin` names it in errors."""
    data = dict(data)
    for key, model in (("source", ClockSource), ("grandmaster", Grandmaster)):
        tables = data.get(key, [])
        if not isinstance(tables, list):
            raise ConfigError(f"{origin}: {key} = {tables!r}: write it as [[{key}]]")
        data[key] = [_with_options(t, model, options_of, f"{origin}: {key}[{i}]") for i, t in enumerate(tables)]
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {validation_text(error, model=Config)}") from error
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
        shared = set(model.model_fields) - {"options"}
        raise ConfigError(validation_text(error, where, model=options, shared=shared)) from error
    return own


#: Of a value or a path in an error.
_MOST_QUOTED_CHARS = 80

_SECRET_NAME = re.compile("pass|pwd|secret|communit|token|credential", re.IGNORECASE)


def validation_text(
    error: ValidationError,
    where: str = "",
    *,
    model: type[BaseModel] | None = None,
    shared: Collection[str] = (),
    noun: str = "key",
    with_value: bool = True,
) -> str:
    """
    The first problem as one line: path, value, and what is allowed there.

    `where` is the path of the table that was validated. `model` is what it was validated by: its keys are listed where one is
    unknown, in the outermost table with the `shared` ones of a driver's table; `noun` is what the reader calls such a key.
    Without `with_value` no value is quoted: so for what came over a network. Below a key that looks like a secret's, none ever is.
    """
    first = error.errors(include_url=False)[0]
    location, message = first["loc"], first["msg"].removeprefix("Value error, ")
    parts = "".join(f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" for part in location)
    path = f"{where}{parts}".lstrip(".")[: len(where) + _MOST_QUOTED_CHARS]
    if first["type"] == "missing":
        return f"{path}: missing"
    if first["type"] == "extra_forbidden":
        keys = _keys_at(model, location[:-1]) | (set(shared) if len(location) == 1 else set())
        message = f"unknown {noun}; allowed here: {', '.join(sorted(keys)) or 'none'}"
    # Keys of one table that contradict each other have no value of their own.
    is_table = isinstance(first["input"], dict) and first["type"] == "value_error"
    value = f" = {_quoted(first)}" if with_value and path and not is_table else ""
    return " ".join(f"{path}{value}: {message}".removeprefix(": ").splitlines())


def _quoted(error: ErrorDetails) -> str:
    """Somebody may have written a secret where its file should be named: an error goes to a journal that others read."""
    names_a_secret = any(isinstance(part, str) and _SECRET_NAME.search(part) for part in error["loc"])
    if names_a_secret and not isinstance(error["input"], bool | int):
        return "..."
    quoted = repr(error["input"])
    return quoted if len(quoted) <= _MOST_QUOTED_CHARS else f"{quoted[:_MOST_QUOTED_CHARS]}..."


def _printable(key: str) -> str:
    """A key may hold a line end or a terminal's control sequence; an error has one line, in a log that others read."""
    return key if key.isprintable() else ascii(key)


def _keys_at(model: Any, location: tuple[int | str, ...]) -> set[str]:
    """The keys allowed in the table at this place."""
    for part in location:
        if isinstance(part, int) or model is None or part not in model.model_fields:
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return set() if model is None else set(model.model_fields) - {"options"}


def _no_duplicates(config: Config, origin: str) -> None:
    names = [source.name for source in config.source] + [unit.name for unit in config.grandmaster]
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(
                f"{origin}: name = {name!r}: given {times} times; names of sources and grandmasters are unique"
            )
    for name, times in Counter(job.name for job in config.job).items():
        if times > 1:
            raise ConfigError(f"{origin}: job: name = {name!r}: given {times} times; names of jobs are unique")


def _oscillators_known(config: Config, origin: str) -> None:
    for index, unit in enumerate(config.grandmaster):
        if unit.oscillator is not None and unit.oscillator not in config.oscillator:
            known = ", ".join(sorted(config.oscillator)) or "none"
            raise ConfigError(
                f"{origin}: grandmaster[{index}].oscillator = {unit.oscillator!r}: there is no "
                f"[oscillator.{unit.oscillator}]; those there are: {known}"
            )
