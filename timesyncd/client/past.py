"""Translates a past reading of one of this machine's clocks into the interval of a reference at that moment."""

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
    Reason,
    Reference,
    reference_bound,
    status_at,
    steered_ns,
)
from timesyncd.clocks import STEP_TOLERANCE_NS, RawReading
from timesyncd.ipc.wire_types import Code

#: The clocks whose readings are translated; perf_counter is CLOCK_MONOTONIC on Linux.
ClockName = Literal["boottime", "monotonic", "perf_counter", "realtime"]

_TRIES = 5
_SHORTEST_SUSPEND_NS = 1_000_000


class TranslationReason(Code):
    """Why a past reading has no interval, or (FAR_FROM_SAMPLE) only a wide one."""

    MOMENT_IN_FUTURE = "moment_in_future"
    FAR_FROM_SAMPLE = "far_from_sample"
    TOO_FAR_FROM_SAMPLE = "too_far_from_sample"
    CLOCK_STEPPED_SINCE = "clock_stepped_since"
    SUSPENDED_SINCE = "suspended_since"

    @property
    def text(self) -> str:
        return _TEXTS[self]

    @property
    def code(self) -> str:
        """As `Reason.code`."""
        return self.value


_TEXTS = {
    TranslationReason.MOMENT_IN_FUTURE: "the moment lies in the future",
    TranslationReason.FAR_FROM_SAMPLE: "the moment lies far from the newest sample, so the bound has grown",
    TranslationReason.TOO_FAR_FROM_SAMPLE: "the moment lies too far from the newest sample, or before this boot",
    TranslationReason.CLOCK_STEPPED_SINCE: (
        "the system clock was stepped after the moment, or showed this time twice; give the moment on another clock"
    ),
    TranslationReason.SUSPENDED_SINCE: "the machine was suspended after the moment; give the moment as boottime_ns",
}

#: A present reading has a bound's reason; a past one may also have the translation's.
ReasonCode = Reason | TranslationReason


class ClockReading(NamedTuple):
    """A reference's interval, now or at a past moment, and why it is unknown or wide (else Reason.OK and an empty text)."""

    interval: Interval
    reason_code: ReasonCode
    reason: str


class NsRange(NamedTuple):
    """A time, or a difference of two clocks, that lies in [low_ns, high_ns]."""

    low_ns: int
    high_ns: int


def difference(one: Callable[[], int], other: Callable[[], int]) -> NsRange:
    """`one` minus `other`, from `one` read between two readings of `other`; the narrowest of a few."""
    return min((_difference(one, other) for _ in range(_TRIES)), key=lambda found: found.high_ns - found.low_ns)


def _difference(one: Callable[[], int], other: Callable[[], int]) -> NsRange:
    before_ns = other()
    between_ns = one()
    return NsRange(between_ns - other(), between_ns - before_ns)


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _boot_minus_mono() -> NsRange:
    """Only a suspend increases it."""
    return difference(boottime_ns, time.monotonic_ns)


class PastMoment(NamedTuple):
    """One past moment on two clocks: CLOCK_REALTIME as it is set now, and CLOCK_BOOTTIME."""

    realtime_ns: NsRange
    boottime_ns: NsRange


@dataclass(frozen=True, slots=True)
class Continuity:
    """
    Since when, as this process knows, REALTIME was not stepped against BOOTTIME, and BOOTTIME ran equally with MONOTONIC.

    A CLOCK_REALTIME reading from before `unstepped_since_ns` (BOOTTIME), or a CLOCK_MONOTONIC reading from before
    `awake_since_ns` (MONOTONIC), may mean another moment than its number says. 0: no step and no suspend was observed.
    """

    real_minus_boot_ns: int | None = None
    unstepped_since_ns: int = 0
    boot_minus_mono_ns: int | None = None
    awake_since_ns: int = 0

    def after_sample(self, as_of_ns: int, real_minus_boot_ns: int) -> Continuity:
        """A clock that was set back shows times again that it showed before, so the step ends only when those have passed."""
        previous_ns = self.real_minus_boot_ns
        if previous_ns is not None and abs(real_minus_boot_ns - previous_ns) <= STEP_TOLERANCE_NS:
            return self
        over_ns = 0 if previous_ns is None else as_of_ns + max(0, previous_ns - real_minus_boot_ns)
        since_ns = max(self.unstepped_since_ns, over_ns)
        return replace(self, real_minus_boot_ns=real_minus_boot_ns, unstepped_since_ns=since_ns)

    def after_difference(self, boot_minus_mono: NsRange, monotonic_ns: int) -> Continuity:
        """`monotonic_ns` was read after the difference."""
        previous_ns = self.boot_minus_mono_ns
        if previous_ns is not None and boot_minus_mono.low_ns - previous_ns < _SHORTEST_SUSPEND_NS:
            return self
        since_ns = 0 if previous_ns is None else monotonic_ns
        return replace(self, boot_minus_mono_ns=boot_minus_mono.low_ns, awake_since_ns=since_ns)


