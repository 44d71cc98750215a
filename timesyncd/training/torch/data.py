"""
How a data set is distributed over the ranks, and SelSync's data injection: in each step some ranks share a part of
their batch with all others, for data that differs from rank to rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TypedDict

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from timesyncd.client.torch.host_group import gather_objects, group_for
from timesyncd.training.torch.process_groups import collective_errors

#: In a block each part begins at a multiple of this many octets, the size of the largest element.
_ALIGNED = 16


def injected_batch_size(batch_size: int, alpha: float, beta: float, ranks: int) -> int:
    """
    The size of a rank's own batch such that the batch with the injected samples has about `batch_size`: b / (1 + alpha
    beta N), rounded to the nearest number, at least 1 (SelSync, Tyagi and Swany, CLUSTER 2023, Eq. 3).
    """
    return max(1, round(batch_size / (1 + alpha * beta * ranks)))


def sharing_ranks(alpha: float, ranks: int, seed: int, step: int) -> tuple[int, ...]:
    """
    The ranks that share samples in this step: a fraction alpha, rounded to the nearest number, at least one if alpha is
    above 0.
    """
    return tuple(sorted(Random(f"{seed}/{step}").sample(range(ranks), _fraction_count(alpha, ranks))))


def _fraction_count(fraction: float, total: int) -> int:
    return max(1, round(fraction * total)) if fraction and total else 0


class Injection:
    """
    Data injection of SelSync for non-IID data: in each step a fraction `alpha` of the ranks of `group` shares the first
    fraction `beta` of its batch with all others, rounded to the nearest number of samples, at least one. `seed` and the
    step determine which ranks, equally on all ranks.

    `sent_bytes`, `received_bytes`: octets that this rank shared, and that others shared with it, so far. A shared part
    counts once, however many ranks receive it. Raises ValueError for fractions outside of 0 to 1.
    """

    def __init__(self, alpha: float, beta: float, group: dist.ProcessGroup, seed: int) -> None:
        if not (0 <= alpha <= 1 and 0 <= beta <= 1):
            raise ValueError(f"alpha is {alpha} and beta is {beta}; both must be fractions from 0 to 1")
        self.sent_bytes = self.received_bytes = 0
        self._alpha = alpha
        self._beta = beta
        self._group = group
        self._seed = seed
        self._block: _Block | None = None

    def inject(self, step: int, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Returns this rank's samples, followed by the shared ones by rank. Every rank calls it in every step, with as
        many targets as inputs.

        The first call fixes the size of what is sent, by the largest batch of all ranks. A rank with a smaller batch,
        or none, sends as many octets, and states how many samples count. Raises ValueError for samples of another shape
        or type, SyncError where a rank has ended.
        """
        if self._group.size() == 1 or not self._alpha or not self._beta:
            return inputs, targets
        if self._block is None:
            self._block = _agree_on_block(self._beta, self._group, inputs, targets)
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
        """
        The blocks by rank. One broadcast per sharing rank: an all-gather would send as much from ranks that share
        nothing.
        """
        blocks = {rank: torch.zeros(block.nbytes, dtype=torch.uint8, device=inputs.device) for rank in ranks}
        if self._group.rank() in blocks:
            block.write(blocks[self._group.rank()], inputs, targets, _fraction_count(self._beta, len(inputs)))
        with collective_errors("sharing samples", range(self._group.size())):
            group = group_for(inputs, self._group)
            works = [dist.broadcast(blocks[rank], group_src=rank, group=group, async_op=True) for rank in ranks]
            for work in works:
                work.wait()
        is_sharing = self._group.rank() in blocks
        self.sent_bytes += is_sharing * block.nbytes
        self.received_bytes += (len(ranks) - is_sharing) * block.nbytes
        return blocks


@dataclass(frozen=True, slots=True)
class _SampleType:
    """Shape and type of one sample's input or target."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @classmethod
    def of(cls, batch: torch.Tensor) -> _SampleType:
        return cls(tuple(batch.shape[1:]), batch.dtype)

    def padded_bytes(self, rows: int) -> int:
        """Octets for that many samples, up to where the next part may begin."""
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
    """
    The layout of what a rank shares: how many samples count, then inputs and targets, with room for `rows` of each.
    """

    rows: int
    input: _SampleType
    target: _SampleType

    @property
    def nbytes(self) -> int:
        return _ALIGNED + self.input.padded_bytes(self.rows) + self.target.padded_bytes(self.rows)

    def check(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        if len(inputs) != len(targets):
            raise ValueError(
                f"the batch has {len(inputs)} inputs and {len(targets)} targets; each sample needs one of each"
            )
        if (_SampleType.of(inputs), _SampleType.of(targets)) != (self.input, self.target):
            raise ValueError(
                f"a sample is {_SampleType.of(inputs)} with {_SampleType.of(targets)}, and the first was "
                f"{self.input} with {self.target}; "
                "pad all samples to one shape"
            )

    def write(self, octets: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor, count: int) -> None:
        count = min(count, self.rows)
        octets[:8].view(torch.int64).fill_(count)
        begin = _ALIGNED
        for row, batch in ((self.input, inputs), (self.target, targets)):
            row.read(octets[begin:], count).copy_(batch[:count])
            begin += row.padded_bytes(self.rows)

    def read(self, octets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count, target = int(octets[:8].view(torch.int64)), _ALIGNED + self.input.padded_bytes(self.rows)
        return self.input.read(octets[_ALIGNED:], count), self.target.read(octets[target:], count)


def _agree_on_block(beta: float, group: dist.ProcessGroup, inputs: torch.Tensor, targets: torch.Tensor) -> _Block:
    """Raises ValueError, on all ranks, where their samples differ in shape or type."""
    with collective_errors("agreeing on the samples' shape", range(group.size())):
        reported = gather_objects((len(inputs), _SampleType.of(inputs), _SampleType.of(targets)), group)
    sizes, first, second = zip(*reported, strict=True)
    for rank, (row, other) in enumerate(zip(first, second, strict=True)):
        if (row, other) != (first[0], second[0]):
            raise ValueError(
                f"a sample is {first[0]} with {second[0]} on rank 0, {row} with {other} on rank {rank}; pad all "
                "samples to one shape"
            )
    return _Block(_fraction_count(beta, max(sizes)), first[0], second[0])


class SamplerState(TypedDict):
    """The position of all ranks in an epoch. It is equal on all ranks, so one rank's state serves all."""

    length: int
    ranks: int
    seed: int
    epoch: int
    position: int


