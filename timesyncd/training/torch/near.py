"""Which ranks of a job are near each other: what its plan tells, else by their nodes."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from timesyncd.client.job import Job
from timesyncd.training.policy.groups import Levels, groups_by_label, levels_of
from timesyncd.training.torch.topology_groups import collective


def near_ranks(job: Job, group: dist.ProcessGroup | None = None) -> Levels:
    """
    For `synchronized(..., levels=)`. Every rank of the group (None: the default one) calls it, and all get the same: the groups of rank 0's plan, if the hub has
    told it any and the group has all of the job's ranks; else ranks of one node are near.

    Raises SyncError where a rank is gone.
    """
    ranks = dist.get_world_size(group)
    told: list[Any] = [None] * ranks
    with collective("asking where all ranks are", range(ranks)):
        dist.all_gather_object(told, (job.node, job.plan().groups), group=group)
    groups = told[0][1]
    if groups and ranks == job.world_size:
        return levels_of(groups, ranks)
    return groups_by_label([node for node, _ in told])
