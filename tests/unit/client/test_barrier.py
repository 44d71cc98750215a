"""The barrier: rank 0 decides, each rank holds by its own clock, and no two views of ranks hang a job. Threads are the ranks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rank_views import APART, MS, ONE_CLOCK, PAIRS, PLAN, VIEWS, Ranks, job_with

from timesyncd.bound import Reason
from timesyncd.client import barrier as client_barrier
from timesyncd.client.barrier import (
    MAX_HOLD_NS,
    NO_SIGNALS,
    OK,
    PLAIN,
    Barrier,
    BarrierExplanation,
    BarrierReason,
    Verdict,
    decide_release,
    hold_until,
    verdict_after_hold,
    verdict_without_hold,
    why_plain,
)
from timesyncd.ipc.job_segment import Plan, Signals
from timesyncd.ipc.wire_types import CodedReason

#: Views with which a rank does not hold.
DISTRUST = ("no daemon", "clock unknown", "signals raise", "all raises")


@pytest.mark.parametrize("view", ["timed", "one clock"])
def test_all_ranks_are_released_at_one_instant(tmp_path: Path, view: str) -> None:
    """With clocks of a small bound, or one clock without PTP, no rank continues before the instant."""
    patient = replace(VIEWS[view], plan=replace(PLAN, slack_ns=600 * MS))
    ranks = Ranks(tmp_path, [patient] * 3)
    before_ns = time.time_ns()
    ranks.run(1)

    assert [(v.mode, v.on_time, v.reason_code) for (v,) in ranks.verdicts] == [("timed", True, BarrierReason.OK)] * 3
    assert all(v.lateness_ns is not None and v.lateness_ns >= 0 for (v,) in ranks.verdicts)
    assert min(ranks.released_ns) >= before_ns + 601 * MS


def test_the_verdict_carries_the_own_clocks_bound(tmp_path: Path) -> None:
    """On a clock of its own a rank's release is known to its gm bound; on a shared one to a reading's granularity."""
    own, shared = Ranks(tmp_path / "own", [VIEWS["timed"]]), Ranks(tmp_path / "shared", [VIEWS["one clock"]])
    own.run(1)
    shared.run(1)

    assert own.verdicts[0][0].bound_ns in (40_000, 40_001)
    assert shared.verdicts[0][0].bound_ns == 1


@pytest.mark.parametrize("views", PAIRS, ids=" | ".join)
def test_ranks_with_different_views_never_hang(tmp_path: Path, views: tuple[str, str]) -> None:
    """Whatever each rank sees, all run the same collectives, and rank 0's view alone decides."""
    ranks = Ranks(tmp_path, [VIEWS[name] for name in views])
    ranks.run(2)

    timed = views[0] in ("timed", "one clock", "longer slack")
    trusts = views[1] not in DISTRUST
    assert ranks.collectives == [2, 2]
    assert ranks.broadcasts == [2, 2]
    assert {v.mode for v in ranks.verdicts[0]} == {"timed" if timed else "plain"}
    assert {v.mode for v in ranks.verdicts[1]} == {"timed" if timed and trusts else "plain"}


def test_a_rank_with_an_untrusted_clock_gives_the_reason(tmp_path: Path) -> None:
    """It continues at once, with its own clock's reason."""
    ranks = Ranks(tmp_path, [VIEWS["timed"], VIEWS["clock unknown"]])
    ranks.run(1)

    assert ranks.verdicts[1] == [
        Verdict("plain", None, None, None, BarrierReason.CLOCK_NOT_TRUSTED, Reason.PHC_NOT_MEASURED.text)
    ]


STALE = CodedReason(BarrierReason.CLOCK_NOT_TRUSTED, "stale")
WHY = CodedReason(BarrierReason.NO_SIGNALS, "why")


