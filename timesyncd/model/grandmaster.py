"""
A grandmaster's own error against UTC: assessed from its samples by its poller, and received as a verdict by the nodes.
Pure.

Time comes with the samples; docs/error-bound.md lists the assumptions. A sample's `boottime_ns` is from before the
poll, so an age that counts from it is never understated. The `realtime_ns` beside it is from after the poll, so no
event is dated too early.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from timesyncd.bound import GRANDMASTER_EXPIRES_AFTER_NS, Bound, Reason, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.model.grandmaster_events import (
    HOLDOVER_STATES,
    UNKNOWN_STATES,
    UPTIME_SLACK_S,
    ChangeDetector,
    GrandmasterEventKind,
    accuracy_ns,
)
from timesyncd.sample import ACCURACY_NS, ClockState, GrandmasterSample

#: A grandmaster bridges a short loss of its reference: already in holdover, it still announces its former clock class
#: (usually 900 s).
BRIDGING_NS = 1_200 * NS_PER_S

#: The clock classes of a locked grandmaster, and of one in holdover; 13 and 14 are 6 and 7 on an arbitrary timescale.
_LOCKED_CLASSES = (6, 13)
_HOLDOVER_CLASSES = (7, 14, 135)

_NOT_REPORTED = Reason.GRANDMASTER_ERROR_NOT_REPORTED
_GNSS = re.compile("gnss|gps|galileo|glonass|beidou|qzss", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HoldoverCurve:
    """
    The largest error of an oscillator in holdover: points of (seconds since holdover began, error against UTC in ns),
    linear between the points.

    Raises ValueError when there are fewer than two points, the first is not at 0 s, or the points do not rise.
    """

    points: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        pairs = list(self._pieces())
        if not pairs or self.points[0][0] != 0:
            raise ValueError("a holdover curve needs two points or more, the first at 0 seconds")
        if min(ns for _, ns in self.points) < 0 or any(b[0] <= a[0] or b[1] < a[1] for a, b in pairs):
            raise ValueError("the seconds must increase from point to point, and the error must not decrease")

    @property
    def end_ns(self) -> int:
        return self.points[-1][0] * NS_PER_S

    def at(self, age_ns: int) -> int | None:
        """The error at this age of the holdover, rounded up; None beyond the last point."""
        for (start_s, low_ns), (end_s, high_ns) in self._pieces():
            if age_ns <= end_s * NS_PER_S:
                part_ns = age_ns - start_s * NS_PER_S
                return low_ns - (low_ns - high_ns) * part_ns // ((end_s - start_s) * NS_PER_S)
        return None

    def steepest_ppb(self, from_ns: int, to_ns: int) -> int:
        """The largest slope between two ages, rounded up."""
        slopes = [
            -((low_ns - high_ns) // (end_s - start_s))
            for (start_s, low_ns), (end_s, high_ns) in self._pieces()
            if start_s * NS_PER_S < to_ns and end_s * NS_PER_S > from_ns
        ]
        return max(slopes, default=0)

    def _pieces(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        return itertools.pairwise(self.points)


@dataclass(frozen=True, slots=True)
class GrandmasterEvent:
    """An event between two polls, dated at the later one."""

    kind: GrandmasterEventKind
    realtime_ns: int
    evidence: str


@dataclass(frozen=True, slots=True)
class GrandmasterAssessment:
    """
    The result of all samples of a grandmaster up to one.

    `utc` bounds its own error as of that sample's `boottime_ns`. It is valid for GRANDMASTER_EXPIRES_AFTER_NS, in
    holdover no longer than `holdover_left_ns` (None: not in a holdover with a budget). `clock_state_since_realtime_ns`
    is None where no change was seen; a holdover is dated to the last sample before it. `detail` completes the reason
    for people. Samples that its followers took before `invalid_before_realtime_ns` are invalid, for
    `invalidation_reason`.
    """

    utc: Bound
    detail: str
    clock_state_since_realtime_ns: int | None
    holdover_left_ns: int | None = None
    invalid_before_realtime_ns: int | None = None
    invalidation_reason: Reason | None = None
    events: tuple[GrandmasterEvent, ...] = ()


class _OwnError(NamedTuple):
    """A grandmaster's own error against UTC, details for people, and the time until its holdover budget is used up."""

    utc: Bound
    detail: str = ""
    left_ns: int | None = None


