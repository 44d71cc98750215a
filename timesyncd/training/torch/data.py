"""Data that are not alike on all ranks, mixed: in each step some ranks share a part of their batch with all others."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.distributed as dist

from timesyncd.training.torch.topology_groups import collective

#: In a block each part begins at a multiple of so many octets: the largest element's size.
_ALIGNED = 16


def injected_batch_size(batch_size: int, alpha: float, beta: float, ranks: int) -> int:
    """
    A rank's own batch such that with what is injected it is about `batch_size`: b / (1 + alpha beta N), to the nearest number, at least 1
    (SelSync, Tyagi and Swany, CLUSTER 2023, Eq. 3).
    """
    return max(1, round(batch_size / (1 + alpha * beta * ranks)))


def sharers(alpha: float, ranks: int, seed: int, step: int) -> tuple[int, ...]:
    """The ranks that share in this step: alpha of them, to the nearest number, at least one if alpha is above 0."""
    return tuple(sorted(Random(f"{seed}/{step}").sample(range(ranks), _part(alpha, ranks))))


def _part(fraction: float, of: int) -> int:
    return max(1, round(fraction * of)) if fraction and of else 0


class Injection:
    """
    Non-IID data injection of SelSync: in each step a fraction `alpha` of the ranks of `group` gives the first part `beta` of its batch to all
    others; to the nearest number of samples, at least one. Which ranks is drawn from `seed` and the step, the same on all.

    `sent_bytes`, `received_bytes`: what this rank shared, and what others shared with it, so far; a shared part counts once, however many get it.
    """

    def __init__(self, alpha: float, beta: float, group: dist.ProcessGroup, seed: int) -> None:
        if not (0 <= alpha <= 1 and 0 <= beta <= 1):
            raise ValueError(f"alpha and beta are fractions, from 0 to 1: {alpha}, {beta}")
        self.sent_bytes = self.received_bytes = 0
        self._alpha = alpha
        self._beta = beta
        self._group = group
        self._seed = seed
        self._block: _Block | None = None

    def inject(self, step: int, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        The own samples, then the others' by rank. Every rank calls it in every step, with as many targets as inputs.

        How much is sent is settled at the first call, by the largest batch there: a rank with a smaller batch, or none, sends as
        much and says how much of it counts. Raises ValueError for samples of another shape or type, SyncError where a rank is gone.
        """
        if self._group.size() == 1 or not self._alpha or not self._beta:
            return inputs, targets
        if self._block is None:
            self._block = _agreed(self._beta, self._group, inputs, targets)
        self._block.check(inputs, targets)
        ranks = sharers(self._alpha, self._group.size(), self._seed, step)
        blocks = self._exchanged(self._block, ranks, inputs, targets)
        others = [self._block.read(blocks[rank]) for rank in ranks if rank != self._group.rank()]
        return torch.cat([inputs, *(theirs for theirs, _ in others)]), torch.cat(
            [targets, *(theirs for _, theirs in others)]
        )

    def _exchanged(
        self, block: _Block, ranks: tuple[int, ...], inputs: torch.Tensor, targets: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        """By rank. One broadcast a sharer: an all-gather would send as much from those who share nothing."""
        blocks = {rank: torch.zeros(block.nbytes, dtype=torch.uint8, device=inputs.device) for rank in ranks}
        if self._group.rank() in blocks:
            block.write(blocks[self._group.rank()], inputs, targets, _part(self._beta, len(inputs)))
        with collective("sharing samples", range(self._group.size())):
            works = [dist.broadcast(blocks[rank], group_src=rank, group=self._group, async_op=True) for rank in ranks]
            for work in works:
                work.wait()
        mine = self._group.rank() in blocks
        self.sent_bytes += mine * block.nbytes
        self.received_bytes += (len(ranks) - mine) * block.nbytes
        return blocks


@dataclass(frozen=True, slots=True)
class _Row:
    """One sample's input or target."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @classmethod
    def of(cls, batch: torch.Tensor) -> _Row:
        return cls(tuple(batch.shape[1:]), batch.dtype)

    def room(self, rows: int) -> int:
        """In octets, up to where the next part may begin."""
        nbytes = rows * torch.Size(self.shape).numel() * self.dtype.itemsize
        return -(-nbytes // _ALIGNED) * _ALIGNED

    def read(self, octets: torch.Tensor, rows: int) -> torch.Tensor:
        return (
            octets[: rows * torch.Size(self.shape).numel() * self.dtype.itemsize]
            .view(self.dtype)
            .view(rows, *self.shape)
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """What a sharer sends: how many rows count, then the inputs and the targets, with room for `rows` of them."""

    rows: int
    input: _Row
    target: _Row

    @property
    def nbytes(self) -> int:
        return _ALIGNED + self.input.room(self.rows) + self.target.room(self.rows)

    def check(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        if len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs and {len(targets)} targets: each sample needs both")
        if (_Row.of(inputs), _Row.of(targets)) != (self.input, self.target):
            raise ValueError(
                f"a sample is {_Row.of(inputs)} with {_Row.of(targets)}, and was {self.input} with {self.target}: pad them alike"
            )

    def write(self, octets: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor, count: int) -> None:
        count = min(count, self.rows)
        octets[:8].view(torch.int64).fill_(count)
        begin = _ALIGNED
        for row, batch in ((self.input, inputs), (self.target, targets)):
            row.read(octets[begin:], count).copy_(batch[:count])
            begin += row.room(self.rows)

    def read(self, octets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count, target = int(octets[:8].view(torch.int64)), _ALIGNED + self.input.room(self.rows)
        return self.input.read(octets[_ALIGNED:], count), self.target.read(octets[target:], count)


def _agreed(beta: float, group: dist.ProcessGroup, inputs: torch.Tensor, targets: torch.Tensor) -> _Block:
    """Raises ValueError, on all ranks, where their samples differ in shape or type."""
    told: list[Any] = [None] * group.size()
    with collective("agreeing on the samples' shape", range(group.size())):
        dist.all_gather_object(told, (len(inputs), _Row.of(inputs), _Row.of(targets)), group)
    sizes, first, second = zip(*told, strict=True)
    for rank, (row, other) in enumerate(zip(first, second, strict=True)):
        if (row, other) != (first[0], second[0]):
            raise ValueError(
                f"a sample is {first[0]} with {second[0]} on rank 0, {row} with {other} on rank {rank}: pad them alike"
            )
    return _Block(_part(beta, max(sizes)), first[0], second[0])
