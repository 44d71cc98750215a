"""The process groups on which this package's collectives run, apart from the script's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import distributed_c10d

from timesyncd.client.torch.host_group import gather_objects, group_timeout
from timesyncd.client.torch.peer_loss import first_sentence
from timesyncd.errors import SyncError


@contextmanager
def collective_errors(doing: str, ranks: Iterable[int]) -> Iterator[None]:
    """
    A collective's RuntimeError becomes a SyncError that names its ranks, by their numbers in the data-parallel group.
    """
    try:
        yield
    except RuntimeError as error:
        raise SyncError(
            f"{doing} among ranks {', '.join(map(str, ranks))} failed, because one of them has ended or is silent: "
            f"{first_sentence(error)}"
        ) from error


def row_group() -> dist.ProcessGroup:
    """A gloo group of all ranks of the default group, with its time-out. Every rank calls this at the same time."""
    group: dist.ProcessGroup = dist.new_group(
        backend="gloo", timeout=group_timeout(distributed_c10d._get_default_group())
    )
    return group


def group_apart(group: dist.ProcessGroup, rows: dist.ProcessGroup) -> dist.ProcessGroup:
    """
    A new group of the same ranks and backends. A script that calls its collectives in another order than other ranks
    do then never exchanges its tensors with those of the averagings.

    Every rank of the default group calls this at the same time, each with the group that it is in. All of them make all
    groups, in one order, because torch names a group by the number of groups that a rank has. `rows`: the group that
    the ranks use to agree on them. A group that torch has not made is returned itself: torch cannot make another one.
    Raises RuntimeError where a rank has ended.
    """
    backends = distributed_c10d._world.pg_backend_config.get(group)
    own = None if backends is None else (tuple(dist.get_process_group_ranks(group)), group_timeout(group), backends)
    found = group
    for plan in sorted(set(gather_objects(own, rows)) - {None}):
        ranks, timeout, backend = plan
        made = dist.new_group(ranks, timeout, backend, sort_ranks=False)
        if plan == own:
            found = made
    return found
