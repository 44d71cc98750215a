"""Planning a job's barriers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from timesyncd.clocks import NS_PER_S
from timesyncd.fleet.alignment import ONE_CLOCK, Alignment, unknown_alignment
from timesyncd.hub.barrier_plan import (
    GUARD_FOR_NS,
    MAX_SLACK_NS,
    MIN_SLACK_NS,
    RETRY_AFTER_NS,
    BarrierObservation,
    BarrierState,
    decide,
    take_over,
)
from timesyncd.ipc.job_datagram import Kind
from timesyncd.ipc.job_segment import PlanReason
from timesyncd.jobs.arrivals import Arrival, Sync, compare

MS = 1_000_000
NOW = 1_000 * NS_PER_S


def observation(
    alignment_ns: int | None = 200_000, newest_step: int = 100, run: int = 0, transfers_ns: Sequence[int] = (MS,) * 20
) -> BarrierObservation:
    aligned = (
        unknown_alignment("b: silent", "node_silent")
        if alignment_ns is None
        else Alignment(alignment_ns, 0, ("a", "b"), "a and b")
    )
    return BarrierObservation(run, newest_step, aligned, transfers_ns)


def barrier(step: int, hold_ns: int, late_ns: int = 0) -> Sync:
    """Two ranks on one clock, the last of which arrived at 1 ms: released so long after it, rank 1 later by `late_ns`."""
    instant_ns = MS + hold_ns
    arrivals = {
        0: Arrival("a", 0, 0, 0, instant_ns, None),
        1: Arrival("a", 0, MS, MS, instant_ns + late_ns, None),
    }
    return Sync(step, 0, Kind.BARRIER, arrivals, compare(arrivals))


def after(planned: BarrierState, barriers: Sequence[Sync]) -> BarrierState:
    """One round later, with these barriers."""
    return decide(
        planned, replace(observation(newest_step=max(sync.step for sync in barriers)), barriers=barriers), NOW
    )


def test_a_timed_barrier_is_planned_when_alignment_allows() -> None:
    """The plan starts 50 steps ahead; its slack is twice what nine of ten barriers took, its guard the alignment and a quarter."""
    plan = decide(BarrierState(), observation(), NOW).plan

    assert (plan.version, plan.mode, plan.from_step) == (1, "timed", 150)
    assert (plan.slack_ns, plan.guard_ns) == (2 * MS, 250_000)


@pytest.mark.parametrize(
    ("observed", "reason", "code"),
    [
        (observation(None), "the alignment is unknown: b: silent", PlanReason.ALIGNMENT_UNKNOWN),
        (observation(1_000_001), "the clocks may be more than 1 ms apart", PlanReason.CLOCKS_TOO_FAR_APART),
        (observation(transfers_ns=[MS] * 19), "fewer than 20 barriers have been measured", PlanReason.TOO_FEW_BARRIERS),
    ],
)
def test_the_barrier_stays_plain_without_a_reason_to_trust(
    observed: BarrierObservation, reason: str, code: PlanReason
) -> None:
    """Unknown or wide alignment, or a slack not measured yet, plans nothing; the same gives up a timed plan at once."""
    timed = decide(BarrierState(), observation(), NOW)
    after = decide(timed, observed, NOW)

    assert decide(BarrierState(), observed, NOW) == BarrierState()
    if observed.alignment.alignment_ns is None or observed.alignment.alignment_ns > MS:
        assert (after.plan.mode, after.plan.version) == ("plain", 2)
        assert (after.plan.reason, after.plan.reason_code) == (reason, code)
    else:
        assert after == timed


def test_the_plan_does_not_flap() -> None:
    """Alignment at the threshold's edge changes the plan at most twice in the time after which timing is tried again."""
    planned, versions = BarrierState(), []
    for second in range(20):
        planned = decide(planned, observation(999_999 if second % 2 else 1_000_001), NOW + second * NS_PER_S)
        versions.append(planned.plan.version)

    assert versions[-1] == 4
    assert RETRY_AFTER_NS == 10 * NS_PER_S


def test_the_guard_rides_out_what_moves() -> None:
    """Ageing between two samples moves the alignment; the version counts up only when the guard is too small or far too large."""
    planned = decide(BarrierState(), observation(200_000), NOW)

    assert decide(planned, observation(250_000), NOW) == planned
    assert decide(planned, observation(70_000), NOW) == planned
    assert decide(planned, observation(250_001), NOW).plan.version == 2
    assert decide(planned, observation(60_000), NOW).plan.guard_ns == 75_000


def test_a_timed_barrier_does_not_lengthen_its_own_slack() -> None:
    """A timed barrier ends at its instant, so its length does not show the broadcast: the first slack stays."""
    planned = decide(BarrierState(), observation(), NOW)
    planned = decide(planned, observation(900_000, transfers_ns=[8 * MS] * 20), NOW)
    planned = decide(planned, observation(None), NOW)
    planned = decide(planned, observation(transfers_ns=[8 * MS] * 20), NOW + RETRY_AFTER_NS)

    assert (planned.plan.version, planned.plan.mode, planned.plan.slack_ns) == (4, "timed", 2 * MS)


