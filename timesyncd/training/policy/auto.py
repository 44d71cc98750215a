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
pays (`sending`).

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

from timesyncd.training.policy.encoding import FULL_PRECISION, HALF_PRECISION, GradientEncoding, estimated_step
from timesyncd.training.policy.policies import ChangeReason, Combine, Decision, PolicyContext

#: Replicas of two ranks with the same kind of data, averaged every h steps, need 1 + this * h times as many steps as
#: BSP; of N ranks this times (N/2)^1.5, so that the best interval falls with N^(-3/4), as does the longest interval
#: with which N ranks still learn N times as fast (Yu, Yang and Zhu, arXiv 1807.06629). On digits and text
#: (bench/policies) it was 0.001 to 0.002 with two ranks, 0.004 to 0.005 with four.
SCATTER_PER_STEP, RANKS_EXPONENT = 0.0018, 1.5

#: With different data it is larger by this times the dissimilarity squared: on sorted digits 0.02 with two ranks
#: (dissimilarity 4 to 7), 0.08 with three (12 to 19), 0.4 with four (24 to 32).
DRIFT_PER_DISSIMILARITY = 0.0006

#: From this dissimilarity on, this many more steps, as a share of BSP's, whatever the interval is (measured with two
#: ranks).
FIXED_DRIFT, FIXED_DRIFT_FROM = 0.75, 4.0


@dataclass(frozen=True, slots=True)
class ReplicaDrift:
    """
    How far replicas drift apart between two averagings.

    `dissimilarity`: the squared distance of a rank's expected gradient from the mean of all ranks', as a multiple of
    the mean's square, with parameters that are equal on all ranks (zeta^2 / |grad f|^2 of Koloskova et al., ICML 2020).
    0: the same kind of data.
    """

    ranks: int
    dissimilarity: float = 0.0

    def steps(self, h: float) -> float:
        """Number of steps to the same loss, as a multiple of BSP's, with an averaging every `h` steps."""
        return self._fixed + self._per_step * h

    def time(self, h: float, ratio: float) -> float:
        """
        Time to the same loss, as a multiple of BSP's without communication. `ratio`: the duration of an averaging in
        steps.
        """
        return self.steps(h) * (1 + ratio / h)

    def best_interval(self, ratio: float) -> float:
        """The interval, in steps, with the shortest time."""
        return math.sqrt(self._fixed * ratio / self._per_step)

    @property
    def _fixed(self) -> float:
        return 1 + FIXED_DRIFT * min(1.0, self.dissimilarity / FIXED_DRIFT_FROM)

    @property
    def _per_step(self) -> float:
        scatter: float = SCATTER_PER_STEP * (self.ranks / 2) ** RANKS_EXPONENT
        return scatter + DRIFT_PER_DISSIMILARITY * self.dissimilarity * self.dissimilarity  # ** would raise on overflow


#: BSP stays where the ranks wait for less than this share of their computing.
NEGLIGIBLE_WAIT = 0.04

#: The learning rate rises, in a warm-up, where it is larger than before by this factor; BSP stays then. Averagings harm
#: most while the parameters change fast (Gu et al., ICLR 2024, Sec. 3, and post-local SGD, Lin et al., ICLR 2020).
RISING_RATE = 1.001

#: The constants above are fitted to SGD (bench/policies). With an adaptive optimizer a byte-level GPT ended with a
#: validation loss higher by 0.02 (two ranks) and 0.05 (four) under averagings, and by nothing in half precision. So
#: without a validation loss an adaptive optimizer keeps BSP, in half precision where ranks wait for more than this
#: multiple of their computing: half of it saves a tenth of a step.
SEND_LESS_FROM = 0.25

#: A validation loss that is larger than the lowest by this share, this often in a row, takes a choice back. Two, since a
#: single one may be chance; the share is what averagings cost on the tasks above.
MAX_VALIDATION_RISE, VALIDATIONS_RISEN = 0.02, 2

#: Below the first dissimilarity the ranks see the same kind of data beyond doubt, from the second on different data. In
#: the first four steps it was -0.6 to 0.6 with the same kind, 4.0 to 6.7 with half of the classes on each of two ranks,
#: 24 to 32 with a quarter on each of four.
SAME_DATA_BELOW, DIFFERENT_DATA_FROM = 0.25, 1.0

#: Until averagings are timed, BSP counts as this much slower than its waiting shows: a transfer takes longer than the
#: waiting, since computing hides a part of it, and it shares processor and memory with computing.
UNTIMED_BSP_FACTOR = 1.5

#: With different data averagings must be faster than BSP by this factor when they are first timed, and slower than BSP
#: by it before they are given up later: the durations of transfers scatter.
MIN_SPEEDUP = 1.1

#: A trial averages at this interval, in steps, until this number of averagings is measured. A longer interval shows the
#: drift better.
TRIAL_INTERVAL, TRIAL_AVERAGINGS = 16, 2

#: Replicas drift apart where an averaging multiplies the loss by at least e to the power of this. The mean of two
#: trials was -0.3 in the median with the same kind of data, and above this in one case of 15; with half of the classes
#: on each rank it was 0.8, and below this in one case of 60.
DRIFT_JUMP = 0.1

#: Where two averagings multiply the loss by e^j, the dissimilarity is this times j^2: measured by gradients and by
#: trials on the same data.
DISSIMILARITY_PER_JUMP = 17.0

#: A dissimilarity above this is beyond doubt: no jump was above 0.2 with the same kind of data, and with a half or a
#: quarter of the classes on each rank neither of the first two trials was below 0.4.
CERTAIN_DISSIMILARITY = DISSIMILARITY_PER_JUMP * 0.3**2

