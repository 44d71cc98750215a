"""The compressors that use torch's own hooks: those of its compressions that work on gloo."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from timesyncd.training.compression.feedback import Feedback, Residuals, check_name
from timesyncd.training.compression.interface import (
    CompressorState,
    Future,
    TensorBucket,
    average_uncompressed,
    bucket_bytes,
    is_finite,
)

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
