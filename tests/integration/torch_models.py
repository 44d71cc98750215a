"""The modules that the ranks of a test train, and how."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

#: Four layers, each a bucket of its own: the first to be ready is the last layer's.
SIZES = (8, 32, 32, 32, 4)
ONE_LAYER_A_BUCKET = 1e-3


def network(layer: Callable[[int, int], nn.Module] = nn.Linear) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(layer(a, b) for a, b in itertools.pairwise(SIZES)))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, set_to_none: bool = True) -> None:
    """Different data on each rank, the same at each call."""
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(torch.randn(16, 8, generator=data)).square().mean().backward()
        optimizer.step()


def parameters(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(map(torch.equal, parameters(a), parameters(b)))


class Unused(nn.Module):
    """A layer that takes no part, on a rank of its own choice in odd steps."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.sometimes, self.never = network(), nn.Linear(8, 4), nn.Linear(8, 4)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        output = self.used(inputs)
        if self.calls % 2 and dist.get_rank() == 0:
            output = output + self.sometimes(inputs)
        return output  # type: ignore[no-any-return]


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.rest = nn.Embedding(50, 8, sparse=True), network()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.rest(self.table((inputs.abs().sum(1) * 3).long() % 50))  # type: ignore[no-any-return]


VARIANTS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "plain": (network, {}),
    "bucket view": (network, {"gradient_as_bucket_view": True}),
    "batched copy": (network, {"batched_grad_copy": True}),
    "static graph": (network, {"static_graph": True}),
    "unused": (Unused, {"find_unused_parameters": True}),
    "sparse": (Sparse, {}),
}


class Slow(nn.Linear):
    """A layer whose backward takes longer on rank 1."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output = super().forward(input)
        if dist.get_rank() == 1 and output.requires_grad:
            output.register_hook(lambda grad: time.sleep(0.05))  # type: ignore[no-untyped-call]
        return output
