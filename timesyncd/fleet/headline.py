"""
The fleet in one sentence: how far apart the clocks with a bound may be, and what is known of the others. Pure.

It never claims agreement for a clock without a bound: such clocks are counted beside the alignment, with what they
share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC as UTC_ZONE
from datetime import datetime
from typing import Literal

from timesyncd.bound import Bound
from timesyncd.client.preflight_check import NEVER_REPORTED
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.alignment import Alignment, alignment, unknown_alignment
from timesyncd.fleet.node_clock import (
    GRANDMASTER,
    MAX_PLAUSIBLE,
    MOST_BOUNDED,
    NO_BOUND,
    UTC,
    AgedStatus,
    NodeClock,
    aged_statuses,
    rounded_up_ns,
)
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import FindingMessage, Severity, StateReason
from timesyncd.messages.overview import (
    AffectedJob,
    ConfiguredLimits,
    Headline,
    PossibleAction,
    UnboundedCause,
    Verdict,
)
from timesyncd.units import limit_text, percentile, rounded_up_text

#: Most names in a list of an answer, and most causes.
MAX_NAMES = 1_000
MAX_CAUSES = 3

NS_PER_H = 3_600 * NS_PER_S

#: From the most severe to the least.
SEVERITY_ORDER: tuple[Severity, ...] = ("critical", "warning", "info")

_ONE_CLOCK = unknown_alignment("one clock has a bound; there is nothing to compare it with", "ok")
_NO_CLOCK = unknown_alignment("no clock has a bound", StateReason.NO_BOUND)

NO_LIMITS = ConfiguredLimits()

Kind = Literal["place", "parent", "grandmaster", "reason"]
Trait = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class FleetReading:
    """
    What the headline is made of. `absent` are the expected nodes that never reported. `is_share`: the clocks are this
    hub's share of a fleet, which the sentence has to say.
    """

    clocks: Sequence[NodeClock]
    absent: Sequence[str] = ()
    limits: ConfiguredLimits = NO_LIMITS
    jobs: Sequence[JobState] = ()
    findings: Sequence[FindingMessage] = ()
    acknowledged: Collection[tuple[str, str]] = field(default=frozenset())
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class _Unbounded:
    """A node without a bound: why, since when (None: not known), and what it may share with others."""

    node: str
    why: CodedReason[str]
    since_ns: int | None
    traits: tuple[Trait, ...]


def headline(reading: FleetReading, aged: Sequence[AgedStatus], now: Moment) -> Headline:
    """
    The sentence, its numbers, what the clocks without a bound share, the affected jobs and what can be done. `aged`: the
    reading's clocks, each against its main reference.
    """
    bounds_ns = [rounded_up_ns(sum_ns) for sum_ns in sorted(sum_ns for _, sum_ns, _ in aged if sum_ns <= MOST_BOUNDED)]
    compared = comparable(aged, now)
    found = alignment(compared, now) if len(compared) > 1 else _ONE_CLOCK if compared else _NO_CLOCK
    unbounded = [*_unbounded(aged, now), *map(_never_reported, reading.absent)]
    nodes = len(reading.clocks) + len(reading.absent)
    counts = _Counts(nodes, len(compared), len(unbounded), nodes - len(compared) - len(unbounded))
    causes = shared_causes(unbounded, reading.clocks)
    limit_ns, wide_ns = reading.limits.fleet_alignment_ns, reading.limits.node_bound_ns
    is_lone = nodes == counts.compared == 1
    jobs = affected_jobs(reading.jobs, {each.node for each in unbounded}, reading.limits, now)
    return Headline(
        as_of_realtime_ns=now.realtime_ns,
        scope="share" if reading.is_share else "fleet",
        text=("In this hub's share: " if reading.is_share else "")
        + _text(counts, found, limit_ns, causes, bounds_ns, now),
        verdict=verdict(bounds_ns[-1], wide_ns) if is_lone else verdict(found.alignment_ns, limit_ns),
        limits=reading.limits,
        nodes=nodes,
        compared=counts.compared,
        without_bound=counts.without_bound,
        not_compared=counts.not_compared,
        wide=None if wide_ns is None else sum(ns > wide_ns for ns in bounds_ns),
        p50_bound_ns=percentile(bounds_ns, 50) if bounds_ns else None,
        p99_bound_ns=percentile(bounds_ns, 99) if bounds_ns else None,
        worst_bound_ns=bounds_ns[-1] if bounds_ns else None,
        causes=causes,
        jobs=jobs,
        findings=_by_severity(reading.findings),
        actions=list(_actions(unbounded, causes, jobs, reading)),
        alignment_ns=found.alignment_ns,
        growth_ppb=found.growth_ppb,
        holds_for_ns=found.holds_for_ns,
        pair=None if found.pair is None else list(found.pair),
        reason=found.reason,
        reason_code=found.reason_code,
    )


def comparable(aged: Sequence[AgedStatus], now: Moment) -> list[NodeClock]:
    """
    The largest set of clocks with a bound against a reference that all of them share: UTC, or one grandmaster.

    A clock that shares its grandmaster with others but is not bounded against it is in no set, since the two would be
    compared by it.
    """
    in_group = [(sum_ns, clock) for _, sum_ns, clock in aged if clock.gm_group.startswith("gm ")]
    by_gm = [clock for sum_ns, clock in in_group if sum_ns <= MOST_BOUNDED and clock.main_reference == GRANDMASTER]
    uncompared = {id(clock) for _, clock in in_group} - {id(clock) for clock in by_gm}
    against_utc = aged_statuses([clock for _, _, clock in aged if id(clock) not in uncompared], now, UTC)
    by_utc = [clock for _, sum_ns, clock in against_utc if sum_ns <= MOST_BOUNDED]
    group, count = next(iter(Counter(clock.gm_group for clock in by_gm).most_common(1)), ("", 0))
    return by_utc if len(by_utc) >= count else [clock for clock in by_gm if clock.gm_group == group]


def verdict(value_ns: int | None, limit_ns: int | None) -> Verdict:
    """A value against the operator's limit; a value at the limit is within."""
    if value_ns is None:
        return "unknown"
    if limit_ns is None:
        return "unlimited"
    return "within" if value_ns <= limit_ns else "exceeded"


