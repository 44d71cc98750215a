"""The losses that a job's ranks recorded, and the comparison of two runs by them. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from timesyncd.audit.report import EstimateReport, LearningReport
from timesyncd.jobs.recording import Recording
from timesyncd.training.policy.learning import (
    LearningVerdict,
    LossComparison,
    LossPoint,
    NoComparison,
    compare_at_steps,
    compare_at_times,
)

_At = Literal["steps", "time"]
_COMPARISONS: dict[_At, Callable[..., LossComparison]] = {"steps": compare_at_steps, "time": compare_at_times}


def loss_points(recording: Recording, is_validation: bool) -> list[LossPoint]:
    """
    By step the mean loss of the ranks that have one there, and how long after its own first step a rank ended it: the
    mean, each by its own clock; None where a rank's step has no mark.
    """
    losses: dict[int, list[float]] = defaultdict(list)
    elapsed: dict[int, list[int | None]] = defaultdict(list)
    for rank, marks in recording.losses.items():
        begins = [mark.arrival_ns for mark in recording.steps.get(rank, ())]
        for mark in marks:
            if mark.is_validation is not is_validation:
                continue
            of_step = recording.step_mark(rank, mark.step)
            losses[mark.step].append(mark.loss)
            elapsed[mark.step].append(None if of_step is None else of_step.end_ns - min(begins))
    return [LossPoint(step, _mean(losses[step]), _mean_ns(elapsed[step])) for step in sorted(losses)]


def _mean(losses: Sequence[float]) -> float:
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.nan


def _mean_ns(elapsed: Sequence[int | None]) -> int | None:
    known = [each for each in elapsed if each is not None]
    return sum(known) // len(known) if len(known) == len(elapsed) else None


def learning_reports(before: Recording, after: Recording) -> list[LearningReport]:
    """
    The training loss and the validation loss, at equal steps and at equal times. If neither run has a loss, one entry
    states that.
    """
    if not before.losses and not after.losses:
        return [_UNRECORDED]
    return list(_learning_reports(before, after))


_UNRECORDED = LearningReport(
    loss="training",
    at="steps",
    values=0,
    before=None,
    after=None,
    change=None,
    verdict=LearningVerdict.UNKNOWN,
    reason_code=NoComparison.NO_LOSSES,
    reason="no rank recorded a loss (record_loss, with TIMESYNCD_RECORD), and a hub keeps none",
    sentence="Whether it learns worse is unknown: no rank recorded a loss (record_loss, with TIMESYNCD_RECORD), and a hub keeps none.",
)


def _learning_reports(before: Recording, after: Recording) -> Iterator[LearningReport]:
    for is_validation in (False, True):
        old, new = loss_points(before, is_validation), loss_points(after, is_validation)
        if is_validation and not old and not new:
            return
        for at, compare in _COMPARISONS.items():
            found = compare(old, new)
            yield LearningReport(
                loss="validation" if is_validation else "training",
                at=at,
                values=found.values,
                before=found.reference,
                after=found.current,
                change=None
                if found.change is None
                else EstimateReport(value=found.change, low=found.low, high=found.high),
                verdict=found.verdict,
                reason_code=found.reason_code,
                reason=found.reason,
                sentence=_sentence(is_validation, at, found),
            )


_AXES: Mapping[_At, str] = {"steps": "at equal steps", "time": "after equal times"}


def _sentence(is_validation: bool, at: _At, found: LossComparison) -> str:
    name = f"The {'validation' if is_validation else 'training'} loss {_AXES[at]}"
    if found.verdict is LearningVerdict.UNKNOWN:
        return f"{name} is unknown: {found.reason}."
    if found.change is None or found.low is None or found.high is None:
        return f"{name} is worse: {found.reason}."
    span = f"{found.change:+.2%} (95 %: {found.low:+.2%} to {found.high:+.2%})"
    return f"{name} {_VERDICTS[found.verdict]}: {span}."


_VERDICTS = {
    LearningVerdict.WORSE: "is worse than before",
    LearningVerdict.KEEPS_UP: "keeps up with that of before",
    LearningVerdict.UNDECIDED: "scatters too much to say whether it keeps up",
}
