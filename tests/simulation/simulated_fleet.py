"""A fleet with known clocks: what each node's state reports of its true clock, its path and its grandmaster."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.catalogue import Judgement
from timesyncd.findings.fleet import FleetFindings
from timesyncd.messages.node import BoundMessage, GrandmasterState, NodeState, SourceState

EVERY_S = 5
ROUND_S = 2
REALTIME_NS = 1_800_000_000 * NS_PER_S
NTP_ERROR_NS = 500_000
GM_A, GM_B, GM_C, ROGUE = (f"00a069.fffe.00000{letter}" for letter in "abcf")

Key = tuple[str, str]


@dataclass(frozen=True)
class Noise:
    """Of offsets and path delays, in ns; `spikes` of the Syncs queue for up to `spike_ns`."""

    offset_ns: float = 20.0
    delay_ns: float = 10.0
    path_ns: float = 5_000.0
    is_heavy: bool = False
    spikes: float = 0.0
    spike_ns: float = 0.0
    wander_ns: float = 0.0


NOISES = {
    "hardware": Noise(),
    "software": Noise(3_000.0, 1_500.0, 40_000.0, is_heavy=True),
    "queues": Noise(spikes=0.02, spike_ns=300_000.0),
    "warm": Noise(wander_ns=400.0),
}


@dataclass
class Node:
    """`jump_ns` is added to its clock's offset, `path_ns` to both ways of its path; a test changes these."""

    name: str
    rack: str
    parent: str
    grandmaster: str
    base_ns: float
    servo_s: float
    seconds: tuple[str, ...] = ()
    domain: int = 24
    jump_ns: float = 0.0
    path_ns: float = 0.0
    silent_until_s: float = 0.0
    _pulls: list[tuple[float, float]] = field(default_factory=list)

    def kick(self, at_s: float, by_ns: float) -> None:
        """Its offset moves at once, and the servo takes that out."""
        self._pulls.append((at_s, by_ns))

    def follow(self, grandmaster: str, parent: str | None = None) -> None:
        self.grandmaster, self.parent = grandmaster, parent or self.parent

    def pull_ns(self, now_s: float) -> float:
        return sum(by * math.exp(-(now_s - at) / self.servo_s) for at, by in self._pulls if now_s >= at)


