"""
The bound against the truth of simulated chains: ten seeds of each scenario that keeps the assumptions, and what is left to see
where one is broken.

A failure names the scenario and its seeds; `python tests/simulation/soak.py --show SCENARIO SEED` prints that seed row by row.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import pytest
from chain import Instant
from judging import Judgement, judged, replayed
from scenarios import BY_NAME, KEEPING, Scenario

from timesyncd.bound import STAT_PROBABILITY, ClockStatus
from timesyncd.model.replay import ReplayedRow

#: `make soak` has two thousand.
SEEDS = range(10)
SECONDS = 600


def name_of(scenario: Scenario) -> str:
    return scenario.name


every_scenario = pytest.mark.parametrize("scenario", KEEPING, ids=name_of)
every_stationary = pytest.mark.parametrize("scenario", [each for each in KEEPING if each.stationary], ids=name_of)


@cache
def judgements(scenario: Scenario) -> list[Judgement]:
    return [judged(scenario, seed, SECONDS) for seed in SEEDS]


def rows_of(name: str, seconds: float, seed: int = 0) -> list[tuple[Instant, ReplayedRow]]:
    """The readings of one seed that could be known."""
    return [pair for pair in replayed(BY_NAME[name], seed, seconds) if pair[0].is_reading and not pair[0].blind]


def misses(rows: list[tuple[Instant, ReplayedRow]]) -> int:
    """Readings whose truth lies outside the hard bound against the grandmaster."""
    return sum(row.gm_hard_ns is not None and abs(instant.gm_error_ns) > row.gm_hard_ns for instant, row in rows)


def utc_misses(rows: list[tuple[Instant, ReplayedRow]]) -> int:
    return sum(row.utc_hard_ns is not None and abs(instant.utc_error_ns) > row.utc_hard_ns for instant, row in rows)


@every_scenario
def test_the_truth_is_within_the_hard_bound_at_every_reading(scenario: Scenario) -> None:
    """Against the grandmaster and against UTC, in every row that has a bound."""
    worst = {each.seed: (each.gm_hard.worst, each.utc_hard.worst) for each in judgements(scenario)}

    assert {seed: both for seed, both in worst.items() if max(both) > 1} == {}


@every_scenario
def test_the_truth_is_within_the_hard_bound_between_two_readings(scenario: Scenario) -> None:
    """A bound that ages with the clock holds at every instant until the next reading, as far as anything could be known."""
    worst = {each.seed: each.between.worst for each in judgements(scenario)}

    assert {seed: ratio for seed, ratio in worst.items() if ratio > 1} == {}


@every_scenario
def test_a_bound_is_given(scenario: Scenario) -> None:
    """In the scenario's stated share of the rows after lock: to know nothing is no way to be right."""
    lowest = min(each.gm_hard.given_share for each in judgements(scenario))

    assert lowest >= scenario.given_share


@every_stationary
def test_the_truth_is_within_the_statistical_bound_at_its_stated_rate(scenario: Scenario) -> None:
    """Pooled over the seeds, where the noise stays what it is."""
    asked = sum(each.gm_stat.judged for each in judgements(scenario))
    missed = sum(each.gm_stat.misses for each in judgements(scenario))

    assert asked > 0
    assert 1 - missed / asked >= STAT_PROBABILITY


def test_the_statistical_bound_keeps_its_rate_over_paths_of_any_asymmetry() -> None:
    """Of paths whose two delays are drawn alike as many as stated have the truth inside, within three deviations of so many draws."""
    paths = 500
    worst = [judged(BY_NAME["drawn delays"], seed, 60).gm_stat.worst for seed in range(paths)]
    outside = sum(ratio > 1 for ratio in worst) / paths
    stated = 1 - STAT_PROBABILITY

    assert outside <= stated + 3 * math.sqrt(stated / paths)


@every_scenario
def test_the_statistical_bound_is_given_and_is_no_wider_than_the_hard_one(scenario: Scenario) -> None:
    """It is there wherever the hard one is; elsewhere it is absent."""
    rows = [row for instant, row in replayed(scenario, 0, SECONDS) if instant.is_reading]
    both = [(row.gm_stat_ns, row.gm_hard_ns) for row in rows if row.gm_hard_ns is not None]

    assert [pair for pair in both if pair[0] is None or pair[0] > (pair[1] or 0)] == []


def test_a_step_of_the_grandmaster_shows_with_its_next_sync() -> None:
    """From the reading that shows it the bound against the grandmaster holds again. No management data shows the step in UTC."""
    rows = rows_of("grandmaster steps", 1_200)

    assert misses(rows) == 0
    assert utc_misses(rows) > 500


def test_37_s_of_a_wrong_timescale_show_in_the_offset_alone() -> None:
    """The error against the grandmaster is covered, the one against UTC cannot be; Announce's UTC offset would show part of it."""
    rows = rows_of("37 s mistake", 1_200)
    largest_ns = max(row.gm_hard_ns or 0 for _, row in rows)

    assert misses(rows) == 0
    assert largest_ns > 36_000_000_000
    assert utc_misses(rows) > 500


@pytest.mark.parametrize("name", ["grandmaster lies of its class", "grandmaster drifts fast"])
def test_a_grandmaster_that_lies_takes_utc_along(name: str) -> None:
    """The bound against the grandmaster holds. UTC comes from the grandmaster alone: a second grandmaster would reveal the error."""
    rows = rows_of(name, 1_200)

    assert misses(rows) == 0
    assert utc_misses(rows) > 500


def test_a_dead_grandmaster_leaves_a_bound_that_grows_and_ends() -> None:
    """It holds the truth while it grows, as HOLDOVER, and then nothing is known any more."""
    rows = rows_of("grandmaster dies", 1_500)
    after = [row for instant, row in rows if instant.row.t_ns > 310e9]
    bounds_ns = [row.gm_hard_ns for row in after if row.gm_hard_ns is not None]

    assert misses(rows) == 0
    assert all(older <= newer for older, newer in pairwise(bounds_ns))
    assert {row.status for row in after} == {ClockStatus.HOLDOVER, ClockStatus.UNKNOWN}
    assert after[-1] == ReplayedRow(after[-1].t_ns, ClockStatus.UNKNOWN, None, None, None, None)


def test_a_negative_path_delay_gives_no_bound() -> None:
    """A transparent clock that takes out more than the whole path is seen."""
    rows = rows_of("corrected below 0", 600)

    assert {row.gm_hard_ns for _, row in rows} == {None}


def test_a_one_way_delay_below_0_cannot_be_detected() -> None:
    """A transparent clock that takes out too much of one way looks like a short path: only a second source would reveal it."""
    rows = rows_of("corrected too much", 600)

    assert misses(rows) > 300


def test_an_oscillator_that_breaks_in_holdover_cannot_be_detected() -> None:
    """300 ppm off without a grandmaster: the bound rests on the assumed drift of the oscillator."""
    rows = rows_of("oscillator breaks in holdover", 600)

    assert misses(rows) > 100


def test_a_delay_filter_longer_than_configured_cannot_be_detected() -> None:
    """It remembers a former path for longer than the model does, and management does not report its length."""
    rows = rows_of("longer delay filter", 1_200, seed=1)

    assert misses(rows) > 0
