"""The jobs of each link as the planner of phases needs them, and its phases as parts of their plans. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.registry import Fleet
from timesyncd.hub.barrier_plan import Planned, amended
from timesyncd.hub.phase_fit import FEWEST_STEPS, StepTimes
from timesyncd.hub.phases import LinkPlan, Member, Slot, decide
from timesyncd.ipc.job_datagram import Kind
from timesyncd.ipc.job_segment import Phase
from timesyncd.jobs.joining import Job
from timesyncd.jobs.window import StepRecord
from timesyncd.messages.jobs import Phase as PhaseMessage
from timesyncd.messages.jobs import Plan

#: Steps are tens of milliseconds to seconds, and a plan is for minutes.
LOOK_EVERY_NS = 3 * NS_PER_S


class JobPhases:
    """The plans of all links. Never reads a clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._links: dict[str, LinkPlan] = {}
        self._looked_ns: int | None = None

    def advance(self, jobs: Iterable[Job], told: Mapping[str, Plan], now: Moment) -> None:
        """One round. `told`: by job the plan that its ranks were told last, whoever made it."""
        if self._looked_ns is not None and now.boottime_ns - self._looked_ns < LOOK_EVERY_NS:
            return
        self._looked_ns = now.boottime_ns
        on_link: dict[str, list[Job]] = {}
        for job in jobs:
            if (link := self.link(job)) is not None:
                on_link.setdefault(link, []).append(job)
        self._links = {link: self._decide(link, on_it, told, now) for link, on_it in on_link.items()}

    def link(self, job: Job) -> str | None:
        """The one link that is named by nodes of the job; None: none is, or several are, and then the job is left alone."""
        clocks = (self._fleet.clock(node) for node in set(job.nodes.values()))
        links = {clock.link for clock in clocks if clock is not None and clock.link}
        return links.pop() if len(links) == 1 else None

    def reason(self, job: Job) -> str:
        """How the plan of the job's link came about, or why there is none; empty: it is on no link."""
        link = self.link(job)
        return "" if link is None else self._links.get(link, LinkPlan()).reason

    def attached(self, job: Job, last: Planned, planned: Planned) -> Planned:
        """
        What is planned for a job's barrier, with its phase: another phase is a plan of another version. While this hub knows too few steps, as
        after a restart, what was planned stands.
        """
        slot = self._slot(job)
        if slot is None and len(job.steps) <= FEWEST_STEPS:
            return planned
        phase = message_of(slot.phase) if slot is not None else None
        if phase == planned.plan.phase:
            return planned
        changes: dict[str, object] = {"phase": phase}
        if slot is not None and slot.from_step > job.newest_step:
            # The plan is judged from then on. To a barrier an earlier step does no harm: rank 0 alone decides on it.
            changes["from_step"] = slot.from_step
        return amended(last, planned, changes)

    def _slot(self, job: Job) -> Slot | None:
        plans = (plan.slots.get(job.id) for plan in self._links.values())
        return next((slot for slot in plans if slot is not None and slot.run == job.run), None)

    def _decide(self, link: str, jobs: list[Job], told: Mapping[str, Plan], now: Moment) -> LinkPlan:
        last = self._links.get(link, LinkPlan())
        if len(jobs) < 2 and not last.slots:
            return replace(last, reason="no other job on this link")
        members = [_member(job, told.get(job.id)) for job in jobs]
        return decide(last, members, self._alignment_ns(jobs, now), now.boottime_ns)

    def _alignment_ns(self, jobs: Iterable[Job], now: Moment) -> int | None:
        """How far the clocks may be apart that all these jobs' ranks read."""
        ranks = [rank for job in jobs for rank in job.ranks.values()]
        if len({rank.clock for rank in ranks}) == 1:
            return 0
        return self._fleet.alignment(sorted({rank.newest.node for rank in ranks}), now).alignment_ns


def step_times(records: Iterable[StepRecord], world_size: int) -> list[StepTimes]:
    """Of the steps that all ranks marked, and in which a synchronization compares. A barrier sends nothing worth a place."""
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


def message_of(phase: Phase) -> PhaseMessage:
    return PhaseMessage(period_ns=phase.period_ns, shift_ns=phase.shift_ns, hold_share_ppm=phase.hold_share_ppm)


def _member(job: Job, told: Plan | None) -> Member:
    phase = told.phase if told is not None else None
    return Member(
        job=job.id,
        run=job.run,
        steps=step_times(job.steps, job.world_size),
        newest_step=job.newest_step,
        told=None if phase is None else Phase(phase.period_ns, phase.shift_ns, phase.hold_share_ppm),
    )
