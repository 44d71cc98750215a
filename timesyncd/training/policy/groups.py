"""
Which ranks are near each other: levels of groups, from the ranks' topology labels or from the delays measured between
them. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, combinations, pairwise

RankGroup = tuple[int, ...]

#: Disjoint groups that contain every rank, sorted by their lowest rank; within a group the ranks ascend.
Level = tuple[RankGroup, ...]

#: Innermost first. Each level joins whole groups of the level before; the last level is one group of all ranks.
Levels = tuple[Level, ...]

#: The far delays are at least this many times the near ones, even after their errors are subtracted.
MIN_GAP_RATIO = 2


def groups_by_label(labels: Sequence[str]) -> Levels:
    """
    From each rank's topology label, outermost part first, as "hall-1/rack-12/node-3". The depths may differ: a label
    that ends early is a location of its own beside those below it.

    Where a rank has no label, its location is unknown, and all ranks are one group.
    """
    paths = [tuple(part for part in label.split("/") if part) for label in labels]
    if not all(paths):
        return (_all_ranks(len(paths)),)
    depths = range(max(map(len, paths), default=0), 0, -1)
    return _levels([_level([path[:depth] for path in paths]) for depth in depths], len(paths))


def groups_by_delay(delays_ns: Mapping[tuple[int, int], tuple[int, int]], ranks: int) -> Levels:
    """
    From one-way delays in ns, by (from, to): the median and the half-width of its error. A pair's delay is the larger
    of its two directions; a pair with an unknown direction counts as far apart.

    The near pairs are those below the widest gap: the largest ratio of the shortest far delay to the longest near one,
    with the errors taken against it. That ratio must exceed `MIN_GAP_RATIO`. Without such a gap, or where a is near b
    and b is near c but a is far from c, all ranks are one group: any other grouping would put a far pair into one
    group.
    """
    pairs = {
        pair: known for pair in combinations(range(ranks), 2) if (known := _pair_range_ns(delays_ns, *pair)) is not None
    }
    neighbours = [{rank} for rank in range(ranks)]
    for a, b in (near := _near_pairs(pairs)):
        neighbours[a].add(b)
        neighbours[b].add(a)
    if any(neighbours[a] != neighbours[b] for a, b in near):
        return (_all_ranks(ranks),)
    return _levels([_level([frozenset(near_ranks) for near_ranks in neighbours])], ranks)


def levels_from_numbers(numbers: Sequence[Sequence[int]], ranks: int) -> Levels:
    """
    From a plan's groups: for each level but the last, the group number of each rank. Raises ValueError where they are
    no valid levels.
    """
    all_ranks: Level = (tuple(range(ranks)),)
    return check_levels((*map(_level, numbers), all_ranks), ranks)


def check_levels(levels: Levels, ranks: int) -> Levels:
    """Returns the levels. Raises ValueError where they violate what `Levels` states."""
    if not levels or levels[-1] != _all_ranks(ranks):
        raise ValueError(f"the last level of groups must be one group of all {ranks} ranks: {levels[-1:]}")
    for level in levels:
        if sorted(rank for group in level for rank in group) != list(range(ranks)) or not all(level):
            raise ValueError(f"each of the {ranks} ranks must be in exactly one group of a level: {level}")
        if level != _ordered(level):
            raise ValueError(f"groups and their ranks must ascend: {level}")
    for inner, outer in pairwise(levels):
        of = {rank: group for group in outer for rank in group}
        if any(len({of[rank] for rank in group}) > 1 for group in inner):
            raise ValueError(f"a group must lie within one group of the next level: {inner}, {outer}")
    return levels


def _all_ranks(ranks: int) -> Level:
    return (tuple(range(ranks)),)


def _ordered(groups: Sequence[Sequence[int]]) -> Level:
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _level(places: Sequence[Hashable]) -> Level:
    """The ranks with an equal place form a group."""
    groups: dict[Hashable, list[int]] = {}
    for rank, place in enumerate(places):
        groups.setdefault(place, []).append(rank)
    return _ordered(list(groups.values()))


def _levels(inner: Sequence[Level], ranks: int) -> Levels:
    """
    Without redundant levels: those with every rank in its own group, and those with the groups of a level further in.
    """
    levels: list[Level] = []
    for level in (*inner, _all_ranks(ranks)):
        if len(level) < ranks and level not in levels:
            levels.append(level)
    return tuple(levels) or (_all_ranks(ranks),)


def _pair_range_ns(delays_ns: Mapping[tuple[int, int], tuple[int, int]], a: int, b: int) -> tuple[int, int] | None:
    """
    The (shortest, longest) delay that the longer direction can have, each at least 1 ns; None where a direction is
    unknown.
    """
    if (a, b) not in delays_ns or (b, a) not in delays_ns:
        return None
    both = delays_ns[a, b], delays_ns[b, a]
    return max(1, *(delay - error for delay, error in both)), max(1, *(delay + error for delay, error in both))


def _near_pairs(pairs: Mapping[tuple[int, int], tuple[int, int]]) -> list[tuple[int, int]]:
    """
    The pairs below the widest gap; none where there is no gap. Of two equally wide gaps, the one at shorter delays
    counts.
    """
    ascending = sorted(pairs, key=lambda pair: sum(pairs[pair]))
    longest = list(accumulate((pairs[pair][1] for pair in ascending), max))
    shortest = list(accumulate((pairs[pair][0] for pair in reversed(ascending)), min))[::-1]
    widest, near = Fraction(MIN_GAP_RATIO), 0
    for count in range(1, len(ascending)):
        if (ratio := Fraction(shortest[count], longest[count - 1])) > widest:
            widest, near = ratio, count
    return ascending[:near]
