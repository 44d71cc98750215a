"""The coverage of the 95 % intervals over steps whose neighbours correlate by `r`."""

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
    """Gaussian steps with a standard deviation of 200 us and a correlation `r` of neighbours."""
    made, deviation = [], chance.gauss(0, 1)
    for _ in range(count):
        made.append(StepSample(mean_ns + 0.2 * MS * deviation, MS + 0.1 * MS * deviation))
        deviation = r * deviation + sqrt(1 - r * r) * chance.gauss(0, 1)
    return made


def ratio(before: list[StepSample], after: list[StepSample]) -> Estimate:
    return change(before, after, lambda b, a: a.step_ns / b.step_ns)


def covers(found: Estimate, truth: float) -> bool:
    """Whether the interval contains the truth; an absent interval counts as correct."""
    return found.low is None or found.high is None or found.low <= truth <= found.high


@pytest.mark.parametrize(("count", "r"), [(100, 0.5), (100, 0.8), (1_000, 0.95)])
def test_equal_jobs_are_seldom_faster_or_slower(count: int, r: float) -> None:
    """Of 100 comparisons of a job with itself, at most 7 report a difference."""
    chance = random.Random(7)

    correct = [covers(ratio(steps(chance, count, r), steps(chance, count, r)), 1) for _ in range(100)]

    assert correct.count(False) <= 7


@pytest.mark.parametrize("r", [0.5, 0.8])
def test_the_interval_has_its_nominal_coverage(r: float) -> None:
    """Of 100 recordings of 400 steps, at least 92 intervals contain the true mean, and at most 3 are absent."""
    chance = random.Random(5)

    found = [estimate(steps(chance, 400, r), lambda sums: sums.step_ns) for _ in range(100)]

    assert [covers(each, 10 * MS) for each in found].count(False) <= 8
    assert [each.low for each in found].count(None) <= 3


def test_strongly_correlated_steps_are_too_few() -> None:
    """A hundred steps with a correlation of 0.95 hold too few independent ones for an interval."""
    chance = random.Random(3)

    found = [ratio(steps(chance, 100, 0.95), steps(chance, 100, 0.95)) for _ in range(100)]

    assert [each.low for each in found].count(None) >= 90


@pytest.mark.parametrize("r", [0, 0.5])
def test_a_change_of_five_percent_is_found(r: float) -> None:
    """200 steps of 10 ms that become 9.5 ms are reported as faster, by about 5 %."""
    chance = random.Random(11)

    for _ in range(10):
        found = ratio(steps(chance, 200, r), steps(chance, 200, r, 9.5 * MS))
        assert found.low is not None and found.high is not None
        assert found.low < found.value < found.high < 1
        assert found.value == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("period", [4, 10, 25])
def test_regular_pauses_do_not_hide_a_change(period: int) -> None:
    """With a pause of 5 ms every `period` steps, as for a checkpoint, a change of 5 % is found."""
    chance = random.Random(13)

    def pausing(mean_ns: float) -> list[StepSample]:
        made = steps(chance, 200, 0, mean_ns)
        return [StepSample(one.length_ns + (at % period == 0) * 5 * MS, MS) for at, one in enumerate(made)]

    found = ratio(pausing(10 * MS), pausing(9.5 * MS))

    assert found.high is not None and found.high < 1


def test_the_block_length_follows_the_correlation() -> None:
    """It is the square root of the steps, or (1.5 (2 r / (1 - r^2))^2 n)^(1/3) if that is longer: 179 for 10,000 steps."""
    chance = random.Random(1)

    assert block_length(steps(chance, 400, 0)) == 20
    assert median(block_length(steps(chance, 10_000, 0.95)) for _ in range(7)) == pytest.approx(179, rel=0.25)


def test_the_overhead_lengthens_the_blocks_too() -> None:
    """Steps of independent length whose waiting is correlated need blocks as long as the correlation."""
    chance = random.Random(1)
    correlated = steps(chance, 400, 0.95)
    made = [StepSample(10 * MS + chance.gauss(0, 0.2 * MS), each.exposed_ns) for each in correlated]

    assert block_length([StepSample(one.length_ns, MS) for one in made]) == 20
    assert block_length(made) > 30


def test_an_interval_needs_enough_blocks() -> None:
    """With fewer than ten blocks there is no interval, of one recording or of two."""
    few, many = [StepSample(100.1, 10.01)] * 49, [StepSample(100.1, 10.01)] * 400

    assert block_length(many) == 20
    assert estimate(few, lambda sums: sums.overhead).low is None
    assert ratio(few, many).low is None
    assert estimate(many, lambda sums: sums.overhead).low == pytest.approx(0.1)
