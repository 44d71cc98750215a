"""The driver for Microchip TimeProvider grandmasters over SNMP and HTTPS. Profiles (profiles/) define what a grandmaster serves."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, Field, Strict, model_validator

from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.config import Host, Port, SecretSettings, Section, SnmpUserSettings
from timesyncd.drivers.timeprovider._assemble import assemble
from timesyncd.drivers.timeprovider._grandmaster_reader import GrandmasterReader
from timesyncd.drivers.timeprovider._notifications import NotificationDecoder
from timesyncd.drivers.timeprovider._profiles import DEFAULT, Group, Profile, load_all
from timesyncd.drivers.timeprovider._web import WebPoller, WebReader, merged
from timesyncd.drivers.timeprovider._web_requests import WebOptions, uses_factory_password
from timesyncd.errors import ConfigError, SourceError, Unreachable
from timesyncd.sample import AlarmEvent, EngineTime, GrandmasterSample, Reading, Trap
from timesyncd.snmp import Community, Credentials
from timesyncd.snmp.security import user_of


def _loadable(name: str) -> str:
    try:
        load_all([name])
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return name


class TimeProviderOptions(Section):
    """
    SNMP with `community` (v2c) or `user` (v3), `https`, or both. `profiles`: names of shipped profiles or paths of files; the first
    profile with a field fills it.
    """

    host: Annotated[Host, Field(min_length=1)]
    port: Port = 161
    community: SecretSettings | None = None
    user: SnmpUserSettings | None = None
    https: WebOptions | None = None
    state_interval_s: Annotated[float, Field(ge=1, le=3600)] = 10.0
    table_interval_s: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    inventory_interval_s: Annotated[float, Field(ge=1, le=86_400)] = 3600.0
    timeout_s: Annotated[float, Field(ge=2, le=60)] = 5.0
    profiles: Annotated[tuple[Annotated[str, AfterValidator(_loadable)], ...], Strict(False), Field(min_length=1)] = (
        DEFAULT
    )

    @model_validator(mode="after")
    def _has_access(self) -> TimeProviderOptions:
        if self.community is not None and self.user is not None:
            raise ValueError("community and user: give only one of them, for SNMP v2c or v3")
        if self.community is None and self.user is None and self.https is None:
            raise ValueError("give at least one of community (SNMP v2c), user (SNMP v3) and https")
        return self


class TimeProvider:
    """Reads a Microchip TimeProvider; it changes nothing there."""

    Options: ClassVar[type[BaseModel]] = TimeProviderOptions

    def __init__(self, name: str, options: TimeProviderOptions, runtime_dir: Path) -> None:
        """Raises ConfigError if a secret cannot be read or used, or a profile has become invalid."""
        self.addresses = _literal(options.host)
        self.config_findings = () if options.https is None else _config_findings(options.https)
        self.timeout_s = options.timeout_s
        self._name = name
        self._host = options.host
        self._interval_s = options.state_interval_s
        # Grandmasters of one start are not polled together for ever: the first pause differs for each.
        self.poll_interval_s = max(1.0, self._interval_s * zlib.crc32(name.encode()) / 2**32)
        self._has_polled = False
        self._clocks = SystemClocks()
        profiles = load_all(options.profiles)
        self._notifications = NotificationDecoder(name, profiles)
        credentials = _credentials(options)
        self._snmp = None if credentials is None else _reader(name, options, credentials, profiles)
        self._web = None if options.https is None else _web_part(name, options.host, options.https)

    async def open(self) -> None:
        """Resolve the grandmaster's addresses and find the profiles that it serves."""
        self.addresses = await _addresses(self._host)
        # With HTTPS, `poll` opens SNMP, whose failure is then no failure of the poll.
        if self._snmp is not None and self._web is None:
            await self._snmp.open()

    async def poll(self) -> Sequence[Reading]:
        """One sample, and new past time errors. It fails if neither SNMP nor HTTPS answers."""
        if self._has_polled:
            self.poll_interval_s = self._interval_s
        self._has_polled = True
        now_ns = self._clocks.boottime_ns()
        # The rest of the time is a reserve: the runner's timeout would fail the whole poll.
        until = asyncio.get_running_loop().time() + self.timeout_s * 0.8
        if self._web is not None:
            self._web.begin(now_ns)
        sample, error = await self._read_snmp(now_ns, until)
        if self._web is None:
            if error is not None:
                raise error
            return [sample]
        await self._web.finish(until)
        reading = self._web.current(now_ns)
        if error is not None and self._web.error is not None:  # an older reading does not count as an answer
            reading = None
        if reading is None and (error is not None or self._snmp is None):
            raise _both(error, self._web.error or Unreachable(f"{self._host}: https: no answer yet"))
        return [merged(sample, reading, self._web.error), *self._web.take_series()]

    async def _read_snmp(self, now_ns: int, until: float) -> tuple[GrandmasterSample, SourceError | None]:
        nothing = GrandmasterSample(self._name, now_ns)
        if self._snmp is None:
            return nothing, None
        try:
            if not self._snmp.is_open:
                await self._snmp.open()
            rows = await self._snmp.read(now_ns, until)
        except SourceError as error:
            self._snmp.close()
            return replace(nothing, snmp_error=str(error)), error
        self._notifications.set_served(rows.profiles)
        return assemble(self._name, now_ns, rows.profiles, rows.rows, rows.notes), None

    async def close(self) -> None:
        if self._snmp is not None:
            self._snmp.close()
        if self._web is not None:
            await self._web.close()

    def alarm_event(self, trap: Trap) -> AlarmEvent | None:
        return self._notifications.event(trap)

    def alarm_event_of_line(self, line: str, boottime_ns: int) -> AlarmEvent | None:
        return self._notifications.event_of_line(line, boottime_ns)

    def verified_engine(self) -> EngineTime | None:
        """What the trap receiver compares a sender's clock with, where it would take its traps for recorded ones."""
        return None if self._snmp is None else self._snmp.verified_engine()

    def request_poll(self) -> None:
        """Makes SNMP reads due. HTTPS keeps its interval: a storm of traps must not overload a slow web interface."""
        if self._snmp is not None:
            self._snmp.request_poll()


