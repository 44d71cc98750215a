"""
A barrier whose ranks are released at one instant of the common clock, on top of the job's own collective.

Each `wait` runs fixed collectives: the job's collective, then one number that rank 0 broadcasts (`FusedBarrier`: one exchange).
What a rank observes of clocks, daemon or plan does not change them, so ranks that observe different things cannot hang each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from timesyncd.bound import ClockStatus
from timesyncd.client.job import Job, half_width_ns
from timesyncd.client.slack import SchedFifo, Slack, SlackReason, SlackTask, SlackTasks, WaitHistory
from timesyncd.ipc.job_datagram import Kind, step_text
from timesyncd.ipc.job_segment import Plan, Signals
from timesyncd.ipc.wire_types import Code, CodedReason

#: In place of a release instant: there is none, the barrier is the collective alone.
PLAIN = -1

#: In place of an alignment: it is unknown.
UNKNOWN = -1

#: No rank is held longer, whatever the instant is and whatever its clock does meanwhile.
MAX_HOLD_NS = 1_000_000_000

_T = TypeVar("_T")

#: How far apart ranks that read one clock can be: a reading's granularity.
GRANULARITY_NS = max(1, round(time.clock_getres(time.CLOCK_REALTIME) * 1e9))

#: The last part of a hold is spun, because a sleep ends late.
_SPIN_NS = 300_000

#: A thread with a real-time policy spins longer: an idle processor of a virtual machine wakes up late.
_REAL_TIME_SPIN_NS = 3_000_000

#: In the last part of the spin it only reads the clock.
_TIGHT_NS = 20_000


class BarrierReason(Code):
    """Why a barrier was plain or late, or what else went wrong in it; OK: nothing did."""

    OK = "ok"
    NO_SIGNALS = "no_signals"
    PLANNED_PLAIN = "planned_plain"
    CLOCK_NOT_TRUSTED = "clock_not_trusted"
    ALIGNMENT_UNKNOWN = "alignment_unknown"
    ALIGNMENT_ABOVE_GUARD = "alignment_above_guard"
    PLAN_OUT_OF_RANGE = "plan_out_of_range"
    RANK_0_PLAIN = "rank_0_plain"
    DIFFERENT_CLOCKS = "different_clocks"
    NO_TRUSTED_CLOCK = "no_trusted_clock"
    LATE_AT_MAX_SLACK = "late_at_max_slack"
    INSTANT_PASSED = "instant_passed"
    INSTANT_TOO_FAR = "instant_too_far"
    CLOCK_SET_DURING_HOLD = "clock_set_during_hold"
    SCHED_FIFO_REFUSED = "sched_fifo_refused"
    NOT_MARKED = "not_marked"
    INTERNAL_ERROR = "internal_error"


#: Why a barrier is plain.
BarrierExplanation = CodedReason[BarrierReason]

OK = CodedReason(BarrierReason.OK, "")
NO_SIGNALS = CodedReason(BarrierReason.NO_SIGNALS, "no signals from timesyncd")


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The result of one barrier on this rank.

    `timed`: the rank was released at the agreed instant, `lateness_ns` after it. `on_time` False: the instant had passed before this
    rank could hold for it, so it went on at once. The true time of the release is within `bound_ns` of this rank's clock reading,
    against its own grandmaster. Two ranks' clocks are at most the job's `alignment_ns` apart; with two grandmasters that may exceed
    the sum of both bounds.

    `plain`: the barrier was the collective alone, for `reason_code` and `reason`.
    """

    mode: Literal["timed", "plain"]
    on_time: bool | None
    lateness_ns: int | None
    bound_ns: int | None
    reason_code: BarrierReason
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseDecision:
    """
    Rank 0's decision for one barrier.

    `hold_ns`: how long after the last arrival the release is (PLAIN: not timed), with the reason. `alignment_ns`: how far two ranks'
    clocks may be apart, by the hub; UNKNOWN.
    """

    hold_ns: int
    why: BarrierExplanation = OK
    alignment_ns: int = UNKNOWN


