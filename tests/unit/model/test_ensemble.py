"""What readings make of the node's clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import GRANDMASTER_IDENTITY, HEALTHY, INTERVAL_NS, nth

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reason, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.grandmaster import GrandmasterVerdict, Invalidation
from timesyncd.sample import NoSample, NoSampleCause, PortState


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


def test_hardware_timestamps_do_not_bound_the_system_clock() -> None:
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
    The segment contains the ages at which it becomes HOLDOVER and UNKNOWN.
    """
    ensemble = one()
    bound = fed(ensemble)

    assert ensemble.accept(NoSample("ptp", HEALTHY.as_of_ns, "no Sync")).bound is None
    assert bound is not None
    assert ensemble.deciding_bound(bound.as_of_ns + 999 * NS_PER_S) is bound
    assert ensemble.deciding_bound(bound.as_of_ns + 1000 * NS_PER_S) is None


def test_samples_from_before_the_port_left_slave_are_dropped() -> None:
    """
    ptp4l empties its delay filter then; what is known ages on, and eleven new delays are wanted.
    """
    ensemble = one()
    fed(ensemble)
    lost = ensemble.accept(NoSample("ptp", HEALTHY.as_of_ns, "LISTENING", port_state=PortState.LISTENING))

    assert lost.bound is None
    assert ensemble.deciding_bound(HEALTHY.as_of_ns) is not None
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


def test_a_new_parent_invalidates_the_bound() -> None:
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


@pytest.mark.parametrize("code", ["parent_changed", "path_changed", "grandmaster_changed"])
def test_a_change_of_what_is_followed_is_the_reason_of_the_disruption(code: str) -> None:
    """
    The bound speaks of the path before; nothing was restarted.
    """
    ensemble = one()
    fed(ensemble)
    changed = ensemble.accept(NoSample("ptp", HEALTHY.as_of_ns, "changed", change=NoSampleCause(code))).bound

    assert changed is not None
    assert (changed.gm_status, changed.gm_hard.reason.code) == (ClockStatus.DISRUPTED, code)
    assert ensemble.accept(nth(20)).bound is None


def test_a_new_grandmaster_behind_the_same_parent_invalidates_the_bound() -> None:
    """
    The boundary clock follows another clock from now on, and may step to it.
    """
    ensemble = one()
    fed(ensemble)
    changed = ensemble.accept(nth(12, grandmaster_identity="aabbcc.fffe.ddeeff")).bound

    assert changed is not None
    assert (changed.gm_status, changed.gm_hard.reason.code) == (ClockStatus.DISRUPTED, "grandmaster_changed")


def test_without_announce_only_the_parent_is_bounded() -> None:
    """
    No data set then tells which grandmaster is followed, nor how many clocks lie between.
    """
    bound = fed(one(), parent_identity=None, grandmaster_identity=None, clock_class=255, clock_accuracy=0xFE)

    assert bound is not None
    assert (bound.parent_identity, bound.grandmaster_identity) == (None, None)
    assert (bound.parent_hard.bound_ns is None, bound.gm_hard.bound_ns) == (False, None)
    assert (bound.gm_hard.reason.code, bound.utc_hard.reason.code) == ("no_announce", "no_announce")


def test_the_first_valid_source_decides() -> None:
    """
    A second one takes over only when the first has expired.
    """
    ensemble = Ensemble({"ptp": EnsembleSettings(void_after_ns=10 * NS_PER_S), "spare": EnsembleSettings()})
    fed(ensemble)
    for index in range(12):
        spare = ensemble.accept(nth(index, source="spare"))
    later = [ensemble.accept(nth(200 + index, source="spare")).bound for index in range(12)][-1]

    assert spare.bound is None
    assert spare.source_bound is not None and spare.source_bound.gm_status is ClockStatus.SYNCHRONIZED
    assert later is not None


UTC = {"ptp_timescale": True, "time_traceable": True, "current_utc_offset_s": 37}
GM = [GRANDMASTER_IDENTITY]
NOW_NS = HEALTHY.as_of_ns + 11 * INTERVAL_NS + 1
"""Right after the twelfth sample, which is the first with a bound."""

