"""
One grandmaster's samples -> its own error against UTC, and what happened to it. Pure: time comes with the samples.

docs/error-bound.md says what is assumed. A sample's `boottime_ns` is of before anything was read, so an age that counts from it
is never understated; the `realtime_ns` beside it is of after, so what happened is never dated too early.

What a node hears of its grandmaster's own error from whoever polls that unit. Pure.
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
    DARK,
    HOLDOVERS,
    UPTIME_SLACK_S,
    ChangeDetector,
    GrandmasterEventKind,
    accuracy_ns,
)
from timesyncd.sample import ACCURACY_NS, ClockState, GrandmasterSample

#: A unit bridges a short loss of its reference: in holdover already, it announces the class of before (usually 900 s).
BRIDGING_NS = 1_200 * NS_PER_S

#: The clock classes of a unit that is locked, and of one in holdover; 13 and 14 are 6 and 7 on an arbitrary timescale.
_LOCKED_CLASSES = (6, 13)
_HOLDOVER_CLASSES = (7, 14, 135)

_UNTOLD = Reason.GRANDMASTER_UNTOLD
_GNSS = re.compile("gnss|gps|galileo|glonass|beidou|qzss", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HoldoverCurve:
    """
    The largest error that an oscillator builds up, as (seconds since holdover began, error against UTC in ns), straight between
    the points. Raises ValueError when it is no such curve.
    """

    points: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        pairs = list(self._pieces())
        if not pairs or self.points[0][0] != 0:
            raise ValueError("two points or more are wanted, the first at 0 seconds")
        if min(ns for _, ns in self.points) < 0 or any(b[0] <= a[0] or b[1] < a[1] for a, b in pairs):
            raise ValueError("the seconds must rise from point to point, and the error must not fall")

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
    """Something that happened between two polls, dated at the later one."""

    kind: GrandmasterEventKind
    realtime_ns: int
    evidence: str


@dataclass(frozen=True, slots=True)
class GrandmasterAssessment:
    """
    What follows from all samples of a unit up to one. `utc` bounds its own error as of that sample's `boottime_ns` and holds
    for UNIT_HOLDS_NS, in holdover no longer than `holdover_left_ns` (None: it is not in a holdover that has a budget).
    Since when the clock state is so is None where no change was seen; a holdover is dated to the last sample before it. `detail` says more than the reason does. What its followers measured before `void_before_realtime_ns` is void.
    """

    utc: Bound
    detail: str
    clock_state_since_realtime_ns: int | None
    holdover_left_ns: int | None = None
    void_before_realtime_ns: int | None = None
    void_reason: Reason | None = None
    events: tuple[GrandmasterEvent, ...] = ()


class _Judged(NamedTuple):
    """A unit's own error, what its reason does not say, and how long its holdover budget lasts."""

    utc: Bound
    detail: str = ""
    left_ns: int | None = None


class _Lock(NamedTuple):
    """The last sample that was LOCKED beyond doubt: a holdover that follows it did not begin earlier."""

    boottime_ns: int
    accuracy_ns: int


class StoredLock(NamedTuple):
    """The newest sample of before this start that was LOCKED beyond doubt, if no other state followed but holdover: when, and its clockAccuracy."""

    realtime_ns: int
    clock_accuracy: int | None


