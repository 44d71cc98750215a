"""
How a job's ranks keep to one policy: the step they are in, the rows they exchange, and the policy in force.

Every rank has a Course of its own and asks nobody: it is fed with the same rows in the same step as all others, so it says the same.

What each rank says of itself to all others, now and then: one row of 64-bit words, of one size on all ranks.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timesyncd.errors import SyncError
from timesyncd.training.policy.auto import Auto
from timesyncd.training.policy.policies import BSP, Accumulate, Decision, FedAvg, LocalSGD, Policy, PolicyContext
from timesyncd.training.policy.text import MAX_TEXT, Strategy, parse_policy

_ABSENT = -(2**63)
_NUMBERS = struct.Struct("<qqqqqqqqdddd")
_TEXT_WORDS = MAX_TEXT // 8

#: 64-bit words of a row.
ROW_WORDS = _NUMBERS.size // 8 + _TEXT_WORDS


@dataclass(frozen=True, slots=True)
class Row:
    """
    Said by one rank after its backward pass of `step`. Times are of this rank, means over the steps since its former row.

    `vote`: it wants a synchronization. `wish`: the number of the newest policy that it was told, and its text; rank 0's counts. `replica`: the hash
    of its parameters right after the newest checked synchronization, in round `replica_round`; None: none was checked since the last row.
    `compute_ns`: own work of a step, median. `wait_ns`: of a step it waited for synchronizations, mean. `transfer_ns`: from the begin of a
    synchronization to its end, the smallest; None: there was none. `loss`: mean in the steps that began with parameters common to all ranks; `jump`: by how much it rose
    when they were averaged, relative; `rate`: the optimizer's learning rate; `dissimilarity`: the squared distance of its expected gradient from
    the mean of all ranks', as a multiple of the mean's square, by the first steps under BSP. NaN: not known.
    """

    step: int
    vote: bool = False
    wish: int = 0
    text: str = ""
    replica: int | None = None
    replica_round: int = 0
    compute_ns: int = 0
    wait_ns: int = 0
    transfer_ns: int | None = None
    loss: float = float("nan")
    jump: float = float("nan")
    rate: float = float("nan")
    dissimilarity: float = float("nan")

    def words(self) -> list[int]:
        packed = _NUMBERS.pack(
            self.step,
            self.vote,
            self.wish,
            _ABSENT if self.replica is None else self.replica,
            self.replica_round,
            self.compute_ns,
            self.wait_ns,
            _ABSENT if self.transfer_ns is None else self.transfer_ns,
            self.loss,
            self.jump,
            self.rate,
            self.dissimilarity,
        ) + self.text.encode().ljust(MAX_TEXT, b"\0")
        return list(struct.unpack(f"<{ROW_WORDS}q", packed))

    @classmethod
    def of(cls, words: Sequence[int]) -> Row:
        packed = struct.pack(f"<{ROW_WORDS}q", *words)
        numbers = _NUMBERS.unpack_from(packed)
        step, vote, wish, replica, replica_round, compute_ns, wait_ns, transfer_ns = numbers[:8]
        loss, jump, rate, dissimilarity = numbers[8:]
        return cls(
            step=step,
            vote=vote != 0,
            wish=wish,
            text=packed[_NUMBERS.size :].rstrip(b"\0").decode(errors="replace"),
            replica=None if replica == _ABSENT else replica,
            replica_round=replica_round,
            compute_ns=compute_ns,
            wait_ns=wait_ns,
            transfer_ns=None if transfer_ns == _ABSENT else transfer_ns,
            loss=loss,
            jump=jump,
            rate=rate,
            dissimilarity=dissimilarity,
        )


#: Where no flags are needed rows are exchanged in steps that synchronize, not more often than every so many steps nor more seldom than the latter, and
#: count so many steps later. So they travel while ranks wait anyway: the threads that send and receive take processors from computing else.
MIN_STEPS_BETWEEN_ROWS, MAX_STEPS_BETWEEN_ROWS, ROWS_DELAY = 8, 32, 8

#: The first rows come early, and are waited for: the controller has nothing to go by before them, and a step of BSP may take as long as eight others.
FIRST_ROWS_STEP = 3


class PolicySchedule:
    """
    For each step, in this order: `exchanges` (says when this step's rows are to be looked at, if there are any), `due` (whose rows are to
    be looked at now), `decide`, `turn`, `next_step`.
    """

    def __init__(self, strategy: Strategy, ranks: int, steps_per_epoch: int | None = None) -> None:
        self.strategy = strategy
        self.step = 0
        self.since = 1
        self.rounds = 0
        self.wish = 0
        self._rate: float | None = None
        self._ranks = ranks
        self._steps_per_epoch = steps_per_epoch
        self._told = -1
        self._pending: deque[tuple[int, int]] = deque()

    def agree(self, rows: Sequence[Row]) -> None:
        """On where it begins, by a first row of all ranks (`first_row`). Raises ValueError where they do not."""
        for rank, row in enumerate(rows):
            if (row.text, row.step) != (rows[0].text, rows[0].step):
                raise ValueError(
                    f"rank 0 begins with {rows[0].text!r} and {rows[0].step} steps an epoch, rank {rank} with {row.text!r} and {row.step}"
                )
        self._hear_rate(rows[0])

    def first_row(self, learning_rate: float | None) -> Row:
        return Row(self._steps_per_epoch or 0, text=str(self.strategy), rate=_number(learning_rate))

    def exchanges(self) -> bool:
        """Whether every rank exchanges a row in this step."""
        late = self.strategy.policy.late
        if late is None:
            if self.step == FIRST_ROWS_STEP:
                late = 0
            elif self._tells():
                late = ROWS_DELAY
            else:
                return False
        self._told = self.step
        self._pending.append((self.step, self.step + late))
        return True

    def _tells(self) -> bool:
        passed = self.step - self._told
        if passed < MIN_STEPS_BETWEEN_ROWS:
            return False
        return passed >= MAX_STEPS_BETWEEN_ROWS or self.strategy.policy.decide(self._seen(None)) is Decision.SYNC

    def due(self) -> list[int]:
        """The steps whose rows count now, oldest first."""
        steps = [step for step, at in self._pending if at <= self.step]
        if steps:
            self._pending = deque((step, at) for step, at in self._pending if at > self.step)
        return steps

    def decide(self, rows: Sequence[Sequence[Row]]) -> Decision:
        """`rows`: of each step that is due, by rank. Raises SyncError: they are of different steps."""
        for said in rows:
            check_in_step(said)
            self._hear_rate(said[0])
        if isinstance(self.strategy.policy, Accumulate) and self._wanted(rows) is not None:
            return Decision.SYNC  # what was gathered makes its update before another policy begins
        votes = tuple(any(said[rank].vote for said in rows) for rank in range(self._ranks)) if rows else None
        return self.strategy.policy.decide(self._seen(votes))

    def _seen(self, votes: tuple[bool, ...] | None) -> PolicyContext:
        return PolicyContext(
            step=self.step,
            since=self.since,
            ranks=self._ranks,
            rounds=self.rounds,
            learning_rate=self._rate,
            steps_per_epoch=self._steps_per_epoch,
            votes=votes,
        )

    def last_row(self) -> Row:
        """Said when no more steps are taken; its step is that of no other row."""
        return Row(~self.step)

    def due_ever(self) -> list[int]:
        """The steps whose rows are still to come: no more steps are taken."""
        steps = [step for step, _ in self._pending]
        self._pending.clear()
        return steps

    def weights(self, ranks: int) -> tuple[float, ...] | None:
        """By rank of so many that average, in the next averaging; None: all count alike."""
        policy = self.strategy.policy
        return policy.weights(ranks, self.rounds) if isinstance(policy, FedAvg) else None

    def is_near(self) -> bool:
        """Whether the next averaging is one among near ranks alone."""
        policy = self.strategy.policy
        return isinstance(policy, LocalSGD) and policy.is_near(self.rounds)

    def turn(self, rows: Sequence[Sequence[Row]]) -> Strategy | None:
        """The policy that rank 0 was told meanwhile, from the next step on; None: the same. Ranks read it in the same rows."""
        wanted = self._wanted(rows)
        self.wish = max([self.wish, *(said[0].wish for said in rows)])
        return wanted

    def _wanted(self, rows: Sequence[Sequence[Row]]) -> Strategy | None:
        """By rank 0's newest row, if it has heard of another policy since the last turn."""
        if not rows or rows[-1][0].wish <= self.wish:
            return None
        wanted = parse_policy(rows[-1][0].text)
        return None if wanted == self.strategy else wanted

    def next_step(self, decision: Decision) -> None:
        self.step += 1
        if decision is Decision.SYNC:
            self.since, self.rounds = 1, self.rounds + 1
        else:
            self.since += 1

    def _hear_rate(self, row: Row) -> None:
        """Rank 0's learning rate is everybody's: a scheduler that goes by a rank's own loss would part the ranks."""
        self._rate = None if math.isnan(row.rate) else row.rate

    def state_dict(self) -> dict[str, Any]:
        return {
            "ranks": self._ranks,
            "rate": self._rate,
            "strategy": str(self.strategy),
            "step": self.step,
            "since": self.since,
            "rounds": self.rounds,
            "wish": self.wish,
            "told": self._told,
            "pending": list(self._pending),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError for a state of another number of ranks."""
        if state["ranks"] != self._ranks:
            raise ValueError(
                f"the policy's state is of {state['ranks']} ranks, these are {self._ranks}: begin without it"
            )
        self._rate = state["rate"]
        self.strategy = parse_policy(state["strategy"])
        self.step, self.since, self.rounds, self.wish = (state[name] for name in ("step", "since", "rounds", "wish"))
        self._told = state["told"]
        self._pending = deque((step, at) for step, at in state["pending"])


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def check_in_step(rows: Sequence[Row]) -> None:
    """Raises SyncError for ranks of which some have made more updates than others."""
    steps = [row.step for row in rows]
    if min(steps) != max(steps):
        least, most = steps.index(min(steps)), steps.index(max(steps))
        raise SyncError(
            f"the ranks are out of step: rank {least} {_place(min(steps))} and rank {most} {_place(max(steps))}; "
            "every rank has to make the same number of optimizer steps"
        )


def _place(step: int) -> str:
    return f"is in step {step}" if step >= 0 else f"ended after {~step} steps"


def replicas_diverge(policy: Policy) -> bool:
    """Whether replicas differ between synchronizations under this policy."""
    return not isinstance(policy, BSP | Accumulate | Auto)


def must_average_replicas(former: Strategy, wanted: Strategy) -> bool:
    """
    Whether replicas, momentum included, have to be made one before the wanted policy begins: it keeps them one, or it sends differences
    to parameters that all ranks have in common.
    """
    if not replicas_diverge(former.policy) or changes_interval_only(former, wanted):
        return False
    return not replicas_diverge(wanted.policy) or wanted.compression is not None


def changes_interval_only(former: Strategy, wanted: Strategy) -> bool:
    """Whether the wanted policy does the same at other times: what was common, and what was not sent, stays as it is."""
    return (
        isinstance(former.policy, LocalSGD)
        and isinstance(wanted.policy, LocalSGD)
        and former.compression == wanted.compression
    )
