"""What a policy does about the losses of its job: it marks them, and compares them with those of a former run."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from timesyncd.client.job import Job
from timesyncd.client.torch.host_group import gather_objects
from timesyncd.client.torch.steps import steps_of
from timesyncd.ipc.job_datagram import Kind, loss_word, split_step
from timesyncd.training.policy.auto import Auto
from timesyncd.training.policy.learning import LearningVerdict, LearningWatch, LossComparison, LossPoint
from timesyncd.training.policy.policies import BSP
from timesyncd.training.policy.reference import read_reference
from timesyncd.training.policy.row import Row
from timesyncd.training.policy.text import Strategy
from timesyncd.training.torch.measurements import StepSummary


class Learning:
    """
    Marks the losses of this rank, and finds where the job learns worse than its reference.

    `reference`: the folder of a former run's recording, which rank 0 reads; None: the losses are marked only. Every rank
    of `rows` makes one at the same time. All ranks get the same rows in the same step, so they find the same.
    Raises ValueError and OSError where rank 0 cannot read the reference.
    """

    def __init__(self, job: Job, reference: Path | str | None, rows: dist.ProcessGroup) -> None:
        self._job = job
        self._watch = LearningWatch(_shared(reference, rows))
        self._is_plain = True
        self._former_step = 0
        self._is_worse = self._is_unfit = False

    def begin_strategy(self, strategy: Strategy, step: int) -> None:
        """
        What was learnt before `step`, under the former policy, does not count for this one. Plain BSP is never called
        worse: it is what the others are compared with.
        """
        self._watch.restart()
        self._is_plain = isinstance(strategy.policy, BSP | Auto) and strategy.compression is None
        self._former_step = step
        self._report(None)

    def mark(self, summary: StepSummary, step: int, unfit: int | None) -> None:
        """`unfit`: the first step in which this rank's loss or gradient was not finite; None: there was none."""
        key = self._key()
        for ago, loss in summary.losses:
            self._mark(key - ago, Kind.LOSS, loss)
        if not math.isnan(summary.validation):
            self._mark(key, Kind.VALIDATION, summary.validation)
        if unfit is not None and not self._is_unfit:
            self._is_unfit = True
            self._mark(key - (step - unfit), Kind.LOSS, math.nan)

    def update(self, rows: Sequence[Row], step: int) -> str | None:
        """
        Why the policy in force is taken back; None: the job keeps up, or nothing is known. `step`: the one under way.

        A row's loss is the mean of steps since the row before. Which ones is not known, so it counts as of the first of
        them, where the reference's loss was highest: so no policy is called worse for that.
        """
        former, losses = self._former_step, [row.loss for row in rows if not math.isnan(row.loss)]
        if self._is_plain or rows[0].step <= former or not losses:
            return None
        self._former_step = rows[0].step
        found = self._watch.add(LossPoint(self._key() - (step - former), statistics.fmean(losses)))
        if found is None:
            return None
        self._report(found)
        return _reason(found) if found.verdict is LearningVerdict.WORSE else None

    def _report(self, found: LossComparison | None) -> None:
        """To the hub, by rank 0: the least by which the loss is higher; NaN: it is not."""
        was_worse, self._is_worse = self._is_worse, found is not None and found.verdict is LearningVerdict.WORSE
        if self._job.rank or not (was_worse or self._is_worse):
            return
        least = math.inf if found is None or found.low is None else found.low
        self._mark(self._key(), Kind.LEARNING, least if self._is_worse else math.nan)
        if found is not None and self._is_worse and not was_worse:
            warnings.warn(f"job {self._job.name}: {_reason(found)}", stacklevel=2)

    def _key(self) -> int:
        """Of the step that is under way."""
        return self._job.meter.step_key(steps_of(self._job).step)

    def _mark(self, key: int, kind: Kind, value: float) -> None:
        """A step of before the epoch, or of before the first one, is none."""
        if key >= 0 and split_step(key)[0] == split_step(self._key())[0]:
            now_ns = time.time_ns()
            self._job.meter.mark_at(key, 0, now_ns, now_ns, now_ns, kind, loss_word(value))


def _shared(reference: Path | str | None, rows: dist.ProcessGroup) -> list[LossPoint]:
    """Rank 0's, on all ranks. What it cannot read, all ranks raise."""
    own: Any = None
    if rows.rank() == 0 and reference is not None:
        try:
            own = read_reference(Path(reference))
        except (OSError, ValueError) as error:
            own = error
    found = gather_objects(own, rows)[0]
    if isinstance(found, Exception):
        raise found
    return found or []


def _reason(found: LossComparison) -> str:
    if found.change is None or found.low is None:
        return found.reason
    return (
        f"the loss is {found.change:.1%} above that of the reference at equal steps (95 %: {found.low:.1%} "
        f"or more, by {found.values} values)"
    )
