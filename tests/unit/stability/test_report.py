"""The report of a series: numbers, gaps, what is unknown, and the masks."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from timesyncd.stability.masks import MaskOutcome, Quantity
from timesyncd.stability.readings import Reading
from timesyncd.stability.report import StabilityReport, observation_intervals, stability_of

NS_PER_S = 1_000_000_000
BEGIN_NS = 1_700_000_000 * NS_PER_S


def readings(values: list[int], interval_ns: int = NS_PER_S, reference: str = "gm") -> Iterator[Reading]:
    return (Reading(BEGIN_NS + index * interval_ns, value, reference) for index, value in enumerate(values))


def report_of(values: list[int], interval_ns: int = NS_PER_S) -> StabilityReport:
    report = stability_of(readings(values, interval_ns), longest_ns=2_000 * NS_PER_S)
    assert report is not None
    return report


def outcomes(report: StabilityReport) -> dict[str, MaskOutcome]:
    return {verdict.mask: verdict.outcome for verdict in report.verdicts}


QUIET = random.Random(3)


def test_a_quiet_clock_passes_the_classes_and_states_its_numbers() -> None:
    """Noise of 2 ns around 8 ns: cTE 8 ns, and classes A and B pass; PRTC-A's TDEV needs longer data."""
    report = report_of([8 + round(QUIET.gauss(0, 2)) for _ in range(13_000)])
    assert report.interval_ns == NS_PER_S
    assert (report.samples, report.gaps, report.early, report.reference_changes) == (13_000, 0, 0, 0)
    assert report.longest_run_ns == 12_999 * NS_PER_S
    assert report.constant_te_ns == pytest.approx(8, abs=0.5)
    assert report.constant_te_blocks == 13
    assert report.range_high_ns is not None and 8 < report.range_high_ns < 30
    found = outcomes(report)
    assert {found[f"G.8273.2 class {letter}"] for letter in "AB"} == {MaskOutcome.PASS}
    assert found["G.8273.2 class C"] is MaskOutcome.UNKNOWN  # all that is known passes
    assert found["G.8273.2 class D"] is MaskOutcome.FAIL  # 8 ns off
    assert found["G.8271.1 point C"] is MaskOutcome.UNKNOWN
    assert found["G.8272 PRTC-A"] is MaskOutcome.NOT_ENOUGH_DATA
    assert {each.tau_ns // NS_PER_S for each in report.deviations} >= {1, 2, 1_000, 1_024}


def test_a_frequency_offset_fails_the_masks_of_wander() -> None:
    """0.1 ns/s for 2,000 s: MTIE at 1,000 s is 100 ns, above the 40 ns of class A."""
    report = report_of([index // 10 for index in range(2_000)])
    verdict = next(each for each in report.verdicts if each.mask == "G.8273.2 class A")
    mtie = next(each for each in verdict.limits if each.quantity is Quantity.MTIE_LOW)
    assert mtie.outcome is MaskOutcome.FAIL
    assert mtie.tau_s == 1_000
    assert mtie.value_ns == pytest.approx(100, abs=1)
    assert mtie.margin_ns == pytest.approx(-60, abs=1)


def test_gaps_and_other_references_are_counted_and_begin_the_windows_anew() -> None:
    """A step of 1 us at a gap, or between two references, is in no MTIE."""
    parts = [
        *readings([0] * 300),
        *(Reading(BEGIN_NS + (400 + index) * NS_PER_S, 1_000, "gm") for index in range(300)),
        *(Reading(BEGIN_NS + (700 + index) * NS_PER_S, 0, "other") for index in range(300)),
    ]
    report = stability_of(parts)
    assert report is not None
    assert (report.gaps, report.reference_changes, report.samples) == (1, 1, 900)
    assert report.longest_run_ns == 299 * NS_PER_S
    assert report.max_abs_te_ns == 1_000
    assert {each.mtie_ns for each in report.deviations} == {0}
    assert max(each.tau_ns for each in report.deviations) == 256 * NS_PER_S
    assert report.constant_te_ns is None
    assert report.reasons["cTE"] == "no 1,000 s without a gap"


def test_readings_that_are_too_seldom_have_no_filtered_numbers() -> None:
    """A reading each 10 s yields MTIE and TDEV of long intervals, and states why dTE_L is unknown."""
    report = report_of([3] * 500, 10 * NS_PER_S)
    assert report.max_abs_te_low_ns is None
    assert "the filter of 0.1 Hz needs one a second" in report.reasons["max|TE_L|"]
    assert set(outcomes(report).values()) == {MaskOutcome.NOT_ENOUGH_DATA}
    assert all(each.mtie_low_ns is None and each.tdev_low_ns is None for each in report.deviations)


def test_too_few_readings_have_no_report() -> None:
    """One reading has no sampling interval."""
    assert stability_of([]) is None
    assert stability_of(readings([4])) is None


def test_a_short_series_knows_what_it_lacks() -> None:
    """Three readings: no window of the filter has settled, and no mask passes."""
    report = report_of([1, 2, 3])
    assert report.max_abs_te_ns == 3
    assert report.max_abs_te_low_ns is None
    assert MaskOutcome.PASS not in outcomes(report).values()


def test_the_observation_intervals_are_octaves_and_the_masks_ends() -> None:
    """At 8 Hz the octaves begin at 1/8 s, and 1,000 s and 10,000 s are among them."""
    found = observation_intervals(NS_PER_S // 8, 16_384 * NS_PER_S)
    assert found[:4] == [1, 2, 4, 8]
    assert {8_000, 80_000, 131_072} <= set(found)
    assert observation_intervals(60 * NS_PER_S, 30 * NS_PER_S) == [1]
