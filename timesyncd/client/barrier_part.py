"""
A barrier that releases all ranks at one instant of the common clock, on top of the job's own collective.

Which collectives run is fixed: in every `wait` the collective, then one number broadcast by rank 0 (`CarriedBarrier`: one
exchange); nothing that a rank sees of clocks, daemon or plan changes that, so ranks with different views cannot hang each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from timesyncd.client import barrier
from timesyncd.client.barrier import PLAIN, Offer, Verdict
from timesyncd.client.job import Job
from timesyncd.client.scheduling import Fifo
from timesyncd.client.slack import Slack, Waits, Work, Works
from timesyncd.ipc.job_datagram import Kind

_TWO_ROUNDS = "of a barrier in two rounds no rank knows when the last one came: CarriedBarrier tells"

_RANK_0_SAID_PLAIN = "rank 0 decided so, or has no clock to trust"


@dataclass(frozen=True, slots=True)
class Met:
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
        scheduling: Fifo | None = None,
    ) -> None:
        self._init(job, scheduling)
        self._collective = collective
        self._broadcast = broadcast

    def _init(self, job: Job, scheduling: Fifo | None) -> None:
        self._job = job
        self._scheduling = scheduling
        self._waits = Waits()
        self._works = Works()
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
        verdict = barrier.without_hold(met.instant_ns, now_ns, met.bound_ns, met.reason)
        trouble = self._mark(step, arrival_ns, now_ns if verdict else met.instant_ns)
        ready_ns = time.time_ns()  # marking may have sent a datagram
        self._was_ready(ready_ns)
        verdict = verdict or barrier.without_hold(met.instant_ns, ready_ns, met.bound_ns, met.reason)
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

    def use(self, work: Callable[[], object], cost_ns: int, name: str | None = None) -> Work:
        """
        Run `work` at the beginning of every `wait` whose slack it fits into, as `gc.collect`, a checkpoint, an evaluation or a
        prefetch of about `cost_ns`. What is given counts the runs; a run that took longer raises the cost.

        It runs in the calling thread. Without a known slack it never runs. Raises ValueError for a cost that is not above 0.
        """
        if cost_ns <= 0:
            raise ValueError(f"cost_ns {cost_ns}: work takes longer than no time")
        registered = Work(work, cost_ns, name or str(getattr(work, "__name__", work)))
        self._works.add(registered)
        return registered

    def _meet(self, step: int, arrival_ns: int) -> Met:
        """The collectives; nothing of ours in between may raise."""
        self._collective()
        offer = barrier.offered(self._job, step) if self._job.rank == 0 else Offer(PLAIN, _RANK_0_SAID_PLAIN)
        instant_ns = self._broadcast(PLAIN if offer.hold_ns < 0 else time.time_ns() + offer.hold_ns)
        bound_ns, distrust = barrier.own_clock(self._job)
        reason = offer.reason if instant_ns < 0 else distrust
        return Met(instant_ns, bound_ns, reason, None, 0)

    def _was_ready(self, now_ns: int) -> None:
        """This rank is about to hold, or to go on."""

    def _mark(self, step: int, arrival_ns: int, end_ns: int) -> str:
        """Empty, or why there is no mark."""
        meter = self._job.meter
        kind = Kind.BARRIER
        _, trouble = barrier.told(lambda: meter.mark(step, meter.next_sync(step), arrival_ns, arrival_ns, end_ns, kind))
        return f"not marked: {trouble}" if trouble else ""

    def _held(self, instant_ns: int, bound_ns: int | None) -> Verdict:
        if self._scheduling is None:
            return barrier.after_hold(barrier.hold_until(instant_ns) - instant_ns, bound_ns)
        released_ns = self._scheduling.run(barrier.hold_until, instant_ns)
        return barrier.after_hold(released_ns - instant_ns, bound_ns, self._scheduling.note())
