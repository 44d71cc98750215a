"""A job's step as the link sees it, from steps that contend and steps that do not."""

from __future__ import annotations

import pytest
from phase_lab import BEGIN_NS, MS, SimulatedJob, run, steady

from timesyncd.hub.phase_fit import (
    MIN_STEPS,
    Fit,
    StepTimes,
    alone_ns,
    circular_median,
    drift_ns,
    fit,
    sending_share,
)
from timesyncd.ipc.job_segment import Phase


def transfer(sends_ms: int, sent_ms: int) -> StepTimes:
    return StepTimes(0, 0, sent_ms * MS, sends_ms * MS, sent_ms * MS)


def simulated(seconds: float = 20, jitter: float = 0.01, behind_ns: int = 0) -> tuple[SimulatedJob, SimulatedJob]:
    """Two jobs that send for half of the time, without phases."""
    jobs = (
        SimulatedJob("a", steady(100 * MS, jitter), 100 * MS),
        SimulatedJob("b", steady(100 * MS, jitter), 100 * MS, behind_ns),
    )
    run(jobs, seconds, plans=False)
    return jobs


@pytest.mark.parametrize(
    ("others", "alone_ms"),
    [
        ([], 100),
        ([[transfer(200, 300)]], 50),
        ([[transfer(150, 250)]], 75),
        ([[transfer(0, 200)], [transfer(300, 400)]], 100),
        ([[transfer(200, 300)], [transfer(200, 300)], [transfer(250, 350)]], 29),
        ([[transfer(100, 220), transfer(280, 400)]], 80),
    ],
)
def test_a_shared_transfer_is_reckoned_as_if_alone(others: list[list[StepTimes]], alone_ms: int) -> None:
    """Each moment counts as one over the number of jobs that send then."""
    assert alone_ns(transfer(200, 300), others) // MS == alone_ms


@pytest.mark.parametrize("behind_ms", [0, 30, 100])
def test_the_period_alone_is_found_under_contention(behind_ms: int) -> None:
    """A step that takes up to 300 ms beside the other job is one of 200 ms, with 100 ms of sending, 100 ms after its start."""
    a, b = simulated(behind_ns=behind_ms * MS)
    found = fit(a.steps, [b.steps])

    assert isinstance(found, Fit)
    assert found.alone_ns == pytest.approx(200.7 * MS, rel=0.01)
    assert (found.arc_ns, found.offset_ns) == pytest.approx((100 * MS, 100.7 * MS), rel=0.01)
    assert found.period_ns > found.alone_ns


def test_holds_and_the_time_between_steps_are_distinguished() -> None:
    """Under a phase the rest between steps is the one that was measured without, whether a step's mark begins before the hold or after it."""
    phase = Phase(208 * MS, 0, 1_000_000)
    places = [(BEGIN_NS // phase.period_ns + number) * phase.period_ns for number in range(40)]
    after = [StepTimes(n, at, at + 200 * MS, at + 90 * MS, at + 200 * MS) for n, at in enumerate(places)]
    before = [step._replace(start_ns=step.start_ns - 8 * MS) for step in after]
    found = [fit(steps, [], phase, 0) for steps in (after, before)]

    assert [each.alone_ns if isinstance(each, Fit) else each for each in found] == [200 * MS] * 2
    assert [each.offset_ns if isinstance(each, Fit) else each for each in found] == [90 * MS] * 2


def test_too_few_steps_and_unsteady_ones_do_not_fit() -> None:
    """Neither has a stable period; the reason names the case."""
    a, b = simulated(jitter=0.5)
    few = fit(a.steps[:MIN_STEPS], [b.steps])
    gaps = fit([step._replace(step=2 * step.step) for step in a.steps], [b.steps])

    assert few == f"{MIN_STEPS - 1} consecutive pairs of steps are known; a fit needs {MIN_STEPS}"
    assert str(gaps).startswith("0 consecutive pairs")
    assert fit(a.steps, [b.steps]) == "no stable period"
    assert fit([], [b.steps]) == f"0 consecutive pairs of steps are known; a fit needs {MIN_STEPS}"


def test_the_newest_steps_wait_for_the_other_jobs_marks() -> None:
    """Until the other senders are known, a contended transfer looks like a long one alone."""
    a, b = simulated()
    fits = [fit(a.steps, [b.steps[:count]]) for count in (None, -10)]

    assert [isinstance(each, Fit) for each in fits] == [True, True]
    assert fits[0].arc_ns == pytest.approx(fits[1].arc_ns, rel=0.01)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("values", "median"), [([10, 20, 30], 20), ([195, 5, 199, 3, 1], 1), ([190, 10], 190), ([1005, 399, 201], 1)]
)
def test_the_median_of_places_has_no_seam(values: list[int], median: int) -> None:
    """199 and 1 are neighbours in a period of 200."""
    assert circular_median(values, 200) == median


def test_drift_is_signed() -> None:
    """Later than the place is positive, by up to half a period."""
    steps = [transfer(BEGIN_NS // MS + 5, BEGIN_NS // MS + 9)]
    place_ns = BEGIN_NS % (200 * MS)

    assert drift_ns(steps, place_ns, 200 * MS) == 5 * MS
    assert drift_ns(steps, place_ns + 15 * MS, 200 * MS) == -10 * MS


def test_the_sending_share_is_of_all_time() -> None:
    """A job that sends for half of its steps has a share of a half."""
    a, _ = simulated(behind_ns=100 * MS)

    assert sending_share(a.steps) == pytest.approx(0.5, abs=0.03)
