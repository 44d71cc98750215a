"""The parts of the configuration that stand alone: what every section is made of, and the sections of the services."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from timesyncd.errors import ConfigError
from timesyncd.training.policy.text import parse

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
    """
    `port` None: 1883, or with `tls` 8883. `hubs` names those that must have stored what this node sends before its outbox is
    cut; none named: one of them, whichever. What waits longer than `outbox_days`, or beyond `outbox_rows`, is lost and counted.
    """

    host: Annotated[str, Field(min_length=1)]
    port: Port | None = None
    username: str | None = None
    password: Secret | None = None
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
    def _certificates_need_tls(self) -> Mqtt:
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


class Store(Section):
    """
    A file of SQLite, or with `url` a database of PostgreSQL, as postgresql://user@host/name, whose password stands apart. Raw
    samples are kept for `keep_days`, what is rolled up to minutes and to hours for longer.
    """

    path: Path = Path("/var/lib/timesyncd/history.sqlite")
    url: str | None = None
    password: Secret | None = None
    keep_days: Annotated[float, Field(gt=0)] = 7
    keep_minutes_days: Annotated[float, Field(gt=0)] = 90
    keep_hours_days: Annotated[float, Field(gt=0)] = 1_095

    @model_validator(mode="after")
    def _one_place(self) -> Store:
        if self.url is not None and "path" in self.model_fields_set:
            raise ValueError("give either path or url")
        if self.url is None and self.password is not None:
            raise ValueError("password needs url")
        if self.url is not None:
            check_store_url(self.url)
        return self

    @model_validator(mode="after")
    def _coarser_is_kept_longer(self) -> Store:
        if not self.keep_days <= self.keep_minutes_days <= self.keep_hours_days:
            raise ValueError("keep_days <= keep_minutes_days <= keep_hours_days: what is coarser is kept no less long")
        return self


class ClockBound(Section):
    """Also write a segment that clients of AWS ClockBound (v2) understand."""

    path: Path = Path("/var/run/clockbound/shm0")


Role = Literal["reader", "job", "admin"]


class Token(Section):
    """Who shows this secret may do what `role` allows: job < reader < admin."""

    name: Name
    role: Role = "reader"
    secret: Secret


class Web(Section):
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
    token: list[Token] = []

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
    def _is_guarded(self) -> Web:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together: give both or neither")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs certificate and key")
        if not self.is_local and not self.token and self.client_ca is None:
            raise ValueError(
                f"host = {self.host!r} is no loopback address: [[web.token]] or client_ca is required there"
            )
        return self


class Hub(Section):
    """This daemon joins the jobs' marks. `nodes` are the nodes expected; `window_steps` the steps that a signal looks back on."""

    nodes: list[Name] = []
    window_steps: Annotated[int, Field(ge=1, le=10_000)] = 100


def checked_policy(text: str) -> str:
    """As a policy is written. Raises ValueError: it is none."""
    return str(parse(text))


class Job(Section):
    """What a hub wants of the jobs of this name, whoever runs them."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    policy: Annotated[str, AfterValidator(checked_policy)]


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


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
