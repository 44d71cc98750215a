"""Which part of a global batch a rank computes, and the weight of its loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from timesyncd.training.policy.policies import Combine
from timesyncd.training.policy.row import Row
from timesyncd.training.policy.shares import Balancer, batch_sizes, loss_weight
from timesyncd.training.policy.text import Strategy


class Batches:
    """
    Deals each global batch to the ranks: in equal parts, or (`is_balanced`) by their measured speeds.

    In each step every rank calls `part` with the size of the same global batch, computes the samples of that slice, and
    calls `weigh` with the mean loss of them. The mean of the ranks' gradients then is the gradient of the mean loss of
    the whole batch, whatever the parts are. `replicas`: the ranks of the data-parallel group; `ranks`: number of all.
    Raises ValueError where parts by speed would divide ranks that hold one replica together.
    """

    def __init__(self, place: int, replicas: Sequence[int], is_balanced: bool, ranks: int) -> None:
        if is_balanced and len(replicas) != ranks:
            raise ValueError("balance deals batches to data-parallel ranks; this job has ranks of other kinds too")
        self._place, self._replicas = place, replicas
        self._balancer = Balancer(len(replicas)) if is_balanced else None
        self._averages_parameters = False
        self._sizes: tuple[int, ...] | None = None

    @property
    def shares(self) -> tuple[float, ...]:
        """
        By rank of the data-parallel group, its share of a global batch; equal under a policy that averages parameters,
        where a rank's own updates would count less with a smaller part.
        """
        if self._balancer is None or self._averages_parameters:
            return (1 / len(self._replicas),) * len(self._replicas)
        return self._balancer.shares

    def part(self, batch: int) -> slice:
        """This rank's samples of a global batch of this size. Raises ValueError for fewer samples than ranks."""
        self._sizes = batch_sizes(self.shares, batch)
        begin = sum(self._sizes[: self._place])
        return slice(begin, begin + self._sizes[self._place])

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """
        The mean loss of this rank's samples, times the weight of their number. Raises ValueError where `part` was not
        called before.
        """
        if self._sizes is None:
            raise ValueError("call batches.part(size of the global batch) before batches.weigh(loss)")
        return loss * loss_weight(self._sizes, self._place)

    def begin_strategy(self, strategy: Strategy) -> None:
        self._averages_parameters = strategy.policy.combines is Combine.PARAMETERS

    def measure(self, rows: Sequence[Row], step: int) -> None:
        """By the rows of all ranks that count in this step."""
        if self._balancer is not None and not self._averages_parameters:
            self._balancer.measure([rows[rank].compute_ns for rank in self._replicas], rows[0].step, step)

    def state_dict(self) -> dict[str, Any] | None:
        return None if self._balancer is None else self._balancer.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        if self._balancer is not None and state is not None:
            self._balancer.load_state_dict(state)
