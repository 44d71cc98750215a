"""A past reading of another clock -> the interval of a reference at that moment. Pure, but for reading pairs of clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from timesyncd.bound import (
    UNKNOWN_PAST_PPB,
    Bound,
    ClockStatus,
    ErrorBound,
    Interval,
    Reference,
    reference_bound,
    status_at,
)
from timesyncd.clocks import STEP_TOLERANCE_NS

#: The clocks whose readings are translated; perf_counter is monotonic on Linux.
ClockName = Literal["boottime", "monotonic", "perf_counter", "realtime"]

_TRIES = 5
_SHORTEST_SUSPEND_NS = 1_000_000

IN_FUTURE = "the moment lies in the future"
FAR = "the moment lies far from the newest sample; the bound grew"
TOO_FAR = "the moment lies too far from the newest sample, or before this boot"
STEPPED = "the system clock was stepped after the moment, or shows it twice; give the moment on another clock"
SUSPENDED = "the machine was suspended after the moment; give it as boottime_ns"


class NsRange(NamedTuple):
    """One clock minus another, which lies in [low_ns, high_ns]."""

    low_ns: int
    high_ns: int


def difference(one: Callable[[], int], other: Callable[[], int]) -> NsRange:
    """`one` minus `other`, from `one` read between two readings of `other`; the narrowest of a few."""
    return min((_pair(one, other) for _ in range(_TRIES)), key=lambda found: found.high_ns - found.low_ns)


def _pair(one: Callable[[], int], other: Callable[[], int]) -> NsRange:
    before_ns = other()
    between_ns = one()
    return NsRange(between_ns - other(), between_ns - before_ns)


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _boot_minus_mono() -> NsRange:
    """Grows by each suspend, and by nothing else."""
    return difference(boottime_ns, time.monotonic_ns)


class ClockReading(NamedTuple):
    """What a reference's clock showed at a moment; `reason`: why that is not known, or not known better."""

    interval: Interval
    reason: str


class PastMoment(NamedTuple):
    """A past moment: what CLOCK_REALTIME, as it is set now, would have shown, and CLOCK_BOOTTIME; each between two numbers."""

    realtime_ns: NsRange
    boottime_ns: NsRange


@dataclass(frozen=True, slots=True)
class Continuity:
    """
    Since when this process knows REALTIME to have stood still against BOOTTIME, and BOOTTIME against MONOTONIC.

    A moment on CLOCK_REALTIME before `unstepped_since_ns` (BOOTTIME), or one on CLOCK_MONOTONIC before `awake_since_ns`
    (MONOTONIC), may be another one than its number says. 0: no step and no suspend was ever seen.
    """

    real_minus_boot_ns: int | None = None
    unstepped_since_ns: int = 0
    boot_minus_mono_ns: int | None = None
    awake_since_ns: int = 0

    def after_sample(self, as_of_ns: int, real_minus_boot_ns: int) -> Continuity:
        """A clock that was set back showed twice what it shows next, so the step counts as over only when that has passed."""
        former_ns = self.real_minus_boot_ns
        if former_ns is not None and abs(real_minus_boot_ns - former_ns) <= STEP_TOLERANCE_NS:
            return self
        over_ns = 0 if former_ns is None else as_of_ns + max(0, former_ns - real_minus_boot_ns)
        since_ns = max(self.unstepped_since_ns, over_ns)
        return replace(self, real_minus_boot_ns=real_minus_boot_ns, unstepped_since_ns=since_ns)

    def after_pair(self, found: NsRange, monotonic_ns: int) -> Continuity:
        """`monotonic_ns` was read after the pair."""
        former_ns = self.boot_minus_mono_ns
        if former_ns is not None and found.low_ns - former_ns < _SHORTEST_SUSPEND_NS:
            return self
        since_ns = 0 if former_ns is None else monotonic_ns
        return replace(self, boot_minus_mono_ns=found.low_ns, awake_since_ns=since_ns)


