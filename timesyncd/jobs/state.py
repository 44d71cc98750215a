"""
What a job's marks say, in one round of the hub, and as the message that tells of it. Pure.

A job's window as a hub tells it: what was joined of each step, page by page. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_datagram import Kind, step_text
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs.arrivals import StepMark, Sync, Window, compare, summarize
from timesyncd.jobs.exposed import RankCost, StepCost, ratio
from timesyncd.jobs.joining import Job, newest_of
from timesyncd.jobs.ranks import Flows
from timesyncd.jobs.recording import RankRecord, Recording, RecordingMessage, Request
from timesyncd.jobs.stragglers import Attribution, Straggler, attribute
from timesyncd.jobs.window import MOST_MARKS_A_STEP, StepRecord
from timesyncd.messages.jobs import DelayState, MethodName, RankState
from timesyncd.messages.jobs import Straggler as StragglerState
from timesyncd.units import duration_text, median, percentile

#: What a message holds: marks may lie, and their sum be larger.
MOST_NS = 2**63 - 1

#: So many stragglers and pairs of ranks are told of, the worst.
MOST_STRAGGLERS = 32
MOST_DELAYS = 100

#: Of the time, one part in so many is for looking at jobs: the daemon has clocks to watch.
LOOKING_PART = 20

#: What one look reads of a job: so many marks of its newest steps. A large job's steps are read at fewer places, so that so many steps are among them.
MOST_LOOKED_MARKS = 20_000
STEPS_WANTED = 30


@dataclass(frozen=True, slots=True)
class Costs:
    """Exposed time over the window: by step, and by rank."""

    window: float | None
    step: float | None
    epoch: float | None
    comm_compute: float | None
    ranks: Mapping[int, Sequence[RankCost]]


@dataclass(frozen=True, slots=True)
class JobView:
    """What a job's window says; `newest` speaks for its newest complete step. `barriers` are as the nodes' own clocks saw them."""

    attribution: Attribution
    window: Window
    newest: Sync | None
    costs: Costs
    barrier_waits_ns: Sequence[int]
    barriers: Sequence[Sync]
    flows: Mapping[str, object]
    update_latency_p50_ns: int | None


def look(job: Job, nodes: Mapping[int, str]) -> JobView:
    """`nodes` by rank, of those whose marks are known to come from there."""
    syncs = looked_at(job) if job.has_all_ranks else []
    attribution = attribute(syncs, nodes, job.world_size)
    costs = job.steps.costs({step for step, _ in job.pending}, MOST_MARKS_A_STEP)
    return JobView(
        attribution=attribution,
        window=summarize(attribution.syncs),
        newest=newest_of(list(attribution.syncs), job.world_size),
        costs=_costs(costs, job.steps.epoch_overhead(costs)),
        barrier_waits_ns=[wait_ns for sync in attribution.syncs for wait_ns in _barrier_waits_ns(sync)],
        barriers=[sync for sync in syncs if sync.kind == Kind.BARRIER],
        update_latency_p50_ns=median(list(_update_latencies_ns(job))),
        flows=_flow_figures(job.flows),
    )


def looked_at(job: Job) -> list[Sync]:
    """
    Of the newest steps, in the order of (step, sync): all synchronizations of a job that is not large, of another's steps the first ones, and the first
    barrier.
    """
    most = max(1, MOST_LOOKED_MARKS // STEPS_WANTED // job.world_size)

    def parts(record: StepRecord) -> list[Sync]:
        syncs = record.in_order()
        if len(syncs) <= most:
            return syncs
        barriers = [sync for sync in syncs if sync.kind == Kind.BARRIER]
        others = [sync for sync in syncs if sync.kind != Kind.BARRIER]
        return sorted(others[:most] + barriers[:1], key=lambda sync: sync.sync)

    records = job.steps.newest(MOST_LOOKED_MARKS, lambda record: sum(len(sync.arrivals) for sync in parts(record)))
    return [sync for record in records for sync in parts(record)]


def look_again_after_ns(took_ns: int, jobs: int) -> int:
    """For how long a job's window is left alone that took so long to look at, while so many jobs run; 0 = until the next round, a second later."""
    pause_ns = took_ns * jobs * LOOKING_PART
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


