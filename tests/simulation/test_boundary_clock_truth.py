"""A boundary clock (T-BC) that hides its holdover, against the truth: `boundary_clocks` states what is simulated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from boundary_clocks import (
    KEEPING_BOUNDARY_CLOCKS,
    SECONDS,
    BoundaryClockScenario,
    ensemble,
    judged_boundary_clock,
    published,
)
from chain import Instant

from timesyncd.bound import ErrorBound, Reason
from timesyncd.model.ensemble import Ensemble

FAULTY = BoundaryClockScenario("boundary clock in holdover")


def judged(model: Ensemble, seed: int) -> Iterator[tuple[Instant, ErrorBound]]:
    return ((instant, bound) for instant, bound in published(FAULTY, model, seed) if bound is not None)


def outside(model: Ensemble, seed: int) -> tuple[int, int]:
    """The moments at which the truth is outside the bound against the parent, and outside that against the grandmaster."""
    of_parent = of_grandmaster = 0
    for instant, bound in judged(model, seed):
        age_ns = max(0, instant.row.t_ns - bound.as_of_ns)
        parent_ns, gm_ns = bound.parent_hard.at(age_ns), bound.gm_hard.at(age_ns)
        of_parent += parent_ns is not None and abs(instant.gm_error_ns) > parent_ns
        of_grandmaster += gm_ns is not None and abs(instant.utc_error_ns) > gm_ns
    return of_parent, of_grandmaster


@pytest.mark.parametrize("seed", range(3))
def test_an_error_that_covers_the_boundary_clock_s_holdover_bounds_the_node(seed: int) -> None:
    """`boundary_clock_error_ns` has to hold what the boundary clock does in holdover, and not what it does while locked."""
    assert outside(ensemble(round(FAULTY.drift_ppb * (SECONDS - FAULTY.lost_s)) + 100), seed) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", KEEPING_BOUNDARY_CLOCKS)
def test_the_truth_is_within_the_bound_against_the_grandmaster_behind(name: str, seed: int) -> None:
    """Where the configured error covers the holdover, and where the poller of the boundary clock sees it."""
    judgement = judged_boundary_clock(name, seed)

    assert max(judgement.gm_hard.worst, judgement.between.worst) <= 1
    assert judgement.gm_hard.given_share > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_a_boundary_clock_that_hides_its_holdover_cannot_be_detected_from_the_node(seed: int) -> None:
    """
    The class stays 6 and the offset 0, since the node follows the boundary clock. With the error of a locked one only the
    bound against the parent holds.
    """
    model = ensemble(50)
    of_parent, _ = outside(model, seed)
    last_instant, last = list(judged(ensemble(50), seed))[-1]

    assert of_parent == 0
    assert model.refutations("ptp") == ()
    assert last.gm_hard.bound_ns is not None and last.parent_hard.bound_ns is not None
    assert last.gm_hard.bound_ns - last.parent_hard.bound_ns == 50
    assert abs(last_instant.utc_error_ns) > 5_000


def test_without_a_configured_error_the_node_claims_nothing_beyond_the_boundary_clock() -> None:
    """The bound against the parent is given, and those against grandmaster and UTC are unknown, with the reason."""
    *_, (_, last) = judged(ensemble(None), 0)

    assert last.parent_hard.bound_ns is not None
    assert last.gm_hard.bound_ns is None and last.utc_hard.bound_ns is None
    assert last.gm_hard.reason is Reason.BOUNDARY_CLOCK_ERROR_UNKNOWN
