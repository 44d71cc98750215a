"""Selects the sources that can be true together, and intersects their claims: Marzullo's algorithm. Pure."""

from __future__ import annotations

from collections.abc import Mapping
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

    `falsetickers` are the sources that cannot be true together with the majority. `contradiction`: there is no
    majority, and the interval spans all claims, so it holds whichever source is right.
    """

    low_ns: int
    high_ns: int
    growth_ppb: int
    falsetickers: tuple[str, ...] = ()
    contradiction: bool = False
    sources: tuple[str, ...] = ()


def agree(claims: Mapping[str, Claim], boottime_ns: int) -> Agreement:
    """More than half of the sources are assumed to be true. Raises ValueError when there is no claim."""
    now = {name: claim.at(boottime_ns) for name, claim in claims.items()}
    majorities = _largest_intersections(now)
    if 2 * len(majorities[0]) <= len(now):
        low_ns, high_ns = min(claim.low_ns for claim in now.values()), max(claim.high_ns for claim in now.values())
        growth_ppb = max(claim.growth_ppb for claim in now.values())
        return Agreement(low_ns, high_ns, growth_ppb, contradiction=True, sources=tuple(now))
    # Each end is one source's, so it grows no faster than that source's claim.
    lows = [max((now[name] for name in names), key=lambda claim: claim.low_ns) for names in majorities]
    highs = [min((now[name] for name in names), key=lambda claim: claim.high_ns) for names in majorities]
    truechimers = frozenset[str]().union(*majorities)
    return Agreement(
        min(claim.low_ns for claim in lows),
        max(claim.high_ns for claim in highs),
        max(claim.growth_ppb for claim in lows + highs),
        tuple(name for name in now if name not in truechimers),
        sources=tuple(now),
    )


def _largest_intersections(claims: Mapping[str, Claim]) -> list[frozenset[str]]:
    """
    The largest groups with a common point; of two as large, either may be right. One member's lower end is such a
    point.
    """
    groups = [
        frozenset(name for name, claim in claims.items() if claim.low_ns <= point.low_ns <= claim.high_ns)
        for point in claims.values()
    ]
    largest = max(map(len, groups))
    return [group for group in groups if len(group) == largest]