class Translator:
    """Translates past readings of this machine's clocks. It knows the steps and suspends that it observed since it was made."""

    def __init__(self) -> None:
        self._continuity = Continuity().after_difference(_boot_minus_mono(), time.monotonic_ns())

    def update(self, bound: ErrorBound) -> tuple[NsRange, Continuity]:
        """Call it with each new bound. Returns BOOTTIME minus MONOTONIC, and the continuity as this thread knows it."""
        boot_minus_mono = _boot_minus_mono()
        continuity = self._continuity.after_difference(boot_minus_mono, time.monotonic_ns())
        continuity = self._continuity = continuity.after_sample(bound.as_of_ns, bound.real_minus_boot_ns)
        return boot_minus_mono, continuity

    def translate(self, bound: ErrorBound, reference: Reference, clock: ClockName, ns: int) -> ClockReading:
        """`bound` is the newest one, and valid now."""
        real_minus_boot = difference(time.time_ns, boottime_ns)
        boot_minus_mono, continuity = self.update(bound)
        if clock == "realtime":
            moment = PastMoment(NsRange(ns, ns), NsRange(ns - real_minus_boot.high_ns, ns - real_minus_boot.low_ns))
            if moment.boottime_ns.low_ns < continuity.unstepped_since_ns:
                return unknown(reference, TranslationReason.CLOCK_STEPPED_SINCE)
        elif clock == "boottime":
            moment = moment_at(NsRange(ns, ns), real_minus_boot)
        elif ns < continuity.awake_since_ns:
            return unknown(reference, TranslationReason.SUSPENDED_SINCE)
        else:
            moment = moment_at(_sum(NsRange(ns, ns), boot_minus_mono), real_minus_boot)
        if not _agree(real_minus_boot, bound.real_minus_boot_ns):
            return unknown(reference, TranslationReason.CLOCK_STEPPED_SINCE)
        return translate(bound, reference, moment, boottime_ns(), steered_ns(bound, RawReading.read()) or 0)


def moment_at(boot_ns: NsRange, real_minus_boot: NsRange) -> PastMoment:
    return PastMoment(_sum(boot_ns, real_minus_boot), boot_ns)


def _agree(found: NsRange, expected_ns: int) -> bool:
    return found.low_ns - STEP_TOLERANCE_NS <= expected_ns <= found.high_ns + STEP_TOLERANCE_NS


def _sum(one: NsRange, other: NsRange) -> NsRange:
    return NsRange(one.low_ns + other.low_ns, one.high_ns + other.high_ns)


def translate(
    bound: ErrorBound, reference: Reference, moment: PastMoment, now_boottime_ns: int, steered_ns: int = 0
) -> ClockReading:
    """
    The reference's interval at the moment.

    The bound widens with the distance to the newest sample, in either direction, and the status table is applied to that distance.
    Since the sample, the clock was steered by `steered_ns` beyond its frequency, at whatever moment.
    """
    part, written, ahead_ns, _ = reference_bound(bound, reference)
    distance_ns = max(abs(end_ns - bound.as_of_ns) for end_ns in moment.boottime_ns)
    status = status_at(written, distance_ns, bound.holdover_after_ns, bound.void_after_ns)
    width_ns = _width_ns(bound, part, moment.boottime_ns, steered_ns)
    if width_ns is None or written in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        return unknown(reference, part.reason)
    if moment.boottime_ns.low_ns > now_boottime_ns:
        return unknown(reference, TranslationReason.MOMENT_IN_FUTURE)
    if status is ClockStatus.UNKNOWN or moment.boottime_ns.low_ns < 0:
        return unknown(reference, TranslationReason.TOO_FAR_FROM_SAMPLE)
    earliest = moment.realtime_ns.low_ns + ahead_ns - width_ns
    latest = moment.realtime_ns.high_ns + ahead_ns + width_ns
    reason = Reason.OK if status is ClockStatus.SYNCHRONIZED else TranslationReason.FAR_FROM_SAMPLE
    return ClockReading(Interval(earliest, latest, status, reference), reason, reason.text)


def _width_ns(bound: ErrorBound, part: Bound, boottime_ns: NsRange, steered_ns: int) -> int | None:
    """The clock's rate is known for `past_span_ns` back; for any time before that only the kernel's slew limit holds."""
    if part.bound_ns is None:
        return None
    back_ns = max(0, bound.as_of_ns - boottime_ns.low_ns)
    known_ns = min(back_ns, bound.past_span_ns)
    past = Bound(part.bound_ns, max(part.growth_ppb, bound.past_growth_ppb))
    width_ns = past.at(known_ns)
    assert width_ns is not None
    before_ns = Bound(width_ns, UNKNOWN_PAST_PPB).at(back_ns - known_ns)
    later_ns = part.plus(steered_ns).at(max(0, boottime_ns.high_ns - bound.as_of_ns))
    return max(before_ns or 0, later_ns or 0)


def unknown(reference: Reference, reason: ReasonCode) -> ClockReading:
    return ClockReading(Interval(None, None, ClockStatus.UNKNOWN, reference), reason, reason.text)
