"""How different the data of the ranks is, told from the gradients that DDP reduces anyway."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch._C._distributed_c10d import GradBucket

#: Of each parameter's gradient at most so many numbers are looked at, and so many pairs of steps.
SAMPLED, PAIRS = 4096, 3


class Dissimilarity:
    """
    Of this rank: the scalar product of its gradient's deviations from the mean in two steps, one after the other, as a multiple of the mean
    gradients' square. Batches are drawn anew in each step: what is but noise cancels out, and what its data does to it in every step stays.
    That is the expected deviation squared without bias, but for what one update changed.
    """

    def __init__(self) -> None:
        self._now: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._former: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._products: list[float] = []
        self._squares: list[float] = []

    def watch(self, bucket: GradBucket) -> Callable[[], None] | None:
        """Called before it is reduced; what it returns is to be called when the mean is in the gradients' place."""
        if len(self._products) >= PAIRS or bucket.buffer().is_sparse:
            return None
        keys, gradients = [id(parameter) for parameter in bucket.parameters()], bucket.gradients()
        own = [_sampled(gradient) for gradient in gradients]

        def reduced() -> None:
            for key, mine, gradient in zip(keys, own, gradients, strict=True):
                mean = _sampled(gradient)
                self._now[key] = mine - mean, mean

        return reduced

    def ended(self) -> None:
        """The backward pass is over."""
        pairs = [(self._now[key], self._former[key]) for key in self._now.keys() & self._former.keys()]
        if pairs:
            self._products.append(math.fsum(float(torch.dot(now, former)) for (now, _), (former, _) in pairs))
            squares = [math.fsum(float(both[of][1].square().sum()) for both in pairs) for of in (0, 1)]
            self._squares.append(math.sqrt(squares[0] * squares[1]))
        self._former, self._now = self._now, {}

    def told(self) -> float:
        """NaN: not known, or not yet."""
        square = math.fsum(self._squares)
        return math.fsum(self._products) / square if square > 0 else math.nan


def _sampled(gradient: torch.Tensor) -> torch.Tensor:
    """A copy."""
    flat = gradient.detach().flatten()
    return flat[:: max(1, flat.numel() // SAMPLED)].float().clone()
