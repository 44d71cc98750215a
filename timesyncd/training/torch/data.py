"""
Data that are not alike on all ranks, mixed: in each step some ranks share a part of their batch with all others.

How a data set is dealt to ranks: every rank in another part of it at any moment, or each in a part of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from timesyncd.training.torch.topology_groups import collective_errors

#: In a block each part begins at a multiple of so many octets: the largest element's size.
_ALIGNED = 16


def injected_batch_size(batch_size: int, alpha: float, beta: float, ranks: int) -> int:
    """
    A rank's own batch such that with what is injected it is about `batch_size`: b / (1 + alpha beta N), to the nearest number, at least 1
    (SelSync, Tyagi and Swany, CLUSTER 2023, Eq. 3).
    """
    return max(1, round(batch_size / (1 + alpha * beta * ranks)))


def sharing_ranks(alpha: float, ranks: int, seed: int, step: int) -> tuple[int, ...]:
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
        ranks = sharing_ranks(self._alpha, self._group.size(), self._seed, step)
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
        with collective_errors("sharing samples", range(self._group.size())):
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
    with collective_errors("agreeing on the samples' shape", range(group.size())):
        dist.all_gather_object(told, (len(inputs), _Row.of(inputs), _Row.of(targets)), group)
    sizes, first, second = zip(*told, strict=True)
    for rank, (row, other) in enumerate(zip(first, second, strict=True)):
        if (row, other) != (first[0], second[0]):
            raise ValueError(
                f"a sample is {first[0]} with {second[0]} on rank 0, {row} with {other} on rank {rank}: pad them alike"
            )
    return _Block(_part(beta, max(sizes)), first[0], second[0])


class SamplerState(TypedDict):
    """Where the ranks are in an epoch. The same on all of them: one rank's serves all."""

    length: int
    ranks: int
    seed: int
    epoch: int
    position: int


class _Dealt(Sampler[int]):
    """
    The data set in as many chunks as ranks, dealt by `seed` once and for all, so that a sorted one gives chunks of one kind. In each epoch
    every chunk is shuffled anew, the same on all ranks.

    An epoch takes `length // ranks` samples of each chunk. A chunk that has one more leaves out one, by chance another in each epoch: all
    ranks take as many steps, and an epoch lacks fewer samples than there are ranks.
    """

    def __init__(self, length: int, rank: int, ranks: int, seed: int) -> None:
        if not 0 <= rank < ranks <= length:
            raise ValueError(
                f"rank {rank} of {ranks} and {length} samples: each rank needs a number below {ranks}, and a sample"
            )
        self.epoch = 0
        self._length = length
        self._rank = rank
        self._ranks = ranks
        self._seed = seed
        self._position = self._next_begin = 0
        dealt = torch.randperm(length, generator=_generator(seed, "dealt"))
        self._chunks = [dealt[begin:end] for begin, end in _bounds(length, ranks)]

    @property
    def size(self) -> int:
        """What an epoch takes of each chunk."""
        return self._length // self._ranks

    def set_epoch(self, epoch: int) -> None:
        """At the begin of each. The number of the epoch that is under way, as after `load_state_dict`, changes nothing."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._position = self._next_begin = 0

    def state_dict(self, used: int | None = None) -> SamplerState:
        """
        `used`: how many samples of this epoch were trained on; None: all that were given, which is more where a loader's workers read ahead.
        """
        position = self._position if used is None else used
        return SamplerState(
            length=self._length, ranks=self._ranks, seed=self._seed, epoch=self.epoch, position=position
        )

    def load_state_dict(self, state: SamplerState) -> None:
        """The next iteration goes on where the state was taken. Raises ValueError for the state of other data or another number of ranks."""
        told = (state["length"], state["ranks"], state["seed"])
        if told != (own := (self._length, self._ranks, self._seed)):
            raise ValueError(f"a state of (length, ranks, seed) {told} does not fit {own}: begin the epoch anew")
        self.epoch = state["epoch"]
        self._position = self._next_begin = state["position"]

    def __iter__(self) -> Iterator[int]:
        self._position, self._next_begin = self._next_begin, 0
        turns, skipped = divmod(self._position, self.size)
        for sample in islice(self._order(turns), skipped, None):
            self._position += 1
            yield sample

    def _order(self, turns: int) -> Iterator[int]:
        """The samples of this epoch after so many whole chunks."""
        for number in self._numbers()[turns:]:
            chunk = self._chunks[number]
            order = torch.randperm(len(chunk), generator=_generator(self._seed, self.epoch, number))
            yield from chunk[order[: self.size]].tolist()

    def _numbers(self) -> Sequence[int]:
        """Of the chunks, in this rank's order."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size * len(self._numbers())


class SelDP(_Dealt):
    """
    Every rank goes through the whole data set: rank n through chunk n, n+1, ..., n-1. So no two are in the same chunk at the same position
    (SelDP of SelSync, Tyagi and Swany, CLUSTER 2023). It needs the data set on every node.
    """

    def _numbers(self) -> Sequence[int]:
        return [(self._rank + turn) % self._ranks for turn in range(self._ranks)]


class DefDP(_Dealt):
    """Rank n goes through chunk n alone, in every epoch."""

    def _numbers(self) -> Sequence[int]:
        return [self._rank]


def label_sorted_part(labels: Sequence[int], rank: int, ranks: int) -> list[int]:
    """
    This rank's part of the samples sorted by label, as indices: the hardest case for training that averages seldom. All parts are disjoint
    and as long; what does not divide is left out. Order within it with a `DefDP(len(part), 0, 1, seed)`.
    """
    begin, end = _bounds(len(labels), ranks)[rank]
    ascending = sorted(range(len(labels)), key=labels.__getitem__)
    return ascending[begin:end][: len(labels) // ranks]


def _bounds(length: int, ranks: int) -> list[tuple[int, int]]:
    return [(length * rank // ranks, length * (rank + 1) // ranks) for rank in range(ranks)]


def _generator(*names: int | str) -> torch.Generator:
    """A source of chance of its own for these names."""
    return torch.Generator().manual_seed(Random("/".join(map(str, names))).getrandbits(63))