class _Lock(NamedTuple):
    """The last consistent sample in LOCKED: a holdover that follows it did not begin earlier."""

    boottime_ns: int
    accuracy_ns: int


class StoredLock(NamedTuple):
    """
    The newest consistent sample in LOCKED from before the daemon's start, if only holdover followed it: its time and
    clockAccuracy.
    """

    realtime_ns: int
    clock_accuracy: int | None


class GrandmasterMemory:
    """Assesses one grandmaster from its samples. `curve` None: no holdover budget is configured for its oscillator."""

    def __init__(self, curve: HoldoverCurve | None, stored_lock: StoredLock | None = None) -> None:
        self._curve = curve
        self._stored_lock = stored_lock
        self._changes = ChangeDetector()
        self._state: ClockState | None = None
        self._since_ns: int | None = None
        self._lock: _Lock | Reason = Reason.HOLDOVER_AGE_UNKNOWN
        self._invalid_before: tuple[int, Reason] | None = None
        self._was_good = True

    def accept(self, sample: GrandmasterSample, realtime_ns: int) -> GrandmasterAssessment:
        """Add the next sample, right after it was read: `realtime_ns` is CLOCK_REALTIME now."""
        state = sample.clock_state
        if self._state is None:
            self._lock = _stored_lock(self._stored_lock, sample, realtime_ns)
        elif state not in (None, self._state):
            self._since_ns = realtime_ns
        self._state = state or self._state
        events = tuple(GrandmasterEvent(kind, realtime_ns, why) for kind, why in self._changes.accept(sample))
        reasons = [event.kind.invalidation_reason for event in events if event.kind.invalidation_reason]
        self._invalid_before = (realtime_ns, reasons[0]) if reasons else self._invalid_before
        self._update_lock(sample, {event.kind for event in events})
        own = self._own_error(sample)
        if state is not None:
            self._was_good = own.left_ns is None and (own.utc.bound_ns is not None or own.utc.reason is _NOT_REPORTED)
        invalid_before_ns, invalidation_reason = self._invalid_before or (None, None)
        since_ns = self._since_realtime_ns(sample, realtime_ns)
        return GrandmasterAssessment(
            own.utc, own.detail, since_ns, own.left_ns, invalid_before_ns, invalidation_reason, events
        )

    def _update_lock(self, sample: GrandmasterSample, events: set[GrandmasterEventKind]) -> None:
        state = sample.clock_state
        if GrandmasterEventKind.RESTARTED in events:
            self._lock = Reason.GRANDMASTER_RESTARTED
        elif GrandmasterEventKind.PHASE_JUMPED in events and self._changes.state in HOLDOVER_STATES:
            self._lock = Reason.GRANDMASTER_JUMPED
        if state is ClockState.LOCKED:
            if _contradiction(sample) is None:
                self._lock = _Lock(sample.boottime_ns, accuracy_ns(sample) or 0)
        elif state not in (*HOLDOVER_STATES, *UNKNOWN_STATES):
            # Its steering since is not known, so neither is the error at which a holdover would begin.
            self._lock = Reason.HOLDOVER_AGE_UNKNOWN

    def _since_realtime_ns(self, sample: GrandmasterSample, realtime_ns: int) -> int | None:
        """A holdover is dated back to the last sample before it."""
        if sample.clock_state is ClockState.HOLDOVER and isinstance(self._lock, _Lock):
            return realtime_ns - (sample.boottime_ns - self._lock.boottime_ns)
        return self._since_ns

    def _own_error(self, sample: GrandmasterSample) -> _OwnError:
        match sample.clock_state:
            case ClockState.LOCKED:
                return self._locked_error(sample)
            case ClockState.HOLDOVER:
                return self._holdover_error(sample)
            case ClockState.HOLDOVER_OUT_OF_SPEC:
                return _OwnError(
                    unbounded(Reason.HOLDOVER_BUDGET_EXCEEDED), "the grandmaster reports HOLDOVER_OUT_OF_SPEC"
                )
            case ClockState.UNKNOWN:
                return _OwnError(unbounded(Reason.GRANDMASTER_STATE_UNKNOWN), ", ".join(sample.unknown))
            case None:
                return _OwnError(unbounded(_NOT_REPORTED if self._was_good else Reason.GRANDMASTER_STATE_UNKNOWN))
            case state:
                return _OwnError(unbounded(Reason.GRANDMASTER_NOT_LOCKED), f"clock state {state}")

    def _locked_error(self, sample: GrandmasterSample) -> _OwnError:
        contradiction = _contradiction(sample)
        if contradiction is not None:
            return _OwnError(unbounded(Reason.GRANDMASTER_CONTRADICTS_ITSELF), contradiction)
        if sample.clock_accuracy is None:
            return _OwnError(unbounded(_NOT_REPORTED), "the grandmaster reports no clock accuracy")
        error_ns = accuracy_ns(sample)
        if error_ns is None:
            return _OwnError(
                unbounded(Reason.GRANDMASTER_ACCURACY_UNKNOWN), f"clock accuracy {sample.clock_accuracy:#x}"
            )
        # The grandmaster may lose its reference right after the poll.
        growth_ppb = self._curve.steepest_ppb(0, GRANDMASTER_EXPIRES_AFTER_NS) if self._curve else 0
        return _OwnError(Bound(error_ns, growth_ppb))

    def _holdover_error(self, sample: GrandmasterSample) -> _OwnError:
        lock, curve = self._lock, self._curve
        if curve is None:
            return _OwnError(unbounded(Reason.NO_HOLDOVER_BUDGET), sample.oscillator or "")
        if isinstance(lock, Reason):
            return _OwnError(unbounded(lock))
        age_ns = sample.boottime_ns - lock.boottime_ns
        why = _why_class_contradicts(sample.clock_class, age_ns)
        if why is not None:
            return _OwnError(unbounded(why), f"the grandmaster reports holdover with clock class {sample.clock_class}")
        budget_ns = curve.at(age_ns)
        if budget_ns is None:
            why = Reason.HOLDOVER_BUDGET_EXCEEDED
            return _OwnError(unbounded(why), f"the holdover budget ends after {curve.points[-1][0]} s", left_ns=0)
        # A grandmaster whose accuracy was worse than the curve's first point began its holdover with a larger error.
        budget_ns += max(0, lock.accuracy_ns - curve.points[0][1])
        error_ns = max(budget_ns, accuracy_ns(sample) or 0)
        growth_ppb = curve.steepest_ppb(age_ns, age_ns + GRANDMASTER_EXPIRES_AFTER_NS)
        return _OwnError(Bound(error_ns, growth_ppb), left_ns=curve.end_ns - age_ns)


