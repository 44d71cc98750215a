"""What `synchronized` rejects, how it ends after an error, and the groups of one rank, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import timesyncd.training
from timesyncd.client import Job
from timesyncd.client.torch.ddp import observe_buckets
from timesyncd.errors import SyncError
from timesyncd.training import near_ranks, synchronized
from timesyncd.training.torch.averaging import Averaging


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("job", rank=0, world_size=1, runtime_dir=tmp_path)


def test_a_module_that_is_not_wrapped_is_rejected(job: Job) -> None:
    """The error names its class and the wrapper that it needs."""
    module = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="^the module is a Linear; wrap it in DistributedDataParallel first$"):
        synchronized(job, module, torch.optim.SGD(module.parameters()))  # type: ignore[arg-type]


def test_a_name_that_the_package_lacks_is_an_attribute_error() -> None:
    """A misspelled name is reported with the package's, and torch is not blamed."""
    with pytest.raises(AttributeError, match=r"^module 'timesyncd\.training' has no attribute 'synchronised'$"):
        timesyncd.training.synchronised  # noqa: B018


@pytest.mark.usefixtures("alone")
def test_an_error_of_the_script_ends_the_synchronization_without_an_averaging(job: Job) -> None:
    """The script's own error is raised, and the model and the optimizer keep no hook, so that the model can still be used."""
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with pytest.raises(KeyError, match="script"), synchronized(job, ddp, optimizer, "local_sgd(h=4)"):
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        ddp(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        raise KeyError("script")

    assert [len(hooks) for hooks in (optimizer._optimizer_step_pre_hooks, ddp._forward_pre_hooks)] == [0, 0]
    assert ddp(torch.ones(1, 2)).shape == (1, 2)


@pytest.mark.usefixtures("alone")
def test_the_groups_of_a_rank_alone_are_its_own(job: Job) -> None:
    """Without a plan of the hub, the ranks of a node are near each other."""
    assert near_ranks(job) == (((0,),),)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("policy", ["local_sgd(h=4)", "bsp"])
def test_the_loop_s_own_flag_does_not_switch_the_reduction_on(job: Job, policy: str) -> None:
    """As nanoGPT sets it: DDP reduces where both the loop and the policy want it, and the loop finds what it has set."""
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    reduced: list[int] = []
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with synchronized(job, ddp, optimizer, policy):
        observe_buckets(ddp, lambda bucket: reduced.append(bucket.index()))
        for step in range(6):
            ddp.require_backward_grad_sync = step % 2 == 1
            ddp(torch.ones(1, 2)).sum().backward()
            assert ddp.require_backward_grad_sync == (step % 2 == 1)
            if step % 2 == 1:
                optimizer.step()
    assert len(reduced) == (3 if policy == "bsp" else 0)


@pytest.mark.usefixtures("alone")
def test_the_averagings_have_a_group_of_their_own(job: Job) -> None:
    """No collective of theirs runs on the module's group, which is also the script's."""
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with synchronized(job, ddp, optimizer, "local_sgd(h=2) + int8") as sync:
        own = {sync._group, sync._exchange.group}
        assert ddp.process_group not in own and len(own) == 2
        assert dist.get_process_group_ranks(sync._group) == dist.get_process_group_ranks(ddp.process_group)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("by_name", [False, True])
def test_an_optimizer_that_gets_a_closure_is_followed(job: Job, by_name: bool) -> None:
    """The policy acts after the closure has run backward, as Lightning has it: four gradients make one update of their mean."""
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    (weight,) = ddp.parameters()
    before = float(weight.detach())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = ddp(torch.full((1, 1), float(step + 1))).sum()
        torch.autograd.backward(loss)
        return loss

    with synchronized(job, ddp, optimizer, "accumulate(k=4)"):
        for step in range(4):
            loss: Any = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            assert float(loss.detach()) == pytest.approx(before * (step + 1))
    assert float(weight.detach()) == pytest.approx(before - (1 + 2 + 3 + 4) / 4)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("policy", ["local_sgd(h=3)", "bsp"])
def test_a_closure_that_runs_several_times_makes_one_update(job: Job, policy: str) -> None:
    """As LBFGS runs it, also in the steps whose rows are exchanged, and however often each rank runs it."""
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.LBFGS(ddp.parameters(), lr=0.1, max_iter=3)
    runs = 0

    def closure() -> torch.Tensor:
        nonlocal runs
        runs += 1
        optimizer.zero_grad()
        loss: torch.Tensor = (ddp(torch.ones(1, 2)) - 3).square().sum()
        torch.autograd.backward(loss)
        return loss

    with synchronized(job, ddp, optimizer, policy) as sync:
        for _ in range(6):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        assert (sync.step, sync._passes.count) == (6, 6)
    assert runs > 6


@pytest.mark.usefixtures("alone")
def test_a_closure_that_runs_several_times_cannot_accumulate(job: Job) -> None:
    """Its gradients would be averaged in the first run alone."""
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.LBFGS(ddp.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        loss: torch.Tensor = (ddp(torch.ones(1, 2)) - 3).square().sum()
        torch.autograd.backward(loss)
        return loss

    with (
        pytest.raises(SyncError, match=r"several times for one update, and the policy accumulate\(k=1\) averages"),
        synchronized(job, ddp, optimizer, "accumulate(k=1)"),
    ):
        optimizer.step(closure)  # type: ignore[no-untyped-call]


def updated(ddp: DistributedDataParallel, *optimizers: torch.optim.Optimizer) -> None:
    torch.autograd.backward(ddp(torch.ones(1, 2)).sum())
    for optimizer in optimizers:
        optimizer.step()


@pytest.mark.usefixtures("alone")
def test_an_optimizer_that_replaces_the_policy_s_is_an_error(job: Job) -> None:
    """The replicas would train apart. It is a warning where DDP averages the gradients, and nothing after the end."""
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    first, later = (torch.optim.SGD(ddp.parameters(), lr=0.1) for _ in range(2))
    with synchronized(job, ddp, first, "bsp"):
        updated(ddp, later)
        updated(ddp, later)
        with pytest.warns(UserWarning, match=r"another optimizer \(SGD\) updates"):
            updated(ddp, later)
    with synchronized(job, ddp, first, "local_sgd(h=4)"):
        updated(ddp, first)
        updated(ddp, later)
        updated(ddp, later)
        with pytest.raises(SyncError, match=r"rank 0, step 1: another optimizer \(SGD\) updates"):
            updated(ddp, later)
    for _ in range(4):
        updated(ddp, later)


@pytest.mark.usefixtures("alone")
def test_optimizers_beside_the_policy_s_are_none_of_its_business(job: Job) -> None:
    """One that alternates with it, one of other parameters, and one whose steps are within its own."""
    ddp = DistributedDataParallel(nn.Linear(2, 2))

    class Inner(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for _ in range(4):
                inner.step()

    inner = torch.optim.SGD(ddp.parameters(), lr=0.1)
    optimizer, other = Inner([ddp.module.weight], lr=0.1), torch.optim.SGD([ddp.module.bias], lr=0.1)
    with synchronized(job, ddp, optimizer, "local_sgd(h=4)") as sync:
        for _ in range(4):
            updated(ddp, other, inner, optimizer)
        for _ in range(4):
            updated(ddp, inner)
            sync.skip_update()
        for _ in range(4):
            updated(ddp, other)


@pytest.mark.usefixtures("alone")
def test_auto_learns_of_the_validation_the_rate_and_the_optimizer(job: Job) -> None:
    """By the rows: a rate that rises, an optimizer with a second moment, and the newest loss on held-out data."""
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.1)
    with synchronized(job, ddp, optimizer, "auto") as sync:
        sync.record_validation(torch.tensor(1.5))
        for _ in range(4):
            optimizer.param_groups[0]["lr"] *= 2
            sync.record_loss(ddp(torch.ones(1, 2)).square().sum())
            torch.autograd.backward(ddp(torch.ones(1, 2)).square().sum())
            optimizer.step()
        known = vars(sync._controller)
    assert (known["_best_validation"], known["_stage"].value, known["_is_rising"]) == (1.5, "adaptive", True)


@pytest.mark.usefixtures("alone")
def test_a_budget_puts_averagings_off(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each takes much longer than a step, they are made after the longest allowed interval."""
    average = Averaging.average

    def slow(averaging: Averaging, scale: float = 1) -> None:
        time.sleep(0.2)
        average(averaging, scale)

    monkeypatch.setattr(Averaging, "average", slow)
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with synchronized(job, ddp, optimizer, "local_sgd(h=2)", budget=0.01) as sync:
        for _ in range(80):
            ddp(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        rounds = sync.report().rounds

    assert 80 / 16 <= rounds < 20


@pytest.mark.usefixtures("alone")
def test_a_budget_for_bsp_is_rejected(job: Job) -> None:
    """It synchronizes in each step."""
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="^a budget limits "):
        synchronized(job, ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), "bsp", budget=0.05)
