"""
The bound on a clock's error: its terms, statuses and reasons, and the interval that follows from it at any moment.

The one implementation of a bound's growth (`Bound.at`) and of the status table (`status_at`) is here;
docs/error-bound.md derives both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import NamedTuple, Self

from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, RawReading

DEFAULT_HOLDOVER_AFTER_NS = 5_000_000_000
DEFAULT_VOID_AFTER_NS = 1_000_000_000_000

#: The most that adjtimex makes CLOCK_REALTIME run off its oscillator, 10 % by the tick and 500 ppm by the frequency, in each of
#: its own seconds: slowed by 10.05 %, those are longer by 11.17 %, and every age counts in them.
SYSTEM_CLOCK_LIMIT_PPB = 111_728_739

#: The largest rate of a system clock that was not observed: that limit, and 50 ppm for the oscillator.
UNKNOWN_PAST_PPB = SYSTEM_CLOCK_LIMIT_PPB + 50_000

#: The share of moments at which the statistical bound contains the error; docs/error-bound.md derives it.
STAT_PROBABILITY = 0.997

#: The time after a poll at which a grandmaster's own error expires: the same as for a clock's bound.
GRANDMASTER_EXPIRES_AFTER_NS = DEFAULT_VOID_AFTER_NS


class ClockStatus(IntEnum):
    """
    How far a clock's bound can be trusted now.

    SYNCHRONIZED: fresh, valid samples arrive; that is no statement about steering. HOLDOVER: no fresh sample, and the
    bound grows. UNKNOWN: no bound. DISRUPTED: the bound was valid and no longer is, as after a step.
    """

    UNKNOWN = 0
    SYNCHRONIZED = 1
    HOLDOVER = 2
    DISRUPTED = 3


#: A clock with one of these statuses keeps it, however old its bound is.
_DO_NOT_AGE = (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED)


class Reference(StrEnum):
    """The clock against which an error is bounded."""

    PARENT = "parent"
    GRANDMASTER = "gm"
    UTC = "utc"
    TAI = "tai"


class Reason(IntEnum):
    """
    Why a bound is absent, or a status is not SYNCHRONIZED. Programs decide by the number in segments and by `code` in
    messages.

    The numbers are part of the segment's layout: append, never renumber.
    """

    OK = 0
    NO_SAMPLE_YET = 1
    NO_SEGMENT = 2
    TORN_SEGMENT = 3
    OTHER_BOOT = 4
    OTHER_TIME_NAMESPACE = 5
    AS_OF_IN_FUTURE = 6
    CLOCK_STEPPED = 7
    SOURCE_RESTARTED = 8
    PARENT_CHANGED = 9
    STALE = 10
    EXPIRED = 11
    PHC_NOT_MEASURED = 12
    BOUNDARY_CLOCK_ERROR_UNKNOWN = 13
    ARBITRARY_TIMESCALE = 14
    UTC_OFFSET_UNKNOWN = 15
    UTC_OFFSET_DIFFERS = 16
    GRANDMASTER_NOT_LOCKED = 17
    GRANDMASTER_ACCURACY_UNKNOWN = 18
    NOT_COMPUTED = 19
    OTHER_LAYOUT = 20
    GRANDMASTER_RESTARTED = 21
    GRANDMASTER_JUMPED = 22
    GRANDMASTER_LEFT_HOLDOVER = 23
    GRANDMASTER_IDENTITY_CHANGED = 24
    GRANDMASTER_UTC_OFFSET_CHANGED = 25
    HOLDOVER_BUDGET_EXCEEDED = 26
    NO_HOLDOVER_BUDGET = 27
    HOLDOVER_AGE_UNKNOWN = 28
    GRANDMASTER_CONTRADICTS_ITSELF = 29
    GRANDMASTER_STATE_UNKNOWN = 30
    GRANDMASTER_ERROR_NOT_REPORTED = 31
    GRANDMASTER_STATE_EXPIRED = 32
    NO_GRANDMASTER = 33
    VM_MIGRATED = 34
    SUSPENDED = 35
    IMPLAUSIBLE = 36
    NO_ANNOUNCE = 37
    PATH_CHANGED = 38
    GRANDMASTER_CHANGED = 39
    FOLLOWS_PHC = 40
    REFCLOCK_NOT_DECLARED = 41
    STEERING_LIMIT_UNKNOWN = 42
    PHC_SECONDS_DIFFER = 43
    TWO_PORTS_FOLLOW = 44
    ANNOUNCE_CONTRADICTED = 45
    PHC_READ_APART = 46
    SOURCE_WITHDRAWN = 47

    @property
    def text(self) -> str:
        return _REASON_TEXTS[self]

    @property
    def code(self) -> str:
        """The reason in messages (`reason_code`): its name in lower case, as "no_grandmaster"."""
        return self.name.lower()

    @classmethod
    def of_code(cls, code: str, unknown: Reason) -> Reason:
        """The inverse of `code`; `unknown` for a code that this version does not know."""
        return cls.__members__.get(code.upper(), unknown)


_REASON_TEXTS = {
    Reason.OK: "",
    Reason.NO_SAMPLE_YET: "no valid sample yet",
    Reason.NO_SEGMENT: "no clock segment: start timesyncd on this node",
    Reason.TORN_SEGMENT: "the clock segment is incomplete: its writer died during a write",
    Reason.OTHER_BOOT: "the clock segment was written before the last boot",
    Reason.OTHER_TIME_NAMESPACE: "the clock segment was written in another time namespace",
    Reason.AS_OF_IN_FUTURE: "the clock segment has a date in the future",
    Reason.CLOCK_STEPPED: "the system clock was stepped",
    Reason.SOURCE_RESTARTED: "the PTP daemon restarted",
    Reason.PARENT_CHANGED: "the PTP parent changed",
    Reason.STALE: "no fresh sample; the bound grows",
    Reason.EXPIRED: "no fresh sample for too long",
    Reason.PHC_NOT_MEASURED: "only the PHC is measured: set the ptp4l source's phc, and let the daemon read /dev/ptpN",
    Reason.BOUNDARY_CLOCK_ERROR_UNKNOWN: "boundary clock error unknown: set boundary_clock_error_ns",
    Reason.ARBITRARY_TIMESCALE: "the grandmaster announces an arbitrary timescale",
    Reason.UTC_OFFSET_UNKNOWN: "the grandmaster announces no valid, traceable UTC offset",
    Reason.UTC_OFFSET_DIFFERS: "the announced UTC offset differs from the one that ptp4l removes (utc_offset_s)",
    Reason.GRANDMASTER_NOT_LOCKED: "the grandmaster is not locked to its reference",
    Reason.GRANDMASTER_ACCURACY_UNKNOWN: "the grandmaster announces no clock accuracy",
    Reason.NOT_COMPUTED: "not computed",
    Reason.OTHER_LAYOUT: "the clock segment has an unsupported layout version",
    Reason.GRANDMASTER_RESTARTED: "the grandmaster restarted",
    Reason.GRANDMASTER_JUMPED: "the grandmaster's phase jumped",
    Reason.GRANDMASTER_LEFT_HOLDOVER: "the grandmaster locked to its reference again: its phase may have jumped",
    Reason.GRANDMASTER_IDENTITY_CHANGED: "the grandmaster changed its clock identity",
    Reason.GRANDMASTER_UTC_OFFSET_CHANGED: "the grandmaster changed its UTC offset",
    Reason.HOLDOVER_BUDGET_EXCEEDED: "the grandmaster has been in holdover for longer than its budget",
    Reason.NO_HOLDOVER_BUDGET: "the grandmaster is in holdover, and its oscillator has no configured holdover budget",
    Reason.HOLDOVER_AGE_UNKNOWN: "the grandmaster is in holdover of unknown age",
    Reason.GRANDMASTER_CONTRADICTS_ITSELF: "the grandmaster reports values that contradict each other",
    Reason.GRANDMASTER_STATE_UNKNOWN: "the grandmaster's clock state is unknown",
    Reason.GRANDMASTER_ERROR_NOT_REPORTED: "the grandmaster does not report its own error",
    Reason.GRANDMASTER_STATE_EXPIRED: "no state of the grandmaster was received for too long",
    Reason.NO_GRANDMASTER: "this source measures UTC and has no grandmaster",
    Reason.VM_MIGRATED: "the virtual machine was migrated to another host",
    Reason.SUSPENDED: "the machine was suspended",
    Reason.IMPLAUSIBLE: "the source reports an error of more than eleven days",
    Reason.PATH_CHANGED: "the path to the PTP parent changed: another port of it, or of this node",
    Reason.GRANDMASTER_CHANGED: "the PTP grandmaster changed",
    Reason.FOLLOWS_PHC: "chronyd follows a PTP hardware clock: it cannot know the error of the PTP path",
    Reason.REFCLOCK_NOT_DECLARED: "chronyd follows a reference clock that its source does not declare (refclocks)",
    Reason.PHC_SECONDS_DIFFER: "system clock and PHC are apart by seconds that no timescale explains: one is wrong",
    Reason.TWO_PORTS_FOLLOW: "two ports of ptp4l follow a parent: of which one an offset is, is unknown",
    Reason.PHC_READ_APART: "the PHC is not read at each Sync, so what its servo does is unknown: set the ptp4l source's phc",
    Reason.SOURCE_WITHDRAWN: "the source withdrew its bound: it reports that it cannot bound the clock any more",
    Reason.ANNOUNCE_CONTRADICTED: "the grandmaster's own report contradicts its Announce messages",
    Reason.NO_ANNOUNCE: "no Announce names the grandmaster: a change of the master cannot be detected",
    Reason.STEERING_LIMIT_UNKNOWN: "neither the PHC's frequency nor its limit can be read, so its servo may move it by anything",
}


class Interval(NamedTuple):
    """
    The true time lies in [earliest, latest], in ns since 1970; both are None while the status is UNKNOWN or DISRUPTED.
    """

    earliest: int | None
    latest: int | None
    status: ClockStatus
    reference: Reference


def growth_ns(growth_ppb: int, elapsed_ns: int) -> int:
    """How far a bound with this growth widens in `elapsed_ns`, rounded up."""
    return -(-growth_ppb * elapsed_ns // NS_PER_S)


class Bound(NamedTuple):
    """
    |clock error| <= `bound_ns` as of some moment, growing by `growth_ppb` since; `bound_ns` None = unbounded, for
    `reason`.
    """

    bound_ns: int | None
    growth_ppb: int = 0
    reason: Reason = Reason.OK

    def at(self, age_ns: int) -> int | None:
        """
        The bound at this age, rounded up to a whole nanosecond, so it is never understated; None = unbounded.

        This is the only growth of a bound in Python; the page has its twin, and tests/recordings/bound_growth.json
        holds both.
        """
        return None if self.bound_ns is None else self.bound_ns + growth_ns(self.growth_ppb, age_ns)

    def age_at(self, limit_ns: int) -> int | None:
        """
        The greatest age at which the bound is at most `limit_ns`: negative if it exceeded that before; None = it never
        does.
        """
        if self.bound_ns is None:
            raise ValueError("an unbounded error has no age at which it reaches a limit")
        return None if self.growth_ppb == 0 else (limit_ns - self.bound_ns) * NS_PER_S // self.growth_ppb

    def plus(self, more_ns: int, growth_ppb: int = 0) -> Bound:
        """
        The bound against another clock, which differs by at most `more_ns` and drifts by at most `growth_ppb`;
        unbounded stays unbounded.
        """
        if self.bound_ns is None:
            return self
        return Bound(self.bound_ns + more_ns, self.growth_ppb + growth_ppb, self.reason)


class Term(StrEnum):
    """
    A part of the bound against the parent at the sample, in ns. The value is its name in messages, the store and the
    API.

    `description` is for tables of 80 columns; docs/error-bound.md defines each term. `segment_index` is the place among
    the clock segment's words of terms: part of its layout. None = a term of the statistical bound alone, which has no
    such word.
    """

    description: str
    segment_index: int | None

    def __new__(cls, name: str, description: str, segment_index: int | None = None) -> Self:
        term = str.__new__(cls, name)
        term._value_ = name
        term.description, term.segment_index = description, segment_index
        return term

    OFFSET = "offset", "offset of the newest Sync", 0
    MEAN_OFFSET = "mean_offset", "mean of the recent offsets"
    NOISE = "noise", "offset spread times Student's t"
    PATH_DELAY = "path_delay", "worst case: all of the delay in one direction", 1
    ASYMMETRY = "asymmetry", "assumed asymmetry; not observable"
    PATH_MEMORY = "path_memory", "older samples in the delay filter", 2
    GRANULARITY = "granularity", "resolution of one timestamp", 3
    STEP_TOLERANCE = "step_tolerance", "clock steps too small to detect", 4
    ASYMMETRY_UNCERTAINTY = "asymmetry_uncertainty", "as configured", 5
    READING_AGE = "reading_age", "growth from Sync to reading", 6
    PHC_READING = "phc_reading", "half the window of the PHC reading", 7
    PHC_TO_SYSTEM = "phc_to_system", "system clock minus PHC", 8
    SINCE_SAMPLE = "since_sample", "change since the sample", 9
    PHC_AGE = "phc_age", "movement of the PHC around its reading", 10


class Rate(StrEnum):
    """
    A part of the growth of the bound against the parent, in ppb. The value is its name in messages, the store and the
    API.
    """

    description: str

    def __new__(cls, name: str, description: str) -> Self:
        rate = str.__new__(cls, name)
        rate._value_ = name
        rate.description = description
        return rate

    LOCAL_DRIFT = "local_drift", "oscillator minus learned drift"
    FREQUENCY_OFFSET = "frequency_offset", "applied frequency minus learned drift"
    STEERING = "steering", "servo changes between two readings"
    GRANDMASTER_RATE = "grandmaster_rate", "rate of the grandmaster itself"
    PHC_TO_SYSTEM = "phc_to_system", "system clock relative to the PHC"


def unbounded(reason: Reason) -> Bound:
    return Bound(None, 0, reason)


_NOT_COMPUTED = unbounded(Reason.NOT_COMPUTED)


class Publication(NamedTuple):
    """
    The system clock beside its unsteered oscillator when a bound was published: CLOCK_MONOTONIC_RAW, and CLOCK_MONOTONIC
    minus that, at most `error_ns` less. Until then the clock may have been steered `unseen_ns` further than the bound's
    frequency says.
    """

    raw_ns: int
    mono_minus_raw_ns: int
    error_ns: int = 0
    unseen_ns: int = 0


@dataclass(slots=True)
class ErrorBound:
    """
    A clock's bounds as of `as_of_ns` (CLOCK_BOOTTIME), from which those at any other moment follow.

    The statuses are as of the last reading; `status_at` ages them. `terms` add up to the hard bound against the parent
    and `stat_terms` to the statistical one, in ns; `rates` add up to the growth of the hard one, in ppb.

    `frequency_ppb` is how much faster CLOCK_REALTIME was made to run than its oscillator when that was read at
    `frequency_at_ns` (CLOCK_BOOTTIME); None: not known. The growth counts on it, and contains `steering_ppb` (against parent
    and grandmaster) and `utc_steering_ppb` for what a servo makes of it unread. A reader that has the `publication` measures
    that instead.

    `as_of_ns` is later than the newest sample by `since_sample_ns` where a later reading moved the bound, and
    `holdover_after_ns` and `void_after_ns` are shorter by as much. Before `as_of_ns` the bounds grow with the distance,
    too: by `past_growth_ppb` if that is more, for `past_span_ns`, and by UNKNOWN_PAST_PPB beyond. Treat it as
    immutable; it is not frozen, since one is made for each sample.
    """

    as_of_ns: int
    real_minus_boot_ns: int
    parent_hard: Bound
    gm_hard: Bound
    utc_hard: Bound
    gm_status: ClockStatus
    utc_status: ClockStatus
    grandmaster_identity: str | None = None
    parent_identity: str | None = None
    utc_seconds_removed: int | None = None
    clock: str | None = None
    holdover_after_ns: int = DEFAULT_HOLDOVER_AFTER_NS
    void_after_ns: int = DEFAULT_VOID_AFTER_NS
    past_growth_ppb: int = UNKNOWN_PAST_PPB
    past_span_ns: int = 0
    since_sample_ns: int = 0
    parent_stat: Bound = _NOT_COMPUTED
    gm_stat: Bound = _NOT_COMPUTED
    utc_stat: Bound = _NOT_COMPUTED
    terms: dict[Term, int] = field(default_factory=dict)
    stat_terms: dict[Term, int] = field(default_factory=dict)
    rates: dict[Rate, int] = field(default_factory=dict)
    frequency_ppb: int | None = None
    frequency_at_ns: int = 0
    steering_ppb: int = 0
    utc_steering_ppb: int = 0
    publication: Publication | None = None


def status_at(written: ClockStatus, age_ns: int, holdover_after_ns: int, void_after_ns: int) -> ClockStatus:
    """
    The status table, which every reader applies to the written status.

    UNKNOWN and DISRUPTED do not age; SYNCHRONIZED ages to HOLDOVER, and then to UNKNOWN. A negative age is a segment
    from the future: UNKNOWN.
    """
    if written in _DO_NOT_AGE:
        return written
    if age_ns < 0 or age_ns >= void_after_ns:
        return ClockStatus.UNKNOWN
    return ClockStatus.SYNCHRONIZED if age_ns < holdover_after_ns else ClockStatus.HOLDOVER


def published(bound: ErrorBound, boottime_ns: int, frequency_ppb: int | None, reading: RawReading | None) -> ErrorBound:
    """
    The bound as a reader gets it that measures the steering since: `frequency_ppb` and `reading` are of now. A program that
    began to slew the clock since the bound's frequency was read has moved it by the difference at most.

    The growth of a bound without a frequency allows for all steering, so a measurement by the frequency of now only adds to it.
    """
    if frequency_ppb is None or reading is None:
        return bound if bound.publication is None else replace(bound, publication=None)
    known_ppb = frequency_ppb if bound.frequency_ppb is None else bound.frequency_ppb
    unseen_ns = growth_ns(abs(frequency_ppb - known_ppb), max(0, boottime_ns - bound.frequency_at_ns))
    mono_minus_raw_ns = reading.monotonic_ns - reading.before_ns
    publication = Publication(reading.before_ns, mono_minus_raw_ns, reading.width_ns, unseen_ns)
    return replace(bound, frequency_ppb=known_ppb, publication=publication)


def steered_ns(bound: ErrorBound, reading: RawReading) -> int | None:
    """
    How far CLOCK_REALTIME was steered since the bound's frequency was read, beyond what that frequency explains: at most so
    many ns, either way. None: the bound does not support the measurement.
    """
    since = bound.publication
    if since is None or bound.frequency_ppb is None:
        return None
    explained_ns = bound.frequency_ppb * (reading.after_ns - since.raw_ns) // NS_PER_S
    least_ns = reading.monotonic_ns - reading.after_ns - since.mono_minus_raw_ns - explained_ns - 1
    most_ns = least_ns + reading.width_ns + since.error_ns + 2
    return since.unseen_ns + max(most_ns, -least_ns)


class ReferenceBound(NamedTuple):
    """
    An ErrorBound's part for one reference, which is `ahead_ns` ahead of CLOCK_REALTIME, plus or minus the bound. Its growth
    contains `steering_ppb` for unread steering.
    """

    bound: Bound
    status: ClockStatus
    ahead_ns: int = 0
    steering_ppb: int = 0

    def at(self, age_ns: int, steered_ns: int | None) -> int | None:
        """The bound at this age; where the steering since was measured, that counts instead of what it might have been."""
        if steered_ns is None or self.bound.bound_ns is None:
            return self.bound.at(age_ns)
        return self.bound.plus(steered_ns, -self.steering_ppb).at(age_ns)


def reference_bound(bound: ErrorBound, reference: Reference) -> ReferenceBound:
    if reference is Reference.TAI:
        return _tai_bound(bound)
    return {
        Reference.PARENT: ReferenceBound(bound.parent_hard, bound.gm_status, 0, bound.steering_ppb),
        Reference.GRANDMASTER: ReferenceBound(bound.gm_hard, bound.gm_status, 0, bound.steering_ppb),
        Reference.UTC: ReferenceBound(bound.utc_hard, bound.utc_status, 0, bound.utc_steering_ppb),
    }[reference]


def _tai_bound(bound: ErrorBound) -> ReferenceBound:
    """
    TAI is UTC plus the seconds that the PTP daemon removes from a PTP timescale, which is TAI.

    Where it removes none, the grandmaster's timescale is arbitrary, and the difference between UTC and TAI is unknown.
    """
    seconds = bound.utc_seconds_removed
    if bound.utc_hard.bound_ns is None or seconds:
        return ReferenceBound(bound.utc_hard, bound.utc_status, (seconds or 0) * NS_PER_S, bound.utc_steering_ppb)
    return ReferenceBound(
        unbounded(Reason.UTC_OFFSET_UNKNOWN if seconds is None else Reason.ARBITRARY_TIMESCALE), ClockStatus.UNKNOWN
    )


def interval_now(
    bound: ErrorBound,
    reference: Reference,
    read_clocks: Callable[[], tuple[int, int]],
    read_raw: Callable[[], RawReading] | None = None,
) -> tuple[Interval, Reason]:
    """
    The interval of a reference now, and the reason for its status. `read_clocks` returns (REALTIME, BOOTTIME), read in
    this order; `read_raw` is called later, so that no steering before the reading is missed.

    A reading that was preempted between its two clocks looks like a step back, so up to three are taken before a step
    is reported.
    """
    readings = [read_clocks()]
    while not _same_epoch(bound, readings[-1]) and len(readings) < 3:
        readings.append(read_clocks())
    real_ns, boot_ns = max(readings, key=lambda reading: reading[0] - reading[1])
    part = reference_bound(bound, reference)
    age_ns = boot_ns - bound.as_of_ns
    status = status_at(part.status, age_ns, bound.holdover_after_ns, bound.void_after_ns)
    reason = _reason(part.bound, part.status, status, age_ns)
    if status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER) and not _same_epoch(bound, (real_ns, boot_ns)):
        status, reason = ClockStatus.DISRUPTED, Reason.CLOCK_STEPPED
    width_ns = part.at(age_ns, None if read_raw is None else steered_ns(bound, read_raw()))
    if width_ns is None or status in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        status = ClockStatus.DISRUPTED if status is ClockStatus.DISRUPTED else ClockStatus.UNKNOWN
        return Interval(None, None, status, reference), reason
    reference_ns = real_ns + part.ahead_ns
    return Interval(reference_ns - width_ns, reference_ns + width_ns, status, reference), reason


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
        ClockStatus.UNKNOWN: Reason.EXPIRED,
        ClockStatus.DISRUPTED: Reason.CLOCK_STEPPED,
    }[status]
