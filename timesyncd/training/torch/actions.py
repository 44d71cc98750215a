"""What carries out a policy around each update: gradients or parameters are averaged over the data-parallel group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from timesyncd.training.policy.policies import Accumulate, Combine, Decision, LocalSGD
from timesyncd.training.policy.selsync import SelSync
from timesyncd.training.policy.text import Strategy
from timesyncd.training.torch.averaging import Averaging, BucketReducer, local_gradient, local_shard
from timesyncd.training.torch.topology_groups import TwoLevel


class Action:
    """
    Carries out the decision of each step, before or after the optimizer's update.

    `uses_ddp_reducer`: DDP's own reducer averages the gradients in each backward pass. `before_optimizer`: it needs the
    decision before the update. `takes_gradients`: it replaces the gradients that the update uses. `averaging`: what averages the tensors; None: DDP does. `identical_tensors`: the tensors
    that are equal on all ranks after each synchronization. `replicas_averaged`: the replicas became equal in this step,
    if anything was done in it.
    """

    uses_ddp_reducer = False
    before_optimizer = True
    takes_gradients = False
    delay = 0  #: number of steps after which an averaging that was begun is applied
    averaging: Averaging | None = None
    replicas_averaged = False

    def __init__(self, identical_tensors: Sequence[torch.Tensor] = ()) -> None:
        self.identical_tensors = identical_tensors

    @property
    def in_progress(self) -> bool:
        """Whether an averaging is in progress. It may end in a step whose decision is LOCAL."""
        return False

    @property
    def is_due(self) -> bool:
        """Whether the averaging in progress is applied after this step's update."""
        return False

    def takes_gradients_in(self, decision: Decision) -> bool:
        """Whether it uses this rank's gradients in a step with this decision."""
        return self.takes_gradients and decision is Decision.SYNC

    def before_update(self, decision: Decision) -> None:
        """Called before the optimizer's update, with this rank's own gradients, unless DDP's reducer averaged them."""

    def after_update(self, decision: Decision, scale: float, groups: TwoLevel | None) -> None:
        """
        Called after the optimizer's update, except in local steps with nothing in progress.

        `scale`: this rank's weight in the mean, times the number of ranks. `groups`: average within this rank's
        innermost group only; None: over all ranks.
        """

    def finish(self) -> None:
        """Wait for the averaging in progress, and apply it."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class ReduceGradients(Action):
    """DDP's reducer averages the gradients, overlapped with the backward pass."""

    uses_ddp_reducer = True
    replicas_averaged = True


class AverageGradients(Action):
    """The update uses the mean gradient in the steps that synchronize, and this rank's own in the others."""

    takes_gradients = True

    def __init__(self, parameters: Sequence[torch.Tensor], reducer: BucketReducer) -> None:
        super().__init__()
        self.averaging: Averaging = Averaging(parameters, reducer, select=local_gradient)

    def before_update(self, decision: Decision) -> None:
        if decision is Decision.SYNC:
            self.averaging.average()


class AccumulateGradients(Action):
    """
    Gradients are summed without an update until a step synchronizes. That step's update uses their mean over steps and
    ranks.
    """

    takes_gradients = True

    def __init__(self, parameters: Sequence[torch.Tensor], reducer: BucketReducer) -> None:
        super().__init__(parameters)
        self._parameters = list(parameters)
        self.averaging: Averaging = Averaging(parameters, reducer, select=local_gradient)
        self._sums: list[torch.Tensor] = []
        self._steps = 0

    def takes_gradients_in(self, decision: Decision) -> bool:
        return True

    @torch.no_grad()
    def before_update(self, decision: Decision) -> None:
        """
        In local steps the gradients become None, so that the optimizer changes neither the parameters nor its state.
        """
        gradients = [local_gradient(parameter) for parameter in self._parameters]
        self._sums = list(torch._foreach_add(self._sums, gradients)) if self._steps else [g.clone() for g in gradients]
        self._steps += 1
        self.replicas_averaged = decision is Decision.SYNC
        if decision is not Decision.SYNC:
            for parameter in self._parameters:
                parameter.grad = None
            return
        torch._foreach_copy_(gradients, torch._foreach_mul(self._sums, 1 / self._steps))
        self._sums, self._steps = [], 0
        self.averaging.average()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "sums": self._sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._sums = state["steps"], list(state["sums"])


