"""Parameters averaged over the ranks, in chunks, through what DDP's gradients go through as well; at once or behind the scenes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

#: A chunk is copied while the one before it is sent.
CHUNK_BYTES = 8 << 20


#: What of a parameter is averaged: itself, or its gradient.
SelectTensor = Callable[[torch.Tensor], torch.Tensor]


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """The part of it that this rank has, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def local_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Of the part that this rank has; zeros where the step gave it none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return local_shard(parameter.grad)


class Chunk:
    """Some tensors of one type and device side by side: what a communication hook sees of it is what it sees of DDP's GradBucket."""

    def __init__(self, number: int, is_last: bool, tensors: Sequence[torch.Tensor], select: SelectTensor) -> None:
        self._number = number
        self._is_last = is_last
        self._tensors = list(tensors)
        self._select = select
        first = local_shard(tensors[0])
        self.flat = torch.empty(sum(local_shard(t).numel() for t in tensors), dtype=first.dtype, device=first.device)
        self._views = self._as_views(self.flat)

    def index(self) -> int:
        return self._number

    def is_last(self) -> bool:
        return self._is_last

    def buffer(self) -> torch.Tensor:
        return self.flat

    def set_buffer(self, buffer: torch.Tensor) -> None:
        self.flat.copy_(buffer)

    def gradients(self) -> list[torch.Tensor]:
        return self._views

    def parameters(self) -> list[torch.Tensor]:
        return self._tensors

    def fill(self) -> None:
        torch._foreach_copy_(self._views, self._selected())

    def give_back(self, flat: torch.Tensor) -> None:
        torch._foreach_copy_(self._selected(), self._views if flat is self.flat else self._as_views(flat))

    def add_back(self, flat: torch.Tensor) -> None:
        torch._foreach_add_(self._selected(), self._as_views(flat))

    def _selected(self) -> list[torch.Tensor]:
        return [self._select(tensor) for tensor in self._tensors]

    def _as_views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        shapes = [local_shard(tensor).shape for tensor in self._tensors]
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def make_chunks(
    tensors: Iterable[torch.Tensor], select: SelectTensor = local_shard, chunk_bytes: int = CHUNK_BYTES
) -> list[Chunk]:
    """In their order: what the next forward pass needs first comes first."""
    gathered: list[list[torch.Tensor]] = []
    growing: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kind = tensor.dtype, tensor.device
        if (
            kind not in growing
            or sum(local_shard(t).nbytes for t in growing[kind]) + local_shard(tensor).nbytes > chunk_bytes
        ):
            growing[kind] = []
            gathered.append(growing[kind])
        growing[kind].append(tensor)
    return [Chunk(number, number == len(gathered) - 1, chunk, select) for number, chunk in enumerate(gathered)]


