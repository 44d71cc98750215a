"""Groups of ranks, from labels and from delays: by hand, and properties of all."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.groups import Levels, check_levels, groups_by_delay, groups_by_label, levels_from_numbers

Delays = dict[tuple[int, int], tuple[int, int]]

LABELS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join), min_size=1, max_size=9)


def both(delays: dict[tuple[int, int], tuple[int, int]]) -> Delays:
    """The same in both directions."""
    return delays | {(b, a): delay for (a, b), delay in delays.items()}


def regular(near_ns: int, far_ns: int, error_ns: int, groups: tuple[tuple[int, ...], ...]) -> Delays:
    """Between ranks of one of the groups `near_ns`, else `far_ns`."""
    of = {rank: group for group in groups for rank in group}
    pairs = combinations(sorted(of), 2)
    return both({(a, b): (near_ns if of[a] == of[b] else far_ns, error_ns) for a, b in pairs})


@st.composite
def measured(draw: st.DrawFn) -> tuple[Delays, int]:
    """Some pairs among some ranks, of few delays, so that gaps, ties and broken triangles all come."""
    ranks = draw(st.integers(1, 6))
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    delay = st.tuples(st.sampled_from([-5, 0, 10, 11, 100, 105, 1_000]), st.sampled_from([0, 1, 3, 40]))
    unknown = draw(st.sets(st.sampled_from(pairs or [(0, 0)])))
    return {pair: draw(delay) for pair in pairs if pair not in unknown}, ranks


@st.composite
def placed(draw: st.DrawFn) -> tuple[Delays, int]:
    """Ranks in one to three places, with near and far delays of any ratio, each a little different."""
    places = draw(st.lists(st.integers(0, 2), min_size=1, max_size=7))
    far = draw(st.integers(10, 60))
    jitter = st.integers(0, 2)
    delays = {
        (a, b): ((10 if places[a] == places[b] else far) + draw(jitter), draw(jitter))
        for a in range(len(places))
        for b in range(len(places))
        if a != b
    }
    return delays, len(places)


def test_labels_of_three_depths() -> None:
    """Nodes, then racks, then halls, then all; a node that is alone in its rack is a group of its own."""
    labels = ["h1/r1/n1", "h1/r1/n1", "h1/r1/n2", "h1/r2/n1", "h2/r1/n1"]
    assert groups_by_label(labels) == (
        ((0, 1), (2,), (3,), (4,)),
        ((0, 1, 2), (3,), (4,)),
        ((0, 1, 2, 3), (4,)),
        ((0, 1, 2, 3, 4),),
    )


def test_levels_that_change_nothing_are_dropped() -> None:
    """One rank per node, and a single hall: only the racks are a level."""
    labels = ["h1/r1/n1", "h1/r2/n1", "h1/r1/n2", "h1/r2/n2"]
    assert groups_by_label(labels) == (((0, 2), (1, 3)), ((0, 1, 2, 3),))


@pytest.mark.parametrize("labels", [["a", "a", "a"], ["a", "b", "c"], ["a/x", "", "b/x"], ["a/x", "/", "a/x"]])
def test_labels_without_groups(labels: list[str]) -> None:
    """All ranks at one location, each at its own, or one unknown: one group."""
    assert groups_by_label(labels) == (((0, 1, 2),),)


def test_labels_that_end_early() -> None:
    """A rank whose label has only the hall is in no rack, but in the hall."""
    assert groups_by_label(["h1", "h1/r1", "h1/r1", "h2/r1"]) == (
        ((0,), (1, 2), (3,)),
        ((0, 1, 2), (3,)),
        ((0, 1, 2, 3),),
    )


def test_one_rank_and_none() -> None:
    """The last level exists for a single rank too."""
    assert groups_by_label(["a/b"]) == groups_by_delay({}, 1) == (((0,),),)


def test_two_racks_by_delay() -> None:
    """2 us within a rack, 9 us between: two groups of unequal size."""
    delays = regular(2_000, 9_000, 100, ((0, 2, 4), (1, 3)))
    assert groups_by_delay(delays, 5) == (((0, 2, 4), (1, 3)), ((0, 1, 2, 3, 4),))


@pytest.mark.parametrize(
    ("far_ns", "error_ns", "found"),
    [(4_000, 0, False), (4_001, 0, True), (5_000, 400, False), (5_000, 300, True), (9_000, 3_000, False)],
)
def test_the_gap_must_be_wide_beyond_the_errors(far_ns: int, error_ns: int, found: bool) -> None:
    """2 us against 4 us is not more than double; (5.0 - 0.4) / (2.0 + 0.4) is less, (5.0 - 0.3) / (2.0 + 0.3) is more."""
    delays = regular(2_000, far_ns, error_ns, ((0, 1), (2, 3)))
    assert (len(groups_by_delay(delays, 4)) == 2) is found


def test_the_slower_direction_counts() -> None:
    """A pair that is near one way and far the other way is far."""
    delays = regular(10, 100, 0, ((0, 1), (2, 3)))
    assert groups_by_delay(delays, 4)[0] == ((0, 1), (2, 3))
    assert groups_by_delay(delays | {(3, 2): (100, 0)}, 4)[0] == ((0, 1), (2,), (3,))


def test_an_unknown_pair_is_far() -> None:
    """A pair that was never measured, or in one direction only, joins no group."""
    delays = regular(10, 100, 0, ((0, 1), (2, 3)))
    del delays[3, 2]
    assert groups_by_delay(delays, 4)[0] == ((0, 1), (2,), (3,))
    del delays[0, 1], delays[1, 0]
    assert groups_by_delay(delays, 4) == (((0, 1, 2, 3),),)


def test_inconsistent_delays_give_one_group() -> None:
    """0 is near 1 and 1 is near 2, but 0 is far from 2: one group of all, although 3 and 4 would form one."""
    near = {(0, 1): (10, 0), (1, 2): (10, 0), (3, 4): (10, 0)}
    far = {pair: (100, 0) for pair in combinations(range(5), 2) if pair not in near}
    assert groups_by_delay(both(near | far), 5) == (((0, 1, 2, 3, 4),),)
    assert groups_by_delay(both(near | far | {(0, 2): (12, 0)}), 5)[0] == ((0, 1, 2), (3, 4))


def test_the_widest_gap_counts() -> None:
    """10, 50 and 1,000: between 50 and 1,000 the ratio is 20, before it 5."""
    delays = regular(50, 1_000, 0, ((0, 1, 2), (3, 4))) | both({(0, 1): (10, 0)})
    assert groups_by_delay(delays, 5)[0] == ((0, 1, 2), (3, 4))


def test_of_equal_gaps_the_one_at_shorter_delays_counts() -> None:
    """10, 100 and 1,000: the groups are those of 10."""
    delays = regular(100, 1_000, 0, ((0, 1, 2), (3, 4))) | both({(0, 1): (10, 0)})
    assert groups_by_delay(delays, 5)[0] == ((0, 1), (2,), (3,), (4,))


def test_negative_delays() -> None:
    """A median below the clocks' error counts as 1 ns, so that no ratio is infinite or negative."""
    delays = regular(-50, 100, 10, ((0, 1), (2, 3)))
    assert groups_by_delay(delays, 4)[0] == ((0, 1), (2, 3))
    assert groups_by_delay(regular(-50, -50, 0, ((0, 1, 2, 3),)), 4) == (((0, 1, 2, 3),),)


