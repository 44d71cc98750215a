"""
Whether one training run learns worse than another, by the losses of both at equal steps or at equal times. Pure.

The losses scatter from batch to batch, and neighbours correlate. So the differences are averaged in blocks, and a
one-sided test by Student compares the mean of the blocks with what counts as worse (batch means: Law and Kelton,
Simulation Modeling and Analysis, Sec. 9.5.3).

The test knows the noise of the batches, and not that of another seed: two runs of one method with different seeds may
differ for good. `TOLERANCE` is for that.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

#: A run learns worse where its loss is higher than the reference's by more than this share of it. It is chosen: half of
#: the rise of the validation loss for which `auto` takes a choice back.
TOLERANCE = 0.01

#: The probability that a run whose loss is not higher by more than TOLERANCE is called worse: of one comparison, and of
#: all looks of a watch together. In 400 simulated pairs of runs with correlations of 0 to 0.9 from value to value it was
#: at most 2 of 100 by 16 values, and 1 of 100 by 60 and more.
ERROR_RATE = 0.01

#: The blocks that are compared: fewer have no usable variance; with more, neighbours would correlate.
MIN_BLOCKS, MAX_BLOCKS = 8, 16

#: Half of the interval that is reported is of this probability.
_INTERVAL_TAIL = 0.025

#: The largest correlation of neighbouring blocks that is corrected for; and how many of its estimate's standard errors
#: are added to it.
_MAX_CORRELATION, _SCATTER = 0.9, 2.0


@dataclass(frozen=True, slots=True)
class LossPoint:
    """
    The loss of one step. `elapsed_ns`: how long after the run's first step; None: unknown.
    """

    step: int
    loss: float
    elapsed_ns: int | None = None


class LearningVerdict(StrEnum):
    """How a run learns, compared with its reference."""

    WORSE = "worse"  #: its loss is higher by more than TOLERANCE, or not finite
    KEEPS_UP = "keeps_up"  #: its loss is surely not higher by more than TOLERANCE
    UNDECIDED = "undecided"  #: the values scatter too much for either
    UNKNOWN = "unknown"  #: nothing can be compared, for the reason


class NoComparison(StrEnum):
    """Why two runs are not compared. Programs decide by it; the sentence beside it is for people."""

    NO_LOSSES = "no_losses"
    NO_REFERENCE = "no_reference"
    REFERENCE_NOT_FINITE = "reference_not_finite"
    REFERENCE_NOT_POSITIVE = "reference_not_positive"
    NO_OVERLAP = "no_overlap"
    TOO_FEW_VALUES = "too_few_values"


@dataclass(frozen=True, slots=True)
class LossComparison:
    """
    `change`: the mean difference of the losses, as a share of the reference's mean; positive: this run's are higher.
    `low`, `high`: its 95 % interval. None: unknown. `values`: how many pairs of losses were compared.
    """

    verdict: LearningVerdict
    values: int
    reference: float | None = None
    current: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    reason_code: NoComparison | None = None
    reason: str = ""


def compare_at_steps(
    reference: Sequence[LossPoint], current: Sequence[LossPoint], error_rate: float = ERROR_RATE
) -> LossComparison:
    """The losses of both runs at the steps of `current`; between two steps of `reference` its loss is a straight line."""
    return _compare(
        [(float(point.step), point.loss) for point in reference],
        [(float(point.step), point.loss) for point in current],
        error_rate,
        "step",
    )


def compare_at_times(
    reference: Sequence[LossPoint], current: Sequence[LossPoint], error_rate: float = ERROR_RATE
) -> LossComparison:
    """The losses of both runs equally long after their first steps."""
    return _compare(_timed(reference), _timed(current), error_rate, "time")


def _timed(points: Sequence[LossPoint]) -> list[tuple[float, float]]:
    return [(float(point.elapsed_ns), point.loss) for point in points if point.elapsed_ns is not None]


def _compare(
    reference: Sequence[tuple[float, float]], current: Sequence[tuple[float, float]], error_rate: float, axis: str
) -> LossComparison:
    """Each point is a step or a time, and a loss."""
    if not current:
        return _unknown(NoComparison.NO_LOSSES, "this run has no losses: call record_loss(loss) in each step")
    if not reference:
        return _unknown(NoComparison.NO_REFERENCE, "the reference has no losses: call record_loss(loss) in each step")
    if not all(math.isfinite(loss) for _, loss in reference):
        return _unknown(NoComparison.REFERENCE_NOT_FINITE, "a loss of the reference is not finite")
    unfit = next((place for place, loss in current if not math.isfinite(loss)), None)
    if unfit is not None:
        where = f" in step {unfit:.0f}" if axis == "step" else ""
        return LossComparison(LearningVerdict.WORSE, len(current), reason=f"its loss is not finite{where}")
    pairs = _paired(sorted(reference), sorted(current))
    if not pairs:
        return _unknown(NoComparison.NO_OVERLAP, f"the runs have no {axis} in common")
    return _judged(pairs, error_rate)


def _unknown(code: NoComparison, reason: str, values: int = 0) -> LossComparison:
    return LossComparison(LearningVerdict.UNKNOWN, values, reason_code=code, reason=reason)


def _paired(
    reference: Sequence[tuple[float, float]], current: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The reference's loss and the current one, where the reference has losses before and after."""
    places = [place for place, _ in reference]
    found = []
    for place, loss in current:
        if not places[0] <= place <= places[-1]:
            continue
        at = bisect_left(places, place)
        (before, lower), (after, upper) = reference[max(0, at - 1)], reference[at]
        part = (place - before) / (after - before) if after > before else 1.0
        found.append((lower + part * (upper - lower), loss))
    return found


