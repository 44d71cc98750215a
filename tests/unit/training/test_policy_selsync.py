"""SelSync's votes: the relative gradient change by hand, and how often a quantile votes."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.policies import Combine, Decision, PolicyContext
from timesyncd.training.policy.selsync import MIN_CHANGES, WINDOW, RelativeChange, SelSync, Voter

NORM = st.floats(0, 1e300)


def means(norms: list[float], smoothing: float) -> list[Fraction]:
    """E of Eq. 2 in each step: of the newest 25 squared norms, each older one weighs less by the same factor."""
    factor, found = 1 - Fraction(smoothing), []
    for end in range(1, len(norms) + 1):
        window = [Fraction(norm) for norm in reversed(norms[max(0, end - 25) : end])]
        weights = [factor**age for age in range(len(window))]
        found.append(sum(map(Fraction.__mul__, weights, window), Fraction(0)) / sum(weights))
    return found


def changes(norms: list[float], smoothing: float) -> list[float]:
    change = RelativeChange(smoothing)
    return [change.add(norm) for norm in norms]


def test_the_change_by_hand() -> None:
    """Means of 4, (2 + 4/2) / 1.5 = 8/3 and (8 + 2/2 + 4/4) / 1.75 = 40/7: changes of a third, and of 8/7."""
    assert changes([4, 2, 8], smoothing=0.5) == pytest.approx([0, 1 / 3, 8 / 7])


def test_without_smoothing_the_newest_norm_alone_counts() -> None:
    """In the paper a hundred ranks have a factor of 1."""
    assert changes([4, 2, 8, 8], smoothing=1) == [0, 0.5, 3, 0]


@given(st.lists(st.floats(1e-3, 1e3), max_size=2 * WINDOW), st.sampled_from([0.02, 0.04, 0.16, 1.0]))
def test_the_change_is_the_papers(norms: list[float], smoothing: float) -> None:
    """Eq. 2 in exact fractions, also where the oldest norm leaves the window."""
    exact = means(norms, smoothing)
    expected = [0.0] + [float(abs(new - old) / old) for old, new in pairwise(exact)]
    assert changes(norms, smoothing) == pytest.approx(expected[: len(norms)], rel=1e-6, abs=1e-9)


def test_norms_of_zero_are_no_error() -> None:
    """From zero to zero there is no change; from zero to a positive norm it is infinite."""
    assert changes([0, 0, 5, 0], smoothing=0.5)[:3] == [0, 0, math.inf]
    assert changes([5, 0], smoothing=1) == [0, 1]


@pytest.mark.parametrize("odd", [math.inf, math.nan, 1.7e308])
def test_a_gradient_that_is_not_finite_votes_for_a_synchronization(odd: float) -> None:
    """It does not enter the mean: the changes after it are as without it."""
    without, spoilt = changes([4, 2, 8], 0.5), changes([4, odd, 2, 8], 0.5)
    assert spoilt == [without[0], math.inf, *without[1:]]


@given(st.lists(NORM, max_size=30), st.floats(0, 1, exclude_min=True))
def test_a_change_is_not_negative(norms: list[float], smoothing: float) -> None:
    """For any norms it is 0 or more, or infinite."""
    assert all(change >= 0 for change in changes(norms, smoothing))


def votes(policy: SelSync, ranks: int, norms: list[float]) -> list[bool]:
    voter = Voter(policy, 0, ranks)
    return [voter.vote(norm) for norm in norms]


def test_a_threshold_is_compared_with_the_change() -> None:
    """Changes of 0, 1/2, 3 and 0; a change equal to the threshold is enough."""
    norms = [4.0, 2, 8, 8]
    assert votes(SelSync(delta=0.5, smoothing=1), 2, norms) == [False, True, True, False]
    assert votes(SelSync(delta=0.6, smoothing=1), 2, norms) == [False, False, True, False]
    assert votes(SelSync(delta=0), 2, norms) == [True] * 4


def test_the_factor_is_the_papers_by_default() -> None:
    """N/100 for N ranks: 4 ranks have a change of 0.04 x 0.5 / 1.96 where 100 have a half; a thousand have the same as a hundred."""
    assert votes(SelSync(delta=0.5), 100, [4, 2]) == votes(SelSync(delta=0.5), 1_000, [4, 2]) == [False, True]
    small = (4 - (2 + 4 * 0.96) / 1.96) / 4
    assert votes(SelSync(delta=small * 0.999), 4, [4, 2]) == [False, True]
    assert votes(SelSync(delta=small * 1.001), 4, [4, 2]) == [False, False]


def jobs_votes(policy: SelSync, ranks: int, steps: int) -> list[bool]:
    """Whether any rank votes, in each step after a while: every rank's norms are its own, and independent."""
    drawn = random.Random(5)
    voters = [Voter(policy, rank, ranks) for rank in range(ranks)]
    voted = [max([voter.vote(drawn.lognormvariate(0, 1)) for voter in voters]) for _ in range(steps + 300)]
    return voted[300:]


