"""How far replicas drift apart between two averagings, and what that costs in steps. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from timesyncd.training.policy.constants import (
    DRIFT_PER_DISSIMILARITY,
    FIXED_DRIFT,
    FIXED_DRIFT_FROM,
    RANKS_EXPONENT,
    SCATTER_PER_STEP,
)


@dataclass(frozen=True, slots=True)
class ReplicaDrift:
    """
    How far replicas drift apart between two averagings.

    `dissimilarity`: the squared distance of a rank's expected gradient from the mean of all ranks', as a multiple of
    the mean's square, with parameters that are equal on all ranks (zeta^2 / |grad f|^2 of Koloskova et al., ICML 2020).
    0: the same kind of data.
    """

    ranks: int
    dissimilarity: float = 0.0

    def steps(self, h: float) -> float:
        """Number of steps to the same loss, as a multiple of BSP's, with an averaging every `h` steps."""
        return self._fixed + self._per_step * h

    def time(self, h: float, ratio: float) -> float:
        """
        Time to the same loss, as a multiple of BSP's without communication. `ratio`: the duration of an averaging in
        steps.
        """
        return self.steps(h) * (1 + ratio / h)

    def best_interval(self, ratio: float) -> float:
        """The interval, in steps, with the shortest time."""
        return math.sqrt(self._fixed * ratio / self._per_step)

    @property
    def _fixed(self) -> float:
        return 1 + FIXED_DRIFT * min(1.0, self.dissimilarity / FIXED_DRIFT_FROM)

    @property
    def _per_step(self) -> float:
        scatter: float = SCATTER_PER_STEP * (self.ranks / 2) ** RANKS_EXPONENT
        return scatter + DRIFT_PER_DISSIMILARITY * self.dissimilarity * self.dissimilarity  # ** would raise on overflow
