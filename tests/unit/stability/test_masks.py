"""The masks of ITU-T as data, and pass, fail and not enough data."""

from __future__ import annotations

import allantools
import pytest

from timesyncd.stability.masks import (
    CLASS_A,
    CLASS_C,
    CLASS_D,
    MASKS,
    POINT_C,
    PRTC_A,
    PRTC_B,
    Limit,
    Mask,
    MaskInput,
    MaskOutcome,
    Point,
    Quantity,
    Segment,
    judge,
)


def limit(mask: Mask, quantity: Quantity) -> Limit:
    return next(each for each in mask.limits if each.quantity is quantity)


@pytest.mark.parametrize(("mask", "letter"), [(PRTC_A, "A"), (PRTC_B, "B")])
@pytest.mark.parametrize("tau_s", [0.2, 1.0, 54.4, 54.6, 99.0, 250.0, 274.0, 499.0, 600.0, 1_001.0, 9_000.0])
def test_the_masks_of_prtcs_are_those_of_allantools(mask: Mask, letter: str, tau_s: float) -> None:
    """MTIE and TDEV of PRTC-A and PRTC-B agree with the second public transcription at each segment."""
    for quantity, name in ((Quantity.MTIE, "mtie"), (Quantity.TDEV, "tdev")):
        expected_s = getattr(allantools.mask, f"prtc{letter}_{name}")(tau_s)
        assert limit(mask, quantity).at(tau_s) == pytest.approx(expected_s * 1e9)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.name)
def test_a_mask_has_neither_a_hole_nor_a_step_down(mask: Mask) -> None:
    """Segments join, limits never fall with the observation interval, and each states its table or clause."""
    for each in mask.limits:
        assert each.source.startswith("G.82")
        assert (each.flat_ns is None) == bool(each.segments)
        for earlier, later in zip(each.segments, each.segments[1:], strict=False):
            assert earlier.until_s == later.after_s
            end, begin = each.at(later.after_s), each.at(later.after_s + 1e-9)
            assert end is not None and begin is not None
            assert begin >= end - 0.1  # 0.275 * 273 + 25 is 100.075, by the standard itself


def test_what_the_standard_or_the_sources_leave_open_is_no_limit() -> None:
    """Class D limits max|TE_L| alone, class C has no dTE_H, and reference point C no MTIE: each states why."""
    assert [each.quantity for each in CLASS_D.limits] == [Quantity.MAX_TE_LOW]
    assert [each.quantity for each in POINT_C.limits] == [Quantity.MAX_TE_LOW]
    assert Quantity.RANGE_HIGH not in [each.quantity for each in CLASS_C.limits]
    assert "disagree" in CLASS_C.unknown[0]
    assert "further study" in CLASS_D.open[0]
    assert "one public source" in POINT_C.unknown[0]


def test_a_limit_whose_figure_is_unknown_makes_a_pass_unknown() -> None:
    """Reference point C has an MTIE that is unknown here, so it is never passed; what class D leaves for further study is no limit."""
    measured = MaskInput({Quantity.MAX_TE_LOW: 4.0}, {}, 5_000, {})
    assert judge(POINT_C, measured).outcome is MaskOutcome.UNKNOWN
    assert judge(CLASS_D, measured).outcome is MaskOutcome.PASS
    assert judge(POINT_C, MaskInput({Quantity.MAX_TE_LOW: 1_101.0}, {}, 5_000, {})).outcome is MaskOutcome.FAIL


CURVE = Mask("curve", (Limit(Quantity.MTIE, "a table", segments=(Segment(0, 100, 10), Segment(100, 1_000, 0, 0.1))),))


def curve(*points: tuple[float, float], covered: bool = True, quantity: Quantity = Quantity.MTIE) -> MaskInput:
    return MaskInput({}, {quantity: [Point(tau, value, covered) for tau, value in points]}, 5_000, {})


def test_a_pass_needs_the_whole_range_and_states_its_worst_point() -> None:
    """The worst point is the one nearest its limit in proportion, with its margin."""
    verdict = judge(CURVE, curve((1, 9), (64, 9.5), (512, 20), (1_000, 40)))
    worst = verdict.limits[0]
    assert verdict.outcome is MaskOutcome.PASS
    assert (worst.tau_s, worst.value_ns, worst.limit_ns, worst.margin_ns) == (64, 9.5, 10, 0.5)


def test_one_point_above_the_limit_fails_however_few_data_there_are() -> None:
    """A range that occurred has occurred."""
    verdict = judge(CURVE, curve((1, 11)))
    assert verdict.outcome is MaskOutcome.FAIL
    assert verdict.limits[0].margin_ns == -1


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([(1, 5), (256, 20)], "to 256 s only; the mask needs them to 1000 s"),
        ([(16, 5), (1_000, 20)], "from 16 s only; the mask needs them from 1 s"),
        ([(2_000, 20)], "no observation interval of the mask"),
        ([], "no observation interval of the mask"),
    ],
)
def test_intervals_that_the_data_do_not_cover_are_no_pass(points: list[tuple[float, float]], reason: str) -> None:
    """Below the limit is not enough data, with the interval that is missing."""
    verdict = judge(CURVE, curve(*points))
    assert verdict.outcome is MaskOutcome.NOT_ENOUGH_DATA
    assert reason in (verdict.limits[0].reason or "")


def test_a_tdev_of_few_terms_decides_nothing() -> None:
    """Neither a pass nor a fail follows from a mean over less than twelve observation intervals of data."""
    mask = Mask("t", (Limit(Quantity.TDEV, "a table", segments=(Segment(0, 100, 10),)),))
    points = [(1.0, 50.0), (100.0, 1.0)]
    verdict = judge(mask, curve(*points, covered=False, quantity=Quantity.TDEV))
    assert verdict.outcome is MaskOutcome.NOT_ENOUGH_DATA


def test_a_number_passes_from_1_000_s_on_and_fails_at_once() -> None:
    """A time error above the limit fails; one below it needs 1,000 s; either sign counts; an absent one states its reason."""
    mask = Mask("n", (Limit(Quantity.CONSTANT_TE, "a table", flat_ns=50),))
    outcomes = [
        judge(mask, MaskInput({Quantity.CONSTANT_TE: value}, {}, covered_s, {})).outcome
        for value, covered_s in ((-49.0, 1_000.0), (-49.0, 999.0), (-51.0, 1.0))
    ]
    assert outcomes == [MaskOutcome.PASS, MaskOutcome.NOT_ENOUGH_DATA, MaskOutcome.FAIL]
    absent = judge(mask, MaskInput({}, {}, 5_000, {Quantity.CONSTANT_TE: "no filter"}))
    assert (absent.outcome, absent.limits[0].reason) == (MaskOutcome.NOT_ENOUGH_DATA, "no filter")


def test_one_limit_that_fails_fails_the_mask() -> None:
    """A fail outweighs missing data, and missing data a pass."""
    measured = MaskInput({Quantity.MAX_TE: 101.0, Quantity.CONSTANT_TE: 1.0}, {}, 5_000, {})
    assert judge(CLASS_A, measured).outcome is MaskOutcome.FAIL
    fewer = MaskInput({Quantity.MAX_TE: 99.0, Quantity.CONSTANT_TE: 1.0}, {}, 5_000, {})
    assert judge(CLASS_A, fewer).outcome is MaskOutcome.NOT_ENOUGH_DATA
