"""How far the clocks of a set of nodes can be apart, from what each node says of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from timesyncd.bound import Bound, ClockStatus, status_at
from timesyncd.messages import BoundMessage, NodeState

T = TypeVar("T")

USABLE = (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER)

#: Against what a group is judged, from the outermost: the indices of a clock's reaches.
_BY = ("UTC", "their grandmaster", "their parent clock")
_SHARED = ("one grandmaster", "one parent clock")
DEEPEST = len(_BY) - 1


@dataclass(frozen=True, slots=True)
class Now:
    """The hub's two clocks at one moment; `realtime_ns` None = the hub cannot trust its own CLOCK_REALTIME."""

    boottime_ns: int
    realtime_ns: int | None


@dataclass(frozen=True, slots=True)
class NodeClock:
    """A node's newest state as the hub has it. `live` False: only a retained copy came, which is *last known*."""

    state: NodeState
    received_boottime_ns: int
    live: bool

    def age_ns(self, now: Now) -> int | None:
        """
        The age of the node's bound. Time on the way is seen on either clock, and the larger one counts: too old a bound is
        too wide, never wrong.
        """
        if self.state.age_ns is None:
            return None
        held_ns = now.boottime_ns - self.received_boottime_ns
        if now.realtime_ns is not None:
            held_ns = max(held_ns, now.realtime_ns - self.state.published_realtime_ns)
        return self.state.age_ns + max(0, held_ns)

    def status(self, written: str, now: Now) -> ClockStatus:
        """What was `written`, aged by the one status table; UNKNOWN until a live message came."""
        age_ns = self.age_ns(now)
        if not self.live or age_ns is None:
            return ClockStatus.UNKNOWN
        return status_at(ClockStatus[written], age_ns, self.state.holdover_after_ns, self.state.void_after_ns)

    def usable(self, now: Now) -> bool:
        """Whether its clock is known against its grandmaster."""
        return self.status(self.state.status, now) in USABLE


@dataclass(frozen=True, slots=True)
class Alignment:
    """
    No two of the nodes' clocks differ by more than `alignment_ns` at `now`, nor later by more than that grown by
    `growth_ppb`. `pair` are the two that may be the furthest apart. None = unknown, for `reason`.
    """

    alignment_ns: int | None
    growth_ppb: int | None
    pair: tuple[str, str] | None
    reason: str

    def at(self, later_ns: int) -> int | None:
        return Bound(self.alignment_ns, self.growth_ppb or 0).at(later_ns)


ONE_CLOCK = Alignment(0, 0, None, "one clock")


def unknown(reason: str) -> Alignment:
    return Alignment(None, None, None, reason)


@dataclass(frozen=True, slots=True)
class _Reach:
    """
    How far one clock may be from a reference; `key` names the reference that it shares with others of an equal key. An
    unbounded one says why.
    """

    key: Hashable
    bound_ns: int | None
    growth_ppb: int
    why: str


@dataclass(frozen=True, slots=True)
class _Clock:
    """A node's clock, and its reach to UTC, to its grandmaster, to its parent clock."""

    node: str
    reaches: tuple[_Reach, _Reach, _Reach]


def alignment(states: Sequence[NodeClock], now: Now) -> Alignment:
    """
    The largest possible disagreement between any two of the nodes, each given once; a node by itself is one clock.

    Two clocks behind one parent clock are apart by at most the sum of their parent bounds; under one grandmaster, of their gm bounds; else of their utc bounds. A pair is judged in the innermost group that holds
    both, where the widest of each of two subgroups decide: no pair is visited, so that a thousand nodes cost a sort.
    """
    clocks = [_Clock(node.state.node, _reaches(node, now)) for node in states]
    found = list(_apart(clocks, 0))
    if not found:
        return ONE_CLOCK
    unknowns = [one for one in found if one.alignment_ns is None]
    if unknowns:
        return unknowns[0]
    widest = max(found, key=lambda one: one.alignment_ns or 0)
    return replace(widest, growth_ppb=max(one.growth_ppb or 0 for one in found))


def _apart(clocks: Sequence[_Clock], depth: int) -> Iterator[Alignment]:
    """The widest pair of each group: all nodes against UTC, then each grandmaster's, then each parent clock's."""
    if len(clocks) < 2:
        return
    if depth == DEEPEST:
        yield _widest([[clock] for clock in clocks], depth)
        return
    subgroups = _grouped(clocks, lambda clock: clock.reaches[depth + 1].key)
    if len(subgroups) > 1:
        yield _widest(subgroups, depth)
    for subgroup in subgroups:
        yield from _apart(subgroup, depth + 1)


def _widest(subgroups: Sequence[Sequence[_Clock]], depth: int) -> Alignment:
    """The widest pair whose two clocks lie in different subgroups; every clock of a group lies in such a pair."""
    unbounded = [clock for group in subgroups for clock in group if clock.reaches[depth].bound_ns is None]
    if unbounded:
        return unknown(_why(unbounded, depth))
    bounds = sorted((max((clock.reaches[depth].bound_ns or 0, clock.node) for clock in group)) for group in subgroups)
    growths = sorted(max(clock.reaches[depth].growth_ppb for clock in group) for group in subgroups)
    (one_ns, one), (other_ns, other) = bounds[-1], bounds[-2]
    pair = (min(one, other), max(one, other))
    return Alignment(one_ns + other_ns, sum(growths[-2:]), pair, f"{pair[0]} and {pair[1]}, by {_BY[depth]}")


def _why(unbounded: Sequence[_Clock], depth: int) -> str:
    """Names one node: one that knows nothing at all before one that only lacks the reference that all share."""
    clock = max(unbounded, key=lambda clock: [reach.bound_ns for reach in clock.reaches].count(None))
    shared = (
        "" if depth == DEEPEST or clock.reaches[depth + 1].bound_ns is None else f"not all under {_SHARED[depth]}; "
    )
    return f"{shared}{clock.node}: {clock.reaches[depth].why}"


def _reaches(node: NodeClock, now: Now) -> tuple[_Reach, _Reach, _Reach]:
    """The reach to each reference. A reference without a known name is shared with nobody: the clock's own is its key."""
    state, own = node.state, node.state.node
    why = _why_unknown(node, now)
    removed = state.utc_seconds_removed
    gm = None if why or removed is None or state.grandmaster_identity is None else (state.grandmaster_identity, removed)
    utc_usable = node.status(state.utc_status, now) in USABLE
    utc_why = why or ("" if utc_usable else (state.utc.reason if state.utc else "") or "not known against UTC")
    return (
        _reach("UTC", state.utc, utc_why, node, now),
        _reach(gm or own, state.gm, why, node, now),
        _reach(state.parent_identity or own, state.parent, why, node, now),
    )


def _why_unknown(node: NodeClock, now: Now) -> str:
    """Empty while the node's clock is known against its grandmaster."""
    if not node.live:
        return "last known only: nothing live since the hub started"
    if node.usable(now):
        return ""
    if node.state.status in ("UNKNOWN", "DISRUPTED"):
        return node.state.reason or f"its clock is {node.state.status}"
    return "its last sample is too old"


def _reach(key: Hashable, bound: BoundMessage | None, why: str, node: NodeClock, now: Now) -> _Reach:
    age_ns = node.age_ns(now)
    if why or bound is None or bound.bound_ns is None or age_ns is None:
        return _Reach(key, None, 0, why or (bound.reason if bound else "") or "no bound")
    return _Reach(key, Bound(bound.bound_ns, bound.growth_ppb).at(age_ns), bound.growth_ppb, "")


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
