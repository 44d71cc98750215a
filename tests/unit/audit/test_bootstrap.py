"""What an interval of 95 % over steps is worth, where neighbouring steps resemble each other: `r` is how much."""

from __future__ import annotations

import random
from math import sqrt
from statistics import median

import pytest

from timesyncd.audit import bootstrap
from timesyncd.audit.bootstrap import Estimate, StepSample, block_length, change, estimate

MS = 1e6


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 400)


def steps(chance: random.Random, count: int, r: float, mean_ns: float = 10 * MS) -> list[StepSample]:
    """Gaussian steps with a deviation of 200 us, the next of which keeps `r` of this one's."""
    made, deviation = [], chance.gauss(0, 1)
    for _ in range(count):
        made.append(StepSample(mean_ns + 0.2 * MS * deviation, MS + 0.1 * MS * deviation))
        deviation = r * deviation + sqrt(1 - r * r) * chance.gauss(0, 1)
    return made


def ratio(before: list[StepSample], after: list[StepSample]) -> Estimate:
    return change(before, after, lambda b, a: a.step_ns / b.step_ns)


def holds(found: Estimate, truth: float) -> bool:
    """What is not told is not wrong."""
    return found.low is None or found.high is None or found.low <= truth <= found.high


@pytest.mark.parametrize(("count", "r"), [(100, 0.5), (100, 0.8), (1_000, 0.95)])
def test_equal_jobs_are_seldom_faster_or_slower(count: int, r: float) -> None:
    """Of 100 comparisons of a job with itself, at most 7 claim a difference."""
    chance = random.Random(7)

    held = [holds(ratio(steps(chance, count, r), steps(chance, count, r)), 1) for _ in range(100)]

    assert held.count(False) <= 7


@pytest.mark.parametrize("r", [0.5, 0.8])
def test_the_interval_holds_the_truth_as_often_as_it_says(r: float) -> None:
    """Of 100 recordings of 400 steps, at least 92 intervals hold the true mean, and all but a few are told."""
    chance = random.Random(5)

    found = [estimate(steps(chance, 400, r), lambda sums: sums.step_ns) for _ in range(100)]

    assert [holds(each, 10 * MS) for each in found].count(False) <= 8
    assert [each.low for each in found].count(None) <= 3


def test_steps_that_resemble_each_other_for_long_are_too_few() -> None:
    """A hundred steps that keep 95 % of their neighbour's deviation hold few that are independent: hardly ever an interval."""
    chance = random.Random(3)

    found = [ratio(steps(chance, 100, 0.95), steps(chance, 100, 0.95)) for _ in range(100)]

    assert [each.low for each in found].count(None) >= 90


@pytest.mark.parametrize("r", [0, 0.5])
def test_a_change_of_five_in_a_hundred_is_seen(r: float) -> None:
    """200 steps of 10 ms that become 9.5 ms: each of 10 comparisons says faster, by about as much."""
    chance = random.Random(11)

    for _ in range(10):
        found = ratio(steps(chance, 200, r), steps(chance, 200, r, 9.5 * MS))
        assert found.low is not None and found.high is not None
        assert found.low < found.value < found.high < 1
        assert found.value == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("period", [4, 10, 25])
def test_what_comes_regularly_costs_no_certainty(period: int) -> None:
    """Every so many steps one takes 5 ms longer, as a checkpoint does: a change of 5 % is seen all the same."""
    chance = random.Random(13)

    def pausing(mean_ns: float) -> list[StepSample]:
        made = steps(chance, 200, 0, mean_ns)
        return [StepSample(one.length_ns + (at % period == 0) * 5 * MS, MS) for at, one in enumerate(made)]

    found = ratio(pausing(10 * MS), pausing(9.5 * MS))

    assert found.high is not None and found.high < 1


def test_blocks_are_as_long_as_steps_resemble_each_other() -> None:
    """The root of the steps, and longer where that is too short: (1.5 (2 r / (1 - r^2))^2 n)^(1/3) for 10,000 steps is 179."""
    chance = random.Random(1)

    assert block_length(steps(chance, 400, 0)) == 20
    assert median(block_length(steps(chance, 10_000, 0.95)) for _ in range(7)) == pytest.approx(179, rel=0.25)


def test_the_overhead_lengthens_the_blocks_too() -> None:
    """Steps of independent length whose waiting comes and goes in spells: the overhead's blocks hold a spell."""
    chance = random.Random(1)
    spells = steps(chance, 400, 0.95)
    made = [StepSample(10 * MS + chance.gauss(0, 0.2 * MS), spell.exposed_ns) for spell in spells]

    assert block_length([StepSample(one.length_ns, MS) for one in made]) == 20
    assert block_length(made) > 30


def test_an_interval_needs_enough_blocks() -> None:
    """Steps that are alike need no longer blocks, but ten of them: below that no interval, of one recording or two."""
    few, many = [StepSample(100.1, 10.01)] * 49, [StepSample(100.1, 10.01)] * 400

    assert block_length(many) == 20
    assert estimate(few, lambda sums: sums.overhead).low is None
    assert ratio(few, many).low is None
    assert estimate(many, lambda sums: sums.overhead).low == pytest.approx(0.1)
