"""
From chronyd's answers to a sample of the system clock against UTC, or the reason why there is none. Pure.

chronyd over its command protocol: docs/clock-sources.md.
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
    chronyd's answers of one poll. The clocks were read before the first question and, what ends in `_after`, behind the last;
    the kernel's frequency around TRACKING (None: it does not tell).
    """

    boottime_ns: int
    real_minus_boot_ns: int
    real_minus_boot_after_ns: int
    kernel_ppb: tuple[int | None, int | None]
    tracking: Tracking
    sources: tuple[NtpSource, ...]


class ChronyHistory:
    """What is remembered between polls, in order to notice steps. It outlives chronyd."""

    def __init__(self, source: str, max_clock_error_ppb: int) -> None:
        self._source = source
        self._max_clock_error_ppb = max_clock_error_ppb
        self._real_minus_boot_ns: int | None = None
        self._void_reference: tuple[int, int, int] | None = None

    def take(self, picture: ChronySnapshot) -> UtcSample | NoSample:
        """After a step chronyd goes on to tell what it knew before, until it measures again: only then it is believed."""
        before_ns = picture.real_minus_boot_ns if self._real_minus_boot_ns is None else self._real_minus_boot_ns
        by_ns = picture.real_minus_boot_after_ns - before_ns
        self._real_minus_boot_ns = picture.real_minus_boot_after_ns
        if abs(by_ns) > STEP_TOLERANCE_NS:
            self._void_reference = picture.tracking.reference_time
            reason = f"clock stepped by {by_ns / 1e6:+.3f} ms"
            return NoSample(self._source, picture.boottime_ns, reason, stepped=True)
        reason = self._why_none(picture) or ""
        if reason:
            return NoSample(self._source, picture.boottime_ns, reason)
        self._void_reference = None
        return self._sample(picture)

    def _why_none(self, picture: ChronySnapshot) -> str | None:
        tracking = picture.tracking
        if tracking.leap == "unsynchronised" or tracking.stratum == 0 or tracking.reference_id == 0:
            return f"chronyd is not synchronised: {_states(picture.sources)}"
        if tracking.reference_id == LOCAL_REFERENCE:
            return "chronyd follows no source, only its own clock (its directive `local`)"
        if tracking.reference_time == self._void_reference:
            return "chronyd has measured nothing since the clock was stepped"
        if None in picture.kernel_ppb:
            return "the kernel does not tell how the clock is steered (adjtimex)"
        return None

    def _sample(self, picture: ChronySnapshot) -> UtcSample:
        tracking = picture.tracking
        return UtcSample(
            source=self._source,
            as_of_ns=picture.boottime_ns,
            real_minus_boot_ns=picture.real_minus_boot_ns,
            offset_ns=_ns(-tracking.current_correction_s),
            error_ns=_error_ns(tracking),
            growth_ppb=_growth_ppb(tracking) + self._max_clock_error_ppb + _steering_ppb(picture),
            reference=tracking.reference,
            stratum=tracking.stratum,
            leap=tracking.leap,
            root_delay_ns=_ns(tracking.root_delay_s),
            root_dispersion_ns=_ns(tracking.root_dispersion_s),
            frequency_ppb=_frequency_ppb(tracking),
            skew_ppb=math.ceil(tracking.skew_ppm * _PPB_PER_PPM),
            ntp_sources=picture.sources,
        )


def ntp_source(data: SourceData, stats: SourceStats) -> NtpSource:
    """One row; what was never measured is None."""
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
    """The root distance, and what is lost where chronyd writes a number into 24 bits."""
    distance_s = tracking.root_dispersion_s + tracking.root_delay_s / 2
    told_s = abs(tracking.current_correction_s) + distance_s
    return _up_ns(distance_s + told_s * FLOAT_RESOLUTION)


def _growth_ppb(tracking: Tracking) -> int:
    return math.ceil((tracking.skew_ppm + abs(tracking.residual_frequency_ppm)) * _PPB_PER_PPM)


