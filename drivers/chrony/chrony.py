"""
The driver for chronyd: samples of the system clock against UTC, over chronyd's command protocol.

See docs/clock-sources.md. `ChronyHistory` turns chronyd's replies into a sample, or the reason why there is none,
without I/O. `ChronyClient` sends one request at a time, over UDP or chronyd's UNIX socket.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import secrets
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, field_validator

from timesyncd.bound import growth_ns
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, Clocks, SystemClocks, real_minus_boot_ns
from timesyncd.config import Section
from timesyncd.driver import Traffic, current_traffic
from timesyncd.drivers.chrony._protocol import (
    FLOAT_RESOLUTION,
    LOCAL_REFERENCE,
    ChronyRequest,
    Command,
    Content,
    NoSuchSource,
    SourceCount,
    SourceData,
    SourceStats,
    Tracking,
    parse,
)
from timesyncd.drivers.kernel._machine import frequency_ppb
from timesyncd.errors import Malformed, SourceError, Unreachable
from timesyncd.model.error_bound import MAX_PLAUSIBLE_NS
from timesyncd.model.selection import Claim, agree
from timesyncd.sample import NoSample, NtpSource, Reading, UtcOrigin, UtcSample

_PPB_PER_PPM = 1_000

#: chronyd averages the sources in these states.
_COMBINED_STATES = ("selected", "selectable")

#: How chronyd and timemaster name the reference clocks that are PTP hardware clocks, or that linuxptp feeds.
PHC_PREFIXES = ("PHC", "PTP")

_UNSYNCHRONISED_STRATUM = 16

_NO_REFCLOCKS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ChronySnapshot:
    """
    chronyd's replies of one poll. The clocks were read before the first request, and `real_minus_boot_after_ns` after the last
    reply; `kernel_ppb` is the kernel's frequency before and after TRACKING (None: not readable). chronyd has `counted` sources,
    of which at most MAX_SOURCES were read.
    """

    boottime_ns: int
    real_minus_boot_ns: int
    real_minus_boot_after_ns: int
    kernel_ppb: tuple[int | None, int | None]
    tracking: Tracking
    sources: tuple[NtpSource, ...]
    counted: int = 0


class ChronyHistory:
    """Detects steps of the clock between polls. It survives restarts of chronyd."""

    def __init__(self, source: str, max_clock_error_ppb: int, refclocks: Mapping[str, int] = _NO_REFCLOCKS) -> None:
        """`refclocks`: the error in ns of each declared receiver, by its reference id."""
        self._source = source
        self._refclocks = refclocks
        self._max_clock_error_ppb = max_clock_error_ppb
        self._real_minus_boot_ns: int | None = None
        self._reference_before_step: tuple[int, int, int] | None = None

    def take(self, snapshot: ChronySnapshot) -> UtcSample | NoSample:
        """After a step, chronyd's values are those from before it until its next measurement: till then there is no sample."""
        before_ns = snapshot.real_minus_boot_ns if self._real_minus_boot_ns is None else self._real_minus_boot_ns
        by_ns = snapshot.real_minus_boot_after_ns - before_ns
        self._real_minus_boot_ns = snapshot.real_minus_boot_after_ns
        if abs(by_ns) > STEP_TOLERANCE_NS:
            self._reference_before_step = snapshot.tracking.reference_time
            reason = f"the clock was stepped by {by_ns / 1e6:+.3f} ms"
            return NoSample(self._source, snapshot.boottime_ns, reason, stepped=True)
        if (problem := self._problem(snapshot)) is not None:
            return NoSample(self._source, snapshot.boottime_ns, problem)
        self._reference_before_step = None
        return self._sample(snapshot)

    def _problem(self, snapshot: ChronySnapshot) -> str | None:
        tracking = snapshot.tracking
        if tracking.leap == "unsynchronised" or tracking.stratum == 0 or tracking.reference_id == 0:
            return f"chronyd is not synchronised: {_states(snapshot.sources)}"
        if tracking.reference_id == LOCAL_REFERENCE:
            return "chronyd follows its own clock (directive `local`) instead of a source"
        if tracking.reference_time == self._reference_before_step:
            return "chronyd has not measured since the clock was stepped"
        if snapshot.counted > MAX_SOURCES:
            return f"chronyd has {snapshot.counted} sources, more than the {MAX_SOURCES} that can be compared"
        if None in snapshot.kernel_ppb:
            return "the clock's frequency cannot be read from the kernel (adjtimex)"
        return None

    def _sample(self, snapshot: ChronySnapshot) -> UtcSample:
        tracking = snapshot.tracking
        followed = _followed_refclocks(snapshot)
        declared = [self._refclocks[name] for name in followed if name in self._refclocks]
        sample = UtcSample(
            source=self._source,
            as_of_ns=snapshot.boottime_ns,
            real_minus_boot_ns=snapshot.real_minus_boot_ns,
            offset_ns=_ns(-tracking.current_correction_s),
            error_ns=_error_ns(tracking) + max(declared, default=0),
            growth_ppb=_growth_ppb(tracking) + self._max_clock_error_ppb + _steering_ppb(snapshot),
            reference=tracking.reference,
            stratum=tracking.stratum,
            leap=tracking.leap,
            root_delay_ns=_ns(tracking.root_delay_s),
            root_dispersion_ns=_ns(tracking.root_dispersion_s),
            frequency_ppb=_frequency_ppb(tracking),
            skew_ppb=math.ceil(tracking.skew_ppm * _PPB_PER_PPM),
            ntp_sources=snapshot.sources,
            origin=_origin(followed, self._refclocks),
        )
        return _compared(sample, self._refclocks)