GOOD = GrandmasterVerdict("hub", Bound(100, 1), HEALTHY.as_of_ns)
BAD = replace(GOOD, utc=unbounded(Reason.GRANDMASTER_CONTRADICTS_ITSELF))
JUMPED = replace(GOOD, invalidation=Invalidation(77, NOW_NS, Reason.GRANDMASTER_JUMPED))


def followed() -> Ensemble:
    """A node that follows a grandmaster with a good verdict."""
    ensemble = one()
    ensemble.update_grandmaster("gm-a", GM, GOOD, HEALTHY.as_of_ns)
    fed(ensemble, **UTC)
    return ensemble


def test_the_grandmaster_s_own_error_is_in_the_next_sample() -> None:
    """
    The bound against UTC has it, with its growth; the one against the grandmaster has not.
    """
    with_it, without = one(), one()
    with_it.update_grandmaster("gm-a", GM, replace(GOOD, utc=Bound(5_000, 3)), HEALTHY.as_of_ns)
    judged, announced = fed(with_it, **UTC), fed(without, **UTC)

    assert judged is not None and announced is not None
    assert judged.gm_hard == announced.gm_hard
    assert judged.utc_hard.growth_ppb == announced.utc_hard.growth_ppb + 3
    assert (judged.utc_hard.bound_ns or 0) - (announced.utc_hard.bound_ns or 0) == 5_000 - 100 + 5


def test_a_verdict_on_another_grandmaster_does_not_count() -> None:
    """
    It is matched by the clock identities that the grandmaster announces, one a port.
    """
    ensemble = one()
    ensemble.update_grandmaster("gm-b", ["00a069.fffe.000001", "00a069.fffe.000002"], BAD, HEALTHY.as_of_ns)
    bound = fed(ensemble, **UTC)

    assert bound is not None
    assert bound.utc_status is ClockStatus.SYNCHRONIZED
    assert ensemble.update_grandmaster("gm-b", GM[:0], JUMPED, NOW_NS) is None


def test_a_worse_verdict_is_published_before_the_next_sample() -> None:
    """
    What was written rested on the grandmaster being well; against the grandmaster itself it still holds.
    """
    ensemble = followed()
    before = ensemble.deciding_bound(NOW_NS)
    worse = ensemble.update_grandmaster("gm-a", GM, BAD, NOW_NS)
    next_one = ensemble.accept(nth(12, **UTC)).bound

    assert before is not None and worse is not None and next_one is not None
    assert worse == replace(before, utc_hard=BAD.utc, utc_status=ClockStatus.UNKNOWN)
    assert ensemble.update_grandmaster("gm-a", GM, BAD, NOW_NS) is None
    assert (next_one.utc_hard, next_one.gm_status) == (BAD.utc, ClockStatus.SYNCHRONIZED)


def test_a_holdover_widens_the_published_bound_and_no_verdict_narrows_it() -> None:
    """
    A better word waits for the sample that it is true of.
    """
    ensemble = followed()
    wider = ensemble.update_grandmaster(
        "gm-a", GM, replace(GOOD, utc=Bound(900, 1), holdover_left_ns=9 * NS_PER_S), NOW_NS
    )
    better = ensemble.update_grandmaster("gm-a", GM, replace(GOOD, as_of_ns=NOW_NS), NOW_NS)

    assert wider is not None
    assert ((wider.utc_hard.bound_ns or 0) - (wider.gm_hard.bound_ns or 0), better) == (900 + 2, None)


def test_an_event_of_the_grandmaster_invalidates_earlier_samples() -> None:
    """
    DISRUPTED, with its reason, until a sample of after it is accepted; samples of before are ignored, whenever they
    come.
    """
    ensemble = followed()
    invalidated = ensemble.update_grandmaster("gm-a", GM, JUMPED, NOW_NS)
    before = [ensemble.accept(nth(12 + index, as_of_ns=NOW_NS - 1, **UTC)).bound for index in range(12)]
    refilled = [ensemble.accept(nth(12 + index, **UTC)).bound for index in range(12)]

    assert invalidated is not None
    assert (invalidated.gm_status, invalidated.utc_status) == (ClockStatus.DISRUPTED, ClockStatus.DISRUPTED)
    assert {invalidated.parent_hard, invalidated.gm_hard, invalidated.utc_hard} == {
        unbounded(Reason.GRANDMASTER_JUMPED)
    }
    assert before == [None] * 12
    assert [bound is not None for bound in refilled] == [False] * 11 + [True]


