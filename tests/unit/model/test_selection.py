"""Which sources can be true together, against a search over all points."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.model import selection
from timesyncd.model.selection import Agreement, Claim


def claim(low_ns: int, high_ns: int, growth_ppb: int = 0, as_of_ns: int = 0) -> Claim:
    return Claim(as_of_ns, low_ns, high_ns, growth_ppb)


def named(*intervals: tuple[int, int]) -> dict[str, Claim]:
    return {f"s{index}": claim(*interval) for index, interval in enumerate(intervals)}


def agreed(
    names: Mapping[str, Claim],
    low_ns: int,
    high_ns: int,
    growth_ppb: int,
    falsetickers: tuple[str, ...] = (),
    contradiction: bool = False,
) -> Agreement:
    """Of all of these; which of them give the ends is not compared."""
    everyone = tuple(names)
    return Agreement(low_ns, high_ns, growth_ppb, falsetickers, everyone if contradiction else (), everyone)


def agree(claims: Mapping[str, Claim], boottime_ns: int) -> Agreement:
    """The agreement of independent sources."""
    return selection.agree(claims, boottime_ns)._replace(ends=())


INTERVALS = st.tuples(st.integers(-20, 20), st.integers(0, 15)).map(lambda each: (each[0], each[0] + each[1]))


@given(st.lists(INTERVALS, min_size=1, max_size=7))
def test_the_interval_spans_the_points_that_most_claims_hold(intervals: list[tuple[int, int]]) -> None:
    """
    Where a majority holds any point at all; else the hull, since either may be right. A falseticker holds none of those
    points.
    """
    counts = {point: sum(low <= point <= high for low, high in intervals) for point in range(-20, 36)}
    most = max(counts.values())
    best = [point for point, count in counts.items() if count == most]
    lows, highs = [low for low, _ in intervals], [high for _, high in intervals]
    claims = named(*intervals)
    found = agree(claims, 0)
    liars = tuple(
        f"s{index}" for index, (low, high) in enumerate(intervals) if not any(low <= point <= high for point in best)
    )

    if 2 * most > len(intervals):
        held = [{name for name, each in claims.items() if each.low_ns <= point <= each.high_ns} for point in best]
        disputed = held[0].union(*held) - held[0].intersection(*held)
        expected = agreed(claims, best[0], best[-1], 0, falsetickers=liars)
        assert found == expected._replace(contradicting=tuple(name for name in claims if name in disputed))
    else:
        assert found == agreed(claims, min(lows), max(highs), 0, contradiction=True)


@given(st.integers(-50, 50), st.lists(INTERVALS, min_size=1, max_size=9))
def test_the_truth_is_inside_when_all_claims_are_true(truth: int, intervals: list[tuple[int, int]]) -> None:
    """
    An intersection is never too narrow, and there is no falseticker.
    """
    intervals = [(truth - abs(low), truth + high - low) for low, high in intervals]
    found = agree(named(*intervals), 0)

    assert found.low_ns <= truth <= found.high_ns
    assert found.falsetickers == ()


@given(
    truth=st.integers(-50, 50),
    right=st.lists(INTERVALS, min_size=1, max_size=6),
    wrong=st.lists(st.integers(1, 50), max_size=5),
)
def test_a_minority_that_cannot_be_true_with_the_others_moves_nothing(
    truth: int, right: list[tuple[int, int]], wrong: list[int]
) -> None:
    """
    Wherever it is, and whatever it agrees on among itself.
    """
    assume(len(wrong) < len(right))
    honest = [(truth - abs(low), truth + high - low) for low, high in right]
    far = max(high for _, high in honest)
    liars = [(far + distance, far + distance + 100) for distance in wrong]
    with_them, without = agree(named(*honest, *liars), 0), agree(named(*honest), 0)

    assert (with_them.low_ns, with_them.high_ns) == (without.low_ns, without.high_ns)
    assert with_them.falsetickers == tuple(f"s{len(honest) + index}" for index in range(len(liars)))
    assert not with_them.contradiction


def test_of_two_that_contradict_either_may_be_right() -> None:
    """
    The hull holds whichever is true; neither is a falseticker.
    """
    claims = named((0, 1), (5, 9))

    assert agree(claims, 0) == agreed(claims, 0, 9, 0, contradiction=True)


def test_two_pairs_that_share_a_claim_are_both_believed() -> None:
    """
    Either pair is a majority of three: which of the outer two is false cannot be known, and that they contradict each
    other is reported.
    """
    claims = named((0, 2), (1, 5), (4, 6))

    assert agree(claims, 0) == agreed(claims, 1, 5, 0)._replace(contradicting=("s0", "s2"))


def test_touching_claims_agree() -> None:
    """
    An end belongs to its interval.
    """
    claims = named((0, 5), (5, 9))

    assert agree(claims, 0) == agreed(claims, 5, 5, 0)


def test_one_claim_is_its_own_majority() -> None:
    """
    With its own growth.
    """
    claims = {"a": claim(-3, 4, 7)}

    assert agree(claims, 0) == agreed(claims, -3, 4, 7)


def test_claims_grow_to_one_moment_before_they_are_compared() -> None:
    """
    Rounded outwards; one from after that moment stays as it is. The fastest growth is everybody's.
    """
    claims = {"old": claim(0, 10, 1, as_of_ns=0), "new": claim(-11, -1, 3, as_of_ns=9 * NS_PER_S)}

    assert claims["old"].at(NS_PER_S // 2) == claim(-1, 11, 1, NS_PER_S // 2)
    assert claims["new"].at(NS_PER_S) == claim(-11, -1, 3, NS_PER_S)
    assert agree(claims, NS_PER_S) == agreed(claims, -1, -1, 3)


@given(st.lists(INTERVALS, min_size=1, max_size=6), st.integers(1, 6))
def test_sources_that_may_share_a_cause_never_narrow_each_other(intervals: list[tuple[int, int]], first: int) -> None:
    """
    In one group the interval contains the first one's whole claim, and where they contradict each other all claims.
    """
    claims = named(*intervals)
    order = [*claims][first % len(claims) :] + [*claims][: first % len(claims)]
    found = selection.agree(claims, 0, [order])
    together = max(low for low, _ in intervals) <= min(high for _, high in intervals)
    contained = [claims[order[0]]] if together else list(claims.values())

    assert all(found.low_ns <= each.low_ns and each.high_ns <= found.high_ns for each in contained)
    assert found.contradicting == (() if together else tuple(claims))
    assert found.falsetickers == ()


def test_a_group_has_one_vote() -> None:
    """
    Three that may share a cause are outvoted by two independent ones, and named together.
    """
    claims = named((0, 1), (0, 1), (0, 1), (5, 9), (6, 12))
    found = selection.agree(claims, 0, [["s0", "s1", "s2"], ["s3"], ["s4"]])

    assert (found.low_ns, found.high_ns, found.falsetickers) == (6, 9, ("s0", "s1", "s2"))
    assert (found.ends, found.contradicting) == (("s3", "s4"), ())


@pytest.mark.parametrize("groups", [[["s0"], ["s1"]], [["s0", "s1"]], [["s0", "s2"], ["s1"]]])
def test_claims_that_overlap_now_may_have_been_apart_before(groups: list[list[str]]) -> None:
    """
    An NTP daemon's claim spans what it may slew; at the moment of its reading it contradicted the other one.
    """
    claims = {name: each for name, each in named((0, 2), (1, 50), (0, 60)).items() if any(name in g for g in groups)}
    found = selection.agree(claims, 0, groups, [frozenset({"s0", "s1"})])

    assert (found.low_ns, found.high_ns) == (0, max(each.high_ns for each in claims.values()))
    assert found.contradiction


def test_one_that_was_apart_from_a_majority_is_the_falseticker() -> None:
    """
    Its claim overlaps theirs only by what it may slew.
    """
    claims = named((0, 2), (0, 3), (1, 50))
    found = selection.agree(claims, 0, None, [frozenset({"s0", "s2"}), frozenset({"s1", "s2"})])

    assert (found.low_ns, found.high_ns, found.falsetickers) == (0, 2, ("s2",))


def test_no_claim_is_an_error() -> None:
    """
    Without claims there is no agreement.
    """
    with pytest.raises(ValueError):
        agree({}, 0)
