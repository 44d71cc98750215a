"""
The release of a barrier's ranks at one instant of the common clock: whether to hold for it, and the hold.

A barrier that releases all ranks at one instant of the common clock, on top of the job's own collective.

Which collectives run is fixed: in every `wait` the collective, then one number broadcast by rank 0 (`FusedBarrier`: one
exchange); nothing that a rank sees of clocks, daemon or plan changes that, so ranks with different views cannot hang each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from timesyncd.bound import ClockStatus
from timesyncd.client.job import Job, half_width_ns
from timesyncd.client.slack import SchedFifo, Slack, SlackTask, SlackTasks, WaitHistory
from timesyncd.ipc.job_datagram import Kind, step_text
from timesyncd.ipc.job_segment import Plan, Signals

#: The release instant that says: no instant, the collective alone.
PLAIN = -1

#: Of clocks that nobody has compared.
UNKNOWN = -1

#: No rank is held longer, whatever instant it is told and whatever its clock does meanwhile.
MAX_HOLD_NS = 1_000_000_000

_T = TypeVar("_T")

NO_SIGNALS = "no signals from timesyncd"

#: What ranks that read one clock can differ by: a reading's granularity.
GRANULARITY_NS = max(1, round(time.clock_getres(time.CLOCK_REALTIME) * 1e9))

#: The last part of a hold is spun, because a sleep ends late.
_SPIN_NS = 300_000

#: A thread that has a real-time policy asks for more than that: an idle processor of a virtual machine wakes up later.
_REAL_TIME_SPIN_NS = 3_000_000

#: And of that the very last part does nothing but look.
_TIGHT_NS = 20_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What became of one barrier on this rank.

    `timed`: released at the agreed instant, `lateness_ns` after it; `on_time` False: the instant had passed before this
    rank could hold for it, so it went on at once. The release's true time is within `bound_ns` of what this rank's clock
    read, as its own grandmaster counts; two ranks' clocks are apart by the job's `alignment_ns` at most: with two grandmasters that may be more
    than the sum of both bounds. `plain`: the collective alone, for `reason`.
    """

    mode: Literal["timed", "plain"]
    on_time: bool | None
    lateness_ns: int | None
    bound_ns: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseDecision:
    """
    Rank 0's decision on one barrier: how long after the last arrival the release is to be (PLAIN: not timed), and why so. `apart_ns`:
    how far two ranks' clocks may be apart, by the hub; UNKNOWN.
    """

    hold_ns: int
    reason: str = ""
    apart_ns: int = UNKNOWN


def attempt(look: Callable[[], _T]) -> tuple[_T | None, str]:
    """
    What `look` gives, or None and why.

    Nothing that timesyncd does between a job's collectives may raise: the other ranks would wait in the next one for ever.
    """
    try:
        return look(), ""
    except Exception as error:  # noqa: BLE001  the verdict tells it
        return None, f"{type(error).__name__}: {error}"


def signals_and_plan(job: Job) -> tuple[Signals | None, Plan, str]:
    """The job's signals and plan; None, the plain plan and the reason where there are none. Never raises."""
    found, reason = attempt(lambda: (job.signals(), job.plan()))
    if found is None or found[0] is None:
        return None, Plan(), reason or NO_SIGNALS
    return *found, ""


def own_clock_bound(job: Job) -> tuple[int | None, str]:
    """The bound on this rank's clock against the others' common one; None, and why, if it is not to be trusted. Never raises."""
    found, reason = attempt(lambda: _own_clock(job))
    return found or (None, reason)


def _own_clock(job: Job) -> tuple[int | None, str]:
    signals = job.signals()
    if signals is not None and signals.one_clock:
        return GRANULARITY_NS, ""
    interval, _, reason = job.clock.read()
    if interval.status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER):
        return half_width_ns(interval), ""
    return None, reason


def decide_release(job: Job, step: int) -> ReleaseDecision:
    """What rank 0 offers for the user's `step`, by plan, signals and its own clock. Never raises."""
    found, reason = attempt(lambda: _offered(job, step))
    return found or ReleaseDecision(PLAIN, reason)


