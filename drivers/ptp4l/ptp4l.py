"""The driver for linuxptp's ptp4l, 3.1.1 and 4.x, over its management socket. See docs/ptp4l.md."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field

from timesyncd.bound import SYSTEM_CLOCK_LIMIT_PPB
from timesyncd.clocks import NS_PER_S, Clocks, Moment, SystemClocks, real_minus_boot_ns
from timesyncd.config import FilePath, Section
from timesyncd.drivers.kernel._machine import Machine, frequency_ppb
from timesyncd.drivers.phc._device import PhcReader, phc_index
from timesyncd.drivers.ptp4l._event_monitor import EventMonitor, exchanges
from timesyncd.drivers.ptp4l._history import FOLLOWING, Ptp4lSnapshot, SyncHistory, interval_ns
from timesyncd.drivers.ptp4l._management import (
    ALL_PORTS,
    Content,
    CurrentDataSet,
    DefaultDataSet,
    ManagementId,
    ManagementRequester,
    ParentDataSet,
    PortDataSet,
    PortHwclock,
    PortProperties,
    PortStats,
    TimeProperties,
    TimeStatus,
)
from timesyncd.drivers.ptp4l._socket import (
    MAX_QUERIES,
    ManagementClient,
    ManagementQuery,
    PushSubscription,
    QueryTimeout,
    new_requester,
    own_path,
    remove_stale,
)
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.sample import ClockSample, PhcSample, Reading

#: The read-write socket first: only it reports the time stamping and pushes. Newer paths before older ones.
DEFAULT_ADDRESSES = tuple(map(Path, ("/run/ptp/ptp4l", "/var/run/ptp4l", "/run/ptp/ptp4lro", "/var/run/ptp4lro")))

_FASTEST_POLL_S = 1 / 16
_SLOWEST_POLL_S = 1.0
_GRANULARITY_NS = {"software": 1, "hardware": 8}  # a hardware counter at 125 MHz has a resolution of 8 ns

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Ptp4lOptions(Section):
    """
    `uds_address` unset: the default paths of linuxptp. `poll_interval_s` unset: the Sync interval. `slave_event_monitor` is the path
    of ptp4l's option of the same name, to which it sends raw time stamps; unset: not received.
    """

    uds_address: FilePath | None = None
    domain: Annotated[int, Field(ge=0, le=255)] = 0
    transport_specific: Annotated[int, Field(ge=0, le=15)] = 0
    poll_interval_s: Annotated[float, Field(ge=0.01, le=60)] | None = None
    time_stamping: Literal["software", "hardware"] | None = None
    phc: Annotated[int, Field(ge=0)] | None = None
    slave_event_monitor: FilePath | None = None


class Ptp4l:
    """Reads one ptp4l; it changes nothing there. Its history survives `close`, so that it detects a restart."""

    Options: ClassVar[type[BaseModel]] = Ptp4lOptions
    timeout_s = 1.5

    def __init__(
        self,
        name: str,
        options: Ptp4lOptions,
        runtime_dir: Path,
        clocks: Clocks | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.poll_interval_s = options.poll_interval_s or _SLOWEST_POLL_S
        self._name = name
        self._options = options
        self._runtime_dir = runtime_dir
        self._clocks = clocks or SystemClocks()
        self._machine = machine or Machine()
        self._history = SyncHistory(name)
        self._instance: tuple[object, ...] | None = None
        self._client: ManagementClient | None = None
        self._pushes: PushSubscription | None = None
        self._monitor: EventMonitor | None = None
        self._phc: PhcReader | None = None
        self._phc_problem: str | None = None
        self._followers: tuple[int, ...] = ()

    async def open(self) -> None:
        """Raises Unreachable, Malformed and Refused."""
        remove_stale(self._runtime_dir, self._name)
        self._server = _find_server(self._options.uds_address)
        self._client = ManagementClient(
            own_path(self._runtime_dir, self._name, ""), self._server, self._new_requester()
        )
        default = await self._default_data_set()
        self._client.clock_identity = self._history.clock_identity = default.clock_identity
        self._number_ports, self._history.domain = default.number_ports, default.domain
        stamping = self._options.time_stamping or await self._time_stamping()
        self._history.clock = "realtime" if stamping == "software" else _phc_name(None)
        self._history.granularity_ns = _GRANULARITY_NS[stamping]
        self._port, self._followers = 1, ()
        await self._ask_all_ports()
        await self._find_phc()
        self._pushes = PushSubscription(
            own_path(self._runtime_dir, self._name, ".push"), self._server, self._new_requester(), self._clocks
        )
        if self._options.slave_event_monitor is not None:
            self._monitor = EventMonitor(
                self._options.slave_event_monitor, self._server, self._options.domain, default.clock_identity
            )
        self._has_restarted = self._is_another_instance()
        self._history.reset()

    async def poll(self) -> Sequence[Reading]:
        """Raises Unreachable, Malformed and Refused."""
        reading = await self._read()
        self._set_poll_interval()
        return [] if reading is None else [reading]

    async def close(self) -> None:
        for end in (self._monitor, self._pushes, self._client, self._phc):
            if end is not None:
                end.close()
        self._monitor = self._pushes = self._client = self._phc = None

    async def _read(self) -> Reading | None:
        pushes, interval_ns = self._pushes, self._history.sync_interval_ns() or NS_PER_S
        if pushes is not None and pushes.active and not await pushes.next(interval_ns):
            return None
        if self._has_restarted or self._is_another_instance():
            self._has_restarted = False
            return self._history.restart(self._clocks.boottime_ns())
        if self._number_ports > 1 and self._clocks.boottime_ns() - self._asked_all_ns >= NS_PER_S:
            await self._ask_all_ports()
        snapshot = await self._snapshot()
        self._history.daemon_pid = self._client.server_pid if self._client else None
        if snapshot.port.state not in FOLLOWING:
            await self._ask_all_ports()
            await self._find_phc()
        return self._with_exchanges(self._history.take(snapshot), snapshot)

    def _with_exchanges(self, reading: Reading | None, snapshot: Ptp4lSnapshot) -> Reading | None:
        """Add the exchanges received since the last reading to a sample; those before a NoSample are discarded."""
        if self._monitor is None:
            return reading
        if isinstance(reading, ClockSample):
            parent = (snapshot.parent.parent_identity, snapshot.parent.parent_port)
            forward_ns = reading.offset_ns + reading.path_delay_ns
            received = exchanges(self._monitor.take(), parent, reading.ingress_time_ns, forward_ns)
            reading = replace(reading, exchanges=received)
        elif reading is not None:
            self._monitor.take()
        port = snapshot.port
        self._monitor.renew(
            snapshot.status_again.ingress_time_ns,
            interval_ns(port.log_sync_interval),
            interval_ns(port.log_min_delay_req_interval),
        )
        return reading

    async def _snapshot(self) -> Ptp4lSnapshot:
        before = Moment.read(self._clocks)
        status, port, parent, current, properties, stats, again = await self._query(
            (ManagementId.TIME_STATUS_NP, ALL_PORTS),
            (ManagementId.PORT_DATA_SET, self._port),
            (ManagementId.PARENT_DATA_SET, ALL_PORTS),
            (ManagementId.CURRENT_DATA_SET, ALL_PORTS),
            (ManagementId.TIME_PROPERTIES_DATA_SET, ALL_PORTS),
            (ManagementId.PORT_STATS_NP, self._port),
            (ManagementId.TIME_STATUS_NP, ALL_PORTS),
        )
        read_ns, minus_boot_ns = self._clocks.boottime_ns(), real_minus_boot_ns(self._clocks)
        phc = self._phc_reading()
        return Ptp4lSnapshot(
            before=before,
            status=_expect(TimeStatus, status),
            port=_expect(PortDataSet, port),
            parent=_expect(ParentDataSet, parent),
            current=_expect(CurrentDataSet, current),
            properties=_expect(TimeProperties, properties),
            stats=None if isinstance(stats, Refused) else _expect(PortStats, stats),
            status_again=_expect(TimeStatus, again),
            read_ns=read_ns,
            real_minus_boot_ns=minus_boot_ns,
            frequency_ppb=phc.frequency_ppb if phc else self._frequency_ppb(),
            max_frequency_ppb=phc.max_frequency_ppb if phc else self._max_frequency_ppb(),
            phc=phc,
            followers=self._followers,
        )

    async def _query(self, *queries: ManagementQuery) -> list[Content | Refused]:
        if self._client is None:
            raise Unreachable("the driver is not open")
        return await self._client.query(queries)

    async def _default_data_set(self) -> DefaultDataSet:
        try:
            return _expect(DefaultDataSet, (await self._query((ManagementId.DEFAULT_DATA_SET, ALL_PORTS)))[0])
        except QueryTimeout as error:
            domain, specific = self._options.domain, self._options.transport_specific
            hint = f"set the source's domain and transport_specific to ptp4l's; they are {domain} and {specific} here"
            raise Unreachable(f"{self._server}: {error}; {hint}") from error

    async def _time_stamping(self) -> Literal["software", "hardware"]:
        response = (await self._query((ManagementId.PORT_PROPERTIES_NP, 1)))[0]
        if isinstance(response, Refused):
            raise Refused(f'{self._server}: {response}; set time_stamping = "software" or "hardware"') from response
        return "hardware" if _expect(PortProperties, response).hardware_stamps else "software"

    def _frequency_ppb(self) -> int | None:
        return frequency_ppb() if self._history.clock == "realtime" else None

    def _max_frequency_ppb(self) -> int | None:
        return SYSTEM_CLOCK_LIMIT_PPB if self._history.clock == "realtime" else None

    def _phc_reading(self) -> PhcSample | None:
        """The PHC against the system clock; None with software timestamps, and where it cannot be read."""
        if self._phc is None:
            return None
        try:
            reading = self._phc.compare(self._clocks)
        except SourceError as error:
            if self._phc_problem != str(error):
                self._phc_problem = str(error)
                _log.warning("source %s: %s; the bound stays wider without this reading", self._name, error)
            return None
        self._phc_problem = None
        return reading if isinstance(reading, PhcSample) else None

    async def _find_phc(self) -> None:
        """
        Which PHC ptp4l measures. It may change while no port follows: another slave of a bond, or another port, becomes
        the active one.
        """
        if self._history.clock == "realtime":
            return
        index = await self._phc_index()
        if self._phc is not None and self._history.clock == _phc_name(index):
            return
        if self._phc is not None:
            self._phc.close()
        self._phc = None if index is None else PhcReader(self._name, index, self._machine)
        self._history.clock = _phc_name(index)

    async def _phc_index(self) -> int | None:
        """
        The index of the PTP hardware clock: as configured, as ptp4l 4.x reports it, or that of the port's interface; None
        where ptp4l reports neither. With `free_running` ptp4l 4.x reports that it has no clock, and its stamps are the interface's.
        """
        if self._options.phc is not None:
            return self._options.phc
        response = (await self._query((ManagementId.PORT_HWCLOCK_NP, self._port)))[0]
        if not isinstance(response, Refused) and (phc := _expect(PortHwclock, response).phc) is not None:
            return phc
        response = (await self._query((ManagementId.PORT_PROPERTIES_NP, self._port)))[0]
        if isinstance(response, Refused):
            return None
        interface = _expect(PortProperties, response).interface
        try:
            return await asyncio.to_thread(phc_index, interface, self._machine)
        except SourceError as error:
            _log.warning("source %s: %s; set the source's phc to the number of its /dev/ptpN", self._name, error)
            return None

    async def _ask_all_ports(self) -> None:
        """Which ports follow a parent, where there are several; the first of them is read, port 1 if none follows."""
        self._asked_all_ns = self._clocks.boottime_ns()
        if self._number_ports == 1:
            return
        ports, followers = range(1, self._number_ports + 1), []
        for first in range(0, self._number_ports, MAX_QUERIES):
            batch = ports[first : first + MAX_QUERIES]
            for response in await self._query(*((ManagementId.PORT_DATA_SET, port) for port in batch)):
                if isinstance(response, PortDataSet) and response.state in FOLLOWING:
                    followers.append(response.port)
        self._followers = tuple(followers)
        if self._port not in followers:
            self._port = followers[0] if followers else 1

    def _is_another_instance(self) -> bool:
        """Whether ptp4l was restarted: it creates its socket at each start."""
        try:
            file = os.stat(self._server)
        except OSError as error:
            raise Unreachable(f"{self._server}: {error.strerror}") from error
        identity = self._client.clock_identity if self._client else None
        before, self._instance = self._instance, (file.st_dev, file.st_ino, file.st_mtime_ns, identity)
        return before not in (None, self._instance)

    def _set_poll_interval(self) -> None:
        """Read at every push if ptp4l pushes; otherwise poll at the Sync interval."""
        interval_ns = self._history.sync_interval_ns()
        if self._pushes is not None and interval_ns is not None:
            self._pushes.renew(interval_ns)
        followed_s = min(max((interval_ns or NS_PER_S) / NS_PER_S, _FASTEST_POLL_S), _SLOWEST_POLL_S)
        pushes = self._pushes is not None and self._pushes.active
        self.poll_interval_s = 0.0 if pushes else self._options.poll_interval_s or followed_s

    def _new_requester(self) -> ManagementRequester:
        return new_requester(self._options.domain, self._options.transport_specific)


def _find_server(configured: Path | None) -> Path:
    """Raises Unreachable."""
    candidates = (configured,) if configured else DEFAULT_ADDRESSES
    for path in candidates:
        if os.access(path, os.W_OK):
            return path
    denied = [str(path) for path in candidates if path.exists()]
    if denied:
        raise Unreachable(f"{', '.join(denied)}: permission denied; docs/ptp4l.md says how to grant it")
    raise Unreachable(f"{', '.join(map(str, candidates))}: no such socket: is ptp4l running?")


def _phc_name(index: int | None) -> str:
    return "phc" if index is None else f"phc:{index}"


def _expect(kind: type[T], response: Content | Refused) -> T:
    if isinstance(response, Refused):
        raise response
    if not isinstance(response, kind):
        raise Malformed(f"ptp4l sent {type(response).__name__} instead of {kind.__name__}")
    return response
