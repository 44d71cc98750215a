"""
From the bound against the PTP parent to the published ErrorBound: against parent, grandmaster and UTC. Pure.

Each reference adds its own error to the bound against the one before; docs/error-bound.md derives them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from timesyncd.bound import (
    DEFAULT_HOLDOVER_AFTER_NS,
    DEFAULT_VOID_AFTER_NS,
    GRANDMASTER_EXPIRES_AFTER_NS,
    Bound,
    ClockStatus,
    ErrorBound,
    Rate,
    Reason,
    Term,
    unbounded,
)
from timesyncd.clocks import HALF_SECOND_NS, NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.grandmaster import GrandmasterVerdict
from timesyncd.model.parent_bound import Coasting, ParentBound
from timesyncd.model.phc import PhcLink
from timesyncd.model.selection import Agreement
from timesyncd.sample import ACCURACY_NS, ClockSample, UtcOrigin, UtcSample

#: Clock classes on the PTP timescale: locked to a primary reference, and in holdover within specification.
LOCKED_CLASS = 6
HOLDOVER_CLASS = 7

#: The same two of a timescale of the application.
_GOOD_CLASSES = (LOCKED_CLASS, HOLDOVER_CLASS, 13, 14)

#: In G.8265.1 these classes are quality levels of the network, not the grandmaster's class.
QUALITY_LEVELS = range(80, 111)

#: Eleven days. A larger value is not a clock's error, but a fault of some device.
MAX_PLAUSIBLE_NS = 10**15

#: A bound is used until the next sample, so two valid bounds are compared at this age.
_COMPARED_AT_NS = NS_PER_S


def grandmaster_bound(
    parent: Bound, sample: ClockSample, settings: SourceSettings, parent_verdict: GrandmasterVerdict | None = None
) -> Bound:
    """
    The bound against the grandmaster: each boundary clock between it and the parent adds its configured error. Without
    Announce neither the grandmaster nor their number is known.

    `parent_verdict` is that of the poller of the nearest boundary clock. In a holdover that the poller sees, its budget
    counts where it is larger than the configured error.
    """
    if sample.grandmaster_identity is None:
        return unbounded(Reason.NO_ANNOUNCE)
    hops = max(0, sample.steps_removed - 1)
    if hops == 0:
        return parent
    if settings.boundary_clock_error_ns is None:
        return unbounded(Reason.BOUNDARY_CLOCK_ERROR_UNKNOWN)
    bound = parent.plus(hops * settings.boundary_clock_error_ns)
    if parent_verdict is None or parent_verdict.holdover_left_ns is None:
        return bound
    budget = parent_verdict.utc_at(_known_ns(sample))
    if budget.bound_ns is None:
        return budget if budget.reason is Reason.HOLDOVER_BUDGET_EXCEEDED else bound
    return bound.plus(max(0, budget.bound_ns - settings.boundary_clock_error_ns), budget.growth_ppb)


def utc_bound(
    gm: Bound, sample: ClockSample, settings: SourceSettings, verdict: GrandmasterVerdict | None = None
) -> Bound:
    """
    The bound against UTC: the grandmaster's own error is added, where that and the timescale are known. Both growths
    count.
    """
    return combined(gm, utc_error(sample, settings, verdict))


def combined(gm: Bound, own: Bound) -> Bound:
    """A clock's bound against its grandmaster, plus the grandmaster's own error against UTC."""
    if gm.bound_ns is None:
        return gm
    return own if own.bound_ns is None else gm.plus(own.bound_ns, own.growth_ppb)


def utc_error(sample: ClockSample, settings: SourceSettings, verdict: GrandmasterVerdict | None) -> Bound:
    """The grandmaster's own error against UTC; unbounded also where its timescale cannot be converted to UTC."""
    if not sample.ptp_timescale:
        return unbounded(Reason.ARBITRARY_TIMESCALE)
    if sample.current_utc_offset_s is None or not sample.time_traceable:
        return unbounded(Reason.UTC_OFFSET_UNKNOWN)
    if sample.current_utc_offset_s != settings.utc_offset_s:
        return unbounded(Reason.UTC_OFFSET_DIFFERS)
    if verdict is not None and _is_contradicted(sample, verdict):
        return unbounded(Reason.ANNOUNCE_CONTRADICTED)
    return _grandmaster_error(sample, settings, verdict)


