"""The fleet's view that the daemon keeps: takes node states and marks, gives each job its signals and its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timesyncd.fleet_messages import AlignmentState, HubState
from timesyncd.hub.alignment import ONE_CLOCK, Alignment, unknown
from timesyncd.hub.fleet import Fleet
from timesyncd.hub.jobs import MAX_JOBS, Job, Jobs
from timesyncd.hub.node_clock import Now
from timesyncd.hub.plan import Planned, View, decide, taken_over
from timesyncd.job_messages import JobState, MarkBatch, Plan, RankState
from timesyncd.joblink import Kind
from timesyncd.messages import NodeState
from timesyncd.overhead import Sync, Window, summarize
from timesyncd.sections import Hub as HubSettings

#: What a message holds: marks may lie, and their sum be larger.
MOST_NS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HubOutput:
    """What a round gives: every job that runs, and the ids of those that ended since the last round."""

    jobs: list[JobState]
    ended: list[str]


class Hub:
    """
    Never waits and never reads a clock. The states that `advance` gives carry this node's name, and incarnation and sequence
    0: the daemon numbers them when it sends them. `fleet` is what it knows of nodes.
    """

    def __init__(self, settings: HubSettings, node: str) -> None:
        self.fleet = Fleet(settings.nodes)
        self._settings = settings
        self._node = node
        self._jobs = Jobs(settings.window_steps)
        self._planned: dict[str, Planned] = {}
        self._heard_plans: dict[str, Plan] = {}

    @property
    def busy(self) -> bool:
        """There are jobs to judge."""
        return any(True for _ in self._jobs)

    @property
    def refused_batches(self) -> int:
        """Batches that were not taken: a rank outside its world, or too many jobs."""
        return self._jobs.refused

    def accept_node(self, state: NodeState, received_boottime_ns: int, live: bool) -> bool:
        """`live` False: a retained copy. True when it is news: a late or repeated message changes nothing."""
        return self.fleet.accept(state, received_boottime_ns, live)

    def accept_marks(self, batch: MarkBatch, now_boottime_ns: int) -> None:
        self._jobs.accept(batch, now_boottime_ns)

    def adopt(self, state: JobState) -> None:
        """
        Another hub, or this one before it restarted, planned this: while this one is not primary it shows the same, and goes on from
        there when it becomes so. Of all that is heard the highest version counts, so that none goes back.
        """
        heard = self._heard_plans.pop(state.job_id, None)
        self._heard_plans[state.job_id] = state.plan if heard is None or state.plan.version > heard.version else heard
        if len(self._heard_plans) > MAX_JOBS:
            del self._heard_plans[next(iter(self._heard_plans))]

    def advance(self, now_boottime_ns: int, now_realtime_ns: int, primary: bool = True) -> HubOutput:
        """One round, about once a second: close what is due, and judge every job anew. Only the `primary` hub plans."""
        ended = self._jobs.advance(now_boottime_ns)
        for job in ended:
            self._planned.pop(job.id, None)
            self._heard_plans.pop(job.id, None)
        now = Now(now_boottime_ns, now_realtime_ns)
        states = [self._judge(job, now, primary) for job in self._jobs]
        return HubOutput(states, [job.id for job in ended])

    def state(self, now: Now, primary: bool, started_realtime_ns: int, url: str | None = None) -> HubState:
        """What this hub says of itself; numbered when it is sent."""
        fleet = self.fleet.summary(now)
        return HubState(
            node=self._node,
            incarnation=0,
            sequence=0,
            published_realtime_ns=now.realtime_ns,
            started_realtime_ns=started_realtime_ns,
            primary=primary,
            url=url,
            nodes_live=fleet.live,
            nodes_known=fleet.known,
            nodes_expected=len(self._settings.nodes),
            missing=list(fleet.missing),
            jobs=sum(1 for _ in self._jobs),
        )

    def alignment_state(self, job_id: str, now: Now) -> AlignmentState | None:
        """Of the nodes of a job, as a message; None: no such job runs."""
        job = next((job for job in self._jobs if job.id == job_id), None)
        if job is None:
            return None
        state = self.fleet.alignment_state(_nodes(job), now)
        return state.model_copy(update=self._alignment(job, now).figures())

    def _plan(self, job: Job, view: View, boottime_ns: int, primary: bool) -> Plan:
        last, heard = self._planned.get(job.id, Planned()), self._heard_plans.get(job.id)
        if heard is not None and heard.version <= last.plan.version:
            heard = None
        if not primary:
            return heard or last.plan
        planned = decide(taken_over(last, heard, job.newest_step) if heard else last, view, boottime_ns)
        self._planned[job.id] = planned
        return planned.plan

    def _judge(self, job: Job, now: Now, primary: bool) -> JobState:
        aligned = self._alignment(job, now)
        view = View(job.run, job.newest_step, aligned, _barrier_transfers_ns(job.window))
        window, newest = summarize(job.window), job.newest_complete()
        comparison = newest.comparison if newest is not None else None
        return JobState(
            node=self._node,
            incarnation=0,
            sequence=0,
            job_id=job.id,
            job=job.name,
            attempt=job.attempt,
            uid=job.uid,
            world_size=job.world_size,
            published_realtime_ns=now.realtime_ns,
            step=newest.step if newest is not None else None,
            steps_complete=job.complete,
            steps_incomplete=job.incomplete,
            sync_overhead=window.sync_overhead,
            arrival_skew_ns=comparison.skew_ns if comparison is not None else None,
            arrival_skew_p50_ns=window.skew_p50_ns,
            arrival_skew_error_ns=comparison.error_ns if comparison is not None else None,
            transfer_p50_ns=window.transfer_p50_ns,
            last_rank=comparison.last_rank if comparison is not None else None,
            slow_rank=window.slow_rank,
            verdict=_verdict(job, window, newest),
            alignment_ns=aligned.alignment_ns,
            alignment_growth_ppb=aligned.growth_ppb,
            alignment_reason=aligned.reason,
            alignment_pair=None if aligned.pair is None else list(aligned.pair),
            alignment_holds_for_ns=aligned.holds_for_ns,
            ranks=_rank_states(job, window),
            plan=self._plan(job, view, now.boottime_ns, primary),
        )

    def _alignment(self, job: Job, now: Now) -> Alignment:
        if job.on_one_clock():
            return ONE_CLOCK
        if len(job.ranks) < job.world_size:
            return unknown(f"heard of {len(job.ranks)} ranks of {job.world_size}")
        for rank in job.ranks.values():
            clock = self.fleet.clock(rank.newest.node)
            if clock is not None and rank.newest.boot_id != clock.boot_id:
                return unknown(
                    f"{rank.newest.node}: the marks of rank {rank.newest.rank} are of another boot than its state"
                )
        return self.fleet.alignment(_nodes(job), now)


def _nodes(job: Job) -> list[str]:
    return sorted({rank.newest.node for rank in job.ranks.values()})


def _barrier_transfers_ns(syncs: Sequence[Sync]) -> list[int]:
    barriers = (sync.comparison for sync in syncs if sync.kind == Kind.BARRIER)
    return [comparison.transfer_ns for comparison in barriers if comparison is not None]


def _rank_states(job: Job, window: Window) -> list[RankState]:
    states = []
    for number, rank in sorted(job.ranks.items()):
        seen = window.ranks.get(number)
        states.append(
            RankState(
                rank=number,
                node=rank.newest.node,
                wait_p50_ns=seen.wait_p50_ns if seen is not None else None,
                wait_total_ns=min(seen.wait_total_ns, MOST_NS) if seen is not None else None,
                last_share=seen.last_share if seen is not None else None,
                lateness_p50_ns=seen.lateness_p50_ns if seen is not None else None,
                marks_lost=rank.lost,
                clock_status=rank.newest.status,
            )
        )
    return states


def _verdict(job: Job, window: Window, newest: Sync | None) -> str:
    """One line for people: who is slow or was last, or why that is not said."""
    if newest is None:
        return f"inconclusive: no step has the marks of all {job.world_size} ranks yet"
    if window.slow_rank is not None:
        share = window.ranks[window.slow_rank].last_share or 0
        return f"rank {window.slow_rank} is slow: last in {share:.0%} of {window.conclusive_steps} conclusive steps"
    comparison = newest.comparison
    if comparison is None:
        return "inconclusive: " + _why_not_compared(newest, job)
    if comparison.last_rank is None:
        return (
            f"inconclusive: the skew of {comparison.skew_ns} ns is within the clocks' error of {comparison.error_ns} ns"
        )
    return f"rank {comparison.last_rank} was last in step {newest.step}; none is persistently"


def _why_not_compared(sync: Sync, job: Job) -> str:
    for number, arrival in sync.arrivals.items():
        node = job.ranks[number].newest.node
        if arrival.clock is None or arrival.end_ns < arrival.arrival_ns:
            return f"the clock of rank {number} ({node}) was stepped"
        if arrival.error_ns is None:
            return f"the clock error of rank {number} ({node}) is unknown"
    return "the clock of a node was stepped"
