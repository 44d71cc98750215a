"""SCHED_FIFO for the hold of a barrier alone: what is released by a clock must run when the instant comes."""

from __future__ import annotations

import os
from collections.abc import Callable

#: Only from these a thread is raised: whoever has chosen a real-time policy keeps it.
_ORDINARY = (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE)

_Before = tuple[int, os.sched_param]


class Fifo:
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
