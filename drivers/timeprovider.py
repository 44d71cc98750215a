"""Microchip TimeProvider grandmasters over SNMP v2c: what a unit serves is data (profiles/), and this is the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, Field

from timesyncd.clocks import SystemClocks
from timesyncd.config import Port, Secret, Section
from timesyncd.drivers._assemble import assemble
from timesyncd.drivers._profiles import SHIPPED, Profile, load
from timesyncd.drivers._snmp import Session
from timesyncd.errors import ConfigError, Malformed, Refused, Unreachable
from timesyncd.sample import GrandmasterSample

#: More rows than any table read here has on a sane unit (125 satellites); a longer column is cut off, and that is told.
ROW_CAP = 200
#: So long after its start an agent may still gain subtrees.
_SETTLED_S = 600


def _loadable(name: str) -> str:
    try:
        load(name)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return name


class TimeProviderOptions(Section):
    """`profiles`: shipped names, or paths of files; the first one that knows a field fills it."""

    host: Annotated[str, Field(min_length=1)]
    port: Port = 161
    community: Secret
    poll_interval_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    timeout_s: Annotated[float, Field(ge=2, le=60)] = 5.0
    profiles: Annotated[tuple[Annotated[str, AfterValidator(_loadable)], ...], Field(min_length=1)] = SHIPPED


class TimeProvider:
    """Reads a Microchip TimeProvider, and sets nothing on it."""

    Options: ClassVar[type[BaseModel]] = TimeProviderOptions

    def __init__(self, name: str, options: TimeProviderOptions, runtime_dir: Path) -> None:
        """Raises ConfigError when the community cannot be read, or a profile is not one any more."""
        self.poll_interval_s = options.poll_interval_s
        self.timeout_s = options.timeout_s
        self._name = name
        self._host = options.host
        self._port = options.port
        self._community = options.community.reveal()
        self._profiles = [load(profile) for profile in options.profiles]
        self._served: list[Profile] = []
        self._settled = False
        self._clocks = SystemClocks()
        self._session: Session | None = None

    async def open(self) -> None:
        """Finds out which profiles the unit serves."""
        # Two tries, each a tick or two late, must fit into timeout_s: our own error tells more than the runner's time-out.
        community = self._community.get_secret_value()
        self._session = await Session.open(self._host, self._port, community, self.timeout_s / 4)
        self._served = await self._probe(self._session)

    async def poll(self) -> Sequence[GrandmasterSample]:
        if self._session is None:
            raise Unreachable(f"{self._device}: not open")
        boottime_ns = self._clocks.boottime_ns()
        if not self._settled:
            self._served = await self._probe(self._session)
        sample = await self._read(self._session, boottime_ns)
        self._settled = sample.uptime_s is not None and sample.uptime_s >= _SETTLED_S
        return [sample]

    async def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def _device(self) -> str:
        return f"{self._host}:{self._port}"

    async def _probe(self, session: Session) -> list[Profile]:
        subtrees = list(dict.fromkeys(subtree for profile in self._profiles for subtree in profile.proved_by))
        served = await session.has_below(subtrees)
        profiles = [profile for profile in self._profiles if any(served[subtree] for subtree in profile.proved_by)]
        if not profiles:
            names = ", ".join(profile.name for profile in self._profiles)
            raise Refused(f"{self._device}: answers SNMP, but serves none of the profiles {names}")
        return profiles

    async def _read(self, session: Session, boottime_ns: int) -> GrandmasterSample:
        entries = [entry for profile in self._served for entry in profile.object]
        scalars = dict.fromkeys(entry.oid for entry in entries if not entry.index)
        columns = dict.fromkeys(entry.oid for entry in entries if entry.index)
        rows = await session.get(list(scalars))
        walked, cut = await session.walk(list(columns), ROW_CAP)
        notes = [f"{entry.field}=cut off after {ROW_CAP} rows" for entry in entries if entry.oid in cut]
        try:
            return assemble(self._name, boottime_ns, self._served, rows | walked, notes)
        except Malformed as error:
            raise Malformed(f"{self._device}: {error}") from error
