"""
Policies whose synchronizations are known beforehand: by step, epoch or learning rate.

What a policy answers in each step, and what it sees to answer by. Pure: the same on every rank, because what is seen is.

Policies of a parameter server: how far a rank may run ahead of the slowest one.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol


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
class PolicyContext:
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

    def decide(self, seen: PolicyContext) -> Decision: ...


def sync_if(when: bool) -> Decision:
    return Decision.SYNC if when else Decision.LOCAL


def check_at_least(name: str, value: float, least: float) -> None:
    """Raises ValueError for a parameter that is too small, or no number."""
    if not value >= least:
        raise ValueError(f"{name}={value}: at least {least} is wanted")


#: In steps: more than any job makes, and a number that can be counted with.
_LONGEST = 2**32


class Scheduled:
    """No flags are needed: every rank knows by itself."""

    late: ClassVar[int | None] = None


@dataclass(frozen=True, slots=True)
class BSP(Scheduled):
    """Bulk-synchronous parallel: the mean gradient in every step."""

    combines: ClassVar[Combine] = Combine.GRADIENTS

    def decide(self, seen: PolicyContext) -> Decision:
        return Decision.SYNC


@dataclass(frozen=True, slots=True)
class Accumulate(Scheduled):
    """A `k` times larger batch: the gradients of `k` steps make one update, in the last of them."""

    k: int
    combines: ClassVar[Combine] = Combine.GATHERED

    def __post_init__(self) -> None:
        check_at_least("k", self.k, 1)

    def decide(self, seen: PolicyContext) -> Decision:
        return sync_if(seen.since >= self.k)


@dataclass(frozen=True, slots=True)
class LocalSGD(Scheduled):
    """
    Local SGD: each rank updates alone, and every `h` steps the parameters are averaged (Stich, ICLR 2019).

    `delay`: how many steps the averaging may take behind the scenes; 0: the step waits for it. `across`: every `h` steps near ranks
    average among themselves, and all ranks every so many; a multiple of `h`.
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
                f"delay={self.delay}: an averaging must end before the next one begins, so below h={self.h}"
            )

        if self.across is not None and (self.across % self.h or self.across < self.h or self.delay):
            raise ValueError(f"across={self.across}: a multiple of h={self.h} is wanted, and no delay")

    def decide(self, seen: PolicyContext) -> Decision:
        return sync_if(seen.since >= self.h)

    def is_near(self, rounds: int) -> bool:
        """Whether the synchronization after so many is one among near ranks alone."""
        return self.across is not None and (rounds + 1) % (self.across // self.h) != 0


@dataclass(frozen=True, slots=True)
class PostLocalSGD(Scheduled):
    """BSP for the first `start` steps, then local SGD (Lin et al., ICLR 2020). Its first steps average parameters in each step."""

    start: int
    h: int
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        check_at_least("start", self.start, 0)
        check_at_least("h", self.h, 1)

    def decide(self, seen: PolicyContext) -> Decision:
        return sync_if(seen.step < self.start or seen.since >= self.h)


@dataclass(frozen=True, slots=True)
class FedAvg(Scheduled):
    """
    FedAvg (McMahan et al., AISTATS 2017) with the parameters of SelSync's paper: every fraction `e` of an epoch the parameters of a fraction
    `c` of the ranks, drawn anew each time, are averaged, and all ranks take the mean.
    """

    c: float
    e: float
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        if not (0 < self.c <= 1 and self.e > 0):
            raise ValueError(f"c={self.c}, e={self.e}: 0 < c <= 1 and e > 0 are wanted")

    def decide(self, seen: PolicyContext) -> Decision:
        if seen.steps_per_epoch is None:
            raise ValueError("fedavg goes by epochs: give steps_per_epoch")
        return sync_if(seen.since >= max(1, round(min(self.e * seen.steps_per_epoch, _LONGEST))))

    def weights(self, ranks: int, rounds: int) -> tuple[float, ...] | None:
        """By rank, they add up to 1: equal for those drawn in this round, 0 for the others. None: all take part."""
        taking_part = max(1, round(self.c * ranks))
        if taking_part >= ranks:
            return None
        drawn = random.Random(rounds).sample(range(ranks), taking_part)
        return tuple(1 / taking_part if rank in drawn else 0.0 for rank in range(ranks))


@dataclass(frozen=True, slots=True)
class QSR(Scheduled):
    """
    Quadratic synchronization rule (Gu et al., ICLR 2024): local SGD with `h` of at least the given one, and
    (alpha / learning rate)^2 where that is more.
    """

    h: int
    alpha: float
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        check_at_least("h", self.h, 1)
        check_at_least("alpha", self.alpha, 0)

    def decide(self, seen: PolicyContext) -> Decision:
        return sync_if(seen.since >= self.interval(seen.learning_rate))

    def interval(self, learning_rate: float | None) -> int:
        """Steps from one averaging to the next. Raises ValueError where the learning rate is not known."""
        if learning_rate is None:
            raise ValueError("qsr goes by the learning rate: the optimizer has none")
        if learning_rate <= 0:
            return self.h
        return max(self.h, math.floor(min(self.alpha / learning_rate, math.sqrt(_LONGEST)) ** 2))


@dataclass(frozen=True, slots=True)
class SSP:
    """
    Stale-synchronous parallel (Ho et al., NIPS 2013): a rank waits while it is more than `s` updates ahead of the slowest one.

    `s` = 0 is BSP by a parameter server.
    """

    s: int
    combines: ClassVar[Combine] = Combine.SERVER
    late: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_at_least("s", self.s, 0)

    def decide(self, seen: PolicyContext) -> Decision:
        return Decision.WAIT if seen.ahead > self.s else Decision.SYNC


@dataclass(frozen=True, slots=True)
class ASP:
    """Fully asynchronous: nobody waits for anybody."""

    combines: ClassVar[Combine] = Combine.SERVER
    late: ClassVar[int | None] = None

    def decide(self, seen: PolicyContext) -> Decision:
        return Decision.SYNC
