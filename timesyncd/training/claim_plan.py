"""What the job of `timesyncd claim` runs: its variants, in blocks of steps that take turns. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

#: The job: samples of a global batch, how many more forward passes rank 1 makes of its samples, and how long and how
#: often a rank pauses. Where no clock decides, it pauses once in this many steps.
BATCH, SLOWER = 2048, 2
PAUSE_S, PERIOD_S, STEPS_BETWEEN_PAUSES = 0.030, 0.5, 10

RANKS = 2

#: The file in which rank 0 writes the shares of the batch, and why no rank paused by the clock.
OUTCOME = "outcome.json"


class Variant(StrEnum):
    """What is applied to the job. The values name folders and columns."""

    BEFORE = "before"  #: BSP, equal batches, each rank pauses when it likes
    TIMING = "timing"  #: pauses at one instant of the common clock
    TIMING_WITHOUT_CLOCKS = "timing-without-clocks"  #: pauses after one step, which all ranks count
    POLICIES = "policies"  #: shares of the batch by speed
    BOTH = "both"
    BOTH_WITHOUT_CLOCKS = "both-without-clocks"

    @property
    def by_clock(self) -> bool:
        return self in (Variant.TIMING, Variant.BOTH)

    @property
    def pauses_together(self) -> bool:
        return self not in (Variant.BEFORE, Variant.POLICIES)

    @property
    def is_balanced(self) -> bool:
        return self in (Variant.POLICIES, Variant.BOTH, Variant.BOTH_WITHOUT_CLOCKS)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive steps of a variant. `name`: of the folder of its recording."""

    variant: Variant
    name: str
    steps: int


#: The steps by which the plan is made: enough for an interval of each gain.
AUDIT = Block(Variant.BEFORE, "audit", 101)


def blocks(rounds: int, steps: int, with_clocks: bool) -> Iterator[Block]:
    """In each round all variants, begun with another one each time, so that none is always behind the same other."""
    variants = [variant for variant in Variant if with_clocks or not variant.by_clock]
    for turn in range(rounds):
        first = turn % len(variants)
        for variant in variants[first:] + variants[:first]:
            yield Block(variant, f"{variant}-{turn}", steps)
