"""
Pauses that all ranks make at the same time, by the clock: garbage collection, checkpoints, host maintenance.

A rank that pauses on its own stops all others in their next collective. Here all ranks pause together, at multiples of a period of the
common clock, and exchange nothing for it.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from timesyncd.client import barrier as client_barrier
from timesyncd.client.barrier import Barrier
from timesyncd.client.job import Job
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.wire_types import Code

#: A rank that arrives this shortly before an instant holds for it, while the arrival skew is unknown; and the limit of every hold.
_HOLD_NS = 2_000_000
_MAX_HOLD_NS = 50_000_000

#: The thread reads its clock at least this often, since clocks are set and jobs close.
_POLL_NS = 100_000_000

#: A clock whose bound exceeds this fraction (1/10) of the period has no common instant.
_PERIOD_DIVISOR = 10


class PauseReason(Code):
    """Why pauses are counted in steps and not taken from the clock; OK: the clock decides."""

    OK = "ok"
    CLOCK_NOT_TRUSTED = "clock_not_trusted"
    CLOCK_TOO_INACCURATE = "clock_too_inaccurate"
    PLAIN_BARRIER = "plain_barrier"


class Pauses:
    """
    Pauses at the multiples of `every_s` of the common clock (`Clock.gm_now`, ns since 1970).

    A training loop asks `due(step)`; a job that is not in lock-step uses `in_background(work)`.

    Where the clock is not trusted, `due` counts steps instead, one pause in `every_steps`: the same on all ranks of a job in lock-step.
    `reason_code` and `reason` give the cause (OK and empty: the clock decides). With a `barrier` that the ranks pass in every step, `due` uses
    that barrier's last release instant: the same number on all ranks, so they cannot disagree, whatever their clocks show.

    Counts: `by_clock`, `by_step`. Raises ValueError for a period or a number of steps that is not above 0 and finite.
    """

    def __init__(self, job: Job, every_s: float, every_steps: int, barrier: Barrier | None = None) -> None:
        if not (0 < every_s * NS_PER_S < math.inf and every_steps > 0):
            raise ValueError(f"every_s = {every_s}, every_steps = {every_steps}: both must be above 0 and finite")
        self.by_clock = self.by_step = 0
        self.reason_code = PauseReason.OK
        self.reason = ""
        self._job = job
        self._period_ns = max(1, round(every_s * NS_PER_S))
        self._every_steps = every_steps
        self._barrier = barrier
        self._slot: int | None = None
        self._block: int | None = None

    def due(self, step: int) -> bool:
        """
        Whether to pause now, between two steps. Call it once in every step, at the same place.

        A rank that comes shortly before the instant holds for it here: for at most the arrival skew (the signals' 99th percentile)
        plus the alignment, and never above 50 ms. There is no pause before the first period is over.
        """
        if self._barrier is None:
            now_ns = self._now()
            ahead_ns = self._ahead_ns() if now_ns is not None else 0
        else:
            now_ns, ahead_ns = self._barrier.agreed_ns, 0
            if now_ns is None:
                self._explain(PauseReason.PLAIN_BARRIER, "the barrier was plain")
            else:
                self._explain(PauseReason.OK, "")
        return self._counted(step) if now_ns is None else self._reached(step, now_ns, ahead_ns)

    @contextmanager
    def in_background(self, work: Callable[[], object]) -> Iterator[None]:
        """
        Inside `with`, a thread runs `work` at every instant, whatever the job does then. If it is `gc.collect`, Python runs nothing else.

        A clock that is not trusted is used all the same, and `reason_code` and `reason` give the cause. The first error of `work` ends the
        thread, and is raised at the end of the `with`.
        """
        ended = threading.Event()
        errors: list[Exception] = []
        thread = threading.Thread(target=self._run, args=(work, ended, errors), name="timesyncd-pauses", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if errors:
            raise errors[0]

    def _now(self) -> int | None:
        """This rank's reading of the common clock; None, with the reason set, while its bound is unknown or too large."""
        bound_ns, reason = client_barrier.own_clock_bound(self._job)
        if bound_ns is None:
            self._explain(PauseReason.CLOCK_NOT_TRUSTED, reason)
            return None
        if bound_ns * _PERIOD_DIVISOR > self._period_ns:
            text = f"the clock's bound of {bound_ns} ns is above a tenth of the period"
            self._explain(PauseReason.CLOCK_TOO_INACCURATE, text)
            return None
        self._explain(PauseReason.OK, "")
        return time.time_ns()

    def _explain(self, code: PauseReason, text: str) -> None:
        self.reason_code, self.reason = code, text

    def _ahead_ns(self) -> int:
        """How long before an instant a rank starts to hold for it."""
        signals = client_barrier.signals_and_plan(self._job)[0]
        skew_ns = None if signals is None else signals.arrival_skew_p99_ns
        apart_ns = 0 if signals is None else signals.alignment_ns or 0
        wanted_ns = (_HOLD_NS if skew_ns is None else skew_ns) + apart_ns
        return min(wanted_ns, _MAX_HOLD_NS, self._period_ns // _PERIOD_DIVISOR)

    def _reached(self, step: int, now_ns: int, ahead_ns: int) -> bool:
        slot, before = (now_ns + ahead_ns) // self._period_ns, self._slot
        self._slot = slot
        # The first reading, and one of a clock that was set back, only start the count.
        if before is None or slot <= before:
            return False
        if slot * self._period_ns > now_ns:
            client_barrier.hold_until(slot * self._period_ns)
        self._block = step // self._every_steps
        self.by_clock += 1
        return True

    def _counted(self, step: int) -> bool:
        block, before = step // self._every_steps, self._block
        self._slot, self._block = None, block
        if before is None or block == before:
            return False
        self.by_step += 1
        return True

    def _run(self, work: Callable[[], object], ended: threading.Event, errors: list[Exception]) -> None:
        slot = time.time_ns() // self._period_ns
        while not ended.is_set():
            now_ns = time.time_ns()
            left_ns = (slot + 1) * self._period_ns - now_ns
            if 0 < left_ns <= self._period_ns:
                ended.wait(min(left_ns, _POLL_NS) / NS_PER_S)
                continue
            slot = now_ns // self._period_ns
            # The clock was set back: start again.
            if left_ns > 0:
                continue
            self._now()
            self.by_clock += 1
            try:
                work()
            except Exception as error:  # noqa: BLE001  raised at the end of the `with`
                errors.append(error)
                return


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Inside `with`, garbage is not collected automatically: the loop calls `gc.collect()` where its pauses are due."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
