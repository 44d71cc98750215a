"""What may make a step longer, as the replay of a job's operations finds it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class CauseKind(StrEnum):
    """What makes a step longer."""

    RANK = "rank"
    STAGE = "stage"
    SEQUENCES = "sequences"
    TRANSFER = "transfer"


class UnknownReason(StrEnum):
    """Why a cause or a culprit is unknown, for programs."""

    RANK_OR_STAGE = "rank_or_stage"
    DATA_OR_NODE = "data_or_node"
    ONE_LIKE = "one_like"
    REPLAY_MISFIT = "replay_misfit"
    CIRCULAR = "circular"
    NOTHING_COMPARABLE = "nothing_comparable"
    ONE_OF_GROUP = "one_of_group"
    SEQUENCES_OR_PAUSES = "sequences_or_pauses"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Cause:
    """
    A cause and its cost. `excess`: how much longer than its like, as a share; of sequences the relative standard
    deviation of the micro-batches' work. `without_ns`: the mean step without this cause alone. `explains`: its share of
    the slowdown against the ideal; None: there is none. `unknown`: two causes would look the same, so `rank` is None.
    """

    kind: CauseKind
    rank: int | None
    stage: int | None
    ranks: tuple[int, ...]
    excess: float
    step_ns: float
    without_ns: float
    explains: float | None
    unknown: UnknownReason | None = None

    @property
    def slowdown(self) -> float:
        return self.step_ns / self.without_ns


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cause before its cost is known. `factors`: by operation, the factor on its duration without the cause."""

    kind: CauseKind
    excess: float
    factors: Mapping[int, float]
    rank: int | None = None
    stage: int | None = None
    ranks: tuple[int, ...] = ()
    unknown: UnknownReason | None = None