def test_an_event_that_is_reported_again_invalidates_once() -> None:
    """
    States are repeated, and each repetition takes another time on its way.
    """
    ensemble = followed()
    ensemble.update_grandmaster("gm-a", GM, JUMPED, NOW_NS)
    for index in range(12):
        ensemble.accept(nth(12 + index, **UTC))
    later_ns = HEALTHY.as_of_ns + 23 * INTERVAL_NS + 1
    again = replace(JUMPED, as_of_ns=later_ns, invalidation=Invalidation(77, later_ns, Reason.GRANDMASTER_JUMPED))

    assert ensemble.update_grandmaster("gm-a", GM, again, later_ns) is None
    assert ensemble.deciding_bound(later_ns) is not None


def test_an_event_before_the_newest_sample_invalidates_nothing() -> None:
    """
    What was measured after it holds.
    """
    received_late = replace(JUMPED, invalidation=Invalidation(77, NOW_NS - INTERVAL_NS, Reason.GRANDMASTER_JUMPED))

    assert followed().update_grandmaster("gm-a", GM, received_late, NOW_NS) is None


def test_no_event_lies_in_the_future() -> None:
    """
    However its time came about, samples of after its hearing count.
    """
    ensemble = followed()
    ensemble.update_grandmaster(
        "gm-a", GM, replace(JUMPED, invalidation=Invalidation(77, NOW_NS + 10**12, Reason.GRANDMASTER_JUMPED)), NOW_NS
    )

    assert [ensemble.accept(nth(12 + index, **UTC)).bound is not None for index in range(12)][-1]


def test_a_new_clock_identity_invalidates_the_followers_of_the_old_one() -> None:
    """
    Its followers' newest samples still name the identity of before.
    """
    changed = replace(GOOD, invalidation=Invalidation(1, NOW_NS, Reason.GRANDMASTER_IDENTITY_CHANGED))
    invalidated = followed().update_grandmaster("gm-a", ["00a069.fffe.000001"], changed, NOW_NS)

    assert invalidated is not None
    assert invalidated.gm_hard.reason is Reason.GRANDMASTER_IDENTITY_CHANGED


def test_two_pollers_of_a_grandmaster_invalidate_once() -> None:
    """
    Each dates the same event by its own polls; one is believed, and the other when that one has fallen silent.
    """
    ensemble = followed()
    standby = replace(JUMPED, poller="standby", as_of_ns=NOW_NS)
    much_later_ns = NOW_NS + 61 * NS_PER_S

    assert ensemble.update_grandmaster("gm-a", GM, standby, NOW_NS) is None
    assert ensemble.update_grandmaster("gm-a", GM, JUMPED, NOW_NS) is not None
    assert ensemble.update_grandmaster("gm-a", GM, replace(BAD, poller="standby"), NOW_NS) is None

    for index in range(12):
        ensemble.accept(nth(12 + index, **UTC))

    assert ensemble.update_grandmaster(
        "gm-a", GM, replace(BAD, poller="standby", as_of_ns=much_later_ns), much_later_ns
    )


@pytest.mark.parametrize("verdict", [BAD, JUMPED])
def test_a_verdict_on_a_source_that_does_not_decide_publishes_nothing(verdict: GrandmasterVerdict) -> None:
    """
    Readers see the one that decides, which follows another grandmaster.
    """
    ensemble = Ensemble({"ptp": EnsembleSettings(), "spare": EnsembleSettings()})
    fed(ensemble, **UTC, grandmaster_identity="00a069.fffe.000001")
    fed(ensemble, **UTC, source="spare")
    deciding = ensemble.deciding_bound(NOW_NS)

    assert ensemble.update_grandmaster("gm-a", GM, verdict, NOW_NS) is None
    assert ensemble.deciding_bound(NOW_NS) is deciding


def test_an_event_drops_earlier_samples_also_without_a_bound() -> None:
    """
    The delay filter starts again, also where it was not full yet.
    """
    ensemble = one()
    fed(ensemble, 11, **UTC)
    ensemble.update_grandmaster("gm-a", GM, JUMPED, NOW_NS)

    assert [ensemble.accept(nth(12 + index, **UTC)).bound is not None for index in range(12)] == [False] * 11 + [True]
