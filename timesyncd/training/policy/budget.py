"""
The time that a job may spend on synchronization: a share of each epoch, within which its policy averages. Pure; the same
on every rank, since all go by the same rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from timesyncd.training.policy.auto import Auto
from timesyncd.training.policy.low_communication import DiLoCo
from timesyncd.training.policy.policies import LocalSGD, Policy
from timesyncd.training.policy.row import Row

#: A due averaging is put off for so many intervals of its policy at most: replicas that drift apart longer may not find
#: together.
MAX_INTERVALS = 8


@dataclass(slots=True)
class SyncBudget:
    """
    `share`: how much of an epoch's time may be spent waiting for averagings. `steps_per_epoch`: None: the whole run is
    one epoch.

    Rows report some steps late what was spent. Until then an averaging counts as long as those measured did, and a step
    too.
    """

    share: float
    steps_per_epoch: int | None = None
    _spent_ns: float = 0.0
    _elapsed_ns: float = 0.0
    _cost_ns: float = 0.0
    _step_ns: float = 0.0
    _step: int = 0
    _rounds: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"budget is {self.share}; it is a share of the time, above 0 and below 1")

    def measure(self, rows: Sequence[Row]) -> None:
        """By the rows of all ranks: the mean of their waiting, and the median of their computing."""
        step, rounds = rows[0].step, rows[0].rounds
        steps, averagings = step - self._step, rounds - self._rounds
        if steps <= 0:
            return  # of the epoch before
        wait_ns = statistics.fmean(row.wait_ns for row in rows)
        self._step_ns = statistics.median_low(row.compute_ns for row in rows)
        spent_ns = steps * wait_ns
        if averagings > 0:
            self._cost_ns = spent_ns / averagings
        self._spent_ns += spent_ns
        self._elapsed_ns += steps * self._step_ns + spent_ns
        self._step, self._rounds = step, rounds

    def begin_step(self, step: int, rounds: int) -> None:
        """Call it in each step. A new epoch has its own budget; what steps and averagings take stays known."""
        if self.steps_per_epoch is not None and step and step % self.steps_per_epoch == 0:
            self._spent_ns = self._elapsed_ns = 0.0
            self._step, self._rounds = step, rounds

    def allows(self, policy: Policy, step: int, rounds: int, steps_since_sync: int) -> bool:
        """Whether an averaging that the policy has due may be made now."""
        if not limits(policy) or not isinstance(policy, LocalSGD | DiLoCo):
            return True
        if not self._cost_ns or steps_since_sync >= MAX_INTERVALS * policy.h:
            return True
        spent_ns = self._spent_ns + (rounds - self._rounds + 1) * self._cost_ns
        elapsed_ns = self._elapsed_ns + (step - self._step + 1) * self._step_ns
        elapsed_ns += (rounds - self._rounds + 1) * self._cost_ns
        return spent_ns <= self.share * elapsed_ns

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def limits(policy: Policy) -> bool:
    """Whether a budget can put off this policy's averagings: ranks wait for them, and none depends on the step's number."""
    if isinstance(policy, LocalSGD):
        return not policy.delay and policy.across is None
    return isinstance(policy, DiLoCo)


def checked_budget(budget: float | None, policy: Policy, steps_per_epoch: int | None) -> SyncBudget | None:
    """Raises ValueError for a share that is none, and for a policy that no budget can limit."""
    if budget is None:
        return None
    if not limits(policy) and not isinstance(policy, Auto):
        raise ValueError(
            f"a budget limits local_sgd(h=...), diloco(h=...) and auto; {type(policy).__name__} synchronizes in steps of its own"
        )
    return SyncBudget(budget, steps_per_epoch)
