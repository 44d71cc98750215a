"""
What all ranks report to each other between steps: rows, sent in one step and read some steps later; and their replicas,
averaged and compared.
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
        self._own: tuple[int, int] | None = None
        self.checked = self.differed = 0

    def record(self, rounds: int, identical_tensors: Sequence[torch.Tensor]) -> None:
        """Call it right after a synchronization."""
        if identical_tensors and rounds % CHECK_EVERY == 0:
            replica = replica_hash(identical_tensors)
            self._own = replica, rounds
            if self._job.world_size == len(
                self._ranks
            ):  # with model parallelism other ranks have other parts of the model
                now_ns, steps = time.time_ns(), steps_of(self._job)
                self._job.meter.mark(steps.step, 0, now_ns, now_ns, now_ns, Kind.REPLICA, replica)

    def take_hash(self) -> tuple[int | None, int]:
        """The hash that was recorded since the last call, or None, and its round."""
        own, self._own = self._own, None
        return own or (None, 0)

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


@torch.no_grad()
def replica_hash(tensors: Iterable[torch.Tensor]) -> int:
    """A hash of every bit of the tensors, in their order; below 2^61."""
    found = 0
    for tensor in tensors:
        words = local_shard(tensor).contiguous().view(-1).view(torch.uint8)
        words = torch.nn.functional.pad(words, (0, -words.numel() % 4)).view(torch.int32)
        for piece in torch.split(words, _PIECE):
            weights = torch.arange(
                1, 2 * piece.numel(), 2, device=piece.device
            )  # odd, so that the hash changes with every word
            found = (found * 1_000_003 + int((piece.long() * weights).sum())) % _PRIME
    return found


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
    dist.all_reduce(size, op=dist.ReduceOp.MAX, group=group)
    if int(size[0]) != -int(size[1]):
        raise OptimizerStateMismatch(
            f"the optimizers of the ranks have states of different sizes ({-int(size[1])} to {int(size[0])} numbers): "
            "a parameter had no gradient on some ranks; give every parameter a gradient on all ranks"
        )
    Averaging(states, DenseReducer(group)).average()


class RowExchange:
    """
    Exchanges rows between all ranks that decide together, over a process group of its own on the CPU. Every rank sends
    and receives in the same steps.

    `rows_waited`, `rows_waited_ns`: how often, and how long, rows had not arrived when they counted. The methods raise
    RuntimeError where torch does: a rank has ended, or was silent for the group's time-out.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._in_flight: dict[int, tuple[dist.Work | None, torch.Tensor, torch.Tensor]] = {}
        self.rows_waited = 0
        self.rows_waited_ns = 0

    def send(self, row: Row) -> None:
        own = torch.tensor(row.words(), dtype=torch.int64).repeat(self.group.size())
        all_rows = torch.empty_like(own)
        # All pairs at once: gloo's all-gather is a ring, in which each rank waits until the rank before it is
        # scheduled.
        work = self.group.alltoall_base(all_rows, own, [], [])
        self._in_flight[row.step] = (work, all_rows, own)

    def receive(self, step: int) -> list[Row]:
        """The rows of that step, by rank. Waits for them."""
        work, all_rows, _ = self._in_flight.pop(step)
        self._wait(work)
        return [Row.from_words(words) for words in all_rows.view(-1, ROW_WORDS).tolist()]

    def _wait(self, work: dist.Work | None) -> None:
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