def _followed_refclocks(snapshot: ChronySnapshot) -> set[str]:
    """The reference clocks in chronyd's estimate: it averages the selected source with the selectable ones."""
    tracking = snapshot.tracking
    combined = {
        source.name for source in snapshot.sources if source.kind == "refclock" and source.state in _COMBINED_STATES
    }
    return combined | ({tracking.reference} if tracking.follows_refclock else set())


def _origin(followed: Collection[str], declared: Collection[str]) -> UtcOrigin:
    if any(name.startswith(PHC_PREFIXES) for name in followed):
        return UtcOrigin.PHC
    if any(name not in declared for name in followed):
        return UtcOrigin.REFCLOCK
    return UtcOrigin.RECEIVER if followed else UtcOrigin.NETWORK


#: The name under which chronyd's own estimate is compared with its sources.
_ESTIMATE = ""


def _compared(sample: UtcSample, declared: Mapping[str, int]) -> UtcSample:
    """
    The sample with what its own sources say of it. chronyd reports those that contradict the one that it follows, and
    goes on with that one: where no majority excludes all else than its estimate, the interval spans that and all that
    contradict it. A source that allows for both supports neither. A reference clock that is not declared is compared,
    and has no vote, since its own error is unknown.
    """
    own = Claim(0, sample.offset_ns - sample.error_ns, sample.offset_ns + sample.error_ns, 0)
    intervals = [_interval(source, sample.growth_ppb, declared) for source in sample.ntp_sources]
    votes = {_ESTIMATE: own}
    compared = []
    for number, (source, interval) in enumerate(zip(sample.ntp_sources, intervals, strict=True)):
        apart_ns = None if interval is None else max(interval.low_ns - own.high_ns, own.low_ns - interval.high_ns)
        compared.append(replace(source, contradicts_by_ns=apart_ns if apart_ns is not None and apart_ns > 0 else None))
        if interval is not None and (source.kind != "refclock" or source.name in declared):
            votes[str(number)] = interval
    sample = replace(sample, ntp_sources=tuple(compared))
    agreement = agree(votes, 0)
    if not agreement.contradiction and own.low_ns <= agreement.low_ns and agreement.high_ns <= own.high_ns:
        return sample
    apart = [own, *(each for each in votes.values() if each.low_ns > own.high_ns or each.high_ns < own.low_ns)]
    low_ns, high_ns = min(each.low_ns for each in apart), max(each.high_ns for each in apart)
    middle_ns = (low_ns + high_ns) // 2
    return replace(sample, offset_ns=middle_ns, error_ns=high_ns - middle_ns, covers_contradicting=True)


