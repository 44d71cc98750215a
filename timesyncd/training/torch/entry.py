"""The call that lets a policy decide in a training loop."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client.job import Job
from timesyncd.training.policy.groups import Levels
from timesyncd.training.policy.text import parse_collective_policy
from timesyncd.training.torch.forward_order import checked_order
from timesyncd.training.torch.synchronizer import Synchronizer


def synchronized(
    job: Job,
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    policy: str = "auto",
    steps_per_epoch: int | None = None,
    levels: Levels | None = None,
    balance: bool = False,
    reference: Path | str | None = None,
    budget: float | None = None,
    order: str | None = None,
) -> Synchronizer:
    """
    Let a policy decide when the replicas of a DistributedDataParallel module synchronize. The training loop stays as it
    is.

    The ranks of the module's process group average: it is the data-parallel group. All ranks of the default group call
    this and decide together, so that the parts of a replica that tensor or pipeline parallelism put on other ranks stay
    in the same steps.

    Both may be those that accelerate's `prepare` returned. `policy`: text as docs/policies.md describes it.
    `steps_per_epoch`: only fedavg needs it. `levels`: which ranks of the module's group are near each other (`near_ranks`);
    near ranks sum first, where nothing is compressed. `balance`: `batches.part` deals a global batch by the ranks' measured
    speeds; `batches.weigh` weights the loss. `reference`: the folder of a former run's recording, whose losses the job is
    compared with; rank 0's counts. `budget`: the share of an epoch's time (without `steps_per_epoch`: of the run's) that
    ranks may wait for averagings. `order`: "forward": the next forward pass waits for an average of parameters, layer by
    layer, in place of the step; nothing else may read the parameters between. Raises ValueError for an invalid policy or
    order, TypeError for a module that is not wrapped in DistributedDataParallel.
    """
    module = getattr(ddp, "_orig_mod", ddp)
    if not isinstance(module, DistributedDataParallel):
        raise TypeError(f"the module is a {type(module).__name__}; wrap it in DistributedDataParallel first")
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):  # accelerate's wrapper around the optimizer that updates
        optimizer = getattr(optimizer, "optimizer", optimizer)
    parsed = parse_collective_policy(policy)
    is_ordered = checked_order(order, module, is_compiled=module is not ddp)
    return Synchronizer(
        job, module, optimizer, parsed, steps_per_epoch, levels, balance, reference, budget, is_ordered=is_ordered
    )
