"""
A boundary clock (T-BC) that lost its own parent and goes on announcing the grandmaster's class 6, against the truth.

The chain's own grandmaster is the boundary clock here, and true time is the grandmaster behind it: the node measures the
one and wants the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from chain import Chain, Instant
from chain_samples import ptp_sample
from grandmaster_clock import GrandmasterSpec
from scenarios import Scenario

from timesyncd.bound import ErrorBound, Reason
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.sample import PortState

SECONDS = 900
LOST_S = 300.0

BOUNDARY_CLOCK = "0011aa.fffe.bbccdd"

#: Its oscillator leaves the grandmaster by 10 ns a second: 6 us at the end, below `grandmaster_rate_ppb`.
DRIFT_PPB = 10.0

FAULTY = Scenario(
    "boundary clock in holdover",
    False,
    grandmaster=GrandmasterSpec(loses_reference_s=LOST_S, drift_ppb=DRIFT_PPB, lies=True),
)


def ensemble(error_ns: int | None) -> Ensemble:
    source = SourceSettings(step_tolerance_ns=0, boundary_clock_error_ns=error_ns)
    return Ensemble({"ptp": EnsembleSettings(source)})


def judged(model: Ensemble, seed: int) -> Iterator[tuple[Instant, ErrorBound]]:
    bound, last = None, None
    for instant in Chain(FAULTY, seed, SECONDS).instants():
        row = instant.row
        if instant.is_reading and row.offset_ns is not None and row.path_delay_ns is not None:
            if last is not None and row.port_state is PortState.SLAVE and row.offset_ns != last.offset_ns:
                sample = replace(ptp_sample(row, last.t_ns), steps_removed=2, parent_identity=BOUNDARY_CLOCK)
                bound = model.accept(sample).bound or bound
            last = row
        if bound is not None:
            yield instant, bound


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
    assert outside(ensemble(round(DRIFT_PPB * (SECONDS - LOST_S)) + 100), seed) == (0, 0)


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
