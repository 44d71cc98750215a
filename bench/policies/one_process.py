"""
The ranks of a job as replicas in one process, trained step by step by one policy, with the time that an alpha-beta model gives each step.

It computes the gradients of every rank, and averages them or the parameters as the policy says, so the loss curves are those of real ranks but for
rounding. `auto` gets rows made of the model's times and the replicas' losses.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from policies.adam_tasks import AdamTask
from torch import Tensor
from torch.nn import functional

from timesyncd.training.policy.auto import Auto, Controller
from timesyncd.training.policy.low_communication import DESLOC, AdamState, Outer, StreamingDiLoCo, fragments_of
from timesyncd.training.policy.policies import Combine, Decision, LocalSGD
from timesyncd.training.policy.row import Row
from timesyncd.training.policy.schedule import PolicySchedule, must_average_replicas, replicas_diverge
from timesyncd.training.policy.text import Fp16, Strategy, parse_policy
from timesyncd.training.torch.measurements import StepTimer

#: DDP's backward pass hides transfers for this share of a step's computing.
HIDDEN = 0.5


@dataclass(frozen=True)
class LinkModel:
    """The alpha-beta model of Hockney (1994) and a ring: an all-reduce makes 2 (N - 1) messages, one after the other."""

    name: str
    alpha_ms: float
    mbit: float

    def transfer_ms(self, nbytes: float, ranks: int) -> float:
        if nbytes <= 0:
            return 0.0
        return 2 * (ranks - 1) * (self.alpha_ms + 8 * nbytes / ranks / self.mbit / 1e3)

    def hidden_ms(self, nbytes: float, ranks: int, compute_ms: float) -> float:
        """What of DDP's transfer a step waits for: at least its last bucket's messages."""
        least_ms = 2 * (ranks - 1) * self.alpha_ms
        return max(least_ms, self.transfer_ms(nbytes, ranks) - HIDDEN * compute_ms)


class SimulatedTimes:
    """The moments of a clock that the simulation sets."""

    def __init__(self) -> None:
        self.now_ns = 0

    def now(self) -> int:
        return self.now_ns

    def elapsed_ns(self, begin: int, end: int) -> int:
        return end - begin


class Fleet:
    """The replicas, with an optimizer and a source of samples each."""

    def __init__(self, task: AdamTask, ranks: int, seed: int) -> None:
        torch.manual_seed(seed)
        first = task.network()
        self.task, self.ranks = task, ranks
        self.networks = [copy.deepcopy(first) for _ in range(ranks)]
        self.optimizers = [task.optimizer(network) for network in self.networks]
        self._drawn = [torch.Generator().manual_seed(seed * 1_000 + rank) for rank in range(ranks)]
        self._judged = copy.deepcopy(first)

    def tensors(self, rank: int, with_buffers: bool = True) -> list[Tensor]:
        network = self.networks[rank]
        buffers = [each for each in network.buffers() if each.is_floating_point()] if with_buffers else []
        return [each.detach() for each in network.parameters()] + buffers

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.tensors(0))

    def backward(self) -> list[float]:
        """The gradients of every rank; their losses."""
        losses = []
        for network, optimizer, drawn in zip(self.networks, self.optimizers, self._drawn, strict=True):
            inputs, targets = self.task.draw(self.task.batch, drawn)
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(inputs), targets)
            torch.autograd.backward(loss)
            losses.append(loss.item())
        return losses

    def mean_gradients(self, is_half: bool) -> None:
        for of_ranks in zip(*(network.parameters() for network in self.networks), strict=True):
            mean = mean_of([each.grad for each in of_ranks], is_half)
            for each in of_ranks:
                each.grad.copy_(mean)

    def update(self, step: int) -> None:
        for network, optimizer in zip(self.networks, self.optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(network.parameters(), self.task.clip)
            for group in optimizer.param_groups:
                group["lr"] = self.task.rate_at(step)
            optimizer.step()

    def moments(self, name: str) -> list[list[Tensor]]:
        """By rank."""
        return [
            [optimizer.state[each][name] for each in network.parameters()]
            for network, optimizer in zip(self.networks, self.optimizers, strict=True)
        ]

    def broadcast_buffers(self) -> None:
        """As DDP does before a forward pass."""
        for network in self.networks[1:]:
            for mine, first in zip(network.buffers(), self.networks[0].buffers(), strict=True):
                mine.copy_(first)

    def held_out(self) -> float:
        """The loss of the mean of the replicas."""
        with torch.no_grad():
            mine = [*self._judged.parameters(), *(each for each in self._judged.buffers() if each.is_floating_point())]
            for judged, *of_ranks in zip(mine, *(self.tensors(rank) for rank in range(self.ranks)), strict=True):
                judged.copy_(mean_of(of_ranks, False))
        return self.task.held_out(self._judged)


def mean_of(tensors: Sequence[Tensor], is_half: bool) -> Tensor:
    stacked = torch.stack([each.half().float() for each in tensors] if is_half else list(tensors))
    return stacked.mean(0)


@torch.no_grad()
def average(groups: Sequence[Sequence[Tensor]]) -> None:
    """By rank, lists of the same tensors: each becomes the mean."""
    for of_ranks in zip(*groups, strict=True):
        mean = mean_of(of_ranks, False)
        for each in of_ranks:
            each.copy_(mean)


class Carrying:
    """Carries out a strategy that averages parameters, as `timesyncd.training.torch.actions` does."""

    def __init__(self, strategy: Strategy, fleet: Fleet) -> None:
        self.strategy, self._fleet = strategy, fleet
        self._common = [each.clone() for each in fleet.tensors(0)]
        self._momentum = [torch.zeros_like(each) for each in self._common]
        self._count = len(list(fleet.networks[0].parameters()))
        self._begun: tuple[int, list[int], list[list[Tensor]], list[Tensor]] | None = None
        self._fragments: list[list[int]] = []
        if isinstance(strategy.policy, StreamingDiLoCo):
            names = [name for name, _ in fleet.networks[0].named_parameters()]
            places = fragments_of(names, strategy.policy.fragments)
            self._fragments = [
                [number for number, place in enumerate(places) if place == fragment]
                for fragment in range(strategy.policy.fragments)
            ]
            self._fragments[0] += range(self._count, len(self._common))

    def after_update(self, step: int, decision: Decision) -> tuple[list[float], bool]:
        """The octets of what ranks wait for, and whether the replicas became equal."""
        policy = self.strategy.policy
        sent, is_common = [], False
        if self._begun is not None and self._begun[0] == step:
            sent, is_common = self._finish(), isinstance(policy, LocalSGD)
        if decision is not Decision.SYNC:
            return sent, is_common
        if isinstance(policy, DESLOC):
            return self._average_states(policy, step)
        places = list(range(len(self._common)))
        if isinstance(policy, StreamingDiLoCo):
            fragment = policy.fragment_in(step)
            assert fragment is not None
            places = self._fragments[fragment]
        delay = policy.delay if isinstance(policy, LocalSGD | StreamingDiLoCo) else 0
        own = [[self._fleet.tensors(rank)[place].clone() for place in places] for rank in range(self._fleet.ranks)]
        means = [self._mean(place, [tensors[index] for tensors in own]) for index, place in enumerate(places)]
        self._begun = step + delay, places, own, means
        if delay:
            return sent, is_common
        return sent + self._finish(), not isinstance(policy, StreamingDiLoCo)

    @torch.no_grad()
    def _mean(self, place: int, own: Sequence[Tensor]) -> Tensor:
        """The new common tensor: the mean, or a step of the outer optimizer with the mean difference."""
        common = self._common[place]
        difference = mean_of([each - common for each in own], isinstance(self.strategy.compression, Fp16))
        outer = self.strategy.outer_optimizer
        if outer is not None and place < self._count:
            difference = self._outer_step(outer, place, -difference)
        self._common[place] = common + difference
        return self._common[place]

    def _outer_step(self, outer: Outer, place: int, gradient: Tensor) -> Tensor:
        self._momentum[place] = outer.momentum * self._momentum[place] + gradient
        return -outer.lr * (gradient + outer.momentum * self._momentum[place])

    @torch.no_grad()
    def _finish(self) -> list[float]:
        assert self._begun is not None
        _, places, own, means = self._begun
        self._begun = None
        policy = self.strategy.policy
        for rank in range(self._fleet.ranks):
            tensors = self._fleet.tensors(rank)
            for index, place in enumerate(places):
                if isinstance(policy, StreamingDiLoCo):
                    tensors[place].mul_(policy.alpha).add_(means[index], alpha=1 - policy.alpha)
                elif getattr(policy, "delay", 0):
                    tensors[place].add_(means[index] - own[rank][index])
                else:
                    tensors[place].copy_(means[index])
        return [sum(mean.nbytes for mean in means) * self._share]

    @property
    def _share(self) -> float:
        return 0.5 if isinstance(self.strategy.compression, Fp16) else 1.0

    def _average_states(self, policy: DESLOC, step: int) -> tuple[list[float], bool]:
        due, sent = policy.due_in(step), []
        if AdamState.PARAMETERS in due:
            all_of = range(len(self._common))
            own = [[each.clone() for each in self._fleet.tensors(rank)] for rank in range(self._fleet.ranks)]
            means = [self._mean(place, [tensors[place] for tensors in own]) for place in all_of]
            self._begun = step, list(all_of), own, means
            sent += self._finish()
        for state, name in ((AdamState.FIRST_MOMENT, "exp_avg"), (AdamState.SECOND_MOMENT, "exp_avg_sq")):
            if state in due:
                moments = self._fleet.moments(name)
                average(moments)
                sent.append(float(sum(each.nbytes for each in moments[0])))
        return sent, AdamState.PARAMETERS in due


@dataclass(frozen=True)
class Curve:
    """`points`: (step, ms, held-out loss). `changes`: what `auto` chose."""

    points: list[tuple[int, float, float]]
    changes: list[str]


class Training:
    """One run. `validates`: the loop records its held-out loss for `auto`."""

    def __init__(
        self, task: AdamTask, ranks: int, seed: int, text: str, link: LinkModel, validates: bool = False
    ) -> None:
        self.fleet, self._task, self._link, self._validates = Fleet(task, ranks, seed), task, link, validates
        self._schedule = PolicySchedule(parse_policy(text), ranks)
        self._controller = Controller(task.rate_at(0), is_adaptive=True) if text == "auto" else None
        self._times = SimulatedTimes()
        self._timers = [StepTimer(self._times) for _ in range(ranks)]
        self._rows: dict[int, list[Row]] = {}
        self._changes: list[str] = []
        self._begin(self._schedule.strategy)

    def _begin(self, strategy: Strategy) -> None:
        self._schedule.strategy = strategy
        self._carrying = Carrying(strategy, self.fleet) if strategy.policy.combines is Combine.PARAMETERS else None

    def run(self) -> Curve:
        points = []
        for step in range(self._task.steps):
            self.step(step)
            if (step + 1) % self._task.eval_every == 0:
                value = self.fleet.held_out()
                points.append((step + 1, self._times.now_ns / 1e6, value))
                if self._validates:
                    self._record_validation(value)
        return Curve(points, self._changes)

    def _record_validation(self, value: float) -> None:
        if replicas_diverge(self._schedule.strategy.policy):
            self._wait(self._link.transfer_ms(self.fleet.nbytes, self.fleet.ranks))
        self._timers[0].record_validation(value)

    def _wait(self, ms: float) -> None:
        begin = self._times.now()
        self._times.now_ns += round(ms * 1e6)
        for timer in self._timers:
            timer.add_wait(begin, self._times.now())

    def step(self, step: int) -> None:
        schedule, fleet, ranks = self._schedule, self.fleet, self.fleet.ranks
        for timer in self._timers:
            timer.begin_forward()
        if self._carrying is None:
            fleet.broadcast_buffers()
        losses = fleet.backward()
        for timer, loss in zip(self._timers, losses, strict=True):
            timer.record_loss(loss)
        self._times.now_ns += round(self._task.compute_ms * 1e6)
        if self._carrying is None:
            is_half = isinstance(schedule.strategy.compression, Fp16)
            fleet.mean_gradients(is_half)
            nbytes = fleet.nbytes * (0.5 if is_half else 1)
            self._wait(self._link.hidden_ms(nbytes, ranks, self._task.compute_ms))
        if schedule.begin_exchange():
            self._rows[step] = [self._row(rank) for rank in range(ranks)]
        due = [self._rows.pop(each) for each in schedule.take_due()]
        decision = schedule.decide(due)
        fleet.update(step)
        is_common = True
        if self._carrying is not None:
            sent, is_common = self._carrying.after_update(step, decision)
            self._send(sent)
        schedule.next_step(decision)
        for rows in due:
            self._control(rows)
        for timer in self._timers:
            timer.end_step(is_common)

    def _send(self, sent: Sequence[float]) -> None:
        """What is on its way for `delay` steps is waited for as far as these do not cover it."""
        policy = self._schedule.strategy.policy
        delay = policy.delay if isinstance(policy, LocalSGD | StreamingDiLoCo) else 0
        for number, nbytes in enumerate(sent):
            transfer_ms = self._link.transfer_ms(nbytes, self.fleet.ranks)
            begin = self._times.now()
            self._wait(max(0.0, transfer_ms - delay * self._task.compute_ms))
            if number == 0:
                for timer in self._timers:
                    timer.add_transfer(begin, begin + round(transfer_ms * 1e6))

    def _row(self, rank: int) -> Row:
        summary = self._timers[rank].summarize([each.item() for each in self._timers[rank].unread])
        return Row(
            step=self._schedule.step,
            rounds=self._schedule.rounds,
            compute_ns=summary.compute_ns,
            wait_ns=summary.wait_ns,
            transfer_ns=summary.transfer_ns,
            loss=summary.loss,
            jump=summary.jump,
            rate=self._task.rate_at(self._schedule.step),
            dissimilarity=0.0,
            validation=summary.validation,
        )

    def _control(self, rows: list[Row]) -> None:
        if self._controller is None or (choice := self._controller.update(rows)) is None:
            return
        former, chosen = self._schedule.strategy, parse_policy(choice.text)
        if must_average_replicas(former, chosen):
            self._equalize()
        self._changes.append(f"{self._schedule.step}: {choice.text}: {choice.reason}")
        self._begin(chosen)

    def _equalize(self) -> None:
        """Parameters and the optimizer's state, three transfers."""
        fleet = self.fleet
        average([fleet.tensors(rank) for rank in range(fleet.ranks)])
        for name in ("exp_avg", "exp_avg_sq"):
            average(fleet.moments(name))
        self._wait(3 * self._link.transfer_ms(fleet.nbytes, fleet.ranks))


def is_finite(curve: Curve) -> bool:
    return all(math.isfinite(value) for _, _, value in curve.points)


__all__ = ["Auto", "Curve", "Fleet", "LinkModel", "Training", "is_finite"]
