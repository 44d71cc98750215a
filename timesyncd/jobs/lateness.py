"""
Whether a rank is late persistently or by chance: a sign test over the steps, as far as these are independent. Pure.

Sources: Sokal 1997 and Geyer 1992 (integrated autocorrelation time), Van Vleck and Middleton 1966 (arcsine law).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain

#: The probability, for a job whose ranks are all alike, that any of them is called a straggler in one window.
FALSE_ALARM = 0.001

_ONE_IN = round(1 / FALSE_ALARM)

#: A pause lasts for several steps, so few consecutive steps are not independent: fewer than these name no rank.
MIN_CONCLUSIVE_STEPS = 10

#: The assumed correlation of lateness from step to step where the window does not show it; it weighs as much as so many
#: steps of one rank.
PRIOR_CORRELATION = 0.3
_PRIOR_STEPS = 2.5


def is_persistent(times_late: int, steps: int, tests: int) -> bool:
    """
    Whether a rank that arrived after the median in `times_late` of these steps did so by more than chance.

    In a job whose ranks are all alike a rank is late with a probability of at most 1/2. The probability that *any* of
    `tests` (ranks times positions) reaches the count must be below FALSE_ALARM: one-sided sign test, Bonferroni's
    correction. The steps have to be independent ones, see `independent_steps`.
    """
    return steps >= MIN_CONCLUSIVE_STEPS and times_late >= _min_times_late(steps, tests)


def independent_part(late: Sequence[AbstractSet[int]]) -> float:
    """
    The share of independent steps, at most 1, that carry the same information as all steps. `late`: step by step, the
    ranks that arrived after the median.

    It is 1 / (1 + 2 x the sum of the correlations of the lateness over the lags): the integrated autocorrelation time
    (Sokal 1997), summed while the pairs of lags are positive (Geyer 1992), and at least the time of a first-order
    process with the correlation of lag 1. It is computed over all ranks together, which share it in a job whose ranks
    are all alike. Where no rank is late only sometimes, the window does not show it, and it follows from
    PRIOR_CORRELATION.
    """
    correlations = _correlations(late)
    first = next(correlations, 0.0)
    time = _autocorrelation_time(chain([first], correlations), len(late) / MIN_CONCLUSIVE_STEPS)
    first = max(0.0, first)
    return min((1 - first) / (1 + first), 1 / time)


def independent_steps(times_late: int, steps: int, part: float) -> tuple[int, int]:
    """(times late, steps) as so many independent steps; a rank that was late in every step remains so."""
    whole = math.floor(part * steps)
    return whole - min(whole, math.ceil(part * (steps - times_late))), whole


def _autocorrelation_time(correlations: Iterator[float], enough: float) -> float:
    """
    The integrated autocorrelation time in steps, at least 1. The sum ends at `enough`: beyond that its value does not
    matter.
    """
    time, even = 0.0, 1.0
    for odd in correlations:
        if even + odd <= 0:
            break
        time += 2 * (even + odd)
        if time - 1 >= enough:
            break
        even = next(correlations, 0.0)
    return max(1.0, time - 1)


def _correlations(late: Sequence[AbstractSet[int]]) -> Iterator[float]:
    """
    The correlation of the lateness, lag by lag up to a third of the steps, from that of its signs by the arcsine law.
    """
    steps = len(late)
    signs: dict[int, int] = {}
    for at, ranks in enumerate(late):
        for rank in ranks:
            signs[rank] = signs.get(rank, 0) | 1 << at
    variance = math.fsum(count * (1 - count / steps) for count in (each.bit_count() for each in signs.values()))
    for lag in range(1, steps // 3 + 1):
        covariance = math.fsum(_covariance(each, steps, lag) for each in signs.values()) * steps / (steps - lag)
        correlation = (covariance + _PRIOR_STEPS * PRIOR_CORRELATION**lag) / (variance + _PRIOR_STEPS)
        yield math.sin(math.pi / 2 * min(1.0, max(-1.0, correlation)))


def _covariance(signs: int, steps: int, lag: int) -> float:
    """The sum over the steps for one rank, whose signs are bits."""
    mean = signs.bit_count() / steps
    before, after = signs & (1 << steps - lag) - 1, signs >> lag
    return (before & after).bit_count() - mean * (before.bit_count() + after.bit_count()) + mean**2 * (steps - lag)


@lru_cache(maxsize=1_024)
def _min_times_late(steps: int, tests: int) -> int:
    """
    The least count that names a rank; more than `steps`: none does. Computed in integers, since a float overflows.
    """
    limit = 2**steps
    ways = tail = 1
    for early in range(steps // 2 + 1):
        if tail * tests * _ONE_IN >= limit:
            return steps - early + 1
        ways = ways * (steps - early) // (early + 1)
        tail += ways
    return steps // 2 + 1
