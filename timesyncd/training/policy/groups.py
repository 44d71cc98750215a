"""Which ranks are near each other: levels of groups, from where the ranks stand or from the delays measured between them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, combinations, pairwise

Group = tuple[int, ...]

#: Disjoint groups that hold every rank, by their lowest rank; within a group the ranks ascend.
Level = tuple[Group, ...]

#: Innermost first. Each level joins whole groups of the one before; the last is one group of all.
Levels = tuple[Level, ...]

#: So many times the near delays are the far ones at least, whatever the errors are.
GAP = 2


def groups_by_label(labels: Sequence[str]) -> Levels:
    """
    From each rank's place, outermost part first, as "hall-1/rack-12/node-3"; the depths may differ. A label that ends early is a place of
    its own beside those below it.

    A rank without a label could be anywhere: then all ranks are one group.
    """
    paths = [tuple(part for part in label.split("/") if part) for label in labels]
    if not all(paths):
        return (_everybody(len(paths)),)
    depths = range(max(map(len, paths), default=0), 0, -1)
    return _levels([_level([path[:depth] for path in paths]) for depth in depths], len(paths))


def groups_by_delay(delays_ns: Mapping[tuple[int, int], tuple[int, int]], ranks: int) -> Levels:
    """
    From one-way delays: by (from, to) the median and the half-width of its error. A pair's delay is the larger of its directions, and
    a pair of which a direction is unknown is far apart.

    The near pairs are those before the widest gap: the ratio of the shortest far delay to the longest near one, the errors taken against
    it, which must be above `GAP`. Without a gap, or where a near to b and b near to c leaves a far from c, all ranks are one group: such
    delays are no places, and any choice of groups would put a far pair into one.
    """
    pairs = {pair: known for pair in combinations(range(ranks), 2) if (known := _pair_ns(delays_ns, *pair)) is not None}
    around = [{rank} for rank in range(ranks)]
    for a, b in (near := _before_gap(pairs)):
        around[a].add(b)
        around[b].add(a)
    if any(around[a] != around[b] for a, b in near):
        return (_everybody(ranks),)
    return _levels([_level([frozenset(ranks_near) for ranks_near in around])], ranks)


def levels_from_numbers(numbers: Sequence[Sequence[int]], ranks: int) -> Levels:
    """From a plan's groups: by level, without the one of all, each rank's group by its number. Raises ValueError where they are none."""
    everybody: Level = (tuple(range(ranks)),)
    return check_levels((*map(_level, numbers), everybody), ranks)


def check_levels(levels: Levels, ranks: int) -> Levels:
    """The levels themselves. Raises ValueError where they are not what `Levels` says."""
    if not levels or levels[-1] != _everybody(ranks):
        raise ValueError(f"the last level of groups must be one group of all {ranks} ranks")
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


def _everybody(ranks: int) -> Level:
    return (tuple(range(ranks)),)


def _ordered(groups: Sequence[Sequence[int]]) -> Level:
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _level(places: Sequence[Hashable]) -> Level:
    """The ranks of one place are a group."""
    groups: dict[Hashable, list[int]] = {}
    for rank, place in enumerate(places):
        groups.setdefault(place, []).append(rank)
    return _ordered(list(groups.values()))


def _levels(inner: Sequence[Level], ranks: int) -> Levels:
    """Without those that change nothing: every rank alone, or the same groups as one level further in."""
    levels: list[Level] = []
    for level in (*inner, _everybody(ranks)):
        if len(level) < ranks and level not in levels:
            levels.append(level)
    return tuple(levels) or (_everybody(ranks),)


def _pair_ns(delays_ns: Mapping[tuple[int, int], tuple[int, int]], a: int, b: int) -> tuple[int, int] | None:
    """(least, most) that the longer direction can be, at least 1 ns each; None where a direction is unknown."""
    if (a, b) not in delays_ns or (b, a) not in delays_ns:
        return None
    both = delays_ns[a, b], delays_ns[b, a]
    return max(1, *(delay - error for delay, error in both)), max(1, *(delay + error for delay, error in both))


def _before_gap(pairs: Mapping[tuple[int, int], tuple[int, int]]) -> list[tuple[int, int]]:
    """The near pairs; none where there is no gap. Of two gaps that are as wide, the one at shorter delays."""
    ascending = sorted(pairs, key=lambda pair: sum(pairs[pair]))
    longest = list(accumulate((pairs[pair][1] for pair in ascending), max))
    shortest = list(accumulate((pairs[pair][0] for pair in reversed(ascending)), min))[::-1]
    widest, near = Fraction(GAP), 0
    for count in range(1, len(ascending)):
        if (ratio := Fraction(shortest[count], longest[count - 1])) > widest:
            widest, near = ratio, count
    return ascending[:near]
