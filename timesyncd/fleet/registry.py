"""The newest state of each node of the fleet, and what follows for all of them at once. Pure: time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from operator import itemgetter

from timesyncd.bound import ClockStatus
from timesyncd.client.preflight_check import NEVER_REPORTED
from timesyncd.clocks import Moment
from timesyncd.fleet.alignment import Alignment, alignment, alignment_and_reference, unknown_alignment
from timesyncd.fleet.node_clock import AgedStatus, NodeClock, aged_statuses, bounded_ns
from timesyncd.fleet.ownership import share_key
from timesyncd.fleet.undecoded import UndecodedState, UndecodedStates
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.messages.fleet import AlignmentState, NodeAlignment
from timesyncd.messages.node import NodeState, RepeatedState, StateReason, Status, status_name
from timesyncd.model.grandmaster import Invalidation

#: At most so many nodes are published with their part in an alignment, and so many in an overview.
MAX_PUBLISHED = 100
MAX_WORST = 10


@dataclass(frozen=True, slots=True)
class FleetOverview:
    """
    The fleet in few numbers: nodes with a clock source, and how many of them are reporting; counts by main status, and
    by grandmaster ("" = none); the nodes with the widest bounds; and the expected nodes that are not reporting.
    """

    known: int
    live: int
    statuses: dict[Status, int]
    grandmasters: dict[str, int]
    worst: tuple[NodeAlignment, ...]
    missing: tuple[str, ...]


class Fleet:
    """
    The nodes by their newest states. `expected` are the configured ones. States are kept as JSON: ten thousand objects
    take 200 MB.

    Where hubs share the fleet, `others` are the states of the nodes of other shares. Questions that name nodes are
    answered of all nodes; all others count this hub's share alone, of which `owns` tells the expected nodes.
    """

    def __init__(self, expected: Collection[str] = ()) -> None:
        self.others = UndecodedStates()
        self.owns: Callable[[str], bool] | None = None
        self._decoded: dict[str, tuple[UndecodedState, NodeClock | None]] = {}
        self._all_expected = tuple(dict.fromkeys(expected))
        self._clocks: dict[str, NodeClock] = {}
        self._states: dict[str, bytes] = {}
        self._invalidations: dict[str, Invalidation] = {}

    def __len__(self) -> int:
        return len(self._clocks)

    def __iter__(self) -> Iterator[NodeClock]:
        return iter(self._clocks.values())

    def with_source(self) -> list[NodeClock]:
        """The clocks of nodes with a clock source: a daemon that is a hub only has none."""
        return [clock for clock in self._clocks.values() if clock.has_source]

    @property
    def expected(self) -> Sequence[str]:
        """The expected nodes of this hub's share."""
        if self.owns is None:
            return self._all_expected
        return [node for node in self._all_expected if self.owns(self.key(node))]

    def absent(self) -> list[str]:
        """The expected nodes that never reported."""
        return [node for node in self.expected if node not in self._clocks]

    def names(self) -> list[str]:
        return sorted({*self._clocks, *(node for node, _ in self.others)})

    def key(self, node: str) -> str:
        """What the node belongs to, as last reported."""
        if (clock := self._clocks.get(node)) is not None:
            return share_key(clock.topology, node)
        other = self.others.get(node)
        return node if other is None else other.key

    def clock(self, node: str) -> NodeClock | None:
        return self._clocks.get(node) or self._other_clock(node)

    def _other_clock(self, node: str) -> NodeClock | None:
        """Of a node of another share; it is decoded once."""
        other = self.others.get(node)
        if other is None:
            return None
        decoded = self._decoded.get(node)
        if decoded is None or decoded[0] is not other:
            state = other.decode(node)
            clock = None if state is None else NodeClock.of(state, other.received_ns, other.live)
            decoded = self._decoded[node] = other, clock
        clock = decoded[1]
        if clock is None:
            return None
        return clock.invalidated(self._invalidations.get(clock.grandmaster_identity or ""))

    def state(self, node: str) -> NodeState | None:
        """The state as received, parsed from JSON each time, which takes 0.1 ms."""
        kept = self._states.get(node)
        if kept is not None:
            return NodeState.model_validate_json(kept)
        other = self.others.get(node)
        return None if other is None else other.decode(node)

    def release(self) -> list[str]:
        """The nodes that this hub no longer owns become others. Returns their names."""
        owns = self.owns or (lambda _key: True)
        released = [node for node, clock in self._clocks.items() if not owns(share_key(clock.topology, node))]
        for node in released:
            clock = self._clocks[node]
            self.accept_other(node, self._states[node], clock.received_boottime_ns, clock.live)
        return released

    def accept_other(self, node: str, json: bytes, received_boottime_ns: int, live: bool) -> bool:
        """The state of a node of another share, undecoded. Whether the node was of this hub's share until now."""
        self.others.put(node, json, received_boottime_ns, live)
        was_ours = node in self._clocks
        self.forget(node)
        return was_ours

    def gained(self, most: int) -> list[tuple[NodeState, UndecodedState]]:
        """Up to so many of the others that this hub owns now; they are others no longer, and to be accepted."""
        owns = self.owns or (lambda _key: True)
        names = list(islice((node for node, other in self.others if owns(other.key)), most))
        found = []
        for node in names:
            self._decoded.pop(node, None)
            other = self.others.remove(node)
            state = None if other is None else other.decode(node)
            if other is not None and state is not None:
                found.append((state, other))
        return found

    def accept(self, state: NodeState, received_boottime_ns: int, live: bool, json: bytes | None = None) -> bool:
        """
        Whether the state is newer: a late or repeated message changes nothing. `live` False: a retained copy. `json` is
        the state as it was received, where it was.
        """
        known = self._clocks.get(state.node)
        if known is not None and not _replaces(state, received_boottime_ns, live, known):
            return False
        self.others.remove(state.node)
        invalidation = self._invalidations.get(state.grandmaster_identity or "")
        self._clocks[state.node] = NodeClock.of(state, received_boottime_ns, live).invalidated(invalidation)
        self._states[state.node] = json or state.model_dump_json().encode()
        return True

    def accept_repeated(self, state: RepeatedState, received_boottime_ns: int, json: bytes) -> bool:
        """The same for a live state that repeats the last one; False: that one is not known, or not live."""
        known = self._clocks.get(state.node)
        if known is None or not known.live or (state.incarnation, state.sequence) <= known.order:
            return False
        invalidation = self._invalidations.get(known.grandmaster_identity or "")
        self._clocks[state.node] = known.repeated(state, received_boottime_ns).invalidated(invalidation)
        self._states[state.node] = json
        return True

    def forget(self, node: str) -> None:
        """Remove a node that left the fleet."""
        self._clocks.pop(node, None)
        self._states.pop(node, None)

    def compact(self) -> None:
        """After many nodes were removed: a dict keeps the room of its most entries."""
        self._clocks, self._states = dict(self._clocks), dict(self._states)

    def drop(self, node: str) -> None:
        """Remove a node, of whichever share: it gave way to others."""
        self.forget(node)
        self.others.remove(node)
        self._decoded.pop(node, None)

    def forget_silent(self, now_ns: int, after_ns: int) -> list[str]:
        """
        Remove the nodes that did not report for `after_ns`, except expected ones; returns their names.

        Invalidations as old are removed, too, where no node follows that grandmaster.
        """
        gone = [c.node for c in self if now_ns - c.received_boottime_ns > after_ns and now_ns >= c.silent_at_ns]
        left = sorted(set(gone).difference(self._all_expected))
        others = self.others.forget_silent(now_ns, after_ns)
        self._decoded = {node: each for node, each in self._decoded.items() if each[0] is self.others.get(node)}
        for node in left:
            self.forget(node)
        if any(now_ns - invalidation.before_ns > after_ns for invalidation in self._invalidations.values()):
            followed = {clock.grandmaster_identity for clock in self}
            self._invalidations = {
                identity: invalidation
                for identity, invalidation in self._invalidations.items()
                if identity in followed or now_ns - invalidation.before_ns <= after_ns
            }
        return left + others

    def invalidate_before(self, identities: Collection[str], invalidation: Invalidation) -> None:
        """
        Invalidate earlier samples of the followers of a grandmaster that announces these identities.

        An event that is reported again keeps its first date.
        """
        affected = {
            identity for identity in identities if self._is_newer(invalidation, self._invalidations.get(identity))
        }
        self._invalidations |= dict.fromkeys(affected, invalidation)
        for node, clock in self._clocks.items() if affected else ():
            if clock.grandmaster_identity in affected:
                self._clocks[node] = clock.invalidated(invalidation)

    @staticmethod
    def _is_newer(invalidation: Invalidation, known: Invalidation | None) -> bool:
        return known is None or (known.event != invalidation.event and known.before_ns < invalidation.before_ns)

    def alignment(self, names: Iterable[str] | None, now: Moment) -> Alignment:
        """
        The alignment of these nodes; None: of all expected and known nodes with a clock source.

        A node that is silent or never reported makes it unknown.
        """
        clocks, absent = self._named(names)
        return self._unknown_without(absent[0]) if absent else alignment(clocks, now)

    def alignment_state(self, names: Iterable[str] | None, now: Moment) -> AlignmentState:
        """The same as a message, with each node's part, the widest first."""
        clocks, absent = self._named(names)
        found, reference = alignment_and_reference(clocks, now)
        if absent:
            found = self._unknown_without(absent[0])
        parts = [_never_reported(node) for node in absent]
        worst = nlargest(MAX_PUBLISHED, aged_statuses(clocks, now, reference), key=_BY_ERROR)
        parts += [_part(each, now, reference) for each in worst]
        return AlignmentState.model_validate(
            found.fields() | {"published_realtime_ns": now.realtime_ns, "nodes": parts[:MAX_PUBLISHED]}
        )

    def reporting(self, now: Moment) -> tuple[int, int, list[str]]:
        """The nodes with a clock source, how many of them are reporting, and the expected nodes that are not."""
        clocks, from_ns = self.with_source(), now.boottime_ns
        live = sum([clock.live and from_ns < clock.aging[11] for clock in clocks])
        return len(clocks), live, [node for node in self.expected if self._is_missing(node, now)]

    def overview(self, now: Moment) -> FleetOverview:
        known, live, missing = self.reporting(now)
        clocks = self.with_source()
        aged = aged_statuses(clocks, now)
        statuses = [status for status, _, _ in aged]
        return FleetOverview(
            known=known,
            live=live,
            statuses={status_name(each): count for each in ClockStatus if (count := statuses.count(each))},
            grandmasters=dict(Counter(clock.grandmaster for clock in clocks)),
            worst=tuple(worst_nodes(aged, now)),
            missing=tuple(missing),
        )

    def _is_missing(self, node: str, now: Moment) -> bool:
        clock = self._clocks.get(node)
        return clock is None or clock.is_silent(now)

    def _named(self, names: Iterable[str] | None) -> tuple[list[NodeClock], list[str]]:
        """The clocks of these nodes, each once, and the nodes that never reported."""
        clocks = self._clocks
        if names is None:
            return self.with_source(), self.absent()
        wanted = {name: clocks.get(name) or self._other_clock(name) for name in dict.fromkeys(names)}
        return [each for each in wanted.values() if each is not None], [
            name for name, each in wanted.items() if each is None
        ]

    def _unknown_without(self, node: str) -> Alignment:
        expected = "expected (hub.nodes), but" if node in self._all_expected else "the node"
        return unknown_alignment(f"{node}: {expected} {NEVER_REPORTED}", StateReason.NODE_NEVER_REPORTED)


