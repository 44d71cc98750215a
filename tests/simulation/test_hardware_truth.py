"""
The bound on the system clock against the truth of simulated nodes whose ptp4l steers a PHC: a few seeds of each scenario
that keeps the assumptions, and what is left to see where the grandmaster steps.

A failure names the scenario and its seeds; `python tests/simulation/soak.py --show SCENARIO SEED` prints that seed row by row.
"""

from __future__ import annotations

from functools import cache

import pytest
from hardware_chain import PHC, PTP, HardwareChain
from hardware_judging import SETTINGS, judged_hardware
from hardware_scenarios import BREAKING_HARDWARE, HARDWARE_BY_NAME, KEEPING_HARDWARE, HardwareScenario
from judging import Judgement

from timesyncd.bound import Reason
from timesyncd.model.ensemble import Ensemble

SEEDS = range(2)


def name_of(scenario: HardwareScenario) -> str:
    return scenario.name


@cache
def judgements(scenario: HardwareScenario) -> list[Judgement]:
    return [judged_hardware(scenario, seed) for seed in SEEDS]


@pytest.mark.parametrize("scenario", KEEPING_HARDWARE, ids=name_of)
def test_the_truth_of_the_system_clock_is_within_the_hard_bound(scenario: HardwareScenario) -> None:
    """Against the grandmaster and UTC at the readings, and against the grandmaster between them."""
    worst = {each.seed: (each.gm_hard.worst, each.utc_hard.worst, each.between.worst) for each in judgements(scenario)}

    assert {seed: ratios for seed, ratios in worst.items() if max(ratios) > 1} == {}


@pytest.mark.parametrize("scenario", KEEPING_HARDWARE, ids=name_of)
def test_a_bound_on_the_system_clock_is_given(scenario: HardwareScenario) -> None:
    """In the scenario's stated share of the rows after lock: to know nothing is no way to be right."""
    assert min(each.gm_hard.given_share for each in judgements(scenario)) >= scenario.given_share


@pytest.mark.parametrize("scenario", BREAKING_HARDWARE, ids=name_of)
def test_a_step_of_the_grandmaster_shows_with_its_first_sync_on_hardware_too(scenario: HardwareScenario) -> None:
    """ptp4l slews the PHC by percents, and what steers the system clock follows: the bound holds from that Sync on."""
    worst = {each.seed: (each.gm_hard.worst, each.between.worst) for each in judgements(scenario)}

    assert {seed: ratios for seed, ratios in worst.items() if max(ratios) > 1} == {}


def test_a_phc_that_is_read_apart_from_the_syncs_gives_no_bound() -> None:
    """Its servo follows a path that changes slowly, which shows in no offset: a reading once a second cannot bound that."""
    ensemble = Ensemble({PTP: SETTINGS, PHC: SETTINGS})
    instants = HardwareChain(HARDWARE_BY_NAME["hw: read apart"], 0, seconds=120).instants()
    bounds = [ensemble.accept(reading).bound for instant in instants for reading in instant.readings]
    given = [bound for bound in bounds if bound is not None]

    assert {bound.gm_hard.bound_ns for bound in given} == {None}
    assert given[-1].gm_hard.reason is Reason.PHC_READ_APART
