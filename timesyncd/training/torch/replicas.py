"""Averages the replicas with the optimizer's state, and compares them by hash."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
import torch.distributed as dist

from timesyncd.client.job import Job
from timesyncd.client.torch.host_group import host_group
from timesyncd.client.torch.steps import steps_of
from timesyncd.errors import SyncError
from timesyncd.ipc.job_datagram import Kind
from timesyncd.training.policy.row import Row
from timesyncd.training.torch.averaging import Averaging, DenseReducer, local_shard

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

    @staticmethod
    def is_due(rounds: int) -> bool:
        """Whether `record` reads the tensors after this synchronization."""
        return rounds % CHECK_EVERY == 0

    def record(self, rounds: int, identical_tensors: Sequence[torch.Tensor]) -> None:
        """Call it right after a synchronization."""
        if identical_tensors and self.is_due(rounds):
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
                    1, 2 * piece.numel() + 1, 2, device=piece.device
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


#: Names of a first moment in the state of torch's optimizers: Adam's, and SGD's momentum.
_FIRST_MOMENTS = ("exp_avg", "momentum_buffer")


def _named_states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """In the parameters' order: momentum and the like, without the step counts."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in sorted(optimizer.state.get(parameter, {}).items()):
                if not isinstance(value, torch.Tensor) or not value.is_floating_point() or name == "step":
                    continue
                if value.numel() > 1 or value.shape == parameter.shape:
                    yield name, value


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimizer's state of each parameter, in the parameters' order."""
    return [value for _, value in _named_states(optimizer)]


def moment_tensors(optimizer: torch.optim.Optimizer, is_first: bool) -> list[torch.Tensor]:
    """The first moments of the optimizer's state (`is_first`), or all others, in the parameters' order."""
    return [value for name, value in _named_states(optimizer) if (name in _FIRST_MOMENTS) == is_first]


def averageable(module: torch.nn.Module) -> list[torch.Tensor]:
    """The module's parameters, and its buffers that are no counts."""
    return [*module.parameters(), *(buffer for buffer in module.buffers() if local_shard(buffer).is_floating_point())]


@contextmanager
def mean_in_place(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup) -> Iterator[None]:
    """Inside `with` the tensors have their mean over the ranks; after it, their own values again."""
    shards = [local_shard(tensor) for tensor in tensors]
    own = [tensor.clone() for tensor in shards]
    try:
        Averaging(tensors, DenseReducer(group)).average()
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(shards, own)


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
    check_equal_sizes(states, group)
    Averaging(states, DenseReducer(group)).average()


def check_equal_sizes(states: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Raises OptimizerStateMismatch where the ranks have states of different sizes. Every rank calls it."""
    size = torch.tensor([sum(tensor.numel() for tensor in states)] * 2) * torch.tensor([1, -1])
    dist.all_reduce(size, op=dist.ReduceOp.MAX, group=host_group(group))
    if int(size[0]) != -int(size[1]):
        raise OptimizerStateMismatch(
            f"the optimizers of the ranks have states of different sizes ({-int(size[1])} to {int(size[0])} numbers): "
            "a parameter had no gradient on some ranks; give every parameter a gradient on all ranks"
        )
