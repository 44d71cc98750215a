"""A rank's waits in a step, in all its groups together: an instant counts once, and what goes on counts in the next step."""

from __future__ import annotations

import random

from timesyncd.client import step_waits
from timesyncd.client.step_waits import StepWaits


def test_overlapping_waits_count_once_in_any_order() -> None:
    """As a set of instants, for random intervals."""
    chance = random.Random(1)
    for _ in range(200):
        waits, instants = StepWaits(), set[int]()
        for _ in range(chance.randrange(12)):
            begin = chance.randrange(90)
            end = begin + chance.randrange(20)
            waits.add("1 all", begin, begin, end, True)
            instants |= set(range(begin, end))
        assert waits.end_step(10, 80, "")[1] == len(instants & set(range(10, 80)))


def test_what_goes_on_after_the_step_counts_in_the_next_one() -> None:
    """A wait of 30 to 70 in steps that end at 50 and 100."""
    waits = StepWaits()
    waits.add("1 all", 20, 30, 70, True)

    assert (waits.end_step(0, 50, "")[1], waits.end_step(50, 100, "")[1], waits.end_step(100, 150, "")[1]) == (
        20,
        20,
        0,
    )


def test_the_own_time_of_a_span_has_no_wait_in_it() -> None:
    """As a set of instants, for random waits and spans."""
    chance = random.Random(2)
    for _ in range(200):
        waits, waited = StepWaits(), set[int]()
        for _ in range(chance.randrange(12)):
            begin = chance.randrange(90)
            end = begin + chance.randrange(20)
            waits.add("1 all", begin, begin, end, True)
            waited |= set(range(begin, end))
        begin, end = sorted((chance.randrange(100), chance.randrange(100)))
        assert waits.own_ns(begin, end) == len(set(range(begin, end)) - waited)


def test_ranks_with_the_same_synchronizations_and_place_have_the_same_work() -> None:
    """In the order of their arrivals, whatever the order of their ends is. 0 is no work's number."""

    def work(place: str, *calls: tuple[str, int]) -> int:
        waits = StepWaits()
        for call, at in calls:
            waits.add(call, at, at, at + 5, True)
        return waits.end_step(0, 100, place)[0]

    first = work("[]", ("1 dp", 10), ("7 tp", 20))
    assert first
    assert first == work("[]", ("7 tp", 22), ("1 dp", 9))
    assert (
        len({first, work("[]", ("7 tp", 10), ("1 dp", 20)), work("['pp', 1]", ("1 dp", 10), ("7 tp", 20)), work("[]")})
        == 4
    )


def test_memory_is_limited_and_the_sum_stays() -> None:
    """Of more waits the oldest are added up; a step of too many synchronizations has no number of its work."""
    waits = StepWaits()
    for number in range(step_waits.MAX_CALLS + 2):
        waits.add("1 tp", 10 * number, 10 * number, 10 * number + 4, True)

    assert len(waits._waits) == step_waits.MAX_WAITS
    assert waits.end_step(0, 10 * step_waits.MAX_CALLS + 100, "") == (0, 4 * (step_waits.MAX_CALLS + 2))
