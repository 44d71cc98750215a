"""Error feedback (Seide et al., Interspeech 2014): what a step does not send is added to what the next one has to send."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from timesyncd.training.compression.interface import Bucket, Future, State
from timesyncd.training.compression.plain import averaged, finite, size
from timesyncd.training.compression.residuals import Residuals


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

    def hook(self, bucket: Bucket) -> Future:
        if bucket.index() == 0:
            self._settle()
        return self._begin(bucket, self._dense if bucket.buffer().is_sparse else self._compressed)

    def dense(self, bucket: Bucket) -> Future:
        if bucket.index() == 0:
            self._settle()
        return self._begin(bucket, self._dense)

    def _begin(self, bucket: Bucket, reduce: Callable[[Bucket], Future]) -> Future:
        self.raw_bytes += size(bucket.buffer())
        future = reduce(bucket)
        self._under_way.append(future)
        return future

    def _settle(self) -> None:
        """A step begins where the former one is over: residuals are never changed by two at once. Raises what that one's collectives did."""
        under_way, self._under_way = self._under_way, []
        torch.futures.wait_all(under_way)

    @abstractmethod
    def _compressed(self, bucket: Bucket) -> Future: ...

    def _dense(self, bucket: Bucket) -> Future:
        if bucket.buffer().is_sparse:  # nothing of it is ever kept back
            self.sent_bytes += size(bucket.buffer())
            return averaged(self._group, bucket)
        residual, whole = self._whole(bucket)
        self.sent_bytes += whole.nbytes
        work = dist.all_reduce(whole, group=self._group, async_op=True)
        assert work is not None, "this process is in the group"

        def finish(reduced: torch.futures.Future[Any]) -> torch.Tensor:
            reduced.value()  # raises what went wrong
            if finite(whole):
                residual.zero_()
            return put(whole.div_(self._group.size()), bucket)

        future: torch.futures.Future[Any] = work.get_future()
        return future.then(finish)

    def _whole(self, bucket: Bucket) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual, and with it all there is to send: in the buffer, if that is wide enough."""
        residual = self._residuals.flat(bucket)
        return residual, bucket.buffer().to(residual.dtype).add_(residual)

    def state_dict(self) -> State:
        self._settle()
        return {"name": self.name, "residuals": self._residuals.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._settle()
        check_name(self.name, state)
        self._residuals.load_state_dict(state["residuals"])


def put(average: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """Into the bucket's buffer, where it is not there already."""
    buffer = bucket.buffer()
    return buffer if average.data_ptr() == buffer.data_ptr() else buffer.copy_(average)


def check_name(name: str, state: State) -> None:
    if state.get("name") != name:
        raise ValueError(f"this state is of {state.get('name')}, not of {name}: start without it, or with that policy")
