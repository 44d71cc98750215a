"""
How the ranks of a job keep to one policy: the step that they are in, and the policy in force.

Each rank runs its own PolicySchedule. All schedules get the same rows in the same step, so all ranks decide alike
without asking each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from timesyncd.training.policy.auto import Auto
from timesyncd.training.policy.budget import checked_budget
from timesyncd.training.policy.low_communication import DiLoCo
from timesyncd.training.policy.policies import BSP, Combine, Decision, FedAvg, LocalSGD, Policy, PolicyContext
from timesyncd.training.policy.row import Purpose, Row, check_in_step
from timesyncd.training.policy.text import Strategy, parse_policy

#: Under a policy without votes, ranks exchange rows in steps that synchronize: at least the first number of steps
#: apart, at most about the second, and the rows count the third number of steps later. So rows travel while ranks wait
#: anyway; the threads that send and receive would slow down computing otherwise.
MIN_STEPS_BETWEEN_ROWS, MAX_STEPS_BETWEEN_ROWS, ROWS_DELAY = 8, 32, 8

#: The first rows are exchanged in this step, and ranks wait for them: the controller has no measurements before, and a
#: step of BSP may take as long as eight others.
FIRST_ROWS_STEP = 3


class PolicySchedule:
    """
    The schedule of one rank. In each step the rank calls, in this order: `begin_exchange` (whether it sends a row now),
    `take_due` (the steps whose rows it reads now), `decide`, `next_step`, and `accept_request` after the update.
    """

    def __init__(
        self, strategy: Strategy, ranks: int, steps_per_epoch: int | None = None, budget: float | None = None
    ) -> None:
        self.strategy = strategy
        self._budget = checked_budget(budget, strategy.policy, steps_per_epoch)
        self.step = 0
        self.steps_since_sync = 1
        self.rounds = 0
        self.request_number = 0
        self._rate: float | None = None
        self._ranks = ranks
        self._steps_per_epoch = steps_per_epoch
        self._last_exchange = -1
        #: Steps whose rows are in transit, each with the step in which the rows count.
        self._pending: deque[tuple[int, int]] = deque()

    def check_start(self, rows: Sequence[Row]) -> None:
        """
        By the first row of all ranks. Raises ValueError where they start with different policies or steps per epoch.
        """
        first = rows[0]
        for rank, row in enumerate(rows):
            if (row.requested_policy, row.step) != (first.requested_policy, first.step):
                raise ValueError(
                    f"rank 0 starts with policy {first.requested_policy!r} and {first.step} steps per epoch, rank "
                    f"{rank} with "
                    f"{row.requested_policy!r} and {row.step}; give all ranks the same"
                )
        self._update_rate(first)

    def first_row(self, learning_rate: float | None) -> Row:
        return Row(
            self._steps_per_epoch or 0,
            purpose=Purpose.START,
            requested_policy=str(self.strategy),
            rate=math.nan if learning_rate is None else learning_rate,
        )

    def begin_exchange(self) -> bool:
        """Whether every rank sends a row in this step. If so, `take_due` returns this step when its rows count."""
        delay = self.strategy.policy.late
        if delay is None:
            if self.step == FIRST_ROWS_STEP:
                delay = 0
            elif self._exchanges_without_votes():
                delay = ROWS_DELAY
            else:
                return False
        self._last_exchange = self.step
        self._pending.append((self.step, self.step + delay))
        return True

    def _exchanges_without_votes(self) -> bool:
        passed = self.step - self._last_exchange
        if passed < MIN_STEPS_BETWEEN_ROWS:
            return False
        return passed >= MAX_STEPS_BETWEEN_ROWS or self.strategy.policy.decide(self._context(None)) is Decision.SYNC

    def take_due(self) -> list[int]:
        """The steps whose rows count in this step, oldest first; each once."""
        due = [step for step, counts_in in self._pending if counts_in <= self.step]
        if due:
            self._pending = deque((step, counts_in) for step, counts_in in self._pending if counts_in > self.step)
        return due

    def decide(self, due_rows: Sequence[Sequence[Row]]) -> Decision:
        """
        `due_rows`: for each due step, the rows by rank. Raises SyncError where the rows of one exchange are of
        different steps.
        """
        for rows in due_rows:
            check_in_step(rows)
            self._update_rate(rows[0])
            if self._budget is not None:
                self._budget.measure(rows)
        if self._budget is not None:
            self._budget.begin_step(self.step, self.rounds)
        if self.strategy.policy.combines is Combine.ACCUMULATED and self._requested(due_rows) is not None:
            return Decision.SYNC  # the accumulated gradients make their update before another policy begins
        votes = None
        if due_rows:
            votes = tuple(any(rows[rank].vote for rows in due_rows) for rank in range(self._ranks))
        decision = self.strategy.policy.decide(self._context(votes))
        if self._budget is None or decision is Decision.LOCAL:
            return decision
        is_allowed = self._budget.allows(self.strategy.policy, self.step, self.rounds, self.steps_since_sync)
        return decision if is_allowed else Decision.LOCAL

    def _context(self, votes: tuple[bool, ...] | None) -> PolicyContext:
        return PolicyContext(
            step=self.step,
            steps_since_sync=self.steps_since_sync,
            ranks=self._ranks,
            rounds=self.rounds,
            learning_rate=self._rate,
            steps_per_epoch=self._steps_per_epoch,
            votes=votes,
        )

    def last_row(self) -> Row:
        """
        The row of a rank that takes no more steps. Its step number is negative, so it equals that of no other row.
        """
        return Row(~self.step, purpose=Purpose.END, rounds=self.rounds)

    def confirmation(self, purpose: Purpose) -> Row:
        """The row that a rank sends before something that all ranks do together: without measurements."""
        return Row(self.step, purpose=purpose, rounds=self.rounds)

    def take_remaining(self) -> list[int]:
        """The steps whose rows have not counted yet, when no more steps are taken."""
        steps = [step for step, _ in self._pending]
        self._pending.clear()
        return steps

    def weights(self, ranks: int) -> tuple[float, ...] | None:
        """The weight of each of `ranks` ranks in the next averaging; None: equal weights."""
        policy = self.strategy.policy
        return policy.weights(ranks, self.rounds) if isinstance(policy, FedAvg) else None

    def is_intra_group(self) -> bool:
        """Whether the next averaging stays within each rank's innermost group."""
        policy = self.strategy.policy
        return isinstance(policy, LocalSGD) and policy.is_intra_group(self.rounds)

    def accept_request(self, due_rows: Sequence[Sequence[Row]]) -> Strategy | None:
        """
        The strategy that rank 0 was requested to use, from the next step on; None: no change. All ranks read it in the
        same rows.
        """
        requested = self._requested(due_rows)
        self.request_number = max([self.request_number, *(rows[0].request_number for rows in due_rows)])
        return requested

    def _requested(self, due_rows: Sequence[Sequence[Row]]) -> Strategy | None:
        """By rank 0's newest row, if its request is newer than the last accepted one."""
        if not due_rows or due_rows[-1][0].request_number <= self.request_number:
            return None
        requested = parse_policy(due_rows[-1][0].requested_policy)
        return None if requested == self.strategy else requested

    def next_step(self, decision: Decision) -> None:
        self.step += 1
        if decision is Decision.SYNC:
            self.steps_since_sync, self.rounds = 1, self.rounds + 1
        else:
            self.steps_since_sync += 1

    def _update_rate(self, row: Row) -> None:
        """
        Rank 0's learning rate counts for all: with a scheduler that goes by a rank's own loss, ranks would decide
        differently.
        """
        self._rate = None if math.isnan(row.rate) else row.rate

    def state_dict(self) -> dict[str, Any]:
        return {
            "ranks": self._ranks,
            "rate": self._rate,
            "strategy": str(self.strategy),
            "step": self.step,
            "steps_since_sync": self.steps_since_sync,
            "rounds": self.rounds,
            "request_number": self.request_number,
            "last_exchange": self._last_exchange,
            "pending": list(self._pending),
            "budget": None if self._budget is None else self._budget.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError for the state of another number of ranks."""
        if state["ranks"] != self._ranks:
            raise ValueError(
                f"the policy's state was saved with {state['ranks']} ranks, and this job has {self._ranks}; start "
                "without it"
            )
        self._rate = state["rate"]
        self.strategy = parse_policy(state["strategy"])
        self.step, self.steps_since_sync = state["step"], state["steps_since_sync"]
        self.rounds, self.request_number = state["rounds"], state["request_number"]
        self._last_exchange = state["last_exchange"]
        if self._budget is not None and state.get("budget") is not None:
            self._budget.load_state_dict(state["budget"])
        self._pending = deque((step, counts_in) for step, counts_in in state["pending"])


def replicas_diverge(policy: Policy) -> bool:
    """Whether replicas differ between synchronizations under this policy."""
    return policy.combines is not Combine.ACCUMULATED and not isinstance(policy, BSP | Auto)


def must_average_replicas(former: Strategy, requested: Strategy) -> bool:
    """
    Whether replicas and optimizer states must be averaged before the requested strategy begins: it keeps replicas
    identical, or it sends differences from parameters that all ranks have in common.
    """
    if not replicas_diverge(former.policy) or changes_interval_only(former, requested):
        return False
    sends_differences = requested.compression is not None or requested.outer_optimizer is not None
    return sends_differences or not replicas_diverge(requested.policy)


def changes_interval_only(former: Strategy, requested: Strategy) -> bool:
    """
    Whether the requested strategy differs in its times only, so that anchors, residuals and the outer optimizer's
    momentum stay valid.
    """
    return (
        isinstance(former.policy, LocalSGD | DiLoCo)
        and type(former.policy) is type(requested.policy)
        and former.compression == requested.compression
        and former.outer_optimizer == requested.outer_optimizer
    )
