"""One node's clock as a hub has it: its newest state in numbers, and what they say of a later moment. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from sys import intern
from typing import NamedTuple

from timesyncd.bound import ClockStatus, Reason, status_at
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.messages.node import BoundMessage, NodeState, StateReason
from timesyncd.model.grandmaster import Invalidation
from timesyncd.units import span_text

USABLE = (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER)

#: Against what a clock is known, from the outermost.
UTC, GRANDMASTER, PARENT = range(3)


class Explanation(NamedTuple):
    """Why nothing is known of a clock: the code that programs decide by (`reason_code`), and the sentence for people."""

    code: str
    text: str


LAST_KNOWN = Explanation(StateReason.LAST_KNOWN, "last known only: nothing live since the hub started")
NO_BOUND = Explanation(StateReason.NO_BOUND, "no bound")

#: Stands for no bound: more than any bound in 1e-9 ns.
UNBOUNDED = 1 << 130

#: The same of a clock of which nothing is known at all: more than all that it can be unbounded against.
UNKNOWN = 4 * UNBOUNDED

#: Eleven days, and as much a second: what is off by more is told by no clock that works.
MAX_PLAUSIBLE = 10**15

NEVER_NS = -(1 << 62)

#: A daemon that is restarted is silent for ten seconds and two states.
SILENT_AFTER_NS = 25 * NS_PER_S

#: So many states in a row that did not come are no accident.
SILENT_STATES = 4


AgingNumbers = tuple[int, int, int, int, str, int, int, int, int, int, int, int]
"""
What is asked of ten thousand nodes at once: when the bounds were true by the hub's BOOTTIME, and by its REALTIME; how long they hold;
before when they are void; the group of those that share grandmaster and parent; the bound, in 1e-9 ns, with its growth in ppb
against parent, grandmaster and UTC; and when it is silent unless something is heard before.
"""


@dataclass(frozen=True, slots=True)
class NodeClock:
    """
    A node's newest state in short. `live` False: only a retained copy came, which is *last known*. `whys` tell by reference what it
    is unbounded for. Its bounds are dated by `since_sample_ns` later than the sample that they rest on. `main_reference` is what it is
    told of against first. `is_watched` False: it has no clock source, as a mere hub.
    """

    node: str
    order: tuple[int, int]
    live: bool
    received_boottime_ns: int
    published_realtime_ns: int
    told_age_ns: int | None
    boot_id: str
    topology: str
    link: str
    statuses: tuple[ClockStatus, ClockStatus]
    main_reference: int
    holdover_after_ns: int
    since_sample_ns: int
    is_watched: bool
    grandmaster_identity: str | None
    grandmaster: str
    gm_group: str
    whys: tuple[Explanation | None, Explanation | None, Explanation | None]
    reach: AgingNumbers
    void: Invalidation | None = None

    @classmethod
    def of(cls, state: NodeState, received_boottime_ns: int, live: bool) -> NodeClock:
        statuses = ClockStatus[state.status], ClockStatus[state.utc_status]
        usable = [live and state.age_ns is not None and status in USABLE for status in statuses]
        whys = _whys(state, live, usable)
        identity = intern(state.grandmaster_identity) if state.grandmaster_identity is not None else None
        gm_group, group = _groups(state, usable[0])
        age_ns = state.age_ns or 0
        # Who knows nothing at all has the largest, and is named before who only lacks one reference.
        unbounded = UNBOUNDED * sum(why is not None for why in whys)
        return cls(
            node=state.node,
            order=(state.incarnation, state.sequence),
            live=live,
            received_boottime_ns=received_boottime_ns,
            published_realtime_ns=state.published_realtime_ns,
            told_age_ns=state.age_ns,
            boot_id=state.boot_id,
            topology=intern(state.topology),
            link=intern(state.link or ""),
            statuses=statuses,
            main_reference=UTC if state.knows_utc_alone else GRANDMASTER,
            holdover_after_ns=state.holdover_after_ns,
            since_sample_ns=state.since_sample_ns,
            is_watched=bool(state.sources) or state.age_ns is not None,
            grandmaster_identity=identity,
            grandmaster=intern(state.grandmaster or state.grandmaster_identity or ""),
            gm_group=gm_group,
            whys=whys,
            reach=(
                received_boottime_ns - age_ns,
                state.published_realtime_ns - age_ns,
                state.void_after_ns if any(usable) else 0,
                NEVER_NS,
                group,
                *_sum(state.parent, whys[PARENT], unbounded),
                *_sum(state.gm, whys[GRANDMASTER], unbounded),
                *_sum(state.utc, whys[UTC], unbounded),
                received_boottime_ns + silent_after_ns(state),
            ),
        )

    def voided(self, void: Invalidation | None) -> NodeClock:
        """Nothing counts that was measured before `void`."""
        if void is None:
            return self
        reach = (*self.reach[:3], void.before_ns + self.since_sample_ns, *self.reach[4:])
        return replace(self, reach=reach, void=void)

    def origin_ns(self, now: Moment) -> int:
        """
        When its bounds were true, on the hub's BOOTTIME. Time on the way is seen on either clock, and the larger one counts: too old
        a bound is too wide, never wrong.
        """
        received_ns, published_ns = self.reach[:2]
        return min(received_ns, published_ns - now.real_minus_boot_ns)

    def age_ns(self, now: Moment) -> int | None:
        """The age of the node's bounds, None where it has none."""
        return None if self.told_age_ns is None else max(0, now.boottime_ns - self.origin_ns(now))

    def standing(self, now: Moment, reference: int) -> AgedStatus:
        return aged_statuses((self,), now, reference)[0]

    def status(self, now: Moment, reference: int = GRANDMASTER) -> ClockStatus:
        return self.standing(now, reference)[0]

    def is_silent(self, now: Moment) -> bool:
        """Nothing live came lately: then nothing is known of its clock, be its last bound still true."""
        return not self.live or now.boottime_ns >= self.reach[11]

    @property
    def silent_at_ns(self) -> int:
        return self.reach[11]

    def why_unheard(self, now: Moment) -> Explanation | None:
        """Why it is not live; None where it is."""
        if not self.live:
            return LAST_KNOWN
        if not self.is_silent(now):
            return None
        silent_ns = now.boottime_ns - self.received_boottime_ns
        return Explanation(StateReason.NODE_SILENT, f"silent for {span_text(silent_ns)}")

    def why(self, now: Moment, reference: int = GRANDMASTER) -> Explanation | None:
        """Why it is not bounded, now and against this reference; None where it is."""
        if unheard := self.why_unheard(now):
            return unheard
        origin_ns, void_after_ns = self.origin_ns(now), self.reach[2]
        if self.void is not None and void_after_ns and origin_ns < self.reach[3]:
            return Explanation(self.void.reason.code, self.void.reason.text)
        if void_after_ns and now.boottime_ns - origin_ns >= void_after_ns:
            return Explanation(Reason.VOID.code, "its last sample is too old")
        return self.whys[reference]


