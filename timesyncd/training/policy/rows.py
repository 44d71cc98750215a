"""What each rank says of itself to all others, now and then: one row of 64-bit words, of one size on all ranks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from timesyncd.training.policy.text import MAX_TEXT

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
