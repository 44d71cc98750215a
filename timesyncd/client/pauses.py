"""
Pauses that all ranks make at the same time, by the clock: garbage collection, checkpoints, housekeeping of the host.

A pause that each rank makes when it likes stops all the others in their next collective. At multiples of a period of the
common clock all ranks make theirs together, and nothing has to be exchanged for it.
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

#: A rank that comes so shortly before an instant holds for it, if it knows nothing better; never longer than the second.
_HOLD_NS = 2_000_000
_MOST_HOLD_NS = 50_000_000

#: A thread looks at its clock at least so often, since clocks are set, and jobs close.
_LOOK_NS = 100_000_000

#: A clock that is not known to a tenth of the period gives no common instant.
_PERIODS_TOLERANCE = 10


class Pauses:
    """
    Pauses at the multiples of `every_s` of the common clock (`Clock.gm_now`, ns since 1970), for a loop that asks, `due(step)`, or for
    a job that is not in lock-step, `at_instants(work)`.

    Where the clock is not to be trusted, `due` counts steps instead, one pause in `every_steps`: the same on all ranks of a job in
    lock-step. `reason` says why, and is empty while the clock decides. With a `barrier` that the ranks pass in every step, `due` goes by
    the instant that they were told there last: the same number on all ranks, so they cannot disagree, whatever their clocks show.

    Counts: `by_clock`, `by_step`. Raises ValueError for a period or a number of steps that is not above 0, and for a period without end.
    """

    def __init__(self, job: Job, every_s: float, every_steps: int, barrier: Barrier | None = None) -> None:
        if not (0 < every_s * NS_PER_S < math.inf and every_steps > 0):
            raise ValueError(f"a pause every {every_s} s, or {every_steps} steps: both must be above 0, and finite")
        self.by_clock = self.by_step = 0
        self.reason = ""
        self._job = job
        self._period_ns = max(1, round(every_s * NS_PER_S))
        self._every_steps = every_steps
        self._barrier = barrier
        self._slot: int | None = None
        self._block: int | None = None

    def due(self, step: int) -> bool:
        """
        Whether the pause is to be made now, between two steps; call it once in every step, at the same place.

        A rank that comes shortly before the instant holds for it here: for no longer than the ranks' arrivals are apart (the signals'
        99th percentile) and their clocks may be, and never above 50 ms. The pause before the first period is over is none.
        """
        if self._barrier is None:
            now_ns, self.reason = self._now()
            ahead_ns = self._ahead_ns() if now_ns is not None else 0
        else:
            now_ns, ahead_ns = self._barrier.agreed_ns, 0
            self.reason = "" if now_ns is not None else "the barrier was plain"
        return self._counted(step) if now_ns is None else self._reached(step, now_ns, ahead_ns)

    @contextmanager
    def at_instants(self, work: Callable[[], object]) -> Iterator[None]:
        """
        Inside `with`, a thread runs `work` at every instant, in the middle of whatever the job does: Python runs nothing else meanwhile if
        it is `gc.collect`. A clock that is not trusted is used all the same, and `reason` says so. The first error of `work` ends the
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

    def _now(self) -> tuple[int | None, str]:
        """This rank's reading of the common clock; None, and why, when it is not known well enough."""
        bound_ns, distrust = client_barrier.own_clock_bound(self._job)
        if bound_ns is None:
            return None, distrust
        if bound_ns * _PERIODS_TOLERANCE > self._period_ns:
            return None, f"the clock is known to {bound_ns} ns, which is above a tenth of the period"
        return time.time_ns(), ""

    def _ahead_ns(self) -> int:
        """How long before an instant a rank begins to hold for it."""
        signals = client_barrier.signals_and_plan(self._job)[0]
        skew_ns = None if signals is None else signals.arrival_skew_p99_ns
        apart_ns = 0 if signals is None else signals.alignment_ns or 0
        wanted_ns = (_HOLD_NS if skew_ns is None else skew_ns) + apart_ns
        return min(wanted_ns, _MOST_HOLD_NS, self._period_ns // _PERIODS_TOLERANCE)

    def _reached(self, step: int, now_ns: int, ahead_ns: int) -> bool:
        slot, before = (now_ns + ahead_ns) // self._period_ns, self._slot
        self._slot = slot
        # The first look, and one on a clock that was set back, begin anew.
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
                ended.wait(min(left_ns, _LOOK_NS) / NS_PER_S)
                continue
            slot = now_ns // self._period_ns
            # The clock was set back: begin anew.
            if left_ns > 0:
                continue
            self.reason = self._now()[1]
            self.by_clock += 1
            try:
                work()
            except Exception as error:  # noqa: BLE001  raised at the end of the `with`
                errors.append(error)
                return


@contextmanager
def gc_disabled() -> Iterator[None]:
    """No automatic garbage collection inside `with`: for a loop that calls `gc.collect()` where its pauses are due."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
