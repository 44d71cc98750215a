"""Which part of a step a rank's thread is in: the outer part counts, on one thread, and what goes on counts on both sides."""

from __future__ import annotations

import threading

import pytest

from timesyncd.client import step_parts
from timesyncd.client.step_parts import StepParts
from timesyncd.ipc.job_datagram import OwnPart

DATA, BACKWARD, OPTIMIZER = OwnPart.DATA, OwnPart.BACKWARD, OwnPart.OPTIMIZER


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def time_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(step_parts, "time", found)
    return found


def within(parts: StepParts, clock: Clock, part: OwnPart, begin_ns: int, end_ns: int) -> None:
    key = object()
    clock.now_ns = begin_ns
    parts.enter(part, key)
    clock.now_ns = end_ns
    parts.leave(key)


def test_each_part_has_its_spans_of_the_step(clock: Clock) -> None:
    """What was before the step began is cut, as an evaluation between steps is."""
    parts = StepParts()
    for part, begin, end in ((DATA, 0, 10), (DATA, 12, 20), (BACKWARD, 30, 60), (OPTIMIZER, 60, 70)):
        within(parts, clock, part, begin, end)

    assert parts.end_step(5, 70) == [(DATA, 5, 10), (DATA, 12, 20), (BACKWARD, 30, 60), (OPTIMIZER, 60, 70)]
    assert parts.end_step(70, 100) == []


def test_the_outer_part_counts(clock: Clock) -> None:
    """An optimizer that calls backward in its step, as LBFGS does."""
    parts, optimizer = StepParts(), object()
    clock.now_ns = 10
    parts.enter(OPTIMIZER, optimizer)
    within(parts, clock, BACKWARD, 20, 30)
    clock.now_ns = 40
    parts.leave(optimizer)

    assert parts.end_step(0, 50) == [(OPTIMIZER, 10, 40)]


def test_a_step_that_ends_inside_the_optimizer_has_its_part_until_then(clock: Clock) -> None:
    """The hook that ends the step runs before the one that leaves the optimizer."""
    parts, optimizer = StepParts(), object()
    clock.now_ns = 10
    parts.enter(OPTIMIZER, optimizer)
    ended = parts.end_step(0, 40)
    clock.now_ns = 41
    parts.leave(optimizer)

    assert ended == [(OPTIMIZER, 10, 40)]
    assert parts.end_step(40, 90) == [(OPTIMIZER, 40, 41)]


def test_an_optimizer_that_an_error_ended_does_not_last_forever(clock: Clock) -> None:
    """Torch calls no hook after an error in a step; the next step of the same optimizer counts from its own begin."""
    parts, optimizer = StepParts(), object()
    clock.now_ns = 10
    parts.enter(OPTIMIZER, optimizer)
    clock.now_ns = 50
    parts.enter(OPTIMIZER, optimizer)
    clock.now_ns = 60
    parts.leave(optimizer)

    assert parts.end_step(0, 70) == [(OPTIMIZER, 50, 60)]


def test_another_thread_works_beside_the_step(clock: Clock) -> None:
    """A thread that loads the next batches is in no part; the thread of the optimizer counts, even if it comes later."""
    parts = StepParts()
    loader = threading.Thread(target=within, args=(parts, clock, DATA, 0, 90))
    loader.start()
    loader.join()
    within(parts, clock, OPTIMIZER, 60, 70)
    within(parts, clock, BACKWARD, 80, 85)
    other = threading.Thread(target=within, args=(parts, clock, DATA, 86, 90))
    other.start()
    other.join()

    assert parts.end_step(100, 200) == []
    within(parts, clock, BACKWARD, 210, 220)
    assert parts.end_step(200, 300) == [(BACKWARD, 210, 220)]


def test_a_step_of_too_many_spans_has_no_parts(clock: Clock) -> None:
    """The memory is limited; the next step has its parts again."""
    parts = StepParts()
    for number in range(step_parts.MAX_SPANS + 1):
        within(parts, clock, BACKWARD, 10 * number, 10 * number + 5)
    end_ns = 10 * step_parts.MAX_SPANS + 10
    assert len(parts._spans) == step_parts.MAX_SPANS

    assert parts.end_step(0, end_ns) is None
    within(parts, clock, BACKWARD, end_ns, end_ns + 5)
    assert parts.end_step(end_ns, end_ns + 9) == [(BACKWARD, end_ns, end_ns + 5)]
