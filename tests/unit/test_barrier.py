"""The barrier: who decides, who holds, and that no two views of the world can hang a job. Threads are the ranks."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from timesyncd import segment
from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reason, unbounded
from timesyncd.client import barrier as barrier_module
from timesyncd.client.barrier import (
    MAX_HOLD_NS,
    PLAIN,
    Barrier,
    Verdict,
    after_hold,
    hold_until,
    why_plain,
    without_hold,
)
from timesyncd.client.job import Job
from timesyncd.clocks import SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.joblink import JobWriter, Plan, Signals, job_id, segment_path
from timesyncd.shm import SegmentWriter

EPOCH = segment.Epoch(boot_id(), time_namespace())
MS = 1_000_000
PLAN = Plan(version=1, mode="timed", slack_ns=2 * MS, guard_ns=MS)
APART = Signals(world_size=2, steps_complete=5, steps_incomplete=0, alignment_ns=50_000, alignment_growth_ppb=0)
ONE_CLOCK = replace(APART, alignment_ns=0)


@dataclass(frozen=True)
class View:
    """What one rank sees: its clock's bound against the grandmaster (None: unknown), and what its daemon wrote."""

    gm_bound_ns: int | None = None
    signals: Signals | None = None
    plan: Plan = PLAN
    age_ns: int = 0


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
}


def show(view: View, folder: Path, name: str) -> None:
    """Write what a daemon with this view writes."""
    now_ns = SystemClocks().boottime_ns()
    (folder / "jobs").mkdir()
    if view.signals is not None:
        path = segment_path(folder, job_id(os.getuid(), name, 0))
        JobWriter(path, EPOCH).write(now_ns - view.age_ns, view.signals, view.plan)
    gm = unbounded(Reason.PHC_NOT_MEASURED) if view.gm_bound_ns is None else Bound(view.gm_bound_ns)
    status = ClockStatus.UNKNOWN if view.gm_bound_ns is None else ClockStatus.SYNCHRONIZED
    nothing = unbounded(Reason.ARBITRARY_TIMESCALE)
    bound = ErrorBound(now_ns, real_minus_boot_ns(SystemClocks()), nothing, gm, nothing, status, ClockStatus.UNKNOWN)
    writer = SegmentWriter(folder / segment.NAME, segment.MAGIC, segment.LAYOUT_VERSION, segment.WORD_COUNT)
    writer.write(segment.encode(bound, EPOCH))