class BucketReducer(Protocol):
    """Averages buckets over a group: a compressor, or `DenseReducer`. `sent_bytes`: what this rank handed to collectives so far."""

    sent_bytes: int

    def hook(self, bucket: Any) -> torch.futures.Future[Any]:
        """The mean over all ranks takes the place of the bucket's buffer; when, and whether it failed, the future tells. Every rank calls it."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DenseReducer:
    """As it is, by one all-reduce."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.sent_bytes = 0

    def hook(self, bucket: Any) -> torch.futures.Future[Any]:
        """Nothing is chained to the future: one of the group's threads would do it, for which it waits for Python's lock while the rank waits for it."""
        flat: torch.Tensor = bucket.buffer()
        flat.mul_(1 / self._group.size())
        self.sent_bytes += flat.nbytes
        return self._group.allreduce([flat]).get_future()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Averaging:
    """
    The mean of the ranks' tensors takes their place: at once (`average`), or some steps later (`begin`, `finish`), when what each rank did meanwhile is
    kept: tensor += mean - what it was at `begin`.

    `differences`: what is sent is what changed since the last averaging, which compression wants, instead of the tensors. Raises RuntimeError, as torch's collectives do.
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        sender: BucketReducer,
        differences: bool = False,
        select: SelectTensor = local_shard,
    ) -> None:
        self._chunks = make_chunks(tensors, select)
        self._sender = sender
        self._anchors = [torch.empty_like(chunk.flat) for chunk in self._chunks] if differences else None
        self._futures: list[torch.futures.Future[Any]] = []
        self._was: list[torch.Tensor] = []
        self._took_ns: list[int] = []
        self.anchor()

    @property
    def pending(self) -> bool:
        """Begun, and not finished."""
        return bool(self._futures)

    @property
    def nbytes(self) -> int:
        return sum(chunk.flat.nbytes for chunk in self._chunks)

    def took(self) -> list[int]:
        """Of each transfer that is over since the last call, from its begin to its end, in nanoseconds."""
        took_ns, self._took_ns = self._took_ns, []
        return took_ns

    def anchor(self) -> None:
        """The tensors are the same on all ranks now; differences are counted from here."""
        for chunk, anchor in zip(self._chunks, self._anchors or (), strict=False):
            chunk.fill()
            anchor.copy_(chunk.flat)

    @torch.no_grad()
    def average(self, scale: float = 1) -> None:
        """`scale`: this rank's weight in the mean, times the number of ranks."""
        began_ns = time.monotonic_ns()
        self._send(scale)
        for chunk, mean in self._arriving():
            chunk.give_back(mean)
        self._took_ns.append(time.monotonic_ns() - began_ns)

    @torch.no_grad()
    def begin(self) -> None:
        """Raises RuntimeError when the one before is not finished."""
        if self._futures:
            raise RuntimeError("the averaging before this one is not finished")
        began_ns = time.monotonic_ns()
        self._send(1, keep=True)
        if self._futures:
            self._futures[-1].add_done_callback(lambda _: self._took_ns.append(time.monotonic_ns() - began_ns))

    @torch.no_grad()
    def finish(self) -> None:
        """Nothing when none is pending."""
        was, self._was = self._was, []
        for was_flat, (chunk, mean) in zip(was, self._arriving(), strict=True):
            chunk.add_back(mean - was_flat)

    def _send(self, scale: float, keep: bool = False) -> None:
        for number, chunk in enumerate(self._chunks):
            chunk.fill()
            if keep:
                self._was.append(chunk.flat.clone())
            if self._anchors is not None:
                chunk.flat.sub_(self._anchors[number])
            if scale != 1:
                chunk.flat.mul_(scale)
            self._futures.append(self._sender.hook(chunk))

    def _arriving(self) -> Iterator[tuple[Chunk, torch.Tensor]]:
        """Each chunk that was sent and its mean, once it is there."""
        futures, self._futures = self._futures, []
        for number, future in enumerate(futures):
            future.wait()
            flat = self._chunks[number].flat
            yield self._chunks[number], flat if self._anchors is None else self._anchors[number].add_(flat)

    def state_dict(self) -> dict[str, Any]:
        """With what is pending, once it is there."""
        return {
            "anchors": None if self._anchors is None else [anchor.clone() for anchor in self._anchors],
            "was": [flat.clone() for flat in self._was],
            "reduced": [chunk.flat.clone() for chunk in self._reduced()],
        }

    def _reduced(self) -> list[Chunk]:
        """What is pending, once it is there; it stays pending."""
        for future in self._futures:
            future.wait()
        return self._chunks[: len(self._futures)]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError for a state of other tensors."""
        anchors = state["anchors"]
        if (anchors is None) != (self._anchors is None):
            raise ValueError("the state is of an averaging with another compression")
        for mine, theirs in zip(self._anchors or (), anchors or (), strict=True):
            mine.copy_(theirs)
        self._was = [flat.clone() for flat in state["was"]]
        for chunk, reduced in zip(self._chunks, state["reduced"], strict=False):
            chunk.flat.copy_(reduced)
        self._futures = [_done() for _ in state["reduced"]]


def _done() -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(None)
    return future
