"""
Replicas of a model: made one, and checked to be one.

Rows of all ranks, told without waiting: sent in one step, read some steps later.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from timesyncd.client.job import Job
from timesyncd.client.torch.steps import steps_of
from timesyncd.errors import SyncError
from timesyncd.ipc.job_datagram import Kind
from timesyncd.training.policy.schedule import ROW_WORDS, Row
from timesyncd.training.torch.averaging import Averaging, DenseReducer, local_shard

#: Replicas are compared after every so many synchronizations.
CHECK_EVERY = 100

_PIECE = 1 << 20
_PRIME = (1 << 61) - 1


class ReplicaCheck:
    """Of the replicas' hashes, which the ranks tell each other after every so many synchronizations that make them one."""

    def __init__(self, job: Job, ranks: Sequence[int]) -> None:
        self._job = job
        self._ranks = ranks
        self._mine: tuple[int, int] | None = None
        self.checked = self.differed = 0

    def take(self, rounds: int, united: Sequence[torch.Tensor]) -> None:
        """Right after a synchronization."""
        if united and rounds % CHECK_EVERY == 0:
            replica = replica_hash(united)
            self._mine = replica, rounds
            if self._job.world_size == len(self._ranks):  # else others have other parts of the model
                now_ns, steps = time.time_ns(), steps_of(self._job)
                self._job.meter.mark(steps.step, 0, now_ns, now_ns, now_ns, Kind.REPLICA, replica)

    def told(self) -> tuple[int | None, int]:
        """The hash since the last call, and the round it is of."""
        mine, self._mine = self._mine, None
        return mine or (None, 0)

    def look(self, rows: Sequence[Row]) -> None:
        """Warns where the replicas are not one."""
        said = {rank: rows[rank].replica for rank in self._ranks}
        if None in said.values():
            return
        self.checked += 1
        apart = [str(rank) for rank, replica in said.items() if replica != said[self._ranks[0]]]
        if apart:
            self.differed += 1
            warnings.warn(
                f"job {self._job.name}: after synchronization {rows[0].replica_round} the replicas of ranks {', '.join(apart)} are not that of "
                f"rank {self._ranks[0]}: something changes parameters on some ranks alone",
                stacklevel=2,
            )


@torch.no_grad()
def replica_hash(tensors: Iterable[torch.Tensor]) -> int:
    """Of every bit, in this order; below 2^61."""
    found = 0
    for tensor in tensors:
        words = local_shard(tensor).contiguous().view(-1).view(torch.uint8)
        words = torch.nn.functional.pad(words, (0, -words.numel() % 4)).view(torch.int32)
        for piece in torch.split(words, _PIECE):
            weights = torch.arange(1, 2 * piece.numel(), 2, device=piece.device)  # odd: no change of a word is lost
            found = (found * 1_000_003 + int((piece.long() * weights).sum())) % _PRIME
    return found


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What the optimizer remembers of each parameter, in the parameters' order: momentum and the like, not the steps' count."""
    return [
        value
        for group in optimizer.param_groups
        for parameter in group["params"]
        for name, value in sorted(optimizer.state.get(parameter, {}).items())
        if isinstance(value, torch.Tensor) and value.is_floating_point() and name != "step"
        if value.numel() > 1 or value.shape == parameter.shape
    ]


class OptimizerStateMismatch(SyncError):
    """The optimizers of the ranks remember different things."""


def average_replicas(
    parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> None:
    """
    All ranks get the mean of their parameters and of what their optimizers remember, so that the same gradients keep them equal from here.

    Raises Differ where the optimizers remember different things; the parameters are one then too.
    """
    Averaging(parameters, DenseReducer(group)).average()
    remembered = state_tensors(optimizer)
    size = torch.tensor([sum(tensor.numel() for tensor in remembered)] * 2) * torch.tensor([1, -1])
    dist.all_reduce(size, op=dist.ReduceOp.MAX, group=group)
    if int(size[0]) != -int(size[1]):
        raise OptimizerStateMismatch(
            f"the optimizers of the ranks remember different things ({-int(size[1])} to {int(size[0])} numbers): "
            "a parameter had no gradient on some of them"
        )
    Averaging(remembered, DenseReducer(group)).average()


class RowExchange:
    """
    On a group of its own, on the CPU, of all ranks that have to agree: every rank makes it, sends and takes alike.

    Raises RuntimeError where torch does: a rank is gone, or silent for the group's time-out.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._on_way: dict[int, tuple[dist.Work | None, torch.Tensor, torch.Tensor]] = {}
        self.waited = 0  #: rows that were not there yet when they counted
        self.waited_ns = 0

    def send(self, row: Row) -> None:
        mine = torch.tensor(row.words(), dtype=torch.int64).repeat(self.group.size())
        everybodys = torch.empty_like(mine)
        # One round of all pairs: gloo's gather is a ring, in which each rank waits for the one before it to be scheduled.
        work = self.group.alltoall_base(everybodys, mine, [], [])
        self._on_way[row.step] = (work, everybodys, mine)

    def take(self, step: int) -> list[Row]:
        """By rank."""
        work, everybodys, _ = self._on_way.pop(step)
        self._wait(work)
        return [Row.of(words) for words in everybodys.view(-1, ROW_WORDS).tolist()]

    def _wait(self, work: dist.Work | None) -> None:
        if work is None or work.is_completed():
            if work is not None:
                work.wait()  # raises what went wrong
            return
        began_ns = time.monotonic_ns()
        work.wait()
        self.waited += 1
        self.waited_ns += time.monotonic_ns() - began_ns

    def state_dict(self) -> dict[str, Any]:
        """What was sent and has not counted yet, from all ranks, once it is there."""
        for work, _, _ in self._on_way.values():
            self._wait(work)
        return {"on_way": {step: everybodys.tolist() for step, (_, everybodys, _) in self._on_way.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._on_way = {
            int(step): (None, torch.tensor(words, dtype=torch.int64), torch.empty(0))
            for step, words in state["on_way"].items()
        }
