"""A whole fleet with its network and a hub: random events, what the hub receives of them, and the truth."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from fleet_grandmasters import INVALIDATION_REASON, POLL_EVERY_S, KnownGrandmaster, Parent, nanoseconds
from fleet_node import EPOCH_NS, Node

from timesyncd.clocks import Moment
from timesyncd.config import HubSettings
from timesyncd.fleet.alignment import Alignment
from timesyncd.hub.hub import Hub
from timesyncd.messages.node import NodeState
from timesyncd.model.grandmaster import GrandmasterVerdict, MessageReceipt

STEP_S = 0.25
HUB = "hub"
ARBITRARY_NS = 1e12

#: A clock that NTP keeps is that good.
BY_NTP_NS = 1e6


@dataclass(frozen=True, slots=True)
class Trouble:
    """
    How much of what goes wrong: the mean times between two events of the whole fleet and between two steps of the hub's clock, and what a
    message meets on its way. A hub that is no node has its clock from NTP, so within a millisecond.
    """

    every_s: float = 6.0
    lost: float = 0.1
    late: float = 0.15
    latest_s: float = 6.0
    doubled: float = 0.1
    reconnected: float = 0.005
    hub_is_a_node: bool = True
    hub_steps_every_s: float = math.inf


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The hub was asked of these nodes at `now_s`. `blind`: something happened to them of which it received nothing yet."""

    now_s: float
    nodes: tuple[Node, ...]
    found: Alignment
    apart_ns: float
    blind: bool


