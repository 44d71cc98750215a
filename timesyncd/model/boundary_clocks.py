"""
Two views of one grandmaster through different boundary clocks, or of the local clock's rate: what they refute. Pure.

Nothing on a node shows the error of one chain of boundary clocks: it may announce class 6 in holdover. A second source
that follows the same grandmaster through another parent shows it as soon as the two intervals have no point in common.
"""

from __future__ import annotations

from typing import NamedTuple

from timesyncd.clocks import NS_PER_S
from timesyncd.model.oscillator import Drift

#: The grandmaster may have moved between the Syncs of two sources. So a contradiction refutes an assumption, and is
#: reported, once it has lasted so long. Meanwhile the bound covers both.
CONFIRMED_AFTER_NS = 2 * NS_PER_S

#: Two learned rates differ for so long before they refute an assumption: one slope is of ten seconds.
RATE_CONFIRMED_AFTER_NS = 60 * NS_PER_S


class GrandmasterView(NamedTuple):
    """
    The system clock minus the grandmaster by one source, in ns: within [`low_ns`, `high_ns`] where each of `hops`
    boundary clocks is exact; each may add `error_ns` (None: not known).
    """

    low_ns: int
    high_ns: int
    hops: int
    error_ns: int | None

    @property
    def outer(self) -> tuple[int, int] | None:
        """With the errors of the boundary clocks; None: unbounded."""
        if self.hops and self.error_ns is None:
            return None
        more_ns = self.hops * (self.error_ns or 0)
        return self.low_ns - more_ns, self.high_ns + more_ns


def observed_errors(one: GrandmasterView, other: GrandmasterView) -> tuple[int | None, int | None] | None:
    """
    None: the two views can both be true. Otherwise the error of each boundary clock with which a view covers both: which
    chain is wrong is not known. None within the pair: that view has no boundary clock.
    """
    ours, theirs = one.outer, other.outer
    if ours is None or theirs is None or (one.hops == 0 and other.hops == 0):
        return None
    if ours[0] <= theirs[1] and theirs[0] <= ours[1]:
        return None
    hull = min(ours[0], theirs[0]), max(ours[1], theirs[1])
    return _error_covering(one, hull), _error_covering(other, hull)


def _error_covering(view: GrandmasterView, hull: tuple[int, int]) -> int | None:
    if view.hops == 0:
        return None
    needed_ns = max(view.low_ns - hull[0], hull[1] - view.high_ns)
    return -(-needed_ns // view.hops)


def observed_rate_ppb(one: Drift, other: Drift, assumed_ppb: int) -> int | None:
    """
    One oscillator's rate against two references differs by the rates of the references: the least that both together
    move, where that is beyond `assumed_ppb`, with its error. None: it is within.
    """
    apart_ppb, error_ppb = abs(one.rate_ppb - other.rate_ppb), one.wander_ppb + other.wander_ppb
    return -int(-(apart_ppb + error_ppb) // 1) if apart_ppb - error_ppb > assumed_ppb else None


class Confirmations:
    """Since when each pair of sources contradicts itself."""

    def __init__(self) -> None:
        self._since: dict[frozenset[str], int] = {}

    def update(self, pair: frozenset[str], holds: bool, boottime_ns: int, after_ns: int) -> bool:
        """Whether it has held for `after_ns`."""
        if not holds:
            self._since.pop(pair, None)
            return False
        return boottime_ns - self._since.setdefault(pair, boottime_ns) >= after_ns


class BoundaryClockWatch:
    """The errors of boundary clocks that pairs of sources show: while they contradict each other, and for good once that lasted."""

    def __init__(self) -> None:
        self._confirmations = Confirmations()
        self._observed: dict[frozenset[str], dict[str, int]] = {}
        self._confirmed: set[frozenset[str]] = set()

    def compare(self, views: dict[str, GrandmasterView], boottime_ns: int) -> dict[str, int]:
        """
        Add the views of two sources, with the configured errors, at one moment. Returns the error of each boundary clock
        by source, where the configured one is refuted.
        """
        pair, (one, other) = frozenset(views), views.values()
        found = observed_errors(one, other)
        if self._confirmations.update(pair, found is not None, boottime_ns, CONFIRMED_AFTER_NS):
            self._confirmed.add(pair)
        if found is None:
            if pair not in self._confirmed:
                self._observed.pop(pair, None)
            return {}
        known = self._observed.setdefault(pair, {})
        for name, error_ns in zip(views, found, strict=True):
            if error_ns is not None:
                known[name] = max(known.get(name, 0), error_ns)
        return dict(known) if pair in self._confirmed else {}

    def error_ns(self, source: str) -> int | None:
        """The observed error of each boundary clock of this source; None: nothing contradicts the configured one."""
        return max((errors[source] for errors in self._observed.values() if source in errors), default=None)
