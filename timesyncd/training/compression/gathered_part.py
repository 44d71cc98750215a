"""Compressors whose ranks gather each other's payloads, and add them up in the order of ranks: the same bits everywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist

from timesyncd.errors import SyncError
from timesyncd.training.compression.feedback import Feedback, put
from timesyncd.training.compression.interface import Bucket, Future

#: Each part of a payload begins at a multiple of this, as views of 8-octet numbers need it.
_ALIGNED = 8


class Payload(ABC):
    """A bucket compressed, and how what other ranks sent for it is read. `octets`: as many on every rank."""

    octets: torch.Tensor

    @abstractmethod
    def add(self, total: torch.Tensor, octets: torch.Tensor, times: int) -> None:
        """Add what some rank sent, so many times, to a flat tensor."""

    @abstractmethod
    def finite(self, rows: list[torch.Tensor]) -> bool:
        """Whether all ranks' buckets are, by what they sent."""


class Gathered(Feedback):
    _agreed = False

    def _compressed(self, bucket: Bucket) -> Future:
        if not self._agreed:
            self._agree(bucket.buffer().device)
        residual, whole = self._whole(bucket)
        payload, index = self._packed(whole, bucket.buffer().dtype), bucket.index()
        self.sent_bytes += payload.octets.nbytes
        future, rows = gather(self._group, payload.octets)

        def finish(gathered: torch.futures.Future[Any]) -> torch.Tensor:
            gathered.value()  # raises what went wrong: `rows` would be whatever lay there before
            self._heard(index, rows)
            if payload.finite(rows):
                residual.copy_(whole)
                payload.add(residual, payload.octets, -1)
            whole.zero_()
            for row in rows:
                payload.add(whole, row, 1)
            return put(whole.div_(len(rows)), bucket)

        return future.then(finish)

    @abstractmethod
    def _packed(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        """`dtype`: the bucket's own."""

    def _heard(self, index: int, rows: list[torch.Tensor]) -> None:
        """What all ranks sent for a bucket; some thread of the group's calls it."""

    def _deciding(self) -> object:
        """All that decides how large payloads are, which must be the same on every rank."""
        return self.name

    def _agree(self, device: torch.device) -> None:
        """Once, before the first payload: a rank that has loaded another state would send another size."""
        own = torch.tensor([crc32(repr(self._deciding()).encode())], device=device)
        future, rows = gather(self._group, own)
        future.wait()
        others = [rank for rank, row in enumerate(rows) if not torch.equal(row, own)]
        if others:
            raise SyncError(
                f"{self.name}: ranks {others} would send other sizes than rank {self._group.rank()} of their group: "
                "give every rank the same policy, and states of the same checkpoint"
            )
        self._agreed = True


def gather(group: dist.ProcessGroup, payload: torch.Tensor) -> tuple[torch.futures.Future[Any], list[torch.Tensor]]:
    """Every rank's payload in the order of ranks, there when the future is done."""
    rows = list(payload.new_empty(group.size(), len(payload)).unbind())
    work = dist.all_gather(rows, payload, group=group, async_op=True)
    assert work is not None, "this process is in the group"
    return work.get_future(), rows


def packed(*parts: torch.Tensor) -> torch.Tensor:
    """Tensors as octets, one behind the other."""
    octets = [part.reshape(-1).view(torch.uint8) for part in parts]
    return torch.cat([torch.nn.functional.pad(part, (0, -len(part) % _ALIGNED)) for part in octets])


def unpacked(octets: torch.Tensor, *parts: tuple[int, torch.dtype]) -> list[torch.Tensor]:
    """What `packed` made, as views, given how many elements of which type each part has."""
    found, begin = [], 0
    for elements, dtype in parts:
        size = elements * dtype.itemsize
        found.append(octets[begin : begin + size].view(dtype))
        begin += size + -size % _ALIGNED
    return found
