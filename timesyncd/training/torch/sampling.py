"""How a data set is dealt to ranks: every rank in another part of it at any moment, or each in a part of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import TypedDict

import torch
from torch.utils.data import Sampler


class State(TypedDict):
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

    def state_dict(self, used: int | None = None) -> State:
        """
        `used`: how many samples of this epoch were trained on; None: all that were given, which is more where a loader's workers read ahead.
        """
        position = self._position if used is None else used
        return State(length=self._length, ranks=self._ranks, seed=self._seed, epoch=self.epoch, position=position)

    def load_state_dict(self, state: State) -> None:
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


def by_label(labels: Sequence[int], rank: int, ranks: int) -> list[int]:
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
