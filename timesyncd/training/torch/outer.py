"""The outer optimizer of DiLoCo and of the other policies that average parameters: SGD with Nesterov momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from timesyncd.training.policy.low_communication import Outer


class OuterOptimizer:
    """
    The steps of an outer optimizer over the common parameters, in chunks that are known by their numbers.

    DiLoCo (arXiv 2311.08105, Alg. 1, line 14) with Nesterov momentum as `torch.optim.SGD(nesterov=True)` has it: with
    the outer gradient Δ, b <- momentum b + Δ, and the parameters change by -lr (Δ + momentum b). Every rank computes the
    same step from the same mean. The momentum is kept in float32 at least.
    """

    def __init__(self, settings: Outer) -> None:
        self._settings = settings
        self._momenta: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def step(self, number: int, difference: torch.Tensor) -> torch.Tensor:
        """
        The change of the common parameters of this chunk. `difference`: the mean over the ranks of their parameters less
        the common ones, which is -Δ.
        """
        wide = difference.to(torch.promote_types(difference.dtype, torch.float32))
        if number not in self._momenta:
            self._momenta[number] = torch.zeros_like(wide)
        momentum = self._momenta[number].mul_(self._settings.momentum).add_(wide)
        return wide.add(momentum, alpha=self._settings.momentum).mul_(self._settings.lr)

    def state_dict(self) -> dict[int, torch.Tensor]:
        return {number: momentum.clone() for number, momentum in self._momenta.items()}

    def load_state_dict(self, state: Mapping[int, Any]) -> None:
        self._momenta = {number: momentum.clone() for number, momentum in state.items()}
