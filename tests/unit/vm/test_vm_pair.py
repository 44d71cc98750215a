"""A disturbance is dated by the log that shows it, where one does."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from vm_judging import Disturbance
from vm_logs import EPOCH_NS, PERIOD, log
from vm_pair import configuration, narrowed
from vm_scenarios import SCENARIOS, Scenario
from vm_truth import TAI_MINUS_UTC_NS

from timesyncd.config import load
from timesyncd.driver import options_of

AT = 70 * PERIOD + 5_000_000
WIDE = Disturbance("step", 60.0 * PERIOD, 90.0 * PERIOD, ("grandmaster", "phc"))
STEPPED = log(phc=lambda t: EPOCH_NS + TAI_MINUS_UTC_NS + t + (20_000 if t > AT else 0))


def test_a_grandmasters_step_lies_between_two_rows_of_its_log() -> None:
    """The command that did it took half a second; the log says when to 20 ms."""
    found = narrowed(WIDE, {"grandmaster": STEPPED, "node": log()})

    assert found.earliest < AT < found.latest
    assert found.latest - found.earliest < 1.1 * PERIOD


def test_what_no_log_shows_stays_as_it_was_bracketed() -> None:
    """A pause, and a change that is smaller than the log can tell."""
    logs = {"grandmaster": STEPPED, "node": log()}
    pause = WIDE._replace(log=None)

    assert narrowed(pause, logs) == pause
    assert narrowed(WIDE, logs | {"grandmaster": log()}) == WIDE


@pytest.mark.parametrize("scenario", SCENARIOS, ids=attrgetter("name"))
def test_the_nodes_configuration_is_one_that_timesyncd_accepts(scenario: Scenario, folder: Path) -> None:
    """Of each scenario, so that no machine boots for a key in the wrong table."""
    setup = scenario.setup
    path = folder / "timesyncd.toml"
    path.write_text(configuration(setup))

    loaded = load(path, options_of)

    told = setup.boundary_clock_error_ns
    assert [source.bounds.boundary_clock_error_ns for source in loaded.source if source.name == "ptp"] == [told]
    assert ("utc" in {source.name for source in loaded.source}) == setup.chronyd
