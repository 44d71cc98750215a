"""
Averages parameters or gradients over the ranks, in chunks, while the step waits or in the background.

It also exchanges what all ranks report to each other between steps: rows, sent in one step and read some steps later.
And it averages the replicas with their state, and compares them by hash.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from queue import SimpleQueue
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from timesyncd.client.job import Job
from timesyncd.client.torch.host_group import host_group
from timesyncd.client.torch.stamps import HostTimes, times_of
from timesyncd.client.torch.steps import steps_of
from timesyncd.errors import SyncError
from timesyncd.ipc.job_datagram import Kind
from timesyncd.training.policy.schedule import ROW_WORDS, Row

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

    def write_back(self, flat: torch.Tensor) -> None:
        torch._foreach_copy_(self._selected(), self._views if flat is self.flat else self._as_views(flat))

    def add_to_tensors(self, flat: torch.Tensor) -> None:
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
    """In the order of the tensors, so that those that the next forward pass needs first come first."""
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
    return [Chunk(number, number == len(chunks) - 1, chunk, select) for number, chunk in enumerate(chunks)]


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
    since the last averaging instead of the tensors, as compression needs it. The methods raise RuntimeError where
    torch's collectives do.
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        reducer: BucketReducer,
        differences: bool = False,
        select: SelectTensor = local_shard,
    ) -> None:
        self._chunks = make_chunks(tensors, select)
        self._reducer = reducer
        self._anchors = [torch.empty_like(chunk.flat) for chunk in self._chunks] if differences else None
        self._futures: list[torch.futures.Future[Any]] = []
        self._at_begin: list[torch.Tensor] = []
        self._times = times_of(self._chunks[0].sample.device) if self._chunks else HostTimes()
        #: Averages parameters in their own memory. All ranks have the same strides of them, as DDP has made sure.
        self._in_place = None if differences or select is not local_shard else _in_place(reducer, self.sample)
        self._transfers: list[Span] = []
        self.set_anchors()

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
        transfers, self._transfers = self._transfers, []
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

    def _averaged_in_place(self, reducer: DenseReducer, scale: float) -> bool:
        """False: a tensor is not contiguous."""
        chunks = [chunk.contiguous() for chunk in self._chunks]
        if None in chunks:
            return False
        for future in [reducer.average_in_place(tensors, scale) for tensors in chunks if tensors is not None]:
            future.wait()
        return True

    @torch.no_grad()
    def begin(self) -> None:
        """Raises RuntimeError where the averaging before is not finished."""
        if self._futures:
            raise RuntimeError("an averaging was begun while the one before it is not finished")
        began = self._times.now()
        self._send(1, keep=True)
        if self._futures:
            # On a device the callback's stream is behind the transfer.
            self._futures[-1].add_done_callback(lambda _: self._transfers.append((began, self._times.now())))

    @torch.no_grad()
    def finish(self) -> None:
        """Does nothing where none is pending."""
        at_begin, self._at_begin = self._at_begin, []
        for begin_flat, (chunk, mean) in zip(at_begin, self._received(), strict=True):
            chunk.add_to_tensors(mean - begin_flat)

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
            flat = self._chunks[number].flat
            yield self._chunks[number], flat if self._anchors is None else self._anchors[number].add_(flat)

    def state_dict(self) -> dict[str, Any]:
        """Waits for pending transfers, and includes their results."""
        return {
            "anchors": None if self._anchors is None else [anchor.clone() for anchor in self._anchors],
            "at_begin": [flat.clone() for flat in self._at_begin],
            "reduced": [chunk.flat.clone() for chunk in self._reduced()],
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


#: Number of synchronizations from one comparison of the replicas to the next.
CHECK_EVERY = 100

_PIECE = 1 << 20
_PRIME = (1 << 61) - 1


class ReplicaCheck:
    """
    Compares the hashes of the replicas after every CHECK_EVERY synchronizations. `checked`, `differed`: number of
    comparisons.
    """

    def __init__(self, job: Job, ranks: Sequence[int]) -> None:
        self._job = job
        self._ranks = ranks
        self._own: tuple[ReplicaSums, int, int, int] | None = None
        self.checked = self.differed = 0

    def record(self, rounds: int, identical_tensors: Sequence[torch.Tensor]) -> None:
        """Call it right after a synchronization."""
        if identical_tensors and rounds % CHECK_EVERY == 0:
            key = self._job.meter.step_key(steps_of(self._job).step)
            self._own = ReplicaSums(identical_tensors), rounds, key, time.time_ns()

    @property
    def unread(self) -> list[torch.Tensor]:
        """What `take_hash` needs the values of."""
        return [] if self._own is None else self._own[0].tensors

    def take_hash(self, values: Sequence[float]) -> tuple[int | None, int]:
        """The hash that was recorded since the last call, or None, and its round. `values`: those of `unread`."""
        own, self._own = self._own, None
        if own is None:
            return None, 0
        sums, rounds, key, now_ns = own
        replica = sums.hash(values)
        if self._job.world_size == len(self._ranks):  # with model parallelism other ranks have other parts of the model
            self._job.meter.mark_at(key, 0, now_ns, now_ns, now_ns, Kind.REPLICA, replica)
        return replica, rounds

    def compare(self, rows: Sequence[Row]) -> None:
        """Warns where the replicas differ."""
        hashes = {rank: rows[rank].replica for rank in self._ranks}
        if None in hashes.values():
            return
        self.checked += 1
        first = self._ranks[0]
        different = [str(rank) for rank, replica in hashes.items() if replica != hashes[first]]
        if different:
            self.differed += 1
            warnings.warn(
                f"job {self._job.name}: after synchronization {rows[0].replica_round} the replicas of ranks "
                f"{', '.join(different)} differ from that of "
                f"rank {first}; look for code that changes parameters on some ranks only",
                stacklevel=2,
            )


class ReplicaSums:
    """A hash of every bit of the tensors, in their order, of which the device computes sums and the host the rest."""

    @torch.no_grad()
    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        found: dict[torch.device, list[torch.Tensor]] = {}
        self._places: list[tuple[torch.device, int]] = []
        for tensor in tensors:
            words = local_shard(tensor).contiguous().view(-1).view(torch.uint8)
            words = torch.nn.functional.pad(words, (0, -words.numel() % 4)).view(torch.int32)
            for piece in torch.split(words, _PIECE):
                weights = torch.arange(
                    1, 2 * piece.numel(), 2, device=piece.device
                )  # odd, so that the hash changes with every word
                of = found.setdefault(piece.device, [])
                self._places.append((piece.device, len(of)))
                of.append((piece.long() * weights).sum())
        self._sums = {device: torch.stack(of) for device, of in found.items()}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The halves of the sums, upper and lower: a double holds each of them exactly."""
        return [half for sums in self._sums.values() for half in (sums >> 32, sums & 0xFFFF_FFFF)]

    def hash(self, values: Sequence[float]) -> int:
        """Below 2^61. `values`: those of `tensors`."""
        sums, begin = {}, 0
        for device, of in self._sums.items():
            upper, lower = values[begin : begin + len(of)], values[begin + len(of) : begin + 2 * len(of)]
            sums[device] = [(int(high) << 32) + int(low) for high, low in zip(upper, lower, strict=True)]
            begin += 2 * len(of)
        found = 0
        for device, place in self._places:
            found = (found * 1_000_003 + sums[device][place]) % _PRIME
        return found


