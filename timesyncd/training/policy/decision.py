"""What a policy answers in each step, and what it sees to answer by. Pure: the same on every rank, because what is seen is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Decision(Enum):
    """SYNC: the ranks synchronize in this step. LOCAL: this one goes on alone. WAIT: it must let the others catch up first."""

    SYNC = "sync"
    LOCAL = "local"
    WAIT = "wait"


class Combine(Enum):
    """
    What a synchronization combines.

    GRADIENTS: their mean, before the update. PARAMETERS: their mean, after each rank's own update. SERVER: updates are added up by a
    parameter server. GATHERED: gradients of several steps make one update, in the last of them.
    """

    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    SERVER = "server"
    GATHERED = "gathered"


@dataclass(frozen=True, slots=True)
class Seen:
    """
    What a policy decides by. Every number is the same on all ranks in the same step, but `ahead`.

    `step` counts the steps before this one, `since` those since the last synchronization, this one included (so at least 1), `rounds` the
    synchronizations so far. `votes` are the ranks' flags that are due in this step, None where none are. `ahead`: how many updates this rank is ahead of
    the slowest.
    """

    step: int
    since: int
    ranks: int
    rounds: int = 0
    learning_rate: float | None = None
    steps_per_epoch: int | None = None
    votes: tuple[bool, ...] | None = None
    ahead: int = 0


class Policy(Protocol):
    """
    When to synchronize. A policy is data: frozen, written as text, the same on all ranks.

    `late`: None, or after how many steps it decides by the flags of a step.
    """

    @property
    def combines(self) -> Combine: ...

    @property
    def late(self) -> int | None: ...

    def decide(self, seen: Seen) -> Decision: ...


def synced(when: bool) -> Decision:
    return Decision.SYNC if when else Decision.LOCAL


def at_least(name: str, value: float, least: float) -> None:
    """Raises ValueError for a parameter that is too small, or no number."""
    if not value >= least:
        raise ValueError(f"{name}={value}: at least {least} is wanted")
