"""What readings make of the node's clock."""

from __future__ import annotations

from samples import HEALTHY, nth

from timesyncd.bound import ClockStatus, ErrorBound, Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.ensemble import Ensemble, EnsembleSettings
from timesyncd.sample import NoSample, PortState


def fed(ensemble: Ensemble, count: int = 12, **changes: object) -> ErrorBound | None:
    bound = None
    for index in range(count):
        bound = ensemble.accept(nth(index, **changes)).bound
    return bound


def one() -> Ensemble:
    return Ensemble({"ptp": EnsembleSettings()})


def test_fed_by_fresh_samples_the_clock_is_synchronized_to_the_grandmaster() -> None:
    """
    UTC stays unknown on an arbitrary timescale, rightly.
    """
    bound = fed(one())

    assert bound is not None
    assert (bound.gm_status, bound.utc_status) == (ClockStatus.SYNCHRONIZED, ClockStatus.UNKNOWN)
    assert bound.utc_hard.reason is Reason.ARBITRARY_TIMESCALE
    assert bound.utc_seconds_removed == 0


def test_hardware_stamps_say_nothing_of_the_system_clock() -> None:
    """
    What ptp4l measures then is the PHC: never its bound under another name.
    """
    bound = fed(one(), clock="phc:0")

    assert bound is not None
    assert bound.gm_status is ClockStatus.UNKNOWN
    assert bound.gm_hard.reason is Reason.PHC_NOT_MEASURED
    assert bound.gm_hard.bound_ns is None


def test_a_silent_source_publishes_nothing_and_ages() -> None:
    """
    The segment says by itself when it turns HOLDOVER and when UNKNOWN.
    """
    ensemble = one()
    bound = fed(ensemble)

    assert ensemble.accept(NoSample("ptp", HEALTHY.as_of_ns, "no Sync")).bound is None
    assert bound is not None
    assert ensemble.advance(bound.as_of_ns + 999 * NS_PER_S) is bound
    assert ensemble.advance(bound.as_of_ns + 1000 * NS_PER_S) is None


def test_what_was_measured_before_the_port_ceased_to_follow_is_forgotten() -> None:
    """
    ptp4l empties its delay filter then; what is known ages on, and eleven new delays are wanted.
    """
    ensemble = one()
    fed(ensemble)
    lost = ensemble.accept(NoSample("ptp", HEALTHY.as_of_ns, "LISTENING", port_state=PortState.LISTENING))

    assert lost.bound is None
    assert ensemble.advance(HEALTHY.as_of_ns) is not None
    assert ensemble.accept(nth(20)).bound is None
    assert ensemble.accept(nth(31)).bound is not None


def test_a_stepped_clock_is_disrupted_until_the_filter_is_full_again() -> None:
    """
    What was measured before the step holds no more.
    """
    ensemble = one()
    fed(ensemble)
    stepped = ensemble.accept(NoSample("ptp", HEALTHY.as_of_ns, "stepped", stepped=True)).bound

    assert stepped is not None
    assert (stepped.gm_status, stepped.gm_hard.reason) == (ClockStatus.DISRUPTED, Reason.CLOCK_STEPPED)
    assert stepped.gm_hard.bound_ns is None
    assert ensemble.accept(nth(20)).bound is None
    assert ensemble.accept(nth(31)).bound is not None


def test_another_parent_withdraws_what_is_known() -> None:
    """
    The servo may already follow the new parent while the bound still speaks of the old one.
    """
    ensemble = one()
    fed(ensemble)
    other = {"parent_identity": "aabbcc.fffe.ddeeff"}
    changed = ensemble.accept(nth(12, **other)).bound

    assert changed is not None
    assert (changed.gm_status, changed.gm_hard.reason) == (ClockStatus.DISRUPTED, Reason.PARENT_CHANGED)
    assert ensemble.accept(nth(22, **other)).bound is None
    assert ensemble.accept(nth(23, **other)).bound is not None


def test_the_first_source_that_lives_decides() -> None:
    """
    A second one takes over only when the first is void.
    """
    ensemble = Ensemble({"ptp": EnsembleSettings(void_after_ns=10 * NS_PER_S), "spare": EnsembleSettings()})
    fed(ensemble)
    for index in range(12):
        beside = ensemble.accept(nth(index, source="spare")).bound
    later = [ensemble.accept(nth(200 + index, source="spare")).bound for index in range(12)][-1]

    assert beside is None
    assert later is not None