def _stored_lock(stored: StoredLock | None, sample: GrandmasterSample, realtime_ns: int) -> _Lock | Reason:
    """
    The last LOCKED sample from before the daemon's start, on today's CLOCK_BOOTTIME; or why it does not date a
    holdover.
    """
    if stored is None or stored.realtime_ns > realtime_ns:
        return Reason.HOLDOVER_AGE_UNKNOWN
    age_ns = realtime_ns - stored.realtime_ns
    if sample.uptime_s is not None and (sample.uptime_s + UPTIME_SLACK_S) * NS_PER_S < age_ns:
        return Reason.GRANDMASTER_RESTARTED
    return _Lock(sample.boottime_ns - age_ns, ACCURACY_NS.get(stored.clock_accuracy or 0, 0))


def _contradiction(sample: GrandmasterSample) -> str | None:
    """Why a reported LOCKED is not believed; None: it is."""
    if sample.clock_class not in (None, *_LOCKED_CLASSES):
        return f"the grandmaster reports locked with clock class {sample.clock_class}"
    if _has_no_satellite(sample) and not _has_other_reference(sample):
        return "the grandmaster reports locked without a satellite and without another selected reference"
    return None


def _has_no_satellite(sample: GrandmasterSample) -> bool:
    if sample.satellites is None:
        return sample.gnss_state == "none"
    return all(satellite.healthy is False for satellite in sample.satellites)


