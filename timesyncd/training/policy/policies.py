"""
When the ranks of a job synchronize: the interface of a policy, and the policies that need no votes.

A policy is data with one pure method, `decide`. Its inputs are the same on all ranks in the same step, so all ranks
decide alike without asking each other. The policies here go by the step, the epoch or the learning rate, or (`ssp`,
`asp`) by how far a rank is ahead of the slowest one at a parameter server. SelSync, which goes by the ranks' votes, is
in `selsync`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import ClassVar, Protocol


class Decision(Enum):
    """
    What a rank does in a step.

    SYNC: all ranks synchronize. LOCAL: this rank updates alone. WAIT: this rank waits until slower ranks have caught
    up.
    """

    SYNC = "sync"
    LOCAL = "local"
    WAIT = "wait"


class Combine(Enum):
    """
    What a synchronization combines.

    GRADIENTS: the mean gradient, before the update. PARAMETERS: the mean of the parameters, after each rank's own
    update. SERVER: a parameter server adds up the updates. ACCUMULATED: the gradients of several steps make one update,
    in the last of them.
    """

    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    SERVER = "server"
    ACCUMULATED = "accumulated"


class ChangeReason(StrEnum):
    """Why a policy is in force. Programs decide by it; the sentence beside it is for people."""

    STARTED = "started"  #: the training script gave it when it started
    REQUESTED = "requested"  #: the script or the plan of rank 0 requested it meanwhile
    TRIAL = "trial"  #: ranks waited under BSP; averagings are tried, as the gradients leave the data in doubt
    SAME_DATA = "same_data"  #: the ranks wait, and see the same kind of data; the measurements determine the averagings
    DIFFERENT_DATA = (
        "different_data"  #: the ranks wait, and see different data; this learns fastest by the measurements
    )
    BSP_FASTER = "bsp_faster"  #: BSP reaches the same loss sooner than averagings would
    RETRIAL = "retrial"  #: averagings are tried again
    ENCODING_TRIED = "encoding_tried"  #: a smaller encoding of the gradients is tried
    ENCODING_SLOWER = "encoding_slower"  #: an encoding of the gradients did not pay
    LOSS_UNPROVEN = "loss_unproven"  #: nothing shows that the loss keeps up with averagings, so less is sent instead
    LOSS_ROSE = "loss_rose"
    LOSS_INFINITE = "loss_infinite"
    LOSS_MISSING = "loss_missing"  #: no rank reports a loss above zero any more
    JUMP_MISSING = "jump_missing"  #: what averagings do to the loss is not reported


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """
    The inputs of a decision. Every value is the same on all ranks in the same step, except `updates_ahead`.

    `step`: number of steps before this one. `steps_since_sync`: number of steps since the last synchronization, this
    one included, so at least 1. `rounds`: number of synchronizations so far. `votes`: by rank, whether it asked for a
    synchronization; None where no votes count in this step. `updates_ahead`: how many updates this rank is ahead of the
    slowest one.
    """

    step: int
    steps_since_sync: int
    ranks: int
    rounds: int = 0
    learning_rate: float | None = None
    steps_per_epoch: int | None = None
    votes: tuple[bool, ...] | None = None
    updates_ahead: int = 0


class Policy(Protocol):
    """
    When to synchronize. A policy is frozen data, has a text form (`text.parse_policy`), and is the same on all ranks.

    `late`: number of steps after which the votes of a step count; None: the policy needs no votes.
    """

    @property
    def combines(self) -> Combine: ...

    @property
    def late(self) -> int | None: ...

    def decide(self, context: PolicyContext) -> Decision: ...


def sync_if(condition: bool) -> Decision:
    return Decision.SYNC if condition else Decision.LOCAL


def check_at_least(name: str, value: float, least: float) -> None:
    """Raises ValueError for a parameter that is below `least`, or NaN."""
    if not value >= least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")


#: Upper limit of an interval in steps: more than any job makes, and small enough for exact arithmetic in a float.
_MAX_INTERVAL = 2**32


class Scheduled:
    """A policy that needs no votes: each rank computes the decision alone."""

    late: ClassVar[int | None] = None


@dataclass(frozen=True, slots=True)
class BSP(Scheduled):
    """Bulk-synchronous parallel: the mean gradient in every step."""

    combines: ClassVar[Combine] = Combine.GRADIENTS

    def decide(self, context: PolicyContext) -> Decision:
        return Decision.SYNC


@dataclass(frozen=True, slots=True)
class Accumulate(Scheduled):
    """
    Gradient accumulation: the gradients of `k` steps make one update, in the last of them, as of a batch `k` times as
    large.
    """

    k: int
    combines: ClassVar[Combine] = Combine.ACCUMULATED

    def __post_init__(self) -> None:
        check_at_least("k", self.k, 1)

    def decide(self, context: PolicyContext) -> Decision:
        return sync_if(context.steps_since_sync >= self.k)


@dataclass(frozen=True, slots=True)
class LocalSGD(Scheduled):
    """
    Local SGD: each rank updates alone, and every `h` steps the parameters are averaged (Stich, ICLR 2019).

    `delay`: number of steps during which an averaging runs in the background; 0: the step waits for it. `across`: every
    `across` steps, a multiple of `h`, all ranks average; the averagings between are within the innermost group of each
    rank.
    """

    h: int
    delay: int = 0
    across: int | None = None
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        check_at_least("h", self.h, 1)
        check_at_least("delay", self.delay, 0)
        if self.delay >= self.h:
            raise ValueError(
                f"delay is {self.delay}; it must be below h={self.h}, so that an averaging ends before the next one "
                "begins"
            )
        if self.across is not None and (self.across % self.h or self.across < self.h or self.delay):
            raise ValueError(f"across is {self.across}; it must be a multiple of h={self.h}, and delay must be 0")

    def decide(self, context: PolicyContext) -> Decision:
        return sync_if(context.steps_since_sync >= self.h)

    def is_intra_group(self, rounds: int) -> bool:
        """Whether the averaging after `rounds` earlier ones stays within each rank's innermost group."""
        return self.across is not None and (rounds + 1) % (self.across // self.h) != 0


@dataclass(frozen=True, slots=True)
class PostLocalSGD(Scheduled):
    """
    BSP for the first `start` steps, then local SGD (Lin et al., ICLR 2020). In its first steps it averages the
    parameters in each step.
    """

    start: int
    h: int
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        check_at_least("start", self.start, 0)
        check_at_least("h", self.h, 1)

    def decide(self, context: PolicyContext) -> Decision:
        return sync_if(context.step < self.start or context.steps_since_sync >= self.h)


@dataclass(frozen=True, slots=True)
class FedAvg(Scheduled):
    """
    FedAvg (McMahan et al., AISTATS 2017) with the parameters of SelSync's paper: every fraction `e` of an epoch, a
    fraction `c` of the ranks is drawn at random, and all ranks continue with the mean of their parameters.
    """

    c: float
    e: float
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        if not (0 < self.c <= 1 and self.e > 0):
            raise ValueError(f"c is {self.c} and e is {self.e}; they must satisfy 0 < c <= 1 and e > 0")

    def decide(self, context: PolicyContext) -> Decision:
        if context.steps_per_epoch is None:
            raise ValueError("fedavg counts epochs: pass steps_per_epoch to synchronized()")
        return sync_if(context.steps_since_sync >= max(1, round(min(self.e * context.steps_per_epoch, _MAX_INTERVAL))))

    def weights(self, ranks: int, rounds: int) -> tuple[float, ...] | None:
        """
        By rank, with a sum of 1: equal for the ranks drawn in this round, 0 for the others. None: all ranks are drawn.
        """
        count = max(1, round(self.c * ranks))
        if count >= ranks:
            return None
        drawn = random.Random(rounds).sample(range(ranks), count)
        return tuple(1 / count if rank in drawn else 0.0 for rank in range(ranks))


@dataclass(frozen=True, slots=True)
class QSR(Scheduled):
    """
    Quadratic synchronization rule (Gu et al., ICLR 2024): local SGD whose interval is (alpha / learning rate)^2 steps,
    and at least `h`.
    """

    h: int
    alpha: float
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        check_at_least("h", self.h, 1)
        check_at_least("alpha", self.alpha, 0)

    def decide(self, context: PolicyContext) -> Decision:
        return sync_if(context.steps_since_sync >= self.interval(context.learning_rate))

    def interval(self, learning_rate: float | None) -> int:
        """Number of steps from one averaging to the next. Raises ValueError where the learning rate is unknown."""
        if learning_rate is None:
            raise ValueError("qsr needs a learning rate, and the optimizer's first parameter group has no 'lr'")
        if learning_rate <= 0:
            return self.h
        return max(self.h, math.floor(min(self.alpha / learning_rate, math.sqrt(_MAX_INTERVAL)) ** 2))


@dataclass(frozen=True, slots=True)
class SSP:
    """
    Stale-synchronous parallel (Ho et al., NIPS 2013): a rank waits while it is more than `s` updates ahead of the
    slowest one.

    `s` = 0 is BSP by a parameter server.
    """

    s: int
    combines: ClassVar[Combine] = Combine.SERVER
    late: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_at_least("s", self.s, 0)

    def decide(self, context: PolicyContext) -> Decision:
        return Decision.WAIT if context.updates_ahead > self.s else Decision.SYNC


@dataclass(frozen=True, slots=True)
class ASP:
    """Fully asynchronous parallel: no rank waits for another."""

    combines: ClassVar[Combine] = Combine.SERVER
    late: ClassVar[int | None] = None

    def decide(self, context: PolicyContext) -> Decision:
        return Decision.SYNC