class World:
    """Ranks as threads, with a collective and a broadcast of their own that count how often they ran."""

    def __init__(self, folder: Path, views: list[View]) -> None:
        self.collectives = [0] * len(views)
        self.broadcasts = [0] * len(views)
        self.released_ns = [0] * len(views)
        self.verdicts: list[list[Verdict]] = [[] for _ in views]
        self._meet = threading.Barrier(len(views), timeout=60)
        self._said: list[queue.Queue[int]] = [queue.Queue() for _ in views]
        self.jobs = []
        for rank, view in enumerate(views):
            place = folder / str(rank)
            place.mkdir(parents=True)
            show(view, place, "job")
            self.jobs.append(Job("job", rank, len(views), 0, runtime_dir=place))

    def run(self, steps: int) -> None:
        """Every rank waits at every step."""
        threads = [threading.Thread(target=self._rank, args=(rank, steps)) for rank in range(len(self.jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for job in self.jobs:
            job.close()

    def _rank(self, rank: int, steps: int) -> None:
        def collective() -> None:
            self.collectives[rank] += 1
            self._meet.wait()

        def broadcast(number: int) -> int:
            self.broadcasts[rank] += 1
            for said in self._said if rank == 0 else ():
                said.put(number)
            return self._said[rank].get(timeout=60)

        barrier = Barrier(self.jobs[rank], collective, broadcast)
        for step in range(steps):
            verdict = barrier.wait(step)
            self.released_ns[rank] = time.time_ns()
            self.verdicts[rank].append(verdict)


@pytest.mark.parametrize("view", ["timed", "one clock"])
def test_all_ranks_are_released_at_one_instant(tmp_path: Path, view: str) -> None:
    """Clocks that are known well enough, or one clock without any PTP: nobody goes on before the instant."""
    patient = replace(VIEWS[view], plan=replace(PLAN, slack_ns=200 * MS))
    world = World(tmp_path, [patient] * 3)
    before_ns = time.time_ns()
    world.run(1)

    assert [(v.mode, v.on_time, v.reason) for (v,) in world.verdicts] == [("timed", True, "")] * 3
    assert all(v.lateness_ns is not None and v.lateness_ns >= 0 for (v,) in world.verdicts)
    assert min(world.released_ns) >= before_ns + 201 * MS


def test_the_verdict_carries_the_own_clocks_bound(tmp_path: Path) -> None:
    """On a clock of its own a rank's release is known to its gm bound; on a shared one to a reading's granularity."""
    own, shared = World(tmp_path / "own", [VIEWS["timed"]]), World(tmp_path / "shared", [VIEWS["one clock"]])
    own.run(1)
    shared.run(1)

    assert own.verdicts[0][0].bound_ns in (40_000, 40_001)
    assert shared.verdicts[0][0].bound_ns == 1


@pytest.mark.parametrize("views", list(itertools.product(VIEWS, repeat=2)), ids=" | ".join)
def test_ranks_with_different_views_never_hang(tmp_path: Path, views: tuple[str, str]) -> None:
    """Whatever each rank sees, all run the same collectives, and rank 0's view alone decides."""
    world = World(tmp_path, [VIEWS[name] for name in views])
    world.run(2)

    timed = views[0] in ("timed", "one clock", "longer slack")
    trusts = views[1] not in ("no daemon", "clock unknown")
    assert world.collectives == [2, 2]
    assert world.broadcasts == [2, 2]
    assert {v.mode for v in world.verdicts[0]} == {"timed" if timed else "plain"}
    assert {v.mode for v in world.verdicts[1]} == {"timed" if timed and trusts else "plain"}


def test_a_rank_that_cannot_trust_its_clock_says_so(tmp_path: Path) -> None:
    """It goes on at once, and gives its own clock's reason."""
    world = World(tmp_path, [VIEWS["timed"], VIEWS["clock unknown"]])
    world.run(1)

    assert world.verdicts[1] == [Verdict("plain", None, None, None, Reason.PHC_NOT_MEASURED.text)]


@pytest.mark.parametrize(
    ("plan", "signals", "distrust", "reason"),
    [
        (PLAN, APART, "", ""),
        (PLAN, ONE_CLOCK, "", ""),
        (PLAN, replace(APART, alignment_ns=MS), "", ""),
        (PLAN, None, "", "no signals from timesyncd"),
        (Plan(), APART, "", "the plan says plain for step 7"),
        (replace(PLAN, from_step=8), APART, "", "the plan says plain for step 7"),
        (PLAN, APART, "stale", "stale"),
        (PLAN, replace(APART, alignment_ns=None), "", "the alignment of the job's nodes is unknown"),
        (
            PLAN,
            replace(APART, alignment_ns=MS + 1),
            "",
            "the nodes may be 1000001 ns apart, more than the plan's guard of 1000000 ns",
        ),
        (replace(PLAN, slack_ns=MAX_HOLD_NS), APART, "", "the plan's slack and guard are not within 1000000000 ns"),
        (replace(PLAN, slack_ns=-(2**62)), APART, "", "the plan's slack and guard are not within 1000000000 ns"),
    ],
)
def test_rank_0_decides_by_plan_alignment_and_its_own_clock(
    plan: Plan, signals: Signals | None, distrust: str, reason: str
) -> None:
    """Timed only when nothing speaks against it, and else the first thing that does."""
    assert why_plain(7, plan, signals, distrust) == reason


@pytest.mark.parametrize(
    ("instant_ns", "bound_ns", "verdict"),
    [
        (1_000, 5, None),
        (1_000 + MAX_HOLD_NS, 5, None),
        (1_001 + MAX_HOLD_NS, 5, Verdict("plain", None, None, None, "the instant lies 1000000001 ns ahead: not held")),
        (2**63 - 1, 5, Verdict("plain", None, None, None, "the instant lies 9223372036854774807 ns ahead: not held")),
        (999, 5, Verdict("timed", False, 1, 5, "the instant had passed: the slack was too short")),
        (PLAIN, 5, Verdict("plain", None, None, None, "why")),
        (1_000, None, Verdict("plain", None, None, None, "why")),
    ],
)
def test_a_rank_holds_only_for_an_instant_that_it_can_believe(
    instant_ns: int, bound_ns: int | None, verdict: Verdict | None
) -> None:
    """Late: on at once, and said. Absurdly far ahead, no instant, or no clock to trust: on at once, plain."""
    assert without_hold(instant_ns, 1_000, bound_ns, "why") == verdict


@pytest.mark.parametrize(
    ("lateness_ns", "mode"), [(0, "timed"), (MAX_HOLD_NS, "timed"), (-1, "plain"), (10**12, "plain")]
)
def test_a_clock_that_was_set_during_the_hold_is_told(lateness_ns: int, mode: str) -> None:
    """Going on before the instant, or later than any hold, is a clock that moved; such a release is not called timed."""
    assert after_hold(lateness_ns, 5).mode == mode


class SteppingClock:
    """Both clocks run with every reading; CLOCK_REALTIME is set by `step_ns` after a few."""

    def __init__(self, step_ns: int) -> None:
        self._ticks: Iterator[int] = itertools.count(0, MS)
        self._step_ns = step_ns

    def time_ns(self) -> int:
        now_ns = next(self._ticks)
        return now_ns + (self._step_ns if now_ns > 10 * MS else 0)

    def monotonic_ns(self) -> int:
        return next(self._ticks)

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 1


@pytest.mark.parametrize(("step_ns", "in_time"), [(-(10**13), False), (10**13, True)])
def test_a_clock_that_is_set_cannot_hold_a_rank(monkeypatch: pytest.MonkeyPatch, step_ns: int, in_time: bool) -> None:
    """Set back by hours, the hold ends on CLOCK_MONOTONIC; set forward, at once."""
    monkeypatch.setattr(barrier_module, "time", SteppingClock(step_ns))

    assert (hold_until(500 * MS) >= 500 * MS) == in_time


def test_the_barrier_is_marked_up_to_its_instant() -> None:
    """The mark is made before the hold, so that nothing runs after the release, and ends at the instant."""
    marks: list[tuple[int, ...]] = []
    instant_ns = time.time_ns() + 50 * MS
    meter = SimpleNamespace(next_sync=lambda step: 3, mark=lambda *fields: marks.append(fields))
    job = SimpleNamespace(rank=1, meter=meter, signals=lambda: ONE_CLOCK)

    verdict = Barrier(job, lambda: None, lambda _: instant_ns).wait(8)  # type: ignore[arg-type]

    ((step, sync, arrival_ns, begin_ns, end_ns, _),) = marks
    assert (step, sync, verdict.mode) == (8, 3, "timed")
    assert (arrival_ns, end_ns) == (begin_ns, instant_ns)
