"""
When a rank became late, when that ended, and whether its lateness grows: change points and trends, with few false
alarms. Pure.

Sources: Wilcoxon 1945, Mann and Whitney 1947, Pettitt 1979 (change point by ranks), Olshen et al. 2004 (circular binary
segmentation), Mann 1945 and Kendall 1975 (trend), Theil 1950 and Sen 1968 (slope), Geyer 1992 (autocorrelation time).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise

from timesyncd.jobs.arrivals import Sync, step_ns, widest_skew_sync
from timesyncd.jobs.lateness import FALSE_ALARM, MIN_CONCLUSIVE_STEPS
from timesyncd.jobs.recording import same_step
from timesyncd.jobs.stragglers import MIN_LATENESS_NS, STEP_PART, Straggler, stragglers_in
from timesyncd.units import SIGMA_PER_MAD, percentile

#: A change is sought in the medians of at most so many blocks of steps, a spell and a trend of at most so many: there
#: the work grows with the square.
_MAX_BLOCKS = 1_000
_MAX_PAIRED_BLOCKS = 100

#: Of fewer independent blocks the tests' probabilities, which hold for many, are not used.
_MIN_INDEPENDENT = 16

#: Values beyond so many standard deviations count as that many for the autocorrelation: one pause is no correlation.
_CLIPPED_AT = 5

#: A rank's lateness is divided so many times at most, so into twice as many spans, four times as many, ...
_MAX_DEPTH = 3

#: A growth is reported if it is at least this part of the lateness.
_GROWTH_PART = 0.5


@dataclass(frozen=True, slots=True)
class Trend:
    """A lateness that grows or shrinks steadily, from `first_ns` at the begin of its span to `last_ns` at its end."""

    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class LateSpan:
    """
    A rank that is late from the step with the key `first` to that with the key `last`. `began`: it was not before, or
    by another amount; `ended`: it is not after that. `straggler` is of these steps only.
    """

    straggler: Straggler
    first: int
    last: int
    began: bool
    ended: bool
    trend: Trend | None


def late_spans(syncs: Sequence[Sync], families: int = 1) -> list[LateSpan]:
    """
    The spans of the steps in which a rank is late, of the ranks whose lateness changes in these synchronizations, by
    their order in time. A rank that is late throughout, always alike, has none.

    For a job whose ranks are all alike the probability of any span is at most FALSE_ALARM: a test must find a
    change, or Mann and Kendall's a trend, with Bonferroni's correction over the ranks, after correction for the
    autocorrelation; and in its span the rank must be a straggler by the tests of `stragglers`. `families`: so many sets
    of ranks are searched, so each has one part in so many of the probability.
    """
    steps = [(key, group) for key, group in same_step(syncs) if widest_skew_sync(group).comparison is not None]
    lateness_ns = _lateness_ns([group for _, group in steps])
    floor_ns = max(MIN_LATENESS_NS, (step_ns(syncs) or 0) // STEP_PART)
    found = []
    for rank, values_ns in lateness_ns.items():
        alpha = FALSE_ALARM / len(lateness_ns) / families
        for part in _parts(values_ns, 0, len(values_ns), alpha, floor_ns):
            whole = part.start == 0 and part.stop == len(steps)
            if percentile(values_ns[part.start : part.stop], 50) <= floor_ns or (whole and part.trend is None):
                continue
            within = [sync for _, group in steps[part.start : part.stop] for sync in group]
            late = next((one for one in stragglers_in(within) if one.rank == rank), None)
            if late is not None and late.verdict == "straggler":
                first, last = steps[part.start][0], steps[part.stop - 1][0]
                found.append(LateSpan(late, first, last, part.start > 0, part.stop < len(steps), part.trend))
    return sorted(found, key=lambda span: (span.first, span.last, span.straggler.rank))


def _lateness_ns(steps: Sequence[Sequence[Sync]]) -> dict[int, list[int]]:
    """By rank, step by step: its lateness at the synchronization with the widest skew; only ranks that are in all."""
    found: dict[int, list[int]] = {}
    for step in steps:
        comparison = widest_skew_sync(step).comparison
        for rank, late_ns in comparison.lateness_ns.items() if comparison is not None else ():
            found.setdefault(rank, []).append(late_ns)
    return {rank: values for rank, values in sorted(found.items()) if len(values) == len(steps)}


@dataclass(frozen=True, slots=True)
class _Part:
    start: int
    stop: int
    trend: Trend | None


def _parts(values: Sequence[int], start: int, stop: int, alpha: float, floor: int, depth: int = 0) -> list[_Part]:
    """Steps `start` to `stop` as parts without a change; each level of division has half of the level before."""
    part = values[start:stop]
    changes = change_points(part, alpha / 4)
    trend = trend_of(part, alpha / 4)
    if trend is not None and (not changes or _trend_error(part, trend) <= _change_error(part, changes)):
        grown = abs(trend.last_ns - trend.first_ns)
        material = grown >= max(floor, _GROWTH_PART * abs(percentile(part, 50)))
        return [_Part(start, stop, trend if material else None)]
    edges = [0, *changes, len(part)]
    levels = [_level(part[first:last]) for first, last in pairwise(edges)]
    if not changes or depth == _MAX_DEPTH or max(abs(a - b) for a, b in pairwise(levels)) <= floor:
        return [_Part(start, stop, None)]
    rest = alpha / 2 / len(levels)
    return [
        found
        for first, last in pairwise(edges)
        for found in _parts(values, start + first, start + last, rest, floor, depth + 1)
    ]


def change_points(values: Sequence[int], alpha: float) -> list[int]:
    """
    The indices, one or two, at which the level of the values changes; empty: none, or explicable by chance with
    probability `alpha`. Two are the ends of a spell.

    Before against after each index, and within each interval against outside (circular binary segmentation), by the
    rank sums of Wilcoxon and Mann and Whitney, so no distribution is assumed. Bonferroni's correction is over all
    indices, and over all intervals. Autocorrelation widens the sums by the square root of its time.
    """
    if len(values) < 2 * MIN_CONCLUSIVE_STEPS:
        return []
    for most, inner in ((_MAX_BLOCKS, False), (_MAX_PAIRED_BLOCKS, True)):
        size, blocks = _blocks(values, most)
        found = _most_apart(blocks, inner)
        if found is not None and found.chance < alpha / 2:
            middle = (found.first + found.last) * size // 2 if found.first else 0
            begins = [_split(values[:middle], 0)] if found.first else []
            edges = [0, *begins, _split(values[middle:], middle), len(values)]
            return edges[1:-1] if all(b - a >= MIN_CONCLUSIVE_STEPS for a, b in pairwise(edges)) else []
    return []


@dataclass(frozen=True, slots=True)
class _Interval:
    """The blocks from `first` to before `last`, and the probability that chance sets any so far apart."""

    first: int
    last: int
    chance: float


def _most_apart(blocks: Sequence[float], inner: bool) -> _Interval | None:
    """The interval that differs most from the rest: up to one block, or (`inner`) any. None: too few are independent."""
    sums = [0.0, *accumulate(_ranks(blocks))]
    count = len(blocks)
    tests = count * count / 2 if inner else count
    starts = range(1, count - 1) if inner else range(1)
    deviates, first, last = max(
        ((_deviates(sums, a, b), a, b) for a in starts for b in range(a + 1, count)), default=(0.0, 0, 0)
    )
    if not deviates:
        return None
    time = _autocorrelation_time(_residuals(blocks[first:last]) + _residuals([*blocks[:first], *blocks[last:]]))
    if count / time < _MIN_INDEPENDENT:
        return None
    return _Interval(first, last, tests * math.erfc(deviates / math.sqrt(2 * time)))


def _deviates(sums: Sequence[float], first: int, last: int) -> float:
    """By how many standard deviations the rank sum from index `first` to `last` differs from its expectation."""
    count, own = len(sums) - 1, last - first
    excess = sums[last] - sums[first] - own * (count + 1) / 2
    return abs(excess) / math.sqrt(own * (count - own) * (count + 1) / 12)


def _split(values: Sequence[int], offset: int) -> int:
    """The index, counted from `offset`, that best divides the values into two levels."""
    sums = [0.0, *accumulate(_ranks(values))]
    return offset + max(range(1, len(values)), key=lambda at: _deviates(sums, 0, at))


def trend_of(values: Sequence[int], alpha: float) -> Trend | None:
    """The line of Theil and Sen; None: the test of Mann and Kendall explains it by chance with probability `alpha`."""
    if len(values) < 2 * MIN_CONCLUSIVE_STEPS:
        return None
    _, blocks = _blocks(values, _MAX_PAIRED_BLOCKS)
    count = len(blocks)
    pairs = list(combinations(range(count), 2))
    score = sum((blocks[b] > blocks[a]) - (blocks[b] < blocks[a]) for a, b in pairs)
    slopes = sorted((blocks[b] - blocks[a]) / (b - a) for a, b in pairs)
    slope = slopes[len(slopes) // 2]
    lined = [value - slope * at for at, value in enumerate(blocks)]
    time = _autocorrelation_time(_residuals(lined))
    if count / time < _MIN_INDEPENDENT:
        return None
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18 * time)
    if math.erfc(abs(score) / deviation / math.sqrt(2)) >= alpha:
        return None
    middle = sorted(lined)[count // 2]
    return Trend(round(middle), round(middle + slope * (count - 1)))


def _blocks(values: Sequence[int], most: int) -> tuple[int, list[float]]:
    """The size of a block of steps, and the median of each."""
    size = -(-len(values) // most)
    return size, [_level(values[at : at + size]) for at in range(0, len(values) - size + 1, size)]


def _level(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1, equal ones with their mean."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    ranks = [0.0] * len(values)
    first = 0
    for last, at in enumerate(order):
        if last + 1 == len(order) or values[order[last + 1]] != values[at]:
            for equal in order[first : last + 1]:
                ranks[equal] = (first + last) / 2 + 1
            first = last + 1
    return ranks


def _residuals(values: Sequence[float]) -> list[float]:
    """The values, limited to _CLIPPED_AT standard deviations around their median, minus their mean."""
    middle = _level(values)
    limit = _CLIPPED_AT * SIGMA_PER_MAD * _level([abs(value - middle) for value in values])
    clipped = [min(max(value - middle, -limit), limit) for value in values]
    mean = math.fsum(clipped) / len(clipped)
    return [value - mean for value in clipped]


def _autocorrelation_time(residuals: Sequence[float]) -> float:
    """
    The integrated autocorrelation time in blocks, at least 1: Geyer's sum, or the time of a first-order process with
    the correlation of lag 1, whichever is longer.

    The estimate of that correlation is too small by (1 + 3 r) / n (Kendall 1954), and one standard error is added: of
    few blocks, or of slow ones, no change can be sure.
    """
    count = len(residuals)
    variance = math.fsum(value * value for value in residuals)
    if not variance:
        return 1.0

    def correlation(lag: int) -> float:
        return math.fsum(a * b for a, b in zip(residuals, residuals[lag:], strict=False)) / variance

    first = correlation(1)
    time = 1 + 2 * first
    for lag in range(2, count // 3, 2):
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= 0:
            break
        time += 2 * pair
    first = max(0.0, first)
    first = min(0.999, first + (1 + 3 * first) / count + math.sqrt((1 - first * first) / count))
    return max(1.0, time, (1 + first) / (1 - first))


def _change_error(values: Sequence[int], changes: Sequence[int]) -> float:
    parts = [values[first:last] for first, last in pairwise([0, *changes, len(values)])]
    return math.fsum(abs(value - level) for part in parts for level in (_level(part),) for value in part)


def _trend_error(values: Sequence[int], trend: Trend) -> float:
    slope = (trend.last_ns - trend.first_ns) / max(1, len(values) - 1)
    return math.fsum(abs(value - trend.first_ns - slope * at) for at, value in enumerate(values))
