"""The fleet at a glance as one message: the headline, the timing chain as groups of nodes, and a line for each part. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from timesyncd.bound import ClockStatus
from timesyncd.clocks import Moment
from timesyncd.fleet.headline import FleetReading, headline, job_alignment_ns, plausible_ns, verdict, worst_first
from timesyncd.fleet.node_clock import AgedStatus, aged_statuses, bounded_ns
from timesyncd.fleet.registry import worst_nodes
from timesyncd.messages.fleet import HubState, NodeAlignment
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import GrandmasterState, status_name
from timesyncd.messages.overview import ChainGroup, ConfiguredLimits, GrandmasterBrief, JobBrief, Overview

MAX_FINDINGS = 100
#: As many as a page shows.
MAX_WORST = 6
NO_NAMES: Mapping[str, str] = MappingProxyType({})


def overview(
    reading: FleetReading,
    grandmasters: Sequence[GrandmasterState],
    hubs: Sequence[HubState],
    node: str,
    now: Moment,
    worst: Sequence[NodeAlignment] | None = None,
) -> Overview:
    """
    Everything as of `now`. `node` is the daemon that answers; `worst` are the fleet's worst nodes, the worst one first;
    None: those of the reading.
    """
    clocks = reading.clocks
    aged = aged_statuses(clocks, now)
    reporting = [clock for clock in clocks if not clock.is_silent(now)]
    chain = chain_groups(aged, names_by_identity(grandmasters))
    statuses = sum((Counter(group.statuses) for group in chain), Counter())
    followed: Counter[str] = Counter()
    for group in chain:
        followed[group.grandmaster] += group.nodes
    places = {clock.node: clock.topology for clock in clocks}
    return Overview(
        as_of_realtime_ns=now.realtime_ns,
        lag_ns=max((max(0, now.boottime_ns - clock.received_boottime_ns) for clock in reporting), default=None),
        node=node,
        headline=headline(reading, aged, now),
        statuses=dict(statuses),
        chain=chain,
        grandmasters=[_grandmaster(each, followed[each.name]) for each in grandmasters],
        jobs=[_job(each, places, reading.limits, now) for each in reading.jobs],
        findings=worst_first(reading.findings)[:MAX_FINDINGS],
        hubs=list(hubs),
        worst=list(worst_nodes(aged, now) if worst is None else worst)[:MAX_WORST],
    )


def names_by_identity(grandmasters: Sequence[GrandmasterState]) -> dict[str, str]:
    """The name of the grandmaster that announces a clock identity: a node that received no state of it does not know the name."""
    return {identity: each.name for each in grandmasters for identity in each.identities}


def chain_groups(aged: Sequence[AgedStatus], names: Mapping[str, str] = NO_NAMES) -> list[ChainGroup]:
    """The nodes with a clock source by grandmaster, parent clock and place; `names` are those of clock identities."""
    groups: dict[tuple[str, str, str, str], list[tuple[ClockStatus, int | None]]] = {}
    for status, sum_ns, clock in aged:
        _, _, parent = clock.aging[4].partition("\nclock ")
        identity = clock.grandmaster_identity or ""
        key = (names.get(identity, clock.grandmaster), identity, parent, clock.topology)
        groups.setdefault(key, []).append((status, bounded_ns(sum_ns)))
    return [_group(key, members) for key, members in sorted(groups.items())]


def _group(key: tuple[str, str, str, str], members: Sequence[tuple[ClockStatus, int | None]]) -> ChainGroup:
    bounds_ns = [ns for _, ns in members if ns is not None]
    grandmaster, identity, parent, place = key
    return ChainGroup(
        grandmaster=grandmaster,
        grandmaster_identity=identity,
        parent_identity=parent,
        place=place,
        nodes=len(members),
        without_bound=len(members) - len(bounds_ns),
        statuses={status_name(status): count for status, count in Counter(status for status, _ in members).items()},
        bound_ns=max(bounds_ns, default=None),
    )


def _grandmaster(state: GrandmasterState, followers: int) -> GrandmasterBrief:
    return GrandmasterBrief(
        name=state.name,
        identities=state.identities,
        reachable=state.reachable,
        clock_state=state.clock_state,
        gnss_state=state.gnss_state,
        antenna=state.antenna,
        alarms=None if state.alarms is None else len(state.alarms),
        utc_bound_ns=plausible_ns(state.current_utc_bound_ns),
        holdover_left_ns=state.current_holdover_left_ns,
        followers=followers,
    )


def _job(job: JobState, places: Mapping[str, str], limits: ConfiguredLimits, now: Moment) -> JobBrief:
    aligned_ns = job_alignment_ns(job, now.realtime_ns)
    return JobBrief(
        job_id=job.job_id,
        job=job.job,
        attempt=job.attempt,
        world_size=job.world_size,
        alignment_ns=aligned_ns,
        alignment_verdict=verdict(aligned_ns, limits.job_alignment_ns),
        straggler_rank=job.straggler_rank,
        verdict=job.verdict,
        verdict_code=job.verdict_code,
        sync_overhead=job.sync_overhead,
        places=dict(Counter(places.get(rank.node, "") for rank in job.ranks)),
    )
