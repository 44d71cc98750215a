"""DiLoCo, Streaming DiLoCo and DES-LOC from their papers, in one process without a collective, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from policy_alone import Alone, weighted
from torch import nn


def mixed() -> nn.Module:
    """Three blocks with parameters, and batch statistics. No parameter's gradient is rounding alone, which Adam would make large."""
    torch.manual_seed(3)
    return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def outer_averaged(
    alone: Alone,
    steps: int,
    when: Callable[[int], bool],
    settings: tuple[float, float],
    weights: Callable[[int], Sequence[float] | None] = lambda rounds: None,
) -> None:
    """DiLoCo, Alg. 1: torch's SGD with Nesterov momentum steps the common parameters by the mean difference. Buffers have their mean."""
    common = CommonParameters(alone, range(parameter_count(alone)), settings)
    rounds = 0
    for step in range(steps):
        alone.backward(step)
        alone.update()
        if when(step):
            shares, rounds = weights(rounds), rounds + 1
            common.step(alone.copies(), shares)
            common.copy_to(alone, 0)
            average_buffers(alone, alone.copies(), 0, shares)


def streamed(alone: Alone, steps: int, h: int, fragments: Sequence[Sequence[int]], delay: int, alpha: float) -> None:
    """Streaming DiLoCo, Alg. 2. `fragments`: the places of the parameters of each."""
    commons = [CommonParameters(alone, places, (0.7, 0.9)) for places in fragments]
    offsets = [h * (number + 1) // len(fragments) for number in range(len(fragments))]
    sent: dict[int, tuple[int, list[list[torch.Tensor]]]] = {}
    for step in range(steps):
        alone.backward(step)
        alone.update()
        for number, offset in enumerate(offsets):
            if (step + 1 - offset) % h == 0:
                sent[step + delay] = number, alone.copies()
        if step in sent:
            number, was = sent.pop(step)
            commons[number].step(was)
            commons[number].copy_to(alone, alpha)
            if number == 0:
                average_buffers(alone, was, alpha)


def desynced(alone: Alone, steps: int, kx: int, ku: int, kv: int) -> None:
    """DES-LOC, Alg. 1, with AdamW: parameters and buffers, first and second moments, each at its period."""
    for step in range(steps):
        alone.backward(step)
        alone.update()
        if (step + 1) % kx == 0:
            alone.average()
        for name, period in (("exp_avg", ku), ("exp_avg_sq", kv)):
            if (step + 1) % period == 0:
                average_moments(alone, name)


def average_moments(alone: Alone, name: str) -> None:
    parameters = zip(*(module.parameters() for module in alone.modules), strict=True)
    for of_all in parameters:
        moments = [each.state[own][name] for each, own in zip(alone.optimizers, of_all, strict=True)]
        mean = weighted(moments)
        for moment in moments:
            moment.copy_(mean)


def parameter_count(alone: Alone) -> int:
    return len(list(alone.modules[0].parameters()))


def average_buffers(
    alone: Alone, was: Sequence[Sequence[torch.Tensor]], alpha: float, shares: Sequence[float] | None = None
) -> None:
    for place in range(parameter_count(alone), len(was[0])):
        mean = weighted([own[place] for own in was], shares)
        for rank in range(len(was)):
            buffer = alone.replica(rank)[place]
            buffer.copy_(alpha * buffer + (1 - alpha) * mean)


class CommonParameters:
    """What all ranks have in common of some parameters, and the optimizer that steps it."""

    def __init__(self, alone: Alone, places: Sequence[int], settings: tuple[float, float]) -> None:
        self.places = places
        self.parameters = [nn.Parameter(alone.replica(0)[place].clone()) for place in places]
        lr, momentum = settings
        self.nesterov = torch.optim.SGD(self.parameters, lr=lr, momentum=momentum, nesterov=momentum > 0)

    def step(self, was: Sequence[Sequence[torch.Tensor]], shares: Sequence[float] | None = None) -> None:
        for parameter, place in zip(self.parameters, self.places, strict=True):
            parameter.grad = parameter.detach() - weighted([own[place] for own in was], shares)
        self.nesterov.step()

    def copy_to(self, alone: Alone, alpha: float) -> None:
        for rank in range(len(alone.modules)):
            for parameter, place in zip(self.parameters, self.places, strict=True):
                own = alone.replica(rank)[place]
                own.copy_(alpha * own + (1 - alpha) * parameter.detach())