class Fleet:
    """`unit_ns` is each grandmaster's error against UTC. Nothing but `run` draws of `random`, so a seed gives one course."""

    def __init__(self, seed: int, noise: Noise, racks: int = 4, per_rack: int = 10, is_boundary: bool = True) -> None:
        self.random = random.Random(seed)
        self.noise = noise
        self.grandmasters: list[GrandmasterState] = []
        self.grandmaster_ns = dict.fromkeys((GM_A, GM_B, GM_C, ROGUE), 0.0)
        self.has_ntp = False
        self.ntp_ns = 0.0
        self.now_s = 0.0
        self.nodes: list[Node] = []
        for number in range(racks * per_rack):
            rack = f"hall-{number // per_rack // 2}/rack-{number // per_rack}"
            parent = f"5c5c5c.fffe.{number // per_rack:06x}" if is_boundary else GM_A
            base_ns, servo_s = noise.path_ns * self.random.uniform(0.8, 1.2), self.random.uniform(2, 12)
            self.nodes.append(Node(f"n{number:03}", rack, parent, GM_A, base_ns, servo_s))
        self.findings = FleetFindings([node.name for node in self.nodes])

    def rack(self, number: int) -> list[Node]:
        return [node for node in self.nodes if node.rack.endswith(f"/rack-{number}")]

    def run(self, seconds: float) -> Iterator[tuple[float, dict[Key, Judgement]]]:
        """(time, what holds) of each round."""
        phase = {node.name: self.random.uniform(0, EVERY_S) for node in self.nodes}
        for round_s in range(int(self.now_s), int(self.now_s + seconds), ROUND_S):
            self.now_s = round_s + ROUND_S
            for node in self.nodes:
                first = round_s + (phase[node.name] - round_s) % EVERY_S
                if first < self.now_s and first >= node.silent_until_s:
                    self.findings.add(self._state(node, first), self._boot_ns(first))
            now_ns = self._boot_ns(self.now_s)
            yield self.now_s, self.findings.judge(self.grandmasters, now_ns, REALTIME_NS + now_ns)

    def first_reported(self, seconds: float) -> dict[Key, float]:
        """Every finding of that time, and when it was first reported, in seconds from now."""
        begun_s, found = self.now_s, dict[Key, float]()
        for now_s, judged in self.run(seconds):
            for key in judged:
                found.setdefault(key, now_s - begun_s)
        return found

    def jump(self, identity: str, by_ns: float) -> None:
        """A grandmaster's time jumps, and its followers' servos go after it."""
        self.grandmaster_ns[identity] += by_ns
        for node in self.nodes:
            if node.grandmaster == identity:
                node.kick(self.now_s, -by_ns)

    def _boot_ns(self, now_s: float) -> int:
        return int((now_s + 1_000) * NS_PER_S)

    def _gauss(self, sigma: float) -> float:
        if not self.noise.is_heavy:
            return self.random.gauss(0, sigma)
        return self.random.gauss(0, sigma) / max(0.05, math.sqrt(self.random.gammavariate(1.5, 1 / 1.5)))

    def _state(self, node: Node, now_s: float) -> NodeState:
        noise, wander = self.noise, math.sin(now_s / 900) * self.noise.wander_ns
        offset_ns = self._gauss(noise.offset_ns) + node.pull_ns(now_s) + node.jump_ns
        if self.random.random() < noise.spikes:
            offset_ns += self.random.expovariate(1) * noise.spike_ns
        delay_ns = max(0.0, node.base_ns + node.path_ns + wander + self._gauss(noise.delay_ns))
        offset, delay = round(offset_ns), round(delay_ns)
        real_ns = REALTIME_NS + self._boot_ns(now_s)
        bound_ns = abs(offset) + delay + 100
        return _state(node, real_ns, offset, delay, bound_ns, list(self._sources(node, offset, delay, bound_ns)))

    def _sources(self, node: Node, offset: int, delay: int, bound_ns: int) -> Iterator[SourceState]:
        clock_ns = offset + self.grandmaster_ns[node.grandmaster]
        yield _ptp("ptp", node.grandmaster, node.domain, offset, delay, bound_ns)
        for second in node.seconds:
            other = round(clock_ns - self.grandmaster_ns[second] + self._gauss(self.noise.offset_ns))
            yield _ptp(f"ptp-{second}", second, node.domain, other, delay, abs(other) + delay + 100)
        if self.has_ntp:
            reported = round(clock_ns + self.ntp_ns + self.random.uniform(-NTP_ERROR_NS, NTP_ERROR_NS))
            yield _source("ntp", "utc", reported, abs(reported) + NTP_ERROR_NS)


def _bound(bound_ns: int) -> BoundMessage:
    return BoundMessage.model_construct(bound_ns=bound_ns, growth_ppb=50_100, reason="")


@cache
def _plain(name: str) -> SourceState:
    return SourceState(name=name, driver="d", reachable=True)


def _source(name: str, kind: str, offset: int, utc_ns: int, **more: object) -> SourceState:
    return _plain(name).model_copy(
        update={"kind": kind, "offset_ns": offset, "utc": _bound(utc_ns), "age_ns": 100_000_000} | more
    )


def _ptp(name: str, identity: str, domain: int, offset: int, delay: int, bound_ns: int) -> SourceState:
    more = {"path_delay_ns": delay, "grandmaster_identity": identity, "domain": domain, "gm": _bound(bound_ns)}
    return _source(name, "ptp", offset, bound_ns + 250, **more)


_PLAIN = NodeState.model_validate(
    {"node": "n", "incarnation": 1, "sequence": 1, "published_realtime_ns": 1, "age_ns": 100_000_000, "boot_id": "b"}
    | {"time_namespace": 0, "status": "SYNCHRONIZED", "utc_status": "SYNCHRONIZED", "since_realtime_ns": None}
)


def _state(node: Node, real_ns: int, offset: int, delay: int, bound_ns: int, sources: list[SourceState]) -> NodeState:
    reported = {"node": node.name, "topology": node.rack, "published_realtime_ns": real_ns, "parent": _bound(bound_ns)}
    followed = {"parent_identity": node.parent, "grandmaster_identity": node.grandmaster, "sources": sources}
    return _PLAIN.model_copy(update=reported | followed)
