"""
The fleet's view that the daemon keeps: takes node states and marks, gives each job its signals and its plan.

Which policy the ranks of each job are to follow: what a user asked for last, else what the configuration says. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from timesyncd.clocks import Moment
from timesyncd.config import HubSettings
from timesyncd.findings.catalogue import Judged
from timesyncd.fleet.alignment import ONE_CLOCK, Alignment, unknown_alignment
from timesyncd.fleet.registry import Fleet
from timesyncd.hub.barrier_plan import Planned, View, amended, decide, taken_over
from timesyncd.hub.groups import JobGroups
from timesyncd.hub.phase_jobs import JobPhases
from timesyncd.ipc.job_datagram import Kind, step_text
from timesyncd.jobs.arrivals import Sync
from timesyncd.jobs.causality import Suspicion
from timesyncd.jobs.joining import MAX_JOBS, Apart, Job, Jobs
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.jobs.state import MOST_LOOKED_MARKS, JobView, figures, look, look_again_after_ns, window_page
from timesyncd.messages.fleet import AlignmentState, HubState
from timesyncd.messages.jobs import JobState, MarkBatch, Plan, PolicyRequest
from timesyncd.messages.node import NodeState, StateReason
from timesyncd.units import duration_text


class Policies:
    """
    What is in force stands in the job's plan, so whoever takes the plan over has it. `configured` is by the jobs' names, and counts for a
    job of which nothing was ever said: a job that runs keeps what it has, whatever a hub's configuration says later.
    """

    def __init__(self, configured: Mapping[str, str]) -> None:
        self._configured = configured
        self._asked: dict[str, str] = {}

    def ask(self, job_id: str, policy: str) -> None:
        """For the next round alone: who asked does so again until it is in the plan."""
        self._asked[job_id] = policy

    def end_round(self) -> None:
        """What was not taken up is forgotten: a hub that does not plan must not find it when it does."""
        self._asked.clear()

    def fields(self, job: Job, last: Plan) -> dict[str, object]:
        """Of the plan after `last`."""
        wanted = self._asked.get(job.id)
        if wanted is None and last.policy_version == 0:
            wanted = self._configured.get(job.name)
        if wanted is None or wanted == last.policy:
            return {"policy": last.policy, "policy_version": last.policy_version}
        return {"policy": wanted, "policy_version": last.policy_version + 1}


CLOCK_CAUSALITY = "clock-causality"
REPLICAS_APART = "replicas-apart"

#: The one user who may speak for the others.
SUPERUSER = 0

#: The figures of a rank take as long as looking at so many marks.
MARKS_A_RANK = 4


@dataclass(frozen=True, slots=True)
class Looked:
    """What a job's window said when it was looked at last, its figures, and from when on it may be looked at again (CLOCK_BOOTTIME)."""

    view: JobView
    figures: Mapping[str, object]
    run: int
    changes: tuple[int, ...]
    again_at_ns: int

    def serves(self, job: Job, now_ns: int) -> bool:
        return self.changes == job.changes or now_ns < self.again_at_ns


@dataclass(frozen=True, slots=True)
class HubOutput:
    """What a round gives: every job that runs, and the ids of those that ended since the last round."""

    jobs: list[JobState]
    ended: list[str]