def _offered(job: Job, step: int) -> ReleaseDecision:
    signals, plan, reason = signals_and_plan(job)
    reason = reason or why_plain(job.meter.key(step), plan, signals, own_clock_bound(job)[1])
    alignment_ns = None if signals is None else signals.alignment_ns
    apart_ns = UNKNOWN if alignment_ns is None else alignment_ns
    return ReleaseDecision(PLAIN if reason else plan.slack_ns + plan.guard_ns, reason, apart_ns)


def why_plain(key: int, plan: Plan, signals: Signals | None, distrust: str) -> str:
    """Empty: the step of this key is to be timed; else why it is not. `distrust`: why rank 0's own clock is none to trust."""
    if signals is None:
        return NO_SIGNALS
    if plan.mode == "plain" or key < plan.from_step:
        return f"the plan says plain for step {step_text(key)}"
    if distrust:
        return distrust
    if signals.alignment_ns is None:
        return "the alignment of the job's nodes is unknown"
    if signals.alignment_ns > plan.guard_ns:
        return f"the nodes may be {signals.alignment_ns} ns apart, more than the plan's guard of {plan.guard_ns} ns"
    if not 0 <= plan.slack_ns + plan.guard_ns <= MAX_HOLD_NS:
        return f"the plan's slack and guard are not within {MAX_HOLD_NS} ns"
    return ""


def verdict_without_hold(instant_ns: int, now_ns: int, bound_ns: int | None, reason: str) -> Verdict | None:
    """The verdict of a rank that goes on at once; None: it is to hold until the instant."""
    if instant_ns < 0 or bound_ns is None:
        return Verdict("plain", None, None, None, reason)
    if now_ns > instant_ns:
        return Verdict("timed", False, now_ns - instant_ns, bound_ns, "the instant had passed: the slack was too short")
    if instant_ns - now_ns > MAX_HOLD_NS:
        return Verdict("plain", None, None, None, f"the instant lies {instant_ns - now_ns} ns ahead: not held")
    return None


def verdict_after_hold(lateness_ns: int, bound_ns: int | None, note: str = "") -> Verdict:
    """
    The verdict of a rank that held. A lateness below 0, or above every hold, is a clock that was set meanwhile. `note`: what else
    is to be said once.
    """
    if 0 <= lateness_ns <= MAX_HOLD_NS:
        return Verdict("timed", True, lateness_ns, bound_ns, note)
    return Verdict("plain", None, None, None, "the clock was set during the hold")


def hold_until(instant_ns: int) -> int:
    """
    Sleep, then spin, until CLOCK_REALTIME shows the instant; gives the reading that released.

    CLOCK_MONOTONIC ends it after MAX_HOLD_NS: a clock that is set back meanwhile must not hold a rank.
    """
    give_up_ns = time.monotonic_ns() + MAX_HOLD_NS
    is_real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    spin_ns = _REAL_TIME_SPIN_NS if is_real_time else _SPIN_NS
    while (now_ns := time.time_ns()) < instant_ns and (left_ns := give_up_ns - time.monotonic_ns()) > 0:
        sleep_ns = min(instant_ns - now_ns, left_ns) - spin_ns
        if sleep_ns > 0:
            time.sleep(sleep_ns / 1e9)
        elif instant_ns - now_ns > _TIGHT_NS:
            # What follows the release is kept in the caches: code that did not just run costs microseconds.
            verdict_after_hold(0, None)
    return now_ns


_TWO_ROUNDS = "of a barrier in two rounds no rank knows when the last one came: FusedBarrier tells"

_RANK_0_SAID_PLAIN = "rank 0 decided so, or has no clock to trust"


@dataclass(frozen=True, slots=True)
class CollectiveOutcome:
    """
    What a rank knows when the collectives are over: the instant that all ranks were told, the bound on its own clock (None:
    not to be trusted), and why there is to be no hold. `left_ns`: the rest of its wait, of which `margin_ns` may have been something
    else than waiting for the last rank; None: not known.
    """

    instant_ns: int
    bound_ns: int | None
    reason: str
    left_ns: int | None
    margin_ns: int


