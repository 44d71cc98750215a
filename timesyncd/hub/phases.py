"""
Time shifts for jobs that share a link, so that they send by turns (CASSINI's idea). Pure: what was planned last and what is seen now.

A plan is made only where every job would then be clearly faster than it is measured, and given up where it is not: a link that is not shared, a
fit that was wrong, a job that does not hold. Whatever does not fit is left alone.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S
from timesyncd.hub.phase_fit import FEWEST_STEPS, Fit, Load, Place, StepTimes, drift_ns, fit, places, sending_share
from timesyncd.ipc.job_segment import Phase

#: Jobs on a link that are looked at together at most.
MOST_JOBS = 8

#: Every job must become faster than it is by this part in a thousand, and stay so by the second.
GAIN, KEPT_GAIN = 50, 20

#: A plan's way to the ranks: the hub's round, a broker, the node's daemon.
AHEAD_NS = 3 * NS_PER_S
LEAST_STEPS_AHEAD = 3

#: After a plan's first step jobs need some steps to find their places.
SETTLE_STEPS = 10

#: A plan stays for this long at least, unless it is given up; CASSINI's are changed less than twice a minute, too.
REPLAN_AFTER_NS = 30 * NS_PER_S

#: Off its place by more than this part in a thousand of its period, or its period off by that, and a job is placed anew.
DRIFT = 50

#: What was given up is tried again after this, then twice as long after each time.
RETRY_AFTER_NS, MOST_RETRY_NS = 300 * NS_PER_S, 3600 * NS_PER_S

#: All of a job's holds are below one period, which is what it costs to move from one place to the next at once (docs/phases.md).
HOLD_SHARE_PPM = 1_000_000

#: A job that made no step for so long, and for so many of its steps, is away.
SILENT_AFTER_NS, SILENT_STEPS = 5 * NS_PER_S, 5

#: A job without a place that sends for more of its time than this leaves the others none.
HEAVY = 0.125

#: Clocks that may be further apart than this part of a period find no common place in it.
CLOCKS_WITHIN = 50


CLOCKS_UNKNOWN = "the clocks of the jobs on the link are not known well enough"


@dataclass(frozen=True, slots=True)
class Member:
    """A job on a link: its newest steps in order, and the phase that its ranks were told last, if any."""

    job: str
    run: int
    steps: Sequence[StepTimes]
    newest_step: int
    told: Phase | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """
    One job's part of a plan, from the step with the key `from_step` on: `sends_ns` is its place modulo the period. `before_ns` is its
    mean step without a plan, `rest_ns` its time between steps (None: another hub knew).
    """

    run: int
    phase: Phase
    sends_ns: int
    from_step: int
    before_ns: int | None = None
    rest_ns: int | None = None

    @property
    def judged_from(self) -> int:
        """The first step that says how well the plan does."""
        return self.from_step + SETTLE_STEPS


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """What is planned for a link; `free_from` are the first steps, by job and run, after a plan was given up. Times are CLOCK_BOOTTIME."""

    slots: Mapping[str, Slot] = field(default_factory=dict)
    free_from: Mapping[tuple[str, int], int] = field(default_factory=dict)
    made_ns: int = 0
    retry_at_ns: int = 0
    failures: int = 0
    reason: str = "nothing planned yet"


def steps_ahead(period_ns: int) -> int:
    """How many steps after the newest one known a plan begins."""
    return max(LEAST_STEPS_AHEAD, -(-AHEAD_NS // max(1, period_ns)))


def decide(last: LinkPlan, members: Sequence[Member], alignment_ns: int | None, now_ns: int) -> LinkPlan:
    """The link's plan from now on. `alignment_ns`: how far the clocks of all these jobs' nodes may be apart; None: unknown."""
    members = _active(members)
    if not last.slots and any(member.told for member in members):
        last = _adopted(last, members, now_ns)
    if last.slots:
        changed = _changed(last, members, alignment_ns)
        failed = _failed(last, members)
        if changed or failed:
            return _given_up(last, members, changed, failed, now_ns)
    if len(members) < 2 or now_ns < last.retry_at_ns or (last.slots and now_ns - last.made_ns < REPLAN_AFTER_NS):
        return last
    if len(members) > MOST_JOBS:
        return last if last.slots else replace(last, reason=f"{len(members)} jobs on the link, more than {MOST_JOBS}")
    seen = _seen(last, members)
    if last.slots and not _is_off(last, seen, members):
        return last
    return _planned(last, members, seen, alignment_ns, now_ns)


def _active(members: Sequence[Member]) -> list[Member]:
    """Those that still make steps: one that was killed, or evaluates, stands in nobody's way."""
    newest_ns = max((member.steps[-1].end_ns for member in members if member.steps), default=0)
    return [
        member for member in members if member.steps and newest_ns - member.steps[-1].end_ns <= _patience_ns(member)
    ]


