"""A simple world whose ranks produce the measurements for the controller of `auto`."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from timesyncd.training.policy.auto import Choice, Controller
from timesyncd.training.policy.encoding import cost
from timesyncd.training.policy.low_communication import DESLOC, DiLoCo, StreamingDiLoCo
from timesyncd.training.policy.policies import LocalSGD, Policy
from timesyncd.training.policy.row import Row
from timesyncd.training.policy.schedule import MAX_STEPS_BETWEEN_ROWS, MIN_STEPS_BETWEEN_ROWS
from timesyncd.training.policy.text import TopK, parse_policy

MS = 1_000_000


def interval_of(policy: Policy) -> int:
    """Between two averagings of parameters; 1: of gradients."""
    if isinstance(policy, LocalSGD | DiLoCo | StreamingDiLoCo):
        return policy.h
    return policy.kx if isinstance(policy, DESLOC) else 1


@dataclass
class World:
    """
    A job whose steps compute for `compute_ms`, and whose averagings take `ratio` steps.

    `drift`: relative jump of the loss at an averaging. `noise`: relative standard deviation of all measurements. `apart`: dissimilarity of the gradients;
    NaN: unknown. `slowed`: factor on the computing of BSP's steps, beside their transfers. `choosing`: number of steps that choosing the largest
    elements takes in addition.
    """

    ratio: float
    drift: float = -0.03
    noise: float = 0.0
    compute_ms: float = 8.0
    ranks: int = 4
    loss: float = 2.0
    reports_loss: bool = True
    apart: float = math.nan
    slowed: float = 1.0
    choosing: float = 0.5
    rate: float = math.nan
    is_adaptive: bool = False
    validation: float = math.nan

    def __post_init__(self) -> None:
        self.controller = Controller(self.rate, self.is_adaptive)
        self.random = random.Random(1)
        self.text = "auto"
        self.changes: list[tuple[int, Choice]] = []
        self.step = 0

    def _noisy(self, value: float) -> float:
        return value * math.exp(self.noise * self.random.gauss(0, 1))

    def rows(self) -> list[Row]:
        strategy = parse_policy(self.text)
        policy = strategy.policy
        is_top = isinstance(strategy.compression, TopK)
        sent = cost(0.01, self.ranks) if is_top else 1 if strategy.compression is None else 0.5
        transfer = self.ratio * self.compute_ms * sent
        h, delay = interval_of(policy), getattr(policy, "delay", 0)
        slowed = 1.0 if h > 1 else self.slowed + self.choosing * is_top
        waited = max(0.0, transfer - delay * self.compute_ms) / h
        if isinstance(policy, DESLOC):  # the moments are sent in full
            waited += self.ratio * self.compute_ms * (1 / 3 + 1 / 6) / h
        return [
            Row(
                step=self.step,
                compute_ns=int(self._noisy(self.compute_ms * slowed) * MS),
                wait_ns=int(self._noisy(waited) * MS),
                transfer_ns=int(self._noisy(transfer) * MS) if h > 1 else None,
                loss=self._noisy(self.loss) if self.reports_loss else math.nan,
                # In the background the averaged replicas are some steps old: their loss rises in any case.
                jump=self.drift + self.noise * self.random.gauss(0, 0.3) + 0.2 * (delay > 0) if h > 1 else math.nan,
                dissimilarity=self.apart,
                rate=self.rate,
                validation=self.validation,
            )
            for _ in range(self.ranks)
        ]

    def run(self, steps: int, loss_factor: float = 0.99) -> World:
        """The loss changes by the factor in eight steps."""
        until = self.step + steps
        while self.step < until:
            choice = self.controller.update(self.rows())
            if choice is not None:
                self.changes.append((self.step, choice))
                self.text = choice.text
            passed = self.to_next_rows()
            self.step += passed
            self.loss *= loss_factor ** (passed / 8)
        return self

    def to_next_rows(self) -> int:
        """Number of steps to the next rows, which are exchanged in steps that synchronize."""
        h = interval_of(parse_policy(self.text).policy)
        return min(MAX_STEPS_BETWEEN_ROWS, h * math.ceil(MIN_STEPS_BETWEEN_ROWS / h))
