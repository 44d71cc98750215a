"""
Parts from which any hub computes the numbers of the whole fleet: each hub publishes the part of its share, and parts
merge in any order and grouping. Pure: time is an argument.

Bounds are whole ns, rounded up, so the merged alignment is at most 2 ns wider than that of the clocks themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import nlargest
from typing import Any, TypeVar

from timesyncd.bound import Reason
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.alignment import ONE_CLOCK, Alignment, Group, grown_groups, unknown_alignment
from timesyncd.fleet.node_clock import GRANDMASTER, MAX_PLAUSIBLE, PARENT, UNBOUNDED, UTC, NodeClock, rounded_up_ns
from timesyncd.fleet.registry import MAX_WORST, Fleet
from timesyncd.messages.fleet import FleetShare, NodeAlignment, ShareBound, ShareGroup
from timesyncd.messages.node import OK, StateReason, Status

#: A share without a new message for so long is unavailable.
EXPIRES_AFTER_NS = 5 * NS_PER_S

#: At most so many groups and missing nodes are published.
MAX_GROUPS = 2_000
MAX_MISSING = 100


@dataclass(frozen=True, slots=True)
class ReceivedShare:
    """A hub's part, and the CLOCK_BOOTTIME at which it was received."""

    share: FleetShare
    received_ns: int

    def is_current(self, members: Sequence[str], now_ns: int) -> bool:
        """Whether it was counted while the same hubs shared the fleet, so that no node counts twice or not at all."""
        return tuple(self.share.members) == tuple(members) and now_ns - self.received_ns < EXPIRES_AFTER_NS

    def aged(self, now: Moment) -> FleetShare:
        """With bounds as of now: each group grows by its largest growth, so no bound becomes too narrow."""
        age_ns = max(0, now.boottime_ns - self.received_ns, now.realtime_ns - self.share.published_realtime_ns)
        groups = [_aged_group(group, age_ns) for group in self.share.groups]
        holds_for_ns = max(0, self.share.holds_for_ns - age_ns)
        return self.share.model_copy(update={"groups": groups, "holds_for_ns": holds_for_ns})


def share_fields(fleet: Fleet, now: Moment) -> dict[str, Any]:
    """The fields of a FleetShare that count the clocks of this hub's share."""
    overview = fleet.overview(now)
    clocks = fleet.with_source()
    groups, lost, holds_for_ns = grown_groups(clocks, now)
    unknown = _unknown(lost[0], now) if lost else _never_reported(fleet)
    return {
        "nodes": overview.known,
        "nodes_live": overview.live,
        "statuses": overview.statuses,
        "grandmasters": overview.grandmasters,
        "worst": list(overview.worst),
        "missing": list(overview.missing[:MAX_MISSING]),
        "unknown": unknown,
        "holds_for_ns": max(0, holds_for_ns),
        "groups": [_share_group(group, now) for group in groups[:MAX_GROUPS]],
        "groups_left_out": max(0, len(groups) - MAX_GROUPS),
    }


def _unknown(clock: NodeClock, now: Moment) -> ShareBound:
    why = clock.why_unbounded(now)
    text, code = (why.text, why.code) if why is not None else ("no bound", StateReason.NO_BOUND)
    return ShareBound(node=clock.node, bound_ns=None, reason=text, reason_code=code)


def _never_reported(fleet: Fleet) -> ShareBound | None:
    absent = fleet.absent()
    reason, code = "expected (hub.nodes), but it never reported", StateReason.NODE_NEVER_REPORTED
    return ShareBound(node=absent[0], bound_ns=None, reason=reason, reason_code=code) if absent else None


def _share_group(group: Group, now: Moment) -> ShareGroup:
    parent = [_bound(group.parent, group.parent_ns, PARENT, now)]
    growths = [group.growth]
    if group.parent_2 is not None:
        parent.append(_bound(group.parent_2, group.parent_2_ns, PARENT, now))
        growths.append(group.growth_2)
    return ShareGroup(
        group=group.parent.aging[4],
        gm_group=group.gm.gm_group,
        parent=parent,
        parent_growths=growths,
        gm=_bound(group.gm, group.gm_ns, GRANDMASTER, now),
        gm_growth=group.gm_growth,
        utc=_bound(group.utc, group.utc_ns, UTC, now),
        utc_growth=group.utc_growth,
    )


