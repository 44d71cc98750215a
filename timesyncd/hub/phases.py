"""
Phase shifts for jobs that share a link, so that they send in turn (CASSINI's idea). Pure: time is an argument.

A plan is made only where every job would be clearly faster than it is measured without one. It is abandoned where a job
is not: the link is not shared, the fit was wrong, or a job does not keep its phase. Jobs that do not fit are left
alone. `JobPhases` brings the jobs of each link to the planner, and their phases into the jobs' plans.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.registry import Fleet
from timesyncd.hub.barrier_plan import BarrierState, with_changes
from timesyncd.hub.phase_fit import (
    MIN_STEPS,
    Fit,
    Load,
    PeriodicSend,
    StepTimes,
    arrangements,
    drift_ns,
    fit,
    sending_share,
)
from timesyncd.ipc.job_datagram import Kind
from timesyncd.ipc.job_segment import Phase, Plan
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.jobs.joining import JobRun
from timesyncd.jobs.window import StepRecord
from timesyncd.messages.jobs import PhaseReason
from timesyncd.units import duration_text

#: The most jobs on a link that are planned together.
MAX_JOBS = 8

#: In parts per thousand of its step: every job must become faster by the first, and stay faster by the second.
GAIN, KEPT_GAIN = 50, 20

#: A plan reaches the ranks through the hub's round, the broker and the node's daemon.
AHEAD_NS = 3 * NS_PER_S
MIN_STEPS_AHEAD = 3

#: After a plan's first step the jobs need some steps to settle.
SETTLE_STEPS = 10

#: A plan stays for at least this long unless it is abandoned; CASSINI also changes its plans less than twice a minute.
REPLAN_AFTER_NS = 30 * NS_PER_S

#: A job is placed again when its sending, or its period, deviates by more than this part per thousand of the period.
DRIFT = 50

#: An abandoned plan is tried again after the first, then after twice as long each time.
RETRY_AFTER_NS, MAX_RETRY_NS = 300 * NS_PER_S, 3600 * NS_PER_S

#: A job's holds stay below one period, which is the cost of moving to another phase at once (docs/phases.md).
HOLD_SHARE_PPM = 1_000_000

#: A job without a step for this long, and for so many of its steps, is inactive.
SILENT_AFTER_NS, SILENT_STEPS = 5 * NS_PER_S, 5

#: A job without a phase that sends for more of its time than this leaves no room for the others.
HEAVY_SENDER = 0.125

#: A plan needs clocks that are at most one part in so many of a period apart.
CLOCKS_WITHIN = 50

PhaseExplanation = CodedReason[PhaseReason]

NOT_PLANNED = CodedReason(PhaseReason.NOT_PLANNED, "the hub has made no plan for this link yet")
ADOPTED = CodedReason(PhaseReason.ADOPTED, "as another hub planned")
NO_COMMON_PERIOD = CodedReason(PhaseReason.NO_COMMON_PERIOD, "the jobs' periods do not fit into a common one")
CLOCKS_UNKNOWN = CodedReason(
    PhaseReason.CLOCKS_UNKNOWN, "the clocks of the jobs on the link are not aligned well enough"
)


@dataclass(frozen=True, slots=True)
class Member:
    """
    A job on a link: its newest steps in order, the phase that was published to its ranks last, if any, and how much its
    time counts.
    """

    job: str
    run: int
    steps: Sequence[StepTimes]
    newest_step: int
    published: Phase | None = None
    priority: int = 1


@dataclass(frozen=True, slots=True)
class Slot:
    """
    One job's part of a plan, from the step with the key `from_step` on: it sends where the common clock modulo the
    period is `sends_ns`. `before_ns` is its mean step without a plan, `rest_ns` its time between steps (None: another
    hub measured them).
    """

    run: int
    phase: Phase
    sends_ns: int
    from_step: int
    before_ns: int | None = None
    rest_ns: int | None = None

    @property
    def judged_from(self) -> int:
        """The first step by which the plan is judged."""
        return self.from_step + SETTLE_STEPS


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """
    The plan of a link. `free_from`: by job and run, the first step after a plan was abandoned. Times are
    CLOCK_BOOTTIME.
    """

    slots: Mapping[str, Slot] = field(default_factory=dict)
    free_from: Mapping[tuple[str, int], int] = field(default_factory=dict)
    made_ns: int = 0
    retry_at_ns: int = 0
    failures: int = 0
    reason: PhaseExplanation = NOT_PLANNED


def steps_ahead(period_ns: int) -> int:
    """How many steps after the newest one known a plan begins."""
    return max(MIN_STEPS_AHEAD, -(-AHEAD_NS // max(1, period_ns)))


def decide(last: LinkPlan, members: Sequence[Member], alignment_ns: int | None, now_ns: int) -> LinkPlan:
    """
    The link's plan from now on. `alignment_ns`: how far the clocks of all these jobs' nodes may be apart; None:
    unknown.
    """
    members = _active(members)
    if not last.slots and any(member.published for member in members):
        last = _adopted(last, members, now_ns)
    if last.slots:
        changed = _changed(last, members, alignment_ns)
        failed = _failed(last, members)
        if reason := changed or failed:
            return _abandoned(last, members, reason, failed is not None, now_ns)
    if len(members) < 2 or now_ns < last.retry_at_ns or (last.slots and now_ns - last.made_ns < REPLAN_AFTER_NS):
        return last
    if len(members) > MAX_JOBS:
        reason = CodedReason(
            PhaseReason.TOO_MANY_JOBS, f"{len(members)} jobs on the link; at most {MAX_JOBS} are planned"
        )
        return last if last.slots else replace(last, reason=reason)
    fitted = _fitted(last, members)
    if last.slots and not _has_drifted(last, fitted, members):
        return last
    return _planned(last, members, fitted, alignment_ns, now_ns)


def _active(members: Sequence[Member]) -> list[Member]:
    """
    The jobs that still make steps: a job that was killed, or that evaluates its model, occupies no time on the link.
    """
    newest_ns = max((member.steps[-1].end_ns for member in members if member.steps), default=0)
    return [
        member for member in members if member.steps and newest_ns - member.steps[-1].end_ns <= _patience_ns(member)
    ]


def _patience_ns(member: Member) -> int:
    steps = member.steps[-MIN_STEPS:]
    return SILENT_AFTER_NS + SILENT_STEPS * (steps[-1].end_ns - steps[0].start_ns) // len(steps)


def _adopted(last: LinkPlan, members: Sequence[Member], now_ns: int) -> LinkPlan:
    """
    The plan of another hub that has stopped: the jobs keep their phases, and the time at which they send now is their
    slot.
    """
    slots = {}
    for member in members:
        if member.published is not None and len(member.steps) >= MIN_STEPS:
            at_ns = member.steps[-1].sends_ns % member.published.period_ns
            slots[member.job] = Slot(member.run, member.published, at_ns, member.newest_step)
    return replace(last, slots=slots, made_ns=now_ns, reason=ADOPTED) if len(slots) > 1 else last


def _changed(last: LinkPlan, members: Sequence[Member], alignment_ns: int | None) -> PhaseExplanation | None:
    """The change outside the plan that ends it; None: nothing has changed."""
    newcomer = _heavy_newcomer(members, last.slots)
    if newcomer:
        return CodedReason(PhaseReason.JOB_ARRIVED, f"{newcomer} arrived on the link")
    runs = {member.job: member.run for member in members}
    for job, slot in last.slots.items():
        if runs.get(job) != slot.run:
            return CodedReason(PhaseReason.JOB_LEFT, f"{job} ended, paused or restarted")
        if not _are_aligned(alignment_ns, slot.phase.period_ns):
            return CLOCKS_UNKNOWN
    return None


def _are_aligned(alignment_ns: int | None, period_ns: int) -> bool:
    return alignment_ns is not None and alignment_ns * CLOCKS_WITHIN <= period_ns


def _failed(last: LinkPlan, members: Sequence[Member]) -> PhaseExplanation | None:
    """Why the plan in force does not make the jobs faster; None: it does, or too few steps are known."""
    for member in members:
        slot, steps = last.slots.get(member.job), _judged_steps(last, member)
        if slot is None or slot.before_ns is None or len(steps) <= MIN_STEPS:
            continue
        lasted_ns = (steps[-1].start_ns - steps[0].start_ns) // (len(steps) - 1)
        if lasted_ns * (1000 + KEPT_GAIN) > slot.before_ns * 1000:
            return CodedReason(
                PhaseReason.STEPS_NOT_FASTER,
                f"a step of {member.job} takes {duration_text(lasted_ns)}; it took {duration_text(slot.before_ns)} without a plan",
            )
    return None


def _judged_steps(last: LinkPlan, member: Member) -> list[StepTimes]:
    """The steps of a job by which the plan in force is judged; a job that restarted has none."""
    slot = last.slots.get(member.job)
    return [step for step in member.steps if slot and slot.run == member.run and step.step >= slot.judged_from]


def _is_judged(last: LinkPlan, members: Sequence[Member]) -> bool:
    """
    Whether the jobs that still follow the plan have made enough steps to judge it. Otherwise a job that arrives and
    leaves again and again could cause a new plan each time.
    """
    slots = ((member, last.slots.get(member.job)) for member in members)
    stay = [(member, slot) for member, slot in slots if slot is not None and slot.run == member.run]
    return all(slot.before_ns is None or len(_judged_steps(last, member)) > MIN_STEPS for member, slot in stay)


def _abandoned(
    last: LinkPlan, members: Sequence[Member], reason: PhaseExplanation, failed: bool, now_ns: int
) -> LinkPlan:
    """
    No plan: all jobs are measured again. After a plan that failed the next attempt waits long, after one that was never
    judged for a short time, after one that made the jobs faster not at all.
    """
    is_unproven = failed or not _is_judged(last, members)
    failures = last.failures + 1 if is_unproven else 0
    wait_ns = min(MAX_RETRY_NS, (RETRY_AFTER_NS if failed else REPLAN_AFTER_NS) << failures - 1) if is_unproven else 0
    free_from = {(member.job, member.run): member.newest_step + MIN_STEPS_AHEAD for member in members}
    explained = CodedReason(reason.code, f"plan abandoned: {reason.text}")
    return LinkPlan({}, free_from, now_ns, now_ns + wait_ns, failures, explained)


def _heavy_newcomer(members: Sequence[Member], placed: Container[str]) -> str | None:
    """A job without a slot that sends too much for the others; a job of which few steps are known counts as one."""
    for member in members:
        few = len(member.steps) < MIN_STEPS
        if member.job not in placed and (few or sending_share(member.steps) > HEAVY_SENDER):
            return member.job
    return None


class _FittedJob(NamedTuple):
    """A job that has a fit, and the first step of a plan that is made now."""

    run: int
    fitted: Fit
    from_step: int
    before_ns: int | None
    is_placed: bool
    priority: int

    @property
    def load(self) -> Load:
        """Its load on the link; it sends next as it does in that step if nothing changes."""
        newest, fitted = self.fitted.newest, self.fitted
        sends_ns = newest.sends_ns + (self.from_step - newest.step) * fitted.period_ns
        return Load(fitted.alone_ns, fitted.slow_ns, fitted.arc_ns, sends_ns, self.priority)

    def gains(self, send: PeriodicSend) -> bool:
        before_ns = self.before_ns if self.is_placed else self.fitted.period_ns
        return before_ns is None or send.period_ns * (1000 + GAIN) <= before_ns * 1000

    def slot(self, send: PeriodicSend) -> Slot:
        shift_ns = (send.sends_ns - self.fitted.offset_ns) % send.period_ns
        phase = Phase(send.period_ns, shift_ns, HOLD_SHARE_PPM)
        return Slot(self.run, phase, send.sends_ns, self.from_step, self.before_ns, self.fitted.rest_ns)


def _fitted(last: LinkPlan, members: Sequence[Member]) -> dict[str, _FittedJob]:
    """The jobs that have a fit. Its steps are all without a plan, or all under this one."""
    found = {}
    for member in members:
        slot = last.slots.get(member.job)
        since = slot.judged_from if slot is not None else last.free_from.get((member.job, member.run), 0)
        steps = [step for step in member.steps if step.step >= since]
        others = [other.steps for other in members if other.job != member.job]
        fitted = fit(steps, others, slot.phase if slot else None, slot.rest_ns if slot else None)
        if isinstance(fitted, Fit):
            from_step = member.newest_step + steps_ahead(fitted.period_ns)
            before_ns = slot.before_ns if slot else fitted.mean_ns
            found[member.job] = _FittedJob(member.run, fitted, from_step, before_ns, slot is not None, member.priority)
    return found


def _has_drifted(last: LinkPlan, fitted: Mapping[str, _FittedJob], members: Sequence[Member]) -> bool:
    """Whether a job has left its slot, as one that needs longer steps does, or all jobs could have shorter periods."""
    for member in members:
        slot = last.slots.get(member.job)
        if slot is None or member.job not in fitted:
            continue
        period_ns = slot.phase.period_ns
        steps = [step for step in member.steps if step.step >= slot.judged_from][-MIN_STEPS:]
        if abs(drift_ns(steps, slot.sends_ns, period_ns)) * 1000 > DRIFT * period_ns:
            return True
    return _is_loose(last, fitted)


def _is_loose(last: LinkPlan, fitted: Mapping[str, _FittedJob]) -> bool:
    """
    Whether the same jobs could have clearly shorter periods: then each step waits for its slot longer than necessary.
    """
    if fitted.keys() != last.slots.keys() or any(slot.rest_ns is None for slot in last.slots.values()):
        return False
    best = next(arrangements({job: each.load for job, each in fitted.items()}), {})
    shorter = [send.period_ns * (1000 + DRIFT) < last.slots[job].phase.period_ns * 1000 for job, send in best.items()]
    return bool(shorter) and all(shorter)


def _planned(
    last: LinkPlan, members: Sequence[Member], fitted: Mapping[str, _FittedJob], alignment_ns: int | None, now_ns: int
) -> LinkPlan:
    """A new plan, or the last one with the reason why there is none. A job that would not become faster is left out."""
    loads = {job: each.load for job, each in fitted.items()}
    while len(loads) > 1:
        newcomer = _heavy_newcomer(members, loads)
        if newcomer is not None:
            return replace(last, reason=_no_room(newcomer))
        worst = None
        for found in arrangements(loads):
            loser = next((job for job, send in found.items() if not fitted[job].gains(send)), None)
            if loser is None:
                return _made(last, {job: fitted[job].slot(send) for job, send in found.items()}, alignment_ns, now_ns)
            worst = worst or loser
        if worst is None:
            return replace(last, reason=NO_COMMON_PERIOD)
        del loads[worst]
    text = f"{len(fitted)} of {len(members)} jobs have a stable period; fewer than two would become faster"
    return replace(last, reason=CodedReason(PhaseReason.NO_GAIN, text))


def _no_room(job: str) -> PhaseExplanation:
    text = f"{job} has no stable period, or would not become faster, and sends too much for the others"
    return CodedReason(PhaseReason.NO_STABLE_PERIOD, text)


def _made(last: LinkPlan, slots: Mapping[str, Slot], alignment_ns: int | None, now_ns: int) -> LinkPlan:
    if not all(_are_aligned(alignment_ns, slot.phase.period_ns) for slot in slots.values()):
        return replace(last, reason=CLOCKS_UNKNOWN)
    explained = CodedReason(PhaseReason.INTERLEAVED, f"{len(slots)} jobs send in turn")
    return LinkPlan(slots, last.free_from, now_ns, 0, last.failures, explained)


#: Steps take tens of milliseconds to seconds, and a plan lasts for minutes.
PLAN_EVERY_NS = 3 * NS_PER_S


NOT_ON_A_LINK = CodedReason(PhaseReason.NOT_ON_A_LINK, "")
NO_OTHER_JOB = CodedReason(PhaseReason.NO_OTHER_JOB, "no other job is on this link")


class JobPhases:
    """The plans of all links. Never reads a clock. `priorities`: by job name; 1 for all others."""

    def __init__(self, fleet: Fleet, priorities: Mapping[str, int] | None = None) -> None:
        self._fleet, self._priorities = fleet, priorities or {}
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
        members = [_member(job, plans.get(job.id), self._priorities.get(job.name, 1)) for job in jobs]
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


def _member(job: JobRun, plan: Plan | None, priority: int) -> Member:
    return Member(
        job=job.id,
        run=job.run,
        steps=step_times(job.steps, job.world_size),
        newest_step=job.newest_step,
        published=plan.phase if plan is not None else None,
        priority=priority,
    )
