"""Steps and synchronizations as ranks number them: epochs that begin by themselves, late steps, and no number twice."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.client import numbering as numbering_module
from timesyncd.client.numbering import NO_KEY, Numbering
from timesyncd.ipc.job_datagram import split_step, step_key


def keys(*steps: int) -> list[tuple[int, int]]:
    numbering = Numbering()
    return [split_step(numbering.step_key(step)) for step in steps]


def test_steps_that_restart_are_of_the_next_epoch() -> None:
    """A step below half of the last one; one that is a little behind, or comes again, is of the same epoch."""
    assert keys(0, 1, 2, 0, 1, 2, 0) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert keys(5_000, 5_001, 5_000, 5_001, 2_501, 1_250) == [
        (0, 5_000),
        (0, 5_001),
        (0, 5_000),
        (0, 5_001),
        (0, 2_501),
        (1, 1_250),
    ]


def test_an_epoch_can_be_set() -> None:
    """Its steps may have any numbers, those of the epoch before as well; the rule goes on from there."""
    numbering = Numbering()
    before = numbering.step_key(7)
    numbering.set_epoch(4)
    keys = [numbering.step_key(step) for step in (7, 8, 0)]

    assert [split_step(key) for key in (before, *keys)] == [(0, 7), (4, 7), (4, 8), (5, 0)]


def test_the_step_before_the_last_one_is_late_and_begins_no_epoch() -> None:
    """A callback's mark after the next step has started belongs to its own step, also at the start of an epoch."""
    numbering = Numbering()
    first, second = numbering.step_key(0), numbering.step_key(1)
    late = numbering.late_key(0)
    last = numbering.step_key(99)
    numbering.set_epoch(1)
    begun = numbering.step_key(0)

    assert (late, numbering.late_key(99), numbering.late_key(0)) == (first, last, begun)
    assert [split_step(key) for key in (first, second, last, begun)] == [(0, 0), (0, 1), (0, 99), (1, 0)]
    assert split_step(numbering.step_key(1)) == (1, 1)


@pytest.mark.parametrize("step", [-1, 2**32, 1.0, "1", None])
def test_what_is_no_steps_number_has_no_key(step: Any) -> None:
    """Nothing is raised in a training loop, and the numbering continues unchanged."""
    numbering = Numbering()
    numbering.step_key(8)

    assert (numbering.step_key(step), numbering.late_key(step)) == (NO_KEY, NO_KEY)
    assert split_step(numbering.step_key(9)) == (0, 9)


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_an_epoch_out_of_range_is_the_callers_mistake(epoch: int) -> None:
    """It raises ValueError at the call."""
    with pytest.raises(ValueError, match=f"epoch {epoch}"):
        Numbering().set_epoch(epoch)


def test_after_the_last_epoch_the_numbering_goes_on() -> None:
    """There is none after it, and nothing is raised for that."""
    numbering = Numbering()
    numbering.set_epoch(2**31 - 1)

    assert [numbering.step_key(step) for step in (9, 0)] == [step_key(2**31 - 1, step) for step in (9, 0)]


def test_no_synchronization_of_a_step_has_a_number_twice() -> None:
    """Steps that overlap go on counting each for itself, and the first one of the next epoch begins at 0."""
    numbering = Numbering()
    numbers = [numbering.next_sync(step)[1] for step in (4, 4, 5, 4, 5, 6, 4, 0, 0)]

    assert numbers == [0, 1, 0, 2, 1, 0, 3, 0, 1]


@given(st.integers(1, 50), st.integers(1, 6), st.integers(0, 3))
def test_every_mark_of_ordinary_training_is_unique(steps: int, epochs: int, first: int) -> None:
    """Epochs of any length that begin at a number of their own, each step with two synchronizations."""
    numbering = Numbering()
    run = [step + first for _ in range(epochs) for step in range(steps + 2 * first + 1)]
    marks = [numbering.next_sync(step) for step in run for _ in range(2)]

    assert len(set(marks)) == len(marks)
    assert marks == sorted(marks)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_ranks_that_number_alike_agree(steps: list[int]) -> None:
    """Keys follow from the numbers alone: nothing of time, threads or a daemon enters, and asking twice changes nothing."""
    one, other = Numbering(), Numbering()
    marks = [one.next_sync(step) for step in steps]
    for step in steps:
        other.step_key(step)
        other.late_key(step)
        assert (other.step_key(step), marks.pop(0)[0]) == (one_key := other.step_key(step), one_key)


def interrupted(at: int) -> bool:
    """A ninth step's mark, in whose count, after so many instructions, another step is marked as a signal handler does; False: it has fewer."""
    numbering, left = Numbering(), at
    for step in range(8):
        numbering.next_own(step)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code is not numbering_module._next.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and (left := left - 1) == 0:
            sys.settrace(None)
            numbering.next_own(100)
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        numbering.next_own(8)
    finally:
        sys.settrace(before)
    return left <= 0


def test_a_signal_handler_may_mark_in_the_middle_of_a_count() -> None:
    """At whatever instruction it comes, nothing is raised into the job."""
    at = 1
    while interrupted(at):
        at += 1

    assert at > 10
