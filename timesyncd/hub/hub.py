"""
The hub: from the states of the nodes and the marks of the ranks it computes every job's signals and its plan. Pure but
for `cpu_ns`.

A plan names the policy of the job's ranks: the one that a user requested last, else the one that the configuration
names. Of several hubs one is primary and publishes the plans: the first by name of those that publish their state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import HubSettings
from timesyncd.findings.catalogue import Judgement
from timesyncd.findings.jobs import job_findings
from timesyncd.fleet.alignment import ONE_CLOCK, Alignment, unknown_alignment
from timesyncd.fleet.registry import Fleet
from timesyncd.hub.barrier_plan import BarrierObservation, BarrierState, decide, take_over, with_changes
from timesyncd.hub.groups import JobGroups
from timesyncd.hub.phases import JobPhases
from timesyncd.ipc.job_datagram import Kind
from timesyncd.ipc.job_segment import Plan
from timesyncd.jobs.arrivals import Sync
from timesyncd.jobs.joining import JobRun, Jobs
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.jobs.state import (
    MAX_ANALYSED_MARKS,
    JobAnalysis,
    analyse,
    job_figures,
    next_analysis_after_ns,
    window_page,
)
from timesyncd.messages.fleet import AlignmentState, HubState
from timesyncd.messages.jobs import JobState, MarkBatch, PolicyRequest
from timesyncd.messages.node import NodeState, StateReason


class PlannedPolicies:
    """
    The policies that users and the configuration request. The policy in force is part of the job's plan, so a hub that
    takes over the plan has it.

    `configured` is by the jobs' names and applies to a job without any earlier request: a running job keeps its policy
    whatever the configuration of another hub says.
    """

    def __init__(self, configured: Mapping[str, str]) -> None:
        self._configured = configured
        self._requested: dict[str, str] = {}

    def request(self, job_id: str, policy: str) -> None:
        """For the next round only: the sender repeats its request until the plan has it."""
        self._requested[job_id] = policy

    def end_round(self) -> None:
        """Forget the requests that no plan took: a hub that is not primary must not apply them when it becomes so."""
        self._requested.clear()

    def fields(self, job: JobRun, last: Plan) -> dict[str, object]:
        """The policy as fields of the plan after `last`."""
        requested = self._requested.get(job.id)
        if requested is None and last.policy_version == 0:
            requested = self._configured.get(job.name)
        if requested is None or requested == last.policy:
            return {"policy": last.policy, "policy_version": last.policy_version}
        return {"policy": requested, "policy_version": last.policy_version + 1}


#: Plans of other hubs are kept of so many jobs, the newest: some 1 kB each.
MAX_RECEIVED_PLANS = 16_384

#: This user may request a policy for the jobs of all users.
SUPERUSER = 0

#: The figures of a rank take as long as the analysis of so many marks.
MARKS_A_RANK = 4


@dataclass(frozen=True, slots=True)
class CachedAnalysis:
    """
    The newest analysis of a job's window, its figures, and the CLOCK_BOOTTIME from which on the window may be analysed
    again.
    """

    analysis: JobAnalysis
    figures: Mapping[str, object]
    run: int
    changes: tuple[int, ...]
    again_at_ns: int

    def is_current(self, job: JobRun, now_ns: int) -> bool:
        return self.changes == job.changes or now_ns < self.again_at_ns


@dataclass(frozen=True, slots=True)
class HubOutput:
    """
    The result of a round: the state of every running job, and the ids of the jobs that ended since the last round.
    """

    jobs: list[JobState]
    ended: list[str]


class Hub:
    """
    Accepts states and marks, and computes every job in rounds. It never waits, and the only clock that it reads is
    `cpu_ns`, the CPU time of its own thread, so that a long analysis runs less often.

    The states that `advance` returns carry this node's name, and incarnation and sequence 0: the daemon numbers them
    when it sends them. `fleet` holds the clocks of the nodes. `policies` are those of the configuration, by the jobs'
    names.
    """

    def __init__(
        self,
        settings: HubSettings,
        node: str,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
        policies: Mapping[str, str] | None = None,
        priorities: Mapping[str, int] | None = None,
    ) -> None:
        self.fleet = Fleet(settings.nodes)
        self._settings = settings
        self._node = node
        self._cpu_ns = cpu_ns
        self._jobs = Jobs(settings.window_steps)
        self._planned: dict[str, BarrierState] = {}
        self._received_plans: dict[str, Plan] = {}
        self._analyses: dict[str, CachedAnalysis] = {}
        self._marks_left = 0
        self._phases = JobPhases(self.fleet, priorities)
        self._policies = PlannedPolicies(policies or {})
        self._groups = JobGroups(self.fleet)

    @property
    def has_jobs(self) -> bool:
        """Whether any job runs."""
        return any(True for _ in self._jobs)

    def accept_node(self, state: NodeState, received_boottime_ns: int, live: bool, json: bytes | None = None) -> bool:
        """Whether the state is new; a late or repeated message changes nothing. `live` False: a retained copy."""
        return self.fleet.accept(state, received_boottime_ns, live, json)

    def accept_marks(self, batch: MarkBatch, now_boottime_ns: int) -> None:
        self._jobs.accept(batch, now_boottime_ns)

    def request_policy(self, request: PolicyRequest) -> str:
        """
        Apply a user's request in the plan of the next round, if this hub plans it. Returns why the request is refused,
        or "".
        """
        job = self.job(request.job_id)
        if job is None:
            return f"no job {request.job_id} sends marks to this hub"
        if request.uid not in (job.uid, SUPERUSER):
            return (
                f"user {request.uid} on {request.node} requested {request.policy} for job {job.name!r} of user {job.uid}; "
                f"only that user and user {SUPERUSER} may"
            )
        self._policies.request(job.id, request.policy)
        return ""

    def adopt(self, state: JobState) -> None:
        """
        The plan of another hub, or of this one before it restarted. While this hub is not primary it publishes the same
        plan, and it continues from it when it becomes primary. The highest version received counts, so that no version
        goes back.
        """
        received = self._received_plans.pop(state.job_id, None)
        is_newer = received is None or state.plan.version > received.version
        self._received_plans[state.job_id] = state.plan if received is None or is_newer else received
        if len(self._received_plans) > MAX_RECEIVED_PLANS:
            del self._received_plans[next(iter(self._received_plans))]

    def release(self, owns: Callable[[str], bool]) -> list[str]:
        """Remove the jobs that another hub owns from now on. Returns their ids."""
        released = self._jobs.release(owns)
        for job_id in released:
            received, planned = self._received_plans.get(job_id), self._planned.get(job_id)
            if planned is not None and (received is None or planned.plan.version > received.version):
                self._received_plans[job_id] = planned.plan
            self._forget(job_id)
        return released

    def _forget(self, job_id: str) -> None:
        self._planned.pop(job_id, None)
        self._analyses.pop(job_id, None)
        self._groups.forget(job_id)

    def advance(
        self,
        now_boottime_ns: int,
        now_realtime_ns: int,
        primary: bool = True,
        claims: Callable[[str], bool] = lambda _job_id: True,
    ) -> HubOutput:
        """
        One round, about once a second: close the synchronizations that are due and compute every job. Only the
        `primary` hub plans, and where hubs share the jobs, only those that it `claims`.
        """
        ended = self._jobs.advance(now_boottime_ns)
        for job in ended:
            self._received_plans.pop(job.id, None)
            self._forget(job.id)
        now = Moment(realtime_ns=now_realtime_ns, boottime_ns=now_boottime_ns)
        if primary:
            self._phases.advance(self._jobs, {job.id: self._last_plan(job) for job in self._jobs}, now)
        self._marks_left = MAX_ANALYSED_MARKS
        analyses = ((job, self._analyse(job, now)) for job in self._jobs)
        states = [
            self._state(job, cached, now, primary and claims(job.id)) for job, cached in analyses if cached is not None
        ]
        self._policies.end_round()
        return HubOutput(states, [job.id for job in ended])

    def job(self, job_id: str) -> JobRun | None:
        """None: no such job runs."""
        return self._jobs.find(job_id)

    def window(self, job_id: str, from_step: int, most_steps: int) -> RecordingMessage | None:
        """A page of a job's newest steps, joined over its ranks; None: no such job runs."""
        job = self.job(job_id)
        return None if job is None else window_page(job, from_step, most_steps)

    def findings(self) -> dict[tuple[str, str], Judgement]:
        """The findings that the newest analyses of the jobs call for, by (id, subject)."""
        found: dict[tuple[str, str], Judgement] = {}
        for job in self._jobs:
            cached = self._analyses.get(job.id)
            is_of_this_run = cached is not None and cached.run == job.run
            suspicion = cached.analysis.attribution.suspicion if cached is not None and is_of_this_run else None
            found = job_findings(job, suspicion) | found
        return found

    def state(
        self, now: Moment, primary: bool, started_realtime_ns: int, url: str | None = None, shares: bool = False
    ) -> HubState:
        """This hub's own state; the daemon numbers it when it sends it."""
        known, live, missing = self.fleet.reporting(now)
        return HubState(
            node=self._node,
            incarnation=0,
            sequence=0,
            published_realtime_ns=now.realtime_ns,
            started_realtime_ns=started_realtime_ns,
            primary=primary,
            url=url,
            nodes_live=live,
            nodes_known=known,
            nodes_expected=len(self.fleet.expected),
            missing=missing,
            jobs=len(self._jobs),
            shares=shares,
        )

    def alignment_state(self, job_id: str, now: Moment) -> AlignmentState | None:
        """The alignment of the nodes of a job, as a message; None: no such job runs."""
        job = self.job(job_id)
        if job is None:
            return None
        state = self.fleet.alignment_state(_nodes(job), now)
        return state.model_copy(update=self._alignment(job, now).fields())

    def _plan(self, job: JobRun, observed: BarrierObservation, now: Moment, primary: bool) -> Plan:
        last, received = self._planned.get(job.id, BarrierState()), self._received_plans.get(job.id)
        if received is not None and received.version <= last.plan.version:
            received = None
        if not primary:
            return received or last.plan
        base = take_over(last, received, job.newest_step) if received else last
        planned = self._phases.with_phase(job, last, decide(base, observed, now.boottime_ns))
        changes = self._policies.fields(job, base.plan) | self._groups.fields(job, base.plan, now)
        planned = self._planned[job.id] = with_changes(last, planned, changes)
        return planned.plan

    def _last_plan(self, job: JobRun) -> Plan:
        last, received = self._planned.get(job.id, BarrierState()).plan, self._received_plans.get(job.id)
        return received if received is not None and received.version > last.version else last

    def _state(self, job: JobRun, cached: CachedAnalysis, now: Moment, primary: bool) -> JobState:
        aligned = self._alignment(job, now)
        transfers_ns = _transfers_ns(cached.analysis.attribution.syncs)
        observed = BarrierObservation(job.run, job.newest_step, aligned, transfers_ns, cached.analysis.barriers)
        plan = self._plan(job, observed, now, primary)
        phases, groups = self._phases.reason(job), self._groups.reason(job)
        return JobState.model_validate(
            dict(cached.figures)
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
                "phase_reason": phases.text,
                "phase_reason_code": phases.code,
                "plan": plan,
                "groups_reason": groups.text,
                "groups_reason_code": groups.code,
            }
        )

    def _analyse(self, job: JobRun, now: Moment) -> CachedAnalysis | None:
        """
        The newest analysis of a job. A job is analysed again only after new marks, a slow analysis not in every round,
        and all of them together only up to a round's limit. None: a new job that waits for a later round.
        """
        known = self._analyses.get(job.id)
        if known is not None and known.run != job.run:
            known = None
        if self._marks_left <= 0 or (known is not None and known.is_current(job, now.boottime_ns)):
            return known
        self._marks_left -= min(job.size, MAX_ANALYSED_MARKS) + MARKS_A_RANK * len(job.ranks)
        before_ns = self._cpu_ns()
        analysis = analyse(job, self._verified_nodes(job, now))
        figures = job_figures(job, analysis)
        again_at_ns = now.boottime_ns + next_analysis_after_ns(self._cpu_ns() - before_ns, len(self._jobs))
        cached = self._analyses[job.id] = CachedAnalysis(analysis, figures, job.run, job.changes, again_at_ns)
        return cached

    def _verified_nodes(self, job: JobRun, now: Moment) -> dict[int, str]:
        """
        By rank, its node, if the node's own live state has the boot id of the marks: any process can claim a node's
        name.
        """
        nodes = {}
        for number, rank in job.ranks.items():
            clock = self.fleet.clock(rank.newest.node)
            if clock is not None and not clock.is_silent(now) and clock.boot_id == rank.newest.boot_id:
                nodes[number] = rank.newest.node
        return nodes

    def _alignment(self, job: JobRun, now: Moment) -> Alignment:
        if job.on_one_clock():
            return ONE_CLOCK
        if len(job.ranks) < job.world_size:
            missing = f"{len(job.ranks)} of {job.world_size} ranks reporting"
            return unknown_alignment(missing, StateReason.RANKS_MISSING)
        for rank in job.ranks.values():
            clock = self.fleet.clock(rank.newest.node)
            if clock is not None and rank.newest.boot_id != clock.boot_id:
                other = f"{rank.newest.node}: the marks of rank {rank.newest.rank} and the node's state are of different boots"
                return unknown_alignment(other, StateReason.OTHER_BOOT_OF_RANK)
        return self.fleet.alignment(_nodes(job), now)


