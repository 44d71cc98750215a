"""
The compressors: top-k, 8-bit integers, half precision and low rank.

With top-k and 8-bit integers the ranks gather each other's payloads and add them in the order of the ranks, so that all
get the same bits. Top-k with error feedback: Aji and Heafield, EMNLP 2017; Lin et al., ICLR 2018. The gain test may
choose its ratio. torch's own quantization hooks have no error feedback, and fail on gloo.

Half precision and low rank (PowerSGD) use torch's own hooks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict
from operator import itemgetter
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from timesyncd.client.torch.ddp import bucket_bytes
from timesyncd.errors import SyncError
from timesyncd.training.compression.feedback import Feedback, Residuals, check_name, write_average
from timesyncd.training.compression.interface import (
    CompressorState,
    Future,
    TensorBucket,
    average_uncompressed,
    is_finite,
)
from timesyncd.training.policy.encoding import Gain
from timesyncd.training.policy.text import topk_count

#: Each part of a payload begins at a multiple of this many octets, as views of 8-octet numbers require.
_ALIGNED = 8


class Payload(ABC):
    """A compressed bucket, and how to read what other ranks sent for it. `octets` has the same length on every rank."""

    octets: torch.Tensor

    @abstractmethod
    def add(self, total: torch.Tensor, octets: torch.Tensor, times: int) -> None:
        """Add `times` times what a rank sent to a flat tensor."""

    @abstractmethod
    def finite(self, rows: list[torch.Tensor]) -> bool:
        """Whether the buckets of all ranks are finite, by what they sent."""


class Gathered(Feedback):
    """A compressor that gathers the payloads of all ranks."""

    _is_agreed = False

    def _compressed(self, bucket: TensorBucket) -> Future:
        if not self._is_agreed:
            self._check_agreement(bucket.buffer().device)
        residual, whole = self._whole(bucket)
        payload, index = self._payload(whole, bucket.buffer().dtype), bucket.index()
        self.sent_bytes += payload.octets.nbytes
        future, rows = gather(self._group, payload.octets)

        def finish(gathered: torch.futures.Future[Any]) -> torch.Tensor:
            gathered.value()  # raises the error, if any; `rows` is uninitialized then
            self._on_gathered(index, rows)
            if payload.finite(rows):
                residual.copy_(whole)
                payload.add(residual, payload.octets, -1)
            whole.zero_()
            for row in rows:
                payload.add(whole, row, 1)
            return write_average(whole.div_(len(rows)), bucket)

        return future.then(finish)

    @abstractmethod
    def _payload(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        """`dtype`: the type of the bucket."""

    def _on_gathered(self, index: int, rows: list[torch.Tensor]) -> None:
        """Called with the payloads of all ranks for a bucket, in a thread of the group."""

    def _size_settings(self) -> object:
        """All settings that determine the size of a payload, which must be the same on every rank."""
        return self.name

    def _check_agreement(self, device: torch.device) -> None:
        """
        Once, before the first payload: a rank that loaded another state would send another size. Raises SyncError.
        """
        own = torch.tensor([crc32(repr(self._size_settings()).encode())], device=device)
        future, rows = gather(self._group, own)
        future.wait()
        others = [rank for rank, row in enumerate(rows) if not torch.equal(row, own)]
        if others:
            raise SyncError(
                f"compression {self.name}: ranks {others} would send other sizes than rank {self._group.rank()} of "
                "their group; give every rank the same policy, and states of the same checkpoint"
            )
        self._is_agreed = True


def gather(group: dist.ProcessGroup, payload: torch.Tensor) -> tuple[torch.futures.Future[Any], list[torch.Tensor]]:
    """The payloads of all ranks in the order of the ranks. They are valid when the future is done."""
    rows = list(payload.new_empty(group.size(), len(payload)).unbind())
    work = dist.all_gather(rows, payload, group=group, async_op=True)
    assert work is not None, "this process is in the group"
    return work.get_future(), rows


def pack(*parts: torch.Tensor) -> torch.Tensor:
    """The octets of the tensors, one tensor after the other, each aligned."""
    octets = [part.reshape(-1).view(torch.uint8) for part in parts]
    return torch.cat([torch.nn.functional.pad(part, (0, -len(part) % _ALIGNED)) for part in octets])


def unpack(octets: torch.Tensor, *parts: tuple[int, torch.dtype]) -> list[torch.Tensor]:
    """The inverse of `pack`, as views. `parts`: number of elements and type of each tensor."""
    found, begin = [], 0
    for elements, dtype in parts:
        size = elements * dtype.itemsize
        found.append(octets[begin : begin + size].view(dtype))
        begin += size + -size % _ALIGNED
    return found


#: One element in this many is sampled, to estimate the magnitude of the largest. A prime, because layers have round
#: widths.
_SAMPLED = 61


class SparsePayload(Payload):
    """
    The elements of largest magnitude: two squared norms (of what is sent, and of all there was to send), values, and
    their places in the bucket.
    """

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
    """By rank, the two squared norms of its payload: of what it sent, and of all it had to send."""
    return torch.stack([unpack(row, (2, torch.float64))[0] for row in rows])


def largest_places(values: torch.Tensor, count: int) -> torch.Tensor:
    """
    The places of the `count` elements of largest magnitude, in no order.

    A sample, always of the same places, excludes most elements, so that fewer are sorted: several times faster than
    sorting all.
    """
    magnitudes = values.abs()
    sample = magnitudes[::_SAMPLED]
    above = (
        math.ceil(count / len(values) * len(sample) * 1.3) + 32
    )  # a margin, so that the limit is nearly always low enough
    if above < len(sample):
        limit = torch.topk(sample, above, sorted=False).values.min()
        candidates = (~(magnitudes < limit)).nonzero().squeeze(1)  # includes NaN
        if len(candidates) >= count:
            return candidates[torch.topk(magnitudes[candidates], count, sorted=False).indices]
    return torch.topk(magnitudes, count, sorted=False).indices


class TopKFeedback(Gathered):
    """
    Top-k with error feedback. `ratio` None: the gain test chooses it at the begin of each step, by what all ranks
    gathered in the steps before. It first waits for the former step's buckets, which have arrived by then anyway.
    """

    def __init__(
        self, name: str, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor], ratio: float | None
    ) -> None:
        super().__init__(name, group, parameters)
        self.gain = Gain(group.size()) if ratio is None else None
        self._fixed = ratio
        #: By bucket of the present step: the two squared norms of each rank.
        self._norms: dict[int, torch.Tensor] = {}
        self._begun = False

    @property
    def ratio(self) -> float | None:
        """The share of the elements that this step sends; None: all."""
        return self._fixed if self.gain is None else self.gain.ratio

    def hook(self, bucket: TensorBucket) -> Future:
        future = super().hook(bucket)
        self._begun = True
        return future

    def _compressed(self, bucket: TensorBucket) -> Future:
        return self._dense(bucket) if self.ratio is None else super()._compressed(bucket)

    def _payload(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        assert self.ratio is not None, "otherwise the bucket is sent uncompressed"
        return SparsePayload(whole, topk_count(len(whole), self.ratio), dtype)

    def _on_gathered(self, index: int, rows: list[torch.Tensor]) -> None:
        self._norms[index] = norms_from_rows(rows)

    def _finish_step(self) -> None:
        """Passes the former step's norms to the gain test: the same numbers in the same order on every rank."""
        super()._finish_step()
        norms, self._norms = self._norms, {}
        begun, self._begun = self._begun, False
        if self.gain is None or not begun:
            return
        if self.ratio is None:
            self.gain.add_step(1.0, 1.0)
        elif norms:
            sent, whole = torch.cat([norms[index] for index in sorted(norms)]).sum(0).tolist()
            self.gain.add_step(*((sent, whole) if math.isfinite(whole) else (0.0, 0.0)))

    def _size_settings(self) -> object:
        return self.name, self.gain

    def state_dict(self) -> CompressorState:
        return super().state_dict() | {"gain": self.gain and asdict(self.gain)}

    def load_state_dict(self, state: CompressorState) -> None:
        """The gain test starts from the beginning where the state was saved with another number of ranks."""
        super().load_state_dict(state)
        if self.gain is not None:
            loaded = Gain(**state["gain"])
            self.gain = loaded if loaded.ranks == self._group.size() else Gain(self._group.size())