class AverageParameters(Action):
    """
    The parameters are averaged after this rank's own update. The step waits for the mean, or gets it `delay` steps
    later.
    """

    before_optimizer = False

    def __init__(self, tensors: Sequence[torch.Tensor], reducer: BucketReducer, differences: bool, delay: int) -> None:
        super().__init__()
        self._tensors = tensors
        self.averaging: Averaging = Averaging(tensors, reducer, differences)
        self._remaining_steps: int | None = None
        self.set_delay(delay)

    def set_delay(self, delay: int) -> None:
        """Call it while no averaging is in progress."""
        self.delay = delay

    @property
    def in_progress(self) -> bool:
        return self._remaining_steps is not None

    @property
    def is_due(self) -> bool:
        return self._remaining_steps == 1

    def after_update(self, decision: Decision, scale: float, groups: TwoLevel | None) -> None:
        self.replicas_averaged = decision is Decision.SYNC and not self.delay and groups is None
        self.identical_tensors = self._tensors if self.replicas_averaged else ()
        if self._remaining_steps is not None:
            self._remaining_steps -= 1
            if self._remaining_steps == 0:
                self.finish()
                self.replicas_averaged = True
        if decision is not Decision.SYNC:
            return
        if groups is not None:
            groups.average(self._tensors, 0)
        elif self.delay:
            self.averaging.begin()
            self._remaining_steps = self.delay
        else:
            self.averaging.average(scale)

    def finish(self) -> None:
        self.averaging.finish()
        self._remaining_steps = None

    def state_dict(self) -> dict[str, Any]:
        return {"averaging": self.averaging.state_dict(), "remaining_steps": self._remaining_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.averaging.load_state_dict(state["averaging"])
        self._remaining_steps = state["remaining_steps"]


def action_for(strategy: Strategy, ddp: DistributedDataParallel, reducer: BucketReducer) -> Action:
    """`reducer` averages what DDP's own reducer does not."""
    policy = strategy.policy
    parameters = trainable_parameters(ddp)
    if isinstance(policy, Accumulate):
        return AccumulateGradients(parameters, reducer)
    if policy.combines is Combine.PARAMETERS:
        delay = policy.delay if isinstance(policy, LocalSGD) else 0
        return AverageParameters(replica_tensors(ddp), reducer, strategy.compression is not None, delay)
    return AverageGradients(parameters, reducer) if isinstance(policy, SelSync) else ReduceGradients(parameters)


def trainable_parameters(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """
    Unlike `ddp.parameters()`, this includes tensor-parallel parameters after the first forward pass, which hides them
    there.
    """
    return [parameter for parameter in ddp._module_parameters if parameter.requires_grad]


def replica_tensors(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """The trainable parameters, and the floating-point buffers, as batch normalization has them."""
    return trainable_parameters(ddp) + [buffer for buffer in ddp.buffers() if local_shard(buffer).is_floating_point()]


@torch.no_grad()
def clear_gradients(ddp: DistributedDataParallel, to_none: bool = False) -> None:
    """This rank adds nothing to a mean; or (`to_none`) its optimizer changes neither the parameters nor its state."""
    for parameter in trainable_parameters(ddp):
        if to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()


def square_norm(ddp: DistributedDataParallel) -> torch.Tensor | None:
    """The squared norm of this rank's own gradient, on its device; None: it has none."""
    gradients = [local_shard(p.grad) for p in trainable_parameters(ddp) if p.grad is not None]
    dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    norms = torch._foreach_norm(dense) if dense else []
    # In single precision: the square of a half-precision norm may overflow.
    return torch.stack(list(norms)).float().square().sum() if norms else None


def with_closure(
    args: tuple[Any, ...], given: dict[str, Any], after: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """
    The arguments of an optimizer's `step` with `after` called when the closure has run backward; None: there is no
    closure. `args`: with the optimizer.
    """
    closure = given.get("closure") if "closure" in given else next(iter(args[1:]), None)
    if closure is None:
        return None

    def closed() -> Any:
        loss = closure()
        after()
        return loss

    return (args[0], closed, *args[2:]), {name: each for name, each in given.items() if name != "closure"}