def _grandmaster_error(sample: ClockSample, settings: SourceSettings, verdict: GrandmasterVerdict | None) -> Bound:
    """
    The wider of the error that the grandmaster announces and the one in its poller's verdict.

    Exceptions: a verdict without an error does not count, nor does an expired one of a grandmaster that was locked. In
    a holdover that both report, the budget of the oscillator replaces the flat one of the source.
    """
    announced = _announced_error(sample, settings)
    if verdict is None:
        return announced
    judged = verdict.utc_at(_known_ns(sample))
    if announced.bound_ns is not None and not _is_expired(verdict, sample):
        reported_ns = ACCURACY_NS.get(verdict.reported.clock_accuracy or 0, 0)
        announced = announced._replace(bound_ns=max(announced.bound_ns, reported_ns))
    has_expired = judged.reason is Reason.GRANDMASTER_STATE_EXPIRED and verdict.holdover_left_ns is None
    if has_expired or judged.reason is Reason.GRANDMASTER_ERROR_NOT_REPORTED:
        return announced
    if verdict.holdover_left_ns is not None and sample.clock_class == HOLDOVER_CLASS:
        announced = Bound(ACCURACY_NS.get(sample.clock_accuracy, 0))
    return wider(judged, announced)


def _is_contradicted(sample: ClockSample, verdict: GrandmasterVerdict) -> bool:
    """
    Whether the grandmaster's report of itself excludes what it announces of UTC: one of the two is wrong, and the bound
    rests on what is announced. Its clock class counts where it reports no clock state, since the verdict judges that.
    """
    if _is_expired(verdict, sample):
        return False
    reported = verdict.reported
    is_unjudged = verdict.utc.reason is Reason.GRANDMASTER_ERROR_NOT_REPORTED
    bad_class = reported.clock_class not in (None, *_GOOD_CLASSES, *QUALITY_LEVELS)
    return (
        reported.utc_offset_s not in (None, sample.current_utc_offset_s)
        or reported.time_traceable is False
        or reported.steps_removed not in (None, 0)
        or (is_unjudged and bad_class)
    )


def _is_expired(verdict: GrandmasterVerdict, sample: ClockSample) -> bool:
    return _known_ns(sample) - verdict.as_of_ns >= GRANDMASTER_EXPIRES_AFTER_NS


def _known_ns(sample: ClockSample) -> int:
    """CLOCK_BOOTTIME up to which the sample's data sets are known."""
    return max(sample.as_of_ns, sample.read_ns)


def _announced_error(sample: ClockSample, settings: SourceSettings) -> Bound:
    if sample.clock_class not in (LOCKED_CLASS, HOLDOVER_CLASS):
        return unbounded(Reason.GRANDMASTER_NOT_LOCKED)
    accuracy_ns = ACCURACY_NS.get(sample.clock_accuracy)
    if accuracy_ns is None:
        return unbounded(Reason.GRANDMASTER_ACCURACY_UNKNOWN)
    holdover_ns = settings.grandmaster_holdover_budget_ns if sample.clock_class == HOLDOVER_CLASS else 0
    return Bound(accuracy_ns + holdover_ns)


def wider(one: Bound, other: Bound) -> Bound:
    """The larger of two bounds as of one moment, with the larger growth; unbounded where one is."""
    if one.bound_ns is None or other.bound_ns is None:
        return one if one.bound_ns is None else other
    return Bound(max(one.bound_ns, other.bound_ns), max(one.growth_ppb, other.growth_ppb))


def utc_seconds_removed(sample: ClockSample, settings: SourceSettings) -> int:
    """The whole seconds that ptp4l removes: its own utc_offset on a PTP timescale, whatever Announce contains."""
    return settings.utc_offset_s if sample.ptp_timescale else 0


@dataclass(frozen=True, slots=True)
class EnsembleSettings:
    """
    One source's assumptions, the ages at which its bound enters HOLDOVER and expires, and the sources that share no
    cause of error with it, by the operator's word.
    """

    source: SourceSettings = field(default_factory=SourceSettings)
    holdover_after_ns: int = DEFAULT_HOLDOVER_AFTER_NS
    void_after_ns: int = DEFAULT_VOID_AFTER_NS
    independent_of: frozenset[str] = frozenset()