class Hub:
    """
    Never waits, and reads no clock but `cpu_ns`, the CPU time of its own thread, so that what takes long is done less often. The states that `advance` gives carry this node's name, and incarnation and sequence
    0: the daemon numbers them when it sends them. `fleet` is what it knows of nodes. `policies` are what the configuration wants, by the jobs'
    names.
    """

    def __init__(
        self,
        settings: HubSettings,
        node: str,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
        policies: Mapping[str, str] | None = None,
    ) -> None:
        self.fleet = Fleet(settings.nodes)
        self._settings = settings
        self._node = node
        self._cpu_ns = cpu_ns
        self._jobs = Jobs(settings.window_steps)
        self._planned: dict[str, Planned] = {}
        self._heard_plans: dict[str, Plan] = {}
        self._looked: dict[str, Looked] = {}
        self._left_to_look = 0
        self._phases = JobPhases(self.fleet)
        self._policies = Policies(policies or {})
        self._groups = JobGroups(self.fleet)

    @property
    def busy(self) -> bool:
        """There are jobs to judge."""
        return any(True for _ in self._jobs)

    @property
    def refused_batches(self) -> int:
        """Batches that were not taken: a rank outside its world, of a former run, or too many jobs."""
        return self._jobs.refused

    def accept_node(self, state: NodeState, received_boottime_ns: int, live: bool) -> bool:
        """`live` False: a retained copy. True when it is news: a late or repeated message changes nothing."""
        return self.fleet.accept(state, received_boottime_ns, live)

    def accept_marks(self, batch: MarkBatch, now_boottime_ns: int) -> None:
        self._jobs.accept(batch, now_boottime_ns)

    def ask(self, request: PolicyRequest) -> str:
        """What a user wants of a job is in the plan of the next round, where this hub makes it. Else why not, in words."""
        job = self.job(request.job_id)
        if job is None:
            return f"no job {request.job_id} sends marks to this hub"
        if request.uid not in (job.uid, SUPERUSER):
            return f"job {job.name!r} is user {job.uid}'s, and user {request.uid} on {request.node} asked for {request.policy}"
        self._policies.ask(job.id, request.policy)
        return ""

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
            self._looked.pop(job.id, None)
            self._groups.forget(job.id)
        now = Moment(realtime_ns=now_realtime_ns, boottime_ns=now_boottime_ns)
        if primary:
            self._phases.advance(self._jobs, {job.id: self._last_plan(job) for job in self._jobs}, now)
        self._left_to_look = MOST_LOOKED_MARKS
        states = [self._judge(job, looked, now, primary) for job in self._jobs if (looked := self._look(job, now))]
        self._policies.end_round()
        return HubOutput(states, [job.id for job in ended])

    def job(self, job_id: str) -> Job | None:
        """None: no such job runs."""
        return next((job for job in self._jobs if job.id == job_id), None)

    def window(self, job_id: str, from_step: int, most_steps: int) -> RecordingMessage | None:
        """A page of what was joined of a job's newest steps; None: no such job runs."""
        job = self.job(job_id)
        return None if job is None else window_page(job, from_step, most_steps)

    def findings(self) -> dict[tuple[str, str], Judged]:
        """What the jobs, as last looked at, say against the clocks and of their replicas, by (id, subject)."""
        found: dict[tuple[str, str], Judged] = {}
        for job in self._jobs:
            looked = self._looked.get(job.id)
            suspicion = looked.view.attribution.suspicion if looked is not None and looked.run == job.run else None
            if suspicion is not None:
                found.setdefault((CLOCK_CAUSALITY, ", ".join(suspicion.nodes)), Judged(_suspicion_text(job, suspicion)))
            apart = job.replicas.apart()
            if apart is not None:
                found.setdefault((REPLICAS_APART, job.name), Judged(_apart_text(job, apart)))
        return found

    def state(self, now: Moment, primary: bool, started_realtime_ns: int, url: str | None = None) -> HubState:
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

    def alignment_state(self, job_id: str, now: Moment) -> AlignmentState | None:
        """Of the nodes of a job, as a message; None: no such job runs."""
        job = self.job(job_id)
        if job is None:
            return None
        state = self.fleet.alignment_state(_nodes(job), now)
        return state.model_copy(update=self._alignment(job, now).figures())

    def _plan(self, job: Job, view: View, now: Moment, primary: bool) -> Plan:
        last, heard = self._planned.get(job.id, Planned()), self._heard_plans.get(job.id)
        if heard is not None and heard.version <= last.plan.version:
            heard = None
        if not primary:
            return heard or last.plan
        base = taken_over(last, heard, job.newest_step) if heard else last
        planned = self._phases.attached(job, last, decide(base, view, now.boottime_ns))
        changes = self._policies.fields(job, base.plan) | self._groups.fields(job, base.plan, now)
        planned = self._planned[job.id] = amended(last, planned, changes)
        return planned.plan

    def _last_plan(self, job: Job) -> Plan:
        last, heard = self._planned.get(job.id, Planned()).plan, self._heard_plans.get(job.id)
        return heard if heard is not None and heard.version > last.version else last

    def _judge(self, job: Job, looked: Looked, now: Moment, primary: bool) -> JobState:
        aligned = self._alignment(job, now)
        transfers_ns = _transfers_ns(looked.view.attribution.syncs)
        view = View(job.run, job.newest_step, aligned, transfers_ns, looked.view.barriers)
        return JobState.model_validate(
            dict(looked.figures)
            | {
                "node": self._node,
                "incarnation": 0,
                "sequence": 0,
                "job_id": job.id,
                "job": job.name,
                "attempt": job.attempt,
                "uid": job.uid,
                "world_size": job.world_size,
                "run": job.run,
                "published_realtime_ns": now.realtime_ns,
                "alignment_ns": aligned.alignment_ns,
                "alignment_growth_ppb": aligned.growth_ppb,
                "alignment_reason": aligned.reason,
                "alignment_reason_code": aligned.reason_code,
                "alignment_pair": None if aligned.pair is None else list(aligned.pair),
                "alignment_holds_for_ns": aligned.holds_for_ns,
                "link": self._phases.link(job),
                "phase_reason": self._phases.reason(job),
                "plan": self._plan(job, view, now, primary),
                "groups_reason": self._groups.reason(job),
            }
        )

    def _look(self, job: Job, now: Moment) -> Looked | None:
        """
        Anew only when something was added, what takes long not in every round, and no more in one round than it may take. None: a job that is new, and
        whose turn comes in a later round.
        """
        known = self._looked.get(job.id)
        if known is not None and known.run != job.run:
            known = None
        if self._left_to_look <= 0 or (known is not None and known.serves(job, now.boottime_ns)):
            return known
        self._left_to_look -= min(job.size, MOST_LOOKED_MARKS) + MARKS_A_RANK * len(job.ranks)
        before_ns = self._cpu_ns()
        view = look(job, self._verified_nodes(job, now))
        told = figures(job, view)
        again_at_ns = now.boottime_ns + look_again_after_ns(self._cpu_ns() - before_ns, len(self._jobs))
        looked = self._looked[job.id] = Looked(view, told, job.run, job.changes, again_at_ns)
        return looked

    def _verified_nodes(self, job: Job, now: Moment) -> dict[int, str]:
        """By rank, where the marks come from a node whose own live state tells of the same boot: a name alone anybody can give."""
        nodes = {}
        for number, rank in job.ranks.items():
            clock = self.fleet.clock(rank.newest.node)
            if clock is not None and not clock.is_silent(now) and clock.boot_id == rank.newest.boot_id:
                nodes[number] = rank.newest.node
        return nodes

    def _alignment(self, job: Job, now: Moment) -> Alignment:
        if job.on_one_clock():
            return ONE_CLOCK
        if len(job.ranks) < job.world_size:
            missing = f"heard of {len(job.ranks)} ranks of {job.world_size}"
            return unknown_alignment(missing, StateReason.RANKS_MISSING)
        for rank in job.ranks.values():
            clock = self.fleet.clock(rank.newest.node)
            if clock is not None and rank.newest.boot_id != clock.boot_id:
                other = f"{rank.newest.node}: the marks of rank {rank.newest.rank} are of another boot than its state"
                return unknown_alignment(other, StateReason.OTHER_BOOT_OF_RANK)
        return self.fleet.alignment(_nodes(job), now)


def _nodes(job: Job) -> list[str]:
    return sorted({rank.newest.node for rank in job.ranks.values()})


def _transfers_ns(syncs: Sequence[Sync]) -> list[int]:
    barriers = [sync.comparison for sync in syncs if sync.kind == Kind.BARRIER]
    return [comparison.transfer_ns for comparison in barriers if comparison is not None]


def _apart_text(job: Job, apart: Apart) -> str:
    return (
        f"in step {step_text(apart.step)} of job {job.name!r} of user {job.uid} the parameters of ranks {', '.join(map(str, apart.ranks[:8]))}"
        f"{' and others' if len(apart.ranks) > 8 else ''} were not those of the other ranks, right after a synchronization"
    )


def _suspicion_text(job: Job, suspicion: Suspicion) -> str:
    one_of = "one of these clocks" if len(suspicion.nodes) > 1 else "this clock"
    return (
        f"in {suspicion.steps} steps of job {job.name!r} of user {job.uid} a rank left a collective before another arrived, by up to "
        f"{duration_text(suspicion.excess_ns)} more than the bounds allow: {one_of} is wrong, or that user's marks are"
    )
