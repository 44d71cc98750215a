"""
A barrier that releases all ranks at one instant of the common clock, on top of the job's own collective.

Which collectives run is fixed: in every `wait` the collective, then one number broadcast by rank 0; nothing that a rank
sees of clocks, daemon or plan changes that, so ranks with different views cannot hang each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from timesyncd.bound import ClockStatus
from timesyncd.client.job import Job, half_width_ns
from timesyncd.joblink import Kind, Plan, Signals

#: The release instant that says: no instant, the collective alone.
PLAIN = -1

#: No rank is held longer, whatever instant it is told and whatever its clock does meanwhile.
MAX_HOLD_NS = 1_000_000_000

#: The last part of a hold is spun, because a sleep ends late.
_SPIN_NS = 300_000

#: What ranks that read one clock can differ by: a reading's granularity.
_GRANULARITY_NS = max(1, round(time.clock_getres(time.CLOCK_REALTIME) * 1e9))

_NO_SIGNALS = "no signals from timesyncd"


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What became of one barrier on this rank.

    `timed`: released at the agreed instant, `lateness_ns` after it; `on_time` False: the instant had passed before this
    rank could hold for it, so it went on at once. The release's true time is within `bound_ns` of what this rank's clock
    read; between two ranks their bounds add. `plain`: the collective alone, for `reason`.
    """

    mode: Literal["timed", "plain"]
    on_time: bool | None
    lateness_ns: int | None
    bound_ns: int | None
    reason: str


class Barrier:
    """
    `collective` waits for all ranks; `broadcast` gives every rank the number that rank 0 passed. Both are the job's own,
    and whatever they raise goes through.
    """

    def __init__(self, job: Job, collective: Callable[[], object], broadcast: Callable[[int], int]) -> None:
        self._job = job
        self._collective = collective
        self._broadcast = broadcast

    def wait(self, step: int) -> Verdict:
        """
        Wait for all ranks, then until the agreed instant, if there is one. Adds at most MAX_HOLD_NS to the collective.

        The barrier is marked as a synchronization of the step, before the hold, so that nothing runs after the release.
        """
        job = self._job
        arrival_ns = time.time_ns()
        self._collective()
        decided = self._decided(step) if job.rank == 0 else (PLAIN, "rank 0 decided so, or has no clock to trust")
        instant_ns = self._broadcast(decided[0])
        bound_ns, distrust = own_clock(job)
        now_ns = time.time_ns()
        verdict = without_hold(instant_ns, now_ns, bound_ns, decided[1] if instant_ns < 0 else distrust)
        end_ns = now_ns if verdict else instant_ns
        job.meter.mark(step, job.meter.next_sync(step), arrival_ns, arrival_ns, end_ns, Kind.BARRIER)
        return verdict or after_hold(hold_until(instant_ns) - instant_ns, bound_ns)

    def _decided(self, step: int) -> tuple[int, str]:
        signals, plan = self._job.signals(), self._job.plan()
        _, distrust = own_clock(self._job)
        reason = why_plain(step, plan, signals, distrust)
        return (PLAIN, reason) if reason else (time.time_ns() + plan.slack_ns + plan.guard_ns, "")


def own_clock(job: Job) -> tuple[int | None, str]:
    """The bound on this rank's clock against the others' common one; None, and why, when it is not to be trusted."""
    signals = job.signals()
    if signals is not None and signals.one_clock:
        return _GRANULARITY_NS, ""
    interval = job.clock.gm_now()
    if interval.status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER):
        return half_width_ns(interval), ""
    return None, job.clock.reason()


def why_plain(step: int, plan: Plan, signals: Signals | None, distrust: str) -> str:
    """Rank 0's decision: empty, the step is to be timed, or why it is not. `distrust`: why its own clock is none to trust."""
    if signals is None:
        return _NO_SIGNALS
    if plan.mode == "plain" or step < plan.from_step:
        return f"the plan says plain for step {step}"
    if distrust:
        return distrust
    if signals.alignment_ns is None:
        return "the alignment of the job's nodes is unknown"
    if signals.alignment_ns > plan.guard_ns:
        return f"the nodes may be {signals.alignment_ns} ns apart, more than the plan's guard of {plan.guard_ns} ns"
    if not 0 <= plan.slack_ns + plan.guard_ns <= MAX_HOLD_NS:
        return f"the plan's slack and guard are not within {MAX_HOLD_NS} ns"
    return ""


def without_hold(instant_ns: int, now_ns: int, bound_ns: int | None, reason: str) -> Verdict | None:
    """The verdict of a rank that goes on at once; None: it is to hold until the instant."""
    if instant_ns < 0 or bound_ns is None:
        return Verdict("plain", None, None, None, reason)
    if now_ns > instant_ns:
        return Verdict("timed", False, now_ns - instant_ns, bound_ns, "the instant had passed: the slack was too short")
    if instant_ns - now_ns > MAX_HOLD_NS:
        return Verdict("plain", None, None, None, f"the instant lies {instant_ns - now_ns} ns ahead: not held")
    return None


def after_hold(lateness_ns: int, bound_ns: int | None) -> Verdict:
    """The verdict of a rank that held. A lateness below 0, or above every hold, is a clock that was set meanwhile."""
    if 0 <= lateness_ns <= MAX_HOLD_NS:
        return Verdict("timed", True, lateness_ns, bound_ns, "")
    return Verdict("plain", None, None, None, "the clock was set during the hold")


def hold_until(instant_ns: int) -> int:
    """
    Sleep, then spin, until CLOCK_REALTIME shows the instant; gives the reading that released.

    CLOCK_MONOTONIC ends it after MAX_HOLD_NS: a clock that is set back meanwhile must not hold a rank.
    """
    give_up_ns = time.monotonic_ns() + MAX_HOLD_NS
    while (now_ns := time.time_ns()) < instant_ns and (left_ns := give_up_ns - time.monotonic_ns()) > 0:
        sleep_ns = min(instant_ns - now_ns, left_ns) - _SPIN_NS
        if sleep_ns > 0:
            time.sleep(sleep_ns / 1e9)
    return now_ns
