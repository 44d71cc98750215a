"""The largest possible difference between the clocks of a set of nodes, from each node's own bounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import NamedTuple

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.node_clock import (
    GRANDMASTER,
    MAX_PLAUSIBLE,
    NO_BOUND,
    PARENT,
    UNBOUNDED,
    UTC,
    NodeClock,
    rounded_up_ns,
)
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.messages.node import StateReason

#: The references by which two clocks are compared, for people.
_BY = ("UTC", "their grandmaster", "their parent clock")
_SHARED = ("one grandmaster", "one parent clock")


@dataclass(frozen=True, slots=True)
class Alignment:
    """
    The largest possible difference between any two of the nodes' clocks: `alignment_ns` now, growing by `growth_ppb`.

    Without new states it is valid for `holds_for_ns` (None: unknown, or without end). `pair` are the two nodes that may
    be the furthest apart. `alignment_ns` None = unknown, for `reason`.
    """

    alignment_ns: int | None
    growth_ppb: int | None
    pair: tuple[str, str] | None
    reason: str
    holds_for_ns: int | None = None
    reason_code: str = "ok"

    def at(self, later_ns: int) -> int | None:
        """The alignment so much later without new states; None: unknown then."""
        if self.holds_for_ns is not None and later_ns >= self.holds_for_ns:
            return None
        return Bound(self.alignment_ns, self.growth_ppb or 0).at(later_ns)

    def fields(self) -> dict[str, object]:
        """The values by their names in an AlignmentState."""
        pair = None if self.pair is None else list(self.pair)
        return {name: getattr(self, name) for name in _FIELDS} | {"pair": pair}


_FIELDS = ("alignment_ns", "growth_ppb", "holds_for_ns", "reason", "reason_code")

ONE_CLOCK = Alignment(0, 0, None, "one clock")


def unknown_alignment(reason: str, reason_code: str) -> Alignment:
    return Alignment(None, None, None, reason, reason_code=reason_code)


def alignment(clocks: Sequence[NodeClock], now: Moment) -> Alignment:
    """
    The largest possible difference between any two of the nodes, each given once; a single node with a known clock is
    aligned.

    Two clocks behind one parent clock differ by at most the sum of their parent bounds; under one grandmaster, of their
    gm bounds; else of their utc bounds. A pair counts in the innermost group that contains both, where the widest
    clocks of two subgroups decide, so no pair is visited.
    """
    return alignment_and_reference(clocks, now)[0]


def alignment_and_reference(clocks: Sequence[NodeClock], now: Moment) -> tuple[Alignment, int]:
    """The alignment, and the reference that decides."""
    if not clocks:
        return unknown_alignment("no node is reporting", StateReason.NO_NODE_REPORTS), GRANDMASTER
    groups, lost, holds_for_ns = grown_groups(clocks, now)
    if lost:
        return _unknown_of(lost[0], lost[0].why_unbounded(now)), GRANDMASTER
    if len(clocks) == 1:
        return ONE_CLOCK, clocks[0].main_reference
    found = list(_widest(groups))
    widest = max(found, key=attrgetter("sum_ns"))
    if widest.sum_ns >= UNBOUNDED:
        return _unknown_pair(widest, now), widest.by
    pair = (min(widest.one, widest.other), max(widest.one, widest.other))
    growth_ppb = max(each.growth_ppb for each in found)
    if max(widest.sum_ns // NS_PER_S, growth_ppb) > MAX_PLAUSIBLE:
        apart = f"{pair[0]} and {pair[1]}: more than eleven days apart"
        return unknown_alignment(apart, StateReason.TOO_FAR_APART), widest.by
    reason = f"{pair[0]} and {pair[1]}, by {_BY[widest.by]}"
    return Alignment(rounded_up_ns(widest.sum_ns), growth_ppb, pair, reason, holds_for_ns), widest.by


class _Widest(NamedTuple):
    """
    The two clocks of a group that may be the furthest apart, the first at least as far off; the sum is in 1e-9 ns.
    """

    by: int
    sum_ns: int
    growth_ppb: int
    first: NodeClock
    one: str
    other: str


class Group:
    """
    The clocks behind one parent clock: the widest two against it, the widest one against the grandmaster and against
    UTC, and the largest growths of the same.
    """

    __slots__ = (
        "gm", "gm_growth", "gm_ns", "growth", "growth_2", "parent", "parent_2", "parent_2_ns", "parent_ns", "utc",
        "utc_growth", "utc_ns",
    )  # fmt: skip

    def __init__(
        self, clock: NodeClock, parent: int, growth: int, gm: int, gm_growth: int, utc: int, utc_growth: int
    ) -> None:
        self.parent = self.gm = self.utc = clock
        self.parent_2: NodeClock | None = None
        self.parent_ns, self.parent_2_ns, self.growth, self.growth_2 = parent, -1, growth, -1
        self.gm_ns, self.gm_growth, self.utc_ns, self.utc_growth = gm, gm_growth, utc, utc_growth

    def add(
        self, clock: NodeClock, parent: int, growth: int, gm: int, gm_growth: int, utc: int, utc_growth: int
    ) -> None:
        """Compare one more clock; most are not the widest, so most calls change nothing."""
        if parent > self.parent_2_ns:
            if parent > self.parent_ns:
                self.parent_2, self.parent_2_ns = self.parent, self.parent_ns
                self.parent, self.parent_ns = clock, parent
            else:
                self.parent_2, self.parent_2_ns = clock, parent
        if growth > self.growth_2:
            self.growth, self.growth_2 = max(growth, self.growth), min(growth, self.growth)
        if gm > self.gm_ns:
            self.gm, self.gm_ns = clock, gm
        if gm_growth > self.gm_growth:  # noqa: PLR1730  a call of max() takes longer than all of this
            self.gm_growth = gm_growth
        if utc > self.utc_ns:
            self.utc, self.utc_ns = clock, utc
        if utc_growth > self.utc_growth:  # noqa: PLR1730
            self.utc_growth = utc_growth


def grown_groups(clocks: Sequence[NodeClock], now: Moment) -> tuple[list[Group], list[NodeClock], int]:
    """
    The clocks in their groups, with bounds as of now; the unknown clocks; and how long all others remain known without
    new states.
    """
    groups: dict[str, Group] = {}
    lost: list[NodeClock] = []
    boottime_ns, offset_ns = now.boottime_ns, now.real_minus_boot_ns
    left_ns = MAX_PLAUSIBLE
    for clock in clocks:
        origin, published, lasts, invalid_before, group, parent, growth, gm, gm_growth, utc, utc_growth, silent_from = (
            clock.aging
        )
        if published - offset_ns < origin:  # noqa: PLR1730  a call of min() takes longer than the comparison
            origin = published - offset_ns
        age = boottime_ns - origin if boottime_ns > origin else 0  # a moment before its receipt
        left = lasts - age
        if silent_from - boottime_ns < left:  # noqa: PLR1730
            left = silent_from - boottime_ns
        if left <= 0 or origin < invalid_before:
            lost.append(clock)
            continue
        if left < left_ns:  # noqa: PLR1730
            left_ns = left
        parent += growth * age
        gm += gm_growth * age
        utc += utc_growth * age
        if group in groups:
            groups[group].add(clock, parent, growth, gm, gm_growth, utc, utc_growth)
        else:
            groups[group] = Group(clock, parent, growth, gm, gm_growth, utc, utc_growth)
    return list(groups.values()), lost, left_ns


def _widest(groups: Sequence[Group]) -> Iterator[_Widest]:
    """The widest pair of each group: all nodes against UTC, then each grandmaster's, then each parent clock's."""
    by_gm: dict[str, list[Group]] = {}
    for group in groups:
        by_gm.setdefault(group.gm.gm_group, []).append(group)
    if len(by_gm) > 1:
        yield _against_utc(by_gm.values())
    for siblings in by_gm.values():
        if len(siblings) > 1:
            yield _against_grandmaster(siblings)
    for group in groups:
        if group.parent_2 is not None:
            sum_ns, growth_ppb = group.parent_ns + group.parent_2_ns, group.growth + group.growth_2
            yield _Widest(PARENT, sum_ns, growth_ppb, group.parent, group.parent.node, group.parent_2.node)


def _against_utc(by_gm: Iterable[list[Group]]) -> _Widest:
    """The widest of one grandmaster's nodes, and the widest of another's."""
    each_widest = (max(siblings, key=attrgetter("utc_ns")) for siblings in by_gm)
    one, other = nlargest(2, each_widest, key=attrgetter("utc_ns"))
    growths = nlargest(2, (max(group.utc_growth for group in siblings) for siblings in by_gm))
    return _Widest(UTC, one.utc_ns + other.utc_ns, sum(growths), one.utc, one.utc.node, other.utc.node)


def _against_grandmaster(siblings: Sequence[Group]) -> _Widest:
    """The widest behind one parent clock, and the widest behind another."""
    one, other = nlargest(2, siblings, key=attrgetter("gm_ns"))
    growths = nlargest(2, (group.gm_growth for group in siblings))
    return _Widest(GRANDMASTER, one.gm_ns + other.gm_ns, sum(growths), one.gm, one.gm.node, other.gm.node)


def _unknown_of(clock: NodeClock, why: CodedReason[str] | None, shared: str = "") -> Alignment:
    why = why or NO_BOUND
    return unknown_alignment(f"{shared}{clock.node}: {why.text}", why.code)


def _unknown_pair(widest: _Widest, now: Moment) -> Alignment:
    """Why the widest pair is unbounded: names a node, and whether only the reference that all share is missing."""
    clock, by = widest.first, widest.by
    is_nearer = by < PARENT and clock.why_unbounded(now, by + 1) is None
    shared = f"not all under {_SHARED[by]}; " if is_nearer else ""
    return _unknown_of(clock, clock.why_unbounded(now, by), shared)
