"""What averaging every so many steps costs in steps, and which interval takes the least time. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Replicas of two ranks with alike data that are averaged every h steps need 1 + this * h times as many steps as BSP; of N ranks (N/2)^1.5 times as
#: much more, so that the best interval falls with N^(-3/4), as the longest one does with which N ranks still learn N times as fast (Yu, Yang and
#: Zhu, arXiv 1807.06629). On digits and text (bench/policies) it was 0.001 to 0.002 with two ranks, 0.004 to 0.005 with four.
SCATTER, MORE_RANKS = 0.0018, 1.5

#: Of different data it is more by this times the dissimilarity squared: on sorted digits 0.02 with two ranks (dissimilarity 4 to 7), 0.08 with three
#: (12 to 19), 0.4 with four (24 to 32).
DIFFERENCE = 0.0006

#: And this much more whatever the interval, from such a dissimilarity on: with two ranks.
ALWAYS, ALWAYS_FROM = 0.75, 4.0


@dataclass(frozen=True, slots=True)
class Drift:
    """
    How far replicas drift apart between two averagings.

    `dissimilarity`: the squared distance of a rank's expected gradient from the mean of all ranks', as a multiple of the mean's square, with
    parameters that are the same on all ranks (zeta^2 / |grad f|^2 of Koloskova et al., ICML 2020). 0: alike data.
    """

    ranks: int
    dissimilarity: float = 0.0

    def steps(self, h: float) -> float:
        """How many times as many as BSP."""
        return self._at_least + self._each * h

    def time(self, h: float, ratio: float) -> float:
        """As a multiple of BSP's where communication costs nothing; an averaging takes `ratio` steps."""
        return self.steps(h) * (1 + ratio / h)

    def best(self, ratio: float) -> float:
        """The interval with the least time."""
        return math.sqrt(self._at_least * ratio / self._each)

    @property
    def _at_least(self) -> float:
        return 1 + ALWAYS * min(1.0, self.dissimilarity / ALWAYS_FROM)

    @property
    def _each(self) -> float:
        scatter: float = SCATTER * (self.ranks / 2) ** MORE_RANKS
        return scatter + DIFFERENCE * self.dissimilarity * self.dissimilarity  # which ** would find too large