def _credentials(options: TimeProviderOptions) -> Credentials | None:
    """Raises ConfigError."""
    if options.community is not None:
        return Community(options.community.reveal().get_secret_value())
    return None if options.user is None else user_of(options.user, "user")


def _reader(
    name: str, options: TimeProviderOptions, credentials: Credentials, profiles: Sequence[Profile]
) -> GrandmasterReader:
    intervals_ns: dict[Group, int] = {
        "state": _ns(options.state_interval_s),
        "table": _ns(options.table_interval_s),
        "inventory": _ns(options.inventory_interval_s),
    }
    # Two tries, each slightly late, must fit into timeout_s: this driver's error is more specific than the runner's timeout.
    try_s = options.timeout_s / 4
    return GrandmasterReader(name, (options.host, options.port), credentials, try_s, profiles, intervals_ns)


def _web_part(name: str, host: str, options: WebOptions) -> WebPoller:
    return WebPoller(WebReader(name, host, options), _ns(options.interval_s))


def _config_findings(https: WebOptions) -> tuple[tuple[str, str], ...]:
    """Findings about the configuration itself, as id and evidence. Raises ConfigError."""
    notes = [("certificate-unchecked", warning) for warning in https.warnings]
    if uses_factory_password(https.password.reveal()):
        notes.append(("factory-password", f"the web account {https.username} has the factory password"))
    return tuple(notes)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _literal(host: str) -> frozenset[str]:
    """The host, if it is an address: then traps before the first poll are already attributed to this grandmaster."""
    try:
        return frozenset({str(ip_address(host))})
    except ValueError:
        return frozenset()


async def _addresses(host: str) -> frozenset[str]:
    """Raises Unreachable if the host name has no address."""
    if literal := _literal(host):
        return literal
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{host}: cannot resolve the host name: {error}") from error
    return frozenset(str(address[0]) for *_, address in found)


def _both(snmp: SourceError | None, https: SourceError) -> SourceError:
    return https if snmp is None else type(snmp)(f"{snmp}; and https: {https}")
