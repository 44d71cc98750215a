"""What the nodes of a fleet said last, in numbers that answer for all of them at once. Pure: time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter

from timesyncd.bound import ClockStatus
from timesyncd.clocks import Moment
from timesyncd.fleet.alignment import Alignment, alignment, alignment_and_reference, unknown_alignment
from timesyncd.fleet.node_clock import AgedStatus, NodeClock, aged_statuses, bounded_ns
from timesyncd.messages.fleet import AlignmentState, NodeAlignment
from timesyncd.messages.node import NodeState, StateReason, Status, status_name
from timesyncd.model.grandmaster import Invalidation

#: So many nodes are told of with their part in an alignment, and so many in a summary.
MAX_PUBLISHED = 100
MAX_WORST = 10

NEVER_REPORTED = "never sent its state to this hub"


@dataclass(frozen=True, slots=True)
class FleetOverview:
    """
    The fleet in few numbers: how many nodes with a clock source are known, and how many of them were heard lately; by the status that is told
    first; by the grandmaster that they follow ("" = none); the worst few; and of the expected ones those that were not heard lately, if
    ever.
    """

    known: int
    live: int
    statuses: dict[Status, int]
    grandmasters: dict[str, int]
    worst: tuple[NodeAlignment, ...]
    missing: tuple[str, ...]


class Fleet:
    """`expected` are the nodes that there should be. States are kept as JSON: as objects ten thousand take 200 MB."""

    def __init__(self, expected: Collection[str] = ()) -> None:
        self._expected = tuple(dict.fromkeys(expected))
        self._clocks: dict[str, NodeClock] = {}
        self._states: dict[str, str] = {}
        self._voids: dict[str, Invalidation] = {}

    def __len__(self) -> int:
        return len(self._clocks)

    def __iter__(self) -> Iterator[NodeClock]:
        return iter(self._clocks.values())

    def watched(self) -> list[NodeClock]:
        """Those with a clock source: a mere hub has no clock to tell of."""
        return [clock for clock in self._clocks.values() if clock.is_watched]

    def names(self) -> list[str]:
        return sorted(self._clocks)

    def clock(self, node: str) -> NodeClock | None:
        return self._clocks.get(node)

    def state(self, node: str) -> NodeState | None:
        """As the node said it; it was then read anew from JSON, which takes 0.1 ms."""
        kept = self._states.get(node)
        return None if kept is None else NodeState.model_validate_json(kept)

    def accept(self, state: NodeState, received_boottime_ns: int, live: bool) -> bool:
        """True when it is news: a late or repeated message changes nothing. `live` False: a retained copy."""
        known = self._clocks.get(state.node)
        if known is not None and not _replaces(state, received_boottime_ns, live, known):
            return False
        void = self._voids.get(state.grandmaster_identity or "")
        self._clocks[state.node] = NodeClock.of(state, received_boottime_ns, live).voided(void)
        self._states[state.node] = state.model_dump_json()
        return True

    def forget(self, node: str) -> None:
        """It left the fleet."""
        self._clocks.pop(node, None)
        self._states.pop(node, None)

    def forget_silent(self, now_ns: int, after_ns: int) -> list[str]:
        """
        Those that nothing was heard of for so long have left, but for expected ones; returns who. So has a grandmaster's event of so long
        ago, where nobody follows it.
        """
        gone = [c.node for c in self if now_ns - c.received_boottime_ns > after_ns and now_ns >= c.silent_at_ns]
        left = sorted(set(gone).difference(self._expected))
        for node in left:
            self.forget(node)
        if any(now_ns - void.before_ns > after_ns for void in self._voids.values()):
            followed = {clock.grandmaster_identity for clock in self}
            self._voids = {
                identity: void
                for identity, void in self._voids.items()
                if identity in followed or now_ns - void.before_ns <= after_ns
            }
        return left

    def void(self, identities: Collection[str], void: Invalidation) -> None:
        """
        A grandmaster that shows these identities did something after which nothing counts that its followers measured before
        (CLOCK_BOOTTIME). An event that is told again keeps its first date.
        """
        news = {identity for identity in identities if self._is_news(void, self._voids.get(identity))}
        self._voids |= dict.fromkeys(news, void)
        for node, clock in self._clocks.items() if news else ():
            if clock.grandmaster_identity in news:
                self._clocks[node] = clock.voided(void)

    @staticmethod
    def _is_news(void: Invalidation, known: Invalidation | None) -> bool:
        return known is None or (known.event != void.event and known.before_ns < void.before_ns)

    def alignment(self, names: Iterable[str] | None, now: Moment) -> Alignment:
        """
        Of these nodes; None: of all that are expected or were heard of, but those without a clock source. One that is silent, or was never
        heard of, leaves it unknown.
        """
        clocks, unheard = self._named(names)
        return self._unknown_without(unheard[0]) if unheard else alignment(clocks, now)

    def alignment_state(self, names: Iterable[str] | None, now: Moment) -> AlignmentState:
        """The same as a message, with each node's part, the worst first."""
        clocks, unheard = self._named(names)
        found, reference = alignment_and_reference(clocks, now)
        if unheard:
            found = self._unknown_without(unheard[0])
        parts = [_never_reported(node) for node in unheard]
        worst = nlargest(MAX_PUBLISHED, aged_statuses(clocks, now, reference), key=_HOW_BAD)
        parts += [_part(each, now, reference) for each in worst]
        return AlignmentState.model_validate(
            found.figures() | {"published_realtime_ns": now.realtime_ns, "nodes": parts[:MAX_PUBLISHED]}
        )

    def summary(self, now: Moment) -> FleetOverview:
        watched = self.watched()
        told = aged_statuses(watched, now)
        statuses = [status for status, _, _ in told]
        worst = nlargest(MAX_WORST, told, key=_HOW_BAD)
        return FleetOverview(
            known=len(watched),
            live=sum(not clock.is_silent(now) for clock in watched),
            statuses={status_name(each): count for each in ClockStatus if (count := statuses.count(each))},
            grandmasters=dict(Counter(clock.grandmaster for clock in watched)),
            worst=tuple(_part(each, now, each[2].main_reference) for each in worst),
            missing=tuple(node for node in self._expected if self._is_missing(node, now)),
        )

    def _is_missing(self, node: str, now: Moment) -> bool:
        clock = self._clocks.get(node)
        return clock is None or clock.is_silent(now)

    def _named(self, names: Iterable[str] | None) -> tuple[list[NodeClock], list[str]]:
        """Each once, and those that were never heard of."""
        clocks = self._clocks
        if names is None:
            return self.watched(), [name for name in self._expected if name not in clocks]
        wanted = dict.fromkeys(names)
        return [clocks[name] for name in wanted if name in clocks], [name for name in wanted if name not in clocks]

    def _unknown_without(self, node: str) -> Alignment:
        expected = "it is expected (hub.nodes) and" if node in self._expected else "it"
        return unknown_alignment(f"{node}: {expected} {NEVER_REPORTED}", StateReason.NODE_NEVER_REPORTED)


def _replaces(state: NodeState, received_boottime_ns: int, live: bool, known: NodeClock) -> bool:
    """A node that was silent for a while may begin with a lower incarnation: its store was lost."""
    order = (state.incarnation, state.sequence)
    if order == known.order:
        return live and not known.live
    return order > known.order or (live and received_boottime_ns >= known.silent_at_ns)


#: The wider, the worse; and who knows nothing at all.
_HOW_BAD = itemgetter(1)


def _part(standing: AgedStatus, now: Moment, reference: int) -> NodeAlignment:
    status, sum_ns, clock = standing
    bound_ns = bounded_ns(sum_ns)
    why = clock.why(now, reference) if bound_ns is None else None
    code, reason = why or ("ok", "")
    return NodeAlignment(
        node=clock.node, status=status_name(status), bound_ns=bound_ns, reason=reason, reason_code=code
    )


def _never_reported(node: str) -> NodeAlignment:
    code = StateReason.NODE_NEVER_REPORTED
    return NodeAlignment(node=node, status="UNKNOWN", bound_ns=None, reason=NEVER_REPORTED, reason_code=code)
