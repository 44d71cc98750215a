"""
SelSync (Tyagi and Swany, IEEE CLUSTER 2023, arXiv 2307.07950): synchronize when some rank's gradients change.

Each rank computes the relative change of its gradients and votes for a synchronization or not; one vote for it is
enough. In the paper every step waits for the votes of all ranks (`late=0`). Here a vote may count some steps later, so
that no step waits for votes.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from timesyncd.training.policy.policies import Combine, Decision, PolicyContext, check_at_least, sync_if

#: Number of squared norms in an average (the paper's w).
WINDOW = 25

#: Number of changes that a quantile is computed from: at most, and at least.
KEPT_CHANGES, MIN_CHANGES = 200, 25

#: Squared norms above this count as infinite: the sum of a window of them would overflow.
_MAX_SQUARE_NORM = 1e300


@dataclass(frozen=True, slots=True)
class SelSync:
    """
    Takes exactly one of `delta`, the paper's threshold, and `quantile`, the intended share of steps without a
    synchronization, for any number of ranks.

    `late`: number of steps after which a vote counts. `smoothing`: the factor of the average; None: N/100, as in the
    paper. `aggregate`: what is averaged, the parameters after the update or the gradients before it; `gradients` lets
    the replicas diverge, as the paper shows.
    """

    delta: float | None = None
    quantile: float | None = None
    late: int = 1
    aggregate: Literal["parameters", "gradients"] = "parameters"
    smoothing: float | None = None

    def __post_init__(self) -> None:
        if (self.delta is None) == (self.quantile is None):
            raise ValueError("selsync needs exactly one of delta and quantile")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ValueError(f"quantile is {self.quantile}; it must be above 0 and below 1")
        if self.smoothing is not None and not 0 < self.smoothing <= 1:
            raise ValueError(f"smoothing is {self.smoothing}; it must be above 0 and at most 1")
        if self.aggregate not in ("parameters", "gradients"):
            raise ValueError(f"aggregate is {self.aggregate!r}; it must be parameters or gradients")
        check_at_least("late", self.late, 0)
        check_at_least("delta", self.delta or 0, 0)

    @property
    def combines(self) -> Combine:
        return Combine(self.aggregate)

    def decide(self, context: PolicyContext) -> Decision:
        return sync_if(context.votes is not None and any(context.votes))


class RelativeChange:
    """
    The relative gradient change of one rank (Eq. 2): |E_i - E_(i-1)| / E_(i-1), where E is the exponentially weighted
    mean of the newest WINDOW squared gradient norms.
    """

    def __init__(self, smoothing: float) -> None:
        self._weights = [(1 - smoothing) ** age for age in range(WINDOW)]
        #: By the number of norms: the sum of their weights.
        self._weight_sums = [math.fsum(self._weights[:count]) for count in range(WINDOW + 1)]
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._mean: float | None = None

    def add(self, square_norm: float) -> float:
        """
        Add a step's squared norm. Returns the change: 0 in the first step, infinite for a norm that is not finite or
        follows a mean of 0.
        """
        if not square_norm <= _MAX_SQUARE_NORM:
            return math.inf
        self._norms.appendleft(square_norm)
        weighted = math.fsum(map(operator.mul, self._weights, self._norms))
        former, self._mean = self._mean, weighted / self._weight_sums[len(self._norms)]
        if former is None or former == self._mean:
            return 0.0
        return abs(self._mean - former) / former if former > 0 else math.inf

    def state_dict(self) -> dict[str, Any]:
        return {"norms": list(self._norms), "mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norms = deque(state["norms"], maxlen=WINDOW)
        self._mean = state["mean"]


class Voter:
    """Computes the votes of one rank."""

    def __init__(self, policy: SelSync, rank: int, ranks: int) -> None:
        self._policy = policy
        self._ranks = ranks
        # The paper's N/100 would exceed 1 with more than 100 ranks.
        self._change = RelativeChange(policy.smoothing if policy.smoothing is not None else min(1.0, ranks / 100))
        self._changes: deque[float] = deque(maxlen=KEPT_CHANGES)
        # Ranks that may vote in some steps only start out of phase, so that they vote in different steps.
        self._carry = rank / ranks

    def vote(self, square_norm: float) -> bool:
        """Whether this rank votes for a synchronization, by the squared norm of its own gradient."""
        change = self._change.add(square_norm)
        threshold = self._policy.delta if self._policy.delta is not None else self._quantile()
        self._changes.append(change)
        return threshold is None or change >= threshold

    def _quantile(self) -> float | None:
        """
        The threshold that makes all ranks together skip `quantile` of the steps, if they vote independently: 1 -
        P(sync) = (1 - p)^N.

        Of n kept changes and a new one, each is the largest in one of n + 1 cases, so p (n + 1) of them reach the
        threshold. The fraction of that number is carried over to the next step. None: too few changes yet, and the rank
        votes for a synchronization.
        """
        if len(self._changes) < MIN_CHANGES:
            return None
        assert self._policy.quantile is not None
        share = 1 - math.pow(self._policy.quantile, 1 / self._ranks)
        self._carry, above = math.modf(self._carry + share * (len(self._changes) + 1))
        return math.inf if above < 1 else sorted(self._changes)[-min(int(above), len(self._changes))]

    def state_dict(self) -> dict[str, Any]:
        return {"change": self._change.state_dict(), "changes": list(self._changes), "carry": self._carry}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._change.load_state_dict(state["change"])
        self._changes = deque(state["changes"], maxlen=KEPT_CHANGES)
        self._carry = state["carry"]
