"""
Holds the steps of a job to their places on the common clock, so that jobs that share a link send by turns.

A place is an instant at which the clock modulo the plan's period is the plan's shift. The law is simple, and docs/phases.md says why it
is this one: a step that is early is held until its place; one that is a little late goes at once, since the planned period is longer than
the job needs and so it catches up; one that is later than that gives up its place for the next one, if that is not too often.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from timesyncd.client.barrier import own_clock_bound
from timesyncd.client.job import Job
from timesyncd.ipc.job_datagram import step_text
from timesyncd.ipc.job_segment import Phase, Plan

#: A step that is late by at most this part of the period catches up.
CATCH_UP_DIVISOR = 16

#: A hold up to this part of the period is the ordinary wait for a place; a longer one moves the job to another place.
MOVE_DIVISOR = 2

#: A job moves twice at once, and then once in so many steps: where the period does not fit it, holding costs little.
MAX_MOVES, STEPS_PER_MOVE = 2, 8

#: A clock that is known no better than to this part of the period finds no place in it.
CLOCK_DIVISOR = 50

#: Longer periods are none that a step has.
MAX_PERIOD_NS = 60_000_000_000

_PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class StepDelay:
    """What became of one step's start: delayed by `held_ns`; `reason` says why not by more, empty: it is on its place."""

    held_ns: int
    reason: str


def delay_ns(phase: Phase, now_ns: int) -> int:
    """How long a step that could begin now is to be held; 0: it is on its place, or so little late that it catches up."""
    return min(_early_ns(phase, now_ns), phase.period_ns * phase.hold_share_ppm // _PPM)


def _early_ns(phase: Phase, now_ns: int) -> int:
    """How long until the place that the step is to take; 0: it takes the one that there is."""
    early_ns = (phase.shift_ns - now_ns) % phase.period_ns
    return 0 if (phase.period_ns - early_ns) * CATCH_UP_DIVISOR <= phase.period_ns else early_ns


def is_sane(phase: Phase) -> bool:
    """Whether a hold by it is bounded as promised: memory that others write is not believed blindly."""
    return 0 < phase.period_ns <= MAX_PERIOD_NS and 0 <= phase.hold_share_ppm <= _PPM


class StepPacer:
    """The law with its memory: which phase is in force, and how often the job may still move. Time is an argument."""

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._credit = 0
        self._step = -1

    def hold(self, step: int, plan: Plan, now_ns: int) -> StepDelay:
        """How long the step with this key is to be held. A planned phase goes on until the next one's first step."""
        self._follow(step, plan)
        phase = self._phase
        if phase is None:
            return StepDelay(
                0, f"the phase begins with step {step_text(plan.from_step)}" if plan.phase else "no phase is planned"
            )
        hold_ns = delay_ns(phase, now_ns)
        if hold_ns * MOVE_DIVISOR > phase.period_ns:
            if self._credit < STEPS_PER_MOVE:
                return StepDelay(0, "late, and it moved to another place too often")
            self._credit -= STEPS_PER_MOVE
        if hold_ns < (early_ns := _early_ns(phase, now_ns)):
            return StepDelay(hold_ns, f"{early_ns - hold_ns} ns before its place: the plan's share holds it no longer")
        late_ns = (now_ns - phase.shift_ns) % phase.period_ns
        return StepDelay(hold_ns, "" if hold_ns or not late_ns else f"late by {late_ns} ns: it catches up")

    def _follow(self, step: int, plan: Plan) -> None:
        if step != self._step:
            self._step = step
            self._credit = min(self._credit + 1, MAX_MOVES * STEPS_PER_MOVE)
        if plan.phase is None:
            self._phase = None
        elif step >= plan.from_step and plan.phase != self._phase:
            self._phase = plan.phase if is_sane(plan.phase) else None
            self._credit = MAX_MOVES * STEPS_PER_MOVE


class PhaseScheduler:
    """
    One rank's holds. It needs a job whose marks reach a hub, STEP marks among them, and a link that the hub knows to be shared;
    without any of it no step is ever held.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pacer = StepPacer()

    def before_step(self, step: int) -> StepDelay:
        """
        To be called by every rank before the step's work begins, outside of `meter.step`. Sleeps at most the plan's share of one period.

        Ranks may see a plan a moment apart: until all do, the step begins when the last of them is let go, within that bound.
        """
        plan = self._job.plan()
        why = "" if plan.phase is None else self._distrust(plan.phase)
        held = StepDelay(0, why) if why else self._pacer.hold(self._job.meter.key(step), plan, time.time_ns())
        if held.held_ns:
            time.sleep(held.held_ns / 1e9)
        return held

    def _distrust(self, phase: Phase) -> str:
        """Why this rank's clock is none to hold by; empty: it is."""
        bound_ns, reason = own_clock_bound(self._job)
        if bound_ns is None:
            return reason or "the bound on this clock is unknown"
        if bound_ns * CLOCK_DIVISOR > phase.period_ns:
            return f"this clock is known to {bound_ns} ns, too little for a period of {phase.period_ns} ns"
        return ""