def _unbounded(aged: Iterable[AgedStatus], now: Moment) -> Iterator[_Unbounded]:
    for _, sum_ns, clock in aged:
        if sum_ns > MOST_BOUNDED:
            why = clock.why_unbounded(now, clock.main_reference) or NO_BOUND
            yield _Unbounded(clock.node, why, since_ns(clock, now), _traits(clock))


def _never_reported(node: str) -> _Unbounded:
    return _Unbounded(node, CodedReason(StateReason.NODE_NEVER_REPORTED, NEVER_REPORTED), None, ())


def since_ns(clock: NodeClock, now: Moment) -> int | None:
    """
    Since when a clock without a bound has none, on CLOCK_REALTIME: since its last report where it is silent, since its
    status began where it reports that status. None: not known.
    """
    if not clock.live:
        return clock.published_realtime_ns
    if clock.is_silent(now):
        return now.realtime_ns - (now.boottime_ns - clock.received_boottime_ns)
    return clock.since_realtime_ns if clock.explanations[clock.main_reference] is not None else None


def _traits(clock: NodeClock) -> tuple[Trait, ...]:
    """What the clock may share with others, the most specific first."""
    parts = clock.topology.split("/") if clock.topology else []
    places = ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
    _, _, parent = clock.aging[4].partition("\nclock ")
    traits: list[Trait] = [("parent", parent)] if parent else []
    traits += [("place", place) for place in places]
    return (*traits, ("grandmaster", clock.grandmaster)) if clock.grandmaster else tuple(traits)


