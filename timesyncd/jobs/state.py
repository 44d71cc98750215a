"""
The analysis of a job's window in one round of the hub, its figures as fields of a JobState, and the window itself page
by page. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_datagram import Kind, step_text
from timesyncd.ipc.job_segment import Method
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.jobs.arrivals import StepMark, Sync, Window, compare, summarize
from timesyncd.jobs.exposed import RankCost, StepCost, ratio
from timesyncd.jobs.joining import JobRun, newest_of
from timesyncd.jobs.late_place import late_place
from timesyncd.jobs.missing_ranks import Presence
from timesyncd.jobs.own_waits import OwnComparison, compare_own
from timesyncd.jobs.ranks import Flows
from timesyncd.jobs.rare_waits import RareWaits, rare_waits
from timesyncd.jobs.recording import RankRecord, Recording, RecordingMessage, ServerRequest
from timesyncd.jobs.stragglers import Attribution, Straggler, attribute
from timesyncd.jobs.window import MAX_STEP_MARKS, StepRecord
from timesyncd.messages.jobs import DelayState, RankState, StragglerMessage, VerdictCode
from timesyncd.units import duration_text, median, percentile

#: The largest number of a message. Marks may be wrong, and their sum larger.
MAX_INT64 = 2**63 - 1

#: The most stragglers and pairs of ranks that are published, the worst first.
MAX_STRAGGLERS = 32
MAX_PUBLISHED_DELAYS = 100

#: A verdict lists so many ranks.
MAX_NAMED = 8

#: The analysis of jobs takes at most one part in so many of the time: the daemon has clocks to poll.
ANALYSIS_PART = 20

#: One analysis reads so many marks of a job's newest steps. Of a large job's steps it reads fewer synchronizations, so
#: that it covers so many steps.
MAX_ANALYSED_MARKS = 20_000
STEPS_WANTED = 30


@dataclass(frozen=True, slots=True)
class Costs:
    """Exposed time as ratios over the window, the newest step and the epoch; and by rank, step by step."""

    window: float | None
    step: float | None
    epoch: float | None
    comm_compute: float | None
    ranks: Mapping[int, Sequence[RankCost]]


@dataclass(frozen=True, slots=True)
class JobAnalysis:
    """
    The analysis of a job's window. `newest` is the synchronization with the widest skew of the newest complete step.
    `barriers` are on the nodes' own clocks, whatever the method of the attribution is. `place`: where the worst
    straggler loses its time; "" without one. `own`: of a job that synchronizes in groups.
    """

    attribution: Attribution
    window: Window
    newest: Sync | None
    rare: RareWaits | None
    costs: Costs
    barrier_waits_ns: Sequence[int]
    barriers: Sequence[Sync]
    place: str
    flows: Mapping[str, object]
    update_latency_p50_ns: int | None
    own: OwnComparison | None

    @property
    def step(self) -> int | None:
        """The newest complete one."""
        if self.own is not None:
            return self.own.step
        return None if self.newest is None else self.newest.step

    @property
    def stragglers(self) -> Sequence[Straggler]:
        """The worst first."""
        if self.own is None:
            return self.attribution.stragglers
        return () if self.own.slow is None else (self.own.slow,)


def analyse(job: JobRun, nodes: Mapping[int, str]) -> JobAnalysis:
    """Analyse a job's window. `nodes`: by rank, of those ranks whose marks are verified to come from that node."""
    syncs = analysed_syncs(job) if job.has_all_ranks else []
    attribution = attribute(syncs, nodes, job.world_size)
    costs = job.steps.costs({step for step, _ in job.pending}, MAX_STEP_MARKS)
    return JobAnalysis(
        attribution=attribution,
        window=summarize(attribution.syncs),
        rare=rare_waits(attribution.syncs),
        newest=newest_of(list(attribution.syncs), job.world_size),
        costs=_costs(costs, job.steps.epoch_overhead(costs)),
        barrier_waits_ns=[wait_ns for sync in attribution.syncs for wait_ns in _barrier_waits_ns(sync)],
        barriers=[sync for sync in syncs if sync.kind == Kind.BARRIER],
        place=_place(job, syncs, attribution.stragglers),
        update_latency_p50_ns=median(list(_update_latencies_ns(job))),
        own=_compared_own(job),
        flows=_flow_figures(job.flows),
    )


