"""The budget: every term is described, the terms add up to their sums, and an unknown bound gives its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import nth

from timesyncd.bound import ErrorBound, Rate, Reason, Term
from timesyncd.cli.budget import (
    as_json,
    current_bound_lines,
    growth_lines,
    node_forecast,
    reference_lines,
    selection_of,
    term_lines,
)
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc import clock_segment
from timesyncd.messages.node import BoundMessage, NodeState, bound_fields
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.sample import ClockSample, PhcSample

SAMPLES = 600


def sampled(read_at_sync: bool = False, /, **changes: Any) -> ErrorBound:
    """
    The bound after some minutes of samples of one source, with hardware timestamps if `clock` is a PHC: that is read at
    each Sync, or by a source of its own.
    """
    settings = EnsembleSettings(SourceSettings(boundary_clock_error_ns=50))
    ensemble = Ensemble({"ptp": settings, "phc": settings})
    bound = None
    for index in range(SAMPLES):
        sample = nth(index, offset_ns=index % 7, frequency_ppb=-20, **changes)
        if read_at_sync:
            sample = at_sync(sample)
        elif sample.clock != "realtime":
            ensemble.accept(_phc(sample))
        bound = ensemble.accept(sample).bound or bound
    held = ensemble.coast("ptp", sample.as_of_ns + NS_PER_S, -20)
    assert bound is not None
    return held or bound


def _phc(sample: ClockSample) -> PhcSample:
    return PhcSample(
        "phc", sample.clock, sample.as_of_ns, sample.real_minus_boot_ns, -37 * NS_PER_S + 90, 600, "extended", -20, -20
    )


def at_sync(sample: ClockSample) -> ClockSample:
    """The sample with a reading of its PHC, one millisecond after the Sync."""
    reading = replace(_phc(sample), as_of_ns=sample.ingress_time_ns - sample.real_minus_boot_ns + 1_000_000)
    return replace(sample, ingress_time_ns=reading.phc_ns - 1_000_000, phc=reading)


def state(bound: ErrorBound, **changes: Any) -> NodeState:
    known = {
        "node": "n", "incarnation": 1, "sequence": 1, "published_realtime_ns": 1, "age_ns": NS_PER_S, "boot_id": "b",
        "time_namespace": 0, "status": bound.gm_status.name, "utc_status": bound.utc_status.name, "since_realtime_ns": 1,
    }  # fmt: skip
    return NodeState.model_validate(known | bound_fields(bound) | changes)


SOFTWARE = sampled()
HARDWARE = sampled(clock="phc:0", ptp_timescale=True, time_traceable=True, current_utc_offset_s=37)
READ_AT_SYNC = sampled(True, clock="phc:0", ptp_timescale=True, current_utc_offset_s=37)
ANNOUNCED = {"ptp_timescale": True, "time_traceable": True, "current_utc_offset_s": 37}


def test_every_term_and_rate_is_described() -> None:
    """The model makes a bound of every term and rate that has a description, and of no other."""
    made = {name for bound in (SOFTWARE, HARDWARE) for name in (*bound.terms, *bound.stat_terms)}
    rates = {name for bound in (SOFTWARE, HARDWARE) for name in bound.rates}

    assert made | set(clock_segment.TERMS) == set(Term)
    assert rates == set(Rate)
    assert all(each.description for each in (*Term, *Rate))


@pytest.mark.parametrize("bound", [SOFTWARE, HARDWARE, READ_AT_SYNC])
def test_the_terms_add_up(bound: ErrorBound) -> None:
    """Each column adds up to the bound against the parent."""
    lines, (parent, *_) = term_lines(state(bound)), reference_lines(state(bound))

    assert sum(line.hard_ns or 0 for line in lines) == parent.hard_ns == bound.parent_hard.bound_ns
    assert sum(line.stat_ns or 0 for line in lines) == parent.stat_ns == bound.parent_stat.bound_ns


def named(lines: list[Any]) -> dict[str, tuple[int | None, int | None]]:
    return {line.name: (line.hard_ns, line.stat_ns) for line in lines}


@pytest.mark.parametrize(
    ("sources", "what"),
    [(["ptp"], "as configured; nothing checks it"), (["ptp", "other"], "as configured, or as observed")],
)
def test_the_boundary_clocks_error_is_named_as_what_it_is(sources: list[str], what: str) -> None:
    """One path shows nothing of them. A second source of the same grandmaster may have refuted what is configured."""
    bound = sampled(steps_removed=3, **ANNOUNCED)
    followed = {"grandmaster_identity": bound.grandmaster_identity}
    node = state(bound, sources=[source(name, 10, "ptp") | followed for name in sources])

    assert [line.what for line in reference_lines(node) if line.name == "boundary clocks"] == [what]


def test_the_terms_between_the_references_are_given() -> None:
    """Parent + boundary clocks = grandmaster; grandmaster + its own error = UTC, in both columns."""
    found = named(reference_lines(state(sampled(steps_removed=3, **ANNOUNCED), sources=[source("ptp", 10, "ptp")])))
    parent, clocks, gm, own, utc = found.values()

    assert list(found) == ["parent", "boundary clocks", "grandmaster", "grandmaster's own", "UTC"]
    assert (clocks, own) == ((100, 100), (100, 100))
    assert [a + b for a, b in zip(parent, clocks, strict=True)] == list(gm)  # type: ignore[operator]
    assert [a + b for a, b in zip(gm, own, strict=True)] == list(utc)  # type: ignore[operator]


def test_an_unknown_reference_gives_its_reason() -> None:
    """An unknown bound has no number and its reason; the known ones are unchanged."""
    *_, utc = reference_lines(state(SOFTWARE))

    assert (utc.what, utc.hard_ns, utc.stat_ns) == (Reason.ARBITRARY_TIMESCALE.text, None, None)


def test_the_current_bounds_have_grown() -> None:
    """Each bound grows by its own rate over the age; a disrupted or unknown clock has none."""
    parent, *_ = current_bound_lines(state(SOFTWARE))
    lost = [
        current_bound_lines(state(SOFTWARE, status=status, utc_status=status)) for status in ("DISRUPTED", "UNKNOWN")
    ]

    assert (parent.hard_ns, parent.stat_ns) == (SOFTWARE.parent_hard.at(NS_PER_S), SOFTWARE.parent_stat.at(NS_PER_S))
    assert [line.hard_ns for lines in lost for line in lines] == [None] * 6


def test_the_parent_can_be_known_without_the_grandmaster() -> None:
    """Behind boundary clocks of unknown error, the bound against the parent is known until the sample expires."""
    unknown = BoundMessage(bound_ns=None, growth_ppb=0, reason=Reason.BOUNDARY_CLOCK_ERROR_UNKNOWN.text)
    node = state(SOFTWARE, status="UNKNOWN", gm=unknown)
    parent, gm, _ = current_bound_lines(node)
    expired, *_ = current_bound_lines(node.model_copy(update={"age_ns": node.void_after_ns}))

    assert (parent.hard_ns, gm.hard_ns, gm.what) == (SOFTWARE.parent_hard.at(NS_PER_S), None, unknown.reason)
    assert expired.hard_ns is None


def test_the_growth_is_given_by_its_rates() -> None:
    """Each rate has a line under its name, and each known reference a sum."""
    lines = named(growth_lines(state(HARDWARE)))
    rates = [hard for name, (hard, _) in lines.items() if name in set(Rate)]

    assert sum(filter(None, rates)) == HARDWARE.parent_hard.growth_ppb == (lines["parent"][0])
    assert lines["parent"][1] == HARDWARE.parent_stat.growth_ppb
    assert "UTC" in lines and "UTC" not in named(growth_lines(state(SOFTWARE)))


def test_the_forecast_is_that_of_the_main_bound() -> None:
    """With a grandmaster it is that bound; a disrupted clock has no forecast."""
    node = state(SOFTWARE)
    found = node_forecast(node)

    assert found is not None and node.gm is not None
    assert found.expires_in_ns == node.void_after_ns - NS_PER_S
    assert node_forecast(node.model_copy(update={"status": "DISRUPTED"})) is None


def source(name: str, bound_ns: int | None, kind: str = "utc", age_ns: int = 1) -> dict[str, Any]:
    utc = {"bound_ns": bound_ns, "growth_ppb": 1, "reason": ""}
    return {"name": name, "driver": "d", "reachable": True, "kind": kind, "utc": utc, "age_ns": age_ns}


def test_several_sources_of_utc_are_classified() -> None:
    """Expired sources and sources without UTC are not classified; without a majority all are contradicted."""
    sources = [source("a", 10), source("b", 10), source("c", 99), source("d", None), source("e", 10, age_ns=10**12)]
    node = state(SOFTWARE, sources=sources, falsetickers=["c"])
    contradicted = node.model_copy(update={"falsetickers": [], "sources_contradict": True})

    assert [selection_of(each, node) for each in node.sources] == [
        "truechimer",
        "truechimer",
        "falseticker",
        None,
        None,
    ]
    assert selection_of(node.sources[0], contradicted) == "contradicted"
    assert selection_of(node.sources[0], node.model_copy(update={"sources": node.sources[:1]})) is None


def test_an_intersection_is_no_sum() -> None:
    """Where a source narrows UTC, no terms lead from the grandmaster's bound to it, and the line names that source."""
    sources = [source("a", 10, "ptp"), source("b", 10)]
    node = state(HARDWARE, utc_status="SYNCHRONIZED", sources=sources, utc_narrowed_by=["b"])

    assert [line.name for line in reference_lines(node)] == ["parent", "grandmaster"]
    assert current_bound_lines(node)[-1].what == "narrowed by b"


