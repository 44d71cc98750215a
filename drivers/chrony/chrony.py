"""
The driver for chronyd: samples of the system clock against UTC, over chronyd's command protocol. See docs/clock-sources.md.

`ChronyHistory` turns chronyd's replies into a sample, or the reason why there is none, without I/O.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, Clocks, SystemClocks, real_minus_boot_ns
from timesyncd.drivers.chrony._protocol import (
    FLOAT_RESOLUTION,
    LOCAL_REFERENCE,
    Command,
    NoSuchSource,
    SourceCount,
    SourceData,
    SourceStats,
    Tracking,
)
from timesyncd.drivers.chrony._socket import ChronyClient, address_text, default_address, parse_address
from timesyncd.drivers.kernel._adjtimex import frequency_ppb
from timesyncd.errors import SourceError, Unreachable
from timesyncd.sample import NoSample, NtpSource, Reading, UtcSample

_PPB_PER_PPM = 1_000


@dataclass(frozen=True, slots=True)
class ChronySnapshot:
    """
    chronyd's replies of one poll. The clocks were read before the first request, and `real_minus_boot_after_ns` after the last
    reply; `kernel_ppb` is the kernel's frequency before and after TRACKING (None: not readable).
    """

    boottime_ns: int
    real_minus_boot_ns: int
    real_minus_boot_after_ns: int
    kernel_ppb: tuple[int | None, int | None]
    tracking: Tracking
    sources: tuple[NtpSource, ...]


class ChronyHistory:
    """Detects steps of the clock between polls. It survives restarts of chronyd."""

    def __init__(self, source: str, max_clock_error_ppb: int) -> None:
        self._source = source
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
        if None in snapshot.kernel_ppb:
            return "the clock's frequency cannot be read from the kernel (adjtimex)"
        return None

    def _sample(self, snapshot: ChronySnapshot) -> UtcSample:
        tracking = snapshot.tracking
        return UtcSample(
            source=self._source,
            as_of_ns=snapshot.boottime_ns,
            real_minus_boot_ns=snapshot.real_minus_boot_ns,
            offset_ns=_ns(-tracking.current_correction_s),
            error_ns=_error_ns(tracking),
            growth_ppb=_growth_ppb(tracking) + self._max_clock_error_ppb + _steering_ppb(snapshot),
            reference=tracking.reference,
            stratum=tracking.stratum,
            leap=tracking.leap,
            root_delay_ns=_ns(tracking.root_delay_s),
            root_dispersion_ns=_ns(tracking.root_dispersion_s),
            frequency_ppb=_frequency_ppb(tracking),
            skew_ppb=math.ceil(tracking.skew_ppm * _PPB_PER_PPM),
            ntp_sources=snapshot.sources,
        )


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


#: At most so many of chronyd's sources are read.
MAX_SOURCES = 32

_TIMEOUT_S = 1.0


class ChronyOptions(BaseModel):
    """`address` unset: chronyd's UNIX socket if this process may use it, else UDP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str | None = None
    poll_interval_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    max_clock_error_ppb: Annotated[int, Field(ge=0, le=10**9)] = 1000

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
        self._history = ChronyHistory(name, options.max_clock_error_ppb)
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
        return ChronySnapshot(
            boottime_ns=before_ns,
            real_minus_boot_ns=real_minus_boot_before_ns,
            kernel_ppb=(kernel_ppb, frequency_ppb()),
            tracking=tracking,
            sources=await self._sources(),
            real_minus_boot_after_ns=real_minus_boot_ns(self._clocks),
        )

    async def _sources(self) -> tuple[NtpSource, ...]:
        """chronyd's sources; the list ends early if a source is removed meanwhile."""
        count = (await self._client.request(SourceCount, Command.N_SOURCES)).sources
        found = []
        for index in range(min(count, MAX_SOURCES)):
            try:
                data = await self._client.request(SourceData, Command.SOURCE_DATA, index)
                stats = await self._client.request(SourceStats, Command.SOURCE_STATS, index)
            except NoSuchSource:
                break
            found.append(ntp_source(data, stats))
        return tuple(found)
