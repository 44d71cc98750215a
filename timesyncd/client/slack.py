"""
The time that a rank surely has before the others arrive, the work that is done in it, and how a release's slack is adapted.

SCHED_FIFO for the hold of a barrier alone: what is released by a clock must run when the instant comes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from timesyncd.units import percentile

#: So many waits are remembered, and so many are needed to say anything.
HISTORY_SIZE = 64
MIN_WAITS = 16

#: Not more than so many of a hundred past waits were shorter than what is called sure.
SLACK_PERCENTILE = 5

#: A release that some rank missed lengthens the slack by this; each that all ranks made shortens it by one part in `_SLOWLY`. So
#: it settles where some releases in a thousand are missed.
_UP = 1.5
_SLOWLY = 2_048

#: What a work cost above what was told is forgotten by one part in so many, each time that it did not fit.
_FORGET = 64


@dataclass(frozen=True, slots=True)
class Slack:
    """`ns` None: not known, for `reason`. 0: this rank is often the last, or as good as."""

    ns: int | None
    reason: str = ""


def adapted_ns(slack_ns: int, missed: int, made: int, least_ns: int, most_ns: int) -> int:
    """The slack after `missed` and `made` releases: up by half at most, down by a third at most, within its limits."""
    factor = _UP**missed * (1 - 1 / _SLOWLY) ** made
    return min(most_ns, max(least_ns, round(slack_ns * min(_UP, max(1 / _UP, factor)))))


class WaitHistory:
    """A rank's own past waits for the last arrival, each counted from when it was ready, whatever work it did meanwhile."""

    def __init__(self) -> None:
        self._free_ns: deque[int] = deque(maxlen=HISTORY_SIZE)

    def add(self, used_ns: int, left_ns: int, margin_ns: int) -> None:
        """
        After `used_ns` of work this rank waited `left_ns`, of which `margin_ns` may have been something else.

        A rank that worked and did not wait any more may have kept the others waiting: that counts as no slack at all.
        """
        free_ns = left_ns - margin_ns
        self._free_ns.append(used_ns + free_ns if free_ns > 0 else 0)

    def forget(self) -> None:
        """What was before a wait that nobody could measure says nothing sure of the next one."""
        self._free_ns.clear()

    def sure(self) -> Slack:
        """From the waits alone."""
        if len(self._free_ns) < MIN_WAITS:
            return Slack(None, f"{len(self._free_ns)} waits measured, {MIN_WAITS} are needed")
        return Slack(percentile(self._free_ns, SLACK_PERCENTILE))


class SlackTask:
    """
    Work that is done in the slack when it fits. `cost_ns` is what it is taken to cost: as told, or more, as measured.

    `runs`; `skipped`: waits in which it did not fit; `overran`: runs that took longer than the slack there was.
    """

    def __init__(self, work: Callable[[], object], cost_ns: int, name: str) -> None:
        self.name = name
        self.cost_ns = self._told_ns = cost_ns
        self.runs = self.skipped = self.overran = 0
        self._work = work

    def skip(self) -> None:
        """A single run that took much too long must not end the work for ever."""
        self.skipped += 1
        self.cost_ns -= -(-(self.cost_ns - self._told_ns) // _FORGET)

    def run(self, slack_ns: int) -> int:
        """Gives how long it took; what it raises goes through."""
        began_ns = time.monotonic_ns()
        try:
            self._work()
        finally:
            took_ns = time.monotonic_ns() - began_ns
            self.runs += 1
            self.overran += took_ns > slack_ns
            self.cost_ns = max(self.cost_ns, took_ns)
        return took_ns


class SlackTasks:
    """The registered work of one barrier; what waited longest for its turn comes first."""

    def __init__(self) -> None:
        self._works: list[SlackTask] = []

    def add(self, work: SlackTask) -> None:
        self._works.append(work)

    def __bool__(self) -> bool:
        return bool(self._works)

    def run(self, slack: Slack) -> Exception | None:
        """
        Run what fits. Gives the first error, which ends it: it is for the caller to raise once the collectives have run, since
        the other ranks wait in them.
        """
        left_ns = slack.ns or 0
        for work in tuple(self._works):
            if work.cost_ns > left_ns:
                work.skip()
                continue
            self._works.remove(work)
            self._works.append(work)
            try:
                left_ns -= work.run(left_ns)
            except Exception as error:  # noqa: BLE001  given to the caller
                return error
        return None


#: Only from these a thread is raised: whoever has chosen a real-time policy keeps it.
_ORDINARY = (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE)

_Before = tuple[int, os.sched_param]


class SchedFifo:
    """
    Holds with the calling thread under SCHED_FIFO, and restores its policy whatever happens.

    Needs CAP_SYS_NICE or RLIMIT_RTPRIO (`ulimit -r`). Without the right the hold goes on as it is, `note()` says so once, and
    it is not tried again. Raises ValueError for a priority that Linux does not have (1 to 99).
    """

    def __init__(self, priority: int = 1) -> None:
        if not 1 <= priority <= 99:
            raise ValueError(f"priority {priority}: SCHED_FIFO has 1 to 99")
        self._parameter = os.sched_param(priority)
        self._refused = False
        self._note = ""

    def run(self, hold: Callable[[int], int], instant_ns: int) -> int:
        """`hold(instant_ns)`, what it gives and what it raises."""
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

    def note(self) -> str:
        """What is to be said once: why the right was refused; else empty."""
        note, self._note = self._note, ""
        return note

    def _ordinary(self) -> _Before | None:
        """The calling thread's policy; None: one to be left alone, or that cannot be read."""
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
        self._note = f"SCHED_FIFO was refused ({error.strerror}): held under the ordinary scheduler"