def _frequency_ppb(tracking: Tracking) -> int:
    """chronyd tells how much the clock runs too fast: it is made to run so much slower."""
    return round(-tracking.frequency_ppm * _PPB_PER_PPM)


def _steering_ppb(picture: ChronySnapshot) -> int:
    """
    How far the clock's rate is from what chronyd holds for right: while it slews an offset away, and all the time where it may not steer
    the clock (`chronyd -x`).
    """
    believed_ppb = _frequency_ppb(picture.tracking)
    return max(abs(kernel_ppb - believed_ppb) for kernel_ppb in picture.kernel_ppb if kernel_ppb is not None)


def _states(sources: Sequence[NtpSource]) -> str:
    return ", ".join(f"{source.name} is {source.state}" for source in sources) or "it has no sources"


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _up_ns(seconds: float) -> int:
    return math.ceil(seconds * NS_PER_S)


#: No more of chronyd's sources are asked for.
MAX_SOURCES = 32

_ANSWERS_WITHIN_S = 1.0


class ChronyOptions(BaseModel):
    """`address` unset: chronyd's UNIX socket where it can be used, else UDP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str | None = None
    poll_interval_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    max_clock_error_ppb: Annotated[int, Field(ge=0, le=10**9)] = 1000

    @field_validator("address")
    @classmethod
    def _is_one(cls, address: str | None) -> str | None:
        if address is not None:
            parse_address(address)
        return address


class Chrony:
    """Reads one chronyd, and can change nothing in it."""

    Options: ClassVar[type[BaseModel]] = ChronyOptions
    timeout_s = 1.5

    def __init__(self, name: str, options: ChronyOptions, runtime_dir: Path, clocks: Clocks | None = None) -> None:
        self.poll_interval_s = options.poll_interval_s
        self._name = name
        self._configured = options.address
        self._clocks = clocks or SystemClocks()
        self._history = ChronyHistory(name, options.max_clock_error_ppb)
        self._conversation = ChronyClient()

    async def open(self) -> None:
        """Raises Unreachable."""
        self._address = parse_address(self._configured) if self._configured else default_address()
        await self._conversation.open(self._address, self._name)

    async def poll(self) -> Sequence[Reading]:
        """Raises Unreachable, Malformed and Refused."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                return [self._history.take(await self._picture())]
        except TimeoutError:
            raise Unreachable(f"{address_text(self._address)}: no answer within {_ANSWERS_WITHIN_S:g} s") from None
        except SourceError as error:
            raise type(error)(f"{address_text(self._address)}: {error}") from error

    async def close(self) -> None:
        self._conversation.close()

    async def _picture(self) -> ChronySnapshot:
        asked_ns, asked_real_minus_boot_ns = self._clocks.boottime_ns(), real_minus_boot_ns(self._clocks)
        kernel_ppb = frequency_ppb()
        tracking = await self._conversation.ask(Tracking, Command.TRACKING)
        return ChronySnapshot(
            boottime_ns=asked_ns,
            real_minus_boot_ns=asked_real_minus_boot_ns,
            kernel_ppb=(kernel_ppb, frequency_ppb()),
            tracking=tracking,
            sources=await self._sources(),
            real_minus_boot_after_ns=real_minus_boot_ns(self._clocks),
        )

    async def _sources(self) -> tuple[NtpSource, ...]:
        """Those that are still there when their turn comes."""
        count = (await self._conversation.ask(SourceCount, Command.N_SOURCES)).sources
        found = []
        for index in range(min(count, MAX_SOURCES)):
            try:
                data = await self._conversation.ask(SourceData, Command.SOURCE_DATA, index)
                stats = await self._conversation.ask(SourceStats, Command.SOURCE_STATS, index)
            except NoSuchSource:
                break
            found.append(ntp_source(data, stats))
        return tuple(found)
