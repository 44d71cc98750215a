"""
Means over groups of ranks: near ranks add up first, then one of each group with the other groups' over the slow links.

Which ranks of a job are near each other: what its plan tells, else by their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from timesyncd.client.job import Job
from timesyncd.client.torch.peer_loss import first_sentence
from timesyncd.errors import SyncError
from timesyncd.training.policy.groups import Group, Levels, check_levels, groups_by_label, levels_from_numbers
from timesyncd.training.torch.averaging import make_chunks

# No `from __future__ import annotations`: torch looks at a hook's annotations, and wants objects.


class TwoLevel:
    """
    Made from levels of groups whose ranks are those of `group`. As with `torch.distributed.new_group`, every rank of the world makes one
    at the same time, each with the group that it is in. No collective of it runs in `group` itself.

    `timeout`: how long a rank waits for another (None: torch's own, 30 minutes on gloo). `sent_bytes`: what this rank handed to
    collectives so far. Raises ValueError for levels that are none (`groups.checked`), SyncError where ranks have other levels.

    On the CPU the collectives run in a thread of its own in the order of the calls, while the backward pass goes on. After the first that
    fails no other is begun.
    """

    def __init__(self, levels: Levels, group: dist.ProcessGroup, timeout: timedelta | None = None) -> None:
        check_levels(levels, group.size())
        rank, heads = group.rank(), _heads(levels)
        self.sent_bytes = 0
        self._size = group.size()
        self._groups = _made(levels, group, timeout)
        self._own = [next(ranks for ranks in level if rank in ranks) for level in levels]
        self._inner = self._own[0] if len(levels) > 1 else (rank,)
        self._heads = heads if rank in heads else (rank,)
        self._failed: SyncError | None = None
        self._thread = ThreadPoolExecutor(1, "two-level")

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """The mean over all ranks, of equal weight whatever group they are in, in the place of the buffer; the same bits on every rank."""
        flat: torch.Tensor = bucket.buffer()
        return self._run(flat, self._mean)

    def average(self, tensors: Iterable[torch.Tensor], level: int) -> None:
        """The mean over this rank's group takes the tensors' place. `level`: 0 is the innermost, -1 all ranks. Raises SyncError."""
        ranks = self._own[level]

        def mean(flat: torch.Tensor) -> torch.Tensor:
            flat.div_(len(ranks))
            self._all_reduce(flat, ranks)
            return flat

        for chunk in make_chunks(tensors):
            chunk.fill()
            chunk.give_back(self._run(chunk.flat, mean).wait())

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        """After what was begun has ended. Again: nothing."""
        self._thread.shutdown()
        self._failed = SyncError("these groups of ranks are closed")
        for group in self._groups.values():
            dist.destroy_process_group(group)
        self._groups = {}

    def _run(
        self, flat: torch.Tensor, mean: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def run() -> None:
            try:
                future.set_result(self._unless_failed(mean, flat))
            except Exception as error:  # noqa: BLE001  given to who waits
                future.set_exception(error)  # type: ignore[arg-type]

        if flat.device.type == "cpu":
            self._thread.submit(run)
        else:  # collectives are only enqueued, in the current stream's order
            run()
        return future

    def _unless_failed(self, mean: Callable[[torch.Tensor], torch.Tensor], flat: torch.Tensor) -> torch.Tensor:
        """So that ranks that lost one wait for it once, not once a bucket."""
        if self._failed is not None:
            raise self._failed
        try:
            return mean(flat)
        except SyncError as error:
            self._failed = error
            raise

    def _mean(self, flat: torch.Tensor) -> torch.Tensor:
        flat.div_(self._size)
        inner = self._groups.get(self._inner)
        if inner is not None:
            with collective_errors("summing", self._inner):
                dist.reduce(flat, group_dst=0, group=inner)
            self.sent_bytes += flat.nbytes  # the lowest rank's are those of the broadcast
        self._all_reduce(flat, self._heads)
        if inner is not None:
            with collective_errors("spreading the mean", self._inner):
                dist.broadcast(flat, group_src=0, group=inner)
        return flat

    def _all_reduce(self, flat: torch.Tensor, ranks: Group) -> None:
        """Nothing in a group of one."""
        group = self._groups.get(ranks)
        if group is not None:
            with collective_errors("averaging", ranks):
                dist.all_reduce(flat, group=group)
            self.sent_bytes += flat.nbytes


def two_level(state: TwoLevel, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `register_comm_hook(TwoLevel(...), two_level)`, or `meter_ddp(job, ddp, hook=two_level, state=TwoLevel(...))`."""
    return state.hook(bucket).then(_value)  # chained, as the reducer tells only such a future's error in words


@contextmanager
def collective_errors(doing: str, ranks: Iterable[int]) -> Iterator[None]:
    """What torch says of a collective that failed becomes a SyncError that names its ranks, by their numbers in the data-parallel group."""
    try:
        yield
    except RuntimeError as error:
        raise SyncError(
            f"{doing} among ranks {', '.join(map(str, ranks))} failed, one of them is gone or silent: {first_sentence(error)}"
        ) from error


def _value(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    return future.value()


def _heads(levels: Levels) -> Group:
    """The lowest rank of each innermost group; all ranks where there is one level."""
    return tuple(ranks[0] for ranks in levels[0]) if len(levels) > 1 else levels[0][0]


def _made(levels: Levels, group: dist.ProcessGroup, timeout: timedelta | None) -> dict[Group, dist.ProcessGroup]:
    """
    The process groups that this rank is in.

    Every rank of the world makes all groups, in one order: torch's local synchronization names a group after how many groups a rank has, and
    ranks of unequal groups would wait for each other under two names.
    """
    made: dict[Group, dist.ProcessGroup] = {}
    for members, theirs in sorted(_plans(levels, group).items()):
        for ranks in dict.fromkeys([*(ranks for level in theirs for ranks in level), _heads(theirs)]):
            if len(ranks) > 1:
                with collective_errors("making a group", ranks):
                    world = [members[rank] for rank in ranks]
                    new = dist.new_group(world, timeout, dist.get_backend(group), sort_ranks=False)
                if dist.get_rank() in world:
                    made[ranks] = new
    return made


def _plans(levels: Levels, group: dist.ProcessGroup) -> dict[Group, Levels]:
    """The levels of every group in the world, by its ranks' numbers there."""
    told: list[Any] = [None] * dist.get_world_size()
    with collective_errors("agreeing on groups", range(len(told))):
        dist.all_gather_object(told, (tuple(dist.get_process_group_ranks(group)), levels))
    plans: dict[Group, Levels] = {}
    for rank, (members, theirs) in enumerate(told):
        if plans.setdefault(members, theirs) != theirs:
            raise SyncError(
                f"ranks {members[0]} and {rank} of the world have different levels of groups: make them from the same labels or delays"
            )
    return plans


def near_ranks(job: Job, group: dist.ProcessGroup | None = None) -> Levels:
    """
    For `synchronized(..., levels=)`. Every rank of the group (None: the default one) calls it, and all get the same: the groups of rank 0's plan, if the hub has
    told it any and the group has all of the job's ranks; else ranks of one node are near.

    Raises SyncError where a rank is gone.
    """
    ranks = dist.get_world_size(group)
    told: list[Any] = [None] * ranks
    with collective_errors("asking where all ranks are", range(ranks)):
        dist.all_gather_object(told, (job.node, job.plan().groups), group=group)
    groups = told[0][1]
    if groups and ranks == job.world_size:
        return levels_from_numbers(groups, ranks)
    return groups_by_label([node for node, _ in told])