@pytest.mark.parametrize(
    ("plan", "signals", "own_clock", "code", "text"),
    [
        (PLAN, APART, OK, BarrierReason.OK, ""),
        (PLAN, ONE_CLOCK, OK, BarrierReason.OK, ""),
        (PLAN, replace(APART, alignment_ns=MS), OK, BarrierReason.OK, ""),
        (Plan(), APART, OK, BarrierReason.PLANNED_PLAIN, "the plan has a plain barrier for step 7"),
        (
            replace(PLAN, from_step=8),
            APART,
            OK,
            BarrierReason.PLANNED_PLAIN,
            "the plan has a plain barrier for step 7",
        ),
        (PLAN, APART, STALE, BarrierReason.CLOCK_NOT_TRUSTED, "stale"),
        (
            PLAN,
            replace(APART, alignment_ns=None),
            OK,
            BarrierReason.ALIGNMENT_UNKNOWN,
            "the alignment of the job's nodes is unknown",
        ),
        (
            PLAN,
            replace(APART, alignment_ns=MS + 1),
            OK,
            BarrierReason.ALIGNMENT_ABOVE_GUARD,
            "the nodes may be 1000001 ns apart, more than the plan's guard of 1000000 ns",
        ),
        (
            replace(PLAN, slack_ns=MAX_HOLD_NS),
            APART,
            OK,
            BarrierReason.PLAN_OUT_OF_RANGE,
            "the plan's slack plus guard is 1001000000 ns; 0 to 1000000000 ns are allowed",
        ),
        (
            replace(PLAN, slack_ns=-(2**62)),
            APART,
            OK,
            BarrierReason.PLAN_OUT_OF_RANGE,
            f"the plan's slack plus guard is {MS - 2**62} ns; 0 to 1000000000 ns are allowed",
        ),
    ],
)
def test_rank_0_decides_by_plan_alignment_and_its_own_clock(
    plan: Plan, signals: Signals, own_clock: BarrierExplanation, code: BarrierReason, text: str
) -> None:
    """A barrier is timed only if nothing forbids it; else the first thing that does is the reason."""
    assert why_plain(7, plan, signals, own_clock) == CodedReason(code, text)


def test_without_signals_rank_0_decides_plain(tmp_path: Path) -> None:
    """No daemon, or no hub that knows this job: the reason is that there are no signals."""
    decision = decide_release(job_with(VIEWS["no daemon"], tmp_path / "0", 0, 1), 0)

    assert (decision.hold_ns, decision.why) == (PLAIN, NO_SIGNALS)


@pytest.mark.parametrize(
    ("instant_ns", "bound_ns", "mode", "code"),
    [
        (1_000, 5, None, None),
        (1_000 + MAX_HOLD_NS, 5, None, None),
        (1_001 + MAX_HOLD_NS, 5, "plain", BarrierReason.INSTANT_TOO_FAR),
        (2**63 - 1, 5, "plain", BarrierReason.INSTANT_TOO_FAR),
        (999, 5, "timed", BarrierReason.INSTANT_PASSED),
        (PLAIN, 5, "plain", BarrierReason.NO_SIGNALS),
        (1_000, None, "plain", BarrierReason.NO_SIGNALS),
    ],
)
def test_a_rank_holds_only_for_an_instant_that_it_can_trust(
    instant_ns: int, bound_ns: int | None, mode: str | None, code: BarrierReason | None
) -> None:
    """A late rank goes on at once; so does one with an absurd instant, with none, or without a trusted clock: plain."""
    verdict = verdict_without_hold(instant_ns, 1_000, bound_ns, WHY)

    assert (verdict and verdict.mode, verdict and verdict.reason_code) == (mode, code)


def test_the_verdict_of_a_rank_that_goes_on_at_once_has_its_numbers() -> None:
    """How late the instant was, or how far ahead it lies, and the reason that was given."""
    ahead = "the release instant lies 1000000001 ns ahead; a rank holds for at most 1000000000 ns"
    passed = "the release instant had passed: the slack was too short"

    assert verdict_without_hold(1_001 + MAX_HOLD_NS, 1_000, 5, WHY) == Verdict(
        "plain", None, None, None, BarrierReason.INSTANT_TOO_FAR, ahead
    )
    assert verdict_without_hold(999, 1_000, 5, WHY) == Verdict(
        "timed", False, 1, 5, BarrierReason.INSTANT_PASSED, passed
    )
    assert verdict_without_hold(PLAIN, 1_000, 5, WHY) == Verdict("plain", None, None, None, WHY.code, WHY.text)
    assert verdict_without_hold(1_000, 1_000, None, WHY) == Verdict("plain", None, None, None, WHY.code, WHY.text)


@pytest.mark.parametrize(
    ("lateness_ns", "mode"), [(0, "timed"), (MAX_HOLD_NS, "timed"), (-1, "plain"), (10**12, "plain")]
)
def test_a_clock_that_was_set_during_the_hold_makes_the_barrier_plain(lateness_ns: int, mode: str) -> None:
    """A release before the instant, or later than any hold, means that the clock moved: it is not timed."""
    assert verdict_after_hold(lateness_ns, 5).mode == mode


class SteppingClock:
    """Both clocks run with every reading; CLOCK_REALTIME is set by `step_ns` after a few."""

    def __init__(self, step_ns: int) -> None:
        self._ticks: Iterator[int] = itertools.count(0, MS)
        self._step_ns = step_ns

    def time_ns(self) -> int:
        now_ns = next(self._ticks)
        return now_ns + (self._step_ns if now_ns > 10 * MS else 0)

    def monotonic_ns(self) -> int:
        return next(self._ticks)

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 1