def _replaces(state: NodeState, received_boottime_ns: int, live: bool, known: NodeClock) -> bool:
    """Whether the state is newer. A node that was silent may continue with a lower incarnation: its store was lost."""
    order = (state.incarnation, state.sequence)
    if order == known.order:
        return live and not known.live
    return order > known.order or (live and received_boottime_ns >= known.silent_at_ns)


#: The widest first; a clock that is unknown is wider than any other.
_BY_ERROR = itemgetter(1)
_BOUNDED: CodedReason[str] = CodedReason("ok", "")


def worst_nodes(aged: Iterable[AgedStatus], now: Moment) -> list[NodeAlignment]:
    """The nodes with the widest bounds against their main references, the widest one first."""
    return [_part(each, now, each[2].main_reference) for each in nlargest(MAX_WORST, aged, key=_BY_ERROR)]


def _part(aged: AgedStatus, now: Moment, reference: int) -> NodeAlignment:
    status, sum_ns, clock = aged
    bound_ns = bounded_ns(sum_ns)
    why = clock.why_unbounded(now, reference) if bound_ns is None else None
    why = why or _BOUNDED
    return NodeAlignment(
        node=clock.node, status=status_name(status), bound_ns=bound_ns, reason=why.text, reason_code=why.code
    )


def _never_reported(node: str) -> NodeAlignment:
    code = StateReason.NODE_NEVER_REPORTED
    return NodeAlignment(node=node, status="UNKNOWN", bound_ns=None, reason=NEVER_REPORTED, reason_code=code)
