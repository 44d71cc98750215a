"""Builds the report of a measured recording. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

from pydantic import ValidationError

from timesyncd.audit import advice, bootstrap, buckets, groups, learning, links, measured, remedies, transfers
from timesyncd.audit.headline import doubt_text, headline, notes, percent, sizes_text
from timesyncd.audit.measured import Measured, waits_ns
from timesyncd.audit.mesh_remedies import MeshReplay, mesh_gains, mesh_replay
from timesyncd.audit.report import (
    AbsentRankReport,
    AdviceReport,
    AuditReport,
    BeforeAfter,
    BucketReport,
    DurationReport,
    EstimateReport,
    ExposedPartsReport,
    ExposedShareReport,
    HangReport,
    InterfaceReport,
    JobAdvice,
    LateSpanReport,
    LinkReport,
    NetworkReport,
    OverheadSourceReport,
    OwnWaitsReport,
    RankWait,
    RareReport,
    RemedyReport,
    StageReport,
    StragglerReport,
    TransferCostReport,
    UnmeteredCallsReport,
)
from timesyncd.audit.timeline import Run, runs
from timesyncd.config import validation_text
from timesyncd.errors import TraceError
from timesyncd.ipc.job_datagram import kind_text
from timesyncd.jobs.issued_calls import IssuedCallCounts
from timesyncd.jobs.missing_ranks import Hang, hang_text
from timesyncd.jobs.onset import LateSpan
from timesyncd.jobs.rare_waits import RareWaits
from timesyncd.jobs.recording import Recording
from timesyncd.jobs.stragglers import module_sizes
from timesyncd.units import percentile


@contextmanager
def _within_64_bits(job: str) -> Iterator[None]:
    """A recording may hold any numbers. Raises TraceError where their sums are larger than a report holds."""
    try:
        yield
    except ValidationError as error:
        if not {each["type"] for each in error.errors()} <= {"less_than", "greater_than_equal"}:
            raise
        raise TraceError(
            f"the recording of the job {job!r} has impossible numbers, so it is damaged: {validation_text(error)}"
        ) from error


def report(now: Measured, before: Measured | None = None) -> AuditReport:
    """The report; `before`: the same job before a change, to compare with. Raises TraceError."""
    with _within_64_bits(now.recording.job):
        return _report(now, before)


def _report(now: Measured, before: Measured | None) -> AuditReport:
    recording, attribution, samples = now.recording, now.attribution, now.samples
    is_known = now.is_account and not now.ranks_without_steps
    overhead = now.exposed_ns / now.elapsed_ns if now.elapsed_ns and is_known else None
    interval = bootstrap.estimate(samples, lambda sums: sums.overhead) if samples and is_known else None
    replayable = comparable_runs(now)
    of_buckets = buckets.advise(now) if replayable else None
    of_groups = _replay_of_groups(now)
    parts = transfers.divide(now, replayable)
    found = AuditReport(
        job=recording.job,
        attempt=recording.attempt,
        world_size=recording.world_size,
        nodes=sorted(set(recording.nodes.values())),
        headline="",
        steps=now.recorded_steps,
        step_ns=_estimate(bootstrap.estimate(samples, lambda sums: sums.step_ns)) if samples else None,
        sync_overhead=overhead,
        sync_overhead_interval=None if interval is None else _estimate(interval),
        wait_ns=_waits(now),
        stragglers=_stragglers(now),
        lateness_may_be_chance=now.attribution.may_be_chance,
        hang=None if now.hang is None else _hang(now, now.hang),
        rare=None if now.rare is None else _rare(now, now.rare),
        late_spans=[_late_span(now, span) for span in now.late_spans],
        unreduced_steps=now.unreduced_steps,
        sources=_sources(now, overhead or 0.0) if is_known else [],
        stages=_stages(now),
        remedies=_remedies(now, replayable, of_buckets, of_groups),
        advice=_advice(now, replayable, of_buckets, of_groups),
        buckets=None if of_buckets is None else _buckets(of_buckets),
        exposed_parts=None if isinstance(parts, str) else _exposed_parts(parts),
        no_exposed_parts=parts if isinstance(parts, str) else "",
        network=_network(recording),
        before_after=_compared(before, now) if before is not None and before.is_account and now.is_account else None,
        method=attribution.method,
        clock_bound_ns=attribution.clock_bound_ns,
        own_overhead=now.own_overhead,
        marks_lost=recording.marks_lost,
        metered_calls=None if recording.calls is None else recording.calls.metered,
        unmetered=_unmetered(recording.calls),
        **_groups(now),
    )
    return _with_sentences(found, now)


def _with_sentences(found: AuditReport, now: Measured) -> AuditReport:
    """The headline and the notes say what the figures are."""
    apart = now.attribution.apart
    sentences = notes(
        found,
        len(now.samples),
        now.attribution.unwaited,
        module_sizes(now.recording.syncs),
        now.ranks_without_steps,
        apart,
    )
    return found.model_copy(
        update={
            "headline": headline(found, now.ranks_without_steps, doubt_text(found, apart, now.uncompared_share)),
            "notes": [*now.recording.notes, *sentences],
        }
    )


def advice_for(now: Measured) -> JobAdvice:
    """What could be changed about the job, without the rest of the report."""
    replayable = comparable_runs(now)
    of_buckets = buckets.advise(now) if replayable else None
    return JobAdvice(
        job=now.recording.job,
        steps=now.recorded_steps,
        step_ns=_estimate(bootstrap.estimate(now.samples, lambda sums: sums.step_ns)) if now.samples else None,
        advice=_advice(now, replayable, of_buckets, _replay_of_groups(now)),
    )


def _advice(
    now: Measured,
    replayable: Sequence[Run],
    of_buckets: buckets.BucketAdvice | None,
    of_groups: MeshReplay | str | None,
) -> list[AdviceReport]:
    return advice.advise(now, replayable, of_buckets) if of_groups is None else advice.advise_mesh(now, of_groups)


def _replay_of_groups(now: Measured) -> MeshReplay | str | None:
    """A text: why there is none. None: the ranks do not synchronize in groups, or in calls that have no mark."""
    return mesh_replay(now) if now.own_times is not None and now.is_account else None


def _groups(now: Measured) -> dict[str, Any]:
    """What is stated of groups and messages, where the ranks are compared by their own time and their calls are known."""
    if now.own_waits is not None:
        place = now.own_waits.place
        own = OwnWaitsReport(
            together=list(now.own_waits.together),
            unknown=list(now.own_waits.unknown),
            place_unknown_code=None if place is None else place.unknown,
            place_unknown=None if place is None else place.reason,
        )
        return {"alone": list(now.own_waits.alone), "own_waits": own}
    if now.own_times is None or now.recording.groups is None or not now.is_account:
        return {}
    return {
        "groups": groups.group_reports(now.recording.groups),
        "messages": groups.message_reports(now.recording.groups),
        "withheld": list(groups.withheld_reports(now)),
        "alone": list(now.own_times.alone),
    }


def comparable_runs(now: Measured) -> list[Run]:
    """The runs that can be replayed: none if the ranks are not comparable, train apart or have few marks, or for a single rank."""
    if now.attribution.method is None or now.recording.world_size < 2 or now.trains_apart or not now.is_account:
        return []
    return runs(now.aligned)


def _unmetered(calls: IssuedCallCounts | None) -> list[UnmeteredCallsReport]:
    return [
        UnmeteredCallsReport(**kind._asdict(), calls=count)
        for kind, count in sorted(calls.unmetered.items() if calls is not None else (), key=str)
    ]


def _estimate(found: bootstrap.Estimate) -> EstimateReport:
    return EstimateReport(value=found.value, low=found.low, high=found.high)


def _waits(now: Measured) -> list[RankWait]:
    waited = waits_ns(now.attribution)
    return [
        RankWait(
            rank=rank,
            node=now.recording.nodes.get(rank, ""),
            p50=percentile(mine, 50) if (mine := waited.get(rank, [])) else None,
            p99=percentile(mine, 99) if mine else None,
            total=sum(mine) if mine else None,
            exposed_ns=now.rank_exposed_ns(rank),
        )
        for rank in range(now.recording.world_size)
    ]


def _stragglers(now: Measured) -> list[StragglerReport]:
    of_slow = groups.groups_of_slow(now)
    return [
        StragglerReport(
            rank=found.rank,
            node=now.recording.nodes.get(found.rank, ""),
            last_share=found.last_share,
            lateness_p50_ns=found.lateness_p50_ns,
            late_share=found.late_share,
            exposed_ns=found.exposed_ns,
            where=found.where,
            place=measured.place(now, found),
            verdict=found.verdict,
            group=list(of_slow[found.rank].ranks) if found.rank in of_slow else None,
            dimension=of_slow[found.rank].dimension if found.rank in of_slow else None,
        )
        for found in now.attribution.stragglers
    ]


#: The largest number of rare steps in a report, the first ones.
_MAX_RARE_STEPS = 100


def _hang(now: Measured, found: Hang) -> HangReport:
    text = hang_text(found)
    return HangReport(
        sentence=f"{text[0].upper()}{text[1:]}.",
        step=found.step,
        where=found.where,
        waiting=list(found.waiting),
        waited_ns=found.waited_ns,
        absent=[
            AbsentRankReport(
                rank=each.rank,
                node=now.recording.nodes.get(each.rank, ""),
                last_step=None if each.last is None else each.last.step,
                cause=each.cause,
            )
            for each in found.absent
        ],
        elsewhere=[rank for rank, _ in found.elsewhere],
    )


def _rare(now: Measured, found: RareWaits) -> RareReport:
    return RareReport(
        sentence=found.text,
        steps=list(found.steps[:_MAX_RARE_STEPS]),
        count=len(found.steps),
        compared_steps=found.compared_steps,
        share=found.share,
        wait_ns=found.wait_ns,
        rank=found.rank,
        node=None if found.rank is None else now.recording.nodes.get(found.rank),
        rank_steps=found.rank_steps,
        every=found.every,
        overhead_elsewhere=now.overhead_without(found.steps),
    )


def _late_span(now: Measured, span: LateSpan) -> LateSpanReport:
    late = span.straggler
    return LateSpanReport(
        rank=late.rank,
        node=now.recording.nodes.get(late.rank, ""),
        from_step=span.first if span.began else None,
        to_step=span.last if span.ended else None,
        lateness_p50_ns=late.lateness_p50_ns,
        exposed_ns=late.exposed_ns,
        where=late.where,
        place=measured.place(now, late),
        first_ns=None if span.trend is None else span.trend.first_ns,
        last_ns=None if span.trend is None else span.trend.last_ns,
    )


def _sources(now: Measured, overhead: float) -> list[OverheadSourceReport]:
    return [
        OverheadSourceReport(
            cause=found.cause,
            rank=found.rank,
            node=None if found.rank is None else now.recording.nodes.get(found.rank),
            where=found.where,
            exposed_ns=found.exposed_ns,
            share=found.share,
            overhead=found.share * overhead,
        )
        for found in measured.overhead_sources(now)
    ]


def _stages(now: Measured) -> list[StageReport]:
    return [
        StageReport(
            where=found.where,
            stage=found.stage,
            cost_ns=found.cost_ns,
            share=found.share,
            rank=found.rank,
            node=None if found.rank is None else now.recording.nodes.get(found.rank),
            lead_share=found.lead_share,
        )
        for found in measured.stages(now)
    ]


def _remedies(
    now: Measured,
    replayable: Sequence[Run],
    of_buckets: buckets.BucketAdvice | None,
    of_groups: MeshReplay | str | None,
) -> list[RemedyReport]:
    """In the order of gain; remedies that do not apply are last."""
    if now.own_waits is not None:
        of_groups = _NO_GROUPS
    gains = remedies.gains(replayable, now.late_ranks) if of_groups is None else mesh_gains(of_groups, now.late_ranks)
    found = [
        RemedyReport(
            name=gain.remedy.name,
            title=gain.remedy.title,
            gain=gain.gain,
            step_saved_ns=gain.step_saved_ns,
            sync_overhead=gain.sync_overhead,
            assumption=gain.remedy.assumption,
            reason=gain.reason,
        )
        for gain in gains
    ]
    if of_buckets is not None:
        found.append(_resized(of_buckets, bootstrap.sum_of(now.samples)))
    return sorted(found, key=lambda remedy: float("inf") if remedy.gain is None else -remedy.gain)


#: Why the window of a hub has no remedy for a job that synchronizes in groups.
_NO_GROUPS = (
    "a hub has the sums of each rank's waits, and not which rank waited for which, so nothing can be replayed: the report "
    "of run-audit has the gains"
)


def _resized(found: buckets.BucketAdvice, sums: bootstrap.StepSums) -> RemedyReport:
    """The suggested bucket sizes as a remedy, whose gain comes from the model of reductions instead of a replay."""
    saved_ns = found.saved_ns if found.caps_mib else None
    exposed_ns = sums.exposed_ns / sums.steps
    return RemedyReport(
        name="buckets",
        title=f"Buckets of {sizes_text(found.caps_mib)}" if found.caps_mib else "Other bucket sizes",
        gain=None if saved_ns is None else saved_ns / sums.step_ns,
        step_saved_ns=None if saved_ns is None else round(saved_ns),
        sync_overhead=None if saved_ns is None else max(0.0, exposed_ns - saved_ns) / (sums.step_ns - saved_ns),
        assumption=buckets.ASSUMPTION,
        reason=found.reason,
    )


def _buckets(found: buckets.BucketAdvice) -> BucketReport:
    cost = found.cost
    return BucketReport(
        bytes=list(found.bytes),
        exposed_ns=_rounded(found.exposed_ns),
        latency_ns=None if cost is None else round(cost.latency_ns),
        bytes_per_s=None if cost is None else round(cost.bytes_per_s),
        caps_mib=None if found.caps_mib is None else list(found.caps_mib),
        saved_ns=_rounded(found.saved_ns),
        error_ns=_rounded(found.error_ns),
        reason=found.reason,
        order=found.order,
    )


def _exposed_parts(found: transfers.TransferSplit) -> ExposedPartsReport:
    return ExposedPartsReport(
        exposed=_duration(found.exposed),
        waiting=_duration(found.waiting),
        latency=_duration(found.latency),
        serialization=_duration_or_none(found.serialization),
        bandwidth=_duration(found.bandwidth),
        rest=_duration(found.rest),
        saved_by_bandwidth=_duration(found.saved_by_bandwidth),
        saved_by_latency=_duration(found.saved_by_latency),
        saved_by_serialization=_duration_or_none(found.saved_by_serialization),
        shares=[ExposedShareReport.model_validate(asdict(share)) for share in found.shares],
        costs=[
            TransferCostReport(
                kind=kind_text(cost.kind),
                sizes=cost.sizes,
                latency=_duration(cost.latency),
                bytes_per_s=round(cost.bytes_per_s),
                bytes_per_s_low=round(cost.bytes_per_s_low),
                bytes_per_s_high=_rounded(cost.bytes_per_s_high),
            )
            for cost in found.costs
        ],
        limit=found.limit,
        reason=found.reason,
    )


#: The most connections in a report, the worst ones.
_MAX_LINKS = 1_000


def _network(recording: Recording) -> NetworkReport | None:
    if not recording.networks:
        return None
    found = links.links_of(recording.networks)
    interfaces = links.interfaces_of(recording.networks, found, recording.nodes)
    return NetworkReport(
        evidence=links.evidence_lines(found, interfaces),
        links=[
            LinkReport(**{name: getattr(link, name) for name in LinkReport.model_fields})
            for link in links.worst_first(found)[:_MAX_LINKS]
        ],
        interfaces=[InterfaceReport(**asdict(one)) for one in interfaces],
        packing_ns=links.packing_ns(recording.networks),
    )


def _duration_or_none(found: transfers.Duration | None) -> DurationReport | None:
    return None if found is None else _duration(found)


def _duration(found: transfers.Duration) -> DurationReport:
    return DurationReport(ns=round(found.ns), error_ns=round(found.error_ns))


def _rounded(ns: float | None) -> int | None:
    return None if ns is None else round(ns)


def _compared(before: Measured, after: Measured) -> BeforeAfter | None:
    """None: one of the recordings has no complete step."""
    old, new = before.samples, after.samples
    if not old or not new:
        return None
    ratio = bootstrap.change(old, new, lambda b, a: a.step_ns / b.step_ns)
    verdict = _verdict(ratio)
    return BeforeAfter(
        job=before.recording.job,
        steps=before.recorded_steps,
        step_ns_before=_estimate(bootstrap.estimate(old, lambda sums: sums.step_ns)),
        step_ns_after=_estimate(bootstrap.estimate(new, lambda sums: sums.step_ns)),
        step_ratio=_estimate(ratio),
        sync_overhead_before=_estimate(bootstrap.estimate(old, lambda sums: sums.overhead)),
        sync_overhead_after=_estimate(bootstrap.estimate(new, lambda sums: sums.overhead)),
        overhead_change=_estimate(bootstrap.change(old, new, lambda b, a: a.overhead - b.overhead)),
        verdict=verdict,
        sentence=_sentence(verdict, ratio, (old, new)),
        learning=learning.learning_reports(before.recording, after.recording),
    )


def _verdict(ratio: bootstrap.Estimate) -> Literal["faster", "slower", "no_difference", "too_few_steps"]:
    if ratio.low is None or ratio.high is None:
        return "too_few_steps"
    if ratio.high < 1:
        return "faster"
    return "slower" if ratio.low > 1 else "no_difference"


def _sentence(
    verdict: str, ratio: bootstrap.Estimate, both: tuple[Sequence[bootstrap.StepSample], Sequence[bootstrap.StepSample]]
) -> str:
    change = f"{percent(abs(ratio.value - 1))} {'longer' if ratio.value > 1 else 'shorter'}"
    if ratio.low is None or ratio.high is None:
        return (
            f"A step is {change} than before, but {len(both[0])} and {len(both[1])} steps are too few for a confidence interval: "
            f"record at least 100 of each, and several times as many where slow steps follow one another."
        )
    span = f"95 % interval of the ratio: {ratio.low:.3f} to {ratio.high:.3f}"
    if verdict == "no_difference":
        return f"No significant difference in the time of a step ({span})."
    return f"A step is {change} than before ({span})."