@pytest.mark.parametrize(("step_ns", "in_time"), [(-(10**13), False), (10**13, True)])
def test_a_clock_that_is_set_cannot_hold_a_rank(monkeypatch: pytest.MonkeyPatch, step_ns: int, in_time: bool) -> None:
    """Set back by hours, the hold ends on CLOCK_MONOTONIC; set forward, at once."""
    monkeypatch.setattr(client_barrier, "time", SteppingClock(step_ns))

    assert (hold_until(500 * MS) >= 500 * MS) == in_time


def test_the_barrier_is_marked_up_to_its_instant() -> None:
    """The mark is made before the hold, so that nothing runs after the release, and ends at the instant."""
    marks: list[tuple[int, ...]] = []
    instant_ns = time.time_ns() + 50 * MS
    meter = SimpleNamespace(
        step_key=lambda step: step, next_sync=lambda step: 3, mark=lambda *fields: marks.append(fields)
    )
    job = SimpleNamespace(rank=1, meter=meter, signals=lambda: ONE_CLOCK)

    verdict = Barrier(job, lambda: None, lambda _: instant_ns).wait(8)  # type: ignore[arg-type]

    ((step, sync, arrival_ns, begin_ns, end_ns, _),) = marks
    assert (step, sync, verdict.mode) == (8, 3, "timed")
    assert (arrival_ns, end_ns) == (begin_ns, instant_ns)


def test_an_instant_that_passed_while_the_barrier_was_marked_is_late() -> None:
    """Marking may send a datagram: on time is what is so when the hold begins."""
    instant_ns = time.time_ns() + 20 * MS
    meter = SimpleNamespace(step_key=lambda step: step, next_sync=lambda step: 3, mark=lambda *_: time.sleep(0.05))
    job = SimpleNamespace(rank=1, meter=meter, signals=lambda: ONE_CLOCK)

    verdict = Barrier(job, lambda: None, lambda _: instant_ns).wait(8)  # type: ignore[arg-type]

    assert (verdict.mode, verdict.on_time) == ("timed", False)


def test_an_error_of_timesyncd_is_a_plain_verdict(tmp_path: Path) -> None:
    """An error of signals, plan or clock becomes the reason, on rank 0 and on another rank."""
    ranks = Ranks(tmp_path, [VIEWS["all raises"], VIEWS["timed"]])
    ranks.run(1)

    assert [v.reason for (v,) in ranks.verdicts] == [
        "RuntimeError: broken; the barrier was not marked: RuntimeError: broken",
        "rank 0 chose a plain barrier, or has no trusted clock",
    ]
    assert [v.reason_code for (v,) in ranks.verdicts] == [BarrierReason.INTERNAL_ERROR, BarrierReason.RANK_0_PLAIN]


def test_a_timed_barrier_without_a_mark_has_a_code() -> None:
    """The release was on time, and the code states that the mark is missing."""

    def broken(*fields: object) -> None:
        raise RuntimeError("broken")

    meter = SimpleNamespace(step_key=lambda step: step, next_sync=lambda step: 3, mark=broken)
    job = SimpleNamespace(rank=1, meter=meter, signals=lambda: ONE_CLOCK)
    verdict = Barrier(job, lambda: None, lambda _: time.time_ns() + 50 * MS).wait(8)  # type: ignore[arg-type]

    assert (verdict.on_time, verdict.reason_code) == (True, BarrierReason.NOT_MARKED)
    assert verdict.reason == "the barrier was not marked: RuntimeError: broken"


def test_an_error_of_the_jobs_own_collective_propagates(tmp_path: Path) -> None:
    """A lost peer is the job's matter: its error is not a verdict."""
    job = Ranks(tmp_path, [VIEWS["timed"]]).jobs[0]

    def lost() -> None:
        raise ConnectionError("peer closed")

    with pytest.raises(ConnectionError, match="peer closed"):
        Barrier(job, lost, lambda number: number).wait(0)
    job.close()


def test_a_slack_task_that_raises_does_not_delay_other_ranks(tmp_path: Path) -> None:
    """The collectives run before the task's error is raised, so the ranks stay in step."""
    ran: list[str] = []
    job = Ranks(tmp_path, [VIEWS["no daemon"]]).jobs[0]

    def broadcast(number: int) -> int:
        ran.append("broadcast")
        return number

    barrier = Barrier(job, lambda: ran.append("collective"), broadcast)
    barrier.slack = lambda: SimpleNamespace(slack_ns=MS)  # type: ignore[method-assign, assignment, return-value]
    task = barrier.run_in_slack(lambda: 1 / 0, 1_000)

    with pytest.raises(ZeroDivisionError):
        barrier.wait(0)
    job.close()

    assert ran == ["collective", "broadcast"]
    assert (task.name, task.runs) == ("<lambda>", 1)
