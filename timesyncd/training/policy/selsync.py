"""
SelSync (Tyagi and Swany, IEEE CLUSTER 2023, arXiv 2307.07950): synchronize when some rank's gradients change.

Each rank has its own relative gradient change and says by one flag whether it wants a synchronization; one flag is enough. In the paper
every step waits for all flags (`late=0`); here they may come some steps later, so that no step waits for them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from timesyncd.training.policy.policies import Combine, Decision, PolicyContext, check_at_least, sync_if

#: Squared norms that an average is made of (the paper's w).
WINDOW = 25

#: Changes that a quantile is taken of, and as many of them before there is one.
KEPT_CHANGES, MIN_CHANGES = 200, 25

#: Squared norms above it are no numbers: a window of them has no sum.
_LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class SelSync:
    """
    Exactly one of `delta`, the paper's threshold, and `quantile`: the share of steps without a synchronization that is aimed at, whatever the
    number of ranks.

    `late`: how many steps after a flag it counts. `smoothing` is the average's factor; None: N/100, as in the paper. `aggregate`: what is averaged, the
    parameters after the update or the gradients before it; `gradients` leaves replicas apart, as the paper shows.
    """

    delta: float | None = None
    quantile: float | None = None
    late: int = 1
    aggregate: Literal["parameters", "gradients"] = "parameters"
    smoothing: float | None = None

    def __post_init__(self) -> None:
        if (self.delta is None) == (self.quantile is None):
            raise ValueError("selsync takes one of delta and quantile")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ValueError(f"quantile={self.quantile}: within 0 and 1 is wanted")
        if self.smoothing is not None and not 0 < self.smoothing <= 1:
            raise ValueError(f"smoothing={self.smoothing}: above 0 and at most 1 is wanted")
        if self.aggregate not in ("parameters", "gradients"):
            raise ValueError(f"aggregate={self.aggregate!r}: parameters or gradients is wanted")
        check_at_least("late", self.late, 0)
        check_at_least("delta", self.delta or 0, 0)

    @property
    def combines(self) -> Combine:
        return Combine(self.aggregate)

    def decide(self, seen: PolicyContext) -> Decision:
        return sync_if(seen.votes is not None and any(seen.votes))


class RelativeChange:
    """
    The relative gradient change of one rank (Eq. 2): |E_i - E_(i-1)| / E_(i-1), where E is the exponentially weighted mean of the newest 25
    squared gradient norms.
    """

    def __init__(self, smoothing: float) -> None:
        self._weights = [(1 - smoothing) ** age for age in range(WINDOW)]
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._mean: float | None = None

    def add(self, square_norm: float) -> float:
        """The change by this step's squared norm; 0 for the first one, infinite for one that is no number or comes after nothing."""
        if not square_norm <= _LARGEST:
            return math.inf
        self._norms.appendleft(square_norm)
        weights = self._weights[: len(self._norms)]
        former, self._mean = self._mean, math.fsum(map(_product, weights, self._norms)) / math.fsum(weights)
        if former is None or former == self._mean:
            return 0.0
        return abs(self._mean - former) / former if former > 0 else math.inf

    def state_dict(self) -> dict[str, Any]:
        return {"norms": list(self._norms), "mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norms = deque(state["norms"], maxlen=WINDOW)
        self._mean = state["mean"]


class Voter:
    """One rank's flags."""

    needs_norm: ClassVar[bool] = True

    def __init__(self, policy: SelSync, rank: int, ranks: int) -> None:
        self._policy = policy
        self._ranks = ranks
        # The paper's N/100 is for at most as many ranks as a factor of 1 allows.
        self._change = RelativeChange(policy.smoothing if policy.smoothing is not None else min(1.0, ranks / 100))
        self._changes: deque[float] = deque(maxlen=KEPT_CHANGES)
        # Where a rank may flag in some steps only, others do so in the steps between.
        self._left = rank / ranks

    def vote(self, square_norm: float) -> bool:
        """Whether this rank wants a synchronization, by the squared norm of its own gradient."""
        change = self._change.add(square_norm)
        threshold = self._policy.delta if self._policy.delta is not None else self._quantile()
        self._changes.append(change)
        return threshold is None or change >= threshold

    def _quantile(self) -> float | None:
        """
        Of this rank's newest changes, so that all ranks together leave `quantile` of the steps alone, if they vote independently:
        1 - P(sync) = (1 - p)^N. Of n changes and a new one each is the largest in one of n + 1 cases, so p (n + 1) of them are at the threshold or
        above it; what that is more than a whole number is kept for the steps to come. None: too few yet, so it votes.
        """
        if len(self._changes) < MIN_CHANGES:
            return None
        assert self._policy.quantile is not None
        share = 1 - math.pow(self._policy.quantile, 1 / self._ranks)
        self._left, above = math.modf(self._left + share * (len(self._changes) + 1))
        return math.inf if above < 1 else sorted(self._changes)[-min(int(above), len(self._changes))]

    def state_dict(self) -> dict[str, Any]:
        return {"change": self._change.state_dict(), "changes": list(self._changes), "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._change.load_state_dict(state["change"])
        self._changes = deque(state["changes"], maxlen=KEPT_CHANGES)
        self._left = state["left"]


def _product(weight: float, norm: float) -> float:
    return weight * norm