class GrandmasterMemory:
    """One unit as its samples tell it. `curve` None: no holdover budget is configured."""

    def __init__(self, curve: HoldoverCurve | None, stored_lock: StoredLock | None = None) -> None:
        self._curve = curve
        self._stored_lock = stored_lock
        self._changes = ChangeDetector()
        self._said: ClockState | None = None
        self._since_ns: int | None = None
        self._lock: _Lock | Reason = Reason.HOLDOVER_AGE_UNKNOWN
        self._void: tuple[int, Reason] | None = None
        self._good = True

    def accept(self, sample: GrandmasterSample, realtime_ns: int) -> GrandmasterAssessment:
        """Take the next sample, as soon as it was read: `realtime_ns` is CLOCK_REALTIME now."""
        state = sample.clock_state
        if self._said is None:
            self._lock = _stored_lock(self._stored_lock, sample, realtime_ns)
        elif state not in (None, self._said):
            self._since_ns = realtime_ns
        self._said = state or self._said
        events = tuple(GrandmasterEvent(kind, realtime_ns, why) for kind, why in self._changes.accept(sample))
        reasons = [event.kind.voids for event in events if event.kind.voids]
        self._void = (realtime_ns, reasons[0]) if reasons else self._void
        self._note_lock(sample, {event.kind for event in events})
        judged = self._own_error(sample)
        if state is not None:
            self._good = judged.left_ns is None and (judged.utc.bound_ns is not None or judged.utc.reason is _UNTOLD)
        void_ns, void_reason = self._void or (None, None)
        since_ns = self._since_realtime_ns(sample, realtime_ns)
        return GrandmasterAssessment(judged.utc, judged.detail, since_ns, judged.left_ns, void_ns, void_reason, events)

    def _note_lock(self, sample: GrandmasterSample, happened: set[GrandmasterEventKind]) -> None:
        state = sample.clock_state
        if GrandmasterEventKind.RESTARTED in happened:
            self._lock = Reason.GRANDMASTER_RESTARTED
        elif GrandmasterEventKind.PHASE_JUMPED in happened and self._changes.state in HOLDOVERS:
            self._lock = Reason.GRANDMASTER_JUMPED
        if state is ClockState.LOCKED:
            if _contradiction(sample) is None:
                self._lock = _Lock(sample.boottime_ns, accuracy_ns(sample) or 0)
        elif state not in (*HOLDOVERS, *DARK):
            # What steered it since is not known, so neither is where a holdover would begin.
            self._lock = Reason.HOLDOVER_AGE_UNKNOWN

    def _since_realtime_ns(self, sample: GrandmasterSample, realtime_ns: int) -> int | None:
        """A holdover is dated back to the last sample before it."""
        if sample.clock_state is ClockState.HOLDOVER and isinstance(self._lock, _Lock):
            return realtime_ns - (sample.boottime_ns - self._lock.boottime_ns)
        return self._since_ns

    def _own_error(self, sample: GrandmasterSample) -> _Judged:
        match sample.clock_state:
            case ClockState.LOCKED:
                return self._locked_error(sample)
            case ClockState.HOLDOVER:
                return self._holdover_error(sample)
            case ClockState.HOLDOVER_OUT_OF_SPEC:
                return _Judged(unbounded(Reason.HOLDOVER_BUDGET_EXCEEDED), "it says so itself")
            case ClockState.UNKNOWN:
                return _Judged(unbounded(Reason.GRANDMASTER_STATE_UNKNOWN), ", ".join(sample.unknown))
            case None:
                return _Judged(unbounded(_UNTOLD if self._good else Reason.GRANDMASTER_STATE_UNKNOWN))
            case state:
                return _Judged(unbounded(Reason.GRANDMASTER_NOT_LOCKED), f"clock state {state}")

    def _locked_error(self, sample: GrandmasterSample) -> _Judged:
        contradiction = _contradiction(sample)
        if contradiction is not None:
            return _Judged(unbounded(Reason.GRANDMASTER_CONTRADICTS_ITSELF), contradiction)
        if sample.clock_accuracy is None:
            return _Judged(unbounded(_UNTOLD), "it tells no accuracy")
        error_ns = accuracy_ns(sample)
        if error_ns is None:
            return _Judged(unbounded(Reason.GRANDMASTER_ACCURACY_UNKNOWN), f"accuracy {sample.clock_accuracy:#x}")
        # It may lose its reference right after the poll.
        growth_ppb = self._curve.steepest_ppb(0, GRANDMASTER_EXPIRES_AFTER_NS) if self._curve else 0
        return _Judged(Bound(error_ns, growth_ppb))

    def _holdover_error(self, sample: GrandmasterSample) -> _Judged:
        lock, curve = self._lock, self._curve
        if curve is None:
            return _Judged(unbounded(Reason.NO_HOLDOVER_BUDGET), sample.oscillator or "")
        if isinstance(lock, Reason):
            return _Judged(unbounded(lock))
        age_ns = sample.boottime_ns - lock.boottime_ns
        why = _class_unfit(sample.clock_class, age_ns)
        if why is not None:
            return _Judged(unbounded(why), f"in holdover with clock class {sample.clock_class}")
        budget_ns = curve.at(age_ns)
        if budget_ns is None:
            why = Reason.HOLDOVER_BUDGET_EXCEEDED
            return _Judged(unbounded(why), f"the budget lasts {curve.points[-1][0]} s", left_ns=0)
        # The curve began with its first point; a unit whose accuracy was worse than that began with more.
        budget_ns += max(0, lock.accuracy_ns - curve.points[0][1])
        error_ns = max(budget_ns, accuracy_ns(sample) or 0)
        growth_ppb = curve.steepest_ppb(age_ns, age_ns + GRANDMASTER_EXPIRES_AFTER_NS)
        return _Judged(Bound(error_ns, growth_ppb), left_ns=curve.end_ns - age_ns)