def _interval(source: NtpSource, growth_ppb: int, declared: Mapping[str, int]) -> Claim | None:
    """
    The clock's offset by this source now; None where it has none. The selected one is chronyd's own estimate.

    A server that is not synchronised itself has stratum 0 or 16, and a reference clock has 0.
    """
    offset_ns = source.offset_ns if source.adjusted_offset_ns is None else source.adjusted_offset_ns
    is_synchronised = source.kind == "refclock" or 0 < source.stratum < _UNSYNCHRONISED_STRATUM
    if offset_ns is None or source.error_ns is None or source.since_sample_s is None:
        return None
    if source.state == "selected" or source.reachability == 0 or not is_synchronised:
        return None
    error_ns = source.error_ns + declared.get(source.name, 0) if source.kind == "refclock" else source.error_ns
    error_ns += growth_ns(growth_ppb, source.since_sample_s * NS_PER_S)
    if error_ns > MAX_PLAUSIBLE_NS:
        return None
    return Claim(0, offset_ns - error_ns, offset_ns + error_ns, 0)


def ntp_source(data: SourceData, stats: SourceStats) -> NtpSource:
    """One source; values that were never measured are None."""
    measured = data.since_sample_s is not None
    return NtpSource(
        name=data.name,
        state=data.state,
        stratum=data.stratum,
        reachability=data.reachability,
        offset_ns=_ns(data.measured_s) if measured else None,
        error_ns=_up_ns(data.error_s) if measured else None,
        since_sample_s=data.since_sample_s,
        samples=stats.samples,
        estimate_ns=_ns(stats.offset_s) if stats.samples else None,
        estimate_error_ns=_up_ns(stats.offset_error_s) if stats.samples else None,
        spread_ns=_up_ns(stats.deviation_s) if stats.samples else None,
        kind=data.kind,
        adjusted_offset_ns=_ns(data.adjusted_s) if measured else None,
    )


def _error_ns(tracking: Tracking) -> int:
    """The root distance plus the rounding error of chronyd's 24-bit Floats."""
    distance_s = tracking.root_dispersion_s + tracking.root_delay_s / 2
    reported_s = abs(tracking.current_correction_s) + distance_s
    return _up_ns(distance_s + reported_s * FLOAT_RESOLUTION)


def _growth_ppb(tracking: Tracking) -> int:
    return math.ceil((tracking.skew_ppm + abs(tracking.residual_frequency_ppm)) * _PPB_PER_PPM)


def _frequency_ppb(tracking: Tracking) -> int:
    """chronyd reports how fast the clock runs uncorrected; the applied correction is the opposite."""
    return round(-tracking.frequency_ppm * _PPB_PER_PPM)


def _steering_ppb(snapshot: ChronySnapshot) -> int:
    """
    How far the clock's rate is from the one that chronyd estimates as right: while it slews an offset, and always if it does not
    control the clock (`chronyd -x`).
    """
    estimated_ppb = _frequency_ppb(snapshot.tracking)
    return max(abs(kernel_ppb - estimated_ppb) for kernel_ppb in snapshot.kernel_ppb if kernel_ppb is not None)


def _states(sources: Sequence[NtpSource]) -> str:
    return ", ".join(f"{source.name} is {source.state}" for source in sources) or "it has no sources"


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _up_ns(seconds: float) -> int:
    return math.ceil(seconds * NS_PER_S)


#: With more sources there is no sample: one that was not read may contradict the others, or be a PTP hardware clock.
MAX_SOURCES = 128

_TIMEOUT_S = 1.0


class Refclock(Section):
    """A reference clock of chronyd that is a GNSS receiver: it is within `error_ns` of UTC, by the operator's word."""

    gps: Literal[True]
    error_ns: Annotated[int, Field(ge=0, le=10**12)]


