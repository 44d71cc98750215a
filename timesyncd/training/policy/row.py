"""
What one rank reports to all others: a row of 64-bit words, of the same size on all ranks.

A row either carries measurements, which count some steps later, or it confirms the step in which its rank is, before
all ranks do something together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from timesyncd.errors import SyncError
from timesyncd.training.policy.text import MAX_TEXT

_ABSENT = -(2**63)
_NUMBERS = struct.Struct("<qqqqqqqqqqqqqqddddd")

#: Number of 64-bit words in a row.
ROW_WORDS = _NUMBERS.size // 8 + MAX_TEXT // 8


class Purpose(IntEnum):
    """Why the ranks exchange rows: for the measurements, or before what they then do together."""

    MEASURE = 0
    START = 1
    SYNCHRONIZE = 2
    CHANGE = 3
    SHARE = 4
    END = 5


_PURPOSE_TEXTS = {
    Purpose.MEASURE: "sends its measurements",
    Purpose.START: "starts",
    Purpose.SYNCHRONIZE: "synchronizes",
    Purpose.CHANGE: "changes the policy",
    Purpose.SHARE: "averages for an evaluation or a checkpoint",
    Purpose.END: "ends",
}


@dataclass(frozen=True, slots=True)
class Row:
    """
    What one rank reports after its backward pass of `step`. Durations are this rank's, over the steps since its former
    row.

    `purpose`: why the ranks exchange rows. `rounds`: number of synchronizations before this row. `passes`: number of
    backward passes so far, without those that the loop accumulates. `empty`: number of updates that it has left out where
    replicas stay equal. `left_out`: the newest step whose update it has left out, or
    in which it ran a pass more, as these two show; None: there was none. `unfit`: the first step in which its loss or its
    gradient was not finite; None: there was none. `vote`: it votes for a synchronization. `request_number`,
    `requested_policy`: the newest policy that this rank was requested to use; only rank 0's counts. `replica`: the hash
    of its parameters right after the newest checked synchronization, in round `replica_round`; None: none was checked
    since the last row. `compute_ns`: median of a step's own work. `wait_ns`: mean of a step's waiting for
    synchronizations. `transfer_ns`: the shortest synchronization, from begin to end; None: there was none. `loss`: mean
    over the steps that began with parameters common to all ranks. `jump`: the relative rise of the loss at averagings.
    `rate`: the optimizer's learning rate. `dissimilarity`: the squared distance of the rank's expected gradient from
    the mean of all ranks', as a multiple of the mean's square, from the first steps under BSP. `validation`: the newest
    loss on held-out data. NaN: unknown.
    """

    step: int
    purpose: Purpose = Purpose.MEASURE
    rounds: int = 0
    passes: int = 0
    empty: int = 0
    left_out: int | None = None
    unfit: int | None = None
    vote: bool = False
    request_number: int = 0
    requested_policy: str = ""
    replica: int | None = None
    replica_round: int = 0
    compute_ns: int = 0
    wait_ns: int = 0
    transfer_ns: int | None = None
    loss: float = float("nan")
    jump: float = float("nan")
    rate: float = float("nan")
    dissimilarity: float = float("nan")
    validation: float = float("nan")

    def words(self) -> list[int]:
        packed = _NUMBERS.pack(
            self.step,
            self.purpose,
            self.rounds,
            self.passes,
            self.empty,
            _word(self.left_out),
            _word(self.unfit),
            self.vote,
            self.request_number,
            _word(self.replica),
            self.replica_round,
            self.compute_ns,
            self.wait_ns,
            _word(self.transfer_ns),
            self.loss,
            self.jump,
            self.rate,
            self.dissimilarity,
            self.validation,
        ) + self.requested_policy.encode().ljust(MAX_TEXT, b"\0")
        return list(struct.unpack(f"<{ROW_WORDS}q", packed))

    @classmethod
    def from_words(cls, words: Sequence[int]) -> Row:
        packed = struct.pack(f"<{ROW_WORDS}q", *words)
        numbers = _NUMBERS.unpack_from(packed)
        step, purpose, rounds, passes, empty, left_out, unfit, vote, request_number = numbers[:9]
        replica, replica_round, compute_ns, wait_ns, transfer_ns = numbers[9:14]
        loss, jump, rate, dissimilarity, validation = numbers[14:]
        return cls(
            step=step,
            purpose=Purpose(purpose),
            rounds=rounds,
            passes=passes,
            empty=empty,
            left_out=_number(left_out),
            unfit=_number(unfit),
            vote=vote != 0,
            request_number=request_number,
            requested_policy=packed[_NUMBERS.size :].rstrip(b"\0").decode(errors="replace"),
            replica=_number(replica),
            replica_round=replica_round,
            compute_ns=compute_ns,
            wait_ns=wait_ns,
            transfer_ns=_number(transfer_ns),
            loss=loss,
            jump=jump,
            rate=rate,
            dissimilarity=dissimilarity,
            validation=validation,
        )


def _word(number: int | None) -> int:
    return _ABSENT if number is None else number


def _number(word: int) -> int | None:
    return None if word == _ABSENT else word


def check_in_step(rows: Sequence[Row]) -> None:
    """Raises SyncError where some ranks have made more updates than others, or do something else in the same step."""
    positions = [(row.step, row.rounds, row.purpose) for row in rows]
    if min(positions) == max(positions):
        return
    least, most = positions.index(min(positions)), positions.index(max(positions))
    in_one_step = rows[least].step == rows[most].step
    left_out = rows[least].left_out
    cause = "" if left_out in (None, rows[most].left_out) else f"; rank {least} left out one in step {left_out}"
    raise SyncError(
        f"the ranks are out of step: rank {least} {_position_text(rows[least], in_one_step)} and rank {most} "
        f"{_position_text(rows[most], in_one_step)}; every rank must make the same number of optimizer steps{cause}"
    )


def check_passes(rows: Sequence[Row], replicas: Iterable[int]) -> None:
    """
    Raises SyncError where a rank ran more backward passes for its updates than others, so that it has left out an update
    or run a pass more, or where it left out an update alone under a policy that keeps the replicas equal.

    `replicas`: the ranks that are compared, those of one data-parallel group.
    """
    ranks = list(replicas)
    for name, more, text in (
        ("passes", ", or ran a backward pass more than the others", "it ran {} backward passes and rank {} {}"),
        ("empty", "", "it left out {} and rank {} {}"),
    ):
        counts = {rank: int(getattr(rows[rank], name)) for rank in ranks}
        if len(set(counts.values())) > 1:
            most, least = max(ranks, key=lambda rank: counts[rank]), min(ranks, key=lambda rank: counts[rank])
            step = "" if rows[most].left_out is None else f" in step {rows[most].left_out}"
            raise SyncError(
                f"rank {most} left out an optimizer step{step}{more}: by step {_steps(rows[most])} "
                f"{text.format(counts[most], least, counts[least])}; all ranks must make the same updates, or call "
                "skip_update() where the policy lets a rank leave one out"
            )


def _steps(row: Row) -> int:
    return row.step if row.step >= 0 else ~row.step


def _position_text(row: Row, in_one_step: bool) -> str:
    if row.step < 0:
        return f"ended after {~row.step} steps"
    text = f"is in step {row.step}"
    return f"{text}, {_PURPOSE_TEXTS[row.purpose]} and has synchronized {row.rounds} times" if in_one_step else text


def unfit_text(rows: Sequence[Row]) -> str | None:
    """Where a loss or a gradient was not finite first, in one sentence; None: in no row."""
    steps = {rank: row.unfit for rank, row in enumerate(rows) if row.unfit is not None}
    if not steps:
        return None
    first = min(steps.values())
    ranks = [str(rank) for rank, step in steps.items() if step == first]
    later = [f"rank {rank} in step {step}" for rank, step in steps.items() if step > first]
    if later:
        rest = f"then of {', '.join(later)}"
    elif len(ranks) < len(rows):
        rest = "of no other rank so far"
    else:
        rest = "call record_loss(loss) in each step to see which rank was the first"
    return f"a loss or gradient of rank {', '.join(ranks)} is not finite, first seen in step {first}; {rest}"
