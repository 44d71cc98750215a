"""
The controller of `auto`: it chooses the interval of averagings, whether ranks wait for them, and the precision, from
what the ranks measure.

Pure. Each rank runs its own controller on the same rows, so all ranks choose alike.

It begins with BSP. BSP's gradients show whether the ranks see different data: then each rank's gradients differ from
the mean in the same direction in each step.

Where ranks wait for BSP, and see the same kind of data, replicas are averaged rarely, and in the background where even
the longest interval would cost much.

Replicas that see different data drift apart. Then ranks wait for each averaging, and the interval follows from the
drift and the link; or it is BSP where that is faster, since its steps learn more, with the encoding of gradients that
pays (`encoding`).

With an adaptive optimizer it compares what each way to send would take (`adaptive`).

Where the gradients leave it in doubt, two averagings are tried: the loss of replicas that drift apart jumps. A choice
after which the loss rises is taken back, in the end to BSP.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from timesyncd.training.policy.adaptive import AdaptiveChoice, NewestStep
from timesyncd.training.policy.constants import (
    CERTAIN_DISSIMILARITY,
    COST_HYSTERESIS,
    DIFFERENT_DATA_FROM,
    DISSIMILARITY_PER_JUMP,
    DRIFT_JUMP,
    HALF_PRECISION_FROM,
    INTERVAL_HYSTERESIS,
    KEPT_ROWS,
    LOSS_WINDOW,
    MAX_BLOCKING_COST,
    MAX_INTERVAL,
    MAX_LOSS_ERRORS,
    MAX_LOSS_RISE,
    MAX_STEPS_WITHOUT_LOSS,
    MAX_VALIDATION_LAG,
    MAX_VALIDATION_RISE,
    MIN_INTERVAL,
    MIN_JUMP,
    MIN_LINK_SHARE,
    MIN_SPEEDUP,
    MIN_STEPS_BETWEEN_CHANGES,
    MIN_VALIDATIONS,
    NEGLIGIBLE_WAIT,
    OVERLAP_FROM_COST,
    RECENT_ROWS,
    RETRIAL_STEPS,
    RISING_RATE,
    SAME_DATA_AVERAGINGS,
    SAME_DATA_BELOW,
    TRIAL_AVERAGINGS,
    TRIAL_INTERVAL,
    UNTIMED_BSP_FACTOR,
    VALIDATIONS_RISEN,
)
from timesyncd.training.policy.drift import ReplicaDrift
from timesyncd.training.policy.encoding import FULL_PRECISION, HALF_PRECISION, GradientEncoding, estimated_step
from timesyncd.training.policy.policies import ChangeReason, Combine, Decision, PolicyContext
from timesyncd.training.policy.trend import KEPT_VALIDATIONS, predicted_loss


@dataclass(frozen=True, slots=True)
class Auto:
    """
    The controller chooses the policy, and changes it as measurements change. Until it has measurements, this is BSP.
    """

    combines: ClassVar[Combine] = Combine.GRADIENTS
    late: ClassVar[int | None] = None

    def decide(self, context: PolicyContext) -> Decision:
        return Decision.SYNC


class RankMeasurements(Protocol):
    """The fields of a rank's row that the controller reads; `schedule.Row` describes them."""

    @property
    def step(self) -> int: ...
    @property
    def compute_ns(self) -> int: ...
    @property
    def wait_ns(self) -> int: ...
    @property
    def transfer_ns(self) -> int | None: ...
    @property
    def loss(self) -> float: ...
    @property
    def jump(self) -> float: ...
    @property
    def dissimilarity(self) -> float: ...
    @property
    def rate(self) -> float: ...
    @property
    def validation(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy as text, and why: as a code, and in one line for people."""

    text: str
    reason_code: ChangeReason
    reason: str


class _Stage(Enum):
    """What the controller does at present. The values go into checkpoints."""

    BSP = "bsp"  #: the start: BSP's waiting and gradients are measured
    TRIAL = "trial"  #: averagings are tried, to see what they do to the loss
    BACKGROUND = "background"  #: averagings run in the background
    BLOCKING = "blocking"  #: ranks wait for averagings
    BSP_FASTER = "bsp_faster"  #: BSP, until averagings are tried again
    ADAPTIVE = "adaptive"  #: with an adaptive optimizer: what `AdaptiveChoice` has chosen
    FALLBACK = "fallback"  #: BSP for good


class Controller:
    """
    `update` is called with the rows of all ranks, in the same steps on all ranks.

    `rate`: the learning rate before the first step; NaN: unknown. `is_adaptive`: the optimizer divides by a second
    moment, as Adam does. `blocks`: blocks of layers that the module has.
    """

    def __init__(self, rate: float = math.nan, is_adaptive: bool = False, blocks: int = 1) -> None:
        self._rate = rate
        self._is_rising = False
        self._course: list[tuple[int, float]] = []  #: with an adaptive optimizer: validations under BSP
        self._best_validation, self._risen = math.inf, 0
        self._loss = math.nan  #: of the newest rows
        self._stage = _Stage.ADAPTIVE if is_adaptive else _Stage.BSP
        self._adaptive = AdaptiveChoice(blocks=blocks)
        self._h, self._delay = 1, 0
        self._is_half = False
        self._encoding = GradientEncoding()
        self._max_interval = MAX_INTERVAL
        self._drift = ReplicaDrift(ranks=2)
        self._bsp_ns: float | None = None
        self._waits_per_transfer = 1.0
        self._may_overlap = True
        self._step: int | None = None
        self._steps_since_change = self._steps_without_loss = self._steps_since_trial = 0
        self._retrial_steps = RETRIAL_STEPS
        self._losses: deque[float] = deque(maxlen=LOSS_WINDOW)
        self._lowest = math.inf, 0.0
        self._computing: deque[int] = deque(maxlen=KEPT_ROWS)
        self._transfers: deque[int] = deque(maxlen=KEPT_ROWS)
        self._waited: deque[float] = deque(maxlen=KEPT_ROWS)
        self._jumps: deque[float] = deque(maxlen=KEPT_ROWS)

    def update(self, rows: Sequence[RankMeasurements]) -> Choice | None:
        """Returns the policy to change to; None: no change."""
        if self._stage is _Stage.FALLBACK:
            return None
        passed = 0 if self._step is None else rows[0].step - self._step
        self._step = rows[0].step
        self._steps_since_change += passed
        self._steps_since_trial += passed
        self._steps_without_loss += passed
        self._measure(rows)
        self._is_rising = rows[0].rate > RISING_RATE * self._rate
        self._rate = rows[0].rate
        if (choice := self._validate([row.validation for row in rows if not math.isnan(row.validation)])) is not None:
            return choice
        dissimilarity = statistics.fmean(row.dissimilarity for row in rows)
        losses = [row.loss for row in rows if row.loss > 0]
        self._loss = statistics.fmean(losses) if losses else math.nan
        return self._guard(losses) or self._choose(dissimilarity)

    def _measure(self, rows: Sequence[RankMeasurements]) -> None:
        self._drift = ReplicaDrift(len(rows), self._drift.dissimilarity)
        self._computing.append(max(1, statistics.median_low(row.compute_ns for row in rows)))
        self._waited.append(statistics.fmean(row.wait_ns for row in rows) / self._computing[-1])
        known = [row.transfer_ns for row in rows if row.transfer_ns is not None]
        if len(known) == len(rows):
            self._transfers.append(max(1, min(known)))  # the last rank to arrive waited for no other
        jumps = [row.jump for row in rows if not math.isnan(row.jump)]
        # In the background the replicas that are averaged are some steps old, and on the way to BSP the averaging comes
        # after a few steps: neither shows the drift well.
        if jumps and self._stage not in (_Stage.BACKGROUND, _Stage.BSP_FASTER):
            # Noise cancels out in the mean of logarithms.
            self._jumps.append(statistics.fmean(math.log1p(max(jump, MIN_JUMP)) for jump in jumps))

    def _guard(self, losses: Sequence[float]) -> Choice | None:
        """Takes back a choice after which the loss rose, or is not reported any more."""
        if losses:
            self._steps_without_loss = 0
        is_guarded = self._is_guarded()
        if self._stage is _Stage.ADAPTIVE and not self._adaptive.shows_loss:
            self._steps_without_loss = 0  # no step begins with equal replicas: the validation loss is the guard
        if not is_guarded and not losses:
            return None
        if self._steps_without_loss >= MAX_STEPS_WITHOUT_LOSS:
            return self._fall_back(
                ChangeReason.LOSS_MISSING,
                f"no rank reported a loss above zero for {self._steps_without_loss} steps: call record_loss(loss) "
                "in each step",
            )
        if not losses:
            return None
        loss = statistics.fmean(losses)
        if math.isinf(loss):
            return self._fall_back(ChangeReason.LOSS_INFINITE, "the loss is infinite")
        # In logarithms a loss that grows by a factor rises steadily, and does not look like one that scatters.
        self._losses.append(math.log(loss))
        if len(self._losses) < LOSS_WINDOW:
            return None
        mean, error = statistics.fmean(self._losses), statistics.stdev(self._losses) / math.sqrt(LOSS_WINDOW)
        lowest, lowest_error = self._lowest = min(self._lowest, (mean, error))
        if not is_guarded or mean - lowest <= max(MAX_LOSS_RISE, MAX_LOSS_ERRORS * math.hypot(error, lowest_error)):
            return None
        return self.restrain(f"the loss rose from {math.exp(lowest):.3g} to {math.exp(mean):.3g}")

    def _is_guarded(self) -> bool:
        """Whether the choice in force may learn worse than BSP."""
        if self._stage is _Stage.ADAPTIVE:
            return self._adaptive.interval > 0
        return self._encoding.needs_more_steps if self._stage is _Stage.BSP_FASTER else self._stage is not _Stage.BSP

    def _validate(self, losses: Sequence[float]) -> Choice | None:
        """Takes back a choice after which the validation loss rose."""
        if not losses:
            return None
        loss = statistics.fmean(losses)
        if self._stage is _Stage.ADAPTIVE and not self._is_guarded():
            self._course = [*self._course, (self._step or 0, loss)][-KEPT_VALIDATIONS:]
        is_guarded = self._is_guarded() and self._stage is not _Stage.BSP_FASTER
        rose = loss - self._best_validation > MAX_VALIDATION_RISE * abs(self._best_validation)
        predicted = predicted_loss(self._course, self._step or 0) if self._stage is _Stage.ADAPTIVE else None
        lags = predicted is not None and loss > (1 + MAX_VALIDATION_LAG) * predicted
        self._risen = self._risen + 1 if (rose or lags) and is_guarded else 0
        best, self._best_validation = self._best_validation, min(self._best_validation, loss)
        if self._risen < VALIDATIONS_RISEN:
            return None
        self._risen = 0
        if predicted is not None and not rose:
            return self.restrain(
                f"the validation loss is {loss:.4g}, and by its course before it would be {predicted:.4g}"
            )
        return self.restrain(f"the validation loss rose from {best:.4g} to {loss:.4g}")

    def restrain(self, reason: str) -> Choice | None:
        """One step back towards BSP, because the loss rose, or is above that of the job's reference."""
        self._losses.clear()
        self._lowest = math.inf, 0.0
        if self._stage is _Stage.ADAPTIVE:
            self._adaptive.restrain()
            return self._choose_adaptive(math.nan, ChangeReason.LOSS_ROSE, reason)
        if self._stage is _Stage.BSP_FASTER:
            self._encoding.revert()
            return self._use_bsp(ChangeReason.LOSS_ROSE, reason)
        self._max_interval = self._h // 2
        if self._max_interval < 2:
            return self._fall_back(ChangeReason.LOSS_ROSE, reason)
        self._may_overlap = False
        return self._use_local_sgd(_Stage.BLOCKING, self._max_interval, ChangeReason.LOSS_ROSE, reason)

    def _choose(self, dissimilarity: float) -> Choice | None:
        if self._stage is _Stage.ADAPTIVE:
            return self._choose_adaptive(dissimilarity) if self._losses else None
        if self._stage is _Stage.BSP:
            return self._leave_bsp(statistics.median(list(self._waited)[-RECENT_ROWS:]), dissimilarity)
        if self._stage is _Stage.TRIAL:
            return self._end_trial()
        if self._steps_since_trial >= self._retrial_steps and self._needs_retrial():
            return self._begin_retrial()
        if self._stage is _Stage.BSP_FASTER:
            return self._evaluate_encoding()
        return self._adjust() if self._steps_since_change >= MIN_STEPS_BETWEEN_CHANGES and self._transfers else None

    def _leave_bsp(self, waited: float, dissimilarity: float) -> Choice | None:
        """From the BSP of the start. Its waiting is at most what an averaging takes."""
        if not self._losses or waited <= NEGLIGIBLE_WAIT or self._is_rising:
            return None
        self._is_half = waited > HALF_PRECISION_FROM
        self._bsp_ns = self._step_ns()
        reason = f"under BSP the ranks wait for {waited:.2g} times their computing time"
        if not (dissimilarity <= SAME_DATA_BELOW or dissimilarity >= DIFFERENT_DATA_FROM):
            return self._use_local_sgd(_Stage.TRIAL, TRIAL_INTERVAL, ChangeReason.TRIAL, reason)
        self._drift = ReplicaDrift(self._drift.ranks, dissimilarity if dissimilarity >= DIFFERENT_DATA_FROM else 0.0)
        kind = "different" if self._sees_different_data() else "the same kind of"
        reason += f", and see {kind} data (gradient dissimilarity {dissimilarity:.2g})"
        ratio = waited / 2 if self._is_half else waited
        if self._sees_different_data() and MIN_SPEEDUP * self._time(ratio) > UNTIMED_BSP_FACTOR * self._bsp_time(ratio):
            return self._prefer_bsp(ChangeReason.DIFFERENT_DATA, reason) if self._is_half else None
        return self._use_local_sgd(*self._best_averaging(ratio), self._data_code(), reason, ratio)

    def _choose_adaptive(
        self, dissimilarity: float, code: ChangeReason | None = None, reason: str = ""
    ) -> Choice | None:
        """What `AdaptiveChoice` chooses by the measurements since its last change. `code`, `reason`: why it has to."""
        compute_ns = statistics.median(list(self._computing)[-RECENT_ROWS:])
        now = NewestStep(
            compute_ns=compute_ns,
            wait_ns=max(0.0, self._step_ns() - compute_ns),
            transfer_ns=statistics.median(self._transfers) if self._transfers else None,
            ranks=self._drift.ranks,
            is_rising=self._is_rising,
            is_proven=len(self._course) >= MIN_VALIDATIONS,
            dissimilarity=dissimilarity,
            is_settled=len(self._waited) > RECENT_ROWS and self._steps_since_change >= MIN_STEPS_BETWEEN_CHANGES,
            step=self._step or 0,
            loss=self._loss,
        )
        changed = self._adaptive.change(now, is_forced=code is not None)
        if changed is None:
            return None
        self._steps_since_change = 0
        self._clear_timings()
        self._transfers.clear()
        return Choice(changed.text, code or changed.code, f"{reason}; {changed.reason}" if reason else changed.reason)

    def _evaluate_encoding(self) -> Choice | None:
        """Under BSP: the next encoding of the gradients, or the former one."""
        waited = statistics.median(list(self._waited)[-RECENT_ROWS:])
        is_sure = len(self._computing) >= RECENT_ROWS
        changed = self._encoding.evaluate(self._step_ns(), waited, self._drift.ranks, is_sure)
        return None if changed is None else self._use_bsp(*changed)

    def _use_bsp(self, code: ChangeReason, reason: str) -> Choice:
        self._is_half = self._encoding.index != FULL_PRECISION
        self._clear_timings()
        return Choice(f"bsp{self._encoding.text}", code, reason)

    def _step_ns(self) -> float:
        """The duration of a step by the newest rows, waiting included."""
        recent = list(zip(self._computing, self._waited, strict=True))[-RECENT_ROWS:]
        return statistics.median(computing_ns * (1 + waited) for computing_ns, waited in recent)

    def _end_trial(self) -> Choice | None:
        if len(self._jumps) < TRIAL_AVERAGINGS or not self._transfers:
            if self._steps_since_change < MAX_STEPS_WITHOUT_LOSS:
                return None
            return self._fall_back(
                ChangeReason.JUMP_MISSING,
                "no rank reported the loss around an averaging: call record_loss(loss) in each step, with a loss "
                "above zero",
            )
        ratio = self._halve_above(self._transfer_ratio(), HALF_PRECISION_FROM)
        self._drift = ReplicaDrift(self._drift.ranks, self._trial_dissimilarity())
        if self._is_slower_than_bsp(ratio):
            return self._prefer_bsp(ChangeReason.BSP_FASTER, f"{self._averaging_text(ratio)}; BSP learns faster")
        return self._use_local_sgd(*self._best_averaging(ratio), self._data_code(), self._averaging_text(ratio), ratio)

    def _trial_dissimilarity(self) -> float:
        """
        By the jumps of the trial, where it is the first.

        Jumps grow as ranks learn, so those of later trials are less accurate; what the first trial found stays.
        """
        if self._jump() <= DRIFT_JUMP:
            return 0.0
        if self._sees_different_data():
            return self._drift.dissimilarity
        return max(DIFFERENT_DATA_FROM, DISSIMILARITY_PER_JUMP * self._jump() ** 2)

    def _begin_retrial(self) -> Choice:
        self._jumps.clear()
        self._steps_since_trial, self._retrial_steps = 0, 2 * self._retrial_steps
        return self._use_local_sgd(
            _Stage.TRIAL,
            min(self._max_interval, TRIAL_INTERVAL),
            ChangeReason.RETRIAL,
            "averagings are tried again, to measure what they do to the loss",
        )

    def _needs_retrial(self) -> bool:
        """Whether the drift may have changed. In the background and under BSP it is not measured."""
        if self._stage is not _Stage.BSP_FASTER:
            return self._stage is _Stage.BACKGROUND
        link_ratio = MIN_LINK_SHARE * statistics.median(self._waited)
        return self._drift.dissimilarity < CERTAIN_DISSIMILARITY or self._time(link_ratio) <= 1 + link_ratio

    def _adjust(self) -> Choice | None:
        """Other averagings, or BSP, where the measurements have changed enough."""
        speedup = 1 / MIN_SPEEDUP if self._bsp_ns is None else MIN_SPEEDUP
        ratio = self._transfer_ratio()
        if self._jump() > DRIFT_JUMP and not self._sees_different_data():
            return self._begin_retrial()
        if self._jump() < 0 and len(self._jumps) >= SAME_DATA_AVERAGINGS:
            self._drift = ReplicaDrift(self._drift.ranks)
        if self._is_slower_than_bsp(ratio, speedup):
            return self._prefer_bsp(ChangeReason.BSP_FASTER, f"{self._averaging_text(ratio)}; BSP learns faster")
        was_half, ratio = self._is_half, self._halve_above(ratio, COST_HYSTERESIS * HALF_PRECISION_FROM)
        stage, h = self._best_averaging(ratio)
        best, present = (self._background_steps(ratio), self._delay) if stage is _Stage.BACKGROUND else (h, self._h)
        is_close = 1 / INTERVAL_HYSTERESIS < best / max(1, present) < INTERVAL_HYSTERESIS or abs(best - present) < 2
        if stage is self._stage and is_close and was_half == self._is_half:
            return None
        return self._use_local_sgd(stage, h, self._data_code(), self._averaging_text(ratio), ratio)

    def _best_averaging(self, ratio: float) -> tuple[_Stage, int]:
        """Whether ranks wait for averagings, and their interval."""
        if self._sees_different_data():
            return _Stage.BLOCKING, self._drift_interval(ratio)
        if not self._may_overlap:
            return _Stage.BLOCKING, self._long_interval(ratio)
        factors = {_Stage.BACKGROUND: 1 / COST_HYSTERESIS, _Stage.BLOCKING: COST_HYSTERESIS}
        if ratio / MAX_INTERVAL > OVERLAP_FROM_COST * factors.get(self._stage, 1):
            return _Stage.BACKGROUND, MAX_INTERVAL
        return _Stage.BLOCKING, self._long_interval(ratio)

    def _averaging_text(self, ratio: float) -> str:
        data = "the ranks see different data: " if self._sees_different_data() else ""
        jump = f"changes the loss by {math.expm1(self._jump()):+.0%} and " if self._jumps else ""
        return f"{data}an averaging {jump}takes {ratio:.2g} steps"

    def _sees_different_data(self) -> bool:
        return self._drift.dissimilarity >= DIFFERENT_DATA_FROM

    def _data_code(self) -> ChangeReason:
        return ChangeReason.DIFFERENT_DATA if self._sees_different_data() else ChangeReason.SAME_DATA

    def _jump(self) -> float:
        """The logarithm of the factor by which averagings multiply the loss; 0 while none is measured."""
        return statistics.fmean(self._jumps) if self._jumps else 0.0

    def _is_slower_than_bsp(self, ratio: float, speedup: float = MIN_SPEEDUP) -> bool:
        return self._sees_different_data() and speedup * self._time(ratio) > self._bsp_time(
            self._waits_per_transfer * ratio
        )

    def _bsp_time(self, ratio: float) -> float:
        """The duration of a step of BSP, as a multiple of its computing."""
        return estimated_step(ratio, self._drift.ranks) if self._is_half else 1 + ratio

    def _time(self, ratio: float) -> float:
        """
        Time to the same loss with the best interval for different data, as a multiple of BSP's without communication.
        """
        return self._drift.time(self._drift_interval(ratio), ratio)

    def _transfer_ratio(self) -> float:
        """
        The duration of a transfer in steps. The first call after BSP also computes how much of it a step of BSP waited
        for.
        """
        computing = statistics.median(self._computing)
        ratio = statistics.median(self._transfers) / computing
        if self._bsp_ns is not None:
            full_ratio = 2 * ratio if self._is_half else ratio
            self._waits_per_transfer, self._bsp_ns = max(0.0, self._bsp_ns / computing - 1) / full_ratio, None
        return ratio

    def _halve_above(self, ratio: float, limit: float) -> float:
        """The duration of a transfer from now on: half, in half precision, where it exceeds the limit."""
        if self._is_half or ratio <= limit:
            return ratio
        self._is_half = True
        return ratio / 2

    def _background_steps(self, ratio: float) -> int:
        """Number of steps after which a transfer in the background has ended, with a margin."""
        return min(MAX_INTERVAL - 1, math.ceil(1.1 * ratio))

    def _drift_interval(self, ratio: float) -> int:
        """The best interval for different data."""
        return max(2, min(self._max_interval, round(self._drift.best_interval(ratio))))

    def _long_interval(self, ratio: float) -> int:
        """The best interval for the same kind of data, such that averagings cost at most MAX_BLOCKING_COST."""
        cheapest = math.ceil(ratio / MAX_BLOCKING_COST)
        return min(self._max_interval, max(MIN_INTERVAL, cheapest, round(self._drift.best_interval(ratio))))

    def _use_local_sgd(self, stage: _Stage, h: int, code: ChangeReason, reason: str, ratio: float = 0.0) -> Choice:
        self._delay = self._background_steps(ratio) if stage is _Stage.BACKGROUND else 0
        if self._stage in (_Stage.BSP, _Stage.BSP_FASTER):
            self._clear_timings()  # computing takes longer beside DDP's transfers
        if stage is not self._stage:
            self._transfers.clear()
        self._stage, self._h, self._steps_since_change = stage, h, 0
        half = " + fp16" if self._is_half else ""
        delay = f", delay={self._delay}" if self._delay else ""
        return Choice(f"local_sgd(h={h}{delay}){half}", code, reason)

    def _prefer_bsp(self, code: ChangeReason, reason: str) -> Choice:
        """BSP until averagings are tried again."""
        self._stage, self._steps_since_trial = _Stage.BSP_FASTER, 0
        self._encoding = (
            GradientEncoding(HALF_PRECISION, self._bsp_ns) if self._is_half else GradientEncoding(settled=True)
        )
        self._bsp_ns = None
        return self._use_bsp(code, reason)

    def _clear_timings(self) -> None:
        self._computing.clear()
        self._waited.clear()

    def _fall_back(self, code: ChangeReason, reason: str) -> Choice:
        self._stage = _Stage.FALLBACK
        return Choice("bsp", code, reason)

    def state_dict(self) -> dict[str, Any]:
        plain = {name: list(value) if isinstance(value, deque) else value for name, value in vars(self).items()}
        return plain | {
            "_stage": self._stage.value,
            "_drift": dataclasses.astuple(self._drift),
            "_encoding": dataclasses.astuple(self._encoding),
            "_adaptive": dataclasses.asdict(self._adaptive),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            former = getattr(self, name)
            setattr(self, name, deque(value, maxlen=former.maxlen) if isinstance(former, deque) else value)
        self._stage = _Stage(state["_stage"])
        self._drift, self._encoding = ReplicaDrift(*state["_drift"]), GradientEncoding(*state["_encoding"])
        self._adaptive = AdaptiveChoice.from_state(state["_adaptive"])