def shared_causes(unbounded: Sequence[_Unbounded], clocks: Sequence[NodeClock]) -> list[UnboundedCause]:
    """
    What the nodes without a bound share, the largest group first. A trait counts where at least two nodes have it, and
    at least half of all nodes that have it lack a bound. What no trait explains is grouped by its reason.
    """
    totals = Counter(trait for clock in clocks for trait in _traits(clock)) if unbounded else Counter()
    rest, found = list(unbounded), list[UnboundedCause]()
    while rest and len(found) < MAX_CAUSES:
        counts = Counter(trait for each in rest for trait in each.traits)
        shared = [trait for trait, count in counts.items() if count > 1 and 2 * count >= totals[trait]]
        if shared:
            best = max(shared, key=lambda trait: (counts[trait], -totals[trait]))
            members = [each for each in rest if best in each.traits]
            found.append(_cause(best, members, totals[best]))
        else:
            code = Counter(each.why.code for each in rest).most_common(1)[0][0]
            members = [each for each in rest if each.why.code == code]
            found.append(_cause(("reason", code), members, len(members)))
        names = {each.node for each in members}
        rest = [each for each in rest if each.node not in names]
    return found


def _cause(trait: Trait, members: Sequence[_Unbounded], of: int) -> UnboundedCause:
    code = Counter(each.why.code for each in members).most_common(1)[0][0]
    text = next(each.why.text for each in members if each.why.code == code)
    since = [each.since_ns for each in members]
    latest_ns = None if None in since else max(ns for ns in since if ns is not None)
    kind, name = trait
    return UnboundedCause(
        kind=kind,
        name=name,
        nodes=len(members),
        of=max(of, len(members)),
        since_realtime_ns=latest_ns,
        reason=text if len(members) > 1 else f"{members[0].node}: {text}",
        reason_code=code,
    )


def job_alignment_ns(job: JobState, realtime_ns: int) -> int | None:
    """The job's alignment, grown since it was published; None: unknown, expired or implausible."""
    age_ns, holds_ns = max(0, realtime_ns - job.published_realtime_ns), job.alignment_holds_for_ns
    if holds_ns is not None and age_ns >= holds_ns:
        return None
    return plausible_ns(Bound(job.alignment_ns, job.alignment_growth_ppb or 0).at(age_ns))


def plausible_ns(ns: int | None) -> int | None:
    """The bound; None where it is unknown, or larger than any clock's error."""
    return None if ns is None or ns > MAX_PLAUSIBLE else ns


def affected_jobs(
    jobs: Iterable[JobState], without_bound: Collection[str], limits: ConfiguredLimits, now: Moment
) -> list[AffectedJob]:
    """The jobs whose alignment is unknown or above the limit, and those with ranks on nodes without a bound."""
    found = []
    for job in jobs:
        aligned_ns = job_alignment_ns(job, now.realtime_ns)
        lost = sorted({rank.node for rank in job.ranks}.intersection(without_bound))[:MAX_NAMES]
        judged = verdict(aligned_ns, limits.job_alignment_ns)
        if lost or judged in ("unknown", "exceeded"):
            found.append(
                AffectedJob(
                    job_id=job.job_id,
                    job=job.job,
                    alignment_ns=aligned_ns,
                    verdict=judged,
                    reason=job.alignment_reason,
                    reason_code=job.alignment_reason_code,
                    without_bound=lost,
                )
            )
    return sorted(found, key=lambda each: (-len(each.without_bound), each.job_id))


def worst_first(findings: Iterable[FindingMessage]) -> list[FindingMessage]:
    """The active findings, the most severe first, then the newest."""
    active = [each for each in findings if each.until_realtime_ns is None]
    return sorted(active, key=lambda each: (SEVERITY_ORDER.index(each.severity), -each.since_realtime_ns))


def _by_severity(findings: Iterable[FindingMessage]) -> dict[Severity, int]:
    counts = Counter(each.severity for each in findings if each.until_realtime_ns is None)
    return {severity: counts[severity] for severity in SEVERITY_ORDER}


