"""
Whether averagings keep the loss up where no held-out loss is recorded: trials of them between stretches of BSP. Pure.

Under BSP the gradients of all ranks are reduced in every step, so each step's loss is that of common parameters. If the
steps of a trial are worth as much as BSP's, the loss after the trial lies on the course of the loss before it. If they
are worth less, it is higher: `measure_lag` finds by how much, with its error, and `judge` decides by all trials.

What that costs: a trial takes a TRIAL_SHARE of the steps so far, and BSP_PER_TRIAL times as many steps of BSP come before
it and after it. So trials take at most a fifth of the steps so far, and a tenth before the next one begins; a step of a
trial is shorter than BSP's. They end where one of two answers is sure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from timesyncd.training.policy.constants import (
    BSP_PER_TRIAL,
    MAX_LOSS_LAG,
    MIN_TRIAL_STEPS,
    SETTLING_STEPS,
    TRIAL_ERROR_RATE,
    TRIAL_SHARE,
)
from timesyncd.training.policy.learning import LearningVerdict, student_quantile

#: The course of the logarithm of the loss over that of the step is a polynomial of this degree, so that a power of the
#: step, a warm-up's end and a cosine's bend are no lag.
_DEGREE = 3

#: Rows on each side of a trial: with fewer there is no usable variance.
_MIN_ROWS = 8

#: The smallest error of a lag: losses are single-precision numbers.
_MIN_ERROR = 1e-5

_INTERVAL_TAIL = 0.025

#: Rows that are kept: with more, two neighbours become one.
_MAX_ROWS = 512

#: The step of a row, and the mean loss of all ranks since the row before.
LossRow = tuple[int, float]


@dataclass(frozen=True, slots=True)
class LossLag:
    """
    By which share the loss will be higher in the long run if a job averages from now on, with its standard error and
    degrees of freedom.

    A loss falls as step^-b. If a step is worth r of BSP's, a trial from step t to t (1 + u) leaves the logarithm of the loss
    b (1 - r) u too high, and a job that goes on so b (1 - r).
    """

    lag: float
    error: float
    freedom: int


def measure_lag(before: Sequence[LossRow], after: Sequence[LossRow], begin: int, end: int) -> LossLag | None:
    """
    By the rows of BSP before and after a trial from step `begin` to step `end`: the jump between them, beside a smooth
    course. None: there are too few rows, or a loss is not above 0.
    """
    rows = [*before, *after]
    if min(len(before), len(after)) < _MIN_ROWS or min(loss for _, loss in rows) <= 0 or not 0 < begin < end:
        return None
    xs = [math.log(step) for step, _ in rows]
    middle, half = (xs[0] + xs[-1]) / 2, (xs[-1] - xs[0]) / 2
    course = _orthonormal([[((x - middle) / half) ** power for x in xs] for power in range(_DEGREE + 1)])
    jump = _without(course, [0.0] * len(before) + [1.0] * len(after))
    losses = _without(course, [math.log(loss) for _, loss in rows])
    size = _product(jump, jump)
    height = _product(jump, losses) / size
    rest = [loss - height * each for loss, each in zip(losses, jump, strict=True)]
    freedom, span = len(rows) - _DEGREE - 2, math.log(end / begin)
    error = math.sqrt(_product(rest, rest) / freedom / size * _inflation(rest))
    return LossLag(height / span, max(_MIN_ERROR, error / span), freedom)


def _product(left: Iterable[float], right: Iterable[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def _without(directions: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    """What of the vector is orthogonal to all of the directions."""
    found = list(vector)
    for direction in directions:
        part = _product(found, direction)
        found = [value - part * of for value, of in zip(found, direction, strict=True)]
    return found


def _orthonormal(vectors: Sequence[Sequence[float]]) -> list[list[float]]:
    found: list[list[float]] = []
    for vector in vectors:
        rest = _without(found, vector)
        length = math.sqrt(_product(rest, rest))
        found.append([value / length for value in rest])
    return found


def _inflation(rest: Sequence[float]) -> float:
    """Of the variance, where neighbours correlate: as a first-order process, with the scatter of that estimate added."""
    square = _product(rest, rest)
    if square == 0:
        return 1.0
    found = _product(rest[:-1], rest[1:]) / square
    assumed = min(0.9, max(0.0, found) + 1 / math.sqrt(len(rest)))
    return (1 + assumed) / (1 - assumed)


@dataclass(frozen=True, slots=True)
class LagVerdict:
    """`lag`, `low`, `high`: of all trials together, with the 95 % interval."""

    verdict: LearningVerdict
    trials: int
    lag: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.trials} trial{'s' * (self.trials > 1)} between steps of BSP: with averagings the loss would in the "
            f"long run be {self.lag:+.1%} ({self.low:+.1%} to {self.high:+.1%}), of which {MAX_LOSS_LAG:.0%} may be"
        )


def judge(lags: Sequence[LossLag]) -> LagVerdict:
    """
    KEEPS_UP or WORSE where that is sure, by the mean of the trials with their errors as weights; else UNDECIDED.

    Where the trials scatter more than their errors, these are larger by that (Birge, Physical Review 40, 1932). Each look
    has half of the error rate of the look before, so that all together stay below it.
    """
    weights = [1 / each.error**2 for each in lags]
    mean = _product(weights, (each.lag for each in lags)) / math.fsum(weights)
    scatter = math.fsum(weight * (each.lag - mean) ** 2 for weight, each in zip(weights, lags, strict=True))
    error = math.sqrt(max(1.0, scatter / max(1, len(lags) - 1)) / math.fsum(weights))
    freedom = sum(each.freedom for each in lags)
    sure = student_quantile(1 - TRIAL_ERROR_RATE / 2 ** len(lags), freedom) * error
    half = student_quantile(1 - _INTERVAL_TAIL, freedom) * error
    verdict = LearningVerdict.UNDECIDED
    if mean + sure < MAX_LOSS_LAG:
        verdict = LearningVerdict.KEEPS_UP
    elif mean - sure > MAX_LOSS_LAG:
        verdict = LearningVerdict.WORSE
    return LagVerdict(verdict, len(lags), mean, mean - half, mean + half)


def trial_steps(step: int) -> int:
    """Of a trial that begins in this step."""
    return round(TRIAL_SHARE * step)


def _merged(rows: Sequence[LossRow]) -> list[LossRow]:
    """Half as many, each the mean of two neighbours; an odd one at the begin is left out."""
    pairs = zip(rows[len(rows) % 2 :: 2], rows[len(rows) % 2 + 1 :: 2], strict=True)
    return [((first[0] + second[0]) // 2, (first[1] + second[1]) / 2) for first, second in pairs]


@dataclass(slots=True)
class LossProbe:
    """
    The trials of one way to send. `text`: that way. `begun`: the step in which the trial began that runs now; None: none
    does. `ended`: begin and end of the newest trial, until its lag is measured. `since`: the step from which rows of BSP
    count. `rows`: these; `before`: those before the newest trial. `verdict`, `result`: by the trials so far, and for people.
    """

    text: str = ""
    begun: int | None = None
    ended: tuple[int, int] | None = None
    since: int = 0
    rows: list[LossRow] = field(default_factory=list)
    before: list[LossRow] = field(default_factory=list)
    lags: list[LossLag] = field(default_factory=list)
    verdict: LearningVerdict = LearningVerdict.UNKNOWN
    result: str = ""

    def restart(self, step: int) -> None:
        """What was learnt before `step` does not count any more."""
        self.text, self.begun, self.ended, self.since = "", None, None, step
        self.rows, self.before, self.lags = [], [], []
        self.verdict, self.result = LearningVerdict.UNKNOWN, ""

    def add(self, step: int, loss: float) -> None:
        """A row of BSP."""
        if step >= self.since + SETTLING_STEPS and loss > 0 and math.isfinite(loss):
            self.rows.append((step, loss))
        if len(self.rows) > _MAX_ROWS:
            self.rows = _merged(self._recent(step))

    def may_begin(self, step: int, interval: int) -> bool:
        """Whether a trial may begin that averages at this interval: two of its intervals fit, and BSP has had its steps."""
        steps = trial_steps(step)
        has_rested = self.ended is None and step - self.since >= BSP_PER_TRIAL * steps
        return has_rested and steps >= max(MIN_TRIAL_STEPS, 2 * interval) and len(self._recent(step)) >= _MIN_ROWS

    def begin(self, step: int, text: str) -> None:
        if text != self.text:
            self.lags, self.verdict, self.result = [], LearningVerdict.UNKNOWN, ""
        self.text, self.begun, self.before, self.rows = text, step, self._recent(step), []

    def is_over(self, step: int) -> bool:
        return self.begun is not None and step - self.begun >= trial_steps(self.begun)

    def end(self, step: int) -> None:
        assert self.begun is not None
        self.ended, self.begun, self.since = (self.begun, step), None, step

    def abandon(self, step: int) -> None:
        """The trial that runs shows nothing."""
        self.begun, self.since = None, step

    def evaluate(self, step: int) -> LagVerdict | None:
        """The verdict by all trials, where the newest one's lag is known now; None: it is not, or there is no new one."""
        if self.ended is None or step - self.since < BSP_PER_TRIAL * (self.ended[1] - self.ended[0]):
            return None
        found, self.ended = measure_lag(self.before, self.rows, *self.ended), None
        if found is None:
            return None
        self.lags.append(found)
        judged = judge(self.lags)
        self.verdict, self.result = judged.verdict, str(judged)
        return judged

    def _recent(self, step: int) -> list[LossRow]:
        """Where the loss has not bent too much since: the second half of the steps so far."""
        return [row for row in self.rows if row[0] >= step / 2]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        known = dict(state)
        known["lags"] = [LossLag(**each) for each in state["lags"]]
        known["verdict"] = LearningVerdict(state["verdict"])
        return cls(**known)
