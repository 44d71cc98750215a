"""What an ErrorBound says of a reference at this moment: any reference, any status, any age."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Interval, Reason, Reference, status_at, unbounded
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS


class Part(NamedTuple):
    """An ErrorBound's part for one reference; the reference is `ahead_ns` ahead of CLOCK_REALTIME, plus or minus the bound."""

    bound: Bound
    status: ClockStatus
    ahead_ns: int = 0


def part_of(bound: ErrorBound, reference: Reference) -> Part:
    if reference is Reference.TAI:
        return _tai(bound)
    return {
        Reference.PARENT: Part(bound.parent_hard, bound.gm_status),
        Reference.GRANDMASTER: Part(bound.gm_hard, bound.gm_status),
        Reference.UTC: Part(bound.utc_hard, bound.utc_status),
    }[reference]


def _tai(bound: ErrorBound) -> Part:
    """
    TAI is UTC and the seconds that the PTP daemon takes out of a PTP timescale, which is TAI. Where it takes out none, the
    grandmaster's timescale is another one, and how far UTC is from TAI is told by nobody.
    """
    seconds = bound.utc_seconds_removed
    if bound.utc_hard.bound_ns is None or seconds:
        return Part(bound.utc_hard, bound.utc_status, (seconds or 0) * NS_PER_S)
    return Part(
        unbounded(Reason.UTC_OFFSET_UNKNOWN if seconds is None else Reason.ARBITRARY_TIMESCALE), ClockStatus.UNKNOWN
    )


def interval_now(
    bound: ErrorBound, reference: Reference, read_clocks: Callable[[], tuple[int, int]]
) -> tuple[Interval, Reason]:
    """
    The interval of any reference, status and age. `read_clocks` gives (REALTIME, BOOTTIME), read in this order.

    A reading that was preempted between its two clocks looks like a step back, so only the best of three tells a step.
    """
    readings = [read_clocks()]
    while not _same_epoch(bound, readings[-1]) and len(readings) < 3:
        readings.append(read_clocks())
    real_ns, boot_ns = max(readings, key=lambda reading: reading[0] - reading[1])
    part, written, ahead_ns = part_of(bound, reference)
    age_ns = boot_ns - bound.as_of_ns
    status = status_at(written, age_ns, bound.holdover_after_ns, bound.void_after_ns)
    reason = _reason(part, written, status, age_ns)
    if status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER) and not _same_epoch(bound, (real_ns, boot_ns)):
        status, reason = ClockStatus.DISRUPTED, Reason.CLOCK_STEPPED
    width_ns = part.at(age_ns)
    if width_ns is None or status in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        status = ClockStatus.DISRUPTED if status is ClockStatus.DISRUPTED else ClockStatus.UNKNOWN
        return Interval(None, None, status, reference), reason
    shown_ns = real_ns + ahead_ns
    return Interval(shown_ns - width_ns, shown_ns + width_ns, status, reference), reason


def _same_epoch(bound: ErrorBound, reading: tuple[int, int]) -> bool:
    return abs(reading[0] - reading[1] - bound.real_minus_boot_ns) <= STEP_TOLERANCE_NS


def _reason(part: Bound, written: ClockStatus, status: ClockStatus, age_ns: int) -> Reason:
    if part.bound_ns is None or written in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        return part.reason
    if age_ns < 0:
        return Reason.AS_OF_IN_FUTURE
    return {
        ClockStatus.SYNCHRONIZED: Reason.OK,
        ClockStatus.HOLDOVER: Reason.STALE,
        ClockStatus.UNKNOWN: Reason.VOID,
        ClockStatus.DISRUPTED: Reason.CLOCK_STEPPED,
    }[status]
