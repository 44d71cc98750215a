"""What a policy does to a job's replicas, computed from the papers in one process without a collective, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Make = Callable[[], nn.Module]
Optimize = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(6, 3).double()


def normalized() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)).double()


def plain(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def batch(rank: int, step: int) -> torch.Tensor:
    """Different on each rank; every seventh is of another size, which changes the gradients."""
    drawn = torch.Generator().manual_seed(1_000 * rank + step)
    return torch.randn(8, 6, generator=drawn, dtype=torch.float64) * (4 if step % 7 == 6 else 1)


def loss_of(module: nn.Module, rank: int, step: int) -> Any:
    """A tensor, whose backward torch does not type."""
    return (module(batch(rank, step)) - rank).square().mean()


class Alone:
    """All ranks of a job, one after the other."""

    def __init__(self, make: Make, optimize: Optimize, ranks: int) -> None:
        self.modules = [make() for _ in range(ranks)]
        self.optimizers = [optimize(list(module.parameters())) for module in self.modules]

    def backward(self, step: int, keep: bool = False) -> list[float]:
        """The squared norms of the gradients, by rank."""
        for rank, (module, optimizer) in enumerate(zip(self.modules, self.optimizers, strict=True)):
            if not keep:
                optimizer.zero_grad()
            loss_of(module, rank, step).backward()
        return [
            sum(float(p.grad.square().sum()) for p in module.parameters() if p.grad is not None)
            for module in self.modules
        ]

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def replica(self, rank: int) -> list[torch.Tensor]:
        module = self.modules[rank]
        return [tensor.detach() for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point()]

    def copies(self) -> list[list[torch.Tensor]]:
        return [[tensor.clone() for tensor in self.replica(rank)] for rank in range(len(self.modules))]

    def average(self, weights: Sequence[float] | None = None) -> None:
        for tensors in zip(*map(self.replica, range(len(self.modules))), strict=True):
            mean = weighted(tensors, weights)
            for tensor in tensors:
                tensor.copy_(mean)

    def add_means(self, was: Sequence[Sequence[torch.Tensor]]) -> None:
        """The end of an averaging that began with these replicas."""
        for rank, mine in enumerate(was):
            for tensor, before, *everybodys in zip(self.replica(rank), mine, *was, strict=True):
                tensor.add_(weighted(everybodys) - before)

    def average_gradients(self, by: float = 1) -> None:
        for parameters in zip(*(module.parameters() for module in self.modules), strict=True):
            mean = weighted([p.grad for p in parameters if p.grad is not None]) / by
            for parameter in parameters:
                parameter.grad = mean.clone()


def weighted(tensors: Sequence[torch.Tensor], weights: Sequence[float] | None = None) -> torch.Tensor:
    shares = weights or [1 / len(tensors)] * len(tensors)
    return torch.stack([tensor * share for tensor, share in zip(tensors, shares, strict=True)]).sum(0)


def bsp(alone: Alone, steps: int, first: int = 0) -> None:
    for step in range(first, steps):
        alone.backward(step)
        alone.average_gradients()
        alone.update()


def accumulated(alone: Alone, steps: int, k: int) -> None:
    """One update of the mean over `k` batches of each rank."""
    for step in range(steps):
        alone.backward(step, keep=step % k != 0)
        if step % k == k - 1:
            alone.average_gradients(by=k)
            alone.update()


def averaged(
    alone: Alone,
    steps: int,
    when: Callable[[int], bool],
    delay: int = 0,
    weights: Callable[[int], Sequence[float] | None] = lambda rounds: None,
) -> None:
    """Averages parameters in the given steps; with a delay, what each rank did meanwhile is added to the mean."""
    begun: dict[int, list[list[torch.Tensor]]] = {}
    rounds = 0
    for step in range(steps):
        alone.backward(step)
        alone.update()
        if step in begun:
            alone.add_means(begun.pop(step))
        if when(step):
            if delay:
                begun[step + delay] = alone.copies()
            else:
                alone.average(weights(rounds))
            rounds += 1


def selected(
    alone: Alone,
    steps: int,
    flag: Callable[[int, float], bool],
    late: int,
    aggregate: str = "parameters",
) -> list[int]:
    """SelSync, Alg. 1 of the paper, with votes that count `late` steps later. `flag`: a rank's vote by its squared norm. Returns the steps that synchronized."""
    flags: list[bool] = []
    synced = []
    for step in range(steps):
        norms = alone.backward(step)
        flags.append(max([flag(rank, norm) for rank, norm in enumerate(norms)]))
        due = step >= late and flags[step - late]
        if due and aggregate == "gradients":
            alone.average_gradients()
        alone.update()
        if due and aggregate == "parameters":
            alone.average()
        synced += [step] if due else []
    return synced


class PaperFlag:
    """Eq. 2: the relative change of the mean squared norm, over 25 steps with N/100."""

    def __init__(self, ranks: int, delta: float) -> None:
        self.factor, self.delta = 1 - ranks / 100, delta
        self.norms: list[list[float]] = [[] for _ in range(ranks)]

    def __call__(self, rank: int, square_norm: float) -> bool:
        norms = self.norms[rank]
        norms.append(square_norm)
        if len(norms) == 1:
            return self.delta == 0
        return abs(self._mean(norms) - self._mean(norms[:-1])) / self._mean(norms[:-1]) >= self.delta

    def _mean(self, norms: Sequence[float]) -> float:
        newest = norms[:-26:-1]
        weights = [self.factor**age for age in range(len(newest))]
        return sum(w * norm for w, norm in zip(weights, newest, strict=True)) / sum(weights)
