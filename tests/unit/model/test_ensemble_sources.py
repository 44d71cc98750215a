"""Several sources of one node together, and what they know while no sample comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clock_lab import Lab
from hypothesis import given
from hypothesis import strategies as st
from samples import GRANDMASTER_IDENTITY, HEALTHY, nth

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reason, Term, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.grandmaster import GrandmasterVerdict, Invalidation
from timesyncd.sample import ClockSample, KernelSample, NoSample, PhcSample, PortState, UtcSample

UTC: dict[str, Any] = {"ptp_timescale": True, "time_traceable": True, "current_utc_offset_s": 37}


def one() -> Ensemble:
    return Ensemble({"ptp": EnsembleSettings()})


def lab_sample(lab: Lab, **changes: Any) -> ClockSample:
    return replace(lab.sync(), **{**UTC, **changes})


def settled(lab: Lab, ensemble: Ensemble, **changes: Any) -> ErrorBound:
    """The bound after a minute, in which the oscillator was learned."""
    for _ in range(65):
        bound = ensemble.accept(lab_sample(lab, **changes)).bound
    assert bound is not None
    return bound


def no_sync(lab: Lab, source: str = "ptp", **changes: Any) -> NoSample:
    return NoSample(source, lab.boottime_ns, "no Sync", **{"frequency_ppb": lab.frequency_ppb, **changes})


def assert_adds_up(bound: ErrorBound) -> None:
    """What is written to the segment and the store: each bound its terms, the growth its rates, and nothing below 0."""
    assert bound.parent_hard.bound_ns == sum(bound.terms.values())
    assert bound.parent_hard.growth_ppb == sum(bound.rates.values())
    for each in (bound.parent_hard, bound.gm_hard, bound.utc_hard, bound.parent_stat, bound.gm_stat, bound.utc_stat):
        assert each.bound_ns is None or min(each.bound_ns, each.growth_ppb) >= 0


@given(st.lists(st.tuples(st.integers(-100_000, 100_000), st.booleans()), min_size=1, max_size=30))
def test_steering_is_followed_without_a_sync(updates: list[tuple[int, bool]]) -> None:
    """
    Frequencies that are read in between, or are not: at every moment the published bound holds, adds up, and the
    statistical one is no wider.
    """
    lab, ensemble = Lab(), one()
    published = settled(lab, ensemble)
    for frequency_ppb, is_read in updates:
        lab.silence()
        if is_read:
            lab.frequency_ppb = frequency_ppb - 20_000
        reading = no_sync(lab) if is_read else no_sync(lab, frequency_ppb=None)
        published = ensemble.accept(reading).bound or published
        age_ns = lab.boottime_ns - published.as_of_ns

        assert_adds_up(published)
        assert (published.gm_stat.at(age_ns) or 0) <= (published.gm_hard.at(age_ns) or 0)
        assert abs(lab.true_ns) <= (published.gm_hard.at(age_ns) or 0)


def test_a_port_that_left_slave_leaves_the_last_correction_applied() -> None:
    """
    LISTENING with a frozen frequency: the bound coasts on the learned drift, though the delay filter is empty.
    """
    lab, ensemble = Lab(), one()
    settled(lab, ensemble)
    kicked = lab_sample(lab, frequency_ppb=lab.frequency_ppb + 1_500)
    lab.frequency_ppb += 1_500
    ensemble.accept(kicked)
    lab.silence(60)
    published = ensemble.accept(no_sync(lab, port_state=PortState.LISTENING)).bound

    assert published is not None
    assert lab.true_ns == 90_000
    assert lab.true_ns <= (published.gm_hard.at(lab.boottime_ns - published.as_of_ns) or 0) <= 200_000
    assert_adds_up(published)


def test_a_frequency_reading_does_not_restore_an_invalidated_bound() -> None:
    """
    After a step, another parent or a restart a reading of the frequency alone makes no bound.
    """
    disruptions: list[dict[str, Any]] = [{"stepped": True}, {"restarted": True}]
    for disruption in disruptions:
        lab, ensemble = Lab(), one()
        settled(lab, ensemble)
        ensemble.accept(no_sync(lab, **disruption))
        lab.silence()

        assert ensemble.accept(no_sync(lab)).bound is None
        assert ensemble.deciding_bound(lab.boottime_ns) is None


def test_an_ntp_daemon_may_slew_its_offset_away_at_any_moment() -> None:
    """
    All between its offset and none is its claim: what it knows to be 50 ms off it may have slewed by the next moment.
    """
    lab, ensemble = three()
    minute(lab, ensemble, ptp_off_ns=50_000_000, spare_off_ns=50_000_000, ntp_off_ns=50_000_000)
    ensemble.accept(lab_sample(lab))

    assert ensemble.agreement is not None
    assert ensemble.agreement.falsetickers == ()


def test_what_an_ntp_daemon_knew_at_its_reading_counts() -> None:
    """
    It was 50 ms off PTP then; that it may slew does not make the two agree.
    """
    lab, ensemble = three()
    minute(lab, ensemble)
    ensemble.accept(ntp(lab, 50_000_000))

    assert ensemble.agreement is not None
    assert ensemble.agreement.falsetickers == ("ntp",)


def test_an_event_between_two_readings_invalidates_the_sample() -> None:
    """
    A bound is as of the reading, but its Sync may be as old as the last reading that did not contain it.
    """
    lab, ensemble = Lab(), one()
    settled(lab, ensemble)
    newest = lab_sample(lab)
    bound = ensemble.accept(newest).bound
    within_ns = newest.read_ns - NS_PER_S // 2
    invalidation = Invalidation(77, within_ns, Reason.GRANDMASTER_JUMPED)
    jumped = GrandmasterVerdict("hub", Bound(100, 1), HEALTHY.as_of_ns, invalidation=invalidation)
    invalidated = ensemble.update_grandmaster("gm-a", [GRANDMASTER_IDENTITY], jumped, lab.boottime_ns)

    assert bound is not None
    assert newest.as_of_ns < within_ns < bound.as_of_ns
    assert invalidated is not None and invalidated.gm_hard == unbounded(Reason.GRANDMASTER_JUMPED)


def phc(lab: Lab, **changes: Any) -> PhcSample:
    """PHC and system clock agree, each on its own timescale."""
    seconds_ns = -37 * NS_PER_S
    sample = PhcSample("card", "phc:0", lab.boottime_ns, HEALTHY.real_minus_boot_ns, seconds_ns, 200, "precise", 0, 0)
    return replace(sample, **changes)


def with_card() -> Ensemble:
    return Ensemble({"ptp": EnsembleSettings(), "card": EnsembleSettings()})


def test_a_reading_of_both_clocks_gives_the_system_clock_its_bound() -> None:
    """
    The PHC's, and what lies between; at each reading of either.
    """
    lab, ensemble = Lab(), with_card()
    for _ in range(65):
        unknown = ensemble.accept(lab_sample(lab, clock="phc:0")).bound
    linked = ensemble.accept(phc(lab)).bound
    apart = ensemble.accept(phc(lab, offset_ns=-37 * NS_PER_S - 700)).bound
    sampled = ensemble.accept(lab_sample(lab, clock="phc:0")).bound

    assert unknown is not None and unknown.gm_hard.reason is Reason.PHC_NOT_MEASURED
    assert linked is not None and apart is not None and sampled is not None
    assert linked.terms[Term.PHC_TO_SYSTEM] == 0
    assert (apart.gm_hard.bound_ns or 0) - (linked.gm_hard.bound_ns or 0) == 700
    assert sampled.terms[Term.PHC_TO_SYSTEM] == 700
    for bound in (linked, apart, sampled):
        assert_adds_up(bound)


def test_a_coasting_phc_carries_the_system_clock_along() -> None:
    """
    While no Sync comes what is steered is the PHC, and that is in the system clock's bound, too; its end still counts
    from the sample.
    """
    lab, ensemble = Lab(), with_card()
    for _ in range(65):
        ensemble.accept(lab_sample(lab, clock="phc:0"))
    ensemble.accept(phc(lab))
    before = ensemble.source_bound("ptp")
    lab.silence()

    after = ensemble.accept(no_sync(lab)).bound

    assert before is not None and after is not None
    assert after.as_of_ns > before.as_of_ns
    assert abs(after.as_of_ns + after.void_after_ns - before.as_of_ns - before.void_after_ns) < NS_PER_S
    assert sum(after.terms.values()) == after.parent_hard.bound_ns


def test_another_card_s_phc_does_not_bound_the_system_clock() -> None:
    """
    It is matched by its name.
    """
    lab, ensemble = Lab(), with_card()
    for _ in range(20):
        ensemble.accept(lab_sample(lab, clock="phc:0"))

    assert ensemble.accept(phc(lab, clock="phc:1")).bound is None
    assert lab_sample(lab).clock == "realtime"


def test_after_a_step_both_clocks_must_be_read_again() -> None:
    """
    What lay between them does so no more.
    """
    lab, ensemble = Lab(), with_card()
    for _ in range(20):
        ensemble.accept(lab_sample(lab, clock="phc:0"))
    ensemble.accept(phc(lab))
    stepped = ensemble.accept(no_sync(lab, "card", stepped=True)).bound
    for _ in range(20):
        later = ensemble.accept(lab_sample(lab, clock="phc:0")).bound

    assert stepped is not None and stepped.gm_hard == unbounded(Reason.CLOCK_STEPPED)
    assert later is not None and later.gm_hard.reason is Reason.PHC_NOT_MEASURED


def test_a_phc_that_ptp4l_stepped_carries_no_sample_of_before_over_to_the_system_clock() -> None:
    """ptp4l forgets its last Sync then. The step may be smaller than what a servo could have done since the last reading."""
    lab, ensemble = Lab(), with_card()
    for _ in range(65):
        ensemble.accept(lab_sample(lab, clock="phc:0"))
    ensemble.accept(phc(lab))
    forgotten = ensemble.accept(no_sync(lab, sync_forgotten=True)).bound
    read_after = ensemble.accept(phc(lab, offset_ns=-37 * NS_PER_S - 25_000)).bound

    assert forgotten is not None and forgotten.gm_hard == unbounded(Reason.CLOCK_STEPPED)
    assert read_after is None


def ntp(lab: Lab, offset_ns: int = 0, error_ns: int = 1_000_000, **changes: Any) -> UtcSample:
    sample = UtcSample(
        "ntp", lab.boottime_ns, HEALTHY.real_minus_boot_ns, offset_ns, error_ns, 1_000, "10.0.0.1", 2, "none", 1, 1
    )
    return replace(sample, **changes)


def test_ntp_alone_gives_utc_and_no_grandmaster() -> None:
    """
    Until it expires.
    """
    ensemble = Ensemble({"ntp": EnsembleSettings()})
    bound = ensemble.accept(ntp(Lab(), -5)).bound

    assert bound is not None
    assert (bound.utc_hard, bound.gm_hard) == (Bound(1_000_005, 1_000), unbounded(Reason.NO_GRANDMASTER))
    assert ensemble.deciding_bound(bound.as_of_ns + 1_000 * NS_PER_S) is None


def three() -> tuple[Lab, Ensemble]:
    """Two PTP sources and one of NTP, each declared independent of the others."""
    return Lab(), independent("ptp", "spare", "ntp")


def independent(*names: str) -> Ensemble:
    return Ensemble({name: EnsembleSettings(independent_of=frozenset(names) - {name}) for name in names})


#: What the second PTP source follows.
SPARE: dict[str, Any] = {
    "source": "spare",
    "grandmaster_identity": "aabbcc.fffe.000001",
    "parent_identity": "aabbcc.fffe.000001",
}


def minute(lab: Lab, ensemble: Ensemble, ptp_off_ns: int = 0, spare_off_ns: int = 0, ntp_off_ns: int = 0) -> ErrorBound:
    """Each source once a second; some are off."""
    bound = None
    for _ in range(65):
        sample = lab_sample(lab)
        off = replace(sample, offset_ns=sample.offset_ns + ptp_off_ns)
        spare = replace(sample, **SPARE, offset_ns=sample.offset_ns + spare_off_ns)
        for reading in (spare, ntp(lab, ntp_off_ns), off):
            bound = ensemble.accept(reading).bound or bound
    assert bound is not None
    return bound


def test_sources_that_agree_narrow_utc_together() -> None:
    """
    No wider than the best of them.
    """
    lab, ensemble = three()
    bound = minute(lab, ensemble, ptp_off_ns=5_000)
    own = ensemble.source_bound("ptp")

    assert own is not None
    assert (bound.utc_hard.bound_ns or 0) < (own.utc_hard.bound_ns or 0)
    assert ensemble.agreement is not None and ensemble.agreement.falsetickers == ()
    assert ensemble.agreement.narrowed_by == ("spare",)
    assert bound.gm_hard == own.gm_hard


@pytest.mark.parametrize("off_ns", [-50_000_000, 50_000_000])
def test_a_falseticker_is_named_and_narrows_nothing(off_ns: int) -> None:
    """
    A second grandmaster that is 50 ms off, where NTP knows to 1 ms.
    """
    (lab, ensemble), (_, without) = three(), three()
    bound = minute(lab, ensemble, spare_off_ns=off_ns)
    honest = minute(Lab(), without)

    assert ensemble.agreement is not None
    assert (ensemble.agreement.falsetickers, ensemble.agreement.contradiction) == (("spare",), False)
    assert (bound.utc_hard.bound_ns or 0) >= (honest.utc_hard.bound_ns or 0)
    assert bound.utc_stat.bound_ns == honest.utc_stat.bound_ns


def test_a_deciding_falseticker_does_not_bound_utc() -> None:
    """
    It is 50 ms off and sure of it: against UTC what the others know counts, also in the statistical bound.
    """
    lab, ensemble = three()
    bound = minute(lab, ensemble, ptp_off_ns=50_000_000)

    assert ensemble.agreement is not None
    assert ensemble.agreement.falsetickers == ("ptp",)
    assert (bound.utc_hard.bound_ns or 0) < 1_000_000 < (bound.gm_hard.bound_ns or 0)
    assert bound.utc_stat == bound.utc_hard


@pytest.mark.parametrize("off_ns", [-50_000_000, 50_000_000])
def test_of_two_that_contradict_the_hull_holds(off_ns: int) -> None:
    """
    Either may be right, so both are inside, and neither is a falseticker.
    """
    lab, ensemble = Lab(), Ensemble({"ptp": EnsembleSettings(), "ntp": EnsembleSettings()})
    for _ in range(65):
        ensemble.accept(ntp(lab))
        sample = lab_sample(lab)
        bound = ensemble.accept(replace(sample, offset_ns=sample.offset_ns + off_ns)).bound

    assert bound is not None and ensemble.agreement is not None
    assert ensemble.agreement.contradiction and ensemble.agreement.falsetickers == ()
    assert (bound.utc_hard.bound_ns or 0) >= 50_000_000
    assert bound.utc_stat == bound.utc_hard


def test_a_source_that_is_right_with_one_of_two_is_not_believed_alone() -> None:
    """
    Of three the middle one agrees with either other: the deciding one may be the false one, so its own narrower word
    does not count.
    """
    lab, ensemble = three()
    for _ in range(65):
        sample = lab_sample(lab)
        farther = replace(sample, **SPARE, offset_ns=sample.offset_ns + 1_500_000)
        for reading in (farther, ntp(lab, 800_000, error_ns=795_000), sample):
            bound = ensemble.accept(reading).bound

    assert bound is not None and ensemble.agreement is not None
    assert (ensemble.agreement.falsetickers, ensemble.agreement.contradicting) == ((), ("ptp", "spare"))
    assert (bound.utc_hard.bound_ns or 0) >= 1_500_000


@pytest.mark.parametrize(
    ("spare", "cause"),
    [
        ({"grandmaster_identity": HEALTHY.grandmaster_identity}, "same_grandmaster"),
        ({"parent_identity": HEALTHY.parent_identity}, "same_parent"),
        ({}, None),
    ],
)
def test_a_declaration_that_the_sources_refute_does_not_count(spare: dict[str, Any], cause: str | None) -> None:
    """
    Two ports that follow one grandmaster share its error, whatever the configuration says.
    """
    lab, ensemble = Lab(), independent("ptp", "spare")
    for _ in range(65):
        sample = lab_sample(lab)
        ensemble.accept(replace(sample, **SPARE | spare))
        bound = ensemble.accept(replace(sample, offset_ns=sample.offset_ns + 5_000)).bound
    own = ensemble.source_bound("ptp")

    assert bound is not None and own is not None
    assert (bound.utc_hard == own.utc_hard) is (cause is not None)
    assert ensemble.refuted_independence == (
        {} if cause is None else {"ptp": ("spare", cause), "spare": ("ptp", cause)}
    )


@pytest.mark.parametrize(
    ("clocks", "cause"),
    [
        (("phc:0", "phc:0"), "same_phc"),
        (("phc", "phc:0"), "same_phc"),
        (("phc:0", "phc:1"), None),
        (("realtime", "phc:0"), None),
    ],
)
def test_two_that_measure_one_phc_share_its_errors(clocks: tuple[str, str], cause: str | None) -> None:
    """
    A PHC that ptp4l does not name may be the other's.
    """
    ensemble = independent("ptp", "spare")
    for index in range(12):
        ensemble.accept(nth(index, clock=clocks[0]))
        ensemble.accept(nth(index, clock=clocks[1], **SPARE))

    assert ensemble.shared_cause("ptp", "spare") == cause


def test_two_ntp_daemons_of_one_reference_share_its_errors() -> None:
    """
    Also where the configuration declares them independent.
    """
    ensemble = independent("ntp", "ntp-2")
    for name, reference in (("ntp", "10.0.0.1"), ("ntp-2", "10.0.0.1")):
        ensemble.accept(ntp(Lab(), source=name, reference=reference))
    together = ensemble.shared_cause("ntp", "ntp-2")
    ensemble.accept(ntp(Lab(), source="ntp-2", reference="10.0.0.2"))

    assert (together, ensemble.shared_cause("ntp", "ntp-2")) == ("same_reference", None)


def test_a_group_is_all_that_may_share_a_cause() -> None:
    """
    NTP is independent of one PTP source and not of the other, with which that one shares a grandmaster.
    """
    settings = {"ptp": {"ntp"}, "spare": set[str](), "ntp": {"ptp"}}
    ensemble = Ensemble({name: EnsembleSettings(independent_of=frozenset(of)) for name, of in settings.items()})
    lab = Lab()
    bound = minute(lab, ensemble, ptp_off_ns=5_000)
    own = ensemble.source_bound("ptp")

    assert own is not None
    assert bound.utc_hard == own.utc_hard


def undeclared(other_error_ns: int, off_ns: int = 0) -> tuple[Ensemble, ErrorBound]:
    """PTP and NTP of which the configuration says nothing, after a minute."""
    lab, ensemble = Lab(), Ensemble({"ptp": EnsembleSettings(), "ntp": EnsembleSettings()})
    bound = None
    for _ in range(65):
        ensemble.accept(ntp(lab, off_ns, error_ns=other_error_ns))
        bound = ensemble.accept(lab_sample(lab)).bound
    assert bound is not None
    return ensemble, bound


def test_a_source_that_is_not_shown_independent_narrows_nothing() -> None:
    """
    It may follow the same clock, and repeat that clock's error with a smaller bound.
    """
    ensemble, bound = undeclared(other_error_ns=100)
    own = ensemble.source_bound("ptp")

    assert own is not None
    assert (bound.utc_hard, bound.utc_stat) == (own.utc_hard, own.utc_stat)


def test_a_source_that_is_not_shown_independent_may_contradict() -> None:
    """
    Whatever they share, both cannot be right.
    """
    _, bound = undeclared(other_error_ns=100, off_ns=50_000_000)

    assert (bound.utc_hard.bound_ns or 0) >= 50_000_000


def test_two_that_may_share_a_cause_do_not_outvote_a_third() -> None:
    """
    Two NTP sources of one server are one witness: the interval covers them and the one that they contradict.
    """
    lab, ensemble = Lab(), Ensemble({name: EnsembleSettings() for name in ("ptp", "ntp", "ntp-2")})
    for _ in range(65):
        for name in ("ntp", "ntp-2"):
            ensemble.accept(ntp(lab, 50_000_000, error_ns=1_000, source=name))
        bound = ensemble.accept(lab_sample(lab)).bound

    assert bound is not None and ensemble.agreement is not None
    assert (ensemble.agreement.falsetickers, ensemble.agreement.contradiction) == ((), True)
    assert ensemble.agreement.low_ns <= lab.true_ns <= 50_000_000 <= ensemble.agreement.high_ns


def test_a_coasting_source_claims_its_current_interval() -> None:
    """
    A kick, and its end: the interval moved by it, and is held against the others as it is now.
    """
    lab, ensemble = Lab(), Ensemble({"ptp": EnsembleSettings(), "ntp": EnsembleSettings()})
    settled(lab, ensemble)
    lab.frequency_ppb += 100_000
    ensemble.accept(no_sync(lab))
    lab.silence(30)
    lab.frequency_ppb -= 100_000
    ensemble.accept(no_sync(lab, frequency_ppb=lab.frequency_ppb + 100_000))
    ensemble.accept(no_sync(lab))
    lab.silence(30)
    ensemble.accept(no_sync(lab))
    published = ensemble.accept(ntp(lab, round(lab.true_ns), error_ns=50_000_000)).bound

    assert ensemble.agreement is not None and published is not None
    assert lab.true_ns == 30 * (20_000 + 79_994)
    assert ensemble.agreement.low_ns <= lab.true_ns <= ensemble.agreement.high_ns
    assert lab.true_ns <= (published.utc_hard.at(lab.boottime_ns - published.as_of_ns) or 0)


def test_one_source_s_restart_is_not_the_node_s() -> None:
    """
    Readers see the one that decides, and that one goes on.
    """
    lab, ensemble = three()
    minute(lab, ensemble)
    restarted = ensemble.accept(no_sync(lab, "spare", restarted=True))
    moved = ensemble.accept(lab_sample(lab, source="spare", parent_identity="aabbcc.fffe.ddeeff"))
    deciding = ensemble.accept(no_sync(lab, "ptp", restarted=True))

    for outcome in (restarted, moved):
        assert outcome.bound is None or outcome.bound.gm_status is ClockStatus.SYNCHRONIZED
    assert restarted.source_bound is not None
    assert restarted.source_bound.gm_status is ClockStatus.DISRUPTED
    assert deciding.bound is not None and deciding.bound.gm_status is ClockStatus.DISRUPTED


def kernel(vm_disruptions: int | None) -> KernelSample:
    return KernelSample("ntp", HEALTHY.as_of_ns, 0, 0, 0, True, "none", 37, vm_disruptions=vm_disruptions)


@pytest.mark.parametrize("between", [(), (None,), (None, 7, None)])
def test_a_migrated_virtual_machine_has_no_bound(between: tuple[int | None, ...]) -> None:
    """
    All sources are invalid, also when the marker could not be read for a while; the first marker, and the same again,
    are no migration.
    """
    lab, ensemble = three()
    minute(lab, ensemble)
    unmoved = [ensemble.accept(kernel(marker)).bound for marker in (None, 7, 7, *between)]
    moved = ensemble.accept(kernel(8)).bound

    assert set(unmoved) == {None}
    assert moved is not None
    assert {moved.parent_hard, moved.gm_hard, moved.utc_hard} == {unbounded(Reason.VM_MIGRATED)}
    assert list(ensemble.bounded_sources) == []
    assert ensemble.accept(ntp(lab)).bound is not None


def test_a_step_between_two_readings_of_the_clocks_invalidates_the_bound() -> None:
    """ptp4l may have stepped the PHC: its samples from before, and the system clock's bound, no longer apply."""
    lab, ensemble = Lab(), with_card()
    for _ in range(65):
        ensemble.accept(lab_sample(lab, clock="phc:0"))
        linked = ensemble.accept(phc(lab)).bound
    lab_sample(lab)
    stepped = ensemble.accept(phc(lab, offset_ns=-37 * NS_PER_S + NS_PER_S // 100)).bound
    later = ensemble.accept(lab_sample(lab, clock="phc:0")).bound

    assert linked is not None and linked.gm_hard.bound_ns is not None
    assert stepped is not None and stepped.gm_hard == unbounded(Reason.CLOCK_STEPPED)
    assert later is None or later.gm_hard.bound_ns is None


def test_a_phc_whose_steering_limit_is_unknown_bounds_no_system_clock() -> None:
    """Without the largest frequency correction that its driver takes, how far the PHC moves between readings is unknown."""
    lab, ensemble = Lab(), with_card()
    for _ in range(65):
        ensemble.accept(lab_sample(lab, clock="phc:0"))
    bound = ensemble.accept(phc(lab, frequency_ppb=None, max_frequency_ppb=None)).bound

    assert bound is not None
    assert bound.gm_hard == unbounded(Reason.STEERING_LIMIT_UNKNOWN)


def test_a_ptp4l_with_software_timestamps_may_keep_a_wrong_utc_offset() -> None:
    """
    3.1.1 takes the announced offset over and keeps it when the announced one is right again: UTC stays unknown until it
    selects a parent again.
    """
    lab, ensemble = Lab(), one()
    for _ in range(65):
        before = ensemble.accept(lab_sample(lab)).bound
    wrong = ensemble.accept(lab_sample(lab, current_utc_offset_s=36)).bound
    right_again = ensemble.accept(lab_sample(lab)).bound

    assert before is not None and before.utc_hard.bound_ns is not None
    assert wrong is not None and right_again is not None
    assert (wrong.utc_hard.bound_ns, right_again.utc_hard) == (None, unbounded(Reason.UTC_OFFSET_DIFFERS))
    assert right_again.gm_hard.bound_ns is not None