def _bound(clock: NodeClock, sum_ns: int, by: int, now: Moment) -> ShareBound:
    if sum_ns < min(UNBOUNDED, MAX_PLAUSIBLE * NS_PER_S):
        return ShareBound(node=clock.node, bound_ns=rounded_up_ns(sum_ns))
    why = clock.why_unbounded(now, by)
    text, code = (why.text, why.code) if why is not None else (Reason.IMPLAUSIBLE.text, Reason.IMPLAUSIBLE.code)
    return ShareBound(node=clock.node, bound_ns=None, reason=text, reason_code=code)


def _aged_group(group: ShareGroup, age_ns: int) -> ShareGroup:
    changes: dict[str, object] = {
        "parent": [_aged_bound(each, group.parent_growths[0], age_ns) for each in group.parent],
        "gm": _aged_bound(group.gm, group.gm_growth, age_ns),
        "utc": _aged_bound(group.utc, group.utc_growth, age_ns),
    }
    return group.model_copy(update=changes)


def _aged_bound(bound: ShareBound, growth_ppb: int, age_ns: int) -> ShareBound:
    if bound.bound_ns is None:
        return bound
    return bound.model_copy(update={"bound_ns": bound.bound_ns + rounded_up_ns(growth_ppb * age_ns)})


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """
    Several shares, merged: `groups` by their names, `unknown` the first node by name whose clock is unknown. The empty
    one, of no hub, changes nothing that it is merged with.
    """

    nodes: int = 0
    nodes_live: int = 0
    statuses: Mapping[Status, int] | None = None
    grandmasters: Mapping[str, int] | None = None
    worst: tuple[NodeAlignment, ...] = ()
    missing: tuple[str, ...] = ()
    unknown: ShareBound | None = None
    holds_for_ns: int = MAX_PLAUSIBLE
    groups: Mapping[str, ShareGroup] | None = None
    groups_left_out: int = 0

    @classmethod
    def of(cls, share: FleetShare) -> FleetTotals:
        return cls(
            nodes=share.nodes,
            nodes_live=share.nodes_live,
            statuses=share.statuses,
            grandmasters=share.grandmasters,
            worst=tuple(_widest(share.worst, MAX_WORST)),
            missing=tuple(sorted(share.missing)[:MAX_MISSING]),
            unknown=share.unknown,
            holds_for_ns=share.holds_for_ns,
            groups={group.group: group for group in share.groups},
            groups_left_out=share.groups_left_out,
        )

    def __add__(self, other: FleetTotals) -> FleetTotals:
        groups = dict(self.groups or {})
        for name, group in (other.groups or {}).items():
            groups[name] = _merged_group(groups[name], group) if name in groups else group
        unknown = [each for each in (self.unknown, other.unknown) if each is not None]
        return FleetTotals(
            nodes=self.nodes + other.nodes,
            nodes_live=self.nodes_live + other.nodes_live,
            statuses=Counter(self.statuses or {}) + Counter(other.statuses or {}),
            grandmasters=Counter(self.grandmasters or {}) + Counter(other.grandmasters or {}),
            worst=tuple(_widest((*self.worst, *other.worst), MAX_WORST)),
            missing=tuple(sorted((*self.missing, *other.missing))[:MAX_MISSING]),
            unknown=min(unknown, key=lambda each: each.node, default=None),
            holds_for_ns=min(self.holds_for_ns, other.holds_for_ns),
            groups=groups,
            groups_left_out=self.groups_left_out + other.groups_left_out,
        )

    def alignment(self) -> Alignment:
        """The largest possible difference between any two clocks of the shares, as of the moment of their bounds."""
        if self.unknown is not None:
            return unknown_alignment(f"{self.unknown.node}: {self.unknown.reason}", self.unknown.reason_code)
        if self.groups_left_out:
            text = f"{self.groups_left_out} groups of clocks behind one parent clock are left out"
            return unknown_alignment(text, StateReason.SHARE_UNAVAILABLE)
        if not self.groups:
            return unknown_alignment("no node is reporting", StateReason.NO_NODE_REPORTS)
        if self.holds_for_ns <= 0:
            return unknown_alignment("the last sample of a node is too old", Reason.EXPIRED.code)
        if self.nodes == 1:
            return ONE_CLOCK
        return _alignment(list(self.groups.values()), self.holds_for_ns)


