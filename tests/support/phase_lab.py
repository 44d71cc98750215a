"""
Jobs on one shared link, simulated: each step computes, then sends; n jobs that send at once get an n-th of the link each.

The hub's planner and the ranks' law are the real ones; between them lie the delays of a real installation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from timesyncd.client.phase import StepPacer
from timesyncd.clocks import NS_PER_S
from timesyncd.hub.phase_fit import StepTimes
from timesyncd.hub.phases import PLAN_EVERY_NS, LinkPlan, Member, decide
from timesyncd.ipc.job_segment import Plan

MS = 1_000_000
BEGIN_NS = 1_790_000_000 * NS_PER_S

#: From a step's end until the hub knows of it, and from the hub's decision until the ranks do.
RECEIVED_AFTER_NS, PUBLISHED_AFTER_NS = 300 * MS, 700 * MS


@dataclass
class SimulatedJob:
    """
    `compute_ns` gives a step's length before it sends; `send_ns` is how long that takes alone. `behind_ns`: its first step begins
    so much later. `on_link` False: its sending is slowed by no job, and slows none.
    """

    name: str
    compute_ns: Callable[[random.Random], float]
    send_ns: float
    behind_ns: int = 0
    on_link: bool = True
    obeys: bool = True
    pacer: StepPacer = field(default_factory=StepPacer)
    plan: Plan = field(default_factory=Plan)
    steps: list[StepTimes] = field(default_factory=list)
    start_ns: float = 0
    sends_ns: float = 0
    left_ns: float = 0
    is_sending: bool = False
    held_ns: int = 0

    def period_ns(self, first: int, last: int | None = None) -> float:
        """The mean step from the first to the last."""
        steps = self.steps[first:last]
        return (steps[-1].start_ns - steps[0].start_ns) / (len(steps) - 1)


def steady(compute_ns: float, jitter: float = 0.0, outliers: float = 0.0) -> Callable[[random.Random], float]:
    """A step's compute, longer by a (half normal) share of `jitter`; a share of `outliers` by up to 80 % more."""

    def draw(source: random.Random) -> float:
        late = compute_ns * (1 + abs(source.gauss(0, jitter)))
        return late + (0.8 * compute_ns * source.random() if source.random() < outliers else 0)

    return draw


def run(jobs: Sequence[SimulatedJob], seconds: float, plans: bool = True, seed: int = 1) -> LinkPlan:
    """Let the jobs run, with a hub that plans or without."""
    return Lab(jobs, plans, seed).run(seconds)


class Lab:
    def __init__(self, jobs: Sequence[SimulatedJob], plans: bool, seed: int) -> None:
        self.plan = LinkPlan()
        self._jobs = jobs
        self._plans = plans
        self._random = random.Random(seed)
        self._now_ns = float(BEGIN_NS)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        for job in jobs:
            self._at(BEGIN_NS + job.behind_ns, partial(self._before_step, job))
        self._at(BEGIN_NS + PLAN_EVERY_NS, self._round)

    def run(self, seconds: float) -> LinkPlan:
        end_ns = BEGIN_NS + seconds * NS_PER_S
        while self._now_ns < end_ns:
            self._advance()
        return self.plan

    def _at(self, at_ns: float, act: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (at_ns, self._count, act))

    def _advance(self) -> None:
        """To the next event, or to the next end of a transfer if that comes first."""
        senders = [job for job in self._jobs if job.is_sending]
        shared = sum(job.on_link for job in senders)
        ends = [(self._now_ns + max(0, job.left_ns) * (shared if job.on_link else 1), job) for job in senders]
        first_ns, first = min(ends, key=lambda end: end[0], default=(float("inf"), None))
        until_ns = min(first_ns, self._events[0][0])
        for job in senders:
            job.left_ns -= (until_ns - self._now_ns) / (shared if job.on_link else 1)
        self._now_ns = until_ns
        if first is not None and first_ns <= self._events[0][0]:
            first.is_sending = False
            self._sent(first)
        else:
            heappop(self._events)[2]()

    def _before_step(self, job: SimulatedJob) -> None:
        hold_ns = job.pacer.delay(len(job.steps), job.plan, round(self._now_ns)).delay_ns if job.obeys else 0
        job.held_ns += hold_ns
        self._at(self._now_ns + hold_ns, lambda: self._step(job))

    def _step(self, job: SimulatedJob) -> None:
        job.start_ns = self._now_ns
        self._at(self._now_ns + job.compute_ns(self._random), lambda: self._send(job))

    def _send(self, job: SimulatedJob) -> None:
        job.sends_ns, job.left_ns, job.is_sending = self._now_ns, job.send_ns, True

    def _sent(self, job: SimulatedJob) -> None:
        end_ns = round(self._now_ns)
        job.steps.append(StepTimes(len(job.steps), round(job.start_ns), end_ns, round(job.sends_ns), end_ns))
        self._before_step(job)

    def _round(self) -> None:
        """One of the hub's."""
        self._at(self._now_ns + PLAN_EVERY_NS, self._round)
        if not self._plans:
            return
        received_ns = self._now_ns - RECEIVED_AFTER_NS
        members = [
            Member(job.name, 0, [step for step in job.steps[-100:] if step.end_ns < received_ns], len(job.steps))
            for job in self._jobs
        ]
        self.plan = decide(self.plan, members, 10_000, round(self._now_ns))
        for job in self._jobs:
            self._publish_plan(job)

    def _publish_plan(self, job: SimulatedJob) -> None:
        slot = self.plan.slots.get(job.name)
        phase = slot.phase if slot else None
        if phase != job.plan.phase:
            from_step = slot.from_step if slot else len(job.steps)
            plan = Plan(version=job.plan.version + 1, from_step=from_step, phase=phase)
            self._at(self._now_ns + PUBLISHED_AFTER_NS, lambda: setattr(job, "plan", plan))


def gains(make: Callable[[], Sequence[SimulatedJob]], seconds: float = 120, seed: int = 1) -> list[float]:
    """By job: its mean step without phases over that with them, after the first quarter of the time."""
    without, with_phases = make(), make()
    run(without, seconds, plans=False, seed=seed)
    run(with_phases, seconds, seed=seed)
    return [_mean_ns(one) / _mean_ns(other) for one, other in zip(without, with_phases, strict=True)]


def _mean_ns(job: SimulatedJob) -> float:
    return job.period_ns(len(job.steps) // 4)