def _patience_ns(member: Member) -> int:
    steps = member.steps[-FEWEST_STEPS:]
    return SILENT_AFTER_NS + SILENT_STEPS * (steps[-1].end_ns - steps[0].start_ns) // len(steps)


def _adopted(last: LinkPlan, members: Sequence[Member], now_ns: int) -> LinkPlan:
    """Another hub placed these jobs, and is no more: they keep their phases, and where they send now is their place."""
    slots = {}
    for member in members:
        if member.told is not None and len(member.steps) >= FEWEST_STEPS:
            at_ns = member.steps[-1].sends_ns % member.told.period_ns
            slots[member.job] = Slot(member.run, member.told, at_ns, member.newest_step)
    return replace(last, slots=slots, made_ns=now_ns, reason="as another hub planned") if len(slots) > 1 else last


def _changed(last: LinkPlan, members: Sequence[Member], alignment_ns: int | None) -> str:
    """What ends the plan in force from outside; empty: nothing."""
    stranger = _stranger(members, last.slots)
    if stranger:
        return f"{stranger} came to the link"
    runs = {member.job: member.run for member in members}
    for job, slot in last.slots.items():
        if runs.get(job) != slot.run:
            return f"{job} ended, pauses or began anew"
        if not _are_known(alignment_ns, slot.phase.period_ns):
            return CLOCKS_UNKNOWN
    return ""


def _are_known(alignment_ns: int | None, period_ns: int) -> bool:
    return alignment_ns is not None and alignment_ns * CLOCKS_WITHIN <= period_ns


def _failed(last: LinkPlan, members: Sequence[Member]) -> str:
    """Why the plan in force is none that serves; empty: it does, or few steps tell."""
    for member in members:
        slot, steps = last.slots.get(member.job), _judged_steps(last, member)
        if slot is None or slot.before_ns is None or len(steps) <= FEWEST_STEPS:
            continue
        lasted_ns = (steps[-1].start_ns - steps[0].start_ns) // (len(steps) - 1)
        if lasted_ns * (1000 + KEPT_GAIN) > slot.before_ns * 1000:
            return f"a step of {member.job} takes {lasted_ns} ns, and took {slot.before_ns} ns without a plan"
    return ""


def _judged_steps(last: LinkPlan, member: Member) -> list[StepTimes]:
    """Those of its steps that say how well the plan in force does; a job that began anew has none."""
    slot = last.slots.get(member.job)
    return [step for step in member.steps if slot and slot.run == member.run and step.step >= slot.judged_from]


def _is_judged(last: LinkPlan, members: Sequence[Member]) -> bool:
    """Whether the jobs that still hold to the plan have seen that it serves. Else who comes and goes could have plans made for ever."""
    slots = ((member, last.slots.get(member.job)) for member in members)
    stay = [(member, slot) for member, slot in slots if slot is not None and slot.run == member.run]
    return all(slot.before_ns is None or len(_judged_steps(last, member)) > FEWEST_STEPS for member, slot in stay)


def _given_up(last: LinkPlan, members: Sequence[Member], changed: str, failed: str, now_ns: int) -> LinkPlan:
    """All are measured anew. A plan that failed is not tried again soon, one that was never seen to serve not at once; one that did may be."""
    is_unproven = bool(failed) or not _is_judged(last, members)
    failures = last.failures + 1 if is_unproven else 0
    wait_ns = min(MOST_RETRY_NS, (RETRY_AFTER_NS if failed else REPLAN_AFTER_NS) << failures - 1) if is_unproven else 0
    free_from = {(member.job, member.run): member.newest_step + LEAST_STEPS_AHEAD for member in members}
    return LinkPlan({}, free_from, now_ns, now_ns + wait_ns, failures, f"given up: {changed or failed}")