def attempt(read: Callable[[], _T]) -> tuple[_T | None, str]:
    """
    The result of `read`, or None and the error's text.

    Nothing that timesyncd does between a job's collectives may raise: the other ranks would wait in the next one for ever.
    """
    try:
        return read(), ""
    except Exception as error:  # noqa: BLE001  it becomes the verdict's reason
        return None, f"{type(error).__name__}: {error}"


def signals_and_plan(job: Job) -> tuple[Signals | None, Plan, BarrierExplanation]:
    """The job's signals and plan, else None, the plain plan and the reason. Never raises."""
    found, error = attempt(lambda: (job.signals(), job.plan()))
    if found is None:
        return None, Plan(), CodedReason(BarrierReason.INTERNAL_ERROR, error)
    signals, plan = found
    return (None, Plan(), NO_SIGNALS) if signals is None else (signals, plan, OK)


def own_clock_bound(job: Job) -> tuple[int | None, str]:
    """The bound on this rank's clock against the common clock; None, and the reason, if it is not trusted. Never raises."""
    found, error = attempt(lambda: _own_clock_bound(job))
    return found or (None, error)


def _own_clock_bound(job: Job) -> tuple[int | None, str]:
    signals = job.signals()
    if signals is not None and signals.one_clock:
        return GRANULARITY_NS, ""
    interval, _, reason = job.clock.read()
    if interval.status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER):
        return half_width_ns(interval), ""
    return None, reason


def distrust(bound_ns: int | None, reason: str) -> BarrierExplanation:
    """Why a clock with the result of `own_clock_bound` is not trusted; OK: it is."""
    return OK if bound_ns is not None else CodedReason(BarrierReason.CLOCK_NOT_TRUSTED, reason)


def decide_release(job: Job, step: int) -> ReleaseDecision:
    """Rank 0's decision for the job's `step`, by plan, signals and its own clock. Never raises."""
    found, error = attempt(lambda: _decide_release(job, step))
    return found or ReleaseDecision(PLAIN, CodedReason(BarrierReason.INTERNAL_ERROR, error))


def _decide_release(job: Job, step: int) -> ReleaseDecision:
    signals, plan, why = signals_and_plan(job)
    if signals is None:
        return ReleaseDecision(PLAIN, why)
    why = why_plain(job.meter.step_key(step), plan, signals, distrust(*own_clock_bound(job)))
    alignment_ns = UNKNOWN if signals.alignment_ns is None else signals.alignment_ns
    return ReleaseDecision(plan.slack_ns + plan.guard_ns if why is OK else PLAIN, why, alignment_ns)


def why_plain(key: int, plan: Plan, signals: Signals, own_clock: BarrierExplanation) -> BarrierExplanation:
    """Why the step with this key is not timed; OK: it is. `own_clock`: why rank 0's own clock is not trusted."""
    if plan.mode == "plain" or key < plan.from_step:
        return CodedReason(BarrierReason.PLANNED_PLAIN, f"the plan has a plain barrier for step {step_text(key)}")
    if own_clock is not OK:
        return own_clock
    if signals.alignment_ns is None:
        return CodedReason(BarrierReason.ALIGNMENT_UNKNOWN, "the alignment of the job's nodes is unknown")
    if signals.alignment_ns > plan.guard_ns:
        text = f"the nodes may be {signals.alignment_ns} ns apart, more than the plan's guard of {plan.guard_ns} ns"
        return CodedReason(BarrierReason.ALIGNMENT_ABOVE_GUARD, text)
    if not 0 <= (hold_ns := plan.slack_ns + plan.guard_ns) <= MAX_HOLD_NS:
        text = f"the plan's slack plus guard is {hold_ns} ns; 0 to {MAX_HOLD_NS} ns are allowed"
        return CodedReason(BarrierReason.PLAN_OUT_OF_RANGE, text)
    return OK