def replica_hash(tensors: Iterable[torch.Tensor]) -> int:
    """A hash of every bit of the tensors, in their order; below 2^61. It reads the device."""
    sums = ReplicaSums(tensors)
    (values,) = read_together(sums.tensors)
    return sums.hash(values)


def read_together(*groups: Sequence[torch.Tensor]) -> list[list[float]]:
    """
    The values of each group of tensors, in double precision, one after the other. It waits for each device once, however many tensors
    there are.
    """
    flats = [tensor.detach().reshape(-1) for group in groups for tensor in group]
    read: dict[torch.device, Iterator[float]] = {}
    for device in dict.fromkeys(flat.device for flat in flats):
        read[device] = iter(torch.cat([flat.double() for flat in flats if flat.device == device]).tolist())
    remaining = iter(flats)
    return [
        [value for _ in group for flat in [next(remaining)] for value in islice(read[flat.device], flat.numel())]
        for group in groups
    ]


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """
    The optimizer's state of each parameter, in the parameters' order: momentum and the like, without the step counts.
    """
    return [
        value
        for group in optimizer.param_groups
        for parameter in group["params"]
        for name, value in sorted(optimizer.state.get(parameter, {}).items())
        if isinstance(value, torch.Tensor) and value.is_floating_point() and name != "step"
        if value.numel() > 1 or value.shape == parameter.shape
    ]


class OptimizerStateMismatch(SyncError):
    """The optimizers of the ranks have states of different sizes."""


