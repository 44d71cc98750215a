"""Ranks as threads, each with a view of the world of its own, for the tests of the barriers."""

from __future__ import annotations

import os
import queue
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reason, unbounded
from timesyncd.client.barrier import Barrier, Verdict
from timesyncd.client.clock import Clock
from timesyncd.client.fused_barrier import FusedBarrier
from timesyncd.client.job import Job
from timesyncd.clocks import SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.ipc import clock_segment
from timesyncd.ipc.job_datagram import job_id
from timesyncd.ipc.job_segment import JobWriter, Plan, Signals, segment_path
from timesyncd.ipc.seqlock import SegmentWriter

EPOCH = clock_segment.Epoch(boot_id(), time_namespace())
MS = 1_000_000
PLAN = Plan(version=1, mode="timed", slack_ns=2 * MS, guard_ns=MS)
APART = Signals(world_size=2, steps_complete=5, steps_incomplete=0, alignment_ns=50_000, alignment_growth_ppb=0)
ONE_CLOCK = replace(APART, alignment_ns=0)


@dataclass(frozen=True)
class View:
    """
    What one rank sees: its clock's bound against the grandmaster (None: unknown), what its daemon wrote, for which attempt, and what of
    the job's methods raises.
    """

    gm_bound_ns: int | None = None
    signals: Signals | None = None
    plan: Plan = PLAN
    age_ns: int = 0
    attempt: int = 0
    broken: tuple[str, ...] = ()


VIEWS = {
    "no daemon": View(),
    "clock alone": View(40_000),
    "timed": View(40_000, APART),
    "clock unknown": View(None, APART),
    "one clock": View(None, ONE_CLOCK),
    "plain": View(40_000, APART, replace(PLAN, mode="plain")),
    "later": View(40_000, APART, replace(PLAN, from_step=10**6)),
    "stale": View(40_000, APART, age_ns=10**12),
    "unaligned": View(40_000, replace(APART, alignment_ns=None)),
    "too long": View(40_000, APART, replace(PLAN, slack_ns=10**15)),
    "longer slack": View(40_000, APART, replace(PLAN, version=2, slack_ns=9 * MS)),
    "poisoned": View(40_000, replace(APART, alignment_ns=2**63 - 1, alignment_growth_ppb=2**40)),
    "other attempt": View(40_000, APART, attempt=7),
    "signals raise": View(40_000, APART, broken=("signals",)),
    "plan raises": View(40_000, APART, broken=("plan",)),
    "all raises": View(40_000, APART, broken=("signals", "plan", "clock")),
}

#: Two ranks' views: each view of either rank beside each kind of the other's. Rank 0 decides, so its view is of two kinds (it releases at an
#: instant or not), and so is rank 1's (it trusts its clock or not); a grid of all 16 x 16 repeats these pairs.
PAIRS = sorted(
    {(view, other) for view in VIEWS for other in ("timed", "clock unknown", "all raises")}
    | {(other, view) for view in VIEWS for other in ("timed", "one clock", "plain", "no daemon")}
)


def show(view: View, folder: Path, job: Job) -> None:
    """Write what a daemon with this view writes for this process."""
    now_ns = SystemClocks().boottime_ns()
    (folder / "jobs").mkdir()
    if view.signals is not None:
        path = segment_path(folder, job_id(os.getuid(), job.name, view.attempt))
        JobWriter(path, EPOCH).write(now_ns - view.age_ns, replace(view.signals, joined_ns=(job.joined_ns,)), view.plan)
    gm = unbounded(Reason.PHC_NOT_MEASURED) if view.gm_bound_ns is None else Bound(view.gm_bound_ns)
    status = ClockStatus.UNKNOWN if view.gm_bound_ns is None else ClockStatus.SYNCHRONIZED
    nothing = unbounded(Reason.ARBITRARY_TIMESCALE)
    bound = ErrorBound(now_ns, real_minus_boot_ns(SystemClocks()), nothing, gm, nothing, status, ClockStatus.UNKNOWN)
    writer = SegmentWriter(
        folder / clock_segment.NAME, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT
    )
    writer.write(clock_segment.encode(bound, EPOCH))


def raising() -> NoReturn:
    raise RuntimeError("broken")


class BrokenClock:
    """A clock that fails."""

    def gm_now(self) -> NoReturn:
        raising()

    def read(self) -> NoReturn:
        raising()


def job_with(view: View, folder: Path, rank: int, world_size: int) -> Job:
    folder.mkdir(parents=True)
    job = Job("job", rank, world_size, 0, runtime_dir=folder)
    show(view, folder, job)
    for name in view.broken:
        setattr(job, name, BrokenClock() if name == "clock" else raising)
    return job


class Ranks:
    """Ranks as threads, with collectives of their own that count how often they ran."""

    def __init__(self, folder: Path, views: Sequence[View]) -> None:
        self._views = views
        self.collectives = [0] * len(views)
        self.broadcasts = [0] * len(views)
        self.exchanges = [0] * len(views)
        self.released_ns = [0] * len(views)
        self.verdicts: list[list[Verdict]] = [[] for _ in views]
        self.jobs = [job_with(view, folder / str(rank), rank, len(views)) for rank, view in enumerate(views)]
        self.barriers: list[Barrier] = [self._barrier(rank) for rank in range(len(views))]
        self._meet = threading.Barrier(len(views), timeout=60)
        self._broadcasts_received: list[queue.Queue[int]] = [queue.Queue() for _ in views]

    def _barrier(self, rank: int) -> Barrier:
        def collective() -> None:
            self.collectives[rank] += 1
            self._meet.wait()

        def broadcast(number: int) -> int:
            self.broadcasts[rank] += 1
            for receiver in self._broadcasts_received if rank == 0 else ():
                receiver.put(number)
            return self._broadcasts_received[rank].get(timeout=60)

        return Barrier(self.jobs[rank], collective, broadcast)

    def run(self, steps: int, before: Callable[[int, int], object] = lambda rank, step: None) -> None:
        """Every rank waits at every step, after `before(rank, step)`; then the jobs are closed."""
        threads = [threading.Thread(target=self._rank, args=(rank, steps, before)) for rank in range(len(self.jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for job, view in zip(self.jobs, self._views, strict=True):
            if "clock" in view.broken:
                job.clock = Clock()
            job.close()

    def _rank(self, rank: int, steps: int, before: Callable[[int, int], object]) -> None:
        try:
            for step in range(steps):
                before(rank, step)
                verdict = self.barriers[rank].wait(step)
                self.released_ns[rank] = time.time_ns()
                self.verdicts[rank].append(verdict)
        except BaseException:
            self._meet.abort()
            raise


class FusedRanks(Ranks):
    """As Ranks, with one exchange a wait. `clocks` are the numbers of the ranks' clocks; None: all read this one."""

    def __init__(self, folder: Path, views: Sequence[View], clocks: Sequence[int] | None = None) -> None:
        super().__init__(folder, views)
        self._passed: list[Sequence[int]] = [()] * len(views)
        for rank, clock in enumerate(clocks or ()):
            self.barriers[rank]._clock = clock  # type: ignore[attr-defined]

    def _barrier(self, rank: int) -> FusedBarrier:
        def exchange(numbers: Sequence[int]) -> Sequence[int]:
            self.exchanges[rank] += 1
            struct.pack(f"{len(numbers)}q", *numbers)  # a tensor of int64 takes no more
            self._passed[rank] = numbers
            self._meet.wait()
            largest = [max(column) for column in zip(*self._passed, strict=True)]
            self._meet.wait()
            return largest

        return FusedBarrier(self.jobs[rank], exchange)
