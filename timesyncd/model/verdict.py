"""What a node hears of its grandmaster's own error from whoever polls that unit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from timesyncd.bound import UNIT_HOLDS_NS, Bound, Reason, unbounded


@dataclass(frozen=True, slots=True)
class Void:
    """
    A grandmaster did something, for `reason`, after which nothing holds that was measured before `before_ns` (CLOCK_BOOTTIME).
    `event` is the same each time that this one is told.
    """

    event: int
    before_ns: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class GrandmasterVerdict:
    """
    What the poller of a grandmaster says of it: `utc` bounds its own error as of `as_of_ns` (this node's CLOCK_BOOTTIME, never
    later than the poll), in holdover for no longer than `holdover_left_ns` from then (None: it is not in holdover).
    """

    poller: str
    utc: Bound
    as_of_ns: int
    holdover_left_ns: int | None = None
    void: Void | None = None

    def utc_at(self, boottime_ns: int) -> Bound:
        """Its own error at this moment; unbounded when its budget is used up, or nothing was heard for too long."""
        age_ns = max(0, boottime_ns - self.as_of_ns)
        bound_ns = self.utc.at(age_ns)
        if bound_ns is None:
            return self.utc
        if self.holdover_left_ns is not None and age_ns > self.holdover_left_ns:
            return unbounded(Reason.HOLDOVER_BUDGET_EXCEEDED)
        if age_ns >= UNIT_HOLDS_NS:
            return unbounded(Reason.GRANDMASTER_UNHEARD)
        return Bound(bound_ns, self.utc.growth_ppb)


@dataclass(frozen=True, slots=True)
class Received:
    """When a message came, on this node's two clocks, and its sender's CLOCK_REALTIME at its publication."""

    boottime_ns: int
    realtime_ns: int
    published_realtime_ns: int

    def poll_ns(self, age_ns: int) -> int:
        """CLOCK_BOOTTIME of what was `age_ns` old at publication: an age is never understated, however long the way."""
        return self.boottime_ns - age_ns - max(0, self.realtime_ns - self.published_realtime_ns)

    def void(self, before_realtime_ns: int, reason: Reason) -> Void:
        """Of what the sender dated on its own clock: never dated too early, so the way here does not count."""
        age_ns = max(0, self.published_realtime_ns - before_realtime_ns)
        return Void(before_realtime_ns, self.boottime_ns - age_ns, reason)
