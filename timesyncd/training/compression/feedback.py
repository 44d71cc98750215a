"""
Error feedback (Seide et al., Interspeech 2014): the residual, which is what a step does not send, is added to what the
next step has to send.

Residuals belong to parameters, whatever buckets the parameters are in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from timesyncd.client.torch.ddp import bucket_bytes
from timesyncd.training.compression.interface import (
    CompressorState,
    Future,
    TensorBucket,
    average_uncompressed,
    is_finite,
)

_Places = tuple[int, ...]


class Residuals:
    """The residuals of a compressor's parameters. A parameter is identified by its place among those given."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = list(parameters)  # keeps them alive, so that no other tensor gets the id of one of them
        self._places = {id(parameter): place for place, parameter in enumerate(self._parameters)}
        #: By place: a view of a part of one of `_flats`, or the loaded tensor.
        self._of: dict[int, torch.Tensor] = {}
        #: By the places of a bucket: its residuals in one tensor. A bucket drops out when another bucket gets one of
        #: its parameters.
        self._flats: dict[_Places, torch.Tensor] = {}

    def places(self, bucket: TensorBucket) -> _Places:
        """Raises ValueError for a bucket of parameters that were not given, or of parts of them."""
        try:
            places = tuple(self._places[id(parameter)] for parameter in bucket.parameters())
        except KeyError:
            raise ValueError(
                "a bucket has a parameter that its compressor does not know; pass all parameters to compressor()"
            ) from None
        if sum(self._parameters[place].numel() for place in places) != bucket.buffer().numel():
            raise ValueError("a bucket's buffer is not as large as its parameters; put whole parameters into buckets")
        return places

    def flat(self, bucket: TensorBucket) -> torch.Tensor:
        """
        The residuals of the bucket's parameters, in its buffer's order, float32 or wider. The caller changes the tensor
        in place.
        """
        places = self.places(bucket)
        if places not in self._flats:
            self._arrange(places, bucket.buffer())
        return self._flats[places]

    def _arrange(self, places: _Places, like: torch.Tensor) -> None:
        """Put the residuals of these places into one tensor. Other buckets with one of these places drop out."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        parts = [
            self._of[place].to(like.device, dtype)
            if place in self._of
            else torch.zeros(self._parameters[place].numel(), dtype=dtype, device=like.device)
            for place in places
        ]
        self._flats = {known: flat for known, flat in self._flats.items() if not set(known) & set(places)}
        self._flats[places] = flat = torch.cat(parts)
        self._of.update(zip(places, torch.split(flat, [len(part) for part in parts]), strict=True))

    def state_dict(self) -> CompressorState:
        return {str(place): residual.clone() for place, residual in sorted(self._of.items())}

    def load_state_dict(self, state: CompressorState) -> None:
        """Raises ValueError for the residuals of other parameters."""
        loaded = {int(place): residual for place, residual in state.items()}
        for place, residual in loaded.items():
            if place >= len(self._parameters) or residual.numel() != self._parameters[place].numel():
                raise ValueError(
                    f"the residual of parameter {place} was saved for another network; start without this state"
                )
        self._of, self._flats = loaded, {}


class Feedback(ABC):
    """
    A compressor with error feedback.

    A bucket that is not finite on one rank becomes not finite on all, so that code that scales or clips gradients
    detects it. On every rank the residuals of its parameters then stay unchanged.
    """

    def __init__(self, name: str, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor]) -> None:
        self.name = name
        self.raw_bytes = 0
        self.sent_bytes = 0
        self._group = group
        self._residuals = Residuals(parameters)
        self._in_progress: list[Future] = []

    def hook(self, bucket: TensorBucket) -> Future:
        if bucket.index() == 0:
            self._finish_step()
        return self._begin(bucket, self._dense if bucket.buffer().is_sparse else self._compressed)

    def dense(self, bucket: TensorBucket) -> Future:
        if bucket.index() == 0:
            self._finish_step()
        return self._begin(bucket, self._dense)

    def _begin(self, bucket: TensorBucket, reduce: Callable[[TensorBucket], Future]) -> Future:
        self.raw_bytes += bucket_bytes(bucket.buffer())
        future = reduce(bucket)
        self._in_progress.append(future)
        return future

    def _finish_step(self) -> None:
        """
        Wait for the former step's buckets, so that no two steps change residuals at once. Raises the errors of its
        collectives.
        """
        in_progress, self._in_progress = self._in_progress, []
        torch.futures.wait_all(in_progress)

    @abstractmethod
    def _compressed(self, bucket: TensorBucket) -> Future: ...

    def _dense(self, bucket: TensorBucket) -> Future:
        if bucket.buffer().is_sparse:  # sparse gradients have no residuals
            self.sent_bytes += bucket_bytes(bucket.buffer())
            return average_uncompressed(self._group, bucket)
        return self._reduced(bucket, *self._whole(bucket))

    def _reduced(self, bucket: TensorBucket, residual: torch.Tensor, whole: torch.Tensor) -> Future:
        """Uncompressed. `residual`, `whole`: as `_whole` returns them."""
        self.sent_bytes += whole.nbytes
        work = dist.all_reduce(whole, group=self._group, async_op=True)
        assert work is not None, "this process is in the group"
        ranks = (
            self._group.size()
        )  # here: the thread of a group that runs this must not hold the group's last reference

        def finish(reduced: torch.futures.Future[Any]) -> torch.Tensor:
            reduced.value()  # raises the error, if any
            residual.masked_fill_(is_finite(whole), 0)
            return write_average(whole.div_(ranks), bucket)

        future: torch.futures.Future[Any] = work.get_future()
        return future.then(finish)

    def _whole(self, bucket: TensorBucket) -> tuple[torch.Tensor, torch.Tensor]:
        """
        The residual, and the sum of buffer and residual, which is all there is to send. The sum is in the buffer, if
        its type is wide enough.
        """
        residual = self._residuals.flat(bucket)
        return residual, bucket.buffer().to(residual.dtype).add_(residual)

    def state_dict(self) -> CompressorState:
        self._finish_step()
        return {"name": self.name, "residuals": self._residuals.state_dict()}

    def load_state_dict(self, state: CompressorState) -> None:
        self._finish_step()
        check_name(self.name, state)
        self._residuals.load_state_dict(state["residuals"])


def write_average(average: torch.Tensor, bucket: TensorBucket) -> torch.Tensor:
    """Copy the average into the bucket's buffer, unless it is there already."""
    buffer = bucket.buffer()
    return buffer if average.data_ptr() == buffer.data_ptr() else buffer.copy_(average)


def check_name(name: str, state: CompressorState) -> None:
    if state.get("name") != name:
        raise ValueError(
            f"the state was saved with compression {state.get('name')}, and this one is {name}; start without it, "
            "or with that policy"
        )