def test_a_dependent_source_leaves_the_sum() -> None:
    """It narrows nothing, so the grandmaster's own error leads to the bound against UTC."""
    sources = [source("a", 10, "ptp"), source("b", 10)]
    node = state(HARDWARE, utc_status="SYNCHRONIZED", sources=sources, utc_dependent=["b"])

    assert [line.name for line in reference_lines(node)][-2:] == ["grandmaster's own", "UTC"]
    assert current_bound_lines(node)[-1].what == ""
    assert selection_of(node.sources[1], node) == "dependent"


def test_the_hull_of_contradicting_sources_is_named() -> None:
    """It is wide because no measurement shows which of them is right."""
    sources = [source("a", 10, "ptp"), source("b", 10)]
    node = state(HARDWARE, utc_status="SYNCHRONIZED", sources=sources, sources_contradict=True)

    assert current_bound_lines(node)[-1].what == "whichever source is right"


def test_utc_of_another_source_is_no_sum() -> None:
    """UTC by NTP is independent of the grandmaster, so the line names its source."""
    utc = BoundMessage(bound_ns=10, growth_ppb=1, reason="")
    node = state(SOFTWARE, utc=utc, utc_status="SYNCHRONIZED", sources=[source("ptp", None, "ptp"), source("ntp", 10)])
    lines = reference_lines(node)

    assert [line.name for line in lines] == ["parent", "grandmaster", "UTC"]
    assert [lines[-1].what, current_bound_lines(node)[-1].what] == ["from ntp"] * 2


