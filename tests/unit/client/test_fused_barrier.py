"""The barrier of one exchange a wait: what travels with it, what the ranks learn from it, and that no views can hang a job."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rank_views import APART, MS, PAIRS, PLAN, VIEWS, BrokenClock, FusedRanks, View, job_with

from timesyncd.client.barrier import PLAIN, UNKNOWN, BarrierReason, decide_release
from timesyncd.client.clock import Clock
from timesyncd.client.fused_barrier import (
    MIN_SLACK_NS,
    PLAIN_BARRIERS_AFTER_MISS,
    START_SLACK_NS,
    ExchangeWords,
    FusedBarrier,
)
from timesyncd.client.job import Job
from timesyncd.client.slack import MIN_WAITS, Slack, SlackReason

PATIENT = replace(PLAN, slack_ns=600 * MS)
NOWHERE = ExchangeWords(PLAIN, 0, 0, 0, 5, -5, 0, UNKNOWN)


@pytest.mark.parametrize("views", PAIRS, ids=" | ".join)
def test_ranks_with_different_views_never_hang(tmp_path: Path, views: tuple[str, str]) -> None:
    """Whatever each rank observes, all run exactly one exchange a wait, and have the same instant."""
    ranks = FusedRanks(tmp_path, [VIEWS[name] for name in views], clocks=[1, 2])
    ranks.run(2)

    assert (ranks.exchanges, ranks.collectives, ranks.broadcasts) == ([2, 2], [0, 0], [0, 0])
    assert ranks.barriers[0].agreed_ns == ranks.barriers[1].agreed_ns


def test_the_release_is_measured_from_the_last_arrival(tmp_path: Path) -> None:
    """It is slack plus guard later, whichever rank was last, and whatever that rank's own plan is."""
    views = [View(40_000, APART, PATIENT), View(40_000, APART)]
    ranks = FusedRanks(tmp_path, views, clocks=[1, 2])
    arrived_ns: list[int] = []

    def late(rank: int, step: int) -> None:
        if rank == 1:
            time.sleep(0.05)
            arrived_ns.append(time.time_ns())

    ranks.run(1, late)

    agreed_ns = ranks.barriers[0].agreed_ns
    assert agreed_ns is not None and agreed_ns >= arrived_ns[0] + 601 * MS
    assert [(v.mode, v.on_time) for (v,) in ranks.verdicts] == [("timed", True)] * 2
    assert min(ranks.released_ns) >= agreed_ns


def test_ranks_detect_one_clock_without_a_hub(tmp_path: Path) -> None:
    """There is no daemon: the exchanged clock numbers show that the ranks read one clock."""
    ranks = FusedRanks(tmp_path, [View()] * 3)
    for barrier in ranks.barriers:
        barrier._slack_ns = 600 * MS  # type: ignore[attr-defined]
    ranks.run(1)

    assert [(v.mode, v.on_time, v.bound_ns) for (v,) in ranks.verdicts] == [("timed", True, 1)] * 3


def test_ranks_of_two_clocks_without_a_hub_are_plain(tmp_path: Path) -> None:
    """Both ranks give the reason."""
    ranks = FusedRanks(tmp_path, [View(), View()], clocks=[1, 2])
    ranks.run(1)

    reason = "no signals from timesyncd, and the ranks do not share one clock"
    assert [(v.mode, v.reason_code, v.reason) for (v,) in ranks.verdicts] == [
        ("plain", BarrierReason.DIFFERENT_CLOCKS, reason)
    ] * 2


def test_a_rank_without_a_trusted_clock_delays_no_other(tmp_path: Path) -> None:
    """Its arrival on an untrusted clock does not count, and it does not hold."""
    ranks = FusedRanks(tmp_path, [View(40_000, APART, PATIENT), VIEWS["clock unknown"]], clocks=[1, 2])
    arrived_ns: list[int] = []

    def after_rank_0(rank: int, step: int) -> None:
        while rank == 1 and not ranks.exchanges[0]:
            time.sleep(0.001)
        arrived_ns.append(time.time_ns())

    ranks.run(1, after_rank_0)

    agreed_ns = ranks.barriers[0].agreed_ns
    assert agreed_ns is not None and agreed_ns < max(arrived_ns) + 601 * MS
    (first,), (second,) = ranks.verdicts
    assert (first.mode, second.mode) == ("timed", "plain")
    assert second.reason_code is BarrierReason.CLOCK_NOT_TRUSTED