def verdict_without_hold(instant_ns: int, now_ns: int, bound_ns: int | None, why: BarrierExplanation) -> Verdict | None:
    """The verdict of a rank that goes on at once; None: it holds until the instant."""
    if instant_ns < 0 or bound_ns is None:
        return Verdict("plain", None, None, None, why.code, why.text)
    if now_ns > instant_ns:
        text = "the release instant had passed: the slack was too short"
        return Verdict("timed", False, now_ns - instant_ns, bound_ns, BarrierReason.INSTANT_PASSED, text)
    if instant_ns - now_ns > MAX_HOLD_NS:
        text = f"the release instant lies {instant_ns - now_ns} ns ahead; a rank holds for at most {MAX_HOLD_NS} ns"
        return Verdict("plain", None, None, None, BarrierReason.INSTANT_TOO_FAR, text)
    return None


def verdict_after_hold(lateness_ns: int, bound_ns: int | None, warning: str = "") -> Verdict:
    """
    The verdict of a rank that held. `warning`: why SCHED_FIFO was refused.

    A lateness below 0, or longer than every hold, means that the clock was set meanwhile.
    """
    if not 0 <= lateness_ns <= MAX_HOLD_NS:
        text = "the clock was set during the hold"
        return Verdict("plain", None, None, None, BarrierReason.CLOCK_SET_DURING_HOLD, text)
    code = BarrierReason.SCHED_FIFO_REFUSED if warning else BarrierReason.OK
    return Verdict("timed", True, lateness_ns, bound_ns, code, warning)


def hold_until(instant_ns: int) -> int:
    """
    Sleep, then spin, until CLOCK_REALTIME shows the instant. Returns the reading that released the rank.

    CLOCK_MONOTONIC ends the hold after MAX_HOLD_NS, also when CLOCK_REALTIME is set back meanwhile.
    """
    deadline_ns = time.monotonic_ns() + MAX_HOLD_NS
    is_real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    spin_ns = _REAL_TIME_SPIN_NS if is_real_time else _SPIN_NS
    while (now_ns := time.time_ns()) < instant_ns and (left_ns := deadline_ns - time.monotonic_ns()) > 0:
        sleep_ns = min(instant_ns - now_ns, left_ns) - spin_ns
        if sleep_ns > 0:
            time.sleep(sleep_ns / 1e9)
        elif instant_ns - now_ns > _TIGHT_NS:
            # Keeps what follows the release in the caches: code that did not just run costs microseconds.
            verdict_after_hold(0, None)
    return now_ns


_RANK_0_PLAIN = CodedReason(BarrierReason.RANK_0_PLAIN, "rank 0 chose a plain barrier, or has no trusted clock")


@dataclass(frozen=True, slots=True)
class CollectiveOutcome:
    """
    What a rank knows when the collectives are over.

    The instant, the same on all ranks; the bound on its own clock (None: not trusted); why it does not hold. `left_ns`: how long it
    waited for the last rank, up to `margin_ns` too much; None: unknown.
    """

    instant_ns: int
    bound_ns: int | None
    why: BarrierExplanation
    left_ns: int | None
    margin_ns: int