def system_clock_bound(
    parent: ParentBound, sample: ClockSample, settings: SourceSettings, link: PhcLink | None
) -> ParentBound:
    """
    The system clock's bound against the parent.

    With software timestamps, and where the PHC was read at the Sync, `parent` is that already. Otherwise the PHC's
    bound is carried over by the `link`; without a link the system clock is unbounded. So it is where the
    two clocks are apart by other whole seconds than the timescale explains: one of them is wrong, or another number of
    seconds is removed than configured.
    """
    removed_ns = utc_seconds_removed(sample, settings) * NS_PER_S
    differ = unbounded(Reason.PHC_SECONDS_DIFFER)
    if sample.clock == "realtime":
        return parent
    if parent.of_system_clock:
        is_explained = sample.phc is None or abs(sample.phc.offset_ns + removed_ns) < HALF_SECOND_NS
        return parent if is_explained else parent._replace(bound=differ, statistical=differ)
    if link is None or parent.as_of_ns - link.as_of_ns >= DEFAULT_VOID_AFTER_NS:
        nothing = unbounded(Reason.PHC_NOT_MEASURED)
        return parent._replace(bound=nothing, statistical=nothing)
    offset_ns = link.offset_ns + removed_ns
    if abs(offset_ns) >= HALF_SECOND_NS:
        return parent._replace(bound=differ, statistical=differ)
    at_ns = max(parent.as_of_ns, link.as_of_ns)
    age_ns = link.age_ns(at_ns)
    if age_ns is None or link.growth_ppb is None:
        unknown = unbounded(Reason.STEERING_LIMIT_UNKNOWN)
        return parent._replace(bound=unknown, statistical=unknown)
    if parent.frequency_ppb is None:
        apart = unbounded(Reason.PHC_READ_APART)
        return parent._replace(bound=apart, statistical=apart)
    later_ns = at_ns - parent.as_of_ns
    hard, stat = _grown(parent.bound, later_ns), _grown(parent.statistical, later_ns)
    grown_ns = (hard.bound_ns or 0) - (parent.bound.bound_ns or 0)
    error_ns = link.error_ns + age_ns
    terms = {Term.PHC_READING: link.error_ns, Term.PHC_AGE: age_ns, Term.PHC_TO_SYSTEM: abs(offset_ns)}
    return parent._replace(
        as_of_ns=at_ns,
        bound=hard.plus(abs(offset_ns) + error_ns, link.growth_ppb),
        statistical=stat.plus(abs(offset_ns) + error_ns, link.growth_ppb),
        terms=_with_growth(parent.terms, parent.bound, later_ns) | terms,
        stat_terms=_with_growth(parent.stat_terms, parent.statistical, later_ns) | terms,
        rates=parent.rates | {Rate.PHC_TO_SYSTEM: link.growth_ppb},
        low_ns=parent.low_ns - grown_ns + offset_ns - error_ns,
        high_ns=parent.high_ns + grown_ns + offset_ns + error_ns,
        past_span_ns=0,
        since_sample_ns=parent.since_sample_ns + later_ns,
        frequency_ppb=link.system_frequency_ppb,
        frequency_at_ns=link.as_of_ns,
    )


def error_bound(
    sample: ClockSample,
    parent: ParentBound,
    settings: EnsembleSettings,
    verdict: GrandmasterVerdict | None = None,
    parent_verdict: GrandmasterVerdict | None = None,
) -> ErrorBound:
    """
    The bounds against all references at one sample; `parent` is the system clock's. The verdicts are those of the
    grandmaster's poller, and of the poller of the boundary clock that the source follows.
    """
    gm = grandmaster_bound(parent.bound, sample, settings.source, parent_verdict)
    gm_stat = grandmaster_bound(parent.statistical, sample, settings.source, parent_verdict)
    measured = replace(sample, read_ns=parent.as_of_ns) if parent.since_sample_ns else sample
    own = utc_error(measured, settings.source, verdict)
    utc = combined(gm, own)
    steering_ppb = _measurable_steering_ppb(parent, sample)
    return ErrorBound(
        as_of_ns=parent.as_of_ns,
        real_minus_boot_ns=sample.real_minus_boot_ns,
        parent_hard=parent.bound,
        gm_hard=gm,
        utc_hard=utc,
        parent_stat=parent.statistical,
        gm_stat=gm_stat,
        utc_stat=combined(gm_stat, own),
        gm_status=status_of(gm),
        utc_status=status_of(utc),
        grandmaster_identity=sample.grandmaster_identity,
        parent_identity=sample.parent_identity,
        utc_seconds_removed=utc_seconds_removed(sample, settings.source),
        clock=sample.clock,
        holdover_after_ns=max(0, settings.holdover_after_ns - parent.since_sample_ns),
        void_after_ns=max(0, settings.void_after_ns - parent.since_sample_ns),
        past_growth_ppb=parent.past_growth_ppb,
        past_span_ns=parent.past_span_ns,
        since_sample_ns=parent.since_sample_ns,
        terms=parent.terms,
        stat_terms=parent.stat_terms,
        rates=parent.rates,
        frequency_ppb=parent.frequency_ppb,
        frequency_at_ns=parent.frequency_at_ns,
        steering_ppb=steering_ppb,
        utc_steering_ppb=steering_ppb,
    )