def silent_after_ns(state: NodeState) -> int:
    """So long after this state its node is silent, unless something is heard before."""
    return max(SILENT_AFTER_NS, SILENT_STATES * state.every_ns)


AgedStatus = tuple[ClockStatus, int, NodeClock]
"""A clock's status against a reference, and how far it may be from that in 1e-9 ns."""


def aged_statuses(clocks: Iterable[NodeClock], now: Moment, reference: int | None = None) -> list[AgedStatus]:
    """
    Of each clock, aged by the one status table: UNKNOWN until a live message came, where it is void, and from when it is silent. Without a
    `reference` against what it is told of first.
    """
    boottime_ns, offset_ns = now.boottime_ns, now.real_minus_boot_ns
    found: list[AgedStatus] = []
    for clock in clocks:
        reach = clock.reach
        origin_ns = reach[0]
        if reach[1] - offset_ns < origin_ns:  # noqa: PLR1730  a call of min() takes longer
            origin_ns = reach[1] - offset_ns
        if clock.told_age_ns is None or not clock.live or origin_ns < reach[3] or boottime_ns >= reach[11]:
            found.append((ClockStatus.UNKNOWN, UNKNOWN, clock))
            continue
        age_ns = max(0, boottime_ns - origin_ns)
        against = clock.main_reference if reference is None else reference
        status = status_at(clock.statuses[against == UTC], age_ns, clock.holdover_after_ns, reach[2])
        bound, growth_ppb = _BOUND_OF[against](reach)
        found.append((status, bound + growth_ppb * age_ns if status in USABLE else UNKNOWN, clock))
    return found


