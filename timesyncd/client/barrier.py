"""The release of a barrier's ranks at one instant of the common clock: whether to hold for it, and the hold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from timesyncd.bound import ClockStatus
from timesyncd.client.job import Job, half_width_ns
from timesyncd.ipc.job_datagram import Plan, Signals, step_text

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
class Offer:
    """
    Rank 0's decision on one barrier: how long after the last arrival the release is to be (PLAIN: not timed), and why so. `apart_ns`:
    how far two ranks' clocks may be apart, by the hub; UNKNOWN.
    """

    hold_ns: int
    reason: str = ""
    apart_ns: int = UNKNOWN


def told(look: Callable[[], _T]) -> tuple[_T | None, str]:
    """
    What `look` gives, or None and why.

    Nothing that timesyncd does between a job's collectives may raise: the other ranks would wait in the next one for ever.
    """
    try:
        return look(), ""
    except Exception as error:  # noqa: BLE001  the verdict tells it
        return None, f"{type(error).__name__}: {error}"


def heard(job: Job) -> tuple[Signals | None, Plan, str]:
    """The job's signals and plan; None, the plain plan and the reason where there are none. Never raises."""
    found, reason = told(lambda: (job.signals(), job.plan()))
    if found is None or found[0] is None:
        return None, Plan(), reason or NO_SIGNALS
    return *found, ""


def own_clock(job: Job) -> tuple[int | None, str]:
    """The bound on this rank's clock against the others' common one; None, and why, if it is not to be trusted. Never raises."""
    found, reason = told(lambda: _own_clock(job))
    return found or (None, reason)


def _own_clock(job: Job) -> tuple[int | None, str]:
    signals = job.signals()
    if signals is not None and signals.one_clock:
        return GRANULARITY_NS, ""
    interval, reason = job.clock.explained()
    if interval.status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER):
        return half_width_ns(interval), ""
    return None, reason


def offered(job: Job, step: int) -> Offer:
    """What rank 0 offers for the user's `step`, by plan, signals and its own clock. Never raises."""
    found, reason = told(lambda: _offered(job, step))
    return found or Offer(PLAIN, reason)


def _offered(job: Job, step: int) -> Offer:
    signals, plan, reason = heard(job)
    reason = reason or why_plain(job.meter.key(step), plan, signals, own_clock(job)[1])
    alignment_ns = None if signals is None else signals.alignment_ns
    apart_ns = UNKNOWN if alignment_ns is None else alignment_ns
    return Offer(PLAIN if reason else plan.slack_ns + plan.guard_ns, reason, apart_ns)


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


def without_hold(instant_ns: int, now_ns: int, bound_ns: int | None, reason: str) -> Verdict | None:
    """The verdict of a rank that goes on at once; None: it is to hold until the instant."""
    if instant_ns < 0 or bound_ns is None:
        return Verdict("plain", None, None, None, reason)
    if now_ns > instant_ns:
        return Verdict("timed", False, now_ns - instant_ns, bound_ns, "the instant had passed: the slack was too short")
    if instant_ns - now_ns > MAX_HOLD_NS:
        return Verdict("plain", None, None, None, f"the instant lies {instant_ns - now_ns} ns ahead: not held")
    return None


def after_hold(lateness_ns: int, bound_ns: int | None, note: str = "") -> Verdict:
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
            after_hold(0, None)
    return now_ns
