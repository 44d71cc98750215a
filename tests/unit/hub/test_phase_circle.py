"""Places on one circle for jobs of equal and of different periods."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timesyncd.hub.phase_fit import MAX_STRETCH, MIN_SLACK, Load, PeriodicSend, arrangements

MS = 1_000_000


def load(alone_ms: int, arc_ms: int, sends_ms: int = 0) -> Load:
    return Load(alone_ms * MS, alone_ms * MS, arc_ms * MS, sends_ms * MS)


def first(**loads: Load) -> dict[str, PeriodicSend]:
    return next(arrangements(loads), {})


def overlaps_ns(found: dict[str, PeriodicSend], loads: dict[str, Load]) -> int:
    """How long two jobs of these send at once, on the circle of all their periods; stepped by 1 ms."""
    perimeter_ns = max(place.period_ns for place in found.values()) * 12
    overlap = 0
    for at_ns in range(0, perimeter_ns, MS):
        senders = sum((at_ns - place.sends_ns) % place.period_ns < loads[job].arc_ns for job, place in found.items())
        overlap += max(0, senders - 1) * MS
    return overlap


def test_two_equal_halves_are_put_opposite_each_other() -> None:
    """The period is longer than the step by the least slack, and the room that it gives is shared."""
    found = first(a=load(200, 100), b=load(200, 100))
    period_ns = found["a"].period_ns

    assert period_ns == pytest.approx(200 * MS * (1000 + MIN_SLACK) / 1000, rel=1e-6)
    assert found["b"].period_ns == period_ns
    assert abs(found["a"].sends_ns - found["b"].sends_ns) == pytest.approx(period_ns / 2, rel=0.01)


def test_one_of_two_jobs_in_phase_stays_where_it_is() -> None:
    """Only one has to be moved, and holds only move forward."""
    found = first(a=load(200, 100, 5_000), b=load(200, 100, 5_000))
    stays = [place for place in found.values() if abs(place.sends_ns - 5_000 * MS % place.period_ns) < 2 * MS]

    assert len(stays) == 1


def test_jobs_that_do_not_meet_are_not_moved() -> None:
    """Their places are the ones that they have."""
    found = first(a=load(200, 40, 10), b=load(200, 40, 110))

    assert [place.sends_ns / MS for place in found.values()] == pytest.approx([10, 110], abs=2)


def test_a_step_that_varies_gets_more_slack() -> None:
    """What nine of ten steps need; and never less than the least."""
    varied, even = Load(200 * MS, 216 * MS, 100 * MS, 0), Load(200 * MS, 202 * MS, 100 * MS, 0)

    assert (varied.needed_ns, even.needed_ns) == (216 * MS, 208 * MS)


def test_jobs_that_send_more_than_the_time_get_a_longer_circle() -> None:
    """Three halves need one and a half periods."""
    found = first(a=load(200, 100), b=load(200, 100), c=load(200, 100))

    assert found["a"].period_ns == pytest.approx(312 * MS, rel=1e-6)


def test_a_job_of_half_the_period_appears_twice() -> None:
    """The circle is a whole number of every job's period."""
    loads = {"a": load(400, 60), "b": load(198, 60)}
    found = first(**loads)

    assert found["a"].period_ns == 2 * found["b"].period_ns
    assert overlaps_ns(found, loads) == 0


@pytest.mark.parametrize(
    "loads",
    [
        {"a": load(400, 200), "b": load(130, 65)},
        {"a": load(2_000, 100), "b": load(200, 100)},
        {"a": load(200, 190), "b": load(200, 190)},
    ],
)
def test_what_does_not_fit_has_no_places(loads: dict[str, Load]) -> None:
    """Sending that has no gap for the other's, periods too different, or stretched by more than a hold may."""
    assert list(arrangements(loads)) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(100, 400), st.floats(0.02, 0.6), st.integers(0, 10_000)), min_size=2, max_size=4))
def test_places_never_overlap_nor_stretch_too_far(jobs: list[tuple[int, float, int]]) -> None:
    """Whatever the jobs: whole periods in one circle, all of the sending apart, no period shorter than its step."""
    loads = {str(number): load(alone, max(1, int(alone * share)), at) for number, (alone, share, at) in enumerate(jobs)}
    for found in arrangements(loads):
        assert overlaps_ns(found, loads) <= 0.02 * max(place.period_ns for place in found.values()) * 12
        for job, place in found.items():
            assert loads[job].alone_ns < place.period_ns <= loads[job].alone_ns * (1000 + MAX_STRETCH) / 1000 + 12
            assert 0 <= place.sends_ns < place.period_ns
        periods = [place.period_ns for place in found.values()]
        assert all(
            any(one * n == other * m for n in range(1, 5) for m in range(1, 5))
            for one, other in combinations(periods, 2)
        )


def test_the_steps_of_a_job_with_priority_are_stretched_least() -> None:
    """Of two ways to fit the jobs, its weight decides which of them waits."""
    a, b = load(200, 60), load(140, 40)
    alike = first(a=a, b=b)
    favoured = first(a=a._replace(weight=4), b=b)

    assert alike["a"].period_ns == 2 * alike["b"].period_ns > 290 * MS
    assert favoured["a"].period_ns == favoured["b"].period_ns < 210 * MS