def test_no_error_of_the_grandmaster_is_negative() -> None:
    """A UTC bound that is narrower than the grandmaster's does not come from it."""
    utc = BoundMessage(bound_ns=10, growth_ppb=1, reason="")
    node = state(SOFTWARE, utc=utc, utc_status="SYNCHRONIZED", sources=[source("ptp", 10, "ptp")])

    assert "grandmaster's own" not in named(reference_lines(node))


def test_a_term_unknown_to_this_version_is_shown() -> None:
    """A newer daemon's term has its own name and is described as unknown."""
    *_, last = term_lines(state(SOFTWARE, terms=SOFTWARE.terms | {"moon": 5}))

    assert (last.name, last.what, last.hard_ns) == ("moon", "term unknown to this version", 5)


def test_json_contains_the_whole_budget() -> None:
    """The JSON has integer nanoseconds under the names of the tables."""
    printed: Any = as_json(state(HARDWARE, age_ns=0))

    reading = printed["terms"]["phc_reading"]

    assert reading == {
        "what": Term.PHC_READING.description,
        "hard_ns": reading["hard_ns"],
        "stat_ns": reading["hard_ns"],
    }
    assert reading["hard_ns"] == 300
    assert printed["now"]["grandmaster"]["hard_ns"] == HARDWARE.gm_hard.bound_ns
    assert printed["forecast"]["exceeds"][0].keys() == {"limit_ns", "in_ns"}


def test_a_node_synchronized_by_ntp_is_forecast_against_utc() -> None:
    """A node without grandmaster has UTC as its main bound."""
    nothing = {"bound_ns": None, "growth_ppb": 0, "reason": Reason.NO_GRANDMASTER.text, "reason_code": "no_grandmaster"}
    utc = {"bound_ns": 400_000, "growth_ppb": 51_000, "reason": ""}
    utc_alone = {
        "parent": nothing,
        "gm": nothing,
        "utc": utc,
        "status": "UNKNOWN",
        "utc_status": "SYNCHRONIZED",
        "terms": {},
    }
    node = state(SOFTWARE, **utc_alone, sources=[source("ntp", 400_000), source("kernel", None, "kernel")])
    with_ptp = node.model_copy(update={"sources": [*node.sources, node.sources[0].model_copy(update={"kind": "ptp"})]})

    assert (node.knows_utc_alone, node.main_status, node.main_bound) == (True, "SYNCHRONIZED", node.utc)
    assert (with_ptp.knows_utc_alone, with_ptp.main_status) == (False, "UNKNOWN")
    assert node_forecast(node) is not None
