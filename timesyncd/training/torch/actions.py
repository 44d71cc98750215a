"""What is done for a policy around each update: gradients or parameters combined over the data-parallel group."""

from __future__ import annotations

from collections.abc import Sequence
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
    Does what is decided in each step, before or after the update.

    `reduces`: DDP's own reducer combines the gradients in each backward pass. `early`: it needs the decision before the update. `united`:
    what is the same on all ranks after each synchronization. `averaging`: what does it here; None: DDP. `arrived`: in this step, if
    something was done in it, the replicas came together.
    """

    reduces = False
    early = True
    averaging: Averaging | None = None
    arrived = False

    def __init__(self, united: Sequence[torch.Tensor] = ()) -> None:
        self.united = united

    @property
    def under_way(self) -> bool:
        """Whether a synchronization is, which ends in a step that may have none of its own."""
        return False

    def before_update(self, decision: Decision) -> None:
        """The gradients are this rank's own, unless DDP reduced them."""

    def after_update(self, decision: Decision, scale: float, near: TwoLevel | None) -> None:
        """
        The parameters are updated; not called in local steps with nothing under way. `scale`: this rank's weight in the mean, times the number of
        ranks. `near`: average in the innermost group alone.
        """

    def finish(self) -> None:
        """Whatever is still on its way arrives."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class ReduceGradients(Action):
    """DDP does it, overlapped with the backward pass."""

    reduces = True
    arrived = True


class AverageGradients(Action):
    """The mean gradient in the steps that synchronize, this rank's own in the others."""

    def __init__(self, parameters: Sequence[torch.Tensor], sender: BucketReducer) -> None:
        super().__init__()
        self.averaging: Averaging = Averaging(parameters, sender, select=local_gradient)

    def before_update(self, decision: Decision) -> None:
        if decision is Decision.SYNC:
            self.averaging.average()


class AccumulateGradients(Action):
    """Gradients are added up without an update, until a step synchronizes: their mean over steps and ranks makes it."""

    def __init__(self, parameters: Sequence[torch.Tensor], sender: BucketReducer) -> None:
        super().__init__(parameters)
        self._parameters = list(parameters)
        self.averaging: Averaging = Averaging(parameters, sender, select=local_gradient)
        self._sums: list[torch.Tensor] = []
        self._steps = 0

    @torch.no_grad()
    def before_update(self, decision: Decision) -> None:
        """Without a gradient the optimizer leaves a parameter, and what it remembers of it, as it is."""
        gradients = [local_gradient(parameter) for parameter in self._parameters]
        self._sums = list(torch._foreach_add(self._sums, gradients)) if self._steps else [g.clone() for g in gradients]
        self._steps += 1
        self.arrived = decision is Decision.SYNC
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
    """The mean of the parameters after this rank's own update, at once or `delay` steps later."""

    early = False

    def __init__(self, tensors: Sequence[torch.Tensor], sender: BucketReducer, differences: bool, delay: int) -> None:
        super().__init__()
        self._tensors = tensors
        self.averaging: Averaging = Averaging(tensors, sender, differences)
        self._left: int | None = None
        self.retime(delay)

    def retime(self, delay: int) -> None:
        """When nothing is on its way."""
        self._delay = delay

    @property
    def under_way(self) -> bool:
        return self._left is not None

    def after_update(self, decision: Decision, scale: float, near: TwoLevel | None) -> None:
        self.arrived = decision is Decision.SYNC and not self._delay and near is None
        self.united = self._tensors if self.arrived else ()
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.finish()
                self.arrived = True
        if decision is not Decision.SYNC:
            return
        if near is not None:
            near.average(self._tensors, 0)
        elif self._delay:
            self.averaging.begin()
            self._left = self._delay
        else:
            self.averaging.average(scale)

    def finish(self) -> None:
        self.averaging.finish()
        self._left = None

    def state_dict(self) -> dict[str, Any]:
        return {"averaging": self.averaging.state_dict(), "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.averaging.load_state_dict(state["averaging"])
        self._left = state["left"]


def action_for(strategy: Strategy, ddp: DistributedDataParallel, sender: BucketReducer) -> Action:
    """`sender` averages what is not reduced by DDP, which has it already."""
    policy = strategy.policy
    parameters = trainable_parameters(ddp)
    if isinstance(policy, Accumulate):
        return AccumulateGradients(parameters, sender)
    if policy.combines is Combine.PARAMETERS:
        delay = policy.delay if isinstance(policy, LocalSGD) else 0
        return AverageParameters(replica_tensors(ddp), sender, strategy.compression is not None, delay)
    return AverageGradients(parameters, sender) if isinstance(policy, SelSync) else ReduceGradients(parameters)


def trainable_parameters(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """Not `ddp.parameters()`, where those of tensor parallelism are no more after the first forward pass."""
    return [parameter for parameter in ddp._module_parameters if parameter.requires_grad]


def replica_tensors(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """Its trained parameters, and buffers that are no counts, as batch normalization's."""
    return trainable_parameters(ddp) + [buffer for buffer in ddp.buffers() if local_shard(buffer).is_floating_point()]


def square_norm(ddp: DistributedDataParallel) -> float:
    """Of this rank's own gradient."""
    gradients = [local_shard(p.grad) for p in trainable_parameters(ddp) if p.grad is not None]
    dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    norms = torch._foreach_norm(dense) if dense else []
    # In single precision: the square of a half-precision norm may be none.
    return float(torch.stack(list(norms)).float().square().sum()) if norms else 0.0