def _compared_own(job: JobRun) -> OwnComparison | None:
    """By the newest steps of which all marks may be there."""
    if not job.has_all_ranks:
        return None
    newest = len(job.steps.newest(MAX_ANALYSED_MARKS, lambda record: len(record.own)))
    records = islice(job.steps.records_from(0), len(job.steps) - newest, None)
    return compare_own([(step, record.own) for step, record in records], job.world_size)


def _place(job: JobRun, syncs: Sequence[Sync], stragglers: Sequence[Straggler]) -> str:
    if not stragglers:
        return ""
    records = job.steps.records_from(syncs[0].step)
    marks = {(rank, step): mark for step, record in records for rank, mark in record.marks.items()}
    return late_place(syncs, marks, stragglers[0])


def analysed_syncs(job: JobRun) -> list[Sync]:
    """
    The synchronizations of the newest steps, in the order of (step, sync): all of them, or of a large job's steps the
    first ones and the first barrier.
    """
    most = max(1, MAX_ANALYSED_MARKS // STEPS_WANTED // job.world_size)

    def parts(record: StepRecord) -> list[Sync]:
        syncs = record.in_order()
        if len(syncs) <= most:
            return syncs
        barriers = [sync for sync in syncs if sync.kind == Kind.BARRIER]
        others = [sync for sync in syncs if sync.kind != Kind.BARRIER]
        return sorted(others[:most] + barriers[:1], key=lambda sync: sync.sync)

    records = job.steps.newest(MAX_ANALYSED_MARKS, lambda record: sum(len(sync.arrivals) for sync in parts(record)))
    return [sync for record in records for sync in parts(record)]


def next_analysis_after_ns(took_ns: int, jobs: int) -> int:
    """
    How long a job is not analysed again after an analysis of `took_ns`, while so many jobs run; 0: until the next
    round.
    """
    pause_ns = took_ns * jobs * ANALYSIS_PART
    return pause_ns if pause_ns > NS_PER_S else 0


def _costs(costs: Sequence[StepCost], epoch: float | None) -> Costs:
    exposed_ns, elapsed_ns = sum(cost.exposed_ns for cost in costs), sum(cost.elapsed_ns for cost in costs)
    ranks: dict[int, list[RankCost]] = {}
    for cost in costs:
        for rank, part in cost.ranks.items():
            ranks.setdefault(rank, []).append(part)
    return Costs(
        window=ratio(exposed_ns, elapsed_ns),
        step=next((cost.overhead for cost in reversed(costs) if cost.overhead is not None), None),
        epoch=epoch,
        comm_compute=ratio(exposed_ns, elapsed_ns - exposed_ns),
        ranks=ranks,
    )


def _barrier_waits_ns(sync: Sync) -> Iterator[int]:
    if sync.kind == Kind.BARRIER and sync.comparison is not None:
        yield from sync.comparison.waits_ns.values()


def _update_latencies_ns(job: JobRun) -> Iterator[int]:
    for record in job.steps.newest(MAX_ANALYSED_MARKS, lambda record: len(record.marks)):
        for mark in record.marks.values():
            if mark.ready_ns is not None and mark.end_ns >= mark.ready_ns:
                yield mark.end_ns - mark.ready_ns


def job_figures(job: JobRun, analysis: JobAnalysis) -> dict[str, object]:
    """The fields of a JobState that follow from the job's marks."""
    window, attribution, costs = analysis.window, analysis.attribution, analysis.costs
    verdict = _verdict(job, analysis)
    comparison = analysis.newest.comparison if analysis.newest is not None else None
    sure = [straggler.rank for straggler in analysis.stragglers if straggler.verdict == "straggler"]
    fields = {
        "step": analysis.step,
        "steps_complete": job.complete,
        "steps_incomplete": job.incomplete,
        "marks_repeated": job.repeated,
        "marks_refused": job.refused,
        "sync_overhead": costs.window,
        "sync_overhead_step": costs.step,
        "sync_overhead_epoch": costs.epoch,
        "comm_compute": costs.comm_compute,
        "own_overhead": _own_overhead(job),
        "arrival_skew_ns": comparison.skew_ns if comparison is not None else None,
        "arrival_skew_p50_ns": window.skew_p50_ns,
        "arrival_skew_p99_ns": window.skew_p99_ns,
        "arrival_skew_error_ns": comparison.error_ns if comparison is not None else None,
        "arrival_variance_ns2": window.arrival_variance_ns2,
        "end_variance_ns2": window.end_variance_ns2,
        "transfer_p50_ns": window.transfer_p50_ns,
        "transfer_p99_ns": window.transfer_p99_ns,
        "barrier_wait_p50_ns": _percentile(analysis.barrier_waits_ns, 50),
        "barrier_wait_p99_ns": _percentile(analysis.barrier_waits_ns, 99),
        "update_latency_p50_ns": analysis.update_latency_p50_ns,
        "last_rank": comparison.last_rank if comparison is not None else None,
        "straggler_rank": sure[0] if sure else None,
        "stragglers": [_straggler_state(job, each, analysis) for each in analysis.stragglers[:MAX_STRAGGLERS]],
        "method": attribution.method,
        "clock_bound_ns": attribution.clock_bound_ns,
        "trusted": attribution.trusted,
        "verdict": verdict.text,
        "verdict_code": verdict.code,
        "ranks": rank_states(job, analysis),
    }
    return _limited(fields | dict(analysis.flows))


def _limited(fields: dict[str, object]) -> dict[str, object]:
    """The fields with every integer limited to 64 bits: marks may be wrong, and their sums and differences larger."""
    return {
        name: max(-MAX_INT64, min(value, MAX_INT64)) if isinstance(value, int) else value
        for name, value in fields.items()
    }


def _flow_figures(flows: Flows) -> dict[str, object]:
    most = MAX_ANALYSED_MARKS // max(1, len(flows.staleness))
    ages = [updates for of_rank in flows.staleness.values() for updates in islice(reversed(of_rank), most)]
    delays = [
        DelayState(
            from_rank=pair[0],
            to_rank=pair[1],
            p50_ns=percentile([each.delay_ns for each in found], 50),
            error_ns=max(each.error_ns for each in found),
        )
        for pair, found in flows.delays.items()
    ]
    return {
        "response_p50_ns": _percentile(flows.responses, 50),
        "response_p99_ns": _percentile(flows.responses, 99),
        "staleness_p50": median(ages),
        "staleness_max": max(ages, default=None),
        "delays": sorted(delays, key=lambda delay: -delay.p50_ns)[:MAX_PUBLISHED_DELAYS],
    }


def rank_states(job: JobRun, analysis: JobAnalysis) -> list[RankState]:
    states = []
    for number, rank in sorted(job.ranks.items()):
        waits, costs = analysis.window.ranks.get(number), analysis.costs.ranks.get(number, ())
        elapsed_ns = sum(cost.elapsed_ns for cost in costs)
        exposed = [cost.exposed_ns for cost in costs]
        fields = {
            "rank": number,
            "node": rank.newest.node,
            "wait_p50_ns": waits.wait_p50_ns if waits is not None else None,
            "wait_p99_ns": waits.wait_p99_ns if waits is not None else None,
            "wait_total_ns": waits.wait_total_ns if waits is not None else None,
            "last_share": _rounded(waits.last_share) if waits is not None else None,
            "lateness_p50_ns": waits.lateness_p50_ns if waits is not None else None,
            "marks_lost": rank.lost,
            "clock_status": rank.newest.status,
            "joined_ns": rank.newest.joined_ns or None,
            "idle_share": _rounded(ratio(sum(exposed), elapsed_ns)),
            "exposed_p50_ns": median(exposed),
            "staleness_p50": median(job.flows.staleness.get(number, ())),
        }
        states.append(RankState.model_validate(_limited(fields)))
    return states


def _straggler_state(job: JobRun, straggler: Straggler, analysis: JobAnalysis) -> StragglerMessage:
    fields = {name: getattr(straggler, name) for name in Straggler.__dataclass_fields__}
    more = {"node": job.ranks[straggler.rank].newest.node, **_place_of(straggler, analysis)}
    return StragglerMessage.model_validate(_limited(fields | more))


def _place_of(straggler: Straggler, analysis: JobAnalysis) -> dict[str, str | None]:
    """The place of the worst straggler, and why it has none."""
    own = analysis.own.place if analysis.own is not None else None
    if own is not None:
        place = None if own.text is None else f"in {own.text}"
        return {"place": place, "place_reason": own.reason, "place_reason_code": own.unknown}
    return {"place": (analysis.place or None) if straggler is analysis.stragglers[0] else None}


def _own_overhead(job: JobRun) -> float | None:
    """The cost of metering as a share of the time that the ranks have metered."""
    ranks = [(rank.own_overhead_ns, rank.metered_ns) for rank in job.ranks.values()]
    known = [(own_ns, metered_ns) for own_ns, metered_ns in ranks if metered_ns is not None]
    return ratio(sum(own_ns for own_ns, _ in known), sum(metered_ns for _, metered_ns in known))


def _percentile(values: Sequence[int], percent: int) -> int | None:
    return percentile(values, percent) if values else None


def _rounded(share: float | None) -> float | None:
    """To six digits: the size of a state with 2,500 ranks matters."""
    return None if share is None else round(share, 6)


def _verdict(job: JobRun, analysis: JobAnalysis) -> CodedReason[VerdictCode]:
    """Which rank is late, where, and what it costs, or why that is unknown."""
    if analysis.own is not None:
        return _own_verdict(job, analysis.own)
    newest = analysis.newest
    if newest is None:
        text = f"inconclusive: no step has the marks of all {job.world_size} ranks yet"
        return CodedReason(VerdictCode.NO_COMPLETE_STEP, text)
    by_ends = analysis.attribution.method is Method.COLLECTIVE_ENDS
    by = "; by collective ends, without trusted clocks" if by_ends else ""
    if analysis.attribution.stragglers:
        found = _straggler_verdict(job, analysis)
        return CodedReason(found.code, found.text + by)
    comparison = newest.comparison
    if comparison is None:
        return _not_compared(newest, job)
    by += f"; {analysis.rare.text}" if analysis.rare is not None else ""
    if analysis.attribution.may_be_chance:
        steps = len({sync.step for sync in analysis.attribution.syncs})
        text = f"inconclusive: a rank is late in most of {steps} steps, but chance that lasts for many steps looks the same{by}"
        return CodedReason(VerdictCode.LATENESS_MAY_BE_CHANCE, text)
    if comparison.last_rank is None:
        skew, error = duration_text(comparison.skew_ns), duration_text(comparison.error_ns)
        text = f"inconclusive: the skew of {skew} is within the clocks' error of {error}{by}"
        return CodedReason(VerdictCode.SKEW_WITHIN_CLOCK_ERROR, text)
    text = f"rank {comparison.last_rank} was last in step {step_text(newest.step)}; no rank is late persistently{by}"
    return CodedReason(VerdictCode.NO_STRAGGLER, text)


def _own_verdict(job: JobRun, own: OwnComparison) -> CodedReason[VerdictCode]:
    """Of ranks that synchronize in groups, compared by their own time."""
    if own.unknown:
        text = f"unknown: {_named(own.unknown)} has calls without a mark, more than one in a hundred, in which it may have waited"
        return CodedReason(VerdictCode.CALLS_NOT_METERED, text)
    if own.slow is not None:
        worst = own.slow
        place = "" if own.place is None or own.place.text is None else f"in {own.place.text}, "
        cost = f"it cost {duration_text(worst.exposed_ns)} in the window" if worst.exposed_ns else "it cost nothing"
        text = (
            f"rank {worst.rank} ({job.ranks[worst.rank].newest.node}) takes {duration_text(worst.lateness_p50_ns)} a step longer "
            f"than the ranks that do the same work, {place}without all that each waited; {cost}"
        )
        return CodedReason(VerdictCode.STRAGGLER, text)
    if own.together:
        text = f"inconclusive: {_named(own.together)} are slow together, as with more data, so none is named"
        return CodedReason(VerdictCode.SLOW_TOGETHER, text)
    if own.alone:
        text = f"inconclusive: no other rank does the same work as {_named(own.alone)}, so lateness and more work look the same"
        return CodedReason(VerdictCode.NOTHING_ALIKE, text)
    if own.may_be_chance:
        text = f"inconclusive: a rank takes longer in most of {own.compared_steps} steps, but chance looks the same in so few"
        return CodedReason(VerdictCode.LATENESS_MAY_BE_CHANCE, text)
    text = "no rank takes persistently longer than the ranks that do the same work"
    return CodedReason(VerdictCode.NO_STRAGGLER, text)


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MAX_NAMED]))
    more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def _straggler_verdict(job: JobRun, analysis: JobAnalysis) -> CodedReason[VerdictCode]:
    worst = analysis.attribution.stragglers[0]
    rank = f"rank {worst.rank} ({job.ranks[worst.rank].newest.node})"
    late = f"late {analysis.place}: {duration_text(worst.lateness_p50_ns)} after the median rank"
    if worst.verdict == "inconclusive":
        bound = duration_text(analysis.attribution.clock_bound_ns or 0)
        text = f"inconclusive: {rank} seems {late}, within the clocks' error of {bound}"
        return CodedReason(VerdictCode.STRAGGLER_WITHIN_CLOCK_ERROR, text)
    cost = (
        f"it cost {duration_text(worst.exposed_ns)} in the window" if worst.exposed_ns else "hidden, so it cost nothing"
    )
    others = sum(each.verdict == "straggler" for each in analysis.attribution.stragglers) - 1
    more = f"; {others} more stragglers" if others > 1 else "; 1 more straggler" if others else ""
    return CodedReason(VerdictCode.STRAGGLER, f"{rank} is {late}; {cost}{more}")