def _nodes(job: JobRun) -> list[str]:
    return sorted({rank.newest.node for rank in job.ranks.values()})


def _transfers_ns(syncs: Sequence[Sync]) -> list[int]:
    barriers = [sync.comparison for sync in syncs if sync.kind == Kind.BARRIER]
    return [comparison.transfer_ns for comparison in barriers if comparison is not None]


#: A hub publishes its state at this interval, and at once when it becomes primary or ceases to be.
STATE_EVERY_NS = 2 * NS_PER_S

#: A hub without a new state for this long is gone.
GONE_AFTER_NS = 15 * NS_PER_S

#: Other hubs that are known at once: a client that may write every topic can invent names.
MAX_HUBS = 16

#: A hub that connects first receives for this long: three states of every other hub.
LISTEN_NS = 3 * STATE_EVERY_NS


class Primary:
    """
    Whether the hub `name` is primary. It first listens whenever it was disconnected so long that the other hubs count
    it as gone. A primary hub remains so until an earlier one by name publishes that it is primary; for the duration of
    one message both are.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._received: dict[str, tuple[HubState, int]] = {}
        self._connected_ns: int | None = None
        self._listen_until_ns = 0
        self._is_primary = False

    def accept(self, state: HubState, received_boottime_ns: int, live: bool) -> bool:
        """
        The state of another hub. A retained copy is ignored: it may be of any age. False: there are too many hubs, and this new
        one is ignored.
        """
        if not live or state.node == self._name:
            return True
        if state.node not in self._received and len(self._received) >= MAX_HUBS:
            return False
        self._received[state.node] = (state, received_boottime_ns)
        return True

    def advance(self, now_boottime_ns: int, connected: bool = True) -> bool:
        """
        Whether it is primary from now on; to be called about once a second. It is not primary once it was disconnected
        so long that the other hubs count it as gone, so the first state that it publishes after that says so.
        """
        if not connected:
            is_gone = self._connected_ns is None or now_boottime_ns - self._connected_ns >= GONE_AFTER_NS
            self._is_primary = self._is_primary and not is_gone
            return self._is_primary
        if self._connected_ns is None or now_boottime_ns - self._connected_ns >= GONE_AFTER_NS:
            self._is_primary, self._listen_until_ns = False, now_boottime_ns + LISTEN_NS
        self._connected_ns = now_boottime_ns
        first = [state for state in self.alive(now_boottime_ns) if state.node < self._name]
        if self._is_primary:
            self._is_primary = not any(state.primary for state in first)
        else:
            self._is_primary = not first and now_boottime_ns >= self._listen_until_ns
        return self._is_primary

    def alive(self, now_boottime_ns: int) -> list[HubState]:
        """The states of the other hubs that are not gone, by name."""
        self._received = {
            name: (state, received_ns)
            for name, (state, received_ns) in sorted(self._received.items())
            if now_boottime_ns - received_ns < GONE_AFTER_NS
        }
        return [state for state, _ in self._received.values()]
