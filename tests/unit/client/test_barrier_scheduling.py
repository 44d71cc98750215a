"""SCHED_FIFO is set for the duration of a hold only, and a refusal changes nothing."""

from __future__ import annotations

import os
import threading

import pytest

from timesyncd.client import SchedFifo

REFUSED = "SCHED_FIFO was refused (Operation not permitted): the hold runs under the ordinary scheduler"


def may_raise() -> bool:
    """Whether this process may use SCHED_FIFO."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


needs_right = pytest.mark.skipif(not may_raise(), reason="needs CAP_SYS_NICE")


def seen(instant_ns: int) -> int:
    """A hold that returns the scheduling policy it runs under."""
    return os.sched_getscheduler(0)


@needs_right
def test_the_hold_runs_under_fifo_and_nothing_else_does() -> None:
    """Only the calling thread's policy changes, and it is restored afterwards."""
    others: list[int] = []

    def hold(instant_ns: int) -> int:
        thread = threading.Thread(target=lambda: others.append(os.sched_getscheduler(main)))
        thread.start()
        thread.join()
        return os.sched_getparam(0).sched_priority + instant_ns

    main = threading.main_thread().native_id or 0
    result: list[int] = []
    caller = threading.Thread(target=lambda: result.extend((SchedFifo(7).run(hold, 100), os.sched_getscheduler(0))))
    caller.start()
    caller.join()

    assert result == [107, os.SCHED_OTHER]
    assert others == [os.SCHED_OTHER]
    assert SchedFifo().run(seen, 0) == os.SCHED_FIFO


@needs_right
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_policy_is_restored_after_an_error(error: type[BaseException]) -> None:
    """An exception or a Ctrl-C in the hold propagates, and the earlier policy is restored."""

    def hold(instant_ns: int) -> int:
        raise error

    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        with pytest.raises(error):
            SchedFifo().run(hold, 0)

        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@needs_right
def test_a_real_time_policy_of_the_jobs_own_is_left_alone() -> None:
    """A thread with SCHED_RR priority 5 holds with it."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    try:
        assert SchedFifo(1).run(seen, 0) == os.SCHED_RR
        assert os.sched_getparam(0).sched_priority == 5
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_a_refused_permission_is_reported_once_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold runs under the ordinary scheduler, and the permission is requested only once."""
    asked: list[int] = []

    def refuse(pid: int, policy: int, parameter: os.sched_param) -> None:
        asked.append(policy)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    fifo = SchedFifo()

    assert [fifo.run(seen, 0), fifo.take_warning(), fifo.run(seen, 0), fifo.take_warning()] == [0, REFUSED, 0, ""]
    assert asked == [os.SCHED_FIFO]


@pytest.mark.parametrize("priority", [0, 100, -1])
def test_a_priority_is_one_that_linux_has(priority: int) -> None:
    """1 to 99."""
    with pytest.raises(ValueError, match="SCHED_FIFO has the priorities 1 to 99"):
        SchedFifo(priority)
