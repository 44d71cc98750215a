"""The jobs of each link as the phase planner needs them, and its phases as parts of the jobs' plans. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.registry import Fleet
from timesyncd.hub.barrier_plan import BarrierState, with_changes
from timesyncd.hub.phase_fit import MIN_STEPS, StepTimes
from timesyncd.hub.phases import LinkPlan, Member, PhaseExplanation, Slot, decide
from timesyncd.ipc.job_datagram import Kind
from timesyncd.ipc.job_segment import Plan
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.jobs.joining import JobRun
from timesyncd.jobs.window import StepRecord
from timesyncd.messages.jobs import PhaseReason

#: Steps take tens of milliseconds to seconds, and a plan lasts for minutes.
PLAN_EVERY_NS = 3 * NS_PER_S


NOT_ON_A_LINK = CodedReason(PhaseReason.NOT_ON_A_LINK, "")
NO_OTHER_JOB = CodedReason(PhaseReason.NO_OTHER_JOB, "no other job is on this link")


class JobPhases:
    """The plans of all links. Never reads a clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._links: dict[str, LinkPlan] = {}
        self._planned_ns: int | None = None

    def advance(self, jobs: Iterable[JobRun], plans: Mapping[str, Plan], now: Moment) -> None:
        """One round. `plans`: by job the plan that was published to its ranks last, by any hub."""
        if self._planned_ns is not None and now.boottime_ns - self._planned_ns < PLAN_EVERY_NS:
            return
        self._planned_ns = now.boottime_ns
        on_link: dict[str, list[JobRun]] = {}
        for job in jobs:
            if (link := self.link(job)) is not None:
                on_link.setdefault(link, []).append(job)
        self._links = {link: self._decide(link, on_it, plans, now) for link, on_it in on_link.items()}

    def link(self, job: JobRun) -> str | None:
        """
        The one link that the nodes of the job name; None: they name none, or several, and then the job is left alone.
        """
        clocks = (self._fleet.clock(node) for node in set(job.nodes.values()))
        links = {clock.link for clock in clocks if clock is not None and clock.link}
        return links.pop() if len(links) == 1 else None

    def reason(self, job: JobRun) -> PhaseExplanation:
        """How the plan of the job's link came about, or why there is none."""
        link = self.link(job)
        return NOT_ON_A_LINK if link is None else self._links.get(link, LinkPlan()).reason

    def with_phase(self, job: JobRun, last: BarrierState, planned: BarrierState) -> BarrierState:
        """
        The plan of a job with its phase; another phase is a plan of another version. While this hub knows too few
        steps, as after a restart, the phase in the plan stays.
        """
        slot = self._slot(job)
        if slot is None and len(job.steps) <= MIN_STEPS:
            return planned
        phase = slot.phase if slot is not None else None
        if phase == planned.plan.phase:
            return planned
        changes: dict[str, object] = {"phase": phase}
        if slot is not None and slot.from_step > job.newest_step:
            # The plan is judged from then on. An earlier step does no harm to a barrier, since rank 0 alone decides on
            # it.
            changes["from_step"] = slot.from_step
        return with_changes(last, planned, changes)

    def _slot(self, job: JobRun) -> Slot | None:
        plans = (plan.slots.get(job.id) for plan in self._links.values())
        return next((slot for slot in plans if slot is not None and slot.run == job.run), None)

    def _decide(self, link: str, jobs: list[JobRun], plans: Mapping[str, Plan], now: Moment) -> LinkPlan:
        last = self._links.get(link, LinkPlan())
        if len(jobs) < 2 and not last.slots:
            return replace(last, reason=NO_OTHER_JOB)
        members = [_member(job, plans.get(job.id)) for job in jobs]
        return decide(last, members, self._alignment_ns(jobs, now), now.boottime_ns)

    def _alignment_ns(self, jobs: Iterable[JobRun], now: Moment) -> int | None:
        """How far the clocks of all these jobs' ranks may be apart; None: unknown."""
        ranks = [rank for job in jobs for rank in job.ranks.values()]
        if len({rank.clock for rank in ranks}) == 1:
            return 0
        return self._fleet.alignment(sorted({rank.newest.node for rank in ranks}), now).alignment_ns


def step_times(records: Iterable[StepRecord], world_size: int) -> list[StepTimes]:
    """
    The times of the steps that all ranks marked and in which a synchronization compares. A barrier sends too little to
    count.
    """
    found = []
    for record in records:
        syncs = [sync for sync in record.syncs.values() if sync.comparison is not None and sync.kind != Kind.BARRIER]
        if len(record.marks) < world_size or not syncs:
            continue
        times = StepTimes(
            step=syncs[0].step,
            start_ns=max(mark.arrival_ns for mark in record.marks.values()),
            end_ns=max(mark.end_ns for mark in record.marks.values()),
            sends_ns=min(max(arrival.arrival_ns for arrival in sync.arrivals.values()) for sync in syncs),
            sent_ns=max(arrival.end_ns for sync in syncs for arrival in sync.arrivals.values()),
        )
        if times.start_ns <= times.sends_ns < times.sent_ns:
            found.append(times._replace(end_ns=max(times.end_ns, times.sent_ns)))
    return found


def _member(job: JobRun, plan: Plan | None) -> Member:
    return Member(
        job=job.id,
        run=job.run,
        steps=step_times(job.steps, job.world_size),
        newest_step=job.newest_step,
        published=plan.phase if plan is not None else None,
    )