@given(LABELS)
def test_levels_from_labels_are_valid(labels: list[str]) -> None:
    """Each level is a partition and joins whole groups of the level before; no level occurs twice."""
    levels = groups_by_label(labels)
    assert check_levels(levels, len(labels)) is levels and len(set(levels)) == len(levels)
    assert all(len(level) < len(labels) for level in levels[:-1])


@given(measured() | placed())
def test_levels_from_delays_are_valid(known: tuple[Delays, int]) -> None:
    """The same, and all ranks of an inner group are nearer to each other than to any other rank."""
    delays, ranks = known
    levels = groups_by_delay(delays, ranks)
    assert check_levels(levels, ranks) is levels and len(levels) <= 2
    if len(levels) == 2:
        of = {rank: group for group in levels[0] for rank in group}
        apart = {pair: max(delays[pair][0], delays[pair[::-1]][0]) for pair in delays if pair[::-1] in delays}
        within = [delay for (a, b), delay in apart.items() if of[a] == of[b]]
        between = [delay for (a, b), delay in apart.items() if of[a] != of[b]]
        assert not between or max(1, max(within)) * 2 < min(between)


def renamed(levels: Levels, names: list[int]) -> Levels:
    """Replaces each rank by the number at its place in `names`."""
    return tuple(tuple(sorted(tuple(sorted(names[rank] for rank in group)) for group in level)) for level in levels)


@given(LABELS, st.randoms(use_true_random=False))
def test_other_numbers_make_the_same_groups_of_labels(labels: list[str], random: Random) -> None:
    """Ranks with other numbers are grouped the same."""
    names = random.sample(range(len(labels)), len(labels))
    permuted = [label for _, label in sorted(zip(names, labels, strict=True))]
    assert groups_by_label(permuted) == renamed(groups_by_label(labels), names)


@given(measured() | placed(), st.randoms(use_true_random=False))
def test_other_numbers_make_the_same_groups_of_delays(known: tuple[Delays, int], random: Random) -> None:
    """The same, for any order of the delays."""
    delays, ranks = known
    names = random.sample(range(ranks), ranks)
    permuted = {(names[a], names[b]): delay for (a, b), delay in reversed(delays.items())}
    assert groups_by_delay(permuted, ranks) == renamed(groups_by_delay(delays, ranks), names)


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ((), "last level"),
        ((((0, 1), (2,)),), "last level"),
        ((((0, 1),), ((0, 1, 2),)), "exactly one group"),
        ((((0, 1), (1, 2)), ((0, 1, 2),)), "exactly one group"),
        ((((0, 1, 2), ()), ((0, 1, 2),)), "exactly one group"),
        ((((2,), (0, 1)), ((0, 1, 2),)), "ascend"),
        ((((0, 1), (2,)), ((0,), (1, 2)), ((0, 1, 2),)), "within one group"),
    ],
)
def test_invalid_levels_are_rejected(levels: Levels, words: str) -> None:
    """Invalid levels of the user are rejected with what is wrong."""
    with pytest.raises(ValueError, match=words):
        check_levels(levels, 3)


def test_a_plan_s_group_numbers_are_levels() -> None:
    """The hub numbers each rank's group, level by level; the last level, of all ranks, is added."""
    levels = levels_from_numbers([[0, 0, 1, 1, 2], [0, 0, 0, 0, 1]], 5)

    assert levels == (((0, 1), (2, 3), (4,)), ((0, 1, 2, 3), (4,)), ((0, 1, 2, 3, 4),))
    with pytest.raises(ValueError, match="exactly one group"):
        levels_from_numbers([[0, 0, 1]], 5)