#: Number of elements, at most, that share a scale.
SCALE_ELEMENTS = 4_096

_MAX_MULTIPLE = 127


class QuantizedPayload(Payload):
    """Each block of a bucket as 8-bit multiples of the block's scale, which is 1/127 of its largest magnitude."""

    def __init__(self, whole: torch.Tensor) -> None:
        self._blocks = math.ceil(len(whole) / SCALE_ELEMENTS)
        self._width = math.ceil(len(whole) / self._blocks)
        filled = torch.nn.functional.pad(whole, (0, self._blocks * self._width - len(whole)))
        blocks = filled.view(self._blocks, self._width)
        scales = blocks.abs().amax(1).div_(_MAX_MULTIPLE).float()
        # Where a scale is 0 the multiples are undefined; decoding multiplies them by it.
        multiples = blocks.div(scales.unsqueeze(1)).round_()
        self.octets = pack(scales, multiples.clamp_(-_MAX_MULTIPLE, _MAX_MULTIPLE).to(torch.int8))

    def add(self, total: torch.Tensor, octets: torch.Tensor, times: int) -> None:
        scales, multiples = self._unpacked(octets)
        values = multiples.view(self._blocks, self._width).to(total.dtype).mul_(scales.unsqueeze(1))
        total.add_(values.view(-1)[: len(total)], alpha=times)

    def finite(self, rows: list[torch.Tensor]) -> bool:
        return all(bool(self._unpacked(row)[0].isfinite().all()) for row in rows)

    def _unpacked(self, octets: torch.Tensor) -> list[torch.Tensor]:
        """The scales and the multiples."""
        return unpack(octets, (self._blocks, torch.float32), (self._blocks * self._width, torch.int8))