class ChronyOptions(Section):
    """
    `address` unset: chronyd's UNIX socket if this process may use it, else UDP. `refclocks`: what each reference clock
    is, by its reference id.
    """

    address: str | None = None
    poll_interval_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    max_clock_error_ppb: Annotated[int, Field(ge=0, le=10**9)] = 1000
    refclocks: dict[Annotated[str, Field(pattern=r"^[!-~]{1,4}$")], Refclock] = Field(default_factory=dict)

    @field_validator("refclocks")
    @classmethod
    def _are_receivers(cls, refclocks: dict[str, Refclock]) -> dict[str, Refclock]:
        for name in refclocks:
            if name.startswith(PHC_PREFIXES):
                raise ValueError(
                    f"{name} names a PTP hardware clock, which PTP may steer; give a receiver another refid"
                )
        return refclocks

    @field_validator("address")
    @classmethod
    def _is_address(cls, address: str | None) -> str | None:
        if address is not None:
            parse_address(address)
        return address


class Chrony:
    """Reads one chronyd; it sends only requests that read."""

    Options: ClassVar[type[BaseModel]] = ChronyOptions
    timeout_s = 1.5

    def __init__(self, name: str, options: ChronyOptions, runtime_dir: Path, clocks: Clocks | None = None) -> None:
        self.poll_interval_s = options.poll_interval_s
        self._name = name
        self._configured = options.address
        self._clocks = clocks or SystemClocks()
        declared = {name: refclock.error_ns for name, refclock in options.refclocks.items()}
        self._history = ChronyHistory(name, options.max_clock_error_ppb, declared)
        self._client = ChronyClient()

    async def open(self) -> None:
        """Raises Unreachable."""
        self._address = parse_address(self._configured) if self._configured else default_address()
        await self._client.open(self._address, self._name)

    async def poll(self) -> Sequence[Reading]:
        """Raises Unreachable, Malformed and Refused."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return [self._history.take(await self._snapshot())]
        except TimeoutError:
            raise Unreachable(f"{address_text(self._address)}: no answer within {_TIMEOUT_S:g} s") from None
        except SourceError as error:
            raise type(error)(f"{address_text(self._address)}: {error}") from error

    async def close(self) -> None:
        self._client.close()

    async def _snapshot(self) -> ChronySnapshot:
        before_ns, real_minus_boot_before_ns = self._clocks.boottime_ns(), real_minus_boot_ns(self._clocks)
        kernel_ppb = frequency_ppb()
        tracking = await self._client.request(Tracking, Command.TRACKING)
        counted, sources = await self._sources()
        return ChronySnapshot(
            boottime_ns=before_ns,
            real_minus_boot_ns=real_minus_boot_before_ns,
            kernel_ppb=(kernel_ppb, frequency_ppb()),
            tracking=tracking,
            sources=sources,
            counted=counted,
            real_minus_boot_after_ns=real_minus_boot_ns(self._clocks),
        )

    async def _sources(self) -> tuple[int, tuple[NtpSource, ...]]:
        """The number of chronyd's sources, and at most MAX_SOURCES of them; fewer if a source is removed meanwhile."""
        count = (await self._client.request(SourceCount, Command.N_SOURCES)).sources
        found = []
        for index in range(min(count, MAX_SOURCES)):
            try:
                data = await self._client.request(SourceData, Command.SOURCE_DATA, index)
                stats = await self._client.request(SourceStats, Command.SOURCE_STATS, index)
            except NoSuchSource:
                break
            found.append(ntp_source(data, stats))
        return count, tuple(found)


#: A UNIX socket's path, or host and port.
Address = Path | tuple[str, int]

UNIX_ADDRESS = Path("/run/chrony/chronyd.sock")
UDP_ADDRESS = ("127.0.0.1", 323)

T = TypeVar("T", bound=Content)