def _actions(
    unbounded: Sequence[_Unbounded],
    causes: Sequence[UnboundedCause],
    jobs: Sequence[AffectedJob],
    reading: FleetReading,
) -> Iterator[PossibleAction]:
    if unbounded:
        names = sorted(each.node for each in unbounded)
        running = f"; {len(jobs)} jobs are affected" if len(jobs) > 1 else "; one job is affected" if jobs else ""
        text = f"drain {_nodes_text(len(names))} without a bound{running}"
        yield PossibleAction(kind="drain", text=text, nodes=names[:MAX_NAMES])
    for cause in causes:
        if cause.kind != "reason":
            yield PossibleAction(kind="inspect", text=f"inspect the nodes {_cause_name(cause)}", subject=cause.name)
    for finding in worst_first(reading.findings):
        if finding.severity != "info" and (finding.id, finding.subject) not in reading.acknowledged:
            text = f"acknowledge {finding.id} of {finding.subject}"
            yield PossibleAction(kind="acknowledge", text=text, subject=finding.subject, finding=finding.id)
            return


@dataclass(frozen=True, slots=True)
class _Counts:
    nodes: int
    compared: int
    without_bound: int
    not_compared: int


def _text(
    counts: _Counts,
    found: Alignment,
    limit_ns: int | None,
    causes: Sequence[UnboundedCause],
    bounds_ns: Sequence[int],
    now: Moment,
) -> str:
    if not counts.nodes:
        return "No node with a clock source is known"
    parts = [_agreement_text(counts, found, limit_ns, bounds_ns)]
    if counts.without_bound:
        reports = "reports" if counts.without_bound == 1 else "report"
        who = "" if counts.without_bound == counts.nodes else f"{counts.without_bound:,} {reports} no bound"
        parts.append(", ".join(part for part in (who, _cause_text(causes, counts.without_bound, now)) if part))
    if counts.not_compared:
        parts.append(f"{counts.not_compared:,} share no reference with them and are not compared")
    return "; ".join(parts)


def _agreement_text(counts: _Counts, found: Alignment, limit_ns: int | None, bounds_ns: Sequence[int]) -> str:
    """What is claimed, of the compared clocks alone."""
    if counts.without_bound == counts.nodes:
        return f"None of {counts.nodes:,} clocks reports a bound" if counts.nodes > 1 else "The clock reports no bound"
    if counts.nodes == counts.compared == 1:
        return f"The only clock is within +-{rounded_up_text(bounds_ns[-1])} of its reference"
    if counts.compared == 1:
        return f"One of {counts.nodes:,} clocks reports a bound that can be compared"
    if found.alignment_ns is None:
        return f"How far {counts.nodes:,} clocks agree is not known: {found.reason}"
    every = counts.compared == counts.nodes
    whose = f"All {counts.nodes:,} clocks" if every else f"{counts.compared:,} of {counts.nodes:,} clocks"
    above = limit_ns is not None and found.alignment_ns > limit_ns
    judged = f", above the limit of {limit_text(limit_ns or 0)}" if above else ""
    return f"{whose} agree within {rounded_up_text(found.alignment_ns)}{judged}"


def _cause_text(causes: Sequence[UnboundedCause], without_bound: int, now: Moment) -> str:
    first = causes[0]
    since = "" if first.since_realtime_ns is None else f" since {utc_text(first.since_realtime_ns, now.realtime_ns)}"
    of_them = "all" if first.nodes == without_bound else f"{first.nodes:,} of them"
    if first.kind == "reason":
        return f"{first.reason}{since}" if without_bound == 1 else f"{of_them}: {first.reason}{since}"
    return f"{of_them} {_cause_name(first)}{since}"


def _cause_name(cause: UnboundedCause) -> str:
    return {"place": "in", "parent": "behind", "grandmaster": "under", "reason": ""}[cause.kind] + f" {cause.name}"


def _nodes_text(count: int) -> str:
    return "one node" if count == 1 else f"{count:,} nodes"


def utc_text(realtime_ns: int, now_ns: int) -> str:
    """A time in UTC; with its date where it is not within the 20 hours before `now_ns`."""
    at = datetime.fromtimestamp(realtime_ns // NS_PER_S, UTC_ZONE)
    return f"{at:%H:%M:%S} UTC" if 0 <= now_ns - realtime_ns < 20 * NS_PER_H else f"{at:%Y-%m-%d %H:%M:%S} UTC"
