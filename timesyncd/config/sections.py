"""The sections of the configuration, as pydantic models."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    Strict,
    field_validator,
    model_validator,
)

from timesyncd.bound import DEFAULT_HOLDOVER_AFTER_NS, DEFAULT_VOID_AFTER_NS
from timesyncd.client.api import is_http_url
from timesyncd.client.files import read_file
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import ConfigError
from timesyncd.ipc.clock_segment import DEFAULT_FOLDER
from timesyncd.ipc.clockbound import DEFAULT_PATH as DEFAULT_CLOCKBOUND_PATH
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.grandmaster import HoldoverCurve
from timesyncd.training.policy.text import parse_policy

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Port = Annotated[int, Field(ge=1, le=65535)]
#: In ns, and for rates in ppb. A bound of 1 000 s has no use, and sums of larger numbers exceed the 64 bits of segment
#: and messages.
Nanoseconds = Annotated[int, Field(ge=0, le=10**12)]


def _without_nul(path: Path) -> Path:
    """The system refuses NUL in a path. Raises ValueError."""
    if "\0" in str(path):
        raise ValueError("a path cannot contain NUL")
    return path


#: TOML has no paths, so a path is text.
FilePath = Annotated[Path, Strict(False), AfterValidator(_without_nul)]


class Section(BaseModel):
    """A table of the file. An unknown key is an error, and so is a number or a flag in quotes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def host_alone(text: str) -> str:
    """Raises ValueError for a host with a port, which has a key of its own, and for a URL."""
    name, _, port = text.rpartition(":")
    if "/" in text:
        raise ValueError("must be a host name or an address, not a URL")
    if name and ":" not in name and port.isdecimal():
        raise ValueError(f"must be a host name or an address: give the port as port = {port}")
    return text


Host = Annotated[str, AfterValidator(host_alone)]