class Barrier:
    """
    A timed barrier of two collectives: the job's own, then a broadcast.

    `collective` waits for all ranks; `broadcast` returns rank 0's number on every rank. Both are the job's own, and their errors
    propagate. `scheduling`: hold under SCHED_FIFO.
    """

    def __init__(
        self,
        job: Job,
        collective: Callable[[], object],
        broadcast: Callable[[int], int],
        scheduling: SchedFifo | None = None,
    ) -> None:
        self._init(job, scheduling)
        self._collective = collective
        self._broadcast = broadcast

    def _init(self, job: Job, scheduling: SchedFifo | None) -> None:
        self._job = job
        self._scheduling = scheduling
        self._waits = WaitHistory()
        self._tasks = SlackTasks()
        self._agreed_ns: int | None = None

    @property
    def agreed_ns(self) -> int | None:
        """The release instant of the last barrier, the same number on every rank; None: that barrier was plain."""
        return self._agreed_ns

    def wait(self, step: int) -> Verdict:
        """
        Wait for all ranks, then until the agreed instant, if there is one. Adds at most MAX_HOLD_NS to the collective.

        The barrier is marked as a synchronization of the step before the hold, so that nothing runs after the release. An error of a
        registered task is raised here, after the release.
        """
        ready_ns = time.time_ns()
        error = self._tasks.run(self.slack()) if self._tasks else None
        arrival_ns = time.time_ns() if self._tasks else ready_ns
        outcome = self._run_collectives(step, arrival_ns)
        instant_ns, bound_ns, why = outcome.instant_ns, outcome.bound_ns, outcome.why
        self._agreed_ns = instant_ns if instant_ns >= 0 else None
        if outcome.left_ns is None:
            self._waits.clear()
        else:
            self._waits.add(arrival_ns - ready_ns, outcome.left_ns, outcome.margin_ns)
        now_ns = time.time_ns()
        verdict = verdict_without_hold(instant_ns, now_ns, bound_ns, why)
        trouble = self._mark(step, arrival_ns, now_ns if verdict else instant_ns)
        ready_ns = time.time_ns()  # marking may have sent a datagram
        self._update_ready(ready_ns)
        verdict = (
            verdict or verdict_without_hold(instant_ns, ready_ns, bound_ns, why) or self._hold(instant_ns, bound_ns)
        )
        if error is not None:
            raise error
        return _with_trouble(verdict, trouble) if trouble else verdict

    def slack(self) -> Slack:
        """
        The time that this rank certainly has before the other ranks arrive, counted from when it is ready.

        Unknown here: a rank cannot separate the waiting in a collective from the transfer.
        """
        return Slack(
            None, SlackReason.NOT_MEASURED, "a Barrier does not measure when the last rank arrives; use FusedBarrier"
        )

    def run_in_slack(self, task: Callable[[], object], cost_ns: int, name: str | None = None) -> SlackTask:
        """
        Run `task` at the start of every `wait` in whose slack it fits: `gc.collect`, a checkpoint, an evaluation, a prefetch.

        `cost_ns` is about how long it takes; a run that takes longer raises it. The returned SlackTask counts the runs. The task runs
        in the calling thread, and never while the slack is unknown. Raises ValueError for a cost that is not above 0.
        """
        if cost_ns <= 0:
            raise ValueError(f"cost_ns = {cost_ns}: give the task's duration in ns, above 0")
        registered = SlackTask(task, cost_ns, name or str(getattr(task, "__name__", task)))
        self._tasks.add(registered)
        return registered

    def _run_collectives(self, step: int, arrival_ns: int) -> CollectiveOutcome:
        """Nothing of ours between the collectives may raise."""
        self._collective()
        decision = decide_release(self._job, step) if self._job.rank == 0 else ReleaseDecision(PLAIN, _RANK_0_PLAIN)
        instant_ns = self._broadcast(PLAIN if decision.hold_ns < 0 else time.time_ns() + decision.hold_ns)
        bound_ns, reason = own_clock_bound(self._job)
        why = decision.why if instant_ns < 0 else distrust(bound_ns, reason)
        return CollectiveOutcome(instant_ns, bound_ns, why, None, 0)

    def _update_ready(self, now_ns: int) -> None:
        """This rank is about to hold, or to go on."""

    def _mark(self, step: int, arrival_ns: int, end_ns: int) -> str:
        """Empty, or why there is no mark."""
        meter = self._job.meter
        kind = Kind.BARRIER
        return attempt(lambda: meter.mark(step, meter.next_sync(step), arrival_ns, arrival_ns, end_ns, kind))[1]

    def _hold(self, instant_ns: int, bound_ns: int | None) -> Verdict:
        if self._scheduling is None:
            return verdict_after_hold(hold_until(instant_ns) - instant_ns, bound_ns)
        released_ns = self._scheduling.run(hold_until, instant_ns)
        return verdict_after_hold(released_ns - instant_ns, bound_ns, self._scheduling.take_warning())


def _with_trouble(verdict: Verdict, trouble: str) -> Verdict:
    """The verdict of a barrier that was not marked."""
    code = BarrierReason.NOT_MARKED if verdict.reason_code is BarrierReason.OK else verdict.reason_code
    text = "; ".join(filter(None, (verdict.reason, f"the barrier was not marked: {trouble}")))
    return replace(verdict, reason_code=code, reason=text)