def totals(shares: Iterable[FleetShare]) -> FleetTotals:
    return reduce(FleetTotals.__add__, map(FleetTotals.of, shares), FleetTotals())


Bounded = TypeVar("Bounded", NodeAlignment, ShareBound)


def _widest(bounds: Iterable[Bounded], count: int) -> list[Bounded]:
    """The widest first, and those without a bound before them; of equal ones the first by name."""
    return sorted(bounds, key=_narrowness)[:count]


def _narrowness(bound: NodeAlignment | ShareBound) -> tuple[bool, int, str]:
    return bound.bound_ns is not None, -(bound.bound_ns or 0), bound.node


def _merged_group(one: ShareGroup, other: ShareGroup) -> ShareGroup:
    return ShareGroup(
        group=one.group,
        gm_group=one.gm_group,
        parent=_widest((*one.parent, *other.parent), 2),
        parent_growths=nlargest(2, (*one.parent_growths, *other.parent_growths)),
        gm=_widest((one.gm, other.gm), 1)[0],
        gm_growth=max(one.gm_growth, other.gm_growth),
        utc=_widest((one.utc, other.utc), 1)[0],
        utc_growth=max(one.utc_growth, other.utc_growth),
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two clocks of a group that may be the furthest apart, by a reference, and the sum of their growths."""

    by: str
    one: ShareBound
    other: ShareBound
    growth_ppb: int

    @property
    def sum_ns(self) -> int | None:
        """None: one of them has no bound."""
        one_ns, other_ns = self.one.bound_ns, self.other.bound_ns
        return None if one_ns is None or other_ns is None else one_ns + other_ns


def _alignment(groups: Sequence[ShareGroup], holds_for_ns: int) -> Alignment:
    found = _pairs(groups)
    unbounded = next((each for each in found if each.sum_ns is None), None)
    if unbounded is not None:
        why = min(unbounded.one, unbounded.other, key=_narrowness)
        return unknown_alignment(f"{why.node}: {why.reason}", why.reason_code)
    widest = max(found, key=lambda each: each.sum_ns or 0)
    first, second = sorted((widest.one.node, widest.other.node))
    growth_ppb = max(each.growth_ppb for each in found)
    if max(widest.sum_ns or 0, growth_ppb) > MAX_PLAUSIBLE:
        return unknown_alignment(f"{first} and {second}: more than eleven days apart", StateReason.TOO_FAR_APART)
    reason = f"{first} and {second}, by {widest.by}"
    return Alignment(widest.sum_ns, growth_ppb, (first, second), reason, holds_for_ns, OK)


def _pairs(groups: Sequence[ShareGroup]) -> list[_Pair]:
    """As in `alignment`: all clocks against UTC, then each grandmaster's, then each parent clock's."""
    by_gm: dict[str, list[ShareGroup]] = {}
    for group in groups:
        by_gm.setdefault(group.gm_group, []).append(group)
    found = []
    if len(by_gm) > 1:
        one, other = _widest((_widest((each.utc for each in siblings), 1)[0] for siblings in by_gm.values()), 2)
        growths = nlargest(2, (max(each.utc_growth for each in siblings) for siblings in by_gm.values()))
        found.append(_Pair("UTC", one, other, sum(growths)))
    for siblings in by_gm.values():
        if len(siblings) > 1:
            one, other = _widest((each.gm for each in siblings), 2)
            growths = nlargest(2, (each.gm_growth for each in siblings))
            found.append(_Pair("their grandmaster", one, other, sum(growths)))
    for group in groups:
        if len(group.parent) > 1:
            found.append(_Pair("their parent clock", group.parent[0], group.parent[1], sum(group.parent_growths)))
    return found
