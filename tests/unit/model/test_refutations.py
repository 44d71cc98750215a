"""An assumption of the file that the samples in hand refute stops counting, and is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from clock_lab import DELAY_NS, Lab, assert_holds, gentle, settled
from samples import GRANDMASTER_IDENTITY, HEALTHY, INTERVAL_NS, nth

from timesyncd.bound import ErrorBound
from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import Assumption, Refutation, SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.source import SourceMemory
from timesyncd.sample import ClockSample

SETTINGS = SourceSettings()


@pytest.mark.parametrize("rate_ppb", [-200_000, -75_870, 75_870, 200_000])
def test_growth_is_never_below_the_slope_of_the_samples(rate_ppb: int) -> None:
    """
    An oscillator beyond local_drift_ppb runs free for 25 s, too short to learn its rate; then nothing comes.
    """
    memory = SourceMemory(SETTINGS)
    for index in range(200):
        true_ns = rate_ppb * index * INTERVAL_NS // NS_PER_S
        bound = memory.accept(nth(index, offset_ns=true_ns, frequency_ppb=0))
    assert bound is not None
    assert memory.drift is None

    for silent_s in (0, 1, 60, 300):
        assert abs(true_ns + rate_ppb * silent_s) <= (bound.bound.at(silent_s * NS_PER_S) or 0)

    (refuted,) = memory.refutations
    assert refuted.assumption is Assumption.LOCAL_DRIFT
    assert refuted.assumed == SETTINGS.local_drift_ppb
    assert abs(rate_ppb) <= refuted.observed <= abs(rate_ppb) + 3_000


def test_noise_refutes_no_drift() -> None:
    """
    Timestamps that are off by milliseconds now and then make slopes of 1000 ppm for a second, of either sign.
    """
    memory, noise = SourceMemory(SETTINGS), Random(7)
    for index in range(310):
        offset_ns = round(noise.gauss(0, 1_000_000)) if index % 4 else 0
        memory.accept(nth(index, offset_ns=offset_ns, frequency_ppb=0))

    assert memory.drift is None
    assert memory.refutations == ()


def test_a_learned_rate_beyond_the_assumption_is_reported() -> None:
    """
    The bound follows the learned rate in any case; the file is still wrong about this oscillator.
    """
    memory = settled(Lab(120_000))

    assert [each.assumption for each in memory.refutations] == [Assumption.LOCAL_DRIFT]


def test_an_oscillator_within_the_assumption_refutes_nothing() -> None:
    """
    Neither its rate nor a path that changes by itself does.
    """
    lab = Lab(49_000, gentle)
    memory = SourceMemory(SETTINGS)
    for second in range(90):
        lab.forward_ns = DELAY_NS + 300 * (second % 7) + (400_000 if second == 20 else 0)
        memory.accept(lab.sync())

    assert memory.refutations == ()


def test_an_oscillator_that_moved_more_in_a_gap_than_the_floor_allows_raises_it() -> None:
    """
    After a minute without a Sync the clock is where the grown bound excludes it. From then on the growth covers what was
    seen.
    """
    lab = Lab(5_000, gentle)
    memory = settled(lab, 90)
    lab.rate_ppb += 4_000
    lab.silence(60)
    for _ in range(12):
        bound = memory.accept(lab.sync())

    (refuted,) = memory.refutations
    assert bound is not None
    assert (refuted.assumption, refuted.assumed) == (Assumption.DRIFT_FLOOR, SETTINGS.drift_floor_ppb)
    assert 3_000 <= refuted.observed <= 5_000
    assert bound.bound.growth_ppb >= refuted.observed


@pytest.mark.parametrize(("minimum_ns", "refuted"), [(DELAY_NS - 1, False), (DELAY_NS + 2_000, True)])
def test_a_delay_below_the_calibrated_minimum_ends_the_calibration(minimum_ns: int, refuted: bool) -> None:
    """
    The whole path delay counts again: one direction may be as short as nothing.
    """
    memory, lab = SourceMemory(SourceSettings(path_minimum_ns=minimum_ns)), Lab()
    lab.forward_ns, lab.reverse_ns = 2.0 * DELAY_NS, 0.0
    for _ in range(70):
        sample = lab.sync()
        bound = memory.accept(sample)

    assert memory.refutations == ((Refutation(Assumption.PATH_MINIMUM, minimum_ns, 0),) if refuted else ())
    if refuted:
        assert bound is not None
        assert_holds(bound, sample.offset_ns, lab.true_ns)


def through(source: str, parent: str, second: int, offset_ns: int, hops: int = 1, **changes: Any) -> ClockSample:
    """The Sync of this second by a source that follows the grandmaster through so many boundary clocks."""
    changes = {"source": source, "parent_identity": parent, "offset_ns": offset_ns, "steps_removed": 1 + hops} | changes
    return nth(second * 8, frequency_ppb=0, delay_requests_sent=second, delay_responses_received=second, **changes)


def two_paths(drift_ns: Callable[[int], int], hops: int = 1, seconds: int = 60) -> tuple[Ensemble, ErrorBound]:
    """
    Both sources follow one grandmaster, `left` through one boundary clock and `right` through so many. The clock is right;
    the boundary clock of `left` is off by `drift_ns` of each second.
    """
    settings = EnsembleSettings(SourceSettings(boundary_clock_error_ns=100))
    ensemble = Ensemble({"left": settings, "right": settings})
    published = None
    for second in range(seconds):
        parent = GRANDMASTER_IDENTITY if hops == 0 else "00000a.fffe.000002"
        for sample in (
            through("left", "00000a.fffe.000001", second, -drift_ns(second)),
            through("right", parent, second, 0, hops),
        ):
            published = ensemble.accept(sample).bound or published
    assert published is not None
    return ensemble, published


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_a_second_path_refutes_a_boundary_clock_in_holdover(hops: int) -> None:
    """
    A boundary clock drifts by 10 us a second and goes on to announce class 6. The bound of the source behind it covers
    what the other path shows, against grandmaster and UTC, and the finding names both sources with boundary clocks.
    """
    ensemble, published = two_paths(lambda second: 10_000 * max(0, second - 20), hops)

    assert published.gm_hard.bound_ns is not None
    assert published.gm_hard.bound_ns >= 10_000 * 39  # the true error is 0, and left reports so much
    left = published.parent_hard.bound_ns
    assert left is not None
    refuted = {name: [each.assumption for each in ensemble.refutations(name)] for name in ("left", "right")}
    assert refuted["left"] == [Assumption.BOUNDARY_CLOCK_ERROR]
    assert refuted["right"] == ([Assumption.BOUNDARY_CLOCK_ERROR] if hops else [])
    (refutation,) = ensemble.refutations("left")
    assert refutation.assumed == 100
    assert refutation.observed >= 10_000 * 38


def test_a_clock_that_a_wrong_boundary_clock_leads_astray_is_covered() -> None:
    """The servo follows the boundary clock of the deciding source: its offset is 0, and the other path shows the error."""
    settings = EnsembleSettings(SourceSettings(boundary_clock_error_ns=100))
    ensemble = Ensemble({"left": settings, "right": settings})
    published = None
    for second in range(120):
        true_ns, frequency_ppb = 10_000 * max(0, second - 80), 10_000 if second >= 80 else 0
        for source, offset_ns in (("left", 0), ("right", true_ns)):
            sample = through(source, f"00000a.fffe.00000{1 + (source == 'right')}", second, offset_ns)
            published = ensemble.accept(replace(sample, frequency_ppb=frequency_ppb)).bound or published
        assert published is None or (published.gm_hard.bound_ns or 0) >= true_ns


def test_paths_that_agree_refute_no_boundary_clock() -> None:
    """Errors within the configured one, and within both bounds, are no contradiction."""
    ensemble, published = two_paths(lambda second: 3_000)

    assert ensemble.refutations("left") == ensemble.refutations("right") == ()
    assert published.gm_hard.bound_ns == (published.parent_hard.bound_ns or 0) + 100


@pytest.mark.parametrize(("parent", "second"), [("00000a.fffe.000002", "right"), ("00000a.fffe.000001", None)])
def test_only_another_parent_is_a_second_view(parent: str, second: str | None) -> None:
    """A source behind the same parent has the same error."""
    settings = EnsembleSettings(SourceSettings(boundary_clock_error_ns=100))
    ensemble = Ensemble({"left": settings, "right": settings})
    for index in range(60):
        ensemble.accept(through("left", "00000a.fffe.000001", index, 0))
        ensemble.accept(through("right", parent, index, 0))

    assert ensemble.second_view("left", HEALTHY.as_of_ns + 60 * NS_PER_S) == second
    assert ensemble.second_view("left", HEALTHY.as_of_ns + 2_000 * NS_PER_S) is None


def test_a_step_that_one_path_shows_first_refutes_nothing() -> None:
    """
    The grandmaster steps between the Syncs of two sources. Until both show it the bound covers both, and no boundary clock
    is accused.
    """
    settings = EnsembleSettings(SourceSettings(boundary_clock_error_ns=100))
    ensemble = Ensemble({"left": settings, "right": settings})
    bound = None
    for second in range(160):
        left = through("left", "00000a.fffe.000001", second, -1_000_000 if second >= 81 else 0)
        right = through("right", "00000a.fffe.000002", second, -1_000_000 if second >= 80 else 0)
        bound = ensemble.accept(left).bound or bound
        bound = ensemble.accept(right).bound or bound
        assert second < 80 or (bound is not None and (bound.gm_hard.bound_ns or 0) >= 1_000_000)

    assert ensemble.refutations("left") == ensemble.refutations("right") == ()


@pytest.mark.parametrize(("apart_ppb", "refuted"), [(150, False), (5_000, True)])
def test_two_references_that_drift_apart_refute_their_rates(apart_ppb: int, refuted: bool) -> None:
    """One oscillator cannot have two rates: what is left is the references' own."""
    ensemble = Ensemble({"left": EnsembleSettings(), "right": EnsembleSettings()})
    for second in range(300):
        ensemble.accept(through("left", GRANDMASTER_IDENTITY, second, 0, hops=0))
        other = {"grandmaster_identity": "00000b.fffe.000001"}
        ensemble.accept(through("right", "00000b.fffe.000001", second, apart_ppb * second, hops=0, **other))

    for name in ("left", "right"):
        found = ensemble.refutations(name)
        assert [each.assumption for each in found] == ([Assumption.GRANDMASTER_RATE] if refuted else [])
        assert all(apart_ppb <= each.observed <= apart_ppb + 1_000 for each in found)
