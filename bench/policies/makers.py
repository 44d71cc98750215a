"""How each method trains: a module, an optimizer, what is called in a step, and what it reports of its synchronizations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from policies.plan import Method
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job


def _nothing(loss: Tensor) -> None:
    pass


def _no_call() -> None:
    pass


@dataclass
class Trainer:
    """
    `wrapped` is called, `optimizer` stepped; then `after` has the loss. `synchronizations` gives how many of the steps so far had one; None: all.
    `changes` lists what policy was chosen when, and why.
    """

    wrapped: nn.Module
    optimizer: torch.optim.Optimizer
    before: Callable[[], None] = _no_call
    after: Callable[[Tensor], None] = _nothing
    synchronizations: Callable[[], int] | None = None
    changes: Callable[[], list[str]] = list
    close: Callable[[], None] = _no_call
    kept: list[object] = field(default_factory=list)


@dataclass(frozen=True)
class Given:
    network: nn.Module
    optimizer: torch.optim.Optimizer
    method: Method
    runtime_dir: str


def flat(given: Given) -> Trainer:
    """BSP in its plainest form, without any overlap: what links are measured with."""
    gradients = torch.zeros(sum(parameter.numel() for parameter in given.network.parameters()))
    place = 0
    for parameter in given.network.parameters():
        parameter.grad = gradients[place : place + parameter.numel()].view_as(parameter)
        place += parameter.numel()

    def reduce() -> None:
        dist.all_reduce(gradients)
        gradients.div_(dist.get_world_size())

    return Trainer(given.network, given.optimizer, before=reduce)


def ddp(given: Given) -> Trainer:
    return Trainer(DistributedDataParallel(given.network), given.optimizer)


def ddp_fp16(given: Given) -> Trainer:
    wrapped = DistributedDataParallel(given.network)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return Trainer(wrapped, given.optimizer)


def policy(given: Given) -> Trainer:
    """What a user of the library writes."""
    from timesyncd.training.torch.entry import synchronized

    job = Job("bench", runtime_dir=given.runtime_dir)
    wrapped = DistributedDataParallel(given.network)
    sync = synchronized(job, wrapped, given.optimizer, policy=given.method.policy)

    def close() -> None:
        sync.close()
        job.close()

    def changes() -> list[str]:
        return [f"{change.step}: {change.policy}: {change.reason}" for change in sync.report().changes[1:]]

    return Trainer(
        wrapped,
        given.optimizer,
        after=sync.record_loss,
        synchronizations=lambda: sync.report().rounds,
        changes=changes,
        close=close,
    )


def served(given: Given) -> Trainer:
    """The same by a parameter server: in a process and a namespace of its own, as in the paper, or in the ranks."""
    from timesyncd.training.torch.stale import StaleSync

    job = Job("bench", runtime_dir=given.runtime_dir)
    sync = StaleSync(job, given.network, given.optimizer, given.method.policy, servers=given.method.servers)
    # It is never closed: rank 0 ends all the others when the run is over.
    return Trainer(given.network, given.optimizer, kept=[sync])


MAKERS: dict[str, Callable[[Given], Trainer]] = {made.__name__: made for made in (flat, ddp, ddp_fp16, policy, served)}
