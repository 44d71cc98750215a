"""
Error feedback (Seide et al., Interspeech 2014): what a step does not send is added to what the next one has to send.

What was not sent yet, parameter by parameter, however parameters are put into buckets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from timesyncd.training.compression.interface import (
    CompressorState,
    Future,
    TensorBucket,
    average_uncompressed,
    bucket_bytes,
    is_finite,
)

_Places = tuple[int, ...]


class Residuals:
    """The parameters that a compressor serves, known by their places among those given, and the residual of each."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = list(parameters)  # alive, so that no other tensor gets the id of one of them
        self._places = {id(parameter): place for place, parameter in enumerate(self._parameters)}
        #: Of each place, a part of one of `_flats`, or as it was loaded.
        self._of: dict[int, torch.Tensor] = {}
        #: Of each bucket that was seen since its parameters were last put otherwise.
        self._flats: dict[_Places, torch.Tensor] = {}

    def places(self, bucket: TensorBucket) -> _Places:
        """Raises ValueError for a bucket of parameters that were not given, or of parts of them."""
        try:
            places = tuple(self._places[id(parameter)] for parameter in bucket.parameters())
        except KeyError:
            raise ValueError(
                "the bucket has a parameter that its compressor was not given: give it all of them"
            ) from None
        if sum(self._parameters[place].numel() for place in places) != bucket.buffer().numel():
            raise ValueError("the bucket's buffer is not as large as its parameters: put whole parameters into buckets")
        return places

    def flat(self, bucket: TensorBucket) -> torch.Tensor:
        """What the bucket's parameters have not sent, in its buffer's order; it is changed in place. float32 or wider."""
        places = self.places(bucket)
        if places not in self._flats:
            self._put(places, bucket.buffer())
        return self._flats[places]

    def _put(self, places: _Places, like: torch.Tensor) -> None:
        """In one tensor from now on. Buckets that any of them was in before are no more."""
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
        """Raises ValueError if they are not of these parameters."""
        loaded = {int(place): residual for place, residual in state.items()}
        for place, residual in loaded.items():
            if place >= len(self._parameters) or residual.numel() != self._parameters[place].numel():
                raise ValueError(
                    f"what was not sent of parameter {place} was saved for another network: start without it"
                )
        self._of, self._flats = loaded, {}


class Feedback(ABC):
    """
    A compressor that keeps what it did not send.

    A bucket that is not finite on some rank comes out not finite on all, for whoever scales or clips gradients to see; on every rank the residuals of its
    parameters are then what they were before.
    """

    def __init__(self, name: str, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor]) -> None:
        self.name = name
        self.raw_bytes = 0
        self.sent_bytes = 0
        self._group = group
        self._residuals = Residuals(parameters)
        self._under_way: list[Future] = []

    def hook(self, bucket: TensorBucket) -> Future:
        if bucket.index() == 0:
            self._settle()
        return self._begin(bucket, self._dense if bucket.buffer().is_sparse else self._compressed)

    def dense(self, bucket: TensorBucket) -> Future:
        if bucket.index() == 0:
            self._settle()
        return self._begin(bucket, self._dense)

    def _begin(self, bucket: TensorBucket, reduce: Callable[[TensorBucket], Future]) -> Future:
        self.raw_bytes += bucket_bytes(bucket.buffer())
        future = reduce(bucket)
        self._under_way.append(future)
        return future

    def _settle(self) -> None:
        """A step begins where the former one is over: residuals are never changed by two at once. Raises what that one's collectives did."""
        under_way, self._under_way = self._under_way, []
        torch.futures.wait_all(under_way)

    @abstractmethod
    def _compressed(self, bucket: TensorBucket) -> Future: ...

    def _dense(self, bucket: TensorBucket) -> Future:
        if bucket.buffer().is_sparse:  # nothing of it is ever kept back
            self.sent_bytes += bucket_bytes(bucket.buffer())
            return average_uncompressed(self._group, bucket)
        residual, whole = self._whole(bucket)
        self.sent_bytes += whole.nbytes
        work = dist.all_reduce(whole, group=self._group, async_op=True)
        assert work is not None, "this process is in the group"

        def finish(reduced: torch.futures.Future[Any]) -> torch.Tensor:
            reduced.value()  # raises what went wrong
            if is_finite(whole):
                residual.zero_()
            return write_average(whole.div_(self._group.size()), bucket)

        future: torch.futures.Future[Any] = work.get_future()
        return future.then(finish)

    def _whole(self, bucket: TensorBucket) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual, and with it all there is to send: in the buffer, if that is wide enough."""
        residual = self._residuals.flat(bucket)
        return residual, bucket.buffer().to(residual.dtype).add_(residual)

    def state_dict(self) -> CompressorState:
        self._settle()
        return {"name": self.name, "residuals": self._residuals.state_dict()}

    def load_state_dict(self, state: CompressorState) -> None:
        self._settle()
        check_name(self.name, state)
        self._residuals.load_state_dict(state["residuals"])


def write_average(average: torch.Tensor, bucket: TensorBucket) -> torch.Tensor:
    """Into the bucket's buffer, where it is not there already."""
    buffer = bucket.buffer()
    return buffer if average.data_ptr() == buffer.data_ptr() else buffer.copy_(average)


def check_name(name: str, state: CompressorState) -> None:
    if state.get("name") != name:
        raise ValueError(f"this state is of {state.get('name')}, not of {name}: start without it, or with that policy")
