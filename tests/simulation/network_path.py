"""The network between grandmaster and node: each direction's delay, its noise, its changes, and what gets lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from local_clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class Reroute:
    """From `start_ns` to `end_ns` the bases go from the former to these, evenly."""

    start_ns: float
    end_ns: float
    forward_ns: float
    reverse_ns: float


@dataclass(frozen=True, slots=True)
class PathSpec:
    """
    `forward` is from the grandmaster to the node. A packet takes its direction's base (`drawn`: what a seed draws by a Gamma law of shape 2, with that as its mean), a
    jitter (the size of a normal deviate) and, by `queue_share`, an exponential wait in queues.

    Every `reroute_every_s` on average (0 = never) one direction or both get a new base, up to `reroute_ns` above the first,
    within `reroute_takes_s`; `reroutes` come before them all. Outages come every so often on average and last as long as given, or
    twice that at most.
    """

    forward_ns: float = 10_000.0
    reverse_ns: float = 10_000.0
    drawn: bool = False
    jitter_ns: float = 20.0
    queue_share: float = 0.0
    queue_ns: float = 0.0
    reroute_every_s: float = 0.0
    reroute_ns: float = 0.0
    reroute_takes_s: float = 0.0
    loss: float = 0.0
    sync_outage_every_s: float = 0.0
    sync_outage_s: float = 0.0
    outage_every_s: float = 0.0
    outage_s: float = 0.0
    reroutes: tuple[Reroute, ...] = ()
    sync_ends_at_s: float = math.inf
    ends_at_s: float = math.inf


class NetworkPath:
    """Delays and losses of one seed. Asked with times that never go back by more than a packet's delay."""

    def __init__(self, spec: PathSpec, rng: Random, seconds: float) -> None:
        self._spec = spec
        self._rng = rng
        forward_ns, reverse_ns = spec.forward_ns, spec.reverse_ns
        if spec.drawn:
            forward_ns, reverse_ns = rng.gammavariate(2, forward_ns / 2), rng.gammavariate(2, reverse_ns / 2)
        self._before = Reroute(0.0, 0.0, forward_ns, reverse_ns)
        # A stream each: a longer run begins like a shorter one.
        reroutes, sync_outages, outages = (Random(rng.random()) for _ in range(3))
        drawn = [self._reroute(reroutes, at_s) for at_s in _moments(reroutes, spec.reroute_every_s, seconds)]
        self._reroutes = [*spec.reroutes, *drawn]
        self._pending = list(reversed(self._reroutes))
        self._sync_outages = _outages(sync_outages, spec.sync_outage_every_s, spec.sync_outage_s, seconds)
        self._outages = _outages(outages, spec.outage_every_s, spec.outage_s, seconds)
        self._outages.append((spec.ends_at_s * NS_PER_S, math.inf))
        self._sync_outages.append((spec.sync_ends_at_s * NS_PER_S, math.inf))

    def _reroute(self, rng: Random, at_s: float) -> Reroute:
        spec = self._spec
        way = rng.choice(("forward", "reverse", "both"))
        forward_ns = spec.forward_ns + (rng.uniform(0, spec.reroute_ns) if way != "reverse" else 0.0)
        reverse_ns = spec.reverse_ns + (rng.uniform(0, spec.reroute_ns) if way != "forward" else 0.0)
        return Reroute(at_s * NS_PER_S, (at_s + spec.reroute_takes_s) * NS_PER_S, forward_ns, reverse_ns)

    @property
    def change_moments_ns(self) -> list[float]:
        """When a direction's delay changed at once."""
        return [reroute.start_ns for reroute in self._reroutes]

    def forward_ns(self, true_ns: float) -> float:
        return self._base_ns(true_ns)[0] + self._noise_ns()

    def reverse_ns(self, true_ns: float) -> float:
        return self._base_ns(true_ns)[1] + self._noise_ns()

    def _base_ns(self, true_ns: float) -> tuple[float, float]:
        before = self._before
        if not self._pending or true_ns < self._pending[-1].start_ns:
            return before.forward_ns, before.reverse_ns
        to = self._pending[-1]
        if true_ns >= to.end_ns:
            self._before = self._pending.pop()
            return self._base_ns(true_ns)
        share = (true_ns - to.start_ns) / (to.end_ns - to.start_ns)
        forward_ns = before.forward_ns + share * (to.forward_ns - before.forward_ns)
        return forward_ns, before.reverse_ns + share * (to.reverse_ns - before.reverse_ns)

    def _noise_ns(self) -> float:
        spec, rng = self._spec, self._rng
        noise_ns = abs(rng.gauss(0.0, spec.jitter_ns))
        if spec.queue_share and rng.random() < spec.queue_share:
            noise_ns += rng.expovariate(1.0 / spec.queue_ns)
        return noise_ns

    def loses(self, true_ns: float) -> bool:
        """A packet of any kind, sent now."""
        if self._spec.loss and self._rng.random() < self._spec.loss:
            return True
        return _within(self._outages, true_ns)

    def loses_sync(self, true_ns: float) -> bool:
        return self.loses(true_ns) or _within(self._sync_outages, true_ns)


def _moments(rng: Random, every_s: float, seconds: float) -> Iterator[float]:
    """Random instants, none within the first minute, in which a servo locks."""
    if not every_s:
        return
    at_s = 60.0 + rng.expovariate(1 / every_s)
    while at_s < seconds:
        yield at_s
        at_s += 30.0 + rng.expovariate(1 / every_s)


def _outages(rng: Random, every_s: float, lasts_s: float, seconds: float) -> list[tuple[float, float]]:
    starts = _moments(rng, every_s, seconds)
    return [(at_s * NS_PER_S, (at_s + lasts_s * rng.uniform(1, 2)) * NS_PER_S) for at_s in starts]


def _within(spans: list[tuple[float, float]], true_ns: float) -> bool:
    """Spans that are over are dropped."""
    while spans and spans[0][1] <= true_ns:
        spans.pop(0)
    return bool(spans) and spans[0][0] <= true_ns