def _update_latencies_ns(job: Job) -> Iterator[int]:
    for record in job.steps.newest(MOST_LOOKED_MARKS, lambda record: len(record.marks)):
        for mark in record.marks.values():
            if mark.ready_ns is not None and mark.end_ns >= mark.ready_ns:
                yield mark.end_ns - mark.ready_ns


def figures(job: Job, view: JobView) -> dict[str, object]:
    """The fields of a JobState that are of the job's marks."""
    window, seen, costs = view.window, view.attribution, view.costs
    comparison = view.newest.comparison if view.newest is not None else None
    sure = [straggler.rank for straggler in seen.stragglers if straggler.verdict == "straggler"]
    told = {
        "step": view.newest.step if view.newest is not None else None,
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
        "barrier_wait_p50_ns": _percentile(view.barrier_waits_ns, 50),
        "barrier_wait_p99_ns": _percentile(view.barrier_waits_ns, 99),
        "update_latency_p50_ns": view.update_latency_p50_ns,
        "last_rank": comparison.last_rank if comparison is not None else None,
        "straggler_rank": sure[0] if sure else None,
        "stragglers": [_straggler_state(job, each) for each in seen.stragglers[:MOST_STRAGGLERS]],
        "method": method_name(seen.method),
        "clock_bound_ns": seen.clock_bound_ns,
        "trusted": seen.trusted,
        "verdict": _verdict(job, view),
        "ranks": rank_states(job, view),
    }
    return _held(told | dict(view.flows))


def _held(fields: dict[str, object]) -> dict[str, object]:
    """With every whole number as one that a message holds: marks may lie, and their sums and differences be larger."""
    return {
        name: max(-MOST_NS, min(value, MOST_NS)) if isinstance(value, int) else value for name, value in fields.items()
    }


def method_name(method: Method | None) -> MethodName | None:
    match method:
        case Method.ONE_CLOCK:
            return "ONE_CLOCK"
        case Method.CLOCKS:
            return "CLOCKS"
        case Method.ENDS:
            return "ENDS"
    return None


def _flow_figures(flows: Flows) -> dict[str, object]:
    most = MOST_LOOKED_MARKS // max(1, len(flows.staleness))
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
        "delays": sorted(delays, key=lambda delay: -delay.p50_ns)[:MOST_DELAYS],
    }


def rank_states(job: Job, view: JobView) -> list[RankState]:
    states = []
    for number, rank in sorted(job.ranks.items()):
        seen, costs = view.window.ranks.get(number), view.costs.ranks.get(number, ())
        elapsed_ns = sum(cost.elapsed_ns for cost in costs)
        exposed = [cost.exposed_ns for cost in costs]
        told = {
            "rank": number,
            "node": rank.newest.node,
            "wait_p50_ns": seen.wait_p50_ns if seen is not None else None,
            "wait_p99_ns": seen.wait_p99_ns if seen is not None else None,
            "wait_total_ns": seen.wait_total_ns if seen is not None else None,
            "last_share": _rounded(seen.last_share) if seen is not None else None,
            "lateness_p50_ns": seen.lateness_p50_ns if seen is not None else None,
            "marks_lost": rank.lost,
            "clock_status": rank.newest.status,
            "joined_ns": rank.newest.joined_ns or None,
            "idle_share": _rounded(ratio(sum(exposed), elapsed_ns)),
            "exposed_p50_ns": median(exposed),
            "staleness_p50": median(job.flows.staleness.get(number, ())),
        }
        states.append(RankState.model_validate(_held(told)))
    return states


def _straggler_state(job: Job, straggler: Straggler) -> StragglerState:
    fields = {name: getattr(straggler, name) for name in Straggler.__dataclass_fields__}
    return StragglerState.model_validate(_held(fields | {"node": job.ranks[straggler.rank].newest.node}))


