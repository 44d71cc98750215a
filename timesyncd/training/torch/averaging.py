"""Averages parameters or gradients over the ranks, in chunks, while the step waits or in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from timesyncd.client.packing import counts_packing
from timesyncd.client.torch.stamps import HostTimes, times_of
from timesyncd.ipc.network_record import PackingPart
from timesyncd.training.torch.outer import OuterOptimizer

#: Upper limit of a chunk. A chunk is copied while the one before it is sent.
CHUNK_BYTES = 8 << 20


#: Begin and end, as moments of `steps.Times`.
Span = tuple[Any, Any]

#: Selects what of a parameter is averaged: its local shard, or its gradient.
SelectTensor = Callable[[torch.Tensor], torch.Tensor]


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """The part of the tensor that is on this rank, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def local_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient of the part that is on this rank; zeros where the backward pass computed none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return local_shard(parameter.grad)


class Chunk:
    """
    Some tensors of one type and device in one flat buffer, which is made when it is first used. It has the methods of DDP's GradBucket
    that communication hooks use.
    """

    def __init__(self, number: int, is_last: bool, tensors: Sequence[torch.Tensor], select: SelectTensor) -> None:
        self._number = number
        self._is_last = is_last
        self._tensors = list(tensors)
        self._select = select
        #: What all ranks have in common, where differences to it are sent.
        self.anchor: torch.Tensor | None = None
        self.sample = local_shard(tensors[0])
        self.nbytes = sum(local_shard(tensor).nbytes for tensor in tensors)

    @cached_property
    def flat(self) -> torch.Tensor:
        return self.sample.new_empty(self.nbytes // self.sample.itemsize)

    @cached_property
    def _views(self) -> list[torch.Tensor]:
        return self._as_views(self.flat)

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

    def contiguous(self) -> list[torch.Tensor] | None:
        """The tensors themselves; None: one of them is not contiguous."""
        tensors = self._selected()
        return tensors if all(tensor.is_contiguous() for tensor in tensors) else None

    def fill(self) -> None:
        torch._foreach_copy_(self._views, self._selected())

    @counts_packing(PackingPart.AVERAGING, unpacks=True)
    def write_back(self, flat: torch.Tensor) -> None:
        torch._foreach_copy_(self._selected(), self._views if flat is self.flat else self._as_views(flat))

    def mix(self, flat: torch.Tensor, own: float) -> None:
        """Each tensor becomes `own` times its value and the rest of `flat`'s."""
        torch._foreach_mul_(self._selected(), own)
        torch._foreach_add_(self._selected(), self._as_views(flat), alpha=1 - own)

    def add_to_tensors(self, flat: torch.Tensor) -> None:
        torch._foreach_add_(self._selected(), self._as_views(flat))

    def _selected(self) -> list[torch.Tensor]:
        return [self._select(tensor) for tensor in self._tensors]

    def _as_views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        shapes = [local_shard(tensor).shape for tensor in self._tensors]
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def make_chunks(
    tensors: Iterable[torch.Tensor],
    select: SelectTensor = local_shard,
    chunk_bytes: int | None = None,
    apart: Iterable[torch.Tensor] = (),
) -> list[Chunk]:
    """
    In the order of the tensors, so that those that the next forward pass needs first come first. `apart`: tensors that
    follow in chunks of their own. `chunk_bytes`: CHUNK_BYTES, if None.
    """
    limit = CHUNK_BYTES if chunk_bytes is None else chunk_bytes
    chunks = _grouped(tensors, limit) + _grouped(apart, limit)
    return [Chunk(number, number == len(chunks) - 1, chunk, select) for number, chunk in enumerate(chunks)]


def _grouped(tensors: Iterable[torch.Tensor], chunk_bytes: int) -> list[list[torch.Tensor]]:
    chunks: list[list[torch.Tensor]] = []
    open_chunks: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kind = tensor.dtype, tensor.device
        if (
            kind not in open_chunks
            or sum(local_shard(t).nbytes for t in open_chunks[kind]) + local_shard(tensor).nbytes > chunk_bytes
        ):
            open_chunks[kind] = []
            chunks.append(open_chunks[kind])
        open_chunks[kind].append(tensor)
    return chunks


class BucketReducer(Protocol):
    """
    Averages buckets over a group: a compressor, or `DenseReducer`. `sent_bytes`: octets that this rank handed to
    collectives so far.
    """

    sent_bytes: int

    def hook(self, bucket: Any) -> torch.futures.Future[Any]:
        """
        Replace the bucket's buffer by the mean over all ranks. Every rank calls it.

        The future completes when the mean is in the buffer, or carries the error.
        """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DenseReducer:
    """Averages a bucket uncompressed, by one all-reduce."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.sent_bytes = 0

    def hook(self, bucket: Any) -> torch.futures.Future[Any]:
        """
        Nothing is chained to the future: a thread of the group would run it, and would wait for the interpreter lock
        while the rank waits for it.
        """
        flat: torch.Tensor = bucket.buffer()
        flat.mul_(1 / self._group.size())
        self.sent_bytes += flat.nbytes
        return self._group.allreduce([flat]).get_future()

    def takes_several(self, device: torch.device) -> bool:
        """Whether the group reduces several tensors of the device at once without a copy: NCCL does."""
        return device.type == "cuda" and self._group._get_backend(device).name() == "nccl"

    def average_in_place(self, tensors: list[torch.Tensor], scale: float) -> torch.futures.Future[Any]:
        """Where the group `takes_several`. `scale`: as in `Averaging.average`."""
        torch._foreach_mul_(tensors, scale / self._group.size())
        self.sent_bytes += sum(tensor.nbytes for tensor in tensors)
        return self._group.allreduce_coalesced(tensors).get_future()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Averaging:
    """
    Replaces tensors by their mean over the ranks: while the caller waits (`average`), or in the background (`begin`,
    and `finish` some steps later).

    `finish` keeps what each rank did meanwhile: tensor += mean - its value at `begin`. `differences`: sends the change
    since the last averaging instead of the tensors, as compression needs it. `outer`: makes a step with the mean
    difference in place of the mean itself. `apart`: tensors that have the plain mean also then, as buffers. The methods
    raise RuntimeError where torch's collectives do.
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        reducer: BucketReducer,
        differences: bool = False,
        select: SelectTensor = local_shard,
        outer: OuterOptimizer | None = None,
        apart: Sequence[torch.Tensor] = (),
    ) -> None:
        self._chunks = make_chunks(tensors, select, apart=apart)
        self._reducer = reducer
        self._outer = outer
        self._apart = {id(tensor) for tensor in apart}
        self._anchors = (
            [self._empty_anchor(chunk) for chunk in self._chunks] if differences or outer is not None else None
        )
        self._futures: list[torch.futures.Future[Any]] = []
        self._at_begin: list[torch.Tensor] = []
        self._times = times_of(self._chunks[0].sample.device) if self._chunks else HostTimes()
        #: Averages parameters in their own memory. All ranks have the same strides of them, as DDP has made sure.
        self._in_place = (
            None if self._anchors is not None or select is not local_shard else _in_place(reducer, self.sample)
        )
        self._transfers: list[Span] = []
        self.set_anchors()

    def _empty_anchor(self, chunk: Chunk) -> torch.Tensor:
        """Wide enough for the steps of an outer optimizer, which may be below the rounding of a narrow type."""
        flat = chunk.flat
        dtype = flat.dtype if self._outer is None else torch.promote_types(flat.dtype, torch.float32)
        chunk.anchor = torch.empty_like(flat, dtype=dtype)
        return chunk.anchor

    @property
    def pending(self) -> bool:
        """Whether an averaging was begun and not finished."""
        return bool(self._futures)

    @property
    def sample(self) -> torch.Tensor | None:
        """A tensor on the device; None: there are no tensors."""
        return self._chunks[0].sample if self._chunks else None

    @property
    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    def take_transfers(self) -> list[Span]:
        """Begin and end of the transfers since the last call, as moments of the tensors' device."""
        transfers = self._transfers[:]
        del self._transfers[: len(transfers)]
        return transfers

    def set_anchors(self) -> None:
        """Count differences from the present tensors, which must be equal on all ranks."""
        for chunk, anchor in zip(self._chunks, self._anchors or (), strict=False):
            chunk.fill()
            anchor.copy_(chunk.flat)

    @torch.no_grad()
    def average(self, scale: float = 1) -> None:
        """`scale`: this rank's weight in the mean, times the number of ranks."""
        began = self._times.now()
        if self._in_place is None or not self._averaged_in_place(self._in_place, scale):
            self._send(scale)
            for chunk, mean in self._received():
                chunk.write_back(mean)
        self._transfers.append((began, self._times.now()))

    @torch.no_grad()
    def send(self, scale: float = 1) -> list[Callable[[], None]]:
        """
        In place of `average`: what is returned for each chunk waits for its mean and writes it back. Call each once, in any
        order.
        """
        began = self._times.now()
        self._send(scale)
        self._time_transfer(began)
        futures, self._futures = self._futures, []

        def receive(number: int, future: torch.futures.Future[Any]) -> None:
            future.wait()
            with torch.no_grad():
                self._chunks[number].write_back(self._mean_of(number))

        return [partial(receive, number, future) for number, future in enumerate(futures)]

    @property
    def tensors_of_chunks(self) -> list[list[torch.Tensor]]:
        """In the order in which they are sent."""
        return [chunk.parameters() for chunk in self._chunks]

    def _averaged_in_place(self, reducer: DenseReducer, scale: float) -> bool:
        """False: a tensor is not contiguous."""
        chunks = [chunk.contiguous() for chunk in self._chunks]
        if None in chunks:
            return False
        for future in [reducer.average_in_place(tensors, scale) for tensors in chunks if tensors is not None]:
            future.wait()
        return True

    @torch.no_grad()
    def begin(self, keep: bool = True) -> None:
        """
        Raises RuntimeError where the averaging before is not finished. `keep`: keep the values of now, for `finish`;
        `merge` needs none.
        """
        if self._futures:
            raise RuntimeError("an averaging was begun while the one before it is not finished")
        began = self._times.now()
        self._send(1, keep)
        self._time_transfer(began)

    def _time_transfer(self, began: Any) -> None:
        """Until what is on its way has arrived."""
        if self._futures:
            # On a device the callback's stream is behind the transfer. It does not hold this object: a thread of the group
            # runs it, and must not hold the group's last reference, since it would join itself.
            transfers, times = self._transfers, self._times
            self._futures[-1].add_done_callback(lambda _: transfers.append((began, times.now())))

    @torch.no_grad()
    def finish(self) -> None:
        """Does nothing where none is pending."""
        at_begin, self._at_begin = self._at_begin, []
        for begin_flat, (chunk, mean) in zip(at_begin, self._received(), strict=True):
            chunk.add_to_tensors(mean - begin_flat)

    @torch.no_grad()
    def merge(self, own: float) -> None:
        """
        In place of `finish`: each tensor becomes `own` times its value of now and 1 - `own` times the new common one.
        """
        for chunk, mean in self._received():
            chunk.mix(mean, own)

    @counts_packing(PackingPart.AVERAGING)
    def _send(self, scale: float, keep: bool = False) -> None:
        for number, chunk in enumerate(self._chunks):
            chunk.fill()
            if keep:
                self._at_begin.append(chunk.flat.clone())
            if self._anchors is not None:
                chunk.flat.sub_(self._anchors[number])
            if scale != 1:
                chunk.flat.mul_(scale)
            self._futures.append(self._reducer.hook(chunk))

    def _received(self) -> Iterator[tuple[Chunk, torch.Tensor]]:
        """Each chunk that was sent, and its mean, when it has arrived."""
        futures, self._futures = self._futures, []
        for number, future in enumerate(futures):
            future.wait()
            yield self._chunks[number], self._mean_of(number)

    def _mean_of(self, number: int) -> torch.Tensor:
        """Of a chunk that has arrived, or the outer optimizer's step with it."""
        chunk = self._chunks[number]
        if self._anchors is None:
            return chunk.flat
        if self._outer is None or id(chunk.parameters()[0]) in self._apart:
            return self._anchors[number].add_(chunk.flat)
        return self._anchors[number].add_(self._outer.step(number, chunk.flat))

    def state_dict(self) -> dict[str, Any]:
        """Waits for pending transfers, and includes their results."""
        return {
            "anchors": None if self._anchors is None else [anchor.clone() for anchor in self._anchors],
            "at_begin": [flat.clone() for flat in self._at_begin],
            "reduced": [chunk.flat.clone() for chunk in self._reduced()],
            "outer": None if self._outer is None else self._outer.state_dict(),
        }

    def _reduced(self) -> list[Chunk]:
        """The pending chunks, when they have arrived. They stay pending."""
        for future in self._futures:
            future.wait()
        return self._chunks[: len(self._futures)]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError for the state of other tensors."""
        anchors = state["anchors"]
        if (anchors is None) != (self._anchors is None):
            raise ValueError(
                "the averaging's state was saved with another compression; start without it, or with that policy"
            )
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"])
        for mine, theirs in zip(self._anchors or (), anchors or (), strict=True):
            mine.copy_(theirs)
        self._at_begin = [flat.clone() for flat in state["at_begin"]]
        for chunk, reduced in zip(self._chunks, state["reduced"], strict=False):
            chunk.flat.copy_(reduced)
        self._futures = [_completed() for _ in state["reduced"]]


def _in_place(reducer: BucketReducer, sample: torch.Tensor | None) -> DenseReducer | None:
    """The reducer, where it averages tensors in their own memory."""
    if isinstance(reducer, DenseReducer) and sample is not None and reducer.takes_several(sample.device):
        return reducer
    return None


def _completed() -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(None)
    return future