def _has_other_reference(sample: GrandmasterSample) -> bool:
    """The grandmaster follows another PTP clock, or has selected an input that is not GNSS."""
    selected = [each.name for each in sample.references or () if each.qualification == "selected"]
    names = [*selected, *([sample.selected_reference] if sample.selected_reference else [])]
    return bool(sample.steps_removed) or any(not _GNSS.search(name) for name in names)


def _why_class_contradicts(clock_class: int | None, age_ns: int) -> Reason | None:
    """
    Why a reported HOLDOVER is not believed; None: it is. While a grandmaster bridges, it announces its former class.
    """
    if clock_class in _LOCKED_CLASSES:
        return Reason.GRANDMASTER_CONTRADICTS_ITSELF if age_ns > BRIDGING_NS else None
    return None if clock_class in (None, *_HOLDOVER_CLASSES) else Reason.GRANDMASTER_NOT_LOCKED


@dataclass(frozen=True, slots=True)
class Invalidation:
    """
    An event of a grandmaster, for `reason`: samples of its followers from before `before_ns` (CLOCK_BOOTTIME) are
    invalid.

    `event` identifies the event: it is the same in each message that reports it.
    """

    event: int
    before_ns: int
    reason: Reason


class ReportedTime(NamedTuple):
    """What a grandmaster reports of fields that Announce carries, too (None: not reported)."""

    clock_class: int | None = None
    clock_accuracy: int | None = None
    utc_offset_s: int | None = None
    time_traceable: bool | None = None
    steps_removed: int | None = None


NOTHING_REPORTED = ReportedTime()


@dataclass(frozen=True, slots=True)
class GrandmasterVerdict:
    """
    A grandmaster's state by its poller: `utc` bounds its own error as of `as_of_ns` (this node's CLOCK_BOOTTIME, never
    later than the poll), in holdover for no longer than `holdover_left_ns` from then (None: it is not in holdover).
    """

    poller: str
    utc: Bound
    as_of_ns: int
    holdover_left_ns: int | None = None
    invalidation: Invalidation | None = None
    reported: ReportedTime = NOTHING_REPORTED

    def utc_at(self, boottime_ns: int) -> Bound:
        """Its own error at this moment; unbounded once its holdover budget is used up, or the verdict has expired."""
        age_ns = max(0, boottime_ns - self.as_of_ns)
        bound_ns = self.utc.at(age_ns)
        if bound_ns is None:
            return self.utc
        if self.holdover_left_ns is not None and age_ns > self.holdover_left_ns:
            return unbounded(Reason.HOLDOVER_BUDGET_EXCEEDED)
        if age_ns >= GRANDMASTER_EXPIRES_AFTER_NS:
            return unbounded(Reason.GRANDMASTER_STATE_EXPIRED)
        return Bound(bound_ns, self.utc.growth_ppb)


@dataclass(frozen=True, slots=True)
class MessageReceipt:
    """The receipt of a message on this node's two clocks, and the sender's CLOCK_REALTIME at publication."""

    boottime_ns: int
    realtime_ns: int
    published_realtime_ns: int

    def poll_ns(self, age_ns: int) -> int:
        """
        CLOCK_BOOTTIME of a poll that was `age_ns` old at publication: transit time counts, so an age is never
        understated.
        """
        return self.boottime_ns - age_ns - max(0, self.realtime_ns - self.published_realtime_ns)

    def invalidation(self, before_realtime_ns: int, reason: Reason) -> Invalidation:
        """
        An invalidation that the sender dated on its own clock: transit time does not count, so it is never dated too
        early.
        """
        age_ns = max(0, self.published_realtime_ns - before_realtime_ns)
        return Invalidation(before_realtime_ns, self.boottime_ns - age_ns, reason)
