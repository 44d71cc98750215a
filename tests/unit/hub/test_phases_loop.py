"""The closed loop of hub and ranks, simulated on one link: what jobs gain, and that those which do not fit lose nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from phase_lab import MS, SimulatedJob, gains, run, steady

from timesyncd.clocks import NS_PER_S
from timesyncd.hub.phase_fit import StepTimes
from timesyncd.hub.phases import MAX_JOBS, REPLAN_AFTER_NS, RETRY_AFTER_NS, LinkPlan, Member, decide
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.messages.jobs import PhaseReason

Make = Callable[[], Sequence[SimulatedJob]]


LEFT = CodedReason(PhaseReason.JOB_LEFT, "plan abandoned: b ended, paused or restarted")
TOO_MANY = CodedReason(PhaseReason.TOO_MANY_JOBS, "16 jobs on the link; at most 8 are planned")


def jobs(*shapes: tuple[float, float], jitter: float = 0.01, behind_ms: int = 0) -> Make:
    """Jobs that compute and send for so many milliseconds; each starts so much later than the one before."""

    def make() -> list[SimulatedJob]:
        return [
            SimulatedJob("abcd"[n], steady(compute * MS, jitter), send * MS, n * behind_ms * MS)
            for n, (compute, send) in enumerate(shapes)
        ]

    return make


HALF = (100.0, 100.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_two_jobs_that_send_half_of_the_time_come_near_the_ceiling(seed: int) -> None:
    """Steps of quite equal length stay in phase for ever without phases: 1.5 is what can be gained, less the slack."""
    assert min(gains(jobs(HALF, HALF, jitter=0.001), seed=seed)) > 1.40


@pytest.mark.parametrize("behind_ms", [0, 10, 30, 50, 80, 100])
def test_no_job_loses_wherever_the_jobs_begin(behind_ms: int) -> None:
    """Also where luck had put them apart already."""
    assert min(gains(jobs(HALF, HALF, behind_ms=behind_ms))) > 0.98


@pytest.mark.parametrize(
    "make",
    [
        jobs((100, 100), (80, 80)),
        jobs((100, 100), (60, 60)),
        jobs((300, 100), (100, 100)),
        jobs((200, 100), (60, 40)),
        jobs((180, 20), (180, 20)),
        jobs(HALF, HALF, jitter=0.3),
        jobs(HALF, HALF, HALF),
        jobs((60, 140), (60, 140)),
    ],
)
def test_jobs_that_do_not_fit_are_left_alone(make: Make) -> None:
    """Periods too different, too little sending to matter, or no period at all: never below 0.98."""
    assert min(gains(make, seed=2)) > 0.98


def test_periods_that_differ_a_little_are_equalized() -> None:
    """The quicker job waits for the slower one, and is faster for it."""
    assert min(gains(jobs((100, 100), (90, 90)))) > 1.05


def test_a_link_that_is_not_shared_costs_one_trial() -> None:
    """Two jobs in phase that do not slow each other look as if they did: the plan shows that, and is given up for long."""

    def make() -> list[SimulatedJob]:
        apart = list(jobs(HALF, HALF)())
        for job in apart:
            job.on_link = False
        return apart

    tried = make()
    plan = run(tried, 120)

    assert plan.reason.code is PhaseReason.STEPS_NOT_FASTER
    assert plan.reason.text.startswith("plan abandoned: a step of")
    assert plan.slots == {}
    assert min(gains(make)) > 0.98


def test_a_job_that_does_not_obey_spoils_nothing() -> None:
    """The other one still gains, or is left alone."""

    def make() -> list[SimulatedJob]:
        pair = list(jobs(HALF, HALF)())
        pair[1].obeys = False
        return pair

    assert min(gains(make)) > 0.98


def test_a_plan_is_not_changed_without_need() -> None:
    """Two steady jobs get one plan, and keep it for ten minutes."""
    pair = jobs(HALF, HALF)()
    run(pair, 600)

    assert [job.plan.version for job in pair] == [1, 1]


def changing(changed: int, compute: float = 1, send: float = 1) -> list[SimulatedJob]:
    """Two jobs of which so many compute and send longer by these factors from their 300th step on."""
    plain = steady(100 * MS, 0.001)
    pair = [SimulatedJob(name, plain, 100 * MS) for name in "ab"]

    def later(job: SimulatedJob) -> Callable[[random.Random], float]:
        def compute_ns(source: random.Random) -> float:
            is_later = len(job.steps) > 300
            job.send_ns = 100 * MS * (send if is_later else 1)
            return plain(source) * (compute if is_later else 1)

        return compute_ns

    for job in pair[:changed]:
        job.compute_ns = later(job)
    run(pair, 240)
    return pair


@pytest.mark.parametrize("factor", [1.1, 1.3])
def test_a_job_that_needs_longer_steps_gets_a_longer_period(factor: float) -> None:
    """Also one that needs hardly more than what was planned: it would be late again and again."""
    pair = changing(1, compute=factor)
    alone_ns = (factor * 100 + 100) * MS

    assert pair[0].plan.version > 1
    assert pair[0].period_ns(-100) < 1.06 * alone_ns


@pytest.mark.parametrize(("compute", "send", "alone_ms"), [(1, 0.6, 160), (0.7, 0.7, 140)])
def test_jobs_that_need_shorter_steps_get_a_shorter_period(compute: float, send: float, alone_ms: int) -> None:
    """None waits for a place that is further away than it has to be; also where all still send at their places."""
    pair = changing(2, compute, send)

    assert max(job.period_ns(-100) for job in pair) < 1.06 * alone_ms * MS


def members_of(pair: Sequence[SimulatedJob]) -> list[Member]:
    return [Member(job.name, 0, job.steps[-100:], len(job.steps), job.plan.phase) for job in pair]


def planned() -> tuple[Sequence[SimulatedJob], LinkPlan]:
    pair = jobs(HALF, HALF)()
    return pair, run(pair, 60)


@pytest.mark.parametrize("alignment_ns", [None, 10 * MS])
def test_clocks_that_are_not_known_well_end_the_plan(alignment_ns: int | None) -> None:
    """Neither is one made without them."""
    pair, plan = planned()
    after = decide(plan, members_of(pair), alignment_ns, plan.made_ns + NS_PER_S)
    fresh = [Member(member.job, 0, member.steps, member.newest_step) for member in members_of(pair)]

    assert plan.slots and not after.slots
    assert after.reason.code is PhaseReason.CLOCKS_UNKNOWN
    assert not decide(LinkPlan(), fresh, alignment_ns, 0).slots


def test_a_job_that_ends_frees_the_other_at_once() -> None:
    """Alone on its link a job waits for no other; that is no failure that would delay a new plan."""
    pair, plan = planned()
    after = decide(plan, members_of(pair)[:1], 0, plan.made_ns + NS_PER_S)

    assert (len(plan.slots), len(after.slots)) == (2, 0)
    assert after.reason == LEFT
    assert after.retry_at_ns <= plan.made_ns + NS_PER_S


@pytest.mark.parametrize(
    ("after_steps", "wait_ns"), [(0, REPLAN_AFTER_NS), (15, REPLAN_AFTER_NS), (25, RETRY_AFTER_NS)]
)
def test_a_job_that_comes_and_goes_drives_no_plans(after_steps: int, wait_ns: int) -> None:
    """A plan that ended before it was seen to serve waits, one that did not serve waits longer, and each time longer."""
    pair = jobs_in_phase(60)
    fresh = [Member(job.name, 0, job.steps[-60:], len(job.steps)) for job in pair]
    plan = decide(LinkPlan(), fresh, 0, NS_PER_S)
    one = fresh[0]
    judged_from = max(plan.slots[one.job].judged_from, one.steps[-1].step + 1)
    period_ns = one.steps[-1].start_ns - one.steps[-2].start_ns
    further = [moved(one.steps[-1], n, n * period_ns) for n in range(1, judged_from - one.steps[-1].step + after_steps)]
    again = [Member(one.job, 0, [*one.steps, *further], further[-1].step), fresh[1]]
    after = decide(plan, [again[0], replace(fresh[1], run=1)], 0, 2 * NS_PER_S)

    assert (len(plan.slots), len(after.slots), after.failures) == (2, 0, 1)
    assert after.retry_at_ns == 2 * NS_PER_S + wait_ns
    assert decide(after, again, 0, after.retry_at_ns - 1) is after


def test_more_jobs_than_are_planned_are_not_fitted() -> None:
    """Many jobs on a link cost the hub no time."""
    pair = jobs_in_phase(60)
    crowd = [Member(f"{job.name}{n}", 0, job.steps[-60:], len(job.steps)) for job in pair for n in range(MAX_JOBS)]

    assert decide(LinkPlan(), crowd, 0, 0).reason == TOO_MANY


def test_an_inactive_job_blocks_no_other() -> None:
    """One that was killed, or evaluates, ends the plan, and is not waited for by those that are left."""
    pair, plan = planned()
    gone = SimulatedJob("gone", steady(100 * MS), 100 * MS)
    run([gone], 40, plans=False)
    later = [Member(job.name, 0, [step for step in job.steps[-60:]], len(job.steps)) for job in jobs_in_phase(60)]
    silent = Member("gone", 0, gone.steps[-60:], len(gone.steps))
    half = members_of(pair)
    paused = [half[0], Member("b", 0, half[1].steps[:-60], len(pair[1].steps))]

    assert decide(LinkPlan(), [*later, silent], 0, 0).slots.keys() == {"a", "b"}
    assert decide(plan, paused, 0, plan.made_ns + NS_PER_S).reason == LEFT


def moved(one: StepTimes, steps: int, by_ns: int) -> StepTimes:
    return StepTimes(one.step + steps, *(at_ns + by_ns for at_ns in one[1:]))


def jobs_in_phase(seconds: float) -> Sequence[SimulatedJob]:
    pair = jobs(HALF, HALF, jitter=0.001)()
    run(pair, seconds, plans=False)
    return pair


def test_another_hubs_plan_goes_on() -> None:
    """A hub that takes over keeps the phases that were published to the ranks."""
    pair, plan = planned()
    adopted = decide(LinkPlan(), members_of(pair), 0, plan.made_ns)

    assert {job: slot.phase for job, slot in adopted.slots.items()} == {
        job: slot.phase for job, slot in plan.slots.items()
    }
    assert decide(adopted, members_of(pair), 0, plan.made_ns + 100 * NS_PER_S).slots == adopted.slots


def heavy_newcomer(compute_ns: Callable[[random.Random], float]) -> Member:
    """A job without a slot that sends for a good part of its time."""
    job = SimulatedJob("new", compute_ns, 100 * MS)
    run([job], 60, plans=False)
    return Member(job.name, 0, job.steps[-60:], len(job.steps))


def test_a_job_that_arrives_on_the_link_ends_the_plan() -> None:
    """A job that sends much and has no place would delay the others in theirs; the reason names it."""
    pair, plan = planned()
    after = decide(plan, [*members_of(pair), heavy_newcomer(steady(100 * MS))], 0, plan.made_ns + NS_PER_S)

    assert plan.slots and not after.slots
    assert after.reason == CodedReason(PhaseReason.JOB_ARRIVED, "plan abandoned: new arrived on the link")


def test_a_heavy_job_without_a_stable_period_leaves_no_room() -> None:
    """The other two have one, and are not made to wait for places that the third would not respect."""
    pair = jobs_in_phase(60)
    fresh = [Member(job.name, 0, job.steps[-60:], len(job.steps)) for job in pair]
    unsteady = heavy_newcomer(lambda source: source.uniform(20, 400) * MS)
    after = decide(LinkPlan(), [*fresh, unsteady], 0, 0)

    assert len(decide(LinkPlan(), fresh, 0, 0).slots) == 2
    assert not after.slots
    assert after.reason.code is PhaseReason.NO_STABLE_PERIOD
    assert after.reason.text.startswith("new has no stable period")


@pytest.mark.parametrize("alignment_ns", [None, 10 * MS])
def test_no_plan_is_made_on_clocks_that_are_not_known_well(alignment_ns: int | None) -> None:
    """Jobs that a plan would make faster get none while their clocks are unknown or too far apart; the reason says so."""
    fresh = [Member(job.name, 0, job.steps[-60:], len(job.steps)) for job in jobs_in_phase(60)]
    after = decide(LinkPlan(), fresh, alignment_ns, 0)

    assert (len(after.slots), after.reason.code) == (0, PhaseReason.CLOCKS_UNKNOWN)