@pytest.mark.parametrize(("transfer_ns", "slack_ns"), [(1, MIN_SLACK_NS), (90 * MS, MAX_SLACK_NS)])
def test_the_slack_is_clamped(transfer_ns: int, slack_ns: int) -> None:
    """Neither so short that scheduling misses it, nor so long that a slow network stalls every step."""
    assert decide(BarrierState(), observation(transfers_ns=[transfer_ns] * 20), NOW).plan.slack_ns == slack_ns


def test_a_new_run_gets_a_new_plan() -> None:
    """The same attempt with other processes starts at step 0, so that the old plan's first step would come late; versions go on."""
    planned = decide(BarrierState(), observation(newest_step=5_000), NOW)
    restarted = decide(planned, observation(newest_step=3, run=1, transfers_ns=()), NOW)
    timed = decide(restarted, observation(newest_step=30, run=1), NOW)

    assert (restarted.plan.version, restarted.plan.mode) == (2, "plain")
    assert (timed.plan.version, timed.plan.mode, timed.plan.from_step) == (3, "timed", 80)


def test_one_clock_needs_no_guard() -> None:
    """Ranks that share one clock are timed with a guard of 0."""
    plan = decide(BarrierState(), BarrierObservation(0, 0, ONE_CLOCK, [MS] * 20), NOW).plan

    assert (plan.mode, plan.guard_ns, plan.reason) == ("timed", 0, "one clock")


def test_no_barrier_is_timed_by_what_will_not_hold() -> None:
    """The guard is for the next seconds: an alignment that ends within them gives none."""
    ends = Alignment(200_000, 0, ("a", "b"), "a and b", holds_for_ns=GUARD_FOR_NS)
    observed = BarrierObservation(0, 100, ends, [MS] * 20)

    assert decide(BarrierState(), observed, NOW) == BarrierState()
    assert decide(decide(BarrierState(), observation(), NOW), observed, NOW).plan.reason == (
        "without new states the alignment expires within 3 s"
    )


def test_a_slack_that_a_rank_missed_is_made_longer_at_once() -> None:
    """By half, under a new version, and without a plain step in between: rank 0 alone decides by it."""
    planned = decide(BarrierState(), observation(), NOW)
    hold_ns = planned.plan.slack_ns + planned.plan.guard_ns
    planned = after(planned, [barrier(200, hold_ns), barrier(201, hold_ns, late_ns=1)])

    assert (planned.plan.version, planned.plan.from_step, planned.plan.mode) == (2, 150, "timed")
    assert planned.plan.slack_ns == pytest.approx(3 * MS, rel=0.01)


def test_a_slack_that_all_ranks_make_shrinks_slowly() -> None:
    """Each round by a little; a new plan comes when it has moved by a tenth, so that the version does not run away."""
    planned, versions = decide(BarrierState(), observation(), NOW), set()
    for step in range(200, 1_800):
        planned = after(planned, [barrier(step, planned.plan.slack_ns + planned.plan.guard_ns)])
        versions.add(planned.plan.version)

    assert planned.plan.slack_ns == pytest.approx(2 * MS * (2047 / 2048) ** 1_600, rel=0.1)
    assert len(versions) == 8


def test_a_barrier_counts_once() -> None:
    """The window shows it in many rounds."""
    planned = decide(BarrierState(), observation(), NOW)
    late = [barrier(200, planned.plan.slack_ns + planned.plan.guard_ns, late_ns=1)]
    once = after(planned, late)

    assert after(once, late) == once


@pytest.mark.parametrize("hold_ns", [0, 300_000, 2 * MS])
def test_a_barrier_that_this_plan_did_not_time_changes_nothing(hold_ns: int) -> None:
    """Plain ones, and those of a shorter slack, end sooner after the last arrival: their ends always differ."""
    planned = decide(BarrierState(), observation(), NOW)

    assert after(planned, [barrier(200, hold_ns, late_ns=MS)]).plan == planned.plan


def test_a_slack_stays_within_its_limits() -> None:
    """However many ranks are late."""
    planned = decide(BarrierState(), observation(), NOW)
    for step in range(200, 230):
        planned = after(planned, [barrier(step, planned.plan.slack_ns + planned.plan.guard_ns, late_ns=MS)])

    assert planned.plan.slack_ns <= MAX_SLACK_NS
    assert planned.slack_ns == MAX_SLACK_NS


def test_a_slack_is_take_over_from_another_hub() -> None:
    """What that one had adapted is not measured again from barriers that were timed."""
    received = decide(BarrierState(), observation(), NOW).plan
    planned = decide(take_over(BarrierState(), received, 100), observation(transfers_ns=[8 * MS] * 20), NOW)

    assert planned.plan.slack_ns == received.slack_ns