class Int8Feedback(Gathered):
    """8-bit integers with error feedback."""

    def _payload(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        return QuantizedPayload(whole)


#: The smallest value that torch allows. The steps before it are sent uncompressed.
_FIRST_STEP = 2

#: Added to the length by which a column is divided. Without it, a layer without gradients becomes NaN.
_EPSILON = 1e-8


class HalfPrecision:
    """fp16, without error feedback: the rounding error is lost."""

    def __init__(self, name: str, group: dist.ProcessGroup) -> None:
        self.name = name
        self.raw_bytes = 0
        self.sent_bytes = 0
        self._group = group

    def hook(self, bucket: TensorBucket) -> Future:
        if bucket.buffer().is_sparse:
            return self.dense(bucket)
        self.raw_bytes += bucket.buffer().nbytes
        self.sent_bytes += bucket.buffer().numel() * torch.float16.itemsize
        return fp16_compress_hook(self._group, bucket)

    def dense(self, bucket: TensorBucket) -> Future:
        self.raw_bytes += bucket_bytes(bucket.buffer())
        self.sent_bytes += bucket_bytes(bucket.buffer())
        return average_uncompressed(self._group, bucket)

    def state_dict(self) -> CompressorState:
        return {"name": self.name}

    def load_state_dict(self, state: CompressorState) -> None:
        check_name(self.name, state)


class LowRank(Feedback):
    """
    PowerSGD. The hook waits for each bucket: torch's own chains collectives in the group's threads, where on gloo those
    of two buckets may run in a different order on each rank.

    torch keeps errors and factors by the bucket's number. Here errors belong to parameters, and factors to sets of
    parameters: a bucket with a new set starts with new factors.
    """

    def __init__(self, name: str, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor], rank: int) -> None:
        super().__init__(name, group, parameters)
        self._torch = PowerSGDState(group, rank, _FIRST_STEP, orthogonalization_epsilon=_EPSILON)
        self._seeds = _Seeds()
        self._torch.rng = self._seeds  # type: ignore[assignment]  # torch calls only its randint
        self._numbers: dict[tuple[int, ...], int] = {}

    def _compressed(self, bucket: TensorBucket) -> Future:
        if self._torch.iter < _FIRST_STEP:
            self._torch.iter += bucket.is_last()
            return self._dense(bucket)
        places = tuple(sorted(self._residuals.places(bucket)))
        number = self._numbers.setdefault(places, len(self._numbers))
        residual, before = self._residuals.flat(bucket), self._torch.total_numel_after_compression
        self._torch.error_dict[number] = residual
        future = powerSGD_hook(self._torch, _Numbered(bucket, number, self._residuals))
        average = future.wait()
        sent = self._torch.total_numel_after_compression - before
        self.sent_bytes += sent * bucket.buffer().itemsize
        error = self._torch.error_dict.pop(number)
        if is_finite(average):
            residual.copy_(error)
        else:  # the factors are not finite either, equally on all ranks
            del self._torch.p_memory_dict[number], self._torch.q_memory_dict[number]
        return future

    def state_dict(self) -> CompressorState:
        factors = [
            (places, self._torch.p_memory_dict[number].clone(), self._torch.q_memory_dict[number].clone())
            for places, number in self._numbers.items()
            if number in self._torch.q_memory_dict
        ]
        return super().state_dict() | {"step": self._torch.iter, "seeds": self._seeds.drawn, "factors": factors}

    def load_state_dict(self, state: CompressorState) -> None:
        super().load_state_dict(state)
        self._torch.iter, self._seeds.drawn = state["step"], state["seeds"]
        self._numbers = {tuple(places): number for number, (places, _, _) in enumerate(state["factors"])}
        self._torch.p_memory_dict = {number: p.clone() for number, (_, p, _) in enumerate(state["factors"])}
        self._torch.q_memory_dict = {number: q.clone() for number, (_, _, q) in enumerate(state["factors"])}


class _Seeds:
    """The seeds of first factors, equal on all ranks. Replaces torch's generator, whose state is not a plain number."""

    def __init__(self) -> None:
        self.drawn = 0

    def randint(self, limit: int) -> int:
        self.drawn += 1
        return self.drawn % limit


class _Numbered:
    """
    A bucket with another number. Its gradients have the form that torch's hook requires: contiguous, with at least one
    dimension. They are in the order of the parameters, so that factors do not depend on the order in the bucket.
    """

    def __init__(self, bucket: TensorBucket, number: int, residuals: Residuals) -> None:
        self._bucket = bucket
        self._number = number
        self._places = residuals.places(bucket)

    def index(self) -> int:
        return self._number

    def is_last(self) -> bool:
        return self._bucket.is_last()

    def buffer(self) -> torch.Tensor:
        return self._bucket.buffer()

    def gradients(self) -> list[torch.Tensor]:
        parameters = self._bucket.parameters()
        parts = torch.split(self.buffer(), [parameter.numel() for parameter in parameters])
        shaped = [part.view(parameter.shape or (1,)) for part, parameter in zip(parts, parameters, strict=True)]
        return [gradient for _, gradient in sorted(zip(self._places, shaped, strict=True), key=itemgetter(0))]
