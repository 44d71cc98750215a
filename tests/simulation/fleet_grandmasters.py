"""Grandmasters and boundary clocks of known error, and what a grandmaster's poller reports, which is true."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from timesyncd.bound import Bound, Reason
from timesyncd.clocks import NS_PER_S

POLL_EVERY_S = 5.0

#: What a grandmaster and a boundary clock, each, moves by against UTC and against its grandmaster at most, but for sudden changes.
GRANDMASTER_PPB = 60
BOUNDARY_PPB = 50

#: A boundary clock's error against its grandmaster.
BOUNDARY_NS = 500.0


@dataclass
class KnownGrandmaster:
    """
    A grandmaster. While locked it is within `accuracy_ns` of UTC; in holdover it leaves that by `drift_ppb`. `arbitrary_ns` other than 0:
    its timescale has nothing to do with UTC.
    """

    identity: str
    accuracy_ns: float
    drift_ppb: float
    chance: Random
    arbitrary_ns: float = 0.0
    changed_s: float = -math.inf
    """When its phase moved at once for the last time."""
    holdover_since_s: float | None = None
    _base_ns: float = 0.0
    _reported_change_s: float = -math.inf
    invalid_before_s: float | None = None

    def __post_init__(self) -> None:
        self._sign = self.chance.choice((-1, 1))
        self._swing_ns = min(self.accuracy_ns / 4, 100.0)
        self._base_ns = self._drawn_ns()

    def error_ns(self, now_s: float) -> float:
        """Its time minus UTC."""
        error_ns = self.arbitrary_ns + self._base_ns + self._swing_ns * math.sin(now_s / 8)
        if self.holdover_since_s is not None:
            error_ns += self._sign * self.drift_ppb * (now_s - self.holdover_since_s)
        return error_ns

    def lose_reference(self, now_s: float) -> None:
        if self.holdover_since_s is None:
            self.holdover_since_s = now_s

    def jump(self, now_s: float) -> None:
        """It follows its reference again, or restarted, or its phase was set."""
        self._base_ns, self.holdover_since_s, self.changed_s = self._drawn_ns(), None, now_s
        self._sign = self.chance.choice((-1, 1))

    def poll(self, now_s: float) -> tuple[Bound, float | None]:
        """Its own error from now on, and before when its followers' samples are invalid: a change is seen at the poll that follows."""
        if self.changed_s != self._reported_change_s:
            self._reported_change_s = self.changed_s
            self.invalid_before_s = now_s
        since_s = self.holdover_since_s
        drifted_ns = self.drift_ppb * (now_s - since_s) if since_s is not None else 0.0
        return Bound(math.ceil(self.accuracy_ns + drifted_ns) + 1, math.ceil(self.drift_ppb)), self.invalid_before_s

    def _drawn_ns(self) -> float:
        """As often as not as far off as it may be."""
        most_ns = self.accuracy_ns - self._swing_ns
        return self.chance.choice((-most_ns, most_ns, self.chance.uniform(-most_ns, most_ns)))


INVALIDATION_REASON = Reason.GRANDMASTER_JUMPED


@dataclass
class Parent:
    """What a node receives: the grandmaster itself, or a boundary clock that follows it, and at failover another one."""

    identity: str
    grandmaster: KnownGrandmaster
    is_boundary: bool
    phase: float = 0.0

    def error_ns(self, now_s: float) -> float:
        own_ns = BOUNDARY_NS * math.sin(self.phase + now_s / 12) if self.is_boundary else 0.0
        return self.grandmaster.error_ns(now_s) + own_ns

    @property
    def boundary_ns(self) -> int:
        return int(BOUNDARY_NS) if self.is_boundary else 0


def nanoseconds(seconds: float) -> int:
    return round(seconds * NS_PER_S)