class World:
    """One seed. `moments` runs it; `disturbed_s` is when something last moved a clock of a set of nodes at once."""

    def __init__(self, seed: int | str, trouble: Trouble = Trouble(), nodes: int = 14) -> None:
        self.chance = chance = Random(f"fleet/{seed}")
        self.trouble = trouble
        self.hub = Hub(HubSettings(), HUB)
        self.now_s = 0.0
        self.grandmasters = [
            KnownGrandmaster(f"gm-{n}", chance.choice((100.0, 1_000.0, 30_000.0)), 50.0, chance) for n in range(3)
        ]
        self.grandmasters.append(KnownGrandmaster("gm-x", 100.0, 50.0, chance, arbitrary_ns=ARBITRARY_NS))
        self.parents = [
            Parent(grandmaster.identity, grandmaster, is_boundary=False) for grandmaster in self.grandmasters
        ]
        self.parents += [
            Parent(f"switch-{n}", chance.choice(self.grandmasters[:3]), is_boundary=True, phase=chance.uniform(0, 6))
            for n in range(4)
        ]
        self.nodes = [self._node(index) for index in range(nodes)]
        if trouble.hub_is_a_node:
            self.nodes.append(Node(HUB, self.parents[0], chance, 500))
        self._ntp_error_ns = chance.uniform(-BY_NTP_NS, BY_NTP_NS)
        self._way: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._published: dict[str, NodeState] = {}
        self._received_s: dict[str, float] = {}
        self._invalidation_received_s: dict[str, float] = {}
        self._poll_due_s = {grandmaster.identity: chance.random() for grandmaster in self.grandmasters}

    def _node(self, index: int) -> Node:
        removed = self.chance.choice((37,) * 9 + (38,))
        drift_ppb = self.chance.choice((20, 500, 5_000))
        return Node(f"node-{index}", self.chance.choice(self.parents), self.chance, drift_ppb, removed)

    def moments(self, seconds: float) -> Iterator[FleetSnapshot]:
        """Many random sets of nodes at many instants."""
        while self.now_s < seconds:
            self._step()
            for size in (2, 2, 3, 5, len(self.nodes)):
                yield self._ask(self.chance.sample(self.nodes, size))

    def _step(self) -> None:
        self.now_s = now_s = self.now_s + STEP_S
        if self.chance.random() < STEP_S / self.trouble.every_s:
            self.chance.choice(self._events())()
        if self.chance.random() < STEP_S / self.trouble.hub_steps_every_s:
            self._step_hub()
        for node in self.nodes:
            node.run(now_s, STEP_S)
        for grandmaster in self.grandmasters:
            if now_s >= self._poll_due_s[grandmaster.identity]:
                self._poll(grandmaster)
        for node in self.nodes:
            if node.name == HUB:
                self._receive_own(node)
            elif node.state_due(now_s):
                self._publish(node)
        if self.chance.random() < self.trouble.reconnected:
            self._reconnect()
        while self._way and self._way[0][0] <= now_s:
            heapq.heappop(self._way)[2]()

    # What happens.

    def _events(self) -> Sequence[Callable[[], None]]:
        node, grandmaster, now_s = self.chance.choice(self.nodes), self.chance.choice(self.grandmasters), self.now_s
        switch = self.chance.choice([parent for parent in self.parents if parent.is_boundary])
        elsewhere = self.chance.choice(self.parents)
        return (
            lambda: grandmaster.lose_reference(now_s),
            lambda: grandmaster.jump(now_s),
            lambda: grandmaster.jump(now_s),
            lambda: self._fail_over(switch),
            lambda: node.follow(elsewhere) if node.parent is not elsewhere and node.is_fed else None,
            lambda: node.restart(now_s, reboot=False),
            lambda: node.restart(now_s, reboot=True),
            lambda: node.cut_off(ptp=True, broker=False),
            lambda: node.cut_off(ptp=False, broker=True),
            lambda: node.cut_off(ptp=True, broker=True),
            lambda: node.set_clock(now_s, self.chance.choice((-100e9, -1e5, 1e5, 100e9))),
        )

    def _step_hub(self) -> None:
        """Its clock is set by hand, as often as not while PTP is away, so that it stays so."""
        hub = self.nodes[-1]
        hub.is_fed = self.chance.random() < 0.5
        hub.set_clock(self.now_s, self.chance.choice((-100e9, -5e9, 100e9)))

    def _fail_over(self, switch: Parent) -> None:
        switch.grandmaster = self.chance.choice(self.grandmasters[:3])

    # What is published.

    def _send(self, deliver: Callable[[], None], punctual: bool = False) -> None:
        trouble, chance = self.trouble, self.chance
        if chance.random() < trouble.lost:
            return
        for _ in range(1 + (chance.random() < trouble.doubled)):
            late_s = chance.uniform(0, trouble.latest_s) if chance.random() < trouble.late and not punctual else 0.0
            heapq.heappush(self._way, (self.now_s + late_s, next(self._numbers), deliver))

    def _publish(self, node: Node) -> None:
        state, sent_s = node.state(self.now_s), self.now_s
        self._published[node.name] = state
        # The time of a node whose clock is ahead of the hub's shows nothing of a message's way, or too little.
        punctual = node.error_ns > self._hub_error_ns
        self._send(lambda: self._receive(state, sent_s), punctual)

    def _receive(self, state: NodeState, sent_s: float) -> None:
        """Whatever the hub makes of it: once the newest came, it could know."""
        self._received_s[state.node] = max(sent_s, self._received_s.get(state.node, -math.inf))
        self.hub.accept_node(state, nanoseconds(self.now_s), live=True)

    def _reconnect(self) -> None:
        """The broker gives its copies again."""
        for state in self._published.values():
            self.hub.accept_node(state, nanoseconds(self.now_s), live=False)

    def _receive_own(self, node: Node) -> None:
        self._receive(node.state(self.now_s), self.now_s)

    def _poll(self, grandmaster: KnownGrandmaster) -> None:
        self._poll_due_s[grandmaster.identity] = self.now_s + POLL_EVERY_S
        utc, invalid_before_s = grandmaster.poll(self.now_s)
        changed_s, polled_s = grandmaster.changed_s, self.now_s
        verdict = GrandmasterVerdict("poller", utc, nanoseconds(polled_s))
        for node in self.nodes:
            self._send(lambda node=node: node.receive(grandmaster.identity, verdict, invalid_before_s))  # type: ignore[misc]
        self._send(lambda: self._receive_grandmaster(grandmaster, polled_s, invalid_before_s, changed_s))

    def _receive_grandmaster(
        self, grandmaster: KnownGrandmaster, polled_s: float, invalid_before_s: float | None, changed_s: float
    ) -> None:
        """The hub receives the poller, whose clock is right."""
        if invalid_before_s is not None:
            came = MessageReceipt(nanoseconds(self.now_s), 0, EPOCH_NS + nanoseconds(polled_s))
            self.hub.fleet.invalidate_before(
                [grandmaster.identity], came.invalidation(EPOCH_NS + nanoseconds(invalid_before_s), INVALIDATION_REASON)
            )
        self._invalidation_received_s[grandmaster.identity] = max(
            changed_s, self._invalidation_received_s.get(grandmaster.identity, -math.inf)
        )

    @property
    def _hub_error_ns(self) -> float:
        return self.nodes[-1].error_ns if self.trouble.hub_is_a_node else self._ntp_error_ns

    @property
    def _hub_now(self) -> Moment:
        boottime_ns = nanoseconds(self.now_s)
        return Moment(boottime_ns=boottime_ns, realtime_ns=EPOCH_NS + boottime_ns + round(self._hub_error_ns))

    # What is true.

    def _ask(self, nodes: Sequence[Node]) -> FleetSnapshot:
        names = [node.name for node in nodes]
        found = self.hub.fleet.alignment(names, self._hub_now)
        pairs = itertools.combinations(nodes, 2)
        apart_ns = max(abs(one.error_ns - other.error_ns) for one, other in pairs)
        return FleetSnapshot(self.now_s, tuple(nodes), found, apart_ns, any(self._is_blind(node) for node in nodes))

    def _is_blind(self, node: Node) -> bool:
        """
        Its clock or the hub's, by which a message's way is seen, moved at once, and no state sent since has come; or the grandmaster that
        its state names did, and its poller's message has not come.
        """
        clock = self.hub.fleet.clock(node.name)
        hub_s = self.nodes[-1].disturbed_s if self.trouble.hub_is_a_node else 0.0
        if clock is None or self._received_s.get(node.name, -math.inf) < max(node.disturbed_s, hub_s):
            return True
        grandmaster = next(
            (grandmaster for grandmaster in self.grandmasters if grandmaster.identity == clock.grandmaster_identity),
            None,
        )
        return grandmaster is not None and grandmaster.changed_s > self._invalidation_received_s.get(
            grandmaster.identity, -math.inf
        )


def disturbed_s(nodes: Sequence[Node]) -> float:
    """When a clock of these, or what they follow, last moved at once."""
    return max(max(node.disturbed_s, node.parent.grandmaster.changed_s) for node in nodes)
