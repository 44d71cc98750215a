"""Ranks of a real gloo group as threads of this process, and buckets without a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from timesyncd.training.compression import Compressor, compressor
from timesyncd.training.policy.text import Compression

_Result = TypeVar("_Result")


class Chunk:
    """A bucket that does not come from DDP's reducer."""

    def __init__(
        self, parameters: Sequence[torch.Tensor], values: torch.Tensor, index: int = 0, last: bool = True
    ) -> None:
        self._parameters, self._buffer, self._index, self._last = list(parameters), values, index, last

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        parts = torch.split(self._buffer, [parameter.numel() for parameter in self._parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._parameters, strict=True)]

    def set_buffer(self, tensor: torch.Tensor) -> None:
        self._buffer = tensor


class Ranks:
    """A group of this many ranks."""

    def __init__(self, size: int, pool: ThreadPoolExecutor, timeout_s: int) -> None:
        store, self._pool = HashStore(), pool
        self.size = size

        def join(rank: int) -> dist.ProcessGroup:
            group: Any = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s))
            return group  # type: ignore[no-any-return]  # one in all but its type

        self.groups = self.all(join)

    def all(self, do: Callable[[int], _Result]) -> list[_Result]:
        """Run something on all ranks at the same time; returns the results in the order of the ranks."""
        return list(self._pool.map(do, range(self.size)))

    def compressors(self, written: Compression, parameters: Sequence[torch.Tensor]) -> list[Any]:
        """Anything of them may be looked at."""
        return [compressor(written, group, parameters) for group in self.groups]

    def step(
        self, compressors: Sequence[Compressor], buckets: Sequence[Sequence[Chunk]], dense: bool = False
    ) -> list[list[torch.Tensor]]:
        """Reduce each rank's buckets, all started before any is waited for; returns each rank's averages."""

        def reduce(rank: int) -> list[torch.Tensor]:
            hook = compressors[rank].dense if dense else compressors[rank].hook
            futures = [hook(bucket) for bucket in buckets[rank]]
            return [future.wait() for future in futures]

        return self.all(reduce)

    def reduced(
        self, compressors: Sequence[Compressor], parameters: Sequence[torch.Tensor], *values: Any
    ) -> torch.Tensor:
        """Reduce one bucket per rank, of these values; returns what all ranks got, equal to the bit."""
        buckets = [[Chunk(parameters, torch.as_tensor(value).clone())] for value in values]
        (first,), *others = self.step(compressors, buckets)
        assert all(torch.equal(first, other) for (other,) in others)
        return first


@contextmanager
def ranks(size: int, timeout_s: int = 120) -> Iterator[Ranks]:
    with ThreadPoolExecutor(size) as pool:
        yield Ranks(size, pool, timeout_s)


def residual(of: Any) -> torch.Tensor:
    """The residuals of a compressor, in the order of its parameters."""
    return torch.cat([part for _, part in sorted(of.state_dict()["residuals"].items(), key=lambda item: int(item[0]))])
