"""Whether a run learns worse than its reference: a one-sided test that is wrong in one run of a hundred at most."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest

from timesyncd.training.policy.learning import (
    ERROR_RATE,
    TOLERANCE,
    LearningVerdict,
    LearningWatch,
    LossPoint,
    NoComparison,
    compare_at_steps,
    compare_at_times,
    student_quantile,
)


def run(steps: int, seed: int, higher: float = 0.0, noise: float = 0.02, correlation: float = 0.0) -> list[LossPoint]:
    """A falling loss, higher by this share, with noise of a first-order process."""
    chance, state, points = random.Random(seed), 0.0, []
    for step in range(steps):
        state = correlation * state + math.sqrt(1 - correlation**2) * chance.gauss(0, noise)
        loss = (1 + 2 / (1 + step / 20)) * (1 + higher) * (1 + state)
        points.append(LossPoint(step, loss, step * 10_000_000))
    return points


def test_a_worse_run_is_found() -> None:
    """With the share by which its loss is higher inside the interval, at equal steps and after equal times."""
    reference, worse = run(400, 1), run(400, 2, higher=0.05)
    for found in (compare_at_steps(reference, worse), compare_at_times(reference, worse)):
        assert found.verdict is LearningVerdict.WORSE
        assert found.low is not None and found.high is not None
        assert found.low < 0.05 < found.high


def test_a_run_that_keeps_up_is_said_to() -> None:
    """And a run that is better keeps up too."""
    reference = run(400, 1, noise=0.005)

    assert compare_at_steps(reference, run(400, 2, noise=0.005)).verdict is LearningVerdict.KEEPS_UP
    assert compare_at_steps(reference, run(400, 2, higher=-0.1)).verdict is LearningVerdict.KEEPS_UP


def test_noise_is_no_verdict() -> None:
    """Where the losses scatter more than the difference, neither is said."""
    found = compare_at_steps(run(40, 1, noise=0.3), run(40, 2, noise=0.3, higher=0.05))

    assert found.verdict is LearningVerdict.UNDECIDED
    assert found.change is not None


def test_a_slow_run_is_worse_by_time_alone() -> None:
    """A method whose steps take twice as long learns as well by the step, and worse by the clock."""
    reference = run(400, 1)
    slow = [LossPoint(point.step, point.loss, 3 * point.step * 10_000_000) for point in run(130, 2)]

    assert compare_at_steps(reference, slow).verdict is not LearningVerdict.WORSE
    assert compare_at_times(reference, slow).verdict is LearningVerdict.WORSE


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [16, 60, 300])
def test_a_run_at_the_limit_is_seldom_called_worse(steps: int, correlation: float) -> None:
    """A loss that is higher by just the tolerance: the stated rate of error, with three standard errors of the count."""
    tries = 300
    wrong = sum(
        compare_at_steps(
            run(steps, seed, noise=0, correlation=0), run(steps, 10_000 + seed, TOLERANCE, correlation=correlation)
        ).verdict
        is LearningVerdict.WORSE
        for seed in range(tries)
    )

    assert wrong <= tries * ERROR_RATE + 3 * math.sqrt(tries * ERROR_RATE)


@pytest.mark.parametrize(
    ("reference", "current", "code"),
    [
        ([], [], NoComparison.NO_LOSSES),
        ([], run(20, 1), NoComparison.NO_REFERENCE),
        (run(20, 1), run(20, 1)[:5], NoComparison.TOO_FEW_VALUES),
        (run(20, 1), [LossPoint(step, 1.0) for step in range(100, 120)], NoComparison.NO_OVERLAP),
        ([LossPoint(step, math.nan) for step in range(20)], run(20, 1), NoComparison.REFERENCE_NOT_FINITE),
        ([LossPoint(step, 0.0) for step in range(20)], run(20, 1), NoComparison.REFERENCE_NOT_POSITIVE),
    ],
)
def test_what_is_unknown_has_a_reason(
    reference: Sequence[LossPoint], current: Sequence[LossPoint], code: NoComparison
) -> None:
    """Unknown is no verdict about the run."""
    found = compare_at_steps(reference, current)

    assert (found.verdict, found.reason_code, found.change) == (LearningVerdict.UNKNOWN, code, None)
    assert found.reason


def test_a_loss_that_is_not_finite_is_worse() -> None:
    """However few values there are: the step is named."""
    found = compare_at_steps(run(20, 1), [LossPoint(3, math.nan)])

    assert (found.verdict, found.reason) == (LearningVerdict.WORSE, "its loss is not finite in step 3")


def test_the_reference_is_a_line_between_its_steps() -> None:
    """A run with fewer losses is compared where it has them."""
    reference = [LossPoint(step, 100.0 - step) for step in range(0, 101, 10)]
    found = compare_at_steps(reference, [LossPoint(step, 100.0 - step) for step in range(5, 95, 5)])

    assert (found.verdict, found.change, found.values) == (LearningVerdict.KEEPS_UP, 0.0, 18)


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [(0.975, 7, 2.3646), (0.99, 7, 2.998), (0.99, 15, 2.6025), (0.975, 15, 2.1314)],
)
def test_students_quantiles(probability: float, freedom: int, quantile: float) -> None:
    """Those of the tables (Abramowitz and Stegun, Table 26.10), within 1 %."""
    assert student_quantile(probability, freedom) == pytest.approx(quantile, rel=0.01)


def looks(watch: LearningWatch, points: Sequence[LossPoint]) -> list[LearningVerdict]:
    return [found.verdict for point in points if (found := watch.add(point)) is not None]


def test_a_watch_looks_seldom_and_finds_it() -> None:
    """After 8, 16, 32, ... values, so that all looks together keep the rate of error."""
    reference = run(400, 1)
    watch = LearningWatch(reference)

    assert len(looks(watch, run(128, 2))) == 5
    watch.restart()
    assert LearningVerdict.WORSE in looks(watch, run(256, 3, higher=0.06))
    assert looks(LearningWatch(), run(128, 3, higher=1.0)) == []


def test_a_watch_is_seldom_wrong() -> None:
    """Over all looks of a policy that is at the limit."""
    wrong = statistics.fmean(
        LearningVerdict.WORSE in looks(LearningWatch(run(200, seed, noise=0)), run(128, 5_000 + seed, TOLERANCE))
        for seed in range(300)
    )

    assert wrong <= ERROR_RATE + 3 * math.sqrt(ERROR_RATE / 300)
