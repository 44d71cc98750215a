"""One node's clock at the hub: its newest state as numbers, aged to a later moment. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from sys import intern
from typing import NamedTuple

from timesyncd.bound import ClockStatus, Reason, status_at
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.messages.node import BoundMessage, NodeState, RepeatedState, StateReason
from timesyncd.model.grandmaster import Invalidation
from timesyncd.units import span_text

USABLE = (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER)

#: The references of a node's bounds, the outermost first.
UTC, GRANDMASTER, PARENT = range(3)


LAST_KNOWN: CodedReason[str] = CodedReason(
    StateReason.LAST_KNOWN, "last known state only: the node has not reported since the hub started"
)
NO_BOUND: CodedReason[str] = CodedReason(StateReason.NO_BOUND, "no bound")

#: Represents an unbounded error: more than any bound in 1e-9 ns.
UNBOUNDED = 1 << 130

#: The same for a clock without any usable state: more than a clock can be that is unbounded against all three
#: references.
UNKNOWN = 4 * UNBOUNDED

#: In ns and in ppb: eleven days, and as much a second. A larger value is a fault, not a clock's error.
MAX_PLAUSIBLE = 10**15

#: The same in 1e-9 ns: a larger sum is no bound.
MOST_BOUNDED = MAX_PLAUSIBLE * NS_PER_S

NEVER_NS = -(1 << 62)

#: A node counts as silent after four missed states and at least 25 s, so restarting a daemon or the broker does not
#: count as a lost clock.
SILENT_AFTER_NS = 25 * NS_PER_S
SILENT_STATES = 4


AgingNumbers = tuple[int, int, int, int, str, int, int, int, int, int, int, int]
"""
The numbers that age a clock, as one tuple, since a hub ages ten thousand of them at once. In order: the bounds' time on
the hub's BOOTTIME and on its REALTIME; how long they are valid; the time before which they are invalid; the group that
shares grandmaster and parent; the bounds in 1e-9 ns, each with its growth in ppb, against parent, grandmaster and UTC;
and the time from which the node is silent.
"""


class NodeClock(NamedTuple):
    """
    A node's newest state in short; a tuple, since a hub makes some thousand of them a second.

    `live` False: only a retained copy was received, which is *last known*. `explanations` are by reference, None where
    the clock is bounded. The bounds are dated `since_sample_ns` later than their sample. `main_reference` is the one
    that the node reports first. `has_source` False: the node has no clock source, as a daemon that is a hub only.
    """

    node: str
    order: tuple[int, int]
    live: bool
    received_boottime_ns: int
    published_realtime_ns: int
    reported_age_ns: int | None
    boot_id: str
    topology: str
    link: str
    statuses: tuple[ClockStatus, ClockStatus]
    main_reference: int
    holdover_after_ns: int
    since_sample_ns: int
    has_source: bool
    grandmaster_identity: str | None
    grandmaster: str
    gm_group: str
    explanations: tuple[CodedReason[str] | None, CodedReason[str] | None, CodedReason[str] | None]
    aging: AgingNumbers
    invalidation: Invalidation | None = None
    since_realtime_ns: int | None = None

    @classmethod
    def of(cls, state: NodeState, received_boottime_ns: int, live: bool) -> NodeClock:
        statuses = ClockStatus[state.status], ClockStatus[state.utc_status]
        usable = [live and state.age_ns is not None and status in USABLE for status in statuses]
        explanations = _explanations(state, live, usable)
        identity = intern(state.grandmaster_identity) if state.grandmaster_identity is not None else None
        gm_group, group = _groups(state, usable[0])
        age_ns = state.age_ns or 0
        # A clock without any usable state sorts before one that lacks a single reference.
        unbounded = UNBOUNDED * sum(why is not None for why in explanations)
        return cls(
            node=state.node,
            order=(state.incarnation, state.sequence),
            live=live,
            received_boottime_ns=received_boottime_ns,
            published_realtime_ns=state.published_realtime_ns,
            reported_age_ns=state.age_ns,
            boot_id=state.boot_id,
            topology=intern(state.topology),
            link=intern(state.link or ""),
            statuses=statuses,
            main_reference=UTC if state.knows_utc_alone else GRANDMASTER,
            holdover_after_ns=state.holdover_after_ns,
            since_sample_ns=state.since_sample_ns,
            has_source=bool(state.sources) or state.age_ns is not None,
            grandmaster_identity=identity,
            grandmaster=intern(state.grandmaster or state.grandmaster_identity or ""),
            gm_group=gm_group,
            explanations=explanations,
            aging=(
                received_boottime_ns - age_ns,
                state.published_realtime_ns - age_ns,
                state.void_after_ns if any(usable) else 0,
                NEVER_NS,
                group,
                *_sum(state.parent, explanations[PARENT], unbounded),
                *_sum(state.gm, explanations[GRANDMASTER], unbounded),
                *_sum(state.utc, explanations[UTC], unbounded),
                received_boottime_ns + silent_after_ns(state),
            ),
            since_realtime_ns=state.since_realtime_ns,
        )

    def repeated(self, state: RepeatedState, received_boottime_ns: int) -> NodeClock:
        """The clock by the node's next state, which differs from this clock's in these numbers alone; for a live one."""
        age_ns = state.age_ns or 0
        aging = (
            received_boottime_ns - age_ns,
            state.published_realtime_ns - age_ns,
            self.aging[2],
            NEVER_NS,
            *self.aging[4:11],
            received_boottime_ns + self.silent_at_ns - self.received_boottime_ns,
        )
        return self._replace(
            order=(state.incarnation, state.sequence),
            received_boottime_ns=received_boottime_ns,
            published_realtime_ns=state.published_realtime_ns,
            reported_age_ns=state.age_ns,
            aging=aging,
            invalidation=None,
        )

    def invalidated(self, invalidation: Invalidation | None) -> NodeClock:
        """The clock without the samples from before the invalidation."""
        if invalidation is None:
            return self
        aging = (*self.aging[:3], invalidation.before_ns + self.since_sample_ns, *self.aging[4:])
        return self._replace(aging=aging, invalidation=invalidation)

    def origin_ns(self, now: Moment) -> int:
        """
        The time of the bounds on the hub's BOOTTIME.

        Transit time is seen on both of the hub's clocks. The larger one counts: too large an age makes the bound too
        wide, never too narrow.
        """
        received_ns, published_ns = self.aging[:2]
        return min(received_ns, published_ns - now.real_minus_boot_ns)

    def age_ns(self, now: Moment) -> int | None:
        """The age of the node's bounds; None where it has none."""
        return None if self.reported_age_ns is None else max(0, now.boottime_ns - self.origin_ns(now))

    def aged_status(self, now: Moment, reference: int) -> AgedStatus:
        return aged_statuses((self,), now, reference)[0]

    def status(self, now: Moment, reference: int = GRANDMASTER) -> ClockStatus:
        return self.aged_status(now, reference)[0]

    def is_silent(self, now: Moment) -> bool:
        """Whether the node stopped reporting: then its clock is unknown, although its last bound may still be valid."""
        return not self.live or now.boottime_ns >= self.aging[11]

    @property
    def silent_at_ns(self) -> int:
        return self.aging[11]

    def why_not_reporting(self, now: Moment) -> CodedReason[str] | None:
        """Why the node is not reporting; None where it is."""
        if not self.live:
            return LAST_KNOWN
        if not self.is_silent(now):
            return None
        silent_ns = now.boottime_ns - self.received_boottime_ns
        return CodedReason(StateReason.NODE_SILENT, f"silent for {span_text(silent_ns)}")

    def why_unbounded(self, now: Moment, reference: int = GRANDMASTER) -> CodedReason[str] | None:
        """Why the clock is not bounded against this reference now; None where it is."""
        if explanation := self.why_not_reporting(now):
            return explanation
        origin_ns, void_after_ns = self.origin_ns(now), self.aging[2]
        if self.invalidation is not None and void_after_ns and origin_ns < self.aging[3]:
            return CodedReason(self.invalidation.reason.code, self.invalidation.reason.text)
        if void_after_ns and now.boottime_ns - origin_ns >= void_after_ns:
            return CodedReason(Reason.EXPIRED.code, "the node's last sample is too old")
        return self.explanations[reference]