_BOUND_OF: tuple[Callable[[AgingNumbers], tuple[int, int]], ...] = (
    itemgetter(9, 10),
    itemgetter(7, 8),
    itemgetter(5, 6),
)


def rounded_up_ns(sum_ns: int) -> int:
    """Of 1e-9 ns, rounded up, so never understated."""
    return -(-sum_ns // NS_PER_S)


def bounded_ns(sum_ns: int) -> int | None:
    """The same of what may be no bound at all."""
    return rounded_up_ns(sum_ns) if sum_ns <= MAX_PLAUSIBLE * NS_PER_S else None


def _whys(
    state: NodeState, live: bool, usable: list[bool]
) -> tuple[Explanation | None, Explanation | None, Explanation | None]:
    """By reference; those that only age can tell are not among them."""
    if not live:
        return LAST_KNOWN, LAST_KNOWN, LAST_KNOWN
    gm_lost = None if usable[0] else _why_lost(state)
    if usable[1] and _is_bounded(state.utc):
        utc = None
    else:
        utc = gm_lost or _reason(state.utc) or Explanation(StateReason.NO_BOUND, "not known against UTC")
    return utc, gm_lost or _why_unbounded(state.gm), gm_lost or _why_unbounded(state.parent)


def _why_lost(state: NodeState) -> Explanation:
    if state.reason_code != Reason.OK.code:
        return Explanation(state.reason_code, state.reason)
    if state.status in ("SYNCHRONIZED", "HOLDOVER"):
        return NO_BOUND
    return Explanation(StateReason.NO_BOUND, f"its clock is {state.status}")


def _is_bounded(bound: BoundMessage | None) -> bool:
    return bound is not None and bound.bound_ns is not None and max(bound.bound_ns, bound.growth_ppb) <= MAX_PLAUSIBLE


def _why_unbounded(bound: BoundMessage | None) -> Explanation | None:
    return None if _is_bounded(bound) else _reason(bound) or NO_BOUND


def _reason(bound: BoundMessage | None) -> Explanation | None:
    if bound is None:
        return None
    if bound.bound_ns is None:
        return None if bound.reason_code == Reason.OK.code else Explanation(bound.reason_code, bound.reason)
    return Explanation(Reason.IMPLAUSIBLE.code, Reason.IMPLAUSIBLE.text)


def _groups(state: NodeState, usable: bool) -> tuple[str, str]:
    """
    Who shares the grandmaster and the whole seconds taken out, and who also the parent clock. A reference without a known name is shared with
    nobody, nor is that of a clock which is not known against it.
    """
    own = f"node {state.node}"
    gm = own
    if usable and state.utc_seconds_removed is not None and state.grandmaster_identity is not None:
        gm = f"gm {state.utc_seconds_removed} {state.grandmaster_identity}"
    parent = own if state.parent_identity is None else f"clock {state.parent_identity}"
    return intern(gm), intern(f"{gm}\n{parent}")


def _sum(bound: BoundMessage | None, why: Explanation | None, unbounded: int) -> tuple[int, int]:
    if why or bound is None or bound.bound_ns is None:
        return unbounded, 0
    return bound.bound_ns * NS_PER_S, bound.growth_ppb
