"""Pauses that all ranks make at one instant, and their replacement while no clock is trusted."""

from __future__ import annotations

import gc
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from timesyncd.client import PauseReason, Pauses, gc_disabled, pauses
from timesyncd.client import barrier as client_barrier
from timesyncd.ipc.job_segment import Plan, Signals

MS = 1_000_000
S = 1_000 * MS
ONE_CLOCK = Signals(world_size=2, steps_complete=1, steps_incomplete=0, alignment_ns=0, alignment_growth_ppb=0)


def job(signals: Signals | None = ONE_CLOCK) -> Any:
    def read() -> None:
        raise RuntimeError("no clock")

    clock = SimpleNamespace(read=read)
    return SimpleNamespace(rank=0, signals=lambda: signals, plan=Plan, clock=clock)


def pausing() -> bool:
    return any(thread.name == "timesyncd-pauses" for thread in threading.enumerate())


class Hand:
    """CLOCK_REALTIME, turned by hand; a hold turns it to its instant."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000 * S
        self.held_ns: list[int] = []
        monkeypatch.setattr(pauses, "time", SimpleNamespace(time_ns=lambda: self.now_ns))
        monkeypatch.setattr(client_barrier, "hold_until", self.hold_until)

    def hold_until(self, instant_ns: int) -> None:
        self.held_ns.append(instant_ns - self.now_ns)
        self.now_ns = instant_ns


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    return Hand(monkeypatch)


def test_a_pause_is_due_once_in_a_period(hand: Hand) -> None:
    """At the first look after each multiple of the period, never before the first one."""
    every = Pauses(job(), every_s=1, every_steps=10**9)
    due = []
    for step in range(50):
        due.append(every.due(step))
        hand.now_ns += 100 * MS

    assert [step for step, is_due in enumerate(due) if is_due] == [10, 20, 30, 40]
    assert (every.by_clock, every.by_step, every.reason_code) == (4, 0, PauseReason.OK)


def test_ranks_that_look_at_different_times_pause_at_one_instant(hand: Hand) -> None:
    """Who comes a little before holds for it, by no more than 2 ms without any signals of the skew."""
    early, earlier = Pauses(job(), 1, 10**9), Pauses(job(), 1, 10**9)
    early.due(0), earlier.due(0)
    hand.now_ns += 1_000 * MS - 3 * MS

    assert not earlier.due(1)
    hand.now_ns += MS
    assert early.due(1)
    assert hand.held_ns == [2 * MS]
    assert earlier.due(2)
    assert not early.due(2)


@pytest.mark.parametrize(
    ("skew_ns", "alignment_ns", "ahead_ms"), [(7 * MS, 1 * MS, 8), (10 * S, 0, 50), (None, 3 * MS, 5)]
)
def test_a_rank_holds_for_as_long_as_the_ranks_are_apart(
    hand: Hand, skew_ns: int | None, alignment_ns: int, ahead_ms: int
) -> None:
    """The skew's 99th percentile and what their clocks may differ by; 50 ms at most."""
    apart = Signals(2, 1, 0, arrival_skew_p99_ns=skew_ns, alignment_ns=alignment_ns)

    assert Pauses(job(apart), 1, 1)._ahead_ns() == ahead_ms * MS


def test_a_period_missed_altogether_is_one_pause(hand: Hand) -> None:
    """A step that lasted five periods is followed by one pause."""
    every = Pauses(job(), 1, 10**9)
    every.due(0)
    hand.now_ns += 5 * S

    assert [every.due(1), every.due(2)] == [True, False]


def test_a_clock_that_is_set_back_stops_no_pause(hand: Hand) -> None:
    """The count of periods restarts there."""
    every = Pauses(job(), 1, 10**9)
    every.due(0)
    hand.now_ns -= 900 * S
    every.due(1)
    hand.now_ns += S

    assert every.due(2)