@pytest.mark.parametrize(
    ("ranks", "quantile"), [*itertools.product([1, 4, 16, 64], [0.5, 0.9]), (256, 0.9), (256, 0.95)]
)
def test_a_quantile_is_the_share_of_local_steps(ranks: int, quantile: float) -> None:
    """For any number of ranks, one vote of which is enough, within what so many steps can show."""
    voted = jobs_votes(SelSync(quantile=quantile), ranks, 1_200)
    assert 1 - sum(voted) / len(voted) == pytest.approx(quantile, abs=0.04 if ranks < 256 else 0.02)


def test_a_threshold_means_another_share_on_each_number_of_ranks() -> None:
    """With the same norms 2 ranks hardly ever synchronize by it, and 16 in most steps."""
    few, many = (sum(jobs_votes(SelSync(delta=0.3), ranks, 1_000)) / 1_000 for ranks in (2, 16))
    assert few < 0.1
    assert many > 0.5


def test_a_quantile_needs_some_changes_first() -> None:
    """Until there are enough, every step synchronizes."""
    drawn = random.Random(1)
    voted = votes(SelSync(quantile=0.9), 1, [drawn.random() for _ in range(MIN_CHANGES + 100)])
    assert all(voted[:MIN_CHANGES]) and not all(voted[MIN_CHANGES:])


def test_gradients_that_never_change_synchronize() -> None:
    """No change exceeds another one; to synchronize is the safe choice."""
    assert all(votes(SelSync(quantile=0.9), 1, [0.0] * 60))


def test_one_vote_is_enough() -> None:
    """None means that no votes are due in this step."""
    policy = SelSync(delta=0.3)
    voted = [
        policy.decide(PolicyContext(step=3, steps_since_sync=1, ranks=3, votes=flags))
        for flags in (None, (False,) * 3, (False, True, False))
    ]
    assert voted == [Decision.LOCAL, Decision.LOCAL, Decision.SYNC]
    assert policy.combines is Combine.PARAMETERS
    assert SelSync(delta=0.3, aggregate="gradients").combines is Combine.GRADIENTS


@given(
    st.lists(NORM, min_size=1, max_size=90),
    st.integers(0, 90),
    st.sampled_from([SelSync(delta=0.1), SelSync(quantile=0.6)]),
)
def test_a_voter_resumes_unchanged(norms: list[float], stop: int, policy: SelSync) -> None:
    """Saved after any step and loaded elsewhere, its votes are those of an uninterrupted one."""
    whole, before, after = (Voter(policy, 1, 4) for _ in range(3))
    expected = [whole.vote(norm) for norm in norms]
    voted = [before.vote(norm) for norm in norms[:stop]]
    after.load_state_dict(before.state_dict())
    assert voted + [after.vote(norm) for norm in norms[stop:]] == expected


@pytest.mark.parametrize("stop", range(30, 60))
def test_a_voter_resumes_the_carried_fraction(stop: int) -> None:
    """With a quantile the state includes the fraction of a vote that is carried over."""
    drawn = random.Random(4)
    norms = [drawn.lognormvariate(0, 1) for _ in range(200)]
    before, after = (Voter(SelSync(quantile=0.8), 0, 4) for _ in range(2))
    voted = [before.vote(norm) for norm in norms[:stop]]
    after.load_state_dict(before.state_dict())
    assert voted + [after.vote(norm) for norm in norms[stop:]] == votes(SelSync(quantile=0.8), 4, norms)