def silent_after_ns(state: NodeState) -> int:
    """The time from this state after which its node counts as silent, unless another state arrives."""
    return max(SILENT_AFTER_NS, SILENT_STATES * state.every_ns)


AgedStatus = tuple[ClockStatus, int, NodeClock]
"""A clock's status against a reference, its largest error against that in 1e-9 ns, and the clock."""


def aged_statuses(clocks: Iterable[NodeClock], now: Moment, reference: int | None = None) -> list[AgedStatus]:
    """
    Each clock's status and error against a `reference` (None: against its main one), aged by the one status table.

    UNKNOWN while the node is not reporting, and where its samples are invalid.
    """
    boottime_ns, offset_ns = now.boottime_ns, now.real_minus_boot_ns
    unknown, disrupted = ClockStatus.UNKNOWN, ClockStatus.DISRUPTED
    found: list[AgedStatus] = []
    for clock in clocks:
        aging = clock.aging
        origin_ns = aging[0]
        if aging[1] - offset_ns < origin_ns:  # noqa: PLR1730  a call of min() takes longer
            origin_ns = aging[1] - offset_ns
        if clock.reported_age_ns is None or not clock.live or origin_ns < aging[3] or boottime_ns >= aging[11]:
            found.append((unknown, UNKNOWN, clock))
            continue
        age_ns = boottime_ns - origin_ns if boottime_ns > origin_ns else 0
        against = clock.main_reference if reference is None else reference
        status = status_at(clock.statuses[against == UTC], age_ns, clock.holdover_after_ns, aging[2])
        if status is unknown or status is disrupted:
            found.append((status, UNKNOWN, clock))
        else:
            bound, growth_ppb = _BOUND_OF[against](aging)
            found.append((status, bound + growth_ppb * age_ns, clock))
    return found