def test_without_a_trusted_clock_steps_are_counted_with_the_reason(hand: Hand) -> None:
    """One pause in `every_steps`, at the same steps on all ranks, also when the steps restart with an epoch."""
    every = Pauses(job(signals=None), 1, every_steps=4)

    assert [step for step in range(12) if every.due(step)] == [4, 8]
    assert every.due(0)
    assert (every.reason_code, every.reason) == (PauseReason.CLOCK_NOT_TRUSTED, "RuntimeError: no clock")
    assert (every.by_clock, every.by_step) == (0, 3)


def test_a_clock_that_is_known_worse_than_the_period_needs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the period is the limit."""
    monkeypatch.setattr(client_barrier, "own_clock_bound", lambda job: (101 * MS, ""))
    every = Pauses(job(), 1, 4)
    every.due(0)

    assert (every.reason_code, every.reason) == (
        PauseReason.CLOCK_TOO_INACCURATE,
        "the clock's bound of 101000000 ns is above a tenth of the period",
    )


def test_with_a_barrier_all_ranks_decide_by_the_same_number(hand: Hand) -> None:
    """They use the barrier's release instant, whatever their own clocks show, and count steps while it is plain."""
    barrier: Any = SimpleNamespace(agreed_ns=None)
    trusting, distrusting = Pauses(job(), 1, 4, barrier), Pauses(job(None), 1, 4, barrier)
    due = []
    for step, agreed_ns in enumerate(
        [None, None, None, None, None, S, S + 1, 2 * S, 2 * S + 1, None, None, None, None]
    ):
        barrier.agreed_ns = agreed_ns
        hand.now_ns += 10 * S
        due.append((trusting.due(step), distrusting.due(step)))

    assert [step for step, (first, _) in enumerate(due) if first] == [4, 7, 9, 12]
    assert all(first == second for first, second in due)
    assert (trusting.reason_code, trusting.reason) == (PauseReason.PLAIN_BARRIER, "the barrier was plain")


@pytest.mark.parametrize(
    ("every_s", "every_steps"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1), (float("inf"), 3), (1e300, 3)]
)
def test_a_period_is_above_0(every_s: float, every_steps: int) -> None:
    """And a number of steps too."""
    with pytest.raises(ValueError, match="both must be above 0"):
        Pauses(job(), every_s, every_steps)


def test_a_thread_pauses_at_the_instants_without_a_loop() -> None:
    """For jobs that are not in lock-step: once for each multiple of the period at most, and never before it, on the clock that all ranks share."""
    at_ns: list[int] = []
    period_ns = 50 * MS
    enough = threading.Event()

    def work() -> None:
        at_ns.append(time.time_ns())
        if len(at_ns) == 3:
            enough.set()

    every = Pauses(job(), 0.05, 1)
    before = time.time_ns() // period_ns
    with every.in_background(work):
        assert enough.wait(60)

    assert all(ns // period_ns > before + number for number, ns in enumerate(at_ns))
    assert every.by_clock == len(at_ns)
    assert not pausing()


def test_a_thread_pauses_by_an_untrusted_clock_with_the_reason() -> None:
    """Garbage that is held back must be collected all the same."""
    enough = threading.Event()
    every = Pauses(job(None), 0.02, 1)
    with every.in_background(enough.set):
        assert enough.wait(60)

    assert (every.reason_code, every.reason) == (PauseReason.CLOCK_NOT_TRUSTED, "RuntimeError: no clock")


def test_the_first_error_of_the_work_is_raised_at_the_end() -> None:
    """It is not raised in the thread, where it would be lost."""
    failed = threading.Event()

    def work() -> None:
        failed.set()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), Pauses(job(), 0.02, 1).in_background(work):
        assert failed.wait(60)


def test_the_loops_own_error_comes_first() -> None:
    """What the job raises goes through unchanged, and the thread is gone."""
    with pytest.raises(KeyError), Pauses(job(), 100, 1).in_background(lambda: None):
        raise KeyError("of the job")

    assert not pausing()


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_held_for_as_long_as_the_loop_lasts(enabled: bool) -> None:
    """Automatic collection is as it was afterwards, also after an error."""
    was = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        with pytest.raises(KeyError), gc_disabled():
            inside = gc.isenabled()
            raise KeyError

        assert (inside, gc.isenabled()) == (False, enabled)
    finally:
        gc.enable() if was else gc.disable()
