"""Whether the replicas of a job's ranks are one: hashes that the ranks tell after a synchronization that makes them so. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

#: Steps that are kept, the newest ones, and ranks of each.
MAX_STEPS, MAX_RANKS = 4, 4096


@dataclass(frozen=True, slots=True)
class Apart:
    """In the step with this key these ranks had another replica than most."""

    step: int
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Replicas:
    _said: dict[int, dict[int, int]] = field(default_factory=dict)

    def put(self, rank: int, step: int, replica: int) -> None:
        """What a rank said first of a step counts; an older step than all that are kept does not."""
        said = self._said.setdefault(step, {})
        if len(said) < MAX_RANKS:
            said.setdefault(rank, replica)
        if len(self._said) > MAX_STEPS:
            del self._said[min(self._said)]

    def apart(self) -> Apart | None:
        """By the newest step of which two ranks told; None: they are one, or nothing is known."""
        step = max((step for step, said in self._said.items() if len(said) > 1), default=None)
        if step is None:
            return None
        said = self._said[step]
        counts, first = Counter(said.values()), said[min(said)]
        usual = min(counts, key=lambda replica: (-counts[replica], replica != first))
        others = tuple(sorted(rank for rank, replica in said.items() if replica != usual))
        return Apart(step, others) if others else None
