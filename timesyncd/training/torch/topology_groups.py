"""
Averages over groups of ranks: near ranks sum first, then one rank of each group averages with the other groups over the
slow links. And which ranks of a job are near each other: by the job's plan, or by their nodes.
"""

# Without `from __future__ import annotations`: torch inspects the annotations of a communication hook, and requires
# classes instead of strings.

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from timesyncd.client.job import Job
from timesyncd.client.torch.host_group import gather_objects, host_group
from timesyncd.errors import SyncError
from timesyncd.training.policy.groups import Levels, RankGroup, check_levels, groups_by_label, levels_from_numbers
from timesyncd.training.torch.averaging import make_chunks
from timesyncd.training.torch.process_groups import collective_errors


class TwoLevel:
    """
    Averages over levels of groups whose ranks are those of `group`. As with `torch.distributed.new_group`, every rank
    of the world makes one at the same time, each with the group that it is in. None of its collectives runs in `group`
    itself.

    `timeout`: how long a rank waits for another (None: torch's default, 30 minutes on gloo). `sent_bytes`: octets that
    this rank handed to collectives so far. Raises ValueError for invalid levels (`groups.check_levels`), SyncError
    where other ranks have different levels.

    On the CPU the collectives run in a thread of their own, in the order of the calls, while the backward pass
    continues. After the first failure no other collective begins.
    """

    def __init__(self, levels: Levels, group: dist.ProcessGroup, timeout: timedelta | None = None) -> None:
        check_levels(levels, group.size())
        rank, leaders = group.rank(), _leaders(levels)
        self.sent_bytes = 0
        self._size = group.size()
        self._groups = _make_groups(levels, group, timeout)
        self._own = [next(ranks for ranks in level if rank in ranks) for level in levels]
        self._inner = self._own[0] if len(levels) > 1 else (rank,)
        self._leaders = leaders if rank in leaders else (rank,)
        self._failed: SyncError | None = None
        self._thread = ThreadPoolExecutor(1, "two-level")

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """
        Replace the buffer by the mean over all ranks, each with equal weight whatever its group; the same bits on every
        rank.
        """
        flat: torch.Tensor = bucket.buffer()
        return self._run(flat, self._mean)

    def average(self, tensors: Iterable[torch.Tensor], level: int) -> None:
        """
        Replace the tensors by their mean over this rank's group. `level`: 0 is the innermost, -1 all ranks. Raises
        SyncError.
        """
        ranks = self._own[level]

        def mean(flat: torch.Tensor) -> torch.Tensor:
            flat.div_(len(ranks))
            self._all_reduce(flat, ranks)
            return flat

        for chunk in make_chunks(tensors):
            chunk.fill()
            chunk.write_back(self._run(chunk.flat, mean).wait())

    def gather(self, words: list[int], level: int) -> list[list[int]]:
        """These words of all ranks of this rank's group, in the order of the group. Raises SyncError."""
        ranks = self._own[level]
        group = self._groups.get(ranks)
        if group is None:
            return [words]
        own = torch.tensor(words, dtype=torch.int64)
        gathered = [torch.empty_like(own) for _ in ranks]
        with collective_errors("comparing the steps", ranks):
            dist.all_gather(gathered, own, group=host_group(group))
        return [each.tolist() for each in gathered]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        """Waits for collectives in progress. Further calls do nothing."""
        self._thread.shutdown()
        self._failed = SyncError("this TwoLevel is closed")
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
            except Exception as error:  # noqa: BLE001  the future carries it
                future.set_exception(error)  # type: ignore[arg-type]

        if flat.device.type == "cpu":
            self._thread.submit(run)
        else:  # collectives only enter the current stream, in order
            run()
        return future

    def _unless_failed(self, mean: Callable[[torch.Tensor], torch.Tensor], flat: torch.Tensor) -> torch.Tensor:
        """After a failure raises it again, so that ranks wait for a rank that has ended once, not once per bucket."""
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
            self.sent_bytes += flat.nbytes  # the leader's are those of the broadcast
        self._all_reduce(flat, self._leaders)
        if inner is not None:
            with collective_errors("spreading the mean", self._inner):
                dist.broadcast(flat, group_src=0, group=inner)
        return flat

    def _all_reduce(self, flat: torch.Tensor, ranks: RankGroup) -> None:
        """Does nothing in a group of one."""
        group = self._groups.get(ranks)
        if group is not None:
            with collective_errors("averaging", ranks):
                dist.all_reduce(flat, group=group)
            self.sent_bytes += flat.nbytes


def two_level(state: TwoLevel, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """
    For `register_comm_hook(TwoLevel(...), two_level)`, or `meter_ddp(job, ddp, hook=two_level, state=TwoLevel(...))`.
    """
    return state.hook(bucket).then(_value)  # chained: the reducer reports the text of only such a future's error


def _value(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    return future.value()


def _leaders(levels: Levels) -> RankGroup:
    """The lowest rank of each innermost group; all ranks where there is one level only."""
    return tuple(ranks[0] for ranks in levels[0]) if len(levels) > 1 else levels[0][0]


def _make_groups(
    levels: Levels, group: dist.ProcessGroup, timeout: timedelta | None
) -> dict[RankGroup, dist.ProcessGroup]:
    """
    The process groups that this rank is in.

    Every rank of the world makes all groups, in the same order: torch's local synchronization names a group by the
    number of groups that a rank has, so ranks with different numbers would wait for each other under two names.
    """
    process_groups: dict[RankGroup, dist.ProcessGroup] = {}
    for members, theirs in sorted(_plans(levels, group).items()):
        for ranks in dict.fromkeys([*(ranks for level in theirs for ranks in level), _leaders(theirs)]):
            if len(ranks) > 1:
                with collective_errors("making a group", ranks):
                    world = [members[rank] for rank in ranks]
                    new = dist.new_group(world, timeout, dist.get_backend(group), sort_ranks=False)
                if dist.get_rank() in world:
                    process_groups[ranks] = new
    return process_groups


def _plans(levels: Levels, group: dist.ProcessGroup) -> dict[RankGroup, Levels]:
    """The levels of every group in the world, by its ranks' numbers there."""
    with collective_errors("agreeing on groups", range(dist.get_world_size())):
        reported = gather_objects((tuple(dist.get_process_group_ranks(group)), levels))
    plans: dict[RankGroup, Levels] = {}
    for rank, (members, theirs) in enumerate(reported):
        if plans.setdefault(members, theirs) != theirs:
            raise SyncError(
                f"ranks {members[0]} and {rank} of the world have different levels of groups; make them from the "
                "same labels or delays"
            )
    return plans


def near_ranks(job: Job, group: dist.ProcessGroup | None = None) -> Levels:
    """
    The levels for `synchronized(..., levels=)`. Every rank of the group (None: the default one) calls it, and all get
    the same result: the groups in rank 0's plan, if the hub published any and the group has all of the job's ranks;
    otherwise the ranks of one node are near each other.

    Raises SyncError where a rank has ended or is silent.
    """
    ranks = dist.get_world_size(group)
    with collective_errors("gathering the nodes of all ranks", range(ranks)):
        reported = gather_objects((job.node, job.plan().groups), group)
    groups = reported[0][1]
    if groups and ranks == job.world_size:
        return levels_from_numbers(groups, ranks)
    return groups_by_label([node for node, _ in reported])
