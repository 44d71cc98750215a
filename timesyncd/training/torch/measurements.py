"""
What a rank measures of its own steps, from one row to the next: computing, waiting, transfers, the loss around
averagings; and, from the gradients that DDP reduces anyway, how different the data of the ranks is.
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
    """The measurements since the last summary; the fields are those of `schedule.Row`."""

    compute_ns: int
    wait_ns: int
    transfer_ns: int | None
    loss: float
    jump: float


class StepTimer:
    """
    Times the steps of one rank. A step lasts from one call of `end_step` to the next. What is not waiting counts as
    computing, including the reading of data; the median over some steps excludes an occasional evaluation.
    """

    def __init__(self) -> None:
        self._began_ns = time.monotonic_ns()
        self._waited_ns = 0
        self._computing: list[int] = []
        self._waiting: list[int] = []
        self._transfers: list[int] = []
        self._losses: list[tuple[int, torch.Tensor, bool]] = []
        self._reported = 0  #: number of losses that an earlier summary contained
        self._step = 0
        self._is_common = True
        self._is_forward = False
        self._former = -1, False

    def add_wait(self, duration_ns: int) -> None:
        """This step waited so long for a synchronization."""
        self._waited_ns += max(0, duration_ns)

    def add_transfer(self, duration_ns: int) -> None:
        """A synchronization took so long, from its begin to its end."""
        self._transfers.append(duration_ns)

    def record_loss(self, loss: torch.Tensor | float) -> None:
        """
        The loss of the newest forward pass, whose step may have ended. Its value is read at the next summary, so no
        device is waited for here.
        """
        step, is_common = (self._step, self._is_common) if self._is_forward else self._former
        self._losses.append((step, torch.as_tensor(loss).detach(), is_common))

    def begin_forward(self) -> None:
        self._is_forward = True

    def end_step(self, is_common: bool) -> None:
        """`is_common`: the next step begins with parameters that are equal on all ranks."""
        now_ns = time.monotonic_ns()
        self._computing.append(now_ns - self._began_ns - self._waited_ns)
        self._waiting.append(self._waited_ns)
        self._former = self._step, self._is_common
        self._began_ns, self._waited_ns, self._is_common, self._is_forward = now_ns, 0, is_common, False
        self._step += 1

    def summarize(self) -> StepSummary:
        """The measurements since the last call."""
        losses = [(step, float(loss), is_common) for step, loss, is_common in self._losses]
        summary = StepSummary(
            compute_ns=int(statistics.median(self._computing)) if self._computing else 0,
            wait_ns=sum(self._waiting) // max(1, len(self._waiting)),
            transfer_ns=min(self._transfers, default=None),
            loss=_mean([loss for _, loss, is_common in losses[self._reported :] if is_common]),
            jump=_jump(losses),
        )
        for values in (self._computing, self._waiting, self._transfers):
            values.clear()
        # The first loss of the next summary is compared with this one, which counts once.
        self._losses = self._losses[-1:]
        self._reported = len(self._losses)
        return summary


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _jump(losses: Sequence[tuple[int, float, bool]]) -> float:
    """
    The relative rise of the loss from the step before an averaging to the step after it; NaN where no such pair is
    known. Where the parameters were common before too, there was no averaging to measure.
    """
    pairs = [
        (before, after)
        for (step, before, was_common), (later, after, is_common) in pairwise(losses)
        if is_common and not was_common and later == step + 1
    ]
    before, after = math.fsum(pair[0] for pair in pairs), math.fsum(pair[1] for pair in pairs)
    return (after - before) / before if pairs and before > 0 else math.nan


#: Number of elements of each gradient that are compared at most, and number of pairs of steps.
SAMPLED, PAIRS = 4096, 3


class Dissimilarity:
    """
    Measures how far this rank's expected gradient is from the mean of all ranks', squared, as a multiple of the mean's
    square.

    It takes the scalar product of the gradient's deviations from the mean in two successive steps. Each step has a new
    batch, so noise cancels out, and what this rank's data contributes in every step remains. The estimate is unbiased,
    except for what one update changed.
    """

    def __init__(self) -> None:
        self._now: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._former: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._products: list[float] = []
        self._squares: list[float] = []

    def observe(self, bucket: GradBucket) -> Callable[[], None] | None:
        """
        Call it before the bucket is reduced, and call what it returns when the gradients are replaced by their mean.
        """
        if len(self._products) >= PAIRS or bucket.buffer().is_sparse:
            return None
        keys, gradients = [id(parameter) for parameter in bucket.parameters()], bucket.gradients()
        own = [_sampled(gradient) for gradient in gradients]

        def reduced() -> None:
            for key, mine, gradient in zip(keys, own, gradients, strict=True):
                mean = _sampled(gradient)
                self._now[key] = mine - mean, mean

        return reduced

    def end_backward(self) -> None:
        pairs = [(self._now[key], self._former[key]) for key in self._now.keys() & self._former.keys()]
        if pairs:
            self._products.append(math.fsum(float(torch.dot(now, former)) for (now, _), (former, _) in pairs))
            squares = [math.fsum(float(both[of][1].square().sum()) for both in pairs) for of in (0, 1)]
            self._squares.append(math.sqrt(squares[0] * squares[1]))
        self._former, self._now = self._now, {}

    def value(self) -> float:
        """NaN: unknown."""
        square = math.fsum(self._squares)
        return math.fsum(self._products) / square if square > 0 else math.nan


def _sampled(gradient: torch.Tensor) -> torch.Tensor:
    """At most SAMPLED elements and a remainder, as a copy in single precision."""
    flat = gradient.detach().flatten()
    return flat[:: max(1, flat.numel() // SAMPLED)].float().clone()
