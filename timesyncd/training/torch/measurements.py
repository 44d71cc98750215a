"""
What a rank measures of its own steps, between two rows: computing, waiting, transfers, and the loss around synchronizations.

How different the data of the ranks is, told from the gradients that DDP reduces anyway.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch._C._distributed_c10d import GradBucket


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Since the last time it was asked; the fields are those of a Row."""

    compute_ns: int
    wait_ns: int
    transfer_ns: int | None
    loss: float
    jump: float


class StepTimer:
    """
    A step is between two ends of `after_update`. What of it is not waiting is computing, the reading of data included; the median of some steps leaves
    out an evaluation now and then.
    """

    def __init__(self) -> None:
        self._began_ns = time.monotonic_ns()
        self._waited_ns = 0
        self._computing: list[int] = []
        self._waiting: list[int] = []
        self._transfers: list[int] = []
        self._losses: list[tuple[int, torch.Tensor, bool]] = []
        self._told_before = 0
        self._step = 0
        self._is_common = True
        self._is_forward = False
        self._former = -1, False

    def waited(self, duration_ns: int) -> None:
        """In this step, for a synchronization."""
        self._waited_ns += max(0, duration_ns)

    def transferred(self, duration_ns: int) -> None:
        """One synchronization, from its begin to its end."""
        self._transfers.append(duration_ns)

    def saw(self, loss: torch.Tensor | float) -> None:
        """Of the newest forward pass, whose step may be over. Not read before it is asked for: a device is not waited for."""
        step, is_common = (self._step, self._is_common) if self._is_forward else self._former
        self._losses.append((step, torch.as_tensor(loss).detach(), is_common))

    def forward(self) -> None:
        """The step's forward pass begins."""
        self._is_forward = True

    def ended(self, is_common: bool) -> None:
        """The step is over; the next one begins with parameters that all ranks have in common, or not."""
        now_ns = time.monotonic_ns()
        self._computing.append(now_ns - self._began_ns - self._waited_ns)
        self._waiting.append(self._waited_ns)
        self._former = self._step, self._is_common
        self._began_ns, self._waited_ns, self._is_common, self._is_forward = now_ns, 0, is_common, False
        self._step += 1

    def told(self) -> StepSummary:
        losses = [(step, float(loss), is_common) for step, loss, is_common in self._losses]
        told = StepSummary(
            compute_ns=int(statistics.median(self._computing)) if self._computing else 0,
            wait_ns=sum(self._waiting) // max(1, len(self._waiting)),
            transfer_ns=min(self._transfers, default=None),
            loss=_mean([loss for _, loss, is_common in losses[self._told_before :] if is_common]),
            jump=_jump(losses),
        )
        for kept in (self._computing, self._waiting, self._transfers):
            kept.clear()
        # The last one is what the next row's first is compared with; it counts once.
        self._losses = self._losses[-1:]
        self._told_before = len(self._losses)
        return told


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _jump(losses: Sequence[tuple[int, float, bool]]) -> float:
    """From the step before an averaging to the one after it; NaN where neither is known. Parameters that were common before tell nothing."""
    pairs = [
        (before, after)
        for (step, before, was_common), (later, after, is_common) in pairwise(losses)
        if is_common and not was_common and later == step + 1
    ]
    before, after = math.fsum(pair[0] for pair in pairs), math.fsum(pair[1] for pair in pairs)
    return (after - before) / before if pairs and before > 0 else math.nan


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
