"""
The largest elements alone, with error feedback (Aji & Heafield, EMNLP 2017; Lin et al., ICLR 2018); the gain test may say how many.

Compressors whose ranks gather each other's payloads, and add them up in the order of ranks: the same bits everywhere.

One octet an element, with error feedback; torch's own quantization hooks have none, and fail on gloo.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist

from timesyncd.errors import SyncError
from timesyncd.training.compression.feedback import Feedback, write_average
from timesyncd.training.compression.interface import CompressorState, Future, TensorBucket
from timesyncd.training.policy.gain import Gain
from timesyncd.training.policy.text import topk_count

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

    def _compressed(self, bucket: TensorBucket) -> Future:
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
            return write_average(whole.div_(len(rows)), bucket)

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


def pack(*parts: torch.Tensor) -> torch.Tensor:
    """Tensors as octets, one behind the other."""
    octets = [part.reshape(-1).view(torch.uint8) for part in parts]
    return torch.cat([torch.nn.functional.pad(part, (0, -len(part) % _ALIGNED)) for part in octets])


def unpack(octets: torch.Tensor, *parts: tuple[int, torch.dtype]) -> list[torch.Tensor]:
    """What `pack` made, as views, given how many elements of which type each part has."""
    found, begin = [], 0
    for elements, dtype in parts:
        size = elements * dtype.itemsize
        found.append(octets[begin : begin + size].view(dtype))
        begin += size + -size % _ALIGNED
    return found


#: One element in so many is looked at first, to know about how large the largest are. A prime: layers have round widths.
_SAMPLED = 61


class SparsePayload(Payload):
    """Two squared norms (of what is sent, and of all there was to send), values, and their places in the bucket."""

    def __init__(self, whole: torch.Tensor, count: int, dtype: torch.dtype) -> None:
        self._parts = (2, torch.float64), (count, dtype), (count, torch.int32)
        places = largest_places(whole, count)
        values = whole[places].to(dtype)
        norms = torch.stack([torch.linalg.vector_norm(part, dtype=torch.float64) for part in (values, whole)])
        self.octets = pack(norms.square_(), values, places.int())

    def add(self, total: torch.Tensor, octets: torch.Tensor, times: int) -> None:
        _, values, places = unpack(octets, *self._parts)
        total.index_add_(0, places, values.to(total.dtype), alpha=times)

    def finite(self, rows: list[torch.Tensor]) -> bool:
        return bool(norms_from_rows(rows).isfinite().all())


def norms_from_rows(rows: list[torch.Tensor]) -> torch.Tensor:
    """Of each rank's payload: what it sent, what it had to send."""
    return torch.stack([unpack(row, (2, torch.float64))[0] for row in rows])


def largest_places(values: torch.Tensor, count: int) -> torch.Tensor:
    """
    The places of so many of the largest magnitudes, in no order.

    A sample says what is surely not among them, so that fewer are sorted: several times faster than to sort all. It is the same sample each time.
    """
    magnitudes = values.abs()
    sample = magnitudes[::_SAMPLED]
    above = math.ceil(count / len(values) * len(sample) * 1.3) + 32  # so that the limit is nearly always low enough
    if above < len(sample):
        limit = torch.topk(sample, above, sorted=False).values.min()
        candidates = (~(magnitudes < limit)).nonzero().squeeze(1)  # with what is no number
        if len(candidates) >= count:
            return candidates[torch.topk(magnitudes[candidates], count, sorted=False).indices]
    return torch.topk(magnitudes, count, sorted=False).indices


class TopKFeedback(Gathered):
    """
    `ratio` None: the gain test chooses it anew at a step's begin, by what all ranks gathered in the steps before. It waits for the former step's buckets
    first, which by then are there anyhow.
    """

    def __init__(
        self, name: str, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor], ratio: float | None
    ) -> None:
        super().__init__(name, group, parameters)
        self.gain = Gain(group.size()) if ratio is None else None
        self._fixed = ratio
        #: Of the step under way, by bucket: each rank's two squared norms.
        self._norms: dict[int, torch.Tensor] = {}
        self._begun = False

    @property
    def ratio(self) -> float | None:
        """Of the elements, what is sent in this step; None: all."""
        return self._fixed if self.gain is None else self.gain.ratio

    def hook(self, bucket: TensorBucket) -> Future:
        future = super().hook(bucket)
        self._begun = True
        return future

    def _compressed(self, bucket: TensorBucket) -> Future:
        return self._dense(bucket) if self.ratio is None else super()._compressed(bucket)

    def _packed(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        assert self.ratio is not None, "else it is sent uncompressed"
        return SparsePayload(whole, topk_count(len(whole), self.ratio), dtype)

    def _heard(self, index: int, rows: list[torch.Tensor]) -> None:
        self._norms[index] = norms_from_rows(rows)

    def _settle(self) -> None:
        """The gain test sees the former step: the same numbers in the same order on every rank."""
        super()._settle()
        norms, self._norms = self._norms, {}
        begun, self._begun = self._begun, False
        if self.gain is None or not begun:
            return
        if self.ratio is None:
            self.gain.saw(1.0, 1.0)
        elif norms:
            sent, whole = torch.cat([norms[index] for index in sorted(norms)]).sum(0).tolist()
            self.gain.saw(*((sent, whole) if math.isfinite(whole) else (0.0, 0.0)))

    def _deciding(self) -> object:
        return self.name, self.gain

    def state_dict(self) -> CompressorState:
        return super().state_dict() | {"gain": self.gain and asdict(self.gain)}

    def load_state_dict(self, state: CompressorState) -> None:
        """What the gain test found with another number of ranks says nothing of this one."""
        super().load_state_dict(state)
        if self.gain is not None:
            loaded = Gain(**state["gain"])
            self.gain = loaded if loaded.ranks == self._group.size() else Gain(self._group.size())


#: So many elements at most share a scale.
SCALE_ELEMENTS = 4_096

_LARGEST = 127


class QuantizedPayload(Payload):
    """Each stretch of a bucket as whole multiples of a scale, 1/127 of its largest magnitude."""

    def __init__(self, whole: torch.Tensor) -> None:
        self._stretches = math.ceil(len(whole) / SCALE_ELEMENTS)
        self._width = math.ceil(len(whole) / self._stretches)
        filled = torch.nn.functional.pad(whole, (0, self._stretches * self._width - len(whole)))
        stretches = filled.view(self._stretches, self._width)
        scales = stretches.abs().amax(1).div_(_LARGEST).float()
        multiples = stretches.div(
            scales.unsqueeze(1)
        ).round_()  # where a scale is 0, whatever they are is multiplied by it
        self.octets = pack(scales, multiples.clamp_(-_LARGEST, _LARGEST).to(torch.int8))

    def add(self, total: torch.Tensor, octets: torch.Tensor, times: int) -> None:
        scales, multiples = self._unpacked(octets)
        values = multiples.view(self._stretches, self._width).to(total.dtype).mul_(scales.unsqueeze(1))
        total.add_(values.view(-1)[: len(total)], alpha=times)

    def finite(self, rows: list[torch.Tensor]) -> bool:
        return all(bool(self._unpacked(row)[0].isfinite().all()) for row in rows)

    def _unpacked(self, octets: torch.Tensor) -> list[torch.Tensor]:
        """Scales and multiples."""
        return unpack(octets, (self._stretches, torch.float32), (self._stretches * self._width, torch.int8))


class Int8Feedback(Gathered):
    def _packed(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        return QuantizedPayload(whole)
