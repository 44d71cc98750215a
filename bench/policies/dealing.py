"""The samples that each rank draws, batch by batch, for ever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from policies.plan import Method, Task
from policies.tasks import Data

from timesyncd.training.torch.data import DefDP, SelDP, label_sorted_part


def epochs(task: Task, method: Method, data: Data, rank: int, ranks: int, seed: int) -> Iterator[Iterable[int]]:
    part: Sequence[int] = range(data.length)
    if task.by_label:
        part = label_sorted_part(data.labels, rank, ranks)
        sampler: SelDP | DefDP = DefDP(len(part), 0, 1, seed * 1_000 + rank)
    else:
        sampler = (SelDP if method.partition == "sel" else DefDP)(data.length, rank, ranks, seed)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield (part[place] for place in sampler)
        epoch += 1


def batches(samples: Iterator[Iterable[int]], size: int) -> Iterator[Sequence[int]]:
    """Whole ones; what is left of an epoch begins the next one."""
    batch: list[int] = []
    for epoch in samples:
        for sample in epoch:
            batch.append(sample)
            if len(batch) == size:
                yield batch
                batch = []
