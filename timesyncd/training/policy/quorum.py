"""
Which ranks average together where ranks may be lost and come again: who is alive, when a quorum is complete, and whose
parameters count. Pure: time is an argument.

The semantics are those of torchft's quorum for local SGD and DiLoCo (one quorum before each averaging; a rank that was
away takes the parameters of one that was present), with one difference: where a rank is lost in an averaging, the others
repeat it without that rank, and drop no step of their own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Self


@dataclass(frozen=True, slots=True)
class QuorumLimits:
    """
    `silent_ns`: a rank without a sign of life for so long is lost. `patience_ns`: a rank that lives, and for which another
    has waited for so long, is left out.
    """

    silent_ns: int
    patience_ns: int


#: A rank, and what tells its process from a former one with the same rank.
Process = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class QuorumMember:
    """
    A rank that waits for an averaging. `rounds`: how many averagings its parameters contain; `step`: how many optimizer
    steps.
    """

    rank: int
    incarnation: int
    rounds: int
    step: int

    @property
    def process(self) -> Process:
        return self.rank, self.incarnation


@dataclass(frozen=True, slots=True)
class Quorum:
    """The ranks of one averaging, in the order of their ranks."""

    members: tuple[QuorumMember, ...]

    @property
    def rounds(self) -> int:
        """How many averagings the newest parameters contain."""
        return max(member.rounds for member in self.members)

    @property
    def present(self) -> tuple[QuorumMember, ...]:
        """
        Those whose parameters count: all that were in the newest averaging. Before the first one it is the lowest rank
        alone, so that all begin with its parameters, as under DistributedDataParallel.
        """
        newest = tuple(member for member in self.members if member.rounds == self.rounds)
        return newest if self.rounds else newest[:1]

    @property
    def step(self) -> int:
        """The step in which all members are after this averaging."""
        return max(member.step for member in self.present)

    @property
    def processes(self) -> tuple[Process, ...]:
        """What a process group depends on."""
        return tuple(member.process for member in self.members)

    def text(self) -> str:
        return json.dumps([asdict(member) for member in self.members])

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(tuple(QuorumMember(**member) for member in json.loads(text)))


def sign_text(process: Process, number: int) -> str:
    """A sign of life, of which no two are the same."""
    return f"{process[1]}:{number}"


@dataclass(slots=True)
class SignsOfLife:
    """When this process last saw a new sign of each rank, by its own monotonic clock. No two clocks are compared."""

    _seen: dict[int, tuple[str, int]] = field(default_factory=dict)

    def see(self, rank: int, sign: str, now_ns: int) -> None:
        """`sign`: empty where the rank has given none yet, or has left."""
        if not sign:
            self._seen.pop(rank, None)
        elif self._seen.get(rank, ("", 0))[0] != sign:
            self._seen[rank] = sign, now_ns

    def alive(self, now_ns: int, silent_ns: int) -> frozenset[Process]:
        return frozenset(
            (rank, int(sign.partition(":")[0]))
            for rank, (sign, seen_ns) in self._seen.items()
            if now_ns - seen_ns < silent_ns
        )


def complete_quorum(
    waiting: Sequence[QuorumMember],
    alive: Collection[Process],
    world_size: int,
    former: Quorum | None,
    waited_ns: int,
    limits: QuorumLimits,
) -> Quorum | None:
    """
    The quorum that the waiting ranks may form now; None: they wait on. `former`: the newest quorum so far. `waited_ns`:
    how long this process has waited.

    All that live must wait, or have been waited for long enough. Before the first averaging that is all ranks of the
    job: a rank that has not started yet gives no sign of life either. Ranks that were away form no quorum while a rank of
    the former one lives, since that has the newest parameters.
    """
    members = tuple(sorted(member for member in waiting if member.process in alive))
    here = {member.process for member in members}
    if former is None:
        is_whole = len(here) == world_size
    else:
        heirs = set(former.processes) & set(alive)
        if heirs and not heirs & here:
            return None
        is_whole = set(alive) <= here
    return Quorum(members) if members and (is_whole or waited_ns >= limits.patience_ns) else None


class AveragingOutcome(StrEnum):
    """What became of an averaging; the first of these that a rank writes counts for all."""

    COMMITTED = "committed"
    ABORTED = "aborted"


def outcome_of(quorum: Quorum, done: Collection[Process], alive: Collection[Process]) -> AveragingOutcome | None:
    """
    What this process writes: committed where all members have the mean, aborted where one is lost without it; None:
    neither is known yet. `done`: those that have the mean.
    """
    missing = set(quorum.processes) - set(done)
    if not missing:
        return AveragingOutcome.COMMITTED
    return None if missing <= set(alive) else AveragingOutcome.ABORTED
