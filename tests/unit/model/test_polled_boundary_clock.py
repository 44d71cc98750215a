"""A boundary clock on the way to the grandmaster that is polled: its holdover counts, also where Announce hides it."""

from __future__ import annotations

import pytest
from samples import HEALTHY, nth

from timesyncd.bound import GRANDMASTER_EXPIRES_AFTER_NS, Bound, ErrorBound, Reason, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.grandmaster import GrandmasterVerdict

BOUNDARY_CLOCK = "00000a.fffe.000001"
CONFIGURED_NS = 100
LEFT_NS = 3_600 * NS_PER_S


def followed(hops: int = 1) -> tuple[Ensemble, ErrorBound]:
    """A source that follows the boundary clock, with so many of them before the grandmaster."""
    ensemble = Ensemble({"ptp": EnsembleSettings(SourceSettings(boundary_clock_error_ns=CONFIGURED_NS))})
    return ensemble, next_bound(ensemble, 0, hops)


def next_bound(ensemble: Ensemble, first: int, hops: int = 1) -> ErrorBound:
    bounds = [
        ensemble.accept(nth(index, source="ptp", parent_identity=BOUNDARY_CLOCK, steps_removed=1 + hops)).bound
        for index in range(first, first + 30)
    ]
    assert bounds[-1] is not None
    return bounds[-1]


def verdict(utc: Bound, left_ns: int | None = None, age_ns: int = 0) -> GrandmasterVerdict:
    return GrandmasterVerdict("hub", utc, HEALTHY.as_of_ns - age_ns, left_ns)


def test_the_budget_of_a_holdover_replaces_a_smaller_configured_error() -> None:
    """It widens the bound in hand when the poller reports it, and the bounds of the later samples; it grows on."""
    ensemble, before = followed()
    assert before.gm_hard == before.parent_hard.plus(CONFIGURED_NS)

    in_holdover = verdict(Bound(2_500, 7), LEFT_NS)
    published = ensemble.update_grandmaster("t-bc", [BOUNDARY_CLOCK], in_holdover, HEALTHY.as_of_ns)
    later = next_bound(ensemble, 30)

    for bound in (published, later):
        assert bound is not None
        assert bound.gm_hard.bound_ns is not None and bound.parent_hard.bound_ns is not None
        assert bound.gm_hard.growth_ppb == bound.parent_hard.growth_ppb + 7
        assert 2_500 <= bound.gm_hard.bound_ns - bound.parent_hard.bound_ns <= 2_600


@pytest.mark.parametrize(
    "polled",
    [
        verdict(Bound(30, 1)),
        verdict(Bound(30, 1), LEFT_NS),
        verdict(unbounded(Reason.NO_HOLDOVER_BUDGET)),
        verdict(Bound(2_500, 7), LEFT_NS, GRANDMASTER_EXPIRES_AFTER_NS),
    ],
)
def test_a_verdict_never_narrows_the_configured_error(polled: GrandmasterVerdict) -> None:
    """
    A boundary clock that is locked, within its configured error, without a budget, or no longer polled: the
    configured error covers its holdover, by definition.
    """
    ensemble, before = followed()
    ensemble.update_grandmaster("t-bc", [BOUNDARY_CLOCK], polled, HEALTHY.as_of_ns)
    after = next_bound(ensemble, 30)

    assert after.gm_hard.bound_ns is not None and after.parent_hard.bound_ns is not None
    assert after.gm_hard.bound_ns - after.parent_hard.bound_ns == CONFIGURED_NS
    assert before.gm_hard.bound_ns is not None


def test_a_boundary_clock_that_is_locked_again_does_not_narrow_the_bound_in_hand() -> None:
    """The clock was measured against it while it was off; the next sample is measured against one that is locked."""
    ensemble, _ = followed()
    in_holdover, locked = verdict(Bound(2_500, 7), LEFT_NS), verdict(Bound(30, 1))
    held = ensemble.update_grandmaster("t-bc", [BOUNDARY_CLOCK], in_holdover, HEALTHY.as_of_ns)
    published = ensemble.update_grandmaster("t-bc", [BOUNDARY_CLOCK], locked, HEALTHY.as_of_ns)
    in_hand, later = ensemble.source_bound("ptp"), next_bound(ensemble, 30)

    assert held is not None and published is None
    assert in_hand is not None and in_hand.gm_hard == held.gm_hard
    assert later.gm_hard.bound_ns is not None and later.parent_hard.bound_ns is not None
    assert later.gm_hard.bound_ns - later.parent_hard.bound_ns == CONFIGURED_NS


def test_a_budget_that_is_used_up_leaves_the_bound_unknown() -> None:
    """Nothing bounds the boundary clock from then on; the bound against the parent stays."""
    ensemble, _ = followed()
    used_up = verdict(unbounded(Reason.HOLDOVER_BUDGET_EXCEEDED), 0)
    published = ensemble.update_grandmaster("t-bc", [BOUNDARY_CLOCK], used_up, HEALTHY.as_of_ns)

    assert published is not None
    assert published.gm_hard.reason is Reason.HOLDOVER_BUDGET_EXCEEDED
    assert published.parent_hard.bound_ns is not None


@pytest.mark.parametrize(
    ("hops", "polled", "witness"),
    [
        (1, verdict(Bound(30, 1)), "t-bc"),
        (1, verdict(Bound(30, 1), LEFT_NS), None),
        (1, verdict(unbounded(Reason.GRANDMASTER_NOT_LOCKED)), None),
        (1, verdict(Bound(30, 1), None, GRANDMASTER_EXPIRES_AFTER_NS), None),
        (2, verdict(Bound(30, 1)), None),
    ],
)
def test_the_only_boundary_clock_is_checked_while_its_poller_sees_it_locked(
    hops: int, polled: GrandmasterVerdict, witness: str | None
) -> None:
    """With two of them, the poll of one shows nothing of the other."""
    ensemble, _ = followed(hops)
    ensemble.update_grandmaster("t-bc", [BOUNDARY_CLOCK], polled, HEALTHY.as_of_ns)

    assert ensemble.locked_boundary_clock("ptp", HEALTHY.as_of_ns) == witness