def _measurable_steering_ppb(parent: ParentBound, sample: ClockSample) -> int:
    """
    The part of the growth that a reader replaces who measures the system clock's steering since its frequency was read. With
    a PHC that is read apart from the Syncs, that part is of the PHC's servo, too, and remains.
    """
    is_of_system_clock = sample.clock == "realtime" or parent.of_system_clock
    is_since = parent.frequency_ppb is not None and parent.frequency_at_ns <= parent.as_of_ns
    return parent.rates.get(Rate.STEERING, 0) if is_of_system_clock and is_since else 0


def utc_only_bound(sample: UtcSample, settings: EnsembleSettings) -> ErrorBound:
    """
    The bound by a source that knows UTC and no grandmaster. What it follows may be a clock whose own error it does not
    know; then UTC is unbounded.
    """
    nothing = unbounded(Reason.NO_GRANDMASTER)
    known = Bound(abs(sample.offset_ns) + sample.error_ns, sample.growth_ppb)
    utc = unbounded(_UNPROVEN[sample.origin]) if sample.origin in _UNPROVEN else known
    return ErrorBound(
        as_of_ns=sample.as_of_ns,
        real_minus_boot_ns=sample.real_minus_boot_ns,
        parent_hard=nothing,
        gm_hard=nothing,
        utc_hard=utc,
        utc_stat=utc,
        gm_status=ClockStatus.UNKNOWN,
        utc_status=status_of(utc),
        clock="realtime",
        holdover_after_ns=settings.holdover_after_ns,
        void_after_ns=settings.void_after_ns,
    )


_UNPROVEN = {UtcOrigin.PHC: Reason.FOLLOWS_PHC, UtcOrigin.REFCLOCK: Reason.REFCLOCK_NOT_DECLARED}


def coasted(parent: ParentBound, coasting: Coasting) -> ParentBound:
    """
    The bound some time after the last sample. A hard bound that became the narrower one is the statistical one, too.
    """
    later_ns = coasting.time_ns - parent.as_of_ns
    grown_ns, hard_ns = parent.bound.bound_ns, coasting.bound.bound_ns
    assert grown_ns is not None and hard_ns is not None
    terms = parent.terms | {Term.SINCE_SAMPLE: parent.terms.get(Term.SINCE_SAMPLE, 0) + hard_ns - grown_ns}
    grown = _grown(parent.statistical, later_ns)
    stat = narrower(grown, coasting.bound)
    return parent._replace(
        as_of_ns=coasting.time_ns,
        bound=coasting.bound,
        statistical=stat,
        terms=terms,
        stat_terms=_with_growth(parent.stat_terms, parent.statistical, later_ns) if stat is grown else terms,
        rates=coasting.rates,
        low_ns=coasting.low_ns,
        high_ns=coasting.high_ns,
        past_span_ns=0,
        phase_jump_ns=None,
        since_sample_ns=parent.since_sample_ns + later_ns,
        frequency_ppb=coasting.frequency_ppb,
        frequency_at_ns=coasting.time_ns,
    )


def rebased(bound: ErrorBound, boottime_ns: int) -> ErrorBound:
    """The same bound as of a later moment: grown, with less time left until HOLDOVER and expiry."""
    age_ns = boottime_ns - bound.as_of_ns
    if age_ns <= 0:
        return bound
    return replace(
        bound,
        as_of_ns=boottime_ns,
        parent_hard=_grown(bound.parent_hard, age_ns),
        gm_hard=_grown(bound.gm_hard, age_ns),
        utc_hard=_grown(bound.utc_hard, age_ns),
        parent_stat=_grown(bound.parent_stat, age_ns),
        gm_stat=_grown(bound.gm_stat, age_ns),
        utc_stat=_grown(bound.utc_stat, age_ns),
        holdover_after_ns=max(0, bound.holdover_after_ns - age_ns),
        void_after_ns=max(0, bound.void_after_ns - age_ns),
        past_span_ns=0,
        since_sample_ns=bound.since_sample_ns + age_ns,
        terms=_with_growth(bound.terms, bound.parent_hard, age_ns),
        stat_terms=_with_growth(bound.stat_terms, bound.parent_stat, age_ns),
    )


