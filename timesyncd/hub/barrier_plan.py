"""
The plan of a job's barrier: timed where the clocks of its nodes are aligned well enough, else plain. Pure: time is an
argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from timesyncd.client.slack import adapted_ns
from timesyncd.clocks import NS_PER_S
from timesyncd.fleet.alignment import Alignment
from timesyncd.ipc.job_segment import Plan, PlanReason
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.jobs.arrivals import Sync
from timesyncd.units import percentile

#: The barrier is plain while the clocks may be further apart than this: their common instant is then not worth waiting
#: for.
TIMED_UP_TO_NS = 1_000_000

#: A plan reaches rank 0 through the hub's round, the broker and the node's daemon, so it starts so many steps ahead.
STEPS_AHEAD = 50

#: The guard covers the growth of the alignment for so long: rank 0 compares it with what it reads between two rounds of
#: the hub.
GUARD_FOR_NS = 3 * NS_PER_S

#: After a timed plan had to be abandoned, the hub does not plan another one for this long.
RETRY_AFTER_NS = 10 * NS_PER_S

NS_PER_MS = 1_000_000

MIN_SLACK_NS = 500_000
MAX_SLACK_NS = 10_000_000

#: A hub that takes over raises a plan's version by this: the former hub may have published some that this one did not
#: receive.
VERSIONS_SKIPPED = 100

#: The first slack is computed from at least so many barriers.
MIN_BARRIERS = 20

#: A slack that adapts makes a new plan when it has moved by one part in so many.
SLACK_MOVES_BY = 10

NOT_PLANNED = Plan(reason="the hub has made no plan yet", reason_code=PlanReason.NOT_PLANNED)


@dataclass(frozen=True, slots=True)
class BarrierState:
    """
    The plan in force, the run of the job that it was made for, that run's slack once it is chosen, the CLOCK_BOOTTIME
    before which no timed barrier is planned, and the newest step whose barriers have adapted the slack.
    """

    plan: Plan = NOT_PLANNED
    run: int = 0
    slack_ns: int | None = None
    retry_at_ns: int = 0
    adapted_step: int = -1


@dataclass(frozen=True, slots=True)
class BarrierObservation:
    """
    What the hub observes of a job: its barriers, in order, and in `transfers_ns` how long they lasted after the last
    arrival.
    """

    run: int
    newest_step: int
    alignment: Alignment
    transfers_ns: Sequence[int]
    barriers: Sequence[Sync] = ()


#: Why a barrier cannot be timed.
Obstacle = CodedReason[PlanReason]

JOB_RESTARTED = CodedReason(PlanReason.JOB_RESTARTED, "the job restarted")


def decide(last: BarrierState, observed: BarrierObservation, now_boottime_ns: int) -> BarrierState:
    """The plan from now on: the last one as long as it is valid, else one of the next version."""
    if last.run != observed.run:
        last = _plain(last, observed, JOB_RESTARTED, retry_at_ns=0, slack_ns=None)
    last = _adapted(last, observed)
    slack_ns = last.slack_ns if last.slack_ns is not None else _slack_ns(observed.transfers_ns)
    obstacle = _obstacle(observed.alignment, slack_ns)
    if last.plan.mode == "timed" and obstacle is not None:
        return _plain(last, observed, obstacle, now_boottime_ns + RETRY_AFTER_NS, slack_ns)
    if obstacle is not None or now_boottime_ns < last.retry_at_ns or _is_valid(last, observed.alignment):
        return last
    return _timed(last, observed, slack_ns or MIN_SLACK_NS)


def take_over(last: BarrierState, received: Plan, newest_step: int) -> BarrierState:
    """Another hub's plan, under a version and from a step that no rank can have received from it."""
    plan = replace(received, version=received.version + VERSIONS_SKIPPED, from_step=newest_step + STEPS_AHEAD)
    return replace(last, plan=plan, slack_ns=received.slack_ns if received.mode == "timed" else last.slack_ns)


def with_changes(last: BarrierState, planned: BarrierState, changes: Mapping[str, Any]) -> BarrierState:
    """`planned` with these fields of its plan, under a new version where it then differs from the plan of `last`."""
    if all(getattr(planned.plan, name) == value for name, value in changes.items()):
        return planned
    if planned.plan.version == last.plan.version:
        changes = {**changes, "version": planned.plan.version + 1}
    return replace(planned, plan=replace(planned.plan, **changes))


