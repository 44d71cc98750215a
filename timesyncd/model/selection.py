"""Selects the sources that can be true together, and intersects their claims: Marzullo's algorithm. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from timesyncd.bound import growth_ns


class Claim(NamedTuple):
    """
    One source's claim: the local clock's error lay in [low_ns, high_ns] at `as_of_ns`; the interval grows by
    `growth_ppb` at both ends.
    """

    as_of_ns: int
    low_ns: int
    high_ns: int
    growth_ppb: int

    def at(self, boottime_ns: int) -> Claim:
        wider_ns = growth_ns(self.growth_ppb, max(0, boottime_ns - self.as_of_ns))
        return self._replace(as_of_ns=boottime_ns, low_ns=self.low_ns - wider_ns, high_ns=self.high_ns + wider_ns)


class Agreement(NamedTuple):
    """
    The interval of the local clock's error by all `sources`; it grows by `growth_ppb` at both ends.

    `falsetickers` are the sources that cannot be true together with the majority. `contradicting` are those that
    contradict each other without one majority that decides: the interval spans what each possible majority shares, or
    all claims where there is none, so it holds whichever is right. `ends` are the sources whose claims give the interval's ends. `narrowed_by` are those of them that make the
    UTC bound narrower than the deciding source's own, or give it where that source knows none. `dependent` are those
    that may share a cause of error with the deciding source, and so narrow nothing.
    """

    low_ns: int
    high_ns: int
    growth_ppb: int
    falsetickers: tuple[str, ...] = ()
    contradicting: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    narrowed_by: tuple[str, ...] = ()
    dependent: tuple[str, ...] = ()

    @property
    def contradiction(self) -> bool:
        return bool(self.contradicting)


Groups = Sequence[Sequence[str]]
"""A partition of the sources: those of one group may share a cause of error; the first one speaks for its group."""

Apart = Collection[frozenset[str]]
"""Pairs of sources that were found to contradict each other at one moment, whatever their claims are now."""


def agree(claims: Mapping[str, Claim], boottime_ns: int, groups: Groups | None = None, apart: Apart = ()) -> Agreement:
    """
    More than half of the groups are assumed to be true, and a group has one vote: sources that may share a cause of
    error are wrong together. So they never narrow each other, and where they contradict each other their group claims
    all that they claim. Without `groups` each source is independent of all others. Raises ValueError when there is no
    claim.
    """
    now = {name: claim.at(boottime_ns) for name, claim in claims.items()}
    members = {group[0]: tuple(group) for group in (groups if groups is not None else [[name] for name in now])}
    across = {name for pair in apart for name in pair if not _is_within_or_between_leaders(pair, members)}
    torn = {
        leader: not _are_consistent([now[name] for name in group], group, apart) for leader, group in members.items()
    }
    voters = {
        leader: _hull(now[name] for name in group) if torn[leader] else now[leader] for leader, group in members.items()
    }
    contradicting = across.union(*(members[leader] for leader in members if torn[leader]))
    majorities = _largest_intersections(voters, apart)
    if 2 * len(majorities[0]) <= len(voters) or across:
        low_ns, high_ns, growth_ppb = _hull(now.values())[1:]
        return Agreement(low_ns, high_ns, growth_ppb, contradicting=tuple(now), sources=tuple(now), ends=tuple(now))
    # Each end is one group's, so it grows no faster than that group's claim.
    lows = [max(names, key=lambda name: voters[name].low_ns) for names in majorities]
    highs = [min(names, key=lambda name: voters[name].high_ns) for names in majorities]
    believed = frozenset[str]().union(*majorities)
    # Of two majorities either may be right; what is in one of them alone contradicts something in the other.
    disputed = believed.difference(majorities[0].intersection(*majorities))
    contradicting.update(name for leader in disputed for name in members[leader])
    truechimers = frozenset(name for leader in believed for name in members[leader])
    return Agreement(
        min(voters[name].low_ns for name in lows),
        max(voters[name].high_ns for name in highs),
        max(voters[name].growth_ppb for name in lows + highs),
        tuple(name for name in now if name not in truechimers),
        tuple(name for name in now if name in contradicting),
        tuple(now),
        tuple(name for name in now if name in lows + highs),
    )


def _hull(claims: Iterable[Claim]) -> Claim:
    """The claim that holds whichever of these is right, all as of one moment."""
    found = list(claims)
    low_ns, high_ns = min(claim.low_ns for claim in found), max(claim.high_ns for claim in found)
    return Claim(found[0].as_of_ns, low_ns, high_ns, max(claim.growth_ppb for claim in found))


def _are_consistent(claims: Sequence[Claim], names: Collection[str], apart: Apart) -> bool:
    """Whether the claims have a common point, and no two of their sources were found apart."""
    has_point = max(claim.low_ns for claim in claims) <= min(claim.high_ns for claim in claims)
    return has_point and not any(pair.issubset(names) for pair in apart)


def _is_within_or_between_leaders(pair: frozenset[str], members: Mapping[str, Collection[str]]) -> bool:
    return pair.issubset(members) or any(pair.issubset(group) for group in members.values())


def _largest_intersections(claims: Mapping[str, Claim], apart: Apart) -> list[frozenset[str]]:
    """
    The largest groups with a common point and without a pair that is apart; of two as large, either may be right. One
    member's lower end is such a point.
    """
    groups = [
        possible
        for point in claims.values()
        for possible in _without_apart(
            frozenset(name for name, claim in claims.items() if claim.low_ns <= point.low_ns <= claim.high_ns), apart
        )
    ]
    largest = max(map(len, groups))
    return [group for group in groups if len(group) == largest]


def _without_apart(group: frozenset[str], apart: Apart) -> list[frozenset[str]]:
    """The largest parts of the group that have no pair that is apart."""
    pair = next((pair for pair in apart if pair <= group), None)
    return [group] if pair is None else [part for name in pair for part in _without_apart(group - {name}, apart)]