def _stranger(members: Sequence[Member], placed: Container[str]) -> str | None:
    """A job that has no place and sends too much for the others to have any; few steps tell nothing yet, and count."""
    for member in members:
        few = len(member.steps) < FEWEST_STEPS
        if member.job not in placed and (few or sending_share(member.steps) > HEAVY):
            return member.job
    return None


class _Seen(NamedTuple):
    """A job that has a fit: what is known of it, and the first step that a plan made now is for."""

    run: int
    fitted: Fit
    from_step: int
    before_ns: int | None
    is_placed: bool

    @property
    def load(self) -> Load:
        """It sends next, in that step, as it does if all goes on as it did."""
        newest, fitted = self.fitted.newest, self.fitted
        sends_ns = newest.sends_ns + (self.from_step - newest.step) * fitted.period_ns
        return Load(fitted.alone_ns, fitted.slow_ns, fitted.arc_ns, sends_ns)

    def gains(self, place: Place) -> bool:
        before_ns = self.before_ns if self.is_placed else self.fitted.period_ns
        return before_ns is None or place.period_ns * (1000 + GAIN) <= before_ns * 1000

    def slot(self, place: Place) -> Slot:
        shift_ns = (place.sends_ns - self.fitted.offset_ns) % place.period_ns
        phase = Phase(place.period_ns, shift_ns, HOLD_SHARE_PPM)
        return Slot(self.run, phase, place.sends_ns, self.from_step, self.before_ns, self.fitted.rest_ns)


def _seen(last: LinkPlan, members: Sequence[Member]) -> dict[str, _Seen]:
    """The jobs that have a fit, by steps of one condition alone: all without a plan, or all under this one."""
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
            found[member.job] = _Seen(member.run, fitted, from_step, before_ns, slot is not None)
    return found


def _is_off(last: LinkPlan, seen: Mapping[str, _Seen], members: Sequence[Member]) -> bool:
    """Whether a job has left its place, as one that needs longer steps does, or all could do with less than the planned periods."""
    for member in members:
        slot = last.slots.get(member.job)
        if slot is None or member.job not in seen:
            continue
        period_ns = slot.phase.period_ns
        steps = [step for step in member.steps if step.step >= slot.judged_from][-FEWEST_STEPS:]
        if abs(drift_ns(steps, slot.sends_ns, period_ns)) * 1000 > DRIFT * period_ns:
            return True
    return _is_loose(last, seen)


def _is_loose(last: LinkPlan, seen: Mapping[str, _Seen]) -> bool:
    """Whether the same jobs could have clearly shorter periods: then each step waits for its place longer than it has to."""
    if seen.keys() != last.slots.keys() or any(slot.rest_ns is None for slot in last.slots.values()):
        return False
    best = next(places({job: each.load for job, each in seen.items()}), {})
    shorter = [place.period_ns * (1000 + DRIFT) < last.slots[job].phase.period_ns * 1000 for job, place in best.items()]
    return bool(shorter) and all(shorter)


def _planned(
    last: LinkPlan, members: Sequence[Member], seen: Mapping[str, _Seen], alignment_ns: int | None, now_ns: int
) -> LinkPlan:
    """A new plan, or the last one with the reason why there is none. A job that would not gain is left out."""
    loads = {job: each.load for job, each in seen.items()}
    while len(loads) > 1:
        stranger = _stranger(members, loads)
        if stranger is not None:
            return replace(last, reason=f"{stranger} has no stable period, or would not gain, and sends too much")
        worst = None
        for found in places(loads):
            loser = next((job for job, place in found.items() if not seen[job].gains(place)), None)
            if loser is None:
                return _made(last, {job: seen[job].slot(place) for job, place in found.items()}, alignment_ns, now_ns)
            worst = worst or loser
        if worst is None:
            return replace(last, reason="their periods fit into no common one")
        del loads[worst]
    return replace(last, reason=f"of {len(members)} jobs {len(seen)} have a stable period; fewer than two would gain")


def _made(last: LinkPlan, slots: Mapping[str, Slot], alignment_ns: int | None, now_ns: int) -> LinkPlan:
    if not all(_are_known(alignment_ns, slot.phase.period_ns) for slot in slots.values()):
        return replace(last, reason=CLOCKS_UNKNOWN)
    return LinkPlan(slots, last.free_from, now_ns, 0, last.failures, f"{len(slots)} jobs send by turns")
