"""The slack: its estimate from past waits, the tasks that run in it, and its adaptation."""

from __future__ import annotations

import random
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from timesyncd.client.barrier import Barrier
from timesyncd.client.slack import MIN_WAITS, Slack, SlackReason, SlackTask, SlackTasks, WaitHistory, adapted_ns

MS = 1_000_000


def waited(*left_ns: int, used_ns: int = 0, margin_ns: int = 0) -> WaitHistory:
    waits = WaitHistory()
    for ns in left_ns:
        waits.add(used_ns, ns, margin_ns)
    return waits


def test_a_slack_is_known_after_enough_waits() -> None:
    """Before that it is None, with the reason, and not 0."""
    assert waited(*[MS] * (MIN_WAITS - 1)).slack() == Slack(
        None, SlackReason.TOO_FEW_WAITS, "15 waits measured, 16 are needed"
    )
    assert waited(*[MS] * MIN_WAITS).slack() == Slack(MS)


def test_the_slack_is_a_low_quantile_of_the_newest_waits() -> None:
    """3 of 64 may have been shorter, a fourth counts; older ones are forgotten."""
    assert waited(*[1, 2, 3], *[MS] * 61).slack().slack_ns == MS
    assert waited(*[1, 2, 3, 4], *[MS] * 60).slack().slack_ns == 4
    assert waited(*[0] * 64, *[MS] * 64).slack().slack_ns == MS


def test_tasks_in_the_slack_do_not_hide_it() -> None:
    """A wait counts from when the rank was ready, minus what may have been transfer."""
    assert waited(*[3 * MS] * 16, used_ns=2 * MS, margin_ns=MS).slack().slack_ns == 4 * MS


def test_a_rank_whose_tasks_used_the_whole_wait_had_no_slack() -> None:
    """When nothing of the wait is left, the other ranks may have arrived at any time before."""
    assert waited(*[MS] * 16, used_ns=50 * MS, margin_ns=MS).slack().slack_ns == 0


def spend(ns: int) -> None:
    end_ns = time.monotonic_ns() + ns
    while time.monotonic_ns() < end_ns:
        pass


def test_a_task_that_fits_runs_and_others_do_not() -> None:
    """Each is counted; a run reduces the slack for the next task."""
    tasks, ran = SlackTasks(), list[str]()
    quick = SlackTask(lambda: ran.append("quick"), 2 * MS, "quick")
    slow = SlackTask(lambda: ran.append("slow"), 40_000 * MS, "slow")
    tasks.add(quick)
    tasks.add(slow)

    assert tasks.run(Slack(30_000 * MS)) is None
    assert ran == ["quick"]
    assert (quick.runs, quick.skipped, slow.runs, slow.skipped) == (1, 0, 0, 1)


def test_no_task_runs_in_an_unknown_slack() -> None:
    """And none runs in a slack of 0."""
    tasks, task = SlackTasks(), SlackTask(lambda: None, 1, "work")
    tasks.add(task)
    tasks.run(Slack(None, SlackReason.TOO_FEW_WAITS, "why"))
    tasks.run(Slack(0))

    assert (task.runs, task.skipped) == (0, 2)


def test_tasks_take_turns() -> None:
    """With slack for one of two tasks, the one that ran last comes last."""
    tasks, ran = SlackTasks(), list[str]()

    def slowly(name: str) -> None:
        ran.append(name)
        spend(11 * MS)

    for name in ("a", "b"):
        tasks.add(SlackTask(partial(slowly, name), 10_000 * MS, name))
    for _ in range(4):
        tasks.run(Slack(10_005 * MS))

    assert ran == ["a", "b", "a", "b"]


def test_a_task_that_takes_longer_than_its_cost_raises_the_cost() -> None:
    """So it does not make this rank the last one again; the cost never sinks below the given one."""
    task = SlackTask(lambda: spend(3 * MS), 1_000, "work")
    task.run(2_000)

    assert task.cost_ns >= 3 * MS
    assert task.overran == 1
    cheap = SlackTask(lambda: None, 5_000 * MS, "cheap")
    cheap.run(6_000 * MS)
    assert (cheap.cost_ns, cheap.overran) == (5_000 * MS, 0)


def test_one_long_run_does_not_end_a_task_for_ever() -> None:
    """Each time that it does not fit, the measured excess decays, down to the given cost."""
    task = SlackTask(lambda: None, 1_000, "work")
    task.cost_ns = 10**9
    costs = []
    for _ in range(2_000):
        task.skip()
        costs.append(task.cost_ns)

    assert costs[0] > 9 * 10**8
    assert costs[-1] == 1_000


def test_the_error_of_a_task_ends_the_run_and_is_returned() -> None:
    """The caller raises it after the collectives."""
    tasks, task = SlackTasks(), SlackTask(lambda: 1 / 0, 1, "work")
    tasks.add(task)

    assert isinstance(tasks.run(Slack(MS)), ZeroDivisionError)
    assert task.runs == 1


@pytest.mark.parametrize(("missed", "made", "slack_ns"), [(1, 0, 1_500), (0, 8, 996), (9, 0, 1_500), (0, 5_000, 667)])
def test_a_release_slack_goes_up_by_half_and_down_slowly(missed: int, made: int, slack_ns: int) -> None:
    """Never by more at once."""
    assert adapted_ns(1_000, missed, made, 1, 10**9) == slack_ns


def test_a_release_slack_settles_where_one_in_a_thousand_is_missed() -> None:
    """Ways are drawn from an exponential distribution: the slack finds what one in a thousand exceeds, within a factor."""
    draw = random.Random(1)
    slack_ns, missed = 50_000, 0
    for barrier in range(110_000):
        late = draw.expovariate(1 / 100_000) > slack_ns
        missed += late and barrier >= 10_000
        slack_ns = adapted_ns(slack_ns, late, not late, 1, 10**9)

    assert 50 < missed < 200


def test_a_barrier_of_two_collectives_has_no_known_slack() -> None:
    """A collective of 12 ms looks like a wait of 12 ms, and a task in it would make this rank the last one."""
    job: Any = SimpleNamespace(rank=1, signals=lambda: None, meter=SimpleNamespace())
    barrier = Barrier(job, lambda: time.sleep(0.012), lambda number: number)
    task = barrier.run_in_slack(lambda: None, 1)
    for step in range(MIN_WAITS + 1):
        barrier.wait(step)

    assert barrier.slack() == Slack(
        None, SlackReason.NOT_MEASURED, "a Barrier does not measure when the last rank arrives; use FusedBarrier"
    )
    assert (task.runs, task.skipped) == (0, MIN_WAITS + 1)


def test_a_task_without_a_cost_raises() -> None:
    """A cost of 0 would fit into a slack of 0."""
    with pytest.raises(ValueError, match="cost_ns = 0"):
        Barrier(SimpleNamespace(), lambda: None, lambda number: number).run_in_slack(lambda: None, 0)  # type: ignore[arg-type]
