"""What carries out a policy around each update: gradients or parameters are averaged over the data-parallel group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from timesyncd.training.policy.low_communication import DESLOC, AdamState, StreamingDiLoCo, fragments_of
from timesyncd.training.policy.policies import Combine, Decision, LocalSGD
from timesyncd.training.policy.schedule import replicas_diverge
from timesyncd.training.policy.text import Strategy
from timesyncd.training.torch.averaging import Averaging, BucketReducer, DenseReducer, local_gradient, local_shard
from timesyncd.training.torch.forward_order import ForwardOrder
from timesyncd.training.torch.outer import OuterOptimizer
from timesyncd.training.torch.replicas import check_equal_sizes, moment_tensors
from timesyncd.training.torch.topology_groups import TwoLevel


class Action:
    """
    Carries out the decision of each step, before or after the optimizer's update.

    `uses_ddp_reducer`: DDP's own reducer averages the gradients in each backward pass. `before_optimizer`: it needs the
    decision before the update. `takes_gradients`: it replaces the gradients that the update uses. `averagings`: what
    averages the tensors of this step; empty: DDP does. `identical_tensors`: the tensors that are equal on all ranks
    after each synchronization. `replicas_averaged`: the replicas became equal in this step, if anything was done in it.
    `sent_bytes`: octets that it handed to collectives beside those of the reducer.
    """

    uses_ddp_reducer = False
    before_optimizer = True
    takes_gradients = False
    delay = 0  #: number of steps after which an averaging that was begun is applied
    averagings: Sequence[Averaging] = ()
    replicas_averaged = False

    def __init__(self, identical_tensors: Sequence[torch.Tensor] = ()) -> None:
        self.identical_tensors = identical_tensors

    @property
    def sent_bytes(self) -> int:
        return 0

    @property
    def in_progress(self) -> bool:
        """Whether an averaging is in progress. It may end in a step whose decision is LOCAL."""
        return False

    @property
    def is_due(self) -> bool:
        """Whether the averaging in progress is applied after this step's update."""
        return False

    def begin_step(self, step: int) -> None:
        """Called when the decision of this step is known, before it is carried out."""

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
        self._averaging = Averaging(parameters, reducer, select=local_gradient)
        self.averagings = (self._averaging,)

    def before_update(self, decision: Decision) -> None:
        if decision is Decision.SYNC:
            self._averaging.average()


class AccumulateGradients(Action):
    """
    Gradients are summed without an update until a step synchronizes. That step's update uses their mean over steps and
    ranks.
    """

    takes_gradients = True

    def __init__(self, parameters: Sequence[torch.Tensor], reducer: BucketReducer) -> None:
        super().__init__(parameters)
        self._parameters = list(parameters)
        self._averaging = Averaging(parameters, reducer, select=local_gradient)
        self.averagings = (self._averaging,)
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
        self._averaging.average()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "sums": self._sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._sums = state["steps"], list(state["sums"])


