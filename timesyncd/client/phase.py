"""
Delays the steps of a job to their slots on the common clock, so that jobs that share a link send in turn.

A slot is an instant at which the clock modulo the plan's period equals the plan's shift; docs/phases.md gives the reasons for the rule:
a step that is early waits for its slot; a step that is a little late starts at once, and catches up because the planned period is longer
than the job needs; a step that is later gives up its slot and moves to the next one, unless it moves too often.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from timesyncd.client.barrier import own_clock_bound
from timesyncd.client.job import Job
from timesyncd.ipc.job_datagram import step_text
from timesyncd.ipc.job_segment import Phase, Plan
from timesyncd.ipc.wire_types import Code

#: A step that is late by at most this fraction (1/16) of the period catches up.
CATCH_UP_DIVISOR = 16

#: A delay of up to this fraction (1/2) of the period waits for the step's own slot; a longer one moves the job to another slot.
MOVE_DIVISOR = 2

#: A job may move twice at once, and then once in so many steps: where the period does not fit it, delays then cost little.
MAX_MOVES, STEPS_PER_MOVE = 2, 8

#: A clock whose bound exceeds this fraction (1/50) of the period cannot find a slot in it.
CLOCK_DIVISOR = 50

#: No step has a longer period.
MAX_PERIOD_NS = 60_000_000_000

_PPM = 1_000_000


class StepDelayReason(Code):
    """Why a step does not start in its slot; OK: it does."""

    OK = "ok"
    NO_PHASE_PLANNED = "no_phase_planned"
    PHASE_NOT_STARTED = "phase_not_started"
    MOVED_TOO_OFTEN = "moved_too_often"
    DELAY_LIMITED = "delay_limited"
    CATCHING_UP = "catching_up"
    CLOCK_NOT_TRUSTED = "clock_not_trusted"
    CLOCK_TOO_INACCURATE = "clock_too_inaccurate"


@dataclass(frozen=True, slots=True)
class StepDelay:
    """How long a step's start was delayed, and why not until its slot (StepDelayReason.OK and an empty text: it starts in its slot)."""

    delay_ns: int
    reason_code: StepDelayReason = StepDelayReason.OK
    reason: str = ""


def delay_ns(phase: Phase, now_ns: int) -> int:
    """How long a step that could start now is delayed; 0: it is in its slot, or so little late that it catches up."""
    return min(_early_ns(phase, now_ns), phase.period_ns * phase.hold_share_ppm // _PPM)


def _early_ns(phase: Phase, now_ns: int) -> int:
    """The time until the slot that the step is to take; 0: it takes the present one."""
    early_ns = (phase.shift_ns - now_ns) % phase.period_ns
    return 0 if (phase.period_ns - early_ns) * CATCH_UP_DIVISOR <= phase.period_ns else early_ns


def is_sane(phase: Phase) -> bool:
    """Whether delays by this phase are bounded as promised: memory that another process writes is not trusted."""
    return 0 < phase.period_ns <= MAX_PERIOD_NS and 0 <= phase.hold_share_ppm <= _PPM


class StepPacer:
    """The rule and its state: the phase in force, and how often the job may still move. Time is an argument."""

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._credit = 0
        self._step = -1

    def delay(self, step: int, plan: Plan, now_ns: int) -> StepDelay:
        """The delay of the step with this key. A planned phase stays in force until the next one's first step."""
        self._update(step, plan)
        phase = self._phase
        if phase is None:
            return _without_phase(plan)
        found_ns, early_ns = delay_ns(phase, now_ns), _early_ns(phase, now_ns)
        if found_ns * MOVE_DIVISOR > phase.period_ns:
            if self._credit < STEPS_PER_MOVE:
                return StepDelay(
                    0, StepDelayReason.MOVED_TOO_OFTEN, "the step is late, and the job moved to another slot too often"
                )
            self._credit -= STEPS_PER_MOVE
        if found_ns < early_ns:
            text = (
                f"the step starts {early_ns - found_ns} ns before its slot: the plan limits the delay to {found_ns} ns"
            )
            return StepDelay(found_ns, StepDelayReason.DELAY_LIMITED, text)
        late_ns = (now_ns - phase.shift_ns) % phase.period_ns
        if not found_ns and late_ns:
            return StepDelay(0, StepDelayReason.CATCHING_UP, f"the step is {late_ns} ns late and catches up")
        return StepDelay(found_ns)

    def _update(self, step: int, plan: Plan) -> None:
        if step != self._step:
            self._step = step
            self._credit = min(self._credit + 1, MAX_MOVES * STEPS_PER_MOVE)
        if plan.phase is None:
            self._phase = None
        elif step >= plan.from_step and plan.phase != self._phase:
            self._phase = plan.phase if is_sane(plan.phase) else None
            self._credit = MAX_MOVES * STEPS_PER_MOVE


def _without_phase(plan: Plan) -> StepDelay:
    if plan.phase is None:
        return StepDelay(0, StepDelayReason.NO_PHASE_PLANNED, "no phase is planned")
    return StepDelay(0, StepDelayReason.PHASE_NOT_STARTED, f"the phase starts with step {step_text(plan.from_step)}")


class PhaseScheduler:
    """
    Delays the steps of one rank.

    It needs a job whose marks reach a hub, STEP marks included, and a link that the hub knows to be shared. Without any of these no
    step is delayed.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pacer = StepPacer()

    def before_step(self, step: int) -> StepDelay:
        """
        Call it on every rank before the step's work begins, outside of `meter.step`. Sleeps at most the plan's share of one period.

        Ranks may read a new plan at slightly different times; until all have it, the step starts when the last of them does, within
        that limit.
        """
        plan = self._job.plan()
        refused = None if plan.phase is None else self._refused(plan.phase)
        delay = refused or self._pacer.delay(self._job.meter.step_key(step), plan, time.time_ns())
        if delay.delay_ns:
            time.sleep(delay.delay_ns / 1e9)
        return delay

    def _refused(self, phase: Phase) -> StepDelay | None:
        """No delay, with the reason, where this rank's clock cannot find the slot; None: it can."""
        bound_ns, reason = own_clock_bound(self._job)
        if bound_ns is None:
            return StepDelay(0, StepDelayReason.CLOCK_NOT_TRUSTED, reason or "the bound on this clock is unknown")
        if bound_ns * CLOCK_DIVISOR > phase.period_ns:
            text = f"this clock's bound is {bound_ns} ns; at most {phase.period_ns // CLOCK_DIVISOR} ns are allowed for the period"
            return StepDelay(0, StepDelayReason.CLOCK_TOO_INACCURATE, text)
        return None
