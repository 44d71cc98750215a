"""When a rank delays a step to its slot, and when it does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from fake_clocks import replace_time

from timesyncd.client import phase
from timesyncd.client.job import Job
from timesyncd.client.phase import (
    MAX_MOVES,
    STEPS_PER_MOVE,
    PhaseScheduler,
    StepDelay,
    StepDelayReason,
    StepPacer,
    delay_ns,
)
from timesyncd.ipc.job_segment import Phase, Plan, Signals

MS = 1_000_000
BEGIN_NS = 1_790_000_000_000 * MS
PHASE = Phase(200 * MS, 50 * MS, 1_000_000)
SLOT_NS = BEGIN_NS - BEGIN_NS % (200 * MS) + 50 * MS


def plan(phase: Phase | None = PHASE, from_step: int = 0) -> Plan:
    return Plan(version=1, from_step=from_step, phase=phase)


@pytest.mark.parametrize(
    ("late_ms", "held_ms"),
    [(0, 0), (-1, 1), (-8, 8), (-99, 99), (1, 0), (12, 0), (13, 187), (100, 100)],
)
def test_an_early_step_is_held_and_a_little_late_one_is_not(late_ms: int, held_ms: int) -> None:
    """Up to a sixteenth of the period late it catches up; later than that it waits for the next slot."""
    assert delay_ns(PHASE, SLOT_NS + late_ms * MS) == held_ms * MS


def test_no_hold_exceeds_the_planned_share() -> None:
    """A step that has to go far does so in several holds."""
    bounded = Phase(200 * MS, 50 * MS, 250_000)

    assert delay_ns(bounded, SLOT_NS - 99 * MS) == 50 * MS
    assert StepPacer().delay(0, plan(bounded), SLOT_NS - 50 * MS) == StepDelay(50 * MS)


@pytest.mark.parametrize(("share_ppm", "late_ms", "held_ms", "left_ms"), [(250_000, -99, 50, 49), (0, 80, 0, 120)])
def test_a_delay_that_the_share_limits_has_the_reason(share_ppm: int, late_ms: int, held_ms: int, left_ms: int) -> None:
    """Such a step does not start in its slot, and one that is far too late does not catch up."""
    held = StepPacer().delay(0, plan(Phase(200 * MS, 50 * MS, share_ppm)), SLOT_NS + late_ms * MS)

    text = f"the step starts {left_ms * MS} ns before its slot: the plan limits the delay to {held_ms * MS} ns"
    assert held == StepDelay(held_ms * MS, StepDelayReason.DELAY_LIMITED, text)


def test_a_plan_starts_with_its_first_step_and_the_last_one_holds_until_then() -> None:
    """Ranks may see a plan at different moments, but follow it from one step on."""
    pacer, other = StepPacer(), Phase(200 * MS, 60 * MS, 1_000_000)
    before = pacer.delay(9, plan(from_step=10), SLOT_NS - 5 * MS)
    first = pacer.delay(10, plan(from_step=10), SLOT_NS - 5 * MS)
    old = pacer.delay(11, plan(other, from_step=12), SLOT_NS - 5 * MS)
    new = pacer.delay(12, plan(other, from_step=12), SLOT_NS - 5 * MS)
    none = pacer.delay(13, plan(None, from_step=99), SLOT_NS - 5 * MS)

    assert before == StepDelay(0, StepDelayReason.PHASE_NOT_STARTED, "the phase starts with step 10")
    assert (first.delay_ns, old.delay_ns, new.delay_ns) == (5 * MS, 5 * MS, 15 * MS)
    assert none == StepDelay(0, StepDelayReason.NO_PHASE_PLANNED, "no phase is planned")


def test_a_job_whose_period_does_not_fit_is_rarely_delayed() -> None:
    """Steps that are late again and again move to another slot twice, and then once in so many steps."""
    pacer = StepPacer()
    held = [pacer.delay(step, plan(), SLOT_NS + 20 * MS) for step in range(100)]
    moved = [step for step, each in enumerate(held) if each.delay_ns]

    assert moved[:MAX_MOVES] == [0, 1]
    assert set(map(int.__sub__, moved[3:], moved[2:])) == {STEPS_PER_MOVE}
    assert held[5].reason_code is StepDelayReason.MOVED_TOO_OFTEN


def test_a_new_slot_may_be_taken_at_once() -> None:
    """A plan that was changed is no sign that the period does not fit."""
    pacer, other = StepPacer(), Phase(200 * MS, 60 * MS, 1_000_000)
    for step in range(10):
        pacer.delay(step, plan(), SLOT_NS + 20 * MS)

    assert pacer.delay(10, plan(other), SLOT_NS + 30 * MS).delay_ns == 180 * MS


@pytest.mark.parametrize(
    "phase",
    [Phase(0, 0, 10), Phase(-5, 0, 10), Phase(10**12, 0, 10), Phase(10**6, 0, 1_000_001), Phase(10**6, 0, -1)],
)
def test_a_phase_that_cannot_be_is_not_followed(phase: Phase) -> None:
    """No memory that others write can hold a job for longer than a step's period."""
    assert StepPacer().delay(5, plan(phase), SLOT_NS).delay_ns == 0