class AverageParameters(Action):
    """
    The parameters are averaged after this rank's own update. The step waits for the mean, or gets it `delay` steps
    later; with an `order` the next forward pass waits for it in place of the step. With an outer optimizer they get its
    step in place of the mean, and buffers the mean.
    """

    before_optimizer = False

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        reducer: BucketReducer,
        strategy: Strategy,
        delay: int,
        order: ForwardOrder | None = None,
    ) -> None:
        super().__init__()
        self._order = order
        self._tensors, outer = [*parameters, *buffers], strategy.outer_optimizer
        if outer is None:
            self._averaging = Averaging(self._tensors, reducer, strategy.compression is not None)
        else:
            self._averaging = Averaging(parameters, reducer, True, outer=OuterOptimizer(outer), apart=buffers)
        self.averagings = (self._averaging,)
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
            self._averaging.begin()
            self._remaining_steps = self.delay
        elif self._order is not None:
            self._order.begin(self._averaging, scale)
        else:
            self._averaging.average(scale)

    def finish(self) -> None:
        self._averaging.finish()
        self._remaining_steps = None

    def state_dict(self) -> dict[str, Any]:
        return {"averaging": self._averaging.state_dict(), "remaining_steps": self._remaining_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averaging.load_state_dict(state["averaging"])
        self._remaining_steps = state["remaining_steps"]


class StreamFragments(Action):
    """
    Streaming DiLoCo (arXiv 2501.18512, Alg. 2): one fragment of the parameters after the other is sent, and arrives
    `delay` steps later. Buffers go with the first fragment, and have their mean.
    """

    before_optimizer = False

    def __init__(
        self,
        policy: StreamingDiLoCo,
        fragments: Sequence[Sequence[torch.Tensor]],
        buffers: Sequence[torch.Tensor],
        reducer: BucketReducer,
    ) -> None:
        super().__init__()
        self._policy, self.delay = policy, policy.delay
        self._of_fragments = [
            Averaging(tensors, reducer, True, outer=OuterOptimizer(policy.outer), apart=() if number else buffers)
            for number, tensors in enumerate(fragments)
        ]
        self._due: int | None = None
        self._begun: int | None = None
        self._remaining_steps = 0

    @property
    def in_progress(self) -> bool:
        return self._begun is not None

    @property
    def is_due(self) -> bool:
        return self._begun is not None and self._remaining_steps == 1

    def begin_step(self, step: int) -> None:
        self._due = self._policy.fragment_in(step)
        current = self._begun if self._due is None else self._due
        if current is not None:
            self.averagings = (self._of_fragments[current],)

    def after_update(self, decision: Decision, scale: float, groups: TwoLevel | None) -> None:
        if self._begun is not None:
            self._remaining_steps -= 1
            if not self._remaining_steps:
                self.finish()
        if decision is not Decision.SYNC or self._due is None:
            return
        self._of_fragments[self._due].begin(keep=False)
        self._begun, self._remaining_steps = self._due, self.delay
        if not self.delay:
            self.finish()

    def finish(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._of_fragments[begun].merge(self._policy.alpha)

    def state_dict(self) -> dict[str, Any]:
        return {
            "fragments": [averaging.state_dict() for averaging in self._of_fragments],
            "begun": self._begun,
            "remaining_steps": self._remaining_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for averaging, of_one in zip(self._of_fragments, state["fragments"], strict=True):
            averaging.load_state_dict(of_one)
        self._begun, self._remaining_steps = state["begun"], state["remaining_steps"]


class AverageStates(Action):
    """
    DES-LOC (arXiv 2505.22549, Alg. 1): the parameters and each moment of the optimizer are averaged after the update,
    each at a period of its own. Moments are sent in full: half precision has no room for the squares of gradients.
    """

    before_optimizer = False

    def __init__(
        self,
        policy: DESLOC,
        tensors: Sequence[torch.Tensor],
        reducer: BucketReducer,
        differences: bool,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup,
        order: ForwardOrder | None = None,
    ) -> None:
        super().__init__()
        self._policy, self._tensors, self._optimizer, self._group = policy, tensors, optimizer, group
        self._order = order
        self._of_parameters = Averaging(tensors, reducer, differences)
        self._moments = DenseReducer(group)
        #: The moments of this step that the ranks have not compared by size yet, and those that they have.
        self._unchecked: dict[AdamState, list[torch.Tensor]] = {}
        self._checked: set[AdamState] = set()

    @property
    def sent_bytes(self) -> int:
        return self._moments.sent_bytes

    def begin_step(self, step: int) -> None:
        due = self._policy.due_in(step)
        if not due:
            return
        averagings = [self._of_parameters] if AdamState.PARAMETERS in due else []
        for state in sorted(due - {AdamState.PARAMETERS}):
            moments = moment_tensors(self._optimizer, state is AdamState.FIRST_MOMENT)
            if state not in self._checked:
                self._unchecked[state] = moments
            averagings += [Averaging(moments, self._moments)] if moments else []
        self.averagings = averagings

    def after_update(self, decision: Decision, scale: float, groups: TwoLevel | None) -> None:
        self.replicas_averaged = self._of_parameters in self.averagings
        self.identical_tensors = self._tensors if self.replicas_averaged else ()
        for moments in self._unchecked.values():
            check_equal_sizes(moments, self._group)
        self._checked |= self._unchecked.keys()
        self._unchecked = {}
        for averaging in self.averagings:
            if averaging is self._of_parameters and self._order is not None:
                self._order.begin(averaging, scale)
            else:
                averaging.average(scale)
        self.averagings = (self._of_parameters,)  # the moments' buffers are freed

    def state_dict(self) -> dict[str, Any]:
        return {"averaging": self._of_parameters.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._of_parameters.load_state_dict(state["averaging"])


def action_for(
    strategy: Strategy,
    ddp: DistributedDataParallel,
    reducer: BucketReducer,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup,
    order: ForwardOrder | None = None,
) -> Action:
    """
    `reducer` averages over `group` what DDP's own reducer does not, in that `order`. Raises ValueError for a module with too few layers
    for the policy's fragments.
    """
    policy = strategy.policy
    parameters, buffers = trainable_parameters(ddp), floating_buffers(ddp)
    if policy.combines is Combine.ACCUMULATED:
        return AccumulateGradients(parameters, reducer)
    if isinstance(policy, StreamingDiLoCo):
        return StreamFragments(policy, _fragments(ddp, parameters, policy.fragments), buffers, reducer)
    if isinstance(policy, DESLOC):
        is_compressed = strategy.compression is not None
        return AverageStates(policy, [*parameters, *buffers], reducer, is_compressed, optimizer, group, order)
    if policy.combines is Combine.PARAMETERS:
        delay = policy.delay if isinstance(policy, LocalSGD) else 0
        return AverageParameters(parameters, buffers, reducer, strategy, delay, order)
    return AverageGradients(parameters, reducer) if replicas_diverge(policy) else ReduceGradients(parameters)


def _fragments(
    ddp: DistributedDataParallel, parameters: Sequence[torch.Tensor], fragments: int
) -> list[list[torch.Tensor]]:
    names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
    places = fragments_of([names.get(id(each), f"{number}.") for number, each in enumerate(parameters)], fragments)
    return [
        [each for each, place in zip(parameters, places, strict=True) if place == number] for number in range(fragments)
    ]


def trainable_parameters(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """
    Unlike `ddp.parameters()`, this includes tensor-parallel parameters after the first forward pass, which hides them
    there.
    """
    return [parameter for parameter in ddp._module_parameters if parameter.requires_grad]


def floating_buffers(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """The buffers that are no counts, as batch normalization has them."""
    return [buffer for buffer in ddp.buffers() if local_shard(buffer).is_floating_point()]


def replica_tensors(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """The trainable parameters, and the buffers that are no counts."""
    return trainable_parameters(ddp) + floating_buffers(ddp)


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