def test_a_plain_plan_of_the_hub_is_followed(tmp_path: Path) -> None:
    """The ranks' own detection of one clock replaces a missing hub only, not a hub's decision."""
    ranks = FusedRanks(tmp_path, [VIEWS["plain"], VIEWS["timed"]])
    ranks.run(1)

    assert [v.reason for (v,) in ranks.verdicts] == [
        "the plan has a plain barrier for step 0",
        "rank 0 chose a plain barrier",
    ]


def alone(folder: Path, ways_ns: Sequence[int]) -> FusedBarrier:
    """Rank 0 of two on one clock, after exchanges that took so long on the slowest rank."""
    job = Job("job", 0, 2, 0, runtime_dir=folder)
    ways = iter((0, *ways_ns))
    barrier = FusedBarrier(job, lambda mine: ExchangeWords(*mine)._replace(ready_after_ns=next(ways)))
    for step in range(1 + len(ways_ns)):
        barrier.wait(step)
    job.close()
    return barrier


@pytest.mark.parametrize(
    ("ways_ns", "slack_ns"),
    [
        ([], START_SLACK_NS),
        ([START_SLACK_NS], round(START_SLACK_NS * 2047 / 2048)),
        ([START_SLACK_NS + 1], START_SLACK_NS * 3 // 2),
        ([10**9] * 6, 10 * MS),
        ([10**9] * 7, START_SLACK_NS),
        ([0] * 6_000, MIN_SLACK_NS),
    ],
)
def test_without_a_hub_the_slack_follows_the_slowest_rank(tmp_path: Path, ways_ns: list[int], slack_ns: int) -> None:
    """It is half longer after a release that a rank missed, slowly shorter after each that all made, and within limits."""
    barrier = alone(tmp_path, ways_ns)

    assert barrier._slack_ns == slack_ns


def test_ranks_that_are_late_at_the_longest_slack_are_plain_for_a_while(tmp_path: Path) -> None:
    """On an overloaded machine a hold costs time and gains nothing; later it is tried again."""
    job = Job("job", 0, 2, 0, runtime_dir=tmp_path)
    barrier = FusedBarrier(job, lambda mine: ExchangeWords(*mine)._replace(ready_after_ns=10**9))
    codes = [barrier.wait(step).reason_code for step in range(PLAIN_BARRIERS_AFTER_MISS + 12)]
    job.close()
    late = [step for step, code in enumerate(codes) if code is BarrierReason.LATE_AT_MAX_SLACK]

    assert late == list(range(late[0], late[0] + len(late)))
    assert PLAIN_BARRIERS_AFTER_MISS - 1 <= len(late) <= PLAIN_BARRIERS_AFTER_MISS
    assert late[-1] < PLAIN_BARRIERS_AFTER_MISS + 11


def test_an_exchange_contains_the_duration_of_the_last_one(tmp_path: Path) -> None:
    """It counts from the last arrival on the rank's own clock, so each rank learns of the others' lateness a step later."""
    passed: list[ExchangeWords] = []

    def exchange(mine: Sequence[int]) -> ExchangeWords:
        passed.append(ExchangeWords(*mine))
        time.sleep(0.002)
        return passed[-1]

    job = Job("job", 0, 1, 0, runtime_dir=tmp_path)
    barrier = FusedBarrier(job, exchange)
    barrier.wait(0)
    barrier.wait(1)
    job.close()

    assert passed[0].ready_after_ns == 0
    assert passed[1].ready_after_ns >= 2 * MS


def test_the_slack_is_the_time_to_the_last_arrival(tmp_path: Path) -> None:
    """Each rank knows it without a hub, and it is 0 for the last rank."""
    ranks = FusedRanks(tmp_path, [View(), View()])

    def later(rank: int, step: int) -> None:
        while rank == 1 and ranks.exchanges[0] <= step:
            time.sleep(0.001)
        time.sleep(0.006 * rank)

    ranks.run(MIN_WAITS, later)
    early, late = (barrier.slack() for barrier in ranks.barriers)

    assert early.slack_ns is not None and early.slack_ns >= 5 * MS
    assert late.slack_ns == 0


def waited_10_ms(folder: Path, apart_ns: Sequence[int]) -> FusedBarrier:
    """Rank 1 of two with separate clocks, after waits for a rank that came 10 ms later; `apart_ns` is rank 0's alignment in each wait."""
    apart = iter(apart_ns)

    def exchange(mine: Sequence[int]) -> ExchangeWords:
        words = ExchangeWords(*mine)
        return words._replace(trusted_ns=words.trusted_ns + 10 * MS, minus_clock=0, alignment_ns=next(apart))

    job = job_with(VIEWS["timed"], folder / "1", 1, 2)
    barrier = FusedBarrier(job, exchange)
    for step in range(len(apart_ns)):
        barrier.wait(step)
    job.close()
    return barrier


@pytest.mark.parametrize(
    ("apart_ns", "slack"),
    [
        ([3 * MS] * MIN_WAITS, Slack(7 * MS)),
        ([3 * MS] * MIN_WAITS + [UNKNOWN], Slack(None, SlackReason.TOO_FEW_WAITS, "0 waits measured, 16 are needed")),
    ],
)
def test_clocks_that_may_be_apart_leave_less_slack(tmp_path: Path, apart_ns: list[int], slack: Slack) -> None:
    """The last arrival was read on another clock, so the alignment is subtracted from the slack; if it is unknown, so is the slack."""
    assert waited_10_ms(tmp_path, apart_ns).slack() == slack


def test_rank_0_sends_the_alignment(tmp_path: Path) -> None:
    """It sends the hub's alignment, also while the plan is plain."""
    seen = [decide_release(job_with(VIEWS[name], tmp_path / name, 0, 2), 0) for name in ("timed", "plain", "unaligned")]

    assert [decision.alignment_ns for decision in seen] == [50_000, 50_000, UNKNOWN]
    assert [decision.hold_ns for decision in seen] == [3 * MS, PLAIN, PLAIN]


def test_a_rank_whose_clock_fails_during_the_wait_does_not_hold(tmp_path: Path) -> None:
    """A wait may last for minutes, so the bound is read after it."""
    job = job_with(VIEWS["timed"], tmp_path / "1", 1, 2)

    def exchange(mine: Sequence[int]) -> ExchangeWords:
        job.clock = BrokenClock()  # type: ignore[assignment]
        words = ExchangeWords(*mine)
        return words._replace(trusted_ns=time.time_ns(), minus_clock=0, hold_ns=MS, unconditional=1)

    verdict = FusedBarrier(job, exchange).wait(0)
    job.clock = Clock()
    job.close()

    assert (verdict.mode, verdict.bound_ns) == ("plain", None)
    assert verdict.reason.startswith("RuntimeError: broken")
    assert verdict.reason_code is BarrierReason.CLOCK_NOT_TRUSTED


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (NOWHERE, BarrierReason.RANK_0_PLAIN),
        (NOWHERE._replace(hold_ns=1, minus_clock=-4), BarrierReason.DIFFERENT_CLOCKS),
        (NOWHERE._replace(hold_ns=1, unconditional=1, minus_clock=-4), BarrierReason.NO_TRUSTED_CLOCK),
        (NOWHERE._replace(hold_ns=1, realtime_ns=7), BarrierReason.OK),
        (NOWHERE._replace(hold_ns=1, unconditional=1, minus_clock=-4, trusted_ns=7), BarrierReason.OK),
    ],
)
def test_the_words_give_the_reason_of_a_plain_barrier(words: ExchangeWords, code: BarrierReason) -> None:
    """All ranks read the same words, so all have the same reason."""
    assert words.why_plain().code is code


def test_processes_of_one_boot_have_one_clock_number(tmp_path: Path) -> None:
    """It is the same after a fork, and the number and its negative fit in 64 bits."""
    from timesyncd.client.fused_barrier import _clock_number

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(_clock_number()).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert int(os.read(reader, 100)) == _clock_number() < 2**56
