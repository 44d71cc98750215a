"""The gain test: which rung of the ladder a job takes, by what its compression keeps."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.encoding import MAX_COOLDOWN, MIN_GAIN, WINDOW, Gain, cost, ladder


def windows(gain: Gain, *kept: float) -> list[float | None]:
    """The ratio after each window, in which the given share of the norm was kept."""
    ratios = []
    for share in kept:
        for _ in range(WINDOW):
            gain.add_step(1.0 if gain.ratio is None else share, 1.0)
        ratios.append(gain.ratio)
    return ratios


def test_the_ladder_has_what_sends_less() -> None:
    """With many ranks mild ratios send more octets than no compression; with few ranks the strongest ratios save nothing more."""
    assert ladder(2) == (None, 0.25, 0.16, 0.1, 0.06, 0.04, 0.02, 0.01, 0.004)
    assert ladder(4) == (None, 0.16, 0.1, 0.06, 0.04, 0.02, 0.01, 0.004, 0.001)
    assert ladder(100) == (None, 0.004, 0.001)
    assert ladder(1_000) == (None,)


@given(st.integers(1, 2_000))
def test_each_rung_saves_something(ranks: int) -> None:
    """Every rung costs at least a hundredth of an uncompressed all-reduce less than the rung before."""
    costs = [1.0] + [cost(ratio, ranks) for ratio in ladder(ranks)[1:] if ratio is not None]
    assert all(below - above >= 0.01 for below, above in pairwise(costs))


def test_it_walks_to_stronger_ratios_while_enough_is_kept() -> None:
    """One rung per window, from the mildest to the end of the ladder."""
    gain = Gain(4)
    assert gain.ratio == 0.16
    assert windows(gain, *[0.9] * 8) == [0.1, 0.06, 0.04, 0.02, 0.01, 0.004, 0.001, 0.001]


def test_the_limit_itself_is_enough() -> None:
    """Slightly more than the limit is enough; slightly less is not."""
    assert windows(Gain(4), MIN_GAIN + 1e-9) == [0.1]
    assert windows(Gain(4), MIN_GAIN - 1e-9) == [None]


def test_it_decides_only_at_the_end_of_a_window() -> None:
    """One step before, the ratio is unchanged."""
    gain = Gain(4)
    for _ in range(WINDOW - 1):
        gain.add_step(0.9, 1.0)
    assert gain.ratio == 0.16
    gain.add_step(0.9, 1.0)
    assert gain.ratio == 0.1


def test_it_steps_back_and_cools_down() -> None:
    """A stronger rung is tried again after two windows, then four, while it fails; after a success there is no cooldown."""
    assert windows(Gain(4), 0.9, 0.5) == [0.1, 0.16]
    gain = Gain(4, rung=2)
    assert windows(gain, 0.5, 0.9, 0.9, 0.9) == [0.16, 0.16, 0.16, 0.1]
    assert windows(gain, 0.5, *[0.9] * 5) == [0.16] * 5 + [0.1]


def test_a_cooldown_ends() -> None:
    """After any number of failures."""
    gain = Gain(4, rung=2, failures=500)
    assert windows(gain, 0.5, *[0.9] * (MAX_COOLDOWN + 1)) == [0.16] * (MAX_COOLDOWN + 1) + [0.1]


def test_a_success_ends_the_row_of_failures() -> None:
    """A rung that failed earlier, and passed since, has a cooldown of two windows when it fails again."""
    gain = Gain(4, failures=3)
    assert windows(gain, 0.9, 0.9, 0.5, 0.9, 0.9, 0.9) == [0.1, 0.06, 0.1, 0.1, 0.1, 0.06]


def test_where_even_the_mildest_keeps_too_little_all_is_sent() -> None:
    """Uncompressed, with another try of the mildest rung after the cooldown."""
    assert windows(Gain(4), 0.5, 0.5, 0.5, 0.5) == [None, None, None, 0.16]


def test_a_mild_rung_that_fails_during_a_cooldown_steps_back_too() -> None:
    """The test goes on during a cooldown."""
    assert windows(Gain(4, rung=2), 0.5, 0.5) == [0.16, None]


def test_with_a_thousand_ranks_nothing_is_compressed() -> None:
    """The ladder has no other rung."""
    assert windows(Gain(1_000), 1.0, 1.0) == [None, None]


def test_the_gain_is_the_ratio_of_two_weighted_means() -> None:
    """With ten ranks a step counts a tenth: (1*0.9 + 3) / (2*0.9 + 4), the newer one more."""
    gain = Gain(10)
    assert gain.value is None
    gain.add_step(1.0, 2.0)
    assert gain.value == pytest.approx(0.5)
    gain.add_step(3.0, 4.0)
    assert gain.value == pytest.approx(3.9 / 5.8)


def test_a_rung_is_judged_by_its_own_steps() -> None:
    """Steps of another ratio do not count."""
    gain = Gain(4)
    windows(gain, 1.0)
    gain.add_step(0.25, 1.0)
    assert gain.value == pytest.approx(0.25)


def test_steps_without_information_decide_nothing() -> None:
    """Only zeros are no failure; among other steps they change no gain."""
    gain = Gain(4)
    for _ in range(WINDOW):
        gain.add_step(0.0, 0.0)
    assert (gain.ratio, gain.value) == (0.16, None)
    gain.add_step(0.9, 1.0)
    gain.add_step(0.0, 0.0)
    assert gain.value == pytest.approx(0.9)


SEEN = st.lists(st.tuples(st.floats(0, 1), st.floats(1e-3, 1e3)), min_size=1, max_size=20)


@given(SEEN, st.integers(1, 300), st.integers(0, 400))
def test_it_resumes_unchanged(seen: list[tuple[float, float]], ranks: int, saved: int) -> None:
    """The same steps give the same rungs, one at a time, all on the ladder, and a gain of 0 to 1."""
    whole = Gain(ranks)
    for step in range(500):
        before = whole.rung
        if step == saved:
            copy = Gain(**asdict(whole))
        share, norm = seen[step % len(seen)]
        for gain in (whole, copy) if step >= saved else (whole,):
            gain.add_step(share * norm, norm)
        assert abs(whole.rung - before) <= 1
        assert whole.ratio in ladder(ranks)
        assert whole.value is None or 0 <= whole.value <= 1 + 1e-9
    assert copy == whole


def test_a_rung_beyond_the_ladder_becomes_the_strongest() -> None:
    """With fewer ranks the ladder is shorter; the rung stays on it."""
    assert replace(Gain(4), rung=99).ratio == 0.001