def _judged(pairs: Sequence[tuple[float, float]], error_rate: float) -> LossComparison:
    if len(pairs) < MIN_BLOCKS:
        reason = f"only {len(pairs)} losses can be compared; {MIN_BLOCKS} are needed"
        return _unknown(NoComparison.TOO_FEW_VALUES, reason, len(pairs))
    reference = statistics.fmean(before for before, _ in pairs)
    current = statistics.fmean(after for _, after in pairs)
    blocks = _relative_differences(pairs)
    if blocks is None:
        return _unknown(NoComparison.REFERENCE_NOT_POSITIVE, "a loss of the reference is not above 0", len(pairs))
    error = _standard_error(blocks)
    change, freedom = statistics.fmean(blocks), len(blocks) - 1
    half = student_quantile(1 - _INTERVAL_TAIL, freedom) * error
    sure = student_quantile(1 - error_rate, freedom) * error
    verdict = LearningVerdict.UNDECIDED
    if change - sure > TOLERANCE:
        verdict = LearningVerdict.WORSE
    elif change + sure < TOLERANCE:
        verdict = LearningVerdict.KEEPS_UP
    return LossComparison(verdict, len(pairs), reference, current, change, change - half, change + half)


def _relative_differences(pairs: Sequence[tuple[float, float]]) -> list[float] | None:
    """
    Of blocks of equally many neighbours, the difference of their means as a share of the reference's, which falls as the
    runs learn. The oldest pairs that fill no block are left out. None: a block of the reference is not above 0.
    """
    blocks = min(MAX_BLOCKS, len(pairs))
    length = len(pairs) // blocks
    kept = pairs[len(pairs) - blocks * length :]
    found = []
    for begin in range(0, len(kept), length):
        before = math.fsum(pair[0] for pair in kept[begin : begin + length])
        after = math.fsum(pair[1] for pair in kept[begin : begin + length])
        if before <= 0:
            return None
        found.append((after - before) / before)
    return found


def _standard_error(blocks: Sequence[float]) -> float:
    """
    Of the blocks' mean, as that of a first-order process with their correlation. An estimate of it by so few values is
    too small by (1 + 3 r) / n (Marriott and Pope, Biometrika 1954), and scatters by 1 / sqrt(n): both are added, the
    latter twice. A difference that drifts counts as such a process too, and so is less sure.
    """
    variance = statistics.variance(blocks)
    if variance == 0:
        return 0.0
    mean, count = statistics.fmean(blocks), len(blocks)
    products = math.fsum((before - mean) * (after - mean) for before, after in pairwise(blocks))
    found = products / ((count - 1) * variance)
    assumed = found + (1 + 3 * max(0.0, found)) / count + _SCATTER / math.sqrt(count)
    assumed = min(_MAX_CORRELATION, max(0.0, assumed))
    return math.sqrt(variance / count * (1 + assumed) / (1 - assumed))


def student_quantile(probability: float, freedom: int) -> float:
    """
    Of Student's distribution, by the expansion in 1 / freedom (Abramowitz and Stegun 26.7.5); from 7 degrees on within
    1 % for the probabilities that are used here.
    """
    z = statistics.NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


@dataclass(slots=True)
class LearningWatch:
    """
    Compares a running job with its reference, again and again, from the newest change of its policy on.

    It looks at 8, 16, 32, ... values. The first look has half of ERROR_RATE, each later one half of the one before, so
    that all looks after one change together stay below it.
    """

    reference: Sequence[LossPoint] = ()
    _points: list[LossPoint] = field(default_factory=list)
    _looks: int = 0

    def restart(self) -> None:
        """Another policy is in force: what was learnt before does not count for it."""
        self._points, self._looks = [], 0

    def add(self, point: LossPoint) -> LossComparison | None:
        """The comparison, where it is due; None: not with this value."""
        if not self.reference:
            return None
        self._points.append(point)
        if not math.isfinite(point.loss):
            return compare_at_steps(self.reference, self._points)
        if len(self._points) < MIN_BLOCKS << self._looks:
            return None
        self._looks += 1
        return compare_at_steps(self.reference, self._points, ERROR_RATE / 2**self._looks)