def average_replicas(
    parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> None:
    """
    Replace the parameters and the optimizer's state by their means over the ranks, so that equal gradients keep the
    replicas equal from here.

    Raises OptimizerStateMismatch where the states differ in size; the parameters are averaged then too.
    """
    Averaging(parameters, DenseReducer(group)).average()
    states = state_tensors(optimizer)
    size = torch.tensor([sum(tensor.numel() for tensor in states)] * 2) * torch.tensor([1, -1])
    dist.all_reduce(size, op=dist.ReduceOp.MAX, group=host_group(group))
    if int(size[0]) != -int(size[1]):
        raise OptimizerStateMismatch(
            f"the optimizers of the ranks have states of different sizes ({-int(size[1])} to {int(size[0])} numbers): "
            "a parameter had no gradient on some ranks; give every parameter a gradient on all ranks"
        )
    Averaging(states, DenseReducer(group)).average()


#: With more ranks rows go through one rank, down a tree: each to each would be this number squared of messages.
MAX_RANKS_EACH_TO_EACH = 64


class PendingRows(Protocol):
    """Rows in transit, as torch's Work. `wait` raises RuntimeError where a rank has ended."""

    def is_completed(self) -> bool: ...

    def wait(self) -> object: ...


class TreeRows:
    """
    Gathers the rows of all ranks on rank 0 and spreads them down a tree, in a thread of its own: the second begins only after the first, and
    every rank runs both in the same order. The thread ends with the process.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._requests: SimpleQueue[tuple[FinishedRows, torch.Tensor, torch.Tensor]] = SimpleQueue()
        threading.Thread(target=self._run, name="rows", daemon=True).start()

    def send(self, own: torch.Tensor, all_rows: torch.Tensor) -> PendingRows:
        finished = FinishedRows()
        self._requests.put((finished, own, all_rows))
        return finished

    def _run(self) -> None:
        while True:
            finished, own, all_rows = self._requests.get()
            try:
                self._exchange(own, all_rows)
                finished.end(None)
            except Exception as error:  # noqa: BLE001  it is raised where the rows are waited for
                finished.end(error)

    def _exchange(self, own: torch.Tensor, all_rows: torch.Tensor) -> None:
        gather = dist.GatherOptions()
        gather.rootRank = 0
        parts = [list(all_rows.view(self._group.size(), -1).unbind())] if self._group.rank() == 0 else []
        self._group.gather(parts, [own], gather).wait()
        spread = dist.BroadcastOptions()
        spread.rootRank = spread.rootTensor = 0
        self._group.broadcast([all_rows], spread).wait()


class FinishedRows:
    """What `TreeRows.send` returns."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        self._error = error
        self._done.set()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise self._error


class RowExchange:
    """
    Exchanges rows between all ranks that decide together, over a process group of its own on the CPU. Every rank sends
    and receives in the same steps.

    `rows_waited`, `rows_waited_ns`: how often, and how long, rows had not arrived when they counted. The methods raise
    RuntimeError where torch does: a rank has ended, or was silent for the group's time-out.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._in_flight: dict[int, tuple[PendingRows | None, torch.Tensor, torch.Tensor]] = {}
        self._tree = TreeRows(group) if group.size() > MAX_RANKS_EACH_TO_EACH else None
        self.rows_waited = 0
        self.rows_waited_ns = 0

    def send(self, row: Row) -> None:
        own = torch.tensor(row.words(), dtype=torch.int64)
        all_rows = own.new_empty(self.group.size() * len(own))
        work: PendingRows
        if self._tree is not None:
            work = self._tree.send(own, all_rows)
        else:
            # All pairs at once: gloo's all-gather is a ring, in which each rank waits until the rank before it is
            # scheduled.
            own = own.repeat(self.group.size())
            work = self.group.alltoall_base(all_rows, own, [], [])
        self._in_flight[row.step] = (work, all_rows, own)

    def receive(self, step: int) -> list[Row]:
        """The rows of that step, by rank. Waits for them."""
        work, all_rows, _ = self._in_flight.pop(step)
        self._wait(work)
        return [Row.from_words(words) for words in all_rows.view(-1, ROW_WORDS).tolist()]

    def _wait(self, work: PendingRows | None) -> None:
        if work is None or work.is_completed():
            if work is not None:
                work.wait()  # raises the error, if any
            return
        began_ns = time.monotonic_ns()
        work.wait()
        self.rows_waited += 1
        self.rows_waited_ns += time.monotonic_ns() - began_ns

    def state_dict(self) -> dict[str, Any]:
        """The rows of all ranks that have not counted yet. Waits for them."""
        for work, _, _ in self._in_flight.values():
            self._wait(work)
        return {"in_flight": {step: all_rows.tolist() for step, (_, all_rows, _) in self._in_flight.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._in_flight = {
            int(step): (None, torch.tensor(words, dtype=torch.int64), torch.empty(0))
            for step, words in state["in_flight"].items()
        }
