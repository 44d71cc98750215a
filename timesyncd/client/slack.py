"""
Slack: the time that a rank certainly has before the other ranks arrive at a barrier, the tasks that run in it, and its adaptation.

SchedFifo raises a barrier's hold to SCHED_FIFO, because a rank that a clock releases must run at the instant.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from timesyncd.ipc.wire_types import Code
from timesyncd.units import percentile

#: How many waits are kept, and how many are needed for an estimate.
HISTORY_SIZE = 64
MIN_WAITS = 16

#: This percentile of the past waits is the slack.
SLACK_PERCENTILE = 5

#: A release that some rank missed lengthens the slack by this factor; each that all ranks made shortens it by one part in
#: `_SHORTEN_DIVISOR`. So it settles where about one release in a thousand is missed.
_LENGTHEN = 1.5
_SHORTEN_DIVISOR = 2_048

#: Each time that a task does not fit, its measured cost above the given one decreases by one part in this many.
_DECAY_DIVISOR = 64


class SlackReason(Code):
    """Why a slack is unknown; OK: it is known."""

    OK = "ok"
    TOO_FEW_WAITS = "too_few_waits"
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True, slots=True)
class Slack:
    """`slack_ns` None: unknown, for `reason_code` and `reason`. 0: this rank is often the last one, or nearly."""

    slack_ns: int | None
    reason_code: SlackReason = SlackReason.OK
    reason: str = ""


def adapted_ns(slack_ns: int, missed: int, made: int, min_ns: int, max_ns: int) -> int:
    """The slack after `missed` and `made` releases: at most half longer or a third shorter, and within the limits."""
    factor = _LENGTHEN**missed * (1 - 1 / _SHORTEN_DIVISOR) ** made
    return min(max_ns, max(min_ns, round(slack_ns * min(_LENGTHEN, max(1 / _LENGTHEN, factor)))))


class WaitHistory:
    """This rank's past waits for the last arrival, each counted from when the rank was ready, including the tasks it ran meanwhile."""

    def __init__(self) -> None:
        self._waits_ns: deque[int] = deque(maxlen=HISTORY_SIZE)

    def add(self, used_ns: int, left_ns: int, margin_ns: int) -> None:
        """
        After `used_ns` of tasks this rank waited `left_ns`, of which `margin_ns` may not have been waiting.

        A rank that ran tasks and did not wait after them may have delayed the others: that counts as no slack at all.
        """
        waited_ns = left_ns - margin_ns
        self._waits_ns.append(used_ns + waited_ns if waited_ns > 0 else 0)

    def clear(self) -> None:
        """After a wait that could not be measured, the earlier ones do not predict the next one."""
        self._waits_ns.clear()

    def slack(self) -> Slack:
        """From the waits alone."""
        count = len(self._waits_ns)
        if count < MIN_WAITS:
            return Slack(None, SlackReason.TOO_FEW_WAITS, f"{count} waits measured, {MIN_WAITS} are needed")
        return Slack(percentile(self._waits_ns, SLACK_PERCENTILE))


class SlackTask:
    """
    A task that runs in the slack when it fits. `cost_ns` is its assumed duration: the given one, or a longer measured one.

    `runs`; `skipped`: waits in which it did not fit; `overran`: runs that took longer than the slack.
    """

    def __init__(self, task: Callable[[], object], cost_ns: int, name: str) -> None:
        self.name = name
        self.cost_ns = self._given_cost_ns = cost_ns
        self.runs = self.skipped = self.overran = 0
        self._task = task

    def skip(self) -> None:
        """Count a wait in which it did not fit. The cost decays, so that a single slow run does not end the task for ever."""
        self.skipped += 1
        self.cost_ns -= -(-(self.cost_ns - self._given_cost_ns) // _DECAY_DIVISOR)

    def run(self, slack_ns: int) -> int:
        """Returns how long it took, in ns. Errors of the task propagate."""
        began_ns = time.monotonic_ns()
        try:
            self._task()
        finally:
            took_ns = time.monotonic_ns() - began_ns
            self.runs += 1
            self.overran += took_ns > slack_ns
            self.cost_ns = max(self.cost_ns, took_ns)
        return took_ns


class SlackTasks:
    """The registered tasks of one barrier. The one that has waited longest runs first."""

    def __init__(self) -> None:
        self._tasks: list[SlackTask] = []

    def add(self, task: SlackTask) -> None:
        self._tasks.append(task)

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def run(self, slack: Slack) -> Exception | None:
        """
        Run the tasks that fit. Returns the first error, which ends the run.

        The caller raises it after the collectives, since the other ranks wait in them.
        """
        left_ns = slack.slack_ns or 0
        for task in tuple(self._tasks):
            if task.cost_ns > left_ns:
                task.skip()
                continue
            self._tasks.remove(task)
            self._tasks.append(task)
            try:
                left_ns -= task.run(left_ns)
            except Exception as error:  # noqa: BLE001  returned to the caller
                return error
        return None


#: Only a thread with one of these policies is raised: a real-time policy of the job's own is kept.
_ORDINARY = (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE)

_Before = tuple[int, os.sched_param]


class SchedFifo:
    """
    Runs a hold with the calling thread under SCHED_FIFO, and restores the thread's policy afterwards, also after an error.

    Needs CAP_SYS_NICE or RLIMIT_RTPRIO (`ulimit -r`). Without the permission the hold runs under the ordinary scheduler,
    `take_warning()` returns the cause once, and it is not tried again. Raises ValueError for a priority that is not within 1 to 99.
    """

    def __init__(self, priority: int = 1) -> None:
        if not 1 <= priority <= 99:
            raise ValueError(f"priority = {priority}: SCHED_FIFO has the priorities 1 to 99")
        self._parameter = os.sched_param(priority)
        self._refused = False
        self._warning = ""

    def run(self, hold: Callable[[int], int], instant_ns: int) -> int:
        """Call `hold(instant_ns)` and return its result; its errors propagate."""
        before = None if self._refused else self._ordinary()
        if before is None:
            return hold(instant_ns)
        raised = True
        try:
            raised = self._raise()
            return hold(instant_ns)
        finally:
            if raised:
                os.sched_setscheduler(0, *before)

    def take_warning(self) -> str:
        """Why the permission was refused, once; else empty."""
        warning, self._warning = self._warning, ""
        return warning

    def _ordinary(self) -> _Before | None:
        """The calling thread's policy; None: a real-time one, or one that cannot be read."""
        try:
            policy = os.sched_getscheduler(0)
            return (policy, os.sched_getparam(0)) if policy in _ORDINARY else None
        except OSError as error:
            self._refuse(error)
            return None

    def _raise(self) -> bool:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, self._parameter)
        except OSError as error:
            self._refuse(error)
            return False
        return True

    def _refuse(self, error: OSError) -> None:
        self._refused = True
        self._warning = f"SCHED_FIFO was refused ({error.strerror}): the hold runs under the ordinary scheduler"
