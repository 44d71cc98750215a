"""
The compressors: top-k, 8-bit integers, half precision and low rank.

With top-k and 8-bit integers the ranks gather each other's payloads and add them in the order of the ranks, so that all
get the same bits. Top-k with error feedback: Aji and Heafield, EMNLP 2017; Lin et al., ICLR 2018. The gain test may
choose its ratio. torch's own quantization hooks have no error feedback, and fail on gloo.

Half precision uses torch's own hook.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from timesyncd.client.torch.ddp import bucket_bytes
from timesyncd.errors import SyncError
from timesyncd.training.compression.feedback import Feedback, check_name, write_average
from timesyncd.training.compression.interface import (
    CompressorState,
    Future,
    TensorBucket,
    average_uncompressed,
    is_finite,
    replace_if,
)
from timesyncd.training.policy.encoding import WINDOW, Gain
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
    def finite(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """Whether the buckets of all ranks are finite, by what they sent: one number on their device."""


class Gathered(Feedback):
    """A compressor that gathers the payloads of all ranks."""

    _is_agreed = False
    #: Whether what a step does not send is added to the next one.
    _has_feedback = True

    def _compressed(self, bucket: TensorBucket) -> Future:
        if not self._is_agreed:
            self._check_agreement(bucket.buffer().device)
        residual, whole = self._whole(bucket)
        payload, index = self._payload(whole, bucket.buffer().dtype), bucket.index()
        self.sent_bytes += payload.octets.nbytes
        future, rows = gather(self._group, payload.octets)
        # Weak: the thread of a group that runs this must not hold the group's last reference, since it would join itself.
        on_gathered, has_feedback = weakref.WeakMethod(self._on_gathered), self._has_feedback

        def finish(gathered: torch.futures.Future[Any]) -> torch.Tensor:
            gathered.value()  # raises the error, if any; `rows` is uninitialized then
            if (record := on_gathered()) is not None:
                record(index, rows)
            if has_feedback:
                unsent = whole.clone()
                payload.add(unsent, payload.octets, -1)
                replace_if(payload.finite(rows), residual, unsent)
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
        words = torch.cat([own, *rows]).tolist()
        others = [rank for rank, word in enumerate(words[1:]) if word != words[0]]
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

    def finite(self, rows: list[torch.Tensor]) -> torch.Tensor:
        return norms_from_rows(rows).isfinite().all()


def norms_from_rows(rows: list[torch.Tensor]) -> torch.Tensor:
    """By rank, the two squared norms of its payload: of what it sent, and of all it had to send."""
    return torch.stack([unpack(row, (2, torch.float64))[0] for row in rows])


def on_host(tensor: torch.Tensor) -> bool:
    """Whether the host reads the tensor without waiting for a device."""
    return tensor.device.type == "cpu"


def largest_places(values: torch.Tensor, count: int) -> torch.Tensor:
    """
    The places of the `count` elements of largest magnitude, in no order.

    On the CPU a sample, always of the same places, excludes most elements, so that fewer are sorted: several times faster than
    sorting all. How many remain is known to the host only after it has read them, so on another device all are sorted.
    """
    magnitudes = values.abs()
    if not on_host(values):
        return torch.topk(magnitudes, count, sorted=False).indices
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
        self._gain = Gain(group.size()) if ratio is None else None
        self._fixed = ratio
        #: What the gain test has not read yet, by step: the sums of the two squared norms, on the device; None: nothing was compressed.
        self._unread: list[torch.Tensor | None] = []
        #: By bucket of the present step: the two squared norms of each rank.
        self._norms: dict[int, torch.Tensor] = {}
        self._begun = False
        #: Whether the caller reads `unread` between two steps and gives its values to `accept`: no hook reads the device then.
        self.reads_between_steps = False

    @property
    def unread(self) -> list[torch.Tensor]:
        """What the gain test needs the values of, where its window is full."""
        if self._gain is None or self._gain.steps + len(self._unread) < WINDOW:
            return []
        return [each for each in self._unread if each is not None]

    def accept(self, values: Sequence[float]) -> None:
        """`values`: those of `unread`."""
        if self._gain is not None and self._gain.steps + len(self._unread) >= WINDOW:
            self._add_steps(values)

    @property
    def gain(self) -> Gain | None:
        """The gain test; None: the ratio is fixed. It reads the device."""
        self._read_norms()
        return self._gain

    @gain.setter
    def gain(self, gain: Gain | None) -> None:
        self._gain, self._unread = gain, []

    @property
    def ratio(self) -> float | None:
        """The share of the elements that this step sends; None: all."""
        return self._fixed if self._gain is None else self._gain.ratio

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
        if self._gain is not None:
            self._norms[index] = norms_from_rows(rows)

    def _finish_step(self) -> None:
        """Keeps the former step's norms for the gain test, which decides after a window of steps: only then they are read."""
        super()._finish_step()
        norms, self._norms = self._norms, {}
        begun, self._begun = self._begun, False
        if self._gain is None or not begun:
            return
        if self.ratio is None:
            self._unread.append(None)
        elif norms:
            self._unread.append(torch.cat([norms[index] for index in sorted(norms)]).sum(0))
        if self._gain.steps + len(self._unread) == WINDOW and not self.reads_between_steps:
            self._read_norms()

    def _read_norms(self) -> None:
        sums = [each for each in self._unread if each is not None]
        self._add_steps(torch.stack(sums).view(-1).tolist() if sums else [])

    def _add_steps(self, values: Sequence[float]) -> None:
        """Passes the norms to the gain test: the same numbers in the same order on every rank."""
        unread, self._unread = self._unread, []
        pairs = iter(zip(values[::2], values[1::2], strict=True))
        for each in unread:
            sent, whole = (1.0, 1.0) if each is None else next(pairs)
            if self._gain is not None:
                self._gain.add_step(*((sent, whole) if math.isfinite(whole) else (0.0, 0.0)))

    def _size_settings(self) -> object:
        return self.name, self.gain

    def state_dict(self) -> CompressorState:
        return super().state_dict() | {"gain": self.gain and asdict(self.gain)}

    def load_state_dict(self, state: CompressorState) -> None:
        """The gain test starts from the beginning where the state was saved with another number of ranks."""
        super().load_state_dict(state)
        if self._gain is not None:
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

    def finite(self, rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([self._unpacked(row)[0] for row in rows]).isfinite().all()

    def _unpacked(self, octets: torch.Tensor) -> list[torch.Tensor]:
        """The scales and the multiples."""
        return unpack(octets, (self._blocks, torch.float32), (self._blocks * self._width, torch.int8))


class Int8Feedback(Gathered):
    """8-bit integers with error feedback."""

    def _payload(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        return QuantizedPayload(whole)


#: The steps before it are sent uncompressed: the first gradients are the largest.
_FIRST_STEP = 2

#: A matrix whose two factors are not smaller than it by this is sent uncompressed.
_MIN_COMPRESSION = 2

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


@dataclass(slots=True)
class _Factors:
    """
    The right factors of a set of matrices, one after the other in one flat tensor, for the next step.

    `first`: with what they began, by `seed`; equal on all ranks. They begin so again after a step that was not finite.
    """

    seed: int
    first: torch.Tensor
    latest: torch.Tensor

    @classmethod
    def begin(cls, seed: int, size: int, like: torch.Tensor, latest: torch.Tensor | None = None) -> _Factors:
        first = torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(like.device, like.dtype)
        return cls(seed, first, first.clone() if latest is None else latest.to(like.device, like.dtype))


class LowRank(Feedback):
    """
    PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019, Algorithm 1): a matrix as the product of two thin ones, each of which is an
    all-reduce. The hook waits for them, since those of two buckets could run in a different order on each rank. On CUDA only the stream
    waits: torch's own hook synchronizes the device in each bucket.

    Errors belong to parameters, and factors to sets of parameters: a bucket with a new set starts with new factors.
    """

    def __init__(self, name: str, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor], rank: int) -> None:
        super().__init__(name, group, parameters)
        self._rank = rank
        self._step = 0
        self._seeds = 0
        self._factors: dict[tuple[int, ...], _Factors] = {}
        self._loaded: dict[tuple[int, ...], tuple[int, torch.Tensor]] = {}

    def _compressed(self, bucket: TensorBucket) -> Future:
        if self._step < _FIRST_STEP:
            self._step += bucket.is_last()
            return self._dense(bucket)
        residual, whole = self._whole(bucket)
        unsent, dtype = whole.clone(), bucket.buffer().dtype
        matrices, others = self._divided(bucket, whole)
        factors = self._factors_of(bucket, matrices, whole)
        former = self._rights(matrices, factors.latest)
        lefts = [matrix @ right for matrix, right in zip(matrices, former, strict=True)]
        reduced = _split_like(self._mean([*others, *lefts], dtype, whole), [*others, *lefts])
        for other, mean in zip(others, reduced, strict=False):
            other.copy_(mean)
        lefts = [_orthogonal(left) for left in reduced[len(others) :]]
        rights = self._mean([matrix.T @ left for matrix, left in zip(matrices, lefts, strict=True)], dtype, whole)
        for matrix, left, right in zip(matrices, lefts, _split_like(rights, former), strict=True):
            torch.matmul(left, right.T, out=matrix)
        finite = is_finite(whole)
        replace_if(finite, residual, unsent.sub_(whole))
        torch.where(finite, rights, factors.first, out=factors.latest)
        return _completed(write_average(whole, bucket))

    def _divided(self, bucket: TensorBucket, whole: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """
        Views of the matrices that are sent as factors, and of what is sent as it is, both in the order of the parameters: so factors do
        not depend on the order in the bucket.
        """
        parameters = bucket.parameters()
        parts = torch.split(whole, [parameter.numel() for parameter in parameters])
        shapes = [parameter.shape[:1] or (1,) for parameter in parameters]
        shaped = [part.view(*rows, -1) for part, rows in zip(parts, shapes, strict=True)]
        ordered = [
            part for _, part in sorted(zip(self._residuals.places(bucket), shaped, strict=True), key=itemgetter(0))
        ]
        is_large = [_MIN_COMPRESSION * sum(part.shape) * self._columns(part) < part.numel() for part in ordered]
        return (
            [part for part, large in zip(ordered, is_large, strict=True) if large],
            [part for part, large in zip(ordered, is_large, strict=True) if not large],
        )

    def _columns(self, matrix: torch.Tensor) -> int:
        columns: int = min(self._rank, *matrix.shape)
        return columns

    def _factors_of(self, bucket: TensorBucket, matrices: list[torch.Tensor], like: torch.Tensor) -> _Factors:
        places = tuple(sorted(self._residuals.places(bucket)))
        if places not in self._factors:
            size = sum(matrix.shape[1] * self._columns(matrix) for matrix in matrices)
            seed, latest = self._loaded.pop(places, (self._seeds, None))
            self._seeds += latest is None
            self._factors[places] = _Factors.begin(seed, size, like, latest)
        return self._factors[places]

    def _rights(self, matrices: list[torch.Tensor], flat: torch.Tensor) -> list[torch.Tensor]:
        """The right factor of each matrix: orthogonal columns."""
        shapes = [(matrix.shape[1], self._columns(matrix)) for matrix in matrices]
        parts = torch.split(flat, [rows * columns for rows, columns in shapes])
        return [_orthogonal(part.view(shape)) for part, shape in zip(parts, shapes, strict=True)]

    def _mean(self, parts: list[torch.Tensor], dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
        """Over all ranks, in one flat tensor, sent as `dtype`."""
        flat = torch.cat([part.reshape(-1) for part in parts]).to(dtype) if parts else like.new_empty(0)
        if len(flat):
            self.sent_bytes += flat.nbytes
            dist.all_reduce(flat, group=self._group)
        return flat.to(like.dtype).div_(self._group.size())

    def state_dict(self) -> CompressorState:
        used = {places: (each.seed, each.latest) for places, each in self._factors.items()}
        factors = [(places, seed, latest.clone()) for places, (seed, latest) in sorted((self._loaded | used).items())]
        return super().state_dict() | {"step": self._step, "seeds": self._seeds, "factors": factors}

    def load_state_dict(self, state: CompressorState) -> None:
        super().load_state_dict(state)
        self._step, self._seeds, self._factors = state["step"], state["seeds"], {}
        self._loaded = {tuple(places): (seed, latest.clone()) for places, seed, latest in state["factors"]}


def _split_like(flat: torch.Tensor, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """The flat tensor as views of these shapes, one after the other."""
    flats = torch.split(flat, [part.numel() for part in parts])
    return [each.view(part.shape) for each, part in zip(flats, parts, strict=True)]


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Its columns by Gram-Schmidt. `torch.linalg.qr` would wait for a device."""
    columns: list[torch.Tensor] = []
    for column in matrix.unbind(1):
        for former in columns:
            column = column - torch.dot(former, column) * former
        columns.append(column / (torch.linalg.vector_norm(column) + _EPSILON))
    return torch.stack(columns, 1)


def _completed(tensor: torch.Tensor) -> Future:
    """A future for what the current stream has computed when it gets there."""
    future: Future = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else None)
    future.set_result(tensor)
    return future