def _with_growth(terms: dict[Term, int], parent: Bound, age_ns: int) -> dict[Term, int]:
    grown_ns = parent.at(age_ns)
    if parent.bound_ns is None or grown_ns is None or not terms:
        return terms
    return terms | {Term.SINCE_SAMPLE: terms.get(Term.SINCE_SAMPLE, 0) + grown_ns - parent.bound_ns}


def _grown(bound: Bound, age_ns: int) -> Bound:
    return bound._replace(bound_ns=bound.at(age_ns))


def with_agreement(bound: ErrorBound, agreement: Agreement, boottime_ns: int, contradicted: bool) -> ErrorBound:
    """
    The bound with the UTC bound that follows from all sources.

    `contradicted`: the source of this bound cannot be true together with the others, so its own UTC bound does not
    count.
    """
    now = rebased(bound, boottime_ns)
    utc = Bound(max(abs(agreement.low_ns), abs(agreement.high_ns)), agreement.growth_ppb)
    if not contradicted and _is_within(utc, now.utc_hard) and _is_narrower(now.utc_hard, utc):
        return bound
    utc_stat = utc if contradicted else narrower(now.utc_stat, utc)
    return replace(now, utc_hard=utc, utc_status=ClockStatus.SYNCHRONIZED, utc_stat=utc_stat, utc_steering_ppb=0)


def _is_within(agreed: Bound, own: Bound) -> bool:
    """
    Whether the sources' UTC bound does not exceed the source's own: otherwise the others may be right without this
    source.
    """
    return agreed.bound_ns is not None and own.bound_ns is not None and agreed.bound_ns <= own.bound_ns


def _is_narrower(one: Bound, other: Bound) -> bool:
    """Whether the one is no wider when the next sample is due."""
    one_ns, other_ns = one.at(_COMPARED_AT_NS), other.at(_COMPARED_AT_NS)
    return one_ns is not None and other_ns is not None and one_ns <= other_ns


def narrower(statistical: Bound, hard: Bound) -> Bound:
    """The narrower of the two: a hard bound holds with any probability, so it is a statistical one, too."""
    if hard.bound_ns is None or (statistical.bound_ns is not None and statistical.bound_ns <= hard.bound_ns):
        return statistical
    return hard


def without_implausible(bound: ErrorBound) -> ErrorBound:
    """
    The bound, or an invalidated one where a value exceeds MAX_PLAUSIBLE_NS: it is a fault of some device, and exceeds
    64 bits in sums.
    """
    parts = (bound.parent_hard, bound.gm_hard, bound.utc_hard)
    if all((part.bound_ns or 0) <= MAX_PLAUSIBLE_NS and part.growth_ppb <= MAX_PLAUSIBLE_NS for part in parts):
        return bound
    return invalidated(bound, Reason.IMPLAUSIBLE, ClockStatus.UNKNOWN)


def without_utc(bound: ErrorBound, reason: Reason) -> ErrorBound:
    """The bound, unbounded against UTC for this reason."""
    nothing = unbounded(reason)
    return replace(bound, utc_hard=nothing, utc_stat=nothing, utc_status=ClockStatus.UNKNOWN)


def invalidated(bound: ErrorBound, reason: Reason, status: ClockStatus) -> ErrorBound:
    """The bound with its identities, and with nothing known: unbounded against each reference, for this reason."""
    nothing = unbounded(reason)
    return replace(
        bound,
        parent_hard=nothing,
        gm_hard=nothing,
        utc_hard=nothing,
        parent_stat=nothing,
        gm_stat=nothing,
        utc_stat=nothing,
        gm_status=status,
        utc_status=status,
        terms={},
        stat_terms={},
        rates={},
    )


def status_of(bound: Bound) -> ClockStatus:
    """The status as of the sample that gave this bound."""
    return ClockStatus.UNKNOWN if bound.bound_ns is None else ClockStatus.SYNCHRONIZED
