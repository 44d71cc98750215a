"""A free oscillator's rate, learned while a servo steers and the path is noisy."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.model.oscillator import BLOCK_NS, Drift, Oscillator


def taught(oscillator: Oscillator, rate_ppb: float, seconds: float, first_s: float = 0.0, **how: float) -> Drift | None:
    """
    Once a second y + f, with forward noise up to `noise_ns`, some samples missing, and after `step_at_s` another path.
    """
    rng = Random(1)
    every_s = how.get("every_s", 1.0)
    for index in range(int(seconds / every_s)):
        time_s = first_s + index * every_s
        if rng.random() < how.get("lost", 0.0):
            continue
        path_ns = how.get("step_ns", 0.0) if time_s >= how.get("step_at_s", 0.0) else 0.0
        value_ns = rate_ppb * time_s + path_ns + rng.random() * how.get("noise_ns", 0.0)
        oscillator.add(round(time_s * NS_PER_S), value_ns, rate_ppb + how.get("guess_off_ppb", 0.0))
    return oscillator.drift


@given(rate_ppb=st.floats(-500_000, 500_000), guess_off_ppb=st.floats(-1_000, 1_000))
def test_a_steady_rate_is_learned_as_it_is(rate_ppb: float, guess_off_ppb: float) -> None:
    """
    Positive = the oscillator runs fast; without noise to the last digit, whatever the guess.
    """
    drift = taught(Oscillator(), rate_ppb, 60, guess_off_ppb=guess_off_ppb)

    assert drift is not None
    assert drift.rate_ppb == pytest.approx(rate_ppb, abs=0.01)
    assert drift.wander_ppb == pytest.approx(0, abs=0.01)
    assert drift.range_ppb == pytest.approx(0, abs=0.01)


def test_there_is_no_rate_without_evidence() -> None:
    """
    Three slopes of ten seconds each are wanted, so four blocks.
    """
    assert taught(Oscillator(), 100, 40) is None
    assert taught(Oscillator(), 100, 42) is not None


@pytest.mark.parametrize("noise_ns", [1_000, 50_000])
@pytest.mark.parametrize("every_s", [0.125, 1.0, 4.0])
def test_noise_is_in_the_wander(noise_ns: float, every_s: float) -> None:
    """
    The rate is off by no more than the wander.
    """
    drift = taught(Oscillator(), 20_000, 300, noise_ns=noise_ns, every_s=every_s)

    assert drift is not None
    assert abs(drift.rate_ppb - 20_000) <= drift.wander_ppb <= noise_ns / 10


def test_missing_samples_move_nothing() -> None:
    """
    A block's slope is taken out before its median, so that a hole on one side is no jump.
    """
    drift = taught(Oscillator(), 50_000, 300, lost=0.5)

    assert drift is not None
    assert drift.rate_ppb == pytest.approx(50_000, abs=1)
    assert drift.wander_ppb == pytest.approx(0, abs=1)


def test_an_oscillator_that_warms_up_is_followed() -> None:
    """
    Its rate rises by 4 ppb a second. The median of seven slopes would be 160 ppb late.
    """
    oscillator = Oscillator()
    for second in range(400):
        oscillator.add(second * NS_PER_S, 20_000 * second + 2.0 * second**2, 20_000.0)
    drift = oscillator.drift

    assert drift is not None
    assert abs(drift.rate_ppb + drift.wander_ppb - (20_000 + 4 * 390)) < 60
    assert drift.wander_ppb < 100


@pytest.mark.parametrize("step_at_s", range(301, 312))
@pytest.mark.parametrize("step_ns", [-3_000, 500, 3_000, 250_000])
def test_a_change_of_the_path_is_no_rate_wherever_in_a_block_it_is(step_ns: float, step_at_s: int) -> None:
    """
    An oscillator that wanders is followed by its newest slope; a path that changes spoils two slopes, and no rate.
    """
    rng, oscillator, rate_ppb, value_ns = Random(5), Oscillator(), 20_000.0, 0.0
    for second in range(420):
        rate_ppb += rng.gauss(0, 20)
        value_ns += rate_ppb
        path_ns = step_ns if second >= step_at_s else 0.0
        if oscillator.add(second * NS_PER_S, value_ns + path_ns, rate_ppb) and second >= 300:
            drift = oscillator.drift
            assert drift is not None
            assert abs(drift.rate_ppb - rate_ppb) <= 3 * drift.wander_ppb


@pytest.mark.parametrize("step_ns", [-200_000, 200_000, 37e9])
def test_one_change_of_the_path_does_not_throw_it(step_ns: float) -> None:
    """
    One slope of many is wrong: the median is not, and once there are enough of them the wander is not, either.
    """
    drift = taught(Oscillator(), 20_000, 400, step_ns=step_ns, step_at_s=201)

    assert drift is not None
    assert drift.rate_ppb == pytest.approx(20_000, abs=0.1)
    assert drift.wander_ppb < 1


@pytest.mark.parametrize("gap_s", [-5.0, -3_600.0, 151.0, 86_400.0])
def test_what_lies_apart_is_not_compared(gap_s: float) -> None:
    """
    After a long gap, or when time went back, a block starts again at once; the learned drift stays until a new one is.
    """
    oscillator = Oscillator()
    before = taught(oscillator, 20_000, 60)
    taught(oscillator, 20_000, 11, first_s=59 + gap_s, step_ns=1e9)
    after = oscillator.drift
    relearnt = taught(oscillator, 30_000, 80, first_s=70 + gap_s)

    assert after == before
    assert relearnt is not None
    assert relearnt.rate_ppb == pytest.approx(30_000, abs=1)


def test_a_ramp_shows_as_wander_and_range() -> None:
    """
    1 ppb a second: each forecast is off by the age of the slopes behind it, and ten minutes span the rest.
    """
    oscillator = Oscillator()
    for second in range(600):
        oscillator.add(second * NS_PER_S, second**2 / 2, second)
    drift = oscillator.drift

    assert drift is not None
    assert 10 <= drift.wander_ppb <= 60
    assert drift.range_ppb == pytest.approx(500, abs=50)
    assert abs(drift.rate_ppb - 600) <= 60


def test_an_interruption_forgets_the_block_and_nothing_else() -> None:
    """
    A step between two samples is in no slope.
    """
    oscillator = Oscillator()
    before = taught(oscillator, 20_000, 65)
    oscillator.interrupt()
    taught(oscillator, 20_000, 60, first_s=66, step_ns=1e9)

    assert oscillator.drift is not None and before is not None
    assert oscillator.drift.wander_ppb == pytest.approx(0, abs=0.01)


def test_a_new_drift_is_reported_once_a_block() -> None:
    """
    A model that keeps values relative to the rate must be notified when it changes.
    """
    oscillator = Oscillator()
    news = [oscillator.add(second * NS_PER_S, 0.0, 0.0) for second in range(100)]

    assert [second for second, new in enumerate(news) if new] == list(range(40, 100, 10))
    assert BLOCK_NS == 10 * NS_PER_S