def _adapted(last: BarrierState, observed: BarrierObservation) -> BarrierState:
    """The slack after the barriers since the last round: longer where ranks were late, else slowly shorter."""
    if last.plan.mode == "plain" or last.slack_ns is None or not observed.barriers:
        return last
    missed, made = _releases(last, observed.barriers)
    slack_ns = adapted_ns(last.slack_ns, missed, made, MIN_SLACK_NS, MAX_SLACK_NS)
    return replace(last, slack_ns=slack_ns, adapted_step=max(last.adapted_step, observed.barriers[-1].step))


def _releases(last: BarrierState, barriers: Sequence[Sync]) -> tuple[int, int]:
    """
    Of the releases that this plan timed: how many some rank missed, and how many all ranks made.

    A rank that waits ends its mark exactly at the release instant, a late rank ends it later. Barriers that ended
    sooner after the last arrival than the plan's slack and guard were plain, or timed with a shorter slack.
    """
    missed = made = 0
    hold_ns = last.plan.slack_ns + last.plan.guard_ns
    for sync in barriers:
        if sync.comparison is None or sync.step < max(last.adapted_step + 1, last.plan.from_step):
            continue
        ends = [arrival.end_ns for arrival in sync.arrivals.values()]
        last_arrival_ns = max(arrival.arrival_ns for arrival in sync.arrivals.values())
        if min(ends) - last_arrival_ns >= hold_ns - sync.comparison.error_ns:
            late = max(ends) > min(ends)
            missed, made = missed + late, made + (not late)
    return missed, made


def _obstacle(alignment: Alignment, slack_ns: int | None) -> Obstacle | None:
    """Why the barrier cannot be timed; None: it can."""
    if alignment.alignment_ns is None:
        return CodedReason(PlanReason.ALIGNMENT_UNKNOWN, f"the alignment is unknown: {alignment.reason}")
    if alignment.at(GUARD_FOR_NS) is None:
        return CodedReason(
            PlanReason.ALIGNMENT_EXPIRES,
            f"without new states the alignment expires within {GUARD_FOR_NS // NS_PER_S} s",
        )
    if alignment.alignment_ns > TIMED_UP_TO_NS:
        return CodedReason(
            PlanReason.CLOCKS_TOO_FAR_APART,
            f"the clocks may be more than {TIMED_UP_TO_NS // NS_PER_MS} ms apart",
        )
    if slack_ns is None:
        return CodedReason(PlanReason.TOO_FEW_BARRIERS, f"fewer than {MIN_BARRIERS} barriers have been measured")
    return None


def _slack_ns(transfers_ns: Sequence[int]) -> int | None:
    """
    Time for rank 0's broadcast to arrive: twice the duration that nine of ten barriers stayed below, since the first
    also open connections.

    It is computed so once a run, while the barrier is plain: a timed barrier ends at its instant, so its own length
    would feed back. From then on the slack adapts to how many ranks were late.
    """
    if len(transfers_ns) < MIN_BARRIERS:
        return None
    return min(MAX_SLACK_NS, max(MIN_SLACK_NS, 2 * percentile(transfers_ns, 90)))


def _is_valid(last: BarrierState, alignment: Alignment) -> bool:
    """
    The guard stays until it is too small or far too large, and the slack until it has moved: not every round makes a
    plan.
    """
    plan, needed_ns = last.plan, alignment.at(GUARD_FOR_NS)
    if plan.mode == "plain" or needed_ns is None or not plan.guard_ns // 4 <= needed_ns <= plan.guard_ns:
        return False
    return last.slack_ns is None or abs(last.slack_ns - plan.slack_ns) * SLACK_MOVES_BY < plan.slack_ns


def _timed(last: BarrierState, observed: BarrierObservation, slack_ns: int) -> BarrierState:
    """A timed plan may change at once: rank 0 alone decides by it, so no two ranks can follow two plans."""
    guard_ns = (observed.alignment.at(GUARD_FOR_NS) or 0) * 5 // 4
    plan = Plan(
        version=last.plan.version + 1,
        from_step=last.plan.from_step if last.plan.mode == "timed" else observed.newest_step + STEPS_AHEAD,
        mode="timed",
        slack_ns=slack_ns,
        guard_ns=guard_ns,
        reason=observed.alignment.reason,
        reason_code=PlanReason.ALIGNED,
    )
    return BarrierState(plan, observed.run, slack_ns, last.retry_at_ns, observed.newest_step)


def _plain(
    last: BarrierState, observed: BarrierObservation, obstacle: Obstacle, retry_at_ns: int, slack_ns: int | None
) -> BarrierState:
    """A plain plan takes effect at once: before a plan's first step the barrier is plain as well."""
    plan = Plan(
        version=last.plan.version + 1,
        from_step=observed.newest_step + STEPS_AHEAD,
        reason=obstacle.text,
        reason_code=obstacle.code,
    )
    return BarrierState(plan, observed.run, slack_ns, retry_at_ns)
