"""A second source of UTC beside ptp4l, against the truth: `second_sources` states what is simulated."""

from __future__ import annotations

import pytest
from second_sources import (
    KEEPING_SECOND_SOURCES,
    SECONDS,
    SecondSource,
    ensemble_of,
    judged_second_source,
    published,
)

from timesyncd.model.ensemble import Ensemble
from timesyncd.sample import UtcOrigin


def missed(ensemble: Ensemble, source: SecondSource, seed: int) -> float:
    """The share of moments at which the published UTC interval does not contain the true time."""
    found = []
    for instant, bound in published(source, ensemble, seed):
        if bound is not None and not instant.blind:
            width_ns = bound.utc_hard.at(max(0, instant.row.t_ns - bound.as_of_ns))
            found.append(width_ns is not None and abs(instant.utc_error_ns) > width_ns)
    assert len(found) > SECONDS // 2
    return sum(found) / len(found)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("origin", [UtcOrigin.PHC, UtcOrigin.REFCLOCK, UtcOrigin.NETWORK])
def test_the_truth_is_within_utc_beside_a_source_that_follows_ptp(origin: UtcOrigin, seed: int) -> None:
    """
    timemaster's set-up, a reference clock of any name, and a server that follows the same grandmaster: chronyd is sure
    to 1 us, and wrong by 10.
    """
    source = SecondSource(origin)
    ensemble = ensemble_of(source)

    assert missed(ensemble, source, seed) == 0
    assert ensemble.agreement is None or ensemble.agreement.narrowed_by == ()


def test_a_source_that_is_wrongly_declared_independent_cannot_be_told() -> None:
    """Its server follows our grandmaster and does not report it, so the declaration narrows the bound to a wrong one."""
    source = SecondSource(UtcOrigin.NETWORK, declared=True)

    assert missed(ensemble_of(source), source, 1) > 0.5


def test_a_declaration_makes_no_second_opinion_of_a_phc() -> None:
    """Whatever the configuration says, chronyd behind a PHC gives no bound."""
    source = SecondSource(UtcOrigin.PHC, declared=True)

    assert missed(ensemble_of(source), source, 1) == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("origin", [UtcOrigin.RECEIVER, UtcOrigin.NETWORK])
@pytest.mark.parametrize("declared", [False, True])
def test_the_truth_is_within_utc_beside_a_source_of_its_own(origin: UtcOrigin, declared: bool, seed: int) -> None:
    """A GNSS receiver that the operator declares, and network servers: whether declared independent or not."""
    source = SecondSource(origin, declared, is_own=True)
    ensemble = ensemble_of(source)

    assert missed(ensemble, source, seed) == 0
    narrowed = ensemble.agreement is not None and ensemble.agreement.narrowed_by == ("utc",)
    assert narrowed == (declared and origin is UtcOrigin.RECEIVER)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", KEEPING_SECOND_SOURCES)
def test_the_truth_is_within_the_bound_on_any_path(name: str, seed: int) -> None:
    """A source of its own may be more or less sure than usual, and the path as bad as it likes."""
    judgement = judged_second_source(name, seed)

    assert max(judgement.gm_hard.worst, judgement.utc_hard.worst, judgement.between.worst) <= 1