_BOUND_OF: tuple[Callable[[AgingNumbers], tuple[int, int]], ...] = (
    itemgetter(9, 10),
    itemgetter(7, 8),
    itemgetter(5, 6),
)


def rounded_up_ns(sum_ns: int) -> int:
    """A sum in 1e-9 ns as whole ns, rounded up as Bound.at rounds."""
    return -(-sum_ns // NS_PER_S)


def bounded_ns(sum_ns: int) -> int | None:
    """The same for a sum that may be unbounded; None = unbounded."""
    return rounded_up_ns(sum_ns) if sum_ns <= MOST_BOUNDED else None


def _explanations(
    state: NodeState, live: bool, usable: list[bool]
) -> tuple[CodedReason[str] | None, CodedReason[str] | None, CodedReason[str] | None]:
    """Why the state is not bounded, by reference; what follows from its age is not included."""
    if not live:
        return LAST_KNOWN, LAST_KNOWN, LAST_KNOWN
    gm_why = None if usable[0] else _why_unknown(state)
    if usable[1] and _is_bounded(state.utc):
        utc = None
    else:
        utc = gm_why or _reason(state.utc) or CodedReason(StateReason.NO_BOUND, "not known against UTC")
    return utc, gm_why or _why_without(state.gm), gm_why or _why_without(state.parent)


def _why_unknown(state: NodeState) -> CodedReason[str]:
    if state.reason_code != Reason.OK.code:
        return CodedReason(state.reason_code, state.reason)
    if state.status in ("SYNCHRONIZED", "HOLDOVER"):
        return NO_BOUND
    return CodedReason(StateReason.NO_BOUND, f"the clock is {state.status}")


def _is_bounded(bound: BoundMessage | None) -> bool:
    return bound is not None and bound.bound_ns is not None and max(bound.bound_ns, bound.growth_ppb) <= MAX_PLAUSIBLE


def _why_without(bound: BoundMessage | None) -> CodedReason[str] | None:
    return None if _is_bounded(bound) else _reason(bound) or NO_BOUND


def _reason(bound: BoundMessage | None) -> CodedReason[str] | None:
    if bound is None:
        return None
    if bound.bound_ns is None:
        return None if bound.reason_code == Reason.OK.code else CodedReason(bound.reason_code, bound.reason)
    return CodedReason(Reason.IMPLAUSIBLE.code, Reason.IMPLAUSIBLE.text)


def _groups(state: NodeState, usable: bool) -> tuple[str, str]:
    """
    The group of nodes that share grandmaster and removed whole seconds, and the group within it that also shares the
    parent clock.

    A node without a known reference, or not bounded against it, forms a group of its own.
    """
    own = f"node {state.node}"
    gm = own
    if usable and state.utc_seconds_removed is not None and state.grandmaster_identity is not None:
        gm = f"gm {state.utc_seconds_removed} {state.grandmaster_identity}"
    parent = own if state.parent_identity is None else f"clock {state.parent_identity}"
    return intern(gm), intern(f"{gm}\n{parent}")


def _sum(bound: BoundMessage | None, why: CodedReason[str] | None, unbounded: int) -> tuple[int, int]:
    if why or bound is None or bound.bound_ns is None:
        return unbounded, 0
    return bound.bound_ns * NS_PER_S, bound.growth_ppb