def _own_overhead(job: Job) -> float | None:
    """What metering cost the ranks of the time that they have metered."""
    told = [(rank.own_overhead_ns, rank.metered_ns) for rank in job.ranks.values()]
    known = [(own_ns, metered_ns) for own_ns, metered_ns in told if metered_ns is not None]
    return ratio(sum(own_ns for own_ns, _ in known), sum(metered_ns for _, metered_ns in known))


def _percentile(values: Sequence[int], percent: int) -> int | None:
    return percentile(values, percent) if values else None


def _rounded(share: float | None) -> float | None:
    """Of a state with 2,500 ranks every digit counts."""
    return None if share is None else round(share, 6)


def _verdict(job: Job, view: JobView) -> str:
    """One line for people: who is late, where, and what it costs, or why that is not said."""
    newest = view.newest
    if newest is None:
        return f"inconclusive: no step has the marks of all {job.world_size} ranks yet"
    by = "; by collective ends, without trusted clocks" if view.attribution.method is Method.ENDS else ""
    if view.attribution.stragglers:
        return _straggler_text(job, view) + by
    comparison = newest.comparison
    if comparison is None:
        return "inconclusive: " + _why_not_compared(newest, job)
    if comparison.last_rank is None:
        return (
            f"inconclusive: the skew of {comparison.skew_ns} ns is within the clocks' error of {comparison.error_ns} ns"
            + by
        )
    return f"rank {comparison.last_rank} was last in step {step_text(newest.step)}; none is persistently" + by


def _straggler_text(job: Job, view: JobView) -> str:
    worst = view.attribution.stragglers[0]
    who = f"rank {worst.rank} ({job.ranks[worst.rank].newest.node})"
    late = f"late at {worst.where}: {duration_text(worst.lateness_p50_ns)} after the median rank"
    if worst.verdict == "inconclusive":
        bound = duration_text(view.attribution.clock_bound_ns or 0)
        return f"inconclusive: {who} seems {late}, within the clocks' error of {bound}"
    cost = f"cost {duration_text(worst.exposed_ns)} in the window" if worst.exposed_ns else "hidden, so it cost nothing"
    more = sum(each.verdict == "straggler" for each in view.attribution.stragglers) - 1
    return f"{who} is {late}, {cost}" + (f"; {more} more" if more else "")


def _why_not_compared(sync: Sync, job: Job) -> str:
    if compare(sync.arrivals) is not None:
        return "a rank left before another one was there, so that what they marked was no wait for all ranks"
    for number, arrival in sync.arrivals.items():
        node = job.ranks[number].newest.node
        if arrival.clock is None or arrival.end_ns < arrival.arrival_ns:
            return f"the clock of rank {number} ({node}) was stepped"
        if arrival.error_ns is None:
            return f"the clock error of rank {number} ({node}) is unknown"
    return "the clock of a node was stepped"


#: About so many marks are on a page, so that making it does not hold up the clocks; a step with more stands alone.
MARKS_A_PAGE = 5_000


def window_page(job: Job, from_step: int, most_steps: int) -> RecordingMessage:
    """The closed steps from this key on, at most so many; a step that is still open, or full, is on no page."""
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


def _closed(job: Job, from_step: int, still_open: set[int]) -> Iterator[tuple[int, StepRecord]]:
    for step, record in job.steps.records_from(from_step):
        if step not in still_open and not record.is_full:
            yield step, record


def _recording(job: Job, records: list[tuple[int, StepRecord]]) -> Recording:
    steps: dict[int, list[StepMark]] = {}
    requests: dict[int, list[Request]] = {}
    for step, record in records:
        for rank, mark in record.marks.items():
            steps.setdefault(rank, []).append(mark)
        for rank, spans in record.requests.items():
            requests.setdefault(rank, []).extend(Request(step, *span) for span in spans)
    ranks = {
        number: RankRecord(rank.newest.node, rank.lost, rank.own_overhead_ns, rank.metered_ns)
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
    )