def test_every_rank_holds_alike() -> None:
    """The law depends on the steps, the plan and the common clock alone."""
    ranks = [StepPacer(), StepPacer()]
    times = [SLOT_NS + late * MS for late in (-70, 13, 190, 400, 621, 800)]
    held = [[rank.delay(step, plan(), now_ns).delay_ns for step, now_ns in enumerate(times)] for rank in ranks]

    assert held[0] == held[1]


class Meter:
    def step_key(self, step: int) -> int:
        return step


@dataclass
class FakeJob:
    """What a PhaseScheduler asks of a job."""

    planned: Plan
    alignment_ns: int | None = 0
    meter: Meter = field(default_factory=Meter)

    def plan(self) -> Plan:
        return self.planned

    def signals(self) -> Signals:
        return Signals(2, 10, 0, alignment_ns=self.alignment_ns, alignment_growth_ppb=0)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    replace_time(monkeypatch, phase, sleep=found.append, time_ns=lambda: SLOT_NS - 5 * MS)
    return found


def scheduler(job: FakeJob) -> PhaseScheduler:
    return PhaseScheduler(cast(Job, job))


def test_the_scheduler_sleeps_until_the_slot(slept: list[float]) -> None:
    """Ranks that read one clock need no bound on it."""
    assert scheduler(FakeJob(plan())).before_step(3) == StepDelay(5 * MS)
    assert slept == [0.005]


@pytest.mark.parametrize(("bound_ns", "held_ms"), [(None, 0), (4 * MS, 5), (4 * MS + 1, 0)])
def test_a_clock_that_is_not_known_well_enough_holds_nothing(
    slept: list[float], monkeypatch: pytest.MonkeyPatch, bound_ns: int | None, held_ms: int
) -> None:
    """A bound may be a fiftieth of the period; an unknown bound is reported with its reason."""
    reason = "no segment" if bound_ns is None else ""
    monkeypatch.setattr("timesyncd.client.phase.own_clock_bound", lambda job: (bound_ns, reason))
    held = scheduler(FakeJob(plan(), alignment_ns=None)).before_step(3)

    assert held.delay_ns == held_ms * MS
    assert bool(slept) == bool(held_ms)
    assert (
        held.reason_code
        is {
            None: StepDelayReason.CLOCK_NOT_TRUSTED,
            4 * MS: StepDelayReason.OK,
            4 * MS + 1: StepDelayReason.CLOCK_TOO_INACCURATE,
        }[bound_ns]
    )
    assert bound_ns is not None or held.reason == "no segment"


def test_without_a_daemon_no_step_is_held() -> None:
    """The plain plan has no phase."""
    job = Job("phase-alone", runtime_dir="/nonexistent")
    held = PhaseScheduler(job).before_step(0)
    job.close()

    assert held == StepDelay(0, StepDelayReason.NO_PHASE_PLANNED, "no phase is planned")
