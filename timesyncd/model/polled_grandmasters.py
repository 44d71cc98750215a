"""The grandmasters and boundary clocks that a poller reads, as the ensemble knows them: whom a verdict concerns. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from timesyncd.model.grandmaster import GrandmasterVerdict, Invalidation
from timesyncd.sample import ClockSample

#: Where two daemons poll a grandmaster, one of them counts until its last poll is older than the other's by this.
POLLER_LOST_NS = 60_000_000_000

#: A client of the broker that may write every topic can invent grandmasters. The one that was polled longest ago goes first;
#: a daemon takes in fewer at once (daemon/remote_state.py).
MAX_KNOWN = 512


@dataclass(frozen=True, slots=True)
class PolledGrandmaster:
    """
    A grandmaster with a poller: the clock identities that it announces, the newest verdict, and the newest
    invalidation.
    """

    identities: frozenset[str]
    verdict: GrandmasterVerdict
    invalidation: Invalidation | None

    @property
    def invalid_before_ns(self) -> float:
        """What was measured before (CLOCK_BOOTTIME) does not apply."""
        return self.invalidation.before_ns if self.invalidation else -math.inf


class VerdictTaken(NamedTuple):
    """A grandmaster with its new verdict, and the identities that its followers name, now or before."""

    grandmaster: PolledGrandmaster
    affected: frozenset[str]


class PolledGrandmasters:
    """By name; each is known once a verdict of it has come."""

    def __init__(self) -> None:
        self._known: dict[str, PolledGrandmaster] = {}

    def take(
        self, name: str, identities: Collection[str], verdict: GrandmasterVerdict, boottime_ns: int
    ) -> VerdictTaken | None:
        """Replace the verdict of the grandmaster `name`; None: another poller's counts."""
        known = self._known.get(name)
        if known and not _takes_over(verdict, known.verdict):
            return None
        if known is None and len(self._known) >= MAX_KNOWN:
            del self._known[min(self._known, key=lambda each: self._known[each].verdict.as_of_ns)]
        invalidation = _newest_invalidation(known, verdict.invalidation, boottime_ns)
        new = self._known[name] = PolledGrandmaster(frozenset(identities), verdict, invalidation)
        return VerdictTaken(new, new.identities | known.identities if known else new.identities)

    def followed_by(self, sample: ClockSample) -> list[PolledGrandmaster]:
        """
        More than one where two grandmasters announce one identity, as after an exchange of modules: the wider bound
        counts.
        """
        if not self._known:
            return []
        return [known for known in self._known.values() if sample.grandmaster_identity in known.identities]

    def boundary_clock_of(self, sample: ClockSample) -> tuple[str, PolledGrandmaster] | None:
        """The poller's name and verdict of the boundary clock that this source follows."""
        if sample.parent_identity == sample.grandmaster_identity:
            return None
        named = self._known.items()
        return next(((name, known) for name, known in named if sample.parent_identity in known.identities), None)


def _takes_over(new: GrandmasterVerdict, known: GrandmasterVerdict) -> bool:
    """Two pollers date an event by their own polls: switching between them would invalidate twice."""
    return new.poller == known.poller or new.as_of_ns - known.as_of_ns > POLLER_LOST_NS


def _newest_invalidation(
    known: PolledGrandmaster | None, received: Invalidation | None, boottime_ns: int
) -> Invalidation | None:
    """An event that is reported again keeps its first date; no date lies in the future."""
    before = known.invalidation if known else None
    if received is None or (before and before.event == received.event):
        return before
    received = replace(received, before_ns=min(received.before_ns, boottime_ns))
    return received if before is None or received.before_ns > before.before_ns else before
