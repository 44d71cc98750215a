"""What the client claims on a node with hardware timestamps, against the true clocks of both machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vm_cache import Cache
from vm_lab import Lab
from vm_pair import Pair, measure
from vm_scenarios import BY_NAME, SETTLE_S, USUAL
from vm_soak import report, tallies_of

pytest_plugins = ["vm_fixtures"]


@pytest.fixture(scope="module")
def pair(vm_cache: Cache) -> Iterator[Pair]:
    """A grandmaster and a node that have settled."""
    with Lab(vm_cache) as lab:
        pair = Pair(lab, USUAL)
        pair.start()
        pair.settle(SETTLE_S)
        yield pair


def test_the_truth_is_within_what_the_client_claims(pair: Pair) -> None:
    """Before and after two steps, each moment that can be known: of the time now, of UTC, and of past readings."""
    scenario = BY_NAME["steps"]

    run = measure(pair, scenario.seconds, scenario.act)

    for tally in tallies_of(run):
        assert tally.counts, report(run)
        assert tally.judged > tally.unknown, report(run)
        assert tally.missed == 0, report(run)