class Barrier:
    """
    `collective` waits for all ranks; `broadcast` gives every rank the number that rank 0 passed. Both are the job's own,
    and whatever they raise goes through. `scheduling`: hold under SCHED_FIFO.
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
        self._works = SlackTasks()
        self._agreed_ns: int | None = None

    @property
    def agreed_ns(self) -> int | None:
        """The instant that the ranks were told last, the same number on every rank; None: the last one was plain."""
        return self._agreed_ns

    def wait(self, step: int) -> Verdict:
        """
        Wait for all ranks, then until the agreed instant, if there is one. Adds at most MAX_HOLD_NS to the collective.

        The barrier is marked as a synchronization of the step, before the hold, so that nothing runs after the release. What
        registered work raises is raised here, after the release.
        """
        ready_ns = time.time_ns()
        error = self._works.run(self.slack()) if self._works else None
        arrival_ns = time.time_ns() if self._works else ready_ns
        met = self._meet(step, arrival_ns)
        self._agreed_ns = met.instant_ns if met.instant_ns >= 0 else None
        if met.left_ns is None:
            self._waits.forget()
        else:
            self._waits.add(arrival_ns - ready_ns, met.left_ns, met.margin_ns)
        now_ns = time.time_ns()
        verdict = verdict_without_hold(met.instant_ns, now_ns, met.bound_ns, met.reason)
        trouble = self._mark(step, arrival_ns, now_ns if verdict else met.instant_ns)
        ready_ns = time.time_ns()  # marking may have sent a datagram
        self._was_ready(ready_ns)
        verdict = verdict or verdict_without_hold(met.instant_ns, ready_ns, met.bound_ns, met.reason)
        verdict = verdict or self._held(met.instant_ns, met.bound_ns)
        if error is not None:
            raise error
        return replace(verdict, reason="; ".join(filter(None, (verdict.reason, trouble)))) if trouble else verdict

    def slack(self) -> Slack:
        """
        The time that this rank surely has before the others arrive, counted from when it is ready to.

        Never known here: how much of a collective is waiting, and how much transfer, no rank can tell.
        """
        return Slack(None, _TWO_ROUNDS)

    def use(self, work: Callable[[], object], cost_ns: int, name: str | None = None) -> SlackTask:
        """
        Run `work` at the beginning of every `wait` whose slack it fits into, as `gc.collect`, a checkpoint, an evaluation or a
        prefetch of about `cost_ns`. What is given counts the runs; a run that took longer raises the cost.

        It runs in the calling thread. Without a known slack it never runs. Raises ValueError for a cost that is not above 0.
        """
        if cost_ns <= 0:
            raise ValueError(f"cost_ns {cost_ns}: work takes longer than no time")
        registered = SlackTask(work, cost_ns, name or str(getattr(work, "__name__", work)))
        self._works.add(registered)
        return registered

    def _meet(self, step: int, arrival_ns: int) -> CollectiveOutcome:
        """The collectives; nothing of ours in between may raise."""
        self._collective()
        offer = decide_release(self._job, step) if self._job.rank == 0 else ReleaseDecision(PLAIN, _RANK_0_SAID_PLAIN)
        instant_ns = self._broadcast(PLAIN if offer.hold_ns < 0 else time.time_ns() + offer.hold_ns)
        bound_ns, distrust = own_clock_bound(self._job)
        reason = offer.reason if instant_ns < 0 else distrust
        return CollectiveOutcome(instant_ns, bound_ns, reason, None, 0)

    def _was_ready(self, now_ns: int) -> None:
        """This rank is about to hold, or to go on."""

    def _mark(self, step: int, arrival_ns: int, end_ns: int) -> str:
        """Empty, or why there is no mark."""
        meter = self._job.meter
        kind = Kind.BARRIER
        _, trouble = attempt(lambda: meter.mark(step, meter.next_sync(step), arrival_ns, arrival_ns, end_ns, kind))
        return f"not marked: {trouble}" if trouble else ""

    def _held(self, instant_ns: int, bound_ns: int | None) -> Verdict:
        if self._scheduling is None:
            return verdict_after_hold(hold_until(instant_ns) - instant_ns, bound_ns)
        released_ns = self._scheduling.run(hold_until, instant_ns)
        return verdict_after_hold(released_ns - instant_ns, bound_ns, self._scheduling.note())
