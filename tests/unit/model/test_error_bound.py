"""From the bounds at one sample to those of the system clock that are published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clock_lab import Lab
from hypothesis import given
from hypothesis import strategies as st
from samples import HEALTHY, nth

from timesyncd.bound import Bound, ClockStatus, Rate, Reason, Term, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.error_bound import (
    EnsembleSettings,
    coasted,
    error_bound,
    narrower,
    rebased,
    system_clock_bound,
    utc_only_bound,
    with_agreement,
    without_implausible,
)
from timesyncd.model.parent_bound import Coasting, ParentBound
from timesyncd.model.phc import PhcLink
from timesyncd.model.selection import Agreement
from timesyncd.model.source import SourceMemory
from timesyncd.sample import PhcSample, UtcSample

SETTINGS = SourceSettings()
PTP_SCALE: dict[str, Any] = {"ptp_timescale": True, "time_traceable": True, "current_utc_offset_s": 37}
PHC: dict[str, Any] = {"clock": "phc:0", **PTP_SCALE}
LINK = PhcLink(HEALTHY.as_of_ns, -37 * NS_PER_S - 300, 20, 1_500)


def measured(**fields: Any) -> ParentBound:
    """The bound of a clock with a learned drift, so that the statistical bound is the narrower one."""
    lab, memory = Lab(**fields), SourceMemory(SETTINGS)
    for second in range(80):
        lab.forward_ns += second % 3
        bound = memory.accept(lab.sync())
    assert bound is not None
    return bound


PARENT = measured()


def test_software_timestamps_measure_the_system_clock_itself() -> None:
    """
    Nothing is added.
    """
    assert system_clock_bound(PARENT, nth(0), SETTINGS, LINK) is PARENT


def test_without_a_link_a_phc_does_not_bound_the_system_clock() -> None:
    """
    Never the PHC's bound under another name.
    """
    bound = system_clock_bound(PARENT, nth(0, **PHC), SETTINGS, None)

    assert (bound.bound, bound.statistical) == (unbounded(Reason.PHC_NOT_MEASURED),) * 2


@pytest.mark.parametrize(
    ("timescale", "link_ns", "apart_ns"),
    [
        (True, -37 * NS_PER_S - 300, 300),
        (True, -37 * NS_PER_S + 300, 300),
        (True, -37 * NS_PER_S - 499_999_999, 499_999_999),
        (False, 300, 300),
        (False, 499_999_999, 499_999_999),
    ],
)
def test_what_lies_between_the_two_clocks_is_a_term(timescale: bool, link_ns: int, apart_ns: int) -> None:
    """
    A PHC on the PTP timescale is 37 s ahead of UTC, and one on an arbitrary one is not: an exchange of the two would be
    37 s.
    """
    sample = nth(0, **{**PHC, "ptp_timescale": timescale})
    bound = system_clock_bound(PARENT, sample, SETTINGS, replace(LINK, offset_ns=link_ns, as_of_ns=PARENT.as_of_ns))

    assert bound.bound == PARENT.bound.plus(apart_ns + 20, 1_500)
    assert bound.statistical == PARENT.statistical.plus(apart_ns + 20, 1_500)
    assert (bound.terms[Term.PHC_TO_SYSTEM], bound.terms[Term.PHC_READING]) == (apart_ns, 20)


@pytest.mark.parametrize(
    ("timescale", "link_ns"),
    [
        (True, -36_041_400_000),
        (True, -36 * NS_PER_S),
        (True, -38 * NS_PER_S),
        (True, 300),
        (False, -37 * NS_PER_S),
        (False, 958_600_000),
    ],
)
def test_whole_seconds_between_the_clocks_that_no_timescale_explains_leave_no_bound(
    timescale: bool, link_ns: int
) -> None:
    """
    One of the two clocks is wrong by more than half a second, or another number of seconds is removed than configured.
    """
    sample = nth(0, **{**PHC, "ptp_timescale": timescale})
    bound = system_clock_bound(PARENT, sample, SETTINGS, replace(LINK, offset_ns=link_ns, as_of_ns=PARENT.as_of_ns))

    assert (bound.bound.bound_ns, bound.bound.reason.code) == (None, "phc_seconds_differ")
    assert bound.statistical == bound.bound


@pytest.mark.parametrize(("link_ns", "code"), [(-36_041_400_000, "phc_seconds_differ"), (-37_000_000_300, "ok")])
def test_whole_seconds_count_too_where_the_phc_was_read_at_the_sync(link_ns: int, code: str) -> None:
    """
    The bound is the system clock's already, and by that reading.
    """
    phc = PhcSample("ptp", "phc:0", HEALTHY.as_of_ns, HEALTHY.real_minus_boot_ns, link_ns, 600, "extended")
    bound = system_clock_bound(PARENT._replace(of_system_clock=True), nth(0, **PHC, phc=phc), SETTINGS, None)

    assert bound.bound.reason.code == code


def test_terms_and_rates_of_a_hardware_clock_add_up() -> None:
    """
    With the link's own, each to its bound.
    """
    bound = system_clock_bound(PARENT, nth(0, **PHC), SETTINGS, LINK)

    assert bound.bound == Bound(sum(bound.terms.values()), sum(bound.rates.values()))
    assert bound.statistical.bound_ns == sum(bound.stat_terms.values())


@pytest.mark.parametrize("link_age_s", [-5, 5])
def test_the_newer_of_both_readings_dates_the_bound(link_age_s: int) -> None:
    """
    Until then each grew by its own rate; holdover and the end count from the PTP sample.
    """
    link = replace(LINK, as_of_ns=PARENT.as_of_ns - link_age_s * NS_PER_S)
    bound = system_clock_bound(PARENT, nth(0, **PHC), SETTINGS, link)

    later_ns = max(0, -link_age_s) * NS_PER_S
    grown_ns = (
        (PARENT.bound.at(later_ns) or 0)
        + link.error_ns
        + (link.age_ns(PARENT.as_of_ns + later_ns) or 0)
        + bound.terms[Term.PHC_TO_SYSTEM]
    )

    assert bound.as_of_ns == PARENT.as_of_ns + later_ns
    assert bound.bound == Bound(grown_ns, PARENT.bound.growth_ppb + 1_500)
    assert bound.since_sample_ns == later_ns
    assert sum(bound.terms.values()) == grown_ns


@given(share=st.floats(0, 1), link_share=st.floats(-1, 1), apart_ns=st.integers(-10_000, 10_000))
def test_wherever_both_clocks_are_the_system_clock_is_inside(share: float, link_share: float, apart_ns: int) -> None:
    """
    The PHC anywhere in its interval, the reading off by anything up to half its window.
    """
    bound = system_clock_bound(PARENT, nth(0, **PHC), SETTINGS, replace(LINK, offset_ns=apart_ns - 37 * NS_PER_S))
    phc_ns = PARENT.low_ns + share * (PARENT.high_ns - PARENT.low_ns)
    system_ns = phc_ns + apart_ns + link_share * LINK.error_ns

    assert bound.low_ns <= system_ns <= bound.high_ns
    assert abs(system_ns) <= (bound.bound.bound_ns or 0)


def test_each_reference_adds_to_both_kinds_of_bound() -> None:
    """
    A boundary clock's error and the grandmaster's own, to the hard and to the statistical one alike.
    """
    settings = EnsembleSettings(SourceSettings(boundary_clock_error_ns=50))
    bound = error_bound(nth(0, **PTP_SCALE, steps_removed=3), PARENT, settings)

    assert (bound.gm_hard, bound.gm_stat) == (PARENT.bound.plus(100), PARENT.statistical.plus(100))
    assert (bound.utc_hard, bound.utc_stat) == (PARENT.bound.plus(200), PARENT.statistical.plus(200))


NTP = UtcSample("ntp", HEALTHY.as_of_ns, HEALTHY.real_minus_boot_ns, -4_000, 6_000, 1_200, "10.0.0.1", 2, "none", 1, 1)


def test_ntp_alone_gives_utc_and_no_grandmaster() -> None:
    """
    Its offset, of either sign, and its error.
    """
    bound = utc_only_bound(NTP, EnsembleSettings())

    assert bound.utc_hard == Bound(10_000, 1_200)
    assert (bound.parent_hard, bound.gm_hard) == (unbounded(Reason.NO_GRANDMASTER),) * 2
    assert (bound.gm_status, bound.utc_status) == (ClockStatus.UNKNOWN, ClockStatus.SYNCHRONIZED)
    assert bound.utc_stat == bound.utc_hard


@given(age_ns=st.integers(0, 10**12))
def test_a_rebased_bound_has_the_same_values(age_ns: int) -> None:
    """
    It is grown, and holdover and the end are nearer by as much; its terms still add up.
    """
    last = error_bound(nth(0, **PTP_SCALE), PARENT, EnsembleSettings())
    later = rebased(last, last.as_of_ns + age_ns)

    assert later.gm_hard.at(NS_PER_S) == pytest.approx(last.gm_hard.at(age_ns + NS_PER_S), abs=1)
    assert later.as_of_ns + later.void_after_ns == last.as_of_ns + max(age_ns, last.void_after_ns)
    assert later.as_of_ns + later.holdover_after_ns == last.as_of_ns + max(age_ns, last.holdover_after_ns)
    assert later.as_of_ns - later.since_sample_ns == last.as_of_ns
    assert sum(later.terms.values()) == later.parent_hard.bound_ns


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**12))
def test_an_agreement_is_as_of_its_own_moment(low_ns: int, width_ns: int, growth_ppb: int, age_ns: int) -> None:
    """
    It is what was agreed then, where that is narrower than the source's own word for some time to come.
    """
    last = error_bound(nth(0, **PTP_SCALE), PARENT, EnsembleSettings())
    agreement = Agreement(low_ns, low_ns + width_ns, growth_ppb)
    agreed = Bound(max(abs(low_ns), abs(low_ns + width_ns)), growth_ppb)
    bound = with_agreement(last, agreement, last.as_of_ns + age_ns, contradicted=False)

    if bound is last:
        assert (last.utc_hard.at(age_ns + NS_PER_S) or 0) <= (agreed.at(NS_PER_S) or 0) + 1
    else:
        assert (bound.as_of_ns, bound.utc_hard) == (last.as_of_ns + age_ns, agreed)


def test_a_hard_bound_that_is_narrower_is_the_statistical_one_too() -> None:
    """
    What holds always holds at any rate.
    """
    narrow, wide = Bound(100, 2_000), Bound(500, 100)

    assert narrower(narrow, wide) is narrow
    assert narrower(wide, narrow) is narrow
    assert narrower(unbounded(Reason.NOT_COMPUTED), wide) is wide
    assert narrower(narrow, unbounded(Reason.EXPIRED)) is narrow


def test_of_a_source_that_contradicts_the_others_nothing_of_utc_counts() -> None:
    """
    Also its statistical bound is what the others agreed on, however sure it was of its own.
    """
    last = error_bound(nth(0, **PTP_SCALE), PARENT, EnsembleSettings())
    doubted = with_agreement(last, Agreement(-9_000_000, 5_000, 100, ("ptp",)), last.as_of_ns + NS_PER_S, True)

    assert doubted.utc_hard == doubted.utc_stat == Bound(9_000_000, 100)
    assert doubted.gm_hard.at(0) == last.gm_hard.at(NS_PER_S)


def test_a_source_keeps_its_own_bound_where_the_others_only_add_growth() -> None:
    """
    The agreement is within its bound, and is soon the wider one; where it is wider at once, the others may be right
    without it.
    """
    last = error_bound(nth(0, **PTP_SCALE), PARENT, EnsembleSettings())
    faster, wider = Agreement(-10_000, 10_000, 1_000_000), Agreement(-10_000, 20_000, 1_000)

    assert with_agreement(last, faster, last.as_of_ns, False) is last
    assert with_agreement(last, wider, last.as_of_ns, False).utc_hard == Bound(20_000, 1_000)


@given(
    held_ns=st.integers(0, 10**6),
    growth_ppb=st.integers(0, 10**6),
    age_ns=st.integers(0, 10**12),
    boundary_ns=st.integers(0, 1_000),
)
def test_coasting_replaces_the_parent_bound_alone(held_ns: int, growth_ppb: int, age_ns: int, boundary_ns: int) -> None:
    """
    What is above the parent stays; terms and rates add up; nothing falls below 0; and the statistical bound is never
    the wider one.
    """
    settings = EnsembleSettings(SourceSettings(boundary_clock_error_ns=boundary_ns))
    now_ns = PARENT.as_of_ns + age_ns
    held = Coasting(Bound(held_ns, growth_ppb), {Rate.LOCAL_DRIFT: growth_ppb}, now_ns, -held_ns, held_ns)
    bound = error_bound(nth(0, **PTP_SCALE, steps_removed=2), coasted(PARENT, held), settings)

    assert bound.parent_hard == held.bound
    assert bound.gm_hard.bound_ns == pytest.approx(held_ns + boundary_ns, abs=1)
    assert bound.utc_hard.bound_ns == pytest.approx(held_ns + boundary_ns + 100, abs=1)
    assert bound.utc_hard.growth_ppb == growth_ppb
    assert bound.as_of_ns + bound.void_after_ns == PARENT.as_of_ns + max(age_ns, settings.void_after_ns)
    assert bound.as_of_ns - bound.since_sample_ns == PARENT.as_of_ns
    assert sum(bound.terms.values()) == held_ns
    assert sum(bound.stat_terms.values()) == bound.parent_stat.bound_ns
    assert sum(bound.rates.values()) == growth_ppb
    for statistical, hard in ((bound.gm_stat, bound.gm_hard), (bound.utc_stat, bound.utc_hard)):
        assert (statistical.bound_ns or 0) <= (hard.bound_ns or 0)


def test_what_was_unknown_stays_so_without_a_sample() -> None:
    """
    UTC on an arbitrary timescale.
    """
    held = Coasting(Bound(10, 0), {}, PARENT.as_of_ns, -10, 10)
    bound = error_bound(nth(0), coasted(PARENT, held), EnsembleSettings())

    assert bound.utc_hard == unbounded(Reason.ARBITRARY_TIMESCALE)


@pytest.mark.parametrize("changes", [{"offset_ns": 2**62}, {"offset_ns": -(2**63)}, {"path_delay_ns": 10**16}])
def test_what_cannot_be_is_no_bound(changes: dict[str, int]) -> None:
    """
    An error of eleven days is a lie of some device, and sums of it would not fit the segment.
    """
    parent = PARENT._replace(bound=PARENT.bound.plus(max(abs(each) for each in changes.values())))
    bound = without_implausible(error_bound(nth(0, **PTP_SCALE, **changes), parent, EnsembleSettings()))

    assert {bound.parent_hard, bound.gm_hard, bound.utc_hard} == {unbounded(Reason.IMPLAUSIBLE)}
    assert (bound.gm_status, bound.utc_status, bound.terms) == (ClockStatus.UNKNOWN, ClockStatus.UNKNOWN, {})