def _not_compared(sync: Sync, job: JobRun) -> CodedReason[VerdictCode]:
    code, text = VerdictCode.CLOCK_STEPPED, "the clock of a node was stepped"
    if compare(sync.arrivals) is not None:
        code = VerdictCode.NO_WAIT_FOR_ALL_RANKS
        text = "a rank left before another arrived, so the marks are of no wait for all ranks"
        return CodedReason(code, f"inconclusive: {text}")
    for number, arrival in sync.arrivals.items():
        rank = f"rank {number} ({job.ranks[number].newest.node})"
        if arrival.clock is None or arrival.end_ns < arrival.arrival_ns:
            text = f"the clock of {rank} was stepped"
            break
        if arrival.error_ns is None:
            code, text = VerdictCode.CLOCK_ERROR_UNKNOWN, f"the clock error of {rank} is unknown"
            break
    return CodedReason(code, f"inconclusive: {text}")


#: A page holds about so many marks, so that making it does not delay the polls of clocks; a larger step has a page of
#: its own.
MARKS_A_PAGE = 5_000


def window_page(job: JobRun, from_step: int, most_steps: int) -> RecordingMessage:
    """The closed steps from this key on, at most `most_steps`; a step that is still open, or full, is on no page."""
    still_open = {step for step, _ in job.pending}
    records: list[tuple[int, StepRecord]] = []
    size, next_step = 0, None
    for step, record in _closed(job, from_step, still_open):
        if records and (len(records) >= most_steps or size + record.size > MARKS_A_PAGE):
            next_step = step
            break
        records.append((step, record))
        size += record.size
    page = RecordingMessage.of(_recording(job, records))
    return page.model_copy(update={"next_step": next_step})


def _closed(job: JobRun, from_step: int, still_open: set[int]) -> Iterator[tuple[int, StepRecord]]:
    for step, record in job.steps.records_from(from_step):
        if step not in still_open and not record.is_full:
            yield step, record


def _recording(job: JobRun, records: list[tuple[int, StepRecord]]) -> Recording:
    steps: dict[int, list[StepMark]] = {}
    requests: dict[int, list[ServerRequest]] = {}
    for step, record in records:
        for rank, mark in record.marks.items():
            steps.setdefault(rank, []).append(mark)
        for rank, spans in record.requests.items():
            requests.setdefault(rank, []).extend(ServerRequest(step, *span) for span in spans)
    ranks = {
        number: RankRecord(
            rank.newest.node, rank.lost, rank.own_overhead_ns, rank.metered_ns, job.presence.get(number, Presence())
        )
        for number, rank in job.ranks.items()
    }
    return Recording(
        job=job.name,
        attempt=job.attempt,
        world_size=job.world_size,
        ranks=ranks,
        syncs=[sync for _, record in records for sync in record.in_order()],
        steps=steps,
        requests=requests,
        own_waits={step: record.own for step, record in records if record.own},
    )
