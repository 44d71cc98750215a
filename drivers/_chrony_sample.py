"""From chronyd's answers to a sample of the system clock against UTC, or the reason why there is none. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS
from timesyncd.drivers._chrony_protocol import FLOAT_RESOLUTION, LOCAL_REFERENCE, SourceData, SourceStats, Tracking
from timesyncd.sample import NoSample, NtpSource, UtcSample

_PPB_PER_PPM = 1_000


@dataclass(frozen=True, slots=True)
class Picture:
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


class History:
    """What is remembered between polls, in order to notice steps. It outlives chronyd."""

    def __init__(self, source: str, max_clock_error_ppb: int) -> None:
        self._source = source
        self._max_clock_error_ppb = max_clock_error_ppb
        self._real_minus_boot_ns: int | None = None
        self._void_reference: tuple[int, int, int] | None = None

    def take(self, picture: Picture) -> UtcSample | NoSample:
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

    def _why_none(self, picture: Picture) -> str | None:
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

    def _sample(self, picture: Picture) -> UtcSample:
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


def _steering_ppb(picture: Picture) -> int:
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
