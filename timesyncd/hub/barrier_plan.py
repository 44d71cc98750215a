"""Decides how a job's barrier is to be run. Pure: what was planned last and what is seen now -> the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from timesyncd.client.slack import adapted_ns
from timesyncd.clocks import NS_PER_S
from timesyncd.fleet.alignment import Alignment
from timesyncd.jobs.arrivals import Sync
from timesyncd.messages.jobs import Plan
from timesyncd.units import percentile

#: Clocks further apart than this give no common instant worth waiting for.
TIMED_UP_TO_NS = 1_000_000

#: A plan's way to rank 0 is the hub's round, the broker and the node's daemon: it starts this many steps ahead.
STEPS_AHEAD = 50

#: The guard covers an alignment that grows for so long: rank 0 compares it with what it reads between two rounds.
GUARD_FOR_NS = 3 * NS_PER_S

#: After the timed barrier had to be given up, it is not tried again for this long.
RETRY_AFTER_NS = 10 * NS_PER_S

MIN_SLACK_NS = 500_000
MAX_SLACK_NS = 10_000_000

#: By how much a hub that takes over raises a plan's version: the former one may have made some that this one never heard of.
VERSIONS_SKIPPED = 100

#: The slack is taken from this many barriers at least.
MIN_BARRIERS = 20

#: A slack that adapts makes a new plan when it has moved by one part in so many.
SLACK_MOVES_BY = 10

NOTHING_PLANNED = Plan(reason="nothing planned yet")


@dataclass(frozen=True, slots=True)
class Planned:
    """
    The plan in force, the run of the job that it was made for and that run's slack once it is chosen, CLOCK_BOOTTIME before
    which no timed barrier is tried, and the newest step whose barriers the slack has been adapted by.
    """

    plan: Plan = NOTHING_PLANNED
    run: int = 0
    slack_ns: int | None = None
    retry_at_ns: int = 0
    adapted_step: int = -1


@dataclass(frozen=True, slots=True)
class View:
    """What the hub sees of a job: its barriers, in order, and in `transfers_ns` how long they lasted after the last arrival."""

    run: int
    newest_step: int
    alignment: Alignment
    transfers_ns: Sequence[int]
    barriers: Sequence[Sync] = ()


def decide(last: Planned, view: View, now_boottime_ns: int) -> Planned:
    """The plan from now on: the last one for as long as it serves, else one of the next version."""
    if last.run != view.run:
        last = _plain(last, view, "the job began anew", retry_at_ns=0, slack_ns=None)
    last = _adapted(last, view)
    slack_ns = last.slack_ns if last.slack_ns is not None else _slack_ns(view.transfers_ns)
    why_plain = _why_plain(view.alignment, slack_ns)
    if last.plan.mode == "timed" and why_plain:
        return _plain(last, view, why_plain, now_boottime_ns + RETRY_AFTER_NS, slack_ns)
    if why_plain or now_boottime_ns < last.retry_at_ns or _serves(last, view.alignment):
        return last
    return _timed(last, view, slack_ns or MIN_SLACK_NS)


def taken_over(last: Planned, heard: Plan, newest_step: int) -> Planned:
    """The same as `heard` from another hub, under a version and from a step that no rank can have seen of it."""
    version, from_step = heard.version + VERSIONS_SKIPPED, newest_step + STEPS_AHEAD
    plan = heard.model_copy(update={"version": version, "from_step": from_step})
    return replace(last, plan=plan, slack_ns=heard.slack_ns if heard.mode == "timed" else last.slack_ns)


def amended(last: Planned, planned: Planned, changes: Mapping[str, object]) -> Planned:
    """`planned` with these fields of its plan: what is no more the plan that was told `last` is one of another version."""
    if all(getattr(planned.plan, name) == value for name, value in changes.items()):
        return planned
    if planned.plan.version == last.plan.version:
        changes = {**changes, "version": planned.plan.version + 1}
    return replace(planned, plan=planned.plan.model_copy(update=changes))


def _adapted(last: Planned, view: View) -> Planned:
    """The slack after what the barriers since the last round show: longer where ranks were late, else slowly shorter."""
    if last.plan.mode == "plain" or last.slack_ns is None or not view.barriers:
        return last
    missed, made = _releases(last, view.barriers)
    slack_ns = adapted_ns(last.slack_ns, missed, made, MIN_SLACK_NS, MAX_SLACK_NS)
    return replace(last, slack_ns=slack_ns, adapted_step=max(last.adapted_step, view.barriers[-1].step))


def _releases(last: Planned, barriers: Sequence[Sync]) -> tuple[int, int]:
    """
    Of the releases that this plan timed: how many some rank missed, and how many all made.

    A rank that holds ends its mark at the very instant, a late one after it. Barriers that ended sooner after the last arrival
    than the plan's hold were plain, or timed by a shorter slack.
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


def _why_plain(alignment: Alignment, slack_ns: int | None) -> str:
    """Empty when the barrier can be timed."""
    if alignment.alignment_ns is None:
        return f"alignment unknown: {alignment.reason}"
    if alignment.at(GUARD_FOR_NS) is None:
        return f"alignment unknown within {GUARD_FOR_NS // NS_PER_S} s, if nothing more is heard"
    if alignment.alignment_ns > TIMED_UP_TO_NS:
        return f"the clocks may be more than {TIMED_UP_TO_NS} ns apart"
    return "" if slack_ns is not None else f"fewer than {MIN_BARRIERS} barriers measured"


def _slack_ns(transfers_ns: Sequence[int]) -> int | None:
    """
    Time for rank 0's broadcast to arrive: twice what nine of ten barriers took, since the first ones also open connections.

    Taken so once a run, while plain: a timed barrier ends at its instant, so its own length would feed back. From then on it is
    adapted by which ranks were late.
    """
    if len(transfers_ns) < MIN_BARRIERS:
        return None
    return min(MAX_SLACK_NS, max(MIN_SLACK_NS, 2 * percentile(transfers_ns, 90)))


def _serves(last: Planned, alignment: Alignment) -> bool:
    """The guard stays until it is too small, or far too large, and the slack until it has moved: no new plan in every round."""
    plan, needed_ns = last.plan, alignment.at(GUARD_FOR_NS)
    if plan.mode == "plain" or needed_ns is None or not plan.guard_ns // 4 <= needed_ns <= plan.guard_ns:
        return False
    return last.slack_ns is None or abs(last.slack_ns - plan.slack_ns) * SLACK_MOVES_BY < plan.slack_ns


def _timed(last: Planned, view: View, slack_ns: int) -> Planned:
    """A timed plan that changes does so at once: rank 0 alone decides by it, so no two ranks can be of two plans."""
    guard_ns = (view.alignment.at(GUARD_FOR_NS) or 0) * 5 // 4
    plan = Plan(
        version=last.plan.version + 1,
        from_step=last.plan.from_step if last.plan.mode == "timed" else view.newest_step + STEPS_AHEAD,
        mode="timed",
        slack_ns=slack_ns,
        guard_ns=guard_ns,
        reason=view.alignment.reason,
    )
    return Planned(plan, view.run, slack_ns, last.retry_at_ns, view.newest_step)


def _plain(last: Planned, view: View, reason: str, retry_at_ns: int, slack_ns: int | None) -> Planned:
    """Plain at once: before a plan's first step the barrier is plain as well."""
    plan = Plan(version=last.plan.version + 1, from_step=view.newest_step + STEPS_AHEAD, reason=reason)
    return Planned(plan, view.run, slack_ns, retry_at_ns)
