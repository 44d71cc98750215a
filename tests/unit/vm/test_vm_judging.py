"""Only moments of which nothing can be known yet are excluded, and their misses are counted too."""

from __future__ import annotations

from typing import Any

import pytest
from vm_judging import Disturbance, excluding, lines, miss_lines, tally
from vm_truth import Claim, Moment, Verdict

SYNC_S = 0.125
MS = 1_000_000


def moment(at_ms: float, verdict: Verdict, *, asked_ms: float | None = None, **values: Any) -> Moment:
    """One tick a nanosecond. The truth is known to 1 us."""
    claim = Claim("gm", "realtime", 0, 0, 0, 0, 0, 0, "SYNCHRONIZED", "-")
    known = {} if verdict is Verdict.UNKNOWN else {"offset_ns": 3_000.0, "truth_error_ns": 1_000.0, "bound_ns": 9_000.0}
    asked = at_ms if asked_ms is None else asked_ms
    return Moment(claim, at_ms * MS, asked * MS, verdict, **(known | values))


STEP = Disturbance("step", 1_000 * MS, 1_020 * MS)


@pytest.mark.parametrize(
    ("at_ms", "excluded"), [(999, False), (1_001, True), (1_020, True), (1_269, True), (1_271, False), (5_000, False)]
)
def test_two_sync_intervals_after_a_step_are_excluded_and_no_more(at_ms: int, excluded: bool) -> None:
    """From the earliest moment of the step to 250 ms after the latest one."""
    found = excluding(at_ms * MS, [STEP], 2 * SYNC_S * 1e9)

    assert (found is STEP) is excluded


def test_misses_are_counted_in_and_outside_of_what_is_excluded() -> None:
    """The share that is excluded has its misses, and how long after the step the last one came."""
    moments = [
        moment(500, Verdict.HELD),
        moment(1_010, Verdict.MISSED),
        moment(1_200, Verdict.MISSED),
        moment(1_260, Verdict.HELD),
        moment(1_300, Verdict.MISSED, offset_ns=20_000.0),
        moment(1_400, Verdict.OPEN),
        moment(1_500, Verdict.UNKNOWN),
    ]

    found = tally("gm", moments, [STEP], SYNC_S, 1.0)

    assert (found.moments, found.excluded, found.excluded_missed) == (7, 3, 2)
    assert (found.judged, found.held, found.missed, found.open, found.unknown) == (3, 1, 1, 1, 1)
    assert found.last_miss_s == pytest.approx(0.18)
    assert found.worst_ratio == pytest.approx(20 / 9)
    assert "1 of 3 moments missed" in lines(found)[0] and "42.9% excluded, 2 misses" in lines(found)[0]
    assert len(miss_lines(moments, [STEP], 2 * SYNC_S * 1e9)) == 1


def test_a_translation_is_excluded_by_its_moment_and_by_when_it_was_asked() -> None:
    """Of a moment right after the step nothing is known, whenever it is asked; of one long before it is known, once the Sync has come."""
    moments = [
        moment(1_100, Verdict.MISSED, asked_ms=3_000),
        moment(500, Verdict.MISSED, asked_ms=1_100),
        moment(500, Verdict.MISSED, asked_ms=3_000),
    ]

    found = tally("gm", moments, [STEP], SYNC_S, 1.0)

    assert (found.excluded, found.missed) == (2, 1)


def test_other_kinds_do_not_count() -> None:
    """Each kind of claim has a tally of its own."""
    assert tally("utc", [moment(1, Verdict.HELD)], [], SYNC_S, 1.0).moments == 0


@pytest.mark.parametrize(("vague", "counts"), [(0, True), (5, True), (6, False), (100, False)])
def test_a_run_on_a_busy_machine_does_not_count(vague: int, counts: bool) -> None:
    """Where more than a twentieth of the truths is vaguer than 10 us the machine was too busy to tell."""
    moments = [moment(at, Verdict.HELD, truth_error_ns=50_000.0 if at < vague else 900.0) for at in range(100)]

    assert tally("gm", moments, [], SYNC_S, 1.0).counts is counts


def test_a_run_without_a_known_moment_does_not_count() -> None:
    """A client that knows nothing proves nothing."""
    assert not tally("gm", [moment(1, Verdict.UNKNOWN)], [], SYNC_S, 1.0).counts