class _ChunkSampler(Sampler[int]):
    """
    Divides the data set into as many chunks as ranks, at random by `seed`, once for all epochs, so that the chunks of a
    sorted data set are alike. In each epoch every chunk is shuffled again, equally on all ranks.

    An epoch uses `length // ranks` samples of each chunk. A chunk with one more sample omits one, at random another in
    each epoch: so all ranks take the same number of steps, and an epoch omits fewer samples than there are ranks.
    Raises ValueError for a rank out of range, and for fewer samples than ranks.
    """

    def __init__(self, length: int, rank: int, ranks: int, seed: int) -> None:
        if not 0 <= rank < ranks <= length:
            raise ValueError(
                f"rank is {rank} of {ranks} ranks, with {length} samples; the rank must be 0 or more and below the "
                "number of ranks, and each rank needs a sample"
            )
        self.epoch = 0
        self._length = length
        self._rank = rank
        self._ranks = ranks
        self._seed = seed
        self._position = self._next_begin = 0
        order = torch.randperm(length, generator=_generator(seed, "chunks"))
        self._chunks = [order[begin:end] for begin, end in _bounds(length, ranks)]

    @property
    def size(self) -> int:
        """Number of samples that an epoch uses of each chunk."""
        return self._length // self._ranks

    def set_epoch(self, epoch: int) -> None:
        """
        Call it at the begin of each epoch. The number of the epoch in progress, as after `load_state_dict`, changes
        nothing.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self._position = self._next_begin = 0

    def state_dict(self, used: int | None = None) -> SamplerState:
        """
        `used`: number of samples of this epoch that were trained on; None: all that were read, which is more where a
        loader's workers read ahead.
        """
        position = self._position if used is None else used
        return SamplerState(
            length=self._length, ranks=self._ranks, seed=self._seed, epoch=self.epoch, position=position
        )

    def load_state_dict(self, state: SamplerState) -> None:
        """
        The next iteration continues where the state was saved. Raises ValueError for the state of other data or another
        number of ranks.
        """
        saved = (state["length"], state["ranks"], state["seed"])
        if saved != (own := (self._length, self._ranks, self._seed)):
            raise ValueError(
                f"the sampler's state was saved with (length, ranks, seed) {saved}, and this one has {own}; start "
                "the epoch without it"
            )
        self.epoch = state["epoch"]
        self._position = self._next_begin = state["position"]

    def __iter__(self) -> Iterator[int]:
        self._position, self._next_begin = self._next_begin, 0
        turns, skipped = divmod(self._position, self.size)
        for sample in islice(self._order(turns), skipped, None):
            self._position += 1
            yield sample

    def _order(self, turns: int) -> Iterator[int]:
        """The samples of this epoch after `turns` whole chunks."""
        for number in self._chunk_numbers()[turns:]:
            chunk = self._chunks[number]
            order = torch.randperm(len(chunk), generator=_generator(self._seed, self.epoch, number))
            yield from chunk[order[: self.size]].tolist()

    def _chunk_numbers(self) -> Sequence[int]:
        """The chunk numbers in this rank's order."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size * len(self._chunk_numbers())


class SelDP(_ChunkSampler):
    """
    Every rank reads the whole data set: rank n reads chunk n, n+1, ..., n-1, so no two ranks read the same chunk at the
    same time (SelDP of SelSync, Tyagi and Swany, CLUSTER 2023). It needs the data set on every node.
    """

    def _chunk_numbers(self) -> Sequence[int]:
        return [(self._rank + turn) % self._ranks for turn in range(self._ranks)]


class DefDP(_ChunkSampler):
    """Rank n reads chunk n only, in every epoch."""

    def _chunk_numbers(self) -> Sequence[int]:
        return [self._rank]


def label_sorted_part(labels: Sequence[int], rank: int, ranks: int) -> list[int]:
    """
    The indices of this rank's part of the samples sorted by label: the hardest case for training that averages rarely.
    The parts are disjoint and equally long; the remainder is omitted. `DefDP(len(part), 0, 1, seed)` shuffles a part.
    """
    begin, end = _bounds(len(labels), ranks)[rank]
    ascending = sorted(range(len(labels)), key=labels.__getitem__)
    return ascending[begin:end][: len(labels) // ranks]


def _bounds(length: int, ranks: int) -> list[tuple[int, int]]:
    return [(length * rank // ranks, length * (rank + 1) // ranks) for rank in range(ranks)]


def _generator(*names: int | str) -> torch.Generator:
    """A random generator whose seed depends on these names only."""
    return torch.Generator().manual_seed(Random("/".join(map(str, names))).getrandbits(63))