class Translator:
    """Past readings of this machine's clocks, translated by what this process saw of steps and suspends since it began."""

    def __init__(self) -> None:
        self._seen = Continuity().after_pair(_boot_minus_mono(), time.monotonic_ns())

    def notice(self, bound: ErrorBound) -> tuple[NsRange, Continuity]:
        """To be told of each new bound; gives BOOTTIME minus MONOTONIC, and what this thread knows by now."""
        found = _boot_minus_mono()
        seen = self._seen.after_pair(found, time.monotonic_ns())
        seen = self._seen = seen.after_sample(bound.as_of_ns, bound.real_minus_boot_ns)
        return found, seen

    def translate(self, bound: ErrorBound, reference: Reference, clock: ClockName, ns: int) -> ClockReading:
        """`bound` is the last one noticed, and believed at this moment."""
        real_minus_boot = difference(time.time_ns, boottime_ns)
        boot_minus_mono, seen = self.notice(bound)
        if clock == "realtime":
            moment = PastMoment(NsRange(ns, ns), NsRange(ns - real_minus_boot.high_ns, ns - real_minus_boot.low_ns))
            if moment.boottime_ns.low_ns < seen.unstepped_since_ns:
                return unknown(reference, STEPPED)
        elif clock == "boottime":
            moment = moment_at(NsRange(ns, ns), real_minus_boot)
        elif ns < seen.awake_since_ns:
            return unknown(reference, SUSPENDED)
        else:
            moment = moment_at(_sum(NsRange(ns, ns), boot_minus_mono), real_minus_boot)
        if not _agree(real_minus_boot, bound.real_minus_boot_ns):
            return unknown(reference, STEPPED)
        return translate(bound, reference, moment, boottime_ns())


def moment_at(boot_ns: NsRange, real_minus_boot: NsRange) -> PastMoment:
    return PastMoment(_sum(boot_ns, real_minus_boot), boot_ns)


def _agree(found: NsRange, expected_ns: int) -> bool:
    return found.low_ns - STEP_TOLERANCE_NS <= expected_ns <= found.high_ns + STEP_TOLERANCE_NS


def _sum(one: NsRange, other: NsRange) -> NsRange:
    return NsRange(one.low_ns + other.low_ns, one.high_ns + other.high_ns)


def translate(bound: ErrorBound, reference: Reference, moment: PastMoment, now_boottime_ns: int) -> ClockReading:
    """
    The interval at the moment. The bound widens with the distance, in either direction, and the one status table is applied
    to the distance to the newest sample.
    """
    part, written, ahead_ns = reference_bound(bound, reference)
    distance_ns = max(abs(end_ns - bound.as_of_ns) for end_ns in moment.boottime_ns)
    status = status_at(written, distance_ns, bound.holdover_after_ns, bound.void_after_ns)
    width_ns = _width_ns(bound, part, moment.boottime_ns)
    if width_ns is None or written in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        return unknown(reference, part.reason.text)
    if moment.boottime_ns.low_ns > now_boottime_ns:
        return unknown(reference, IN_FUTURE)
    if status is ClockStatus.UNKNOWN or moment.boottime_ns.low_ns < 0:
        return unknown(reference, TOO_FAR)
    earliest = moment.realtime_ns.low_ns + ahead_ns - width_ns
    latest = moment.realtime_ns.high_ns + ahead_ns + width_ns
    return ClockReading(
        Interval(earliest, latest, status, reference), "" if status is ClockStatus.SYNCHRONIZED else FAR
    )


def _width_ns(bound: ErrorBound, part: Bound, boottime_ns: NsRange) -> int | None:
    """What is known of the clock's rate reaches back some way; before that only the kernel's limit is."""
    if part.bound_ns is None:
        return None
    back_ns = max(0, bound.as_of_ns - boottime_ns.low_ns)
    known_ns = min(back_ns, bound.past_span_ns)
    past = Bound(part.bound_ns, max(part.growth_ppb, bound.past_growth_ppb))
    width_ns = past.at(known_ns)
    assert width_ns is not None
    before_ns = Bound(width_ns, UNKNOWN_PAST_PPB).at(back_ns - known_ns)
    later_ns = part.at(max(0, boottime_ns.high_ns - bound.as_of_ns))
    return max(before_ns or 0, later_ns or 0)


def unknown(reference: Reference, reason: str) -> ClockReading:
    return ClockReading(Interval(None, None, ClockStatus.UNKNOWN, reference), reason)
