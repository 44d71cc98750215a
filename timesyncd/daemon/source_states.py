"""A clock source's newest reading as it is shown: numbers by name, and what has no name of its own in words. Pure."""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S
from timesyncd.sample import ClockSample, KernelSample, PhcSample, UtcSample

ClockReading = ClockSample | PhcSample | UtcSample | KernelSample

_QUIET_LEAPS = ("normal", "none")


def measured(reading: ClockReading) -> dict[str, object]:
    """Fields of SourceState."""
    match reading:
        case ClockSample():
            return _against_parent(reading)
        case PhcSample():
            return _against_phc(reading)
        case UtcSample():
            return _against_utc(reading)
        case KernelSample():
            return _kernel_s_word(reading)


def _against_parent(sample: ClockSample) -> dict[str, object]:
    return {
        "kind": "ptp",
        "port_state": sample.port_state.name,
        "offset_ns": sample.offset_ns,
        "path_delay_ns": sample.path_delay_ns,
        "frequency_ppb": sample.frequency_ppb,
        "clock_class": sample.clock_class,
        "clock_accuracy": sample.clock_accuracy,
        "steps_removed": sample.steps_removed,
        "domain": sample.domain,
        "ptp_timescale": sample.ptp_timescale,
        "grandmaster_identity": sample.grandmaster_identity,
        "current_utc_offset_s": sample.current_utc_offset_s,
    }


def _against_phc(sample: PhcSample) -> dict[str, object]:
    """A PHC on TAI is 37 s from the system clock, which would hide the nanoseconds: whole seconds are told in words."""
    whole_s, rest_ns = whole_seconds(sample.offset_ns)
    parts = [
        f"{sample.clock} by {sample.method}",
        f"system clock at {whole_s:+} s" if whole_s else None,
        {None: None, True: "a process phc2sys runs", False: "no process phc2sys runs"}[sample.steered],
    ]
    return {
        "kind": "phc",
        "offset_ns": rest_ns,
        "error_ns": -(-sample.width_ns // 2),
        "frequency_ppb": sample.frequency_ppb,
        "detail": _told(parts),
    }


def whole_seconds(offset_ns: int) -> tuple[int, int]:
    """The nearest whole seconds, and the nanoseconds beside them, of either sign."""
    whole_s = (offset_ns + NS_PER_S // 2) // NS_PER_S
    return whole_s, offset_ns - whole_s * NS_PER_S


def _against_utc(sample: UtcSample) -> dict[str, object]:
    reached = sum(source.reachability != 0 for source in sample.ntp_sources)
    parts = [
        f"follows {sample.reference}, stratum {sample.stratum}",
        f"{reached} of {len(sample.ntp_sources)} sources answer" if sample.ntp_sources else None,
        None if sample.leap in _QUIET_LEAPS else f"leap {sample.leap}",
    ]
    return {
        "kind": "utc",
        "offset_ns": sample.offset_ns,
        "error_ns": sample.error_ns,
        "frequency_ppb": sample.frequency_ppb,
        "detail": _told(parts),
    }


def _kernel_s_word(sample: KernelSample) -> dict[str, object]:
    """maxerror counts only what chronyd set: anybody else's is a number without a meaning."""
    known, undecided = sample.disciplines, sample.undecided_disciplines
    parts = [
        f"disciplines: {', '.join(known) or 'none found'}",
        f"perhaps {', '.join(undecided)}" if undecided else None,
        None if sample.synchronized else "not synchronized",
        None if sample.leap in _QUIET_LEAPS else f"leap second armed: {sample.leap}",
        f"TAI - UTC {sample.tai_offset_s} s" if sample.tai_offset_s else "TAI - UTC never set",
    ]
    return {
        "kind": "kernel",
        "error_ns": sample.maxerror_ns if known == ("chronyd",) and sample.synchronized else None,
        "frequency_ppb": sample.frequency_ppb,
        "detail": _told(parts),
    }


def _told(parts: list[str | None]) -> str:
    return ", ".join(part for part in parts if part)
