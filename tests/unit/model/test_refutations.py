"""An assumption of the file that the samples in hand refute stops counting, and is reported."""

from __future__ import annotations

from random import Random

import pytest
from clock_lab import DELAY_NS, Lab, assert_holds, gentle, settled
from samples import INTERVAL_NS, nth

from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import Assumption, Refutation, SourceSettings
from timesyncd.model.source import SourceMemory

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