def _stored_lock(stored: StoredLock | None, sample: GrandmasterSample, realtime_ns: int) -> _Lock | Reason:
    """The last LOCKED sample of a former start on this one's clock, or why a holdover cannot be dated by it."""
    if stored is None or stored.realtime_ns > realtime_ns:
        return Reason.HOLDOVER_AGE_UNKNOWN
    age_ns = realtime_ns - stored.realtime_ns
    if sample.uptime_s is not None and (sample.uptime_s + UPTIME_SLACK_S) * NS_PER_S < age_ns:
        return Reason.GRANDMASTER_RESTARTED
    return _Lock(sample.boottime_ns - age_ns, ACCURACY_NS.get(stored.clock_accuracy or 0, 0))


def _contradiction(sample: GrandmasterSample) -> str | None:
    """Why a unit that says LOCKED is not believed."""
    if sample.clock_class not in (None, *_LOCKED_CLASSES):
        return f"locked with clock class {sample.clock_class}"
    if _sees_nothing(sample) and not _follows_another(sample):
        return "locked without a satellite and without another selected reference"
    return None


def _sees_nothing(sample: GrandmasterSample) -> bool:
    if sample.satellites is None:
        return sample.gnss_state == "none"
    return all(satellite.healthy is False for satellite in sample.satellites)


def _follows_another(sample: GrandmasterSample) -> bool:
    """It follows another PTP clock, or an input that is not GNSS is selected."""
    selected = [each.name for each in sample.references or () if each.qualification == "selected"]
    names = [*selected, *([sample.selected_reference] if sample.selected_reference else [])]
    return bool(sample.steps_removed) or any(not _GNSS.search(name) for name in names)


def _class_unfit(clock_class: int | None, age_ns: int) -> Reason | None:
    """Why a unit that says HOLDOVER is not believed. While it bridges, it announces its former class."""
    if clock_class in _LOCKED_CLASSES:
        return Reason.GRANDMASTER_CONTRADICTS_ITSELF if age_ns > BRIDGING_NS else None
    return None if clock_class in (None, *_HOLDOVER_CLASSES) else Reason.GRANDMASTER_NOT_LOCKED


@dataclass(frozen=True, slots=True)
class Invalidation:
    """
    A grandmaster did something, for `reason`, after which nothing holds that was measured before `before_ns` (CLOCK_BOOTTIME).
    `event` is the same each time that this one is told.
    """

    event: int
    before_ns: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class GrandmasterVerdict:
    """
    What the poller of a grandmaster says of it: `utc` bounds its own error as of `as_of_ns` (this node's CLOCK_BOOTTIME, never
    later than the poll), in holdover for no longer than `holdover_left_ns` from then (None: it is not in holdover).
    """

    poller: str
    utc: Bound
    as_of_ns: int
    holdover_left_ns: int | None = None
    void: Invalidation | None = None

    def utc_at(self, boottime_ns: int) -> Bound:
        """Its own error at this moment; unbounded when its budget is used up, or nothing was heard for too long."""
        age_ns = max(0, boottime_ns - self.as_of_ns)
        bound_ns = self.utc.at(age_ns)
        if bound_ns is None:
            return self.utc
        if self.holdover_left_ns is not None and age_ns > self.holdover_left_ns:
            return unbounded(Reason.HOLDOVER_BUDGET_EXCEEDED)
        if age_ns >= GRANDMASTER_EXPIRES_AFTER_NS:
            return unbounded(Reason.GRANDMASTER_UNHEARD)
        return Bound(bound_ns, self.utc.growth_ppb)


@dataclass(frozen=True, slots=True)
class MessageReceipt:
    """When a message came, on this node's two clocks, and its sender's CLOCK_REALTIME at its publication."""

    boottime_ns: int
    realtime_ns: int
    published_realtime_ns: int

    def poll_ns(self, age_ns: int) -> int:
        """CLOCK_BOOTTIME of what was `age_ns` old at publication: an age is never understated, however long the way."""
        return self.boottime_ns - age_ns - max(0, self.realtime_ns - self.published_realtime_ns)

    def void(self, before_realtime_ns: int, reason: Reason) -> Invalidation:
        """Of what the sender dated on its own clock: never dated too early, so the way here does not count."""
        age_ns = max(0, self.published_realtime_ns - before_realtime_ns)
        return Invalidation(before_realtime_ns, self.boottime_ns - age_ns, reason)
