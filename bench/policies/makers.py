"""How each method trains: a module, an optimizer, what is called in a step, and what it reports of its synchronizations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from policies.plan import Method
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job

PERIOD = 16


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
    """`steps_per_epoch`: of this rank."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    method: Method
    runtime_dir: str
    steps_per_epoch: int


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


def ddp_powersgd(given: Given) -> Trainer:
    """
    Rank 1, from the step on that torch allows at the earliest. In one bucket: torch's hook sends from callbacks, in which two buckets overtake each other
    on one rank and not on the other, and then both wait for ever.
    """
    wrapped = DistributedDataParallel(given.network, bucket_cap_mb=1_000)
    state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook)
    return Trainer(wrapped, given.optimizer)


def periodic(given: Given) -> Trainer:
    """torch's own local SGD."""
    averager = PeriodicModelAverager(period=PERIOD)

    def after(loss: Tensor) -> None:
        averager.average_parameters(given.network.parameters())

    # It averages in its steps 0, 16, 32 ...
    return Trainer(given.network, given.optimizer, after=after, synchronizations=lambda: -(-averager.step // PERIOD))


def policy(given: Given) -> Trainer:
    """What a user of the library writes."""
    from timesyncd.training.torch.synchronizer import synchronized

    job = Job("bench", runtime_dir=given.runtime_dir)
    wrapped = DistributedDataParallel(given.network)
    sync = synchronized(
        job, wrapped, given.optimizer, policy=given.method.policy, steps_per_epoch=given.steps_per_epoch
    )

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


MAKERS: dict[str, Callable[[Given], Trainer]] = {
    made.__name__: made for made in (flat, ddp, ddp_fp16, ddp_powersgd, periodic, policy, served)
}


def injecting(method: Method, seed: int) -> Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What makes a step's batch of a rank's own; without injection nothing."""
    if method.injected is None:
        return lambda step, inputs, targets: (inputs, targets)
    from timesyncd.training.torch.data import Injection

    alpha, beta = method.injected
    group = dist.group.WORLD
    assert group is not None, "the ranks have met"
    return Injection(alpha, beta, group, seed).inject


def batch_of_own(method: Method, batch: int, ranks: int) -> int:
    """With injection a rank draws fewer samples itself, so that as many are computed in all."""
    if method.injected is None:
        return batch
    from timesyncd.training.torch.data import injected_batch_size

    return injected_batch_size(batch, *method.injected, ranks)