class ChronyClient(asyncio.DatagramProtocol):
    """
    A client with one pending request. The socket is connected, so that the kernel drops other senders' datagrams; a late reply is
    recognized by its sequence number. It fails for ever once chronyd has stopped: close it and open it again.
    """

    def __init__(self) -> None:
        self._sequence = 0
        self._reply: asyncio.Future[Content] | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._own: Path | None = None
        self._traffic = Traffic()

    async def open(self, address: Address, name: str) -> None:
        """Raises Unreachable."""
        try:
            if isinstance(address, Path):
                await self._open_unix(address, name)
            else:
                await self._connect(socket.AF_UNSPEC, None, address)
        except (OSError, ValueError) as error:  # ValueError: a host name that cannot be encoded
            self.close()
            raise Unreachable(f"{address_text(address)}: {os_error_text(error)}") from error

    async def request(self, kind: type[T], command: Command, index: int | None = None) -> T:
        """Send a request and wait for its reply, without a timeout. Raises Unreachable, Malformed and Refused."""
        if self._transport is None:
            raise Unreachable("not open")
        self._sequence = secrets.randbits(32)
        self._reply = asyncio.get_running_loop().create_future()
        try:
            datagram = ChronyRequest(command, self._sequence, index).to_bytes()
            self._traffic.sent(len(datagram))
            self._transport.sendto(datagram)
            content = await self._reply
        finally:
            self._reply = None
        if not isinstance(content, kind):
            raise Malformed(f"{type(content).__name__} instead of {kind.__name__}")
        return content

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if self._own is not None:
            with suppress(OSError):
                self._own.unlink(missing_ok=True)
            self._own = None

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._traffic.received(len(data))
        try:
            reply = parse(data)
            if self._reply is None or self._reply.done() or reply.sequence != self._sequence:
                return
            self._reply.set_result(reply.content())
        except SourceError as error:
            self._fail(error)

    def error_received(self, exc: Exception) -> None:
        self._fail(Unreachable(os_error_text(exc)))

    async def _open_unix(self, server: Path, name: str) -> None:
        """Bind beside chronyd's own socket, as chronyc does: chronyd may write there even if it is confined."""
        _remove_stale(server.parent, name)
        self._own = server.parent / f"timesyncd.{name}.{os.getpid()}.sock"
        await self._connect(socket.AF_UNIX, str(self._own), str(server))
        self._own.chmod(0o666)  # chronyd runs as another user

    async def _connect(self, family: int, own: str | None, server: str | tuple[str, int]) -> None:
        self._traffic = current_traffic()
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=own, remote_addr=server, family=family
        )

    def _fail(self, error: SourceError) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)


def default_address() -> Address:
    """chronyd's UNIX socket if this process may use it (as root or chronyd's own user), else UDP."""
    usable = os.access(UNIX_ADDRESS, os.W_OK) and os.access(UNIX_ADDRESS.parent, os.W_OK)
    return UNIX_ADDRESS if usable else UDP_ADDRESS


def parse_address(text: str) -> Address:
    """A path that begins with /, host:port or [IPv6]:port. Raises ValueError."""
    if "\0" in text:
        raise ValueError("an address cannot contain NUL")
    if text.startswith("/"):
        return Path(text)
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):([0-9]{1,5})", text)
    if found is None or not 1 <= int(found[3]) <= 65535:
        raise ValueError("give the path of a UNIX socket, host:port or [IPv6]:port")
    host = found[1] or found[2]
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{host}: not a host name: {error}") from error
    return host, int(found[3])


def address_text(address: Address) -> str:
    """The inverse of `parse_address`."""
    if isinstance(address, Path):
        return str(address)
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def os_error_text(error: Exception) -> str:
    """What the error means for a connection to chronyd, and what to do."""
    match error:
        case ConnectionRefusedError():
            return "connection refused: is chronyd running, and does it listen on this address?"
        case FileNotFoundError():
            return "no such socket: is chronyd running?"
        case PermissionError():
            return "permission denied: only root and chronyd's user may use its UNIX socket; every user may use UDP 127.0.0.1:323"
        case OSError():
            return error.strerror or str(error)
    return str(error)


def _remove_stale(folder: Path, name: str) -> None:
    """Remove the socket files that killed processes of this source left behind."""
    pattern = re.compile(rf"timesyncd\.{re.escape(name)}\.(\d+)\.sock")
    for path in folder.iterdir():
        found = pattern.fullmatch(path.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            path.unlink(missing_ok=True)
