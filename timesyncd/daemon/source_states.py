"""
A clock source's newest reading as fields of SourceState: its numbers, and as `detail` what has no field of its own.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.steering import steering_text
from timesyncd.model.assumptions import Assumption, Refutation, SourceSettings
from timesyncd.model.leap import Leap
from timesyncd.sample import UNSPECIFIED_STRATUM, ClockSample, KernelSample, PhcSample, UtcOrigin, UtcSample

if TYPE_CHECKING:
    from timesyncd.config import BoundSettings

ClockReading = ClockSample | PhcSample | UtcSample | KernelSample

_ORIGINS = {
    UtcOrigin.RECEIVER: "a declared receiver",
    UtcOrigin.REFCLOCK: "a reference clock that refclocks does not declare",
    UtcOrigin.PHC: "a PTP hardware clock",
}

#: Where no source is configured with another one.
ASSUMED_UTC_OFFSET_S = SourceSettings().utc_offset_s

_NO_LEAP = ("normal", "none", "unknown")


def measured(reading: ClockReading, utc_offsets_s: Collection[int] = (ASSUMED_UTC_OFFSET_S,)) -> dict[str, object]:
    """Fields of SourceState. `utc_offsets_s`: TAI - UTC, as this node's sources are configured."""
    match reading:
        case ClockSample():
            return _against_parent(reading)
        case PhcSample():
            return _against_phc(reading, utc_offsets_s)
        case UtcSample():
            return _against_utc(reading)
        case KernelSample():
            return _kernel_status(reading)


def assumptions(
    reading: ClockReading, bounds: BoundSettings, refutations: Sequence[Refutation] = ()
) -> dict[str, object]:
    """
    The fields of SourceState that state what the source's bounds assume. An NTP daemon's bounds, and the kernel, rest on
    none of these values.
    """
    names = _ASSUMED_OF.get(type(reading), ())
    return {
        "assumed": {name: getattr(bounds, name) for name in names},
        "configured": [name for name in names if name in bounds.model_fields_set],
        "refuted": {refutation.assumption.value: refutation.observed for refutation in refutations},
    }


#: No file can set `step_tolerance_ns`, which is a term of its own.
_ASSUMED_OF: dict[type[ClockReading], tuple[str, ...]] = {
    ClockSample: tuple(each.name for each in fields(SourceSettings) if each.name != "step_tolerance_ns"),
    PhcSample: (Assumption.LOCAL_DRIFT.value, Assumption.DRIFT_FLOOR.value),
}


def _against_parent(sample: ClockSample) -> dict[str, object]:
    found: dict[str, object] = {
        "kind": "ptp",
        "clock": sample.clock,
        "daemon_pid": sample.daemon_pid,
        "port_state": sample.port_state.name,
        "offset_ns": sample.offset_ns,
        "path_delay_ns": sample.path_delay_ns,
        "frequency_ppb": sample.frequency_ppb,
        "domain": sample.domain,
    }
    return found if sample.grandmaster_identity is None else found | _announced(sample)


def _announced(sample: ClockSample) -> dict[str, object]:
    """What Announce carries."""
    leap = Leap.of_flags(sample.leap61, sample.leap59)
    return {
        "clock_class": sample.clock_class,
        "clock_accuracy": sample.clock_accuracy,
        "steps_removed": sample.steps_removed,
        "ptp_timescale": sample.ptp_timescale,
        "grandmaster_identity": sample.grandmaster_identity,
        "current_utc_offset_s": sample.current_utc_offset_s,
        "time_traceable": sample.time_traceable,
        "leap": leap.value,
        "detail": None if leap is Leap.NONE else f"leap second announced: {leap}",
    }


def _against_phc(sample: PhcSample, utc_offsets_s: Collection[int]) -> dict[str, object]:
    """
    A PHC on TAI is 37 s from the system clock, which would hide the nanoseconds: `detail` gives these seconds. No others
    are removed: what is left is how wrong one of the two clocks is.
    """
    whole_s = min((0, *(-seconds for seconds in utc_offsets_s)), key=lambda s: abs(sample.offset_ns - s * NS_PER_S))
    rest_ns = sample.offset_ns - whole_s * NS_PER_S
    parts = [
        f"{sample.clock} by {sample.method}",
        f"system clock at {whole_s:+} s" if whole_s else None,
        {None: None, True: "phc2sys is running", False: "phc2sys is not running"}[sample.steered],
    ]
    return {
        "kind": "phc",
        "offset_ns": rest_ns,
        "error_ns": -(-sample.width_ns // 2),
        "frequency_ppb": sample.frequency_ppb,
        "detail": _joined(parts),
    }


def whole_seconds(offset_ns: int) -> tuple[int, int]:
    """The nearest whole seconds, and the nanoseconds beside them, of either sign."""
    whole_s = (offset_ns + NS_PER_S // 2) // NS_PER_S
    return whole_s, offset_ns - whole_s * NS_PER_S


def _against_utc(sample: UtcSample) -> dict[str, object]:
    reached = sum(source.reachability != 0 for source in sample.ntp_sources)
    parts = [
        f"follows {sample.reference}",
        None if sample.stratum == UNSPECIFIED_STRATUM else f"stratum {sample.stratum}",
        _ORIGINS.get(sample.origin),
        f"{reached} of {len(sample.ntp_sources)} sources reachable" if sample.ntp_sources else None,
        None if sample.leap in _NO_LEAP else f"leap {sample.leap}",
    ]
    return {
        "kind": "utc",
        "leap": sample.leap if sample.leap in ("none", "insert", "delete") else None,
        "offset_ns": sample.offset_ns,
        "error_ns": sample.error_ns,
        "frequency_ppb": sample.frequency_ppb,
        "detail": _joined(parts),
    }


def _kernel_status(sample: KernelSample) -> dict[str, object]:
    parts = [
        f"disciplined by: {steering_text(sample)}",
        None if sample.synchronized else "not synchronized",
        None if sample.leap in _NO_LEAP else f"leap second armed: {sample.leap}",
        f"TAI - UTC {sample.tai_offset_s} s" if sample.tai_offset_s else "TAI - UTC not set",
    ]
    return {
        "kind": "kernel",
        "leap": sample.leap,
        "error_ns": sample.maxerror_bound_ns,
        "frequency_ppb": sample.frequency_ppb,
        "detail": _joined(parts),
    }


def _joined(parts: list[str | None]) -> str:
    return ", ".join(part for part in parts if part)