#: Lower limit of a relative jump. A loss that an averaging reduced to 0 counts as this.
MIN_JUMP = -0.99

#: Under BSP ranks wait for transfers and for slower ranks. At least this share of the waiting is the link's.
MIN_LINK_SHARE = 0.5

#: The interval with the same kind of data, in steps: at least, at most, and such that an averaging that ranks wait for
#: costs at most this share of the time.
MIN_INTERVAL, MAX_INTERVAL, MAX_BLOCKING_COST = 4, 64, 0.25

#: Averagings run in the background where even the longest interval would cost more than this share of the time.
OVERLAP_FROM_COST = 0.125

#: Transfers that take longer than this many steps are sent in half precision.
HALF_PRECISION_FROM = 2.0

#: After this many steps without a loss, or without a loss around an averaging, the loss counts as not reported.
MAX_STEPS_WITHOUT_LOSS = 192

#: The number of rows whose losses make a geometric mean; and how far the mean may rise above its lowest value: by this
#: logarithm, or by this number of standard errors where that is more.
LOSS_WINDOW, MAX_LOSS_RISE, MAX_LOSS_ERRORS = 8, math.log1p(0.25), 5.0

#: Where this many averagings lower the loss in the mean, the ranks see the same kind of data by now.
SAME_DATA_AVERAGINGS = 4

#: Costs within this factor count as equal.
COST_HYSTERESIS = 1.25

#: Number of newest rows whose median is the waiting and the duration of a step under BSP.
RECENT_ROWS = 3

#: Number of newest rows whose median is the duration of computing and of a transfer.
KEPT_ROWS = 9

#: The interval changes where another one is better by this factor and by two steps, and this number of steps after the
#: last change at the earliest.
INTERVAL_HYSTERESIS, MIN_STEPS_BETWEEN_CHANGES = 1.5, 32

#: Averagings are tried again after this many steps, then after twice as many, and so on: replicas show their drift
#: better later in training, and two averagings may have misled. After a trial that was beyond doubt BSP stays until the
#: link has become slow.
RETRIAL_STEPS = 384


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
    FALLBACK = "fallback"  #: BSP for good


class Controller:
    """
    `update` is called with the rows of all ranks, in the same steps on all ranks.

    `rate`: the learning rate before the first step; NaN: unknown. `is_adaptive`: the optimizer divides by a second
    moment, as Adam does.
    """

    def __init__(self, rate: float = math.nan, is_adaptive: bool = False) -> None:
        self._rate, self._is_adaptive = rate, is_adaptive
        self._is_rising = self._has_validation = self._sends_less = False
        self._best_validation, self._risen = math.inf, 0
        self._stage = _Stage.BSP
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
        return self._guard([row.loss for row in rows if row.loss > 0]) or self._choose(dissimilarity)

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
        is_guarded = (
            self._encoding.needs_more_steps if self._stage is _Stage.BSP_FASTER else self._stage is not _Stage.BSP
        )
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
        return self._restrain(f"the loss rose from {math.exp(lowest):.3g} to {math.exp(mean):.3g}")

    def _validate(self, losses: Sequence[float]) -> Choice | None:
        """Takes back a choice after which the validation loss rose."""
        if not losses:
            return None
        self._has_validation, loss = True, statistics.fmean(losses)
        is_guarded = self._stage in (_Stage.TRIAL, _Stage.BACKGROUND, _Stage.BLOCKING)
        rose = loss - self._best_validation > MAX_VALIDATION_RISE * abs(self._best_validation)
        self._risen = self._risen + 1 if rose and is_guarded else 0
        best, self._best_validation = self._best_validation, min(self._best_validation, loss)
        if self._risen < VALIDATIONS_RISEN:
            return None
        self._risen = 0
        return self._restrain(f"the validation loss rose from {best:.4g} to {loss:.4g}")

    def _restrain(self, reason: str) -> Choice:
        """One step back towards BSP, because the loss rose."""
        self._losses.clear()
        self._lowest = math.inf, 0.0
        if self._stage is _Stage.BSP_FASTER:
            self._encoding.revert()
            return self._use_bsp(ChangeReason.LOSS_ROSE, reason)
        self._max_interval = self._h // 2
        if self._max_interval < 2:
            return self._fall_back(ChangeReason.LOSS_ROSE, reason)
        self._may_overlap = False
        return self._use_local_sgd(_Stage.BLOCKING, self._max_interval, ChangeReason.LOSS_ROSE, reason)

    def _choose(self, dissimilarity: float) -> Choice | None:
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
        if self._is_adaptive and not self._has_validation:
            return self._send_less(waited)
        if self._sends_less:
            return self._measure_again()
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

    def _send_less(self, waited: float) -> Choice | None:
        """Half precision, once, where nothing shows that the loss would keep up with averagings."""
        if self._sends_less or waited <= SEND_LESS_FROM:
            return None
        self._sends_less = True
        self._clear_timings()
        return Choice(
            "bsp + fp16",
            ChangeReason.LOSS_UNPROVEN,
            f"under BSP the ranks wait for {waited:.2g} times their computing time; with an adaptive optimizer and no "
            "validation loss nothing shows that averagings keep the loss: call record_validation(loss)",
        )

    def _measure_again(self) -> Choice:
        """BSP in full precision, since a validation loss can guard averagings from now on."""
        self._sends_less = False
        self._clear_timings()
        return Choice("bsp", ChangeReason.RETRIAL, "a validation loss is recorded now, so averagings may be tried")

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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            former = getattr(self, name)
            setattr(self, name, deque(value, maxlen=former.maxlen) if isinstance(former, deque) else value)
        self._stage = _Stage(state["_stage"])
        self._drift, self._encoding = ReplicaDrift(*state["_drift"]), GradientEncoding(*state["_encoding"])
