"""Since when a rank is late, when that ended, how it grows, and no span in a job without a change."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from audit_lab import MS, job, noisy

from timesyncd.jobs.lateness import FALSE_ALARM
from timesyncd.jobs.onset import LateSpan, change_points, late_spans, trend_of


def spans(late_ms: Callable[[int, int], float], ranks: int = 2, steps: int = 300, seed: int = 1) -> list[LateSpan]:
    computing = noisy(seed)
    recording = job(steps, ranks, lambda rank, step: computing(rank, step) + round(late_ms(rank, step) * MS), (MS,))
    return late_spans(recording.syncs)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("since", [60, 210, 260])
def test_a_rank_that_becomes_late_has_its_onset(ranks: int, since: int) -> None:
    """Rank 1 is 3 ms late since one step: that step is found within three, and the lateness is of the steps after it."""
    (span,) = spans(lambda rank, step: 3 * (rank == 1 and step >= since), ranks)

    assert (span.straggler.rank, span.began, span.ended, span.trend) == (1, True, False, None)
    assert abs(span.first - since) <= 3
    assert span.straggler.lateness_p50_ns == pytest.approx(3 * MS, rel=0.1)


def test_a_cause_that_moves_has_a_span_for_each_rank() -> None:
    """Rank 1 is late in the first third, rank 2 in the last one."""
    found = spans(lambda rank, step: 4 * ((rank == 1 and step < 100) or (rank == 2 and step >= 200)), ranks=4)

    assert [(span.straggler.rank, span.began, span.ended) for span in found] == [(1, False, True), (2, True, False)]
    assert abs(found[0].last - 99) <= 3
    assert abs(found[1].first - 200) <= 3


def test_a_spell_in_the_middle_has_both_ends() -> None:
    """Rank 3 is late in steps 100 to 199 of 400."""
    (span,) = spans(lambda rank, step: 4 * (rank == 3 and 100 <= step < 200), ranks=4, steps=400)

    assert (span.straggler.rank, span.began, span.ended) == (3, True, True)
    assert abs(span.first - 100) <= 3
    assert abs(span.last - 199) <= 3


def test_a_lateness_that_grows_is_a_trend_and_no_onset() -> None:
    """Rank 0 is later by 0.02 ms in each step: from nothing to 6 ms."""
    (span,) = spans(lambda rank, step: 0.02 * step * (rank == 0), ranks=4)

    assert (span.straggler.rank, span.began, span.ended) == (0, False, False)
    assert span.trend is not None
    assert abs(span.trend.first_ns) < MS // 2
    assert span.trend.last_ns == pytest.approx(6 * MS, rel=0.1)


@pytest.mark.parametrize("late_ms", [0, 3])
def test_without_a_change_there_is_no_span(late_ms: int) -> None:
    """Equal ranks, and a rank that is late throughout, of 60 jobs each."""
    assert not [
        seed
        for seed in range(60)
        if spans(lambda rank, step: late_ms * (rank == 1), ranks=2 + seed % 3, steps=100, seed=seed)
    ]


def slow(seed: int, steps: int, correlation: float) -> list[int]:
    """Lateness that wanders: each value keeps a part of the one before; every second series has a long tail."""
    chance = random.Random(seed)
    value, found = 0.0, []
    for _ in range(steps):
        value = correlation * value + chance.gauss(0, math.sqrt(1 - correlation**2))
        found.append(round(MS * (math.exp(1.5 * value) if seed % 2 else value)))
    return found


@pytest.mark.parametrize("steps", [40, 100, 300])
def test_series_without_a_change_have_none(steps: int) -> None:
    """At a stated rate of 1 in 100, at most 3 of 100 series of any correlation have a change, or a trend."""
    for correlation in (0.0, 0.3, 0.5, 0.8, 0.95):
        series = [slow(seed, steps, correlation) for seed in range(100)]

        assert sum(bool(change_points(values, 0.01)) for values in series) <= 3
        assert sum(trend_of(values, 0.01) is not None for values in series) <= 3


def test_no_healthy_rank_has_a_span() -> None:
    """Ranks that are alike, each slow in spells of tens of steps: of 150 jobs none names a rank."""
    named = 0
    for seed in range(150):
        ranks = 2 + seed % 3
        wander = [slow(2 * (1_000 * seed + rank), 200, 0.9) for rank in range(ranks)]
        named += bool(spans(lambda rank, step, of=wander: of[rank][step] / MS, ranks, 200, seed))  # type: ignore[misc]

    assert named <= max(1, round(150 * FALSE_ALARM))


@pytest.mark.parametrize("values", [[], [1] * 19, [5] * 400, [0, 1] * 5])
def test_what_shows_nothing_has_no_change(values: list[int]) -> None:
    """Too few values, or equal ones."""
    assert change_points(values, 0.5) == []
    assert trend_of(values, 0.5) is None
