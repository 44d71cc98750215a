"""A second source of UTC that shares the first one's error, against the truth: chronyd behind a lopsided PTP path."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from chain import Chain, Instant
from chain_samples import ptp_sample
from scenarios import BY_NAME

from timesyncd.bound import ErrorBound
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import TraceRow
from timesyncd.sample import PortState, UtcOrigin, UtcSample

SECONDS = 300

#: What chronyd takes for its error: the jitter of its reference, and nothing of the path that is 10 us lopsided.
OWN_ERROR_NS = 1_000


def chrony_sample(row: TraceRow, origin: UtcOrigin) -> UtcSample:
    """chronyd measures the clock along the same path, and so sees the same offset."""
    return UtcSample(
        "utc", row.t_ns, 0, row.offset_ns or 0, OWN_ERROR_NS, 1_000, "PHC0", 1, "none", 0, OWN_ERROR_NS, origin=origin
    )


def judged(ensemble: Ensemble, origin: UtcOrigin, seed: int) -> Iterator[tuple[Instant, ErrorBound]]:
    """
    Each moment with the bound that is published then, once PTP has one: before that, chronyd's report is the only one.
    """
    bound, last = None, None
    for instant in Chain(BY_NAME["lopsided"], seed, SECONDS).instants():
        row = instant.row
        if instant.is_reading and row.offset_ns is not None and row.path_delay_ns is not None:
            if last is not None and row.port_state is PortState.SLAVE and row.offset_ns != last.offset_ns:
                bound = ensemble.accept(ptp_sample(row, last.t_ns)).bound or bound
                bound = ensemble.accept(chrony_sample(row, origin)).bound or bound
            last = row
        if bound is not None and ensemble.source_bound("ptp") is not None and not instant.blind:
            yield instant, bound


def missed(ensemble: Ensemble, origin: UtcOrigin, seed: int) -> float:
    """The share of moments at which the published UTC interval does not contain the true time."""
    found = []
    for instant, bound in judged(ensemble, origin, seed):
        width_ns = bound.utc_hard.at(max(0, instant.row.t_ns - bound.as_of_ns))
        found.append(width_ns is not None and abs(instant.utc_error_ns) > width_ns)
    assert len(found) > SECONDS // 2
    return sum(found) / len(found)


def of_two(*declared: str) -> Ensemble:
    return Ensemble({"ptp": EnsembleSettings(), "utc": EnsembleSettings(independent_of=frozenset(declared))})


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("origin", [UtcOrigin.PHC, UtcOrigin.REFCLOCK, UtcOrigin.NETWORK])
def test_the_truth_is_within_utc_beside_a_source_that_follows_ptp(origin: UtcOrigin, seed: int) -> None:
    """
    timemaster's set-up, a reference clock of any name, and a server that follows the same grandmaster: chronyd is sure
    to 1 us, and wrong by 10.
    """
    ensemble = of_two()

    assert missed(ensemble, origin, seed) == 0
    assert ensemble.agreement is None or ensemble.agreement.narrowed_by == ()


def test_a_source_that_is_wrongly_declared_independent_cannot_be_told() -> None:
    """Its server follows our grandmaster and does not report it, so the declaration narrows the bound to a wrong one."""
    assert missed(of_two("ptp"), UtcOrigin.NETWORK, 1) > 0.5


def test_a_declaration_makes_no_second_opinion_of_a_phc() -> None:
    """Whatever the configuration says, chronyd behind a PHC gives no bound."""
    assert missed(of_two("ptp"), UtcOrigin.PHC, 1) == 0


def honest_sample(instant: Instant, origin: UtcOrigin, chance: Random) -> UtcSample:
    """A server or a declared receiver of its own: wrong by up to what it says of itself."""
    error_ns = 2_000 if origin is UtcOrigin.RECEIVER else 200_000
    offset_ns = round(instant.utc_error_ns + chance.uniform(-error_ns, error_ns))
    return UtcSample(
        "utc", instant.row.t_ns, 0, offset_ns, error_ns + 1, 1_000, "GPS", 1, "none", 0, error_ns, origin=origin
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("origin", [UtcOrigin.RECEIVER, UtcOrigin.NETWORK])
@pytest.mark.parametrize("declared", [(), ("ptp",)])
def test_the_truth_is_within_utc_beside_a_source_of_its_own(
    origin: UtcOrigin, declared: tuple[str, ...], seed: int
) -> None:
    """A GNSS receiver that the operator declares, and network servers: whether declared independent or not."""
    ensemble, chance = of_two(*declared), Random(seed)
    bound, last, missed = None, None, 0
    for instant in Chain(BY_NAME["lopsided"], seed, SECONDS).instants():
        row = instant.row
        if instant.is_reading and row.offset_ns is not None and row.path_delay_ns is not None:
            if last is not None and row.port_state is PortState.SLAVE and row.offset_ns != last.offset_ns:
                bound = ensemble.accept(ptp_sample(row, last.t_ns)).bound or bound
                bound = ensemble.accept(honest_sample(instant, origin, chance)).bound or bound
            last = row
        if bound is not None and not instant.blind:
            width_ns = bound.utc_hard.at(max(0, row.t_ns - bound.as_of_ns))
            missed += width_ns is not None and abs(instant.utc_error_ns) > width_ns

    assert bound is not None and missed == 0
    narrowed = ensemble.agreement is not None and ensemble.agreement.narrowed_by == ("utc",)
    assert narrowed == (declared == ("ptp",) and origin is UtcOrigin.RECEIVER)
