"""A node whose clock is known, and what its daemon publishes: no more than follows from its samples and what it received."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from fleet_grandmasters import BOUNDARY_PPB, GRANDMASTER_PPB, Parent, nanoseconds

from timesyncd.bound import Bound, Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import BoundMessage, NodeState, Status
from timesyncd.model.grandmaster import GrandmasterVerdict

SAMPLE_EVERY_S = 1.0
STATE_EVERY_S = 2.0
HOLDOVER_AFTER_NS = 5 * NS_PER_S
VOID_AFTER_NS = 40 * NS_PER_S

#: The true time, in ns since 1970, at which the simulation begins; BOOTTIMEs begin with it.
EPOCH_NS = 1_790_000_000 * NS_PER_S

#: What a sample may be wrong by, and what the reading of two clocks, here and on the hub, adds to that.
NOISE_NS = 300
READING_NS = 10

#: Within so much of the truth a clock is that was just set by hand.
SET_BY_HAND_NS = 1e6


@dataclass(frozen=True, slots=True)
class Known:
    """A sample: when, what of, and the bounds that follow."""

    at_s: float
    grandmaster: str
    parent: str
    bounds: tuple[Bound, Bound, Bound]


class Node:
    """
    `error_ns` is its clock minus UTC. It runs fast or slow by all that its oscillator may, is set right at each sample up to what that is wrong
    by, and moves at once for other reasons at `disturbed_s`. `removed` are the whole seconds that it takes out; 37 is right.
    """

    def __init__(self, name: str, parent: Parent, chance: Random, drift_ppb: int, removed: int = 37) -> None:
        self.name = name
        self.parent = parent
        self.drift_ppb = drift_ppb
        self.removed = removed
        self.error_ns = chance.uniform(-SET_BY_HAND_NS, SET_BY_HAND_NS)
        self.disturbed_s = 0.0
        self.is_fed = self.is_connected = True
        self.incarnation, self.sequence, self.boot = 1, 0, 0
        self.known: Known | None = None
        self._chance = chance
        self._rate_ppb = chance.choice((-drift_ppb, drift_ppb))
        self._reason = Reason.NO_SAMPLE_YET
        self._verdicts: dict[str, GrandmasterVerdict] = {}
        self._invalid_before_s: dict[str, float] = {}
        self._sample_due_s = chance.random()
        self._state_due_s = chance.random() * STATE_EVERY_S

    def run(self, now_s: float, elapsed_s: float) -> None:
        self.error_ns += self._rate_ppb * elapsed_s
        if now_s >= self._sample_due_s:
            self._sample_due_s = now_s + SAMPLE_EVERY_S * self._chance.uniform(0.8, 1.2)
            if self.is_fed:
                self._sample(now_s)

    def realtime_ns(self, now_s: float) -> int:
        return EPOCH_NS + nanoseconds(now_s) + round(self.error_ns)

    def receive(self, identity: str, verdict: GrandmasterVerdict, invalid_before_s: float | None) -> None:
        """What a grandmaster's poller reports: what was measured before a change of its phase is invalid."""
        known = self._verdicts.get(identity)
        if known is None or verdict.as_of_ns > known.as_of_ns:
            self._verdicts[identity] = verdict
        if invalid_before_s is None or invalid_before_s <= self._invalid_before_s.get(identity, -math.inf):
            return
        self._invalid_before_s[identity] = invalid_before_s
        if self.known is not None and self.known.grandmaster == identity and self.known.at_s < invalid_before_s:
            self.withdraw(Reason.GRANDMASTER_JUMPED)

    def withdraw(self, reason: Reason) -> None:
        """What it knew is invalid, which it publishes at once."""
        self.known, self._reason, self._state_due_s = None, reason, 0.0

    def follow(self, parent: Parent) -> None:
        self.parent = parent
        self.withdraw(Reason.PARENT_CHANGED)

    def set_clock(self, now_s: float, by_ns: float) -> None:
        self.error_ns += by_ns
        self.disturbed_s = now_s
        self.withdraw(Reason.CLOCK_STEPPED)

    def cut_off(self, ptp: bool, broker: bool) -> None:
        """From its parent, from the broker, or from both; what was cut off is connected again."""
        self.is_fed, self.is_connected = self.is_fed != ptp, self.is_connected != broker

    def restart(self, now_s: float, reboot: bool) -> None:
        """Of its daemon, or of the whole machine, whose clock is then anywhere."""
        if reboot:
            self.boot += 1
            self.set_clock(now_s, self._chance.uniform(-SET_BY_HAND_NS, SET_BY_HAND_NS))
        self.incarnation, self.sequence = self.incarnation + 1, 0
        self._verdicts.clear()
        self.withdraw(Reason.NO_SAMPLE_YET)

    def _sample(self, now_s: float) -> None:
        grandmaster = self.parent.grandmaster
        if now_s < self._invalid_before_s.get(grandmaster.identity, -math.inf):
            return
        if self.known is None or (self.known.parent, self.known.grandmaster) != (
            self.parent.identity,
            grandmaster.identity,
        ):
            self.disturbed_s = now_s
            self._state_due_s = 0.0
        wrong_ns = self._chance.choice((-NOISE_NS, NOISE_NS, self._chance.uniform(-NOISE_NS, NOISE_NS)))
        self.error_ns = self.parent.error_ns(now_s) + wrong_ns + (37 - self.removed) * NS_PER_S
        parent = Bound(NOISE_NS + READING_NS, self.drift_ppb + GRANDMASTER_PPB + BOUNDARY_PPB * self.parent.is_boundary)
        gm = parent.plus(self.parent.boundary_ns)
        self.known = Known(now_s, grandmaster.identity, self.parent.identity, (parent, gm, self._utc(gm, now_s)))

    def _utc(self, gm: Bound, now_s: float) -> Bound:
        verdict = self._verdicts.get(self.parent.grandmaster.identity)
        if verdict is None or self.parent.grandmaster.arbitrary_ns or self.removed != 37:
            return Bound(None, 0, Reason.GRANDMASTER_ERROR_NOT_REPORTED)
        own = verdict.utc_at(nanoseconds(now_s))
        return own if own.bound_ns is None else gm.plus(own.bound_ns, own.growth_ppb)

    def state_due(self, now_s: float) -> bool:
        return self.is_connected and now_s >= self._state_due_s

    def state(self, now_s: float) -> NodeState:
        self._state_due_s = now_s + STATE_EVERY_S * self._chance.uniform(0.8, 1.2)
        self.sequence += 1
        known = self.known
        status = self._status(now_s)
        bounds = [BoundMessage.of(bound) for bound in known.bounds] if known and status != "UNKNOWN" else [None] * 3
        return NodeState(
            node=self.name,
            incarnation=self.incarnation,
            sequence=self.sequence,
            published_realtime_ns=self.realtime_ns(now_s),
            age_ns=nanoseconds(now_s - known.at_s) if known else None,
            boot_id=f"{self.name}/{self.boot}",
            time_namespace=1,
            status=status,
            utc_status=status if known and known.bounds[2].bound_ns is not None else "UNKNOWN",
            reason="" if known else self._reason.text,
            reason_code="ok" if known else self._reason.code,
            since_realtime_ns=None,
            parent=bounds[0],
            gm=bounds[1],
            utc=bounds[2],
            holdover_after_ns=HOLDOVER_AFTER_NS,
            void_after_ns=VOID_AFTER_NS,
            grandmaster_identity=known.grandmaster if known else None,
            parent_identity=known.parent if known else None,
            utc_seconds_removed=self.removed if known else None,
        )

    def _status(self, now_s: float) -> Status:
        if self.known is None:
            return "DISRUPTED"
        age_ns = nanoseconds(now_s - self.known.at_s)
        if age_ns >= VOID_AFTER_NS:
            return "UNKNOWN"
        return "SYNCHRONIZED" if age_ns < HOLDOVER_AFTER_NS else "HOLDOVER"
