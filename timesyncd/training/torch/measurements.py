"""
What a rank measures of its own steps, from one row to the next: computing, waiting, transfers, the loss around
averagings; and, from the gradients that DDP reduces anyway, how different the data of the ranks is.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket

from timesyncd.client.torch.stamps import HostTimes, Times
from timesyncd.training.torch.averaging import Span

#: Steps and transfers that wait for the device. A device is never so far behind: its queue holds about a thousand kernels.
_KEPT_STEPS = 256


class SpanSum:
    """The sum of spans of a device's time, of those that it has reached the end of."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._spans: deque[Span] = deque()
        self._ns = 0

    def add(self, begin: Any, end: Any) -> None:
        self._spans.append((begin, end))
        self.known_ns()

    def known_ns(self) -> int:
        while self._spans and (took_ns := self._times.elapsed_ns(*self._spans[0])) is not None:
            self._spans.popleft()
            self._ns += took_ns
        return self._ns


@dataclass(frozen=True, slots=True)
class StepSummary:
    """
    The measurements since the last summary; the fields are those of `Row`. `unfit_ago`: how many steps ago the first
    loss was that is not finite; None: there was none. `losses`: of each step that began with common parameters, how many
    steps ago it was, and its loss.
    """

    compute_ns: int
    wait_ns: int
    transfer_ns: int | None
    loss: float
    jump: float
    unfit_ago: int | None
    validation: float = math.nan
    losses: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class _TimedStep:
    """Moments of the device: begin, end, and the spans of waiting between them."""

    begin: Any
    waits: list[Span]
    end: Any = None

    def durations_ns(self, times: Times) -> tuple[int, int] | None:
        """Of the whole step and of its waiting; None: the device has not reached its end yet."""
        whole_ns = times.elapsed_ns(self.begin, self.end)
        waits_ns = [times.elapsed_ns(*wait) for wait in self.waits]
        if whole_ns is None or None in waits_ns:
            return None
        return whole_ns, sum(max(0, wait_ns or 0) for wait_ns in waits_ns)


class StepTimer:
    """
    Times the steps of one rank. A step lasts from one call of `end_step` to the next. What is not waiting counts as
    computing, including the reading of data; the median over some steps excludes an occasional evaluation.

    `times`: of the device that trains. A step that it has not reached when a summary is made counts in a later one.
    """

    def __init__(self, times: Times | None = None) -> None:
        self.times: Times = times or HostTimes()
        self._open = _TimedStep(self.times.now(), [])
        self._ended: deque[_TimedStep] = deque(maxlen=_KEPT_STEPS)
        self._spans: deque[Span] = deque(maxlen=_KEPT_STEPS)
        self._losses: list[tuple[int, torch.Tensor | float, bool]] = []
        self._validation = math.nan
        self._reported = 0  #: number of losses that an earlier summary contained
        self._step = 0
        self._is_common = True
        self._is_forward = False
        self._former = -1, False

    def add_wait(self, begin: Any, end: Any) -> None:
        """This step waited for a synchronization between these moments."""
        self._open.waits.append((begin, end))

    def add_wait_since(self, ready: Any) -> None:
        """
        From this rank's own last gradient, a moment or CLOCK_REALTIME ns, to now, where its stream waits for the reduced
        ones. None: the moment is unknown.
        """
        now = self.times.now()
        if isinstance(ready, int):
            self.add_wait(now - max(0, time.time_ns() - ready), now)
        elif ready is not None:
            self.add_wait(ready, now)

    def add_transfer(self, begin: Any, end: Any) -> None:
        """A synchronization took from the one moment to the other."""
        self._spans.append((begin, end))

    def record_loss(self, loss: torch.Tensor | float) -> None:
        """
        The loss of the newest forward pass, whose step may have ended. Its value is read at the next summary, so no
        device is waited for here.
        """
        step, is_common = (self._step, self._is_common) if self._is_forward else self._former
        self._losses.append((step, torch.as_tensor(loss).detach(), is_common))

    def record_validation(self, loss: torch.Tensor | float) -> None:
        """The newest loss on held-out data, for the next summary. An evaluation has waited for its value already."""
        self._validation = float(loss)

    def begin_forward(self) -> None:
        self._is_forward = True

    def end_step(self, is_common: bool) -> None:
        """`is_common`: the next step begins with parameters that are equal on all ranks."""
        now = self.times.now()
        self._open.end = now
        self._ended.append(self._open)
        self._open = _TimedStep(now, [])
        self._former = self._step, self._is_common
        self._is_common, self._is_forward = is_common, False
        self._step += 1

    @property
    def unread(self) -> list[torch.Tensor]:
        """The losses whose values the next summary needs."""
        return [loss for _, loss, _ in self._losses if isinstance(loss, torch.Tensor)]

    def summarize(self, values: Sequence[float]) -> StepSummary:
        """The measurements since the last call. `values`: those of `unread`."""
        known = iter(values)
        losses = [
            (step, next(known) if isinstance(loss, torch.Tensor) else loss, is_common)
            for step, loss, is_common in self._losses
        ]
        common = [(step, loss) for step, loss, is_common in losses[self._reported :] if is_common]
        durations_ns = [found for found in self._reached() if found is not None]
        summary = StepSummary(
            compute_ns=int(statistics.median(whole - waited for whole, waited in durations_ns)) if durations_ns else 0,
            wait_ns=sum(waited for _, waited in durations_ns) // max(1, len(durations_ns)),
            transfer_ns=min(self._transfers_ns(), default=None),
            loss=_mean([loss for _, loss in common]),
            jump=_jump(losses),
            unfit_ago=next((self._step - step for step, loss, _ in losses if not math.isfinite(loss)), None),
            validation=self._validation,
            losses=tuple((self._step - step, loss) for step, loss in common),
        )
        self._validation = math.nan
        # The first loss of the next summary is compared with this one, which counts once.
        self._losses = list(losses[-1:])
        self._reported = len(self._losses)
        return summary

    def _reached(self) -> Iterator[tuple[int, int] | None]:
        while self._ended and (found := self._ended[0].durations_ns(self.times)) is not None:
            self._ended.popleft()
            yield found

    def _transfers_ns(self) -> Iterator[int]:
        while self._spans and (found := self.times.elapsed_ns(*self._spans[0])) is not None:
            self._spans.popleft()
            yield found


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
        self._products: list[torch.Tensor] = []
        self._squares: list[torch.Tensor] = []

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
            products = torch.stack([torch.dot(now, former) for (now, _), (former, _) in pairs])
            squares = [torch.stack([both[of][1].square().sum() for both in pairs]).double().sum() for of in (0, 1)]
            self._products.append(products.double().sum())
            self._squares.append((squares[0] * squares[1]).sqrt())
        self._former, self._now = self._now, {}

    @property
    def unread(self) -> list[torch.Tensor]:
        """What `value` needs the values of, on the device."""
        return [*self._products, *self._squares]

    def value(self, values: Sequence[float]) -> float:
        """NaN: unknown. `values`: those of `unread`."""
        products, squares = values[: len(values) // 2], values[len(values) // 2 :]
        square = math.fsum(squares)
        return math.fsum(products) / square if square > 0 else math.nan


def _sampled(gradient: torch.Tensor) -> torch.Tensor:
    """At most SAMPLED elements and a remainder, as a copy in single precision."""
    flat = gradient.detach().flatten()
    return flat[:: max(1, flat.numel() // SAMPLED)].float().clone()