class SecretSettings(Section):
    """
    A reference to a secret, which is never in the configuration itself: the path `file`, or the environment variable
    `env`.
    """

    file: FilePath | None = None
    env: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> SecretSettings:
        if (self.file is None) == (self.env is None):
            raise ValueError("a secret needs either file or env, and not both")
        return self

    def reveal(self) -> SecretStr:
        """The secret's text. Raises ConfigError when the file cannot be read or the variable is not set."""
        if self.env is not None and self.env not in os.environ:
            raise ConfigError(f"secret: environment variable {self.env} is not set")
        try:
            return SecretStr(read_file(self.file).decode().rstrip("\n") if self.file else os.environ[self.env or ""])
        except OSError as error:
            raise ConfigError(f"secret: {self.file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"secret: {self.file} is no text in UTF-8") from error


class SnmpUserSettings(Section):
    """A user of SNMP v3, authPriv. Keys of AES-192 and AES-256 are extended as net-snmp does; with -c as Cisco does."""

    name: Annotated[str, Field(min_length=1, max_length=32)]
    auth: Literal["sha1", "sha224", "sha256", "sha384", "sha512"] = "sha256"
    auth_pass: SecretSettings
    priv: Literal["aes128", "aes192", "aes256", "aes192-c", "aes256-c"] = "aes128"
    priv_pass: SecretSettings
    context: str = ""


class TrapSettings(Section):
    """
    `[traps]`: the listener for SNMP traps and informs of the grandmasters; systemd can pass the socket of a port below
    1024.
    """

    host: Host = "0.0.0.0"
    port: Annotated[int, Field(ge=0, le=65535)] = 162
    communities: list[SecretSettings] = []
    users: list[SnmpUserSettings] = []


class LogSettings(Section):
    """`[log]`: what the daemon logs on standard error. `json`: one JSON object a line."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class SyslogSettings(Section):
    """`[syslog]`: the listener for syslog messages of the grandmasters, over UDP."""

    host: Host = "0.0.0.0"
    port: Annotated[int, Field(ge=0, le=65535)] = 514


#: Every topic begins with it, unless `[mqtt] topic_prefix` is set.
TOPIC_PREFIX = "timesyncd/v1"


class MqttSettings(Section):
    """
    `[mqtt]`: the connection to the broker. `port` None means 1883, with `tls` 8883.

    The outbox keeps a row until all hubs in `hubs` have stored it; without `hubs`, until any hub has. Rows older than
    `outbox_days`, or beyond `outbox_rows`, are dropped and counted. With `discovery_prefix` the daemon announces its
    topics to Home Assistant.
    """

    host: Annotated[Host, Field(min_length=1)]
    port: Port | None = None
    username: str | None = None
    password: SecretSettings | None = None
    tls: bool = False
    ca: FilePath | None = None
    certificate: FilePath | None = None
    key: FilePath | None = None
    topic_prefix: Annotated[str, Field(pattern=r"^[^#+/]+(/[^#+/]+)*$")] = TOPIC_PREFIX
    discovery_prefix: Annotated[str, Field(pattern=r"^[^#+/]+(/[^#+/]+)*$")] | None = None
    state_every_s: Annotated[float, Field(gt=0, le=3600)] = 2.0
    hubs: list[Name] = []
    outbox_days: Annotated[float, Field(gt=0, le=3650)] = 7
    outbox_rows: Annotated[int, Field(ge=1_000, le=10_000_000)] = 100_000

    @model_validator(mode="after")
    def _certificates_need_tls(self) -> MqttSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key must be set together, or neither")
        if not self.tls and (self.ca or self.certificate):
            raise ValueError("ca, certificate and key require tls = true")
        return self

    @property
    def broker_port(self) -> int:
        return self.port if self.port is not None else 8883 if self.tls else 1883


_POSTGRESQL = r"postgresql://([^:@/]+@)?[^@/]+/[^/?@]+(\?[^#]*)?"


def check_store_url(url: str) -> None:
    """
    Raises ValueError unless this is a PostgreSQL URL without a password; its text omits the URL, which may contain one.
    """
    if re.match(r"[a-z0-9+]*://[^@/]*:[^@?]*@", url, re.IGNORECASE) or "password=" in url:
        raise ValueError("url must not contain a password: set password = { file = ... }")
    if not re.fullmatch(_POSTGRESQL, url):
        raise ValueError("url must have the form postgresql://user@host:5432/database")


class StoreSettings(Section):
    """
    `[store]`: a SQLite file at `path`, or with `url` a PostgreSQL database (postgresql://user@host/name) with a
    separate password.

    Raw samples are kept for `keep_days`, roll-ups to minutes and to hours for longer.
    """

    path: FilePath = Path("/var/lib/timesyncd/history.sqlite")
    url: str | None = None
    password: SecretSettings | None = None
    keep_days: Annotated[float, Field(gt=0)] = 7
    keep_minutes_days: Annotated[float, Field(gt=0)] = 90
    keep_hours_days: Annotated[float, Field(gt=0)] = 1_095

    @model_validator(mode="after")
    def _one_place(self) -> StoreSettings:
        if self.url is not None and "path" in self.model_fields_set:
            raise ValueError("path and url exclude each other: set one of them")
        if self.url is None and self.password is not None:
            raise ValueError("password requires url")
        if self.url is not None:
            check_store_url(self.url)
        return self

    @model_validator(mode="after")
    def _coarser_is_kept_longer(self) -> StoreSettings:
        if not self.keep_days <= self.keep_minutes_days <= self.keep_hours_days:
            raise ValueError(
                "coarser data must be kept at least as long: keep_days <= keep_minutes_days <= keep_hours_days"
            )
        return self


class ClockBoundSettings(Section):
    """`[clockbound]`: the daemon also writes a segment for clients of AWS ClockBound (v2)."""

    path: FilePath = DEFAULT_CLOCKBOUND_PATH


class OtlpSettings(Section):
    """
    `[otlp]`: the daemon sends metrics, events and training steps to an OpenTelemetry collector at `endpoint`.

    Headers and certificates are those of OpenTelemetry's own environment variables (OTEL_EXPORTER_OTLP_HEADERS, ...).
    """

    endpoint: Annotated[str, Field(pattern=r"^https?://[^/\s@]+(/[^\s]*)?$")]
    protocol: Literal["grpc", "http"] = "grpc"
    interval_s: Annotated[float, Field(ge=1, le=3_600)] = 10


class NotifySettings(Section):
    """
    `[[notify]]`: findings of at least this `severity` go to one place that apprise knows, by a `url` that is a secret.

    After a message the next one follows `every_s` later at the earliest, with all that changed meanwhile.
    """

    url: SecretSettings
    severity: Literal["info", "warning", "critical"] = "warning"
    every_s: Annotated[float, Field(ge=10, le=86_400)] = 300


Role = Literal["reader", "job", "writer", "admin"]


class TokenSettings(Section):
    """`[[web.token]]`: a client with this secret has the `role`: job < reader < writer < admin. Its `name` signs what it writes."""

    name: Name
    role: Role = "reader"
    secret: SecretSettings


def _http_url(text: str) -> str:
    if not is_http_url(text):
        raise ValueError("expected an address as http://n2.example:8319 or https://n2.example:8319")
    return text


class PeerSettings(Section):
    """
    `[[web.peer]]`: the daemon of the node `name`, at `url`, from which this daemon reads that node's measured offsets. It shows
    the secret `token` there, which has the role `reader`.
    """

    name: Name
    url: Annotated[str, AfterValidator(_http_url)]
    token: SecretSettings | None = None


class WebSettings(Section):
    """
    `[web]`: the page and the HTTP API.

    On a loopback address every local user can read, unless tokens or `client_ca` are set. On any other address a client
    needs a token, or a certificate that `client_ca` signed, which gives it the `client_role`.
    """

    host: Host = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8319
    certificate: FilePath | None = None
    key: FilePath | None = None
    client_ca: FilePath | None = None
    client_role: Role = "reader"
    token: list[TokenSettings] = []
    peer: list[PeerSettings] = []

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    @property
    def is_reachable(self) -> bool:
        """
        Whether other machines can use `host` in a URL: not if it is a loopback address, or the wildcard for all
        addresses.
        """
        try:
            return not self.is_local and not ip_address(self.host).is_unspecified
        except ValueError:
            return bool(self.host)

    @model_validator(mode="after")
    def _is_guarded(self) -> WebSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key must be set together, or neither")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca requires certificate and key")
        if not self.is_local and not self.token and self.client_ca is None:
            raise ValueError(
                f"host = {self.host!r} is not a loopback address, so [[web.token]] or client_ca is required"
            )
        return self


class HubSettings(Section):
    """
    `[hub]`: this daemon aggregates step timings from all ranks. `nodes` are the expected nodes; signals cover the last
    `window_steps` steps. `shared`: this hub owns a share of jobs and nodes, and other hubs with `shared` the rest.
    """

    nodes: list[Name] = []
    shared: bool = False
    window_steps: Annotated[int, Field(ge=1, le=10_000)] = 100


def canonical_policy(text: str) -> str:
    """The policy in its canonical form. Raises ValueError when it is not one."""
    return str(parse_policy(text))


Limit = Annotated[int, Field(gt=0, le=10**12)]


class LimitsSettings(Section):
    """
    `[limits]`: the operator's limits. Without a limit a value is reported and not judged.

    No two clocks of the fleet, or of a job, may differ by more than the alignments; no node's main bound may be wider
    than `node_bound_ns`. The daemon itself may use so much of one core, over a minute, and so much memory: beyond the first it
    polls less often.
    """

    fleet_alignment_ns: Limit | None = None
    job_alignment_ns: Limit | None = None
    node_bound_ns: Limit | None = None
    daemon_cpu_percent: Annotated[float, Field(gt=0, le=100_000)] | None = None
    daemon_memory_mib: Annotated[int, Field(gt=0, le=1_000_000)] | None = None


class JobSettings(Section):
    """
    `[[job]]`: the synchronization policy that a hub sets for all jobs of this name, and how much their time counts where
    jobs take turns on a link.
    """

    name: Annotated[str, Field(min_length=1, max_length=255)]
    policy: Annotated[str, AfterValidator(canonical_policy)]
    priority: Annotated[int, Field(ge=1, le=100)] = 1


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def secrets_of(part: object, place: str = "") -> Iterator[tuple[str, SecretSettings]]:
    """Every secret in this part of the configuration, with the path of its key."""
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

#: Without a broker: how often findings are evaluated.
DEFAULT_STATE_EVERY_NS = 2 * NS_PER_S


class NodeSettings(Section):
    """
    `[node]`. `topology` is the node's place, outermost part first, as "hall-1/rack-12": nodes of one rack share their
    network.

    `link` names the network link that the jobs of this node share with other jobs, as "rack-7".
    """

    name: Name = Field(default_factory=lambda: socket.gethostname().split(".")[0])
    runtime_dir: FilePath = DEFAULT_FOLDER
    topology: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$", max_length=255)] = ""
    link: Name | None = None


_ASSUMED = SourceSettings()


class BoundSettings(Section):
    """`[source.bounds]`: the assumptions about a clock source; docs/error-bound.md explains each."""

    local_drift_ppb: Nanoseconds = _ASSUMED.local_drift_ppb
    drift_floor_ppb: Nanoseconds = _ASSUMED.drift_floor_ppb
    grandmaster_rate_ppb: Nanoseconds = _ASSUMED.grandmaster_rate_ppb
    delay_filter_length: Annotated[int, Field(ge=1, le=1000)] = _ASSUMED.delay_filter_length
    boundary_clock_error_ns: Nanoseconds | None = _ASSUMED.boundary_clock_error_ns
    asymmetry_uncertainty_ns: Nanoseconds = _ASSUMED.asymmetry_uncertainty_ns
    path_minimum_ns: Nanoseconds = _ASSUMED.path_minimum_ns
    grandmaster_holdover_budget_ns: Nanoseconds = _ASSUMED.grandmaster_holdover_budget_ns
    utc_offset_s: int = _ASSUMED.utc_offset_s
    holdover_after_ns: Annotated[int, Field(gt=0, le=10**14)] = DEFAULT_HOLDOVER_AFTER_NS
    void_after_ns: Annotated[int, Field(gt=0, le=10**14)] = DEFAULT_VOID_AFTER_NS

    def ensemble_settings(self) -> EnsembleSettings:
        """The same values for the model."""
        assumed = self.model_dump(exclude={"holdover_after_ns", "void_after_ns"})
        return EnsembleSettings(SourceSettings(**assumed), self.holdover_after_ns, self.void_after_ns)


class ClockSource(Section):
    """
    `[[source]]`: a clock source of this node. `options` are the driver's own keys, in the same table. It shares no
    cause of error with the sources in `independent_of`, and neither they with it.
    """

    name: Name
    driver: str
    independent_of: list[Name] = []
    bounds: BoundSettings = BoundSettings()
    options: BaseModel

    def ensemble_settings(self) -> EnsembleSettings:
        """What the model assumes of this source."""
        return replace(self.bounds.ensemble_settings(), independent_of=frozenset(self.independent_of))


class MeasuredInput(Section):
    """The grandmaster that feeds a measured PPS or PTP input, and the uncertainty of the delay between the two."""

    grandmaster: Name
    uncertainty_ns: Nanoseconds


class Grandmaster(Section):
    """
    `[[grandmaster]]`: a grandmaster that this daemon polls. `options` are the driver's own keys, in the same table.
    """

    name: Name
    driver: str
    identities: list[Annotated[str, Field(pattern=r"^[0-9a-f]{6}\.[0-9a-f]{4}\.[0-9a-f]{6}$")]] = []
    inputs: dict[str, MeasuredInput] = {}
    oscillator: Name | None = None
    options: BaseModel


class OscillatorSettings(Section):
    """
    `[oscillator.*]`: a grandmaster's largest error in holdover: points of (seconds since it began, error against UTC in
    ns).
    """

    holdover: list[Annotated[tuple[Annotated[int, Field(ge=0, le=10**9)], Nanoseconds], Strict(False)]]

    @property
    def curve(self) -> HoldoverCurve:
        return HoldoverCurve(tuple(self.holdover))

    @field_validator("holdover")
    @classmethod
    def _rises(cls, points: list[tuple[int, int]]) -> list[tuple[int, int]]:
        HoldoverCurve(tuple(points))
        return points


class SimulationSettings(Section):
    """`[simulation]`, for demos and labs: the file in which the simulator states what is simulated, and the true offsets."""

    state: FilePath


class Config(Section):
    """The whole file. A section that is present enables its part, even if it is empty."""

    node: NodeSettings = NodeSettings()
    source: list[ClockSource] = []
    grandmaster: list[Grandmaster] = []
    oscillator: dict[Name, OscillatorSettings] = {}
    log: LogSettings = LogSettings()
    traps: TrapSettings | None = None
    syslog: SyslogSettings | None = None
    mqtt: MqttSettings | None = None
    store: StoreSettings | None = None
    web: WebSettings | None = None
    clockbound: ClockBoundSettings | None = None
    otlp: OtlpSettings | None = None
    notify: list[NotifySettings] = []
    hub: HubSettings | None = None
    limits: LimitsSettings = LimitsSettings()
    job: list[JobSettings] = []
    simulation: SimulationSettings | None = None

    @property
    def policies(self) -> dict[str, str]:
        """The policies by job name."""
        return {job.name: job.policy for job in self.job}

    @property
    def priorities(self) -> dict[str, int]:
        """The priorities on a shared link by job name."""
        return {job.name: job.priority for job in self.job}

    @property
    def state_every_ns(self) -> int:
        """
        The interval of a node's state: at most half of each source's holdover_after, so that readers never age it to
        HOLDOVER between two.
        """
        wanted_ns = DEFAULT_STATE_EVERY_NS if self.mqtt is None else int(self.mqtt.state_every_s * NS_PER_S)
        return min([wanted_ns, *(source.bounds.holdover_after_ns // 2 for source in self.source)])

    @property
    def utc_offsets_s(self) -> frozenset[int]:
        """TAI - UTC in whole seconds, as the clock sources are configured."""
        return frozenset(source.bounds.utc_offset_s for source in self.source)

    @property
    def warnings(self) -> list[str]:
        """Settings that work, but are probably not intended; one line each."""
        found = []
        if self.hub is not None and self.mqtt is not None and self.store is None:
            found.append(
                "hub: without [store] this hub stores no history: "
                "the nodes' rows wait in their outboxes until they are dropped; add [store]"
            )
        if self.job and self.hub is None and self.mqtt is not None:
            found.append(
                "job: this daemon is not a hub, so no job receives this policy; move [[job]] to the daemons with [hub]"
            )
        return found + list(self._without_effect())

    def _without_effect(self) -> Iterator[str]:
        """Sections that change nothing, because what they need is missing."""
        for name, listener in (("traps", self.traps), ("syslog", self.syslog)):
            if listener is not None and not self.grandmaster:
                yield f"{name}: without effect, because no [[grandmaster]] is configured that could send any"
        if self.clockbound is not None and not self.source:
            yield "clockbound: without effect, because no [[source]] is configured: the segment has no bound"
        if self.hub is not None and self.hub.nodes and self.mqtt is None:
            yield "hub.nodes: without effect, because without [mqtt] this hub receives no other node"
        used = {grandmaster.oscillator for grandmaster in self.grandmaster}
        for name in self.oscillator:
            if name not in used:
                yield f"oscillator.{name}: without effect, because no [[grandmaster]] has oscillator = {name!r}"

    def holdover_curve(self, grandmaster: Grandmaster) -> HoldoverCurve | None:
        """The grandmaster's holdover budget; None: none is configured."""
        return None if grandmaster.oscillator is None else self.oscillator[grandmaster.oscillator].curve
