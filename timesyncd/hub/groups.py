"""
The groups of near ranks in a job's plan, by the topology of their nodes or by the delays measured between them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.registry import Fleet
from timesyncd.ipc.job_segment import MAX_RANKS, Plan
from timesyncd.ipc.wire_types import CodedReason
from timesyncd.jobs.joining import JobRun
from timesyncd.jobs.ranks import Pair
from timesyncd.messages.jobs import GroupsReason
from timesyncd.training.policy.groups import Levels, groups_by_delay, groups_by_label
from timesyncd.units import percentile

#: Both directions of every pair of ranks need so many delays before the delays count.
MIN_DELAYS = 20

#: A gap in the delays lasts for hours, and a search for one reads all of them.
SEARCH_EVERY_NS = 10 * NS_PER_S

Delays = Mapping[Pair, tuple[int, int]]
GroupNumbers = tuple[tuple[int, ...], ...]


#: What groups are made of, or why there are none.
GroupsExplanation = CodedReason[GroupsReason]

BY_TOPOLOGY = CodedReason(GroupsReason.BY_TOPOLOGY, "by topology and node")
BY_DELAY = CodedReason(GroupsReason.BY_DELAY, "by the delays measured between the ranks")
ADOPTED = CodedReason(GroupsReason.ADOPTED, "as another hub planned")
NO_GROUPS = CodedReason(GroupsReason.NO_GROUPS, "no ranks are nearer to each other than to the rest")
NOT_DECIDED = CodedReason(GroupsReason.UNKNOWN, "")


@dataclass(frozen=True, slots=True)
class RankGroups:
    """
    The groups of a run of a job. `labels` are the ranks' places in the topology; empty: they are not known yet, or
    another hub decided. `is_final`: the groups stay for this run.
    """

    run: int
    groups: GroupNumbers
    reason: GroupsExplanation
    labels: tuple[str, ...] = ()
    is_final: bool = False

    def is_decided(self, run: int) -> bool:
        return self.run == run and (self.is_final or bool(self.labels))


def decide(
    last: RankGroups | None,
    measured: RankGroups | None,
    run: int,
    labels: tuple[str, ...] | GroupsExplanation,
    delays: Delays | None,
) -> RankGroups:
    """
    The groups of a run. A job reads its groups when it starts, so they are decided as soon as all ranks are known, by
    their `labels` (or why these are unknown). They change at most once in a run: when its `delays` (None: some are
    unknown) have a clear gap that contradicts them. What was `measured` last, in any run, applies to later runs with
    the same labels.
    """
    if last is None or not last.is_decided(run):
        if isinstance(labels, CodedReason):
            return RankGroups(run, (), labels)
        if measured is not None and measured.labels == labels:
            return replace(measured, run=run, is_final=False)
        last = _by_topology(run, labels)
    if last.is_final or delays is None:
        return last
    groups = group_numbers(groups_by_delay(delays, len(last.labels)))
    if not groups or groups[0] in last.groups:
        return last
    return replace(last, groups=groups, reason=BY_DELAY, is_final=True)


def group_numbers(levels: Levels) -> GroupNumbers:
    """
    By level, without the one group of all, the number of each rank's group; groups are numbered by their lowest ranks.
    """
    numbers = []
    for level in levels[:-1]:
        by_rank = {rank: number for number, group in enumerate(level) for rank in group}
        numbers.append(tuple(by_rank[rank] for rank in sorted(by_rank)))
    return tuple(numbers)


def _by_topology(run: int, labels: tuple[str, ...]) -> RankGroups:
    if len(labels) > MAX_RANKS:
        reason = CodedReason(
            GroupsReason.TOO_MANY_RANKS, f"{len(labels)} ranks: groups are published for at most {MAX_RANKS} ranks"
        )
        return RankGroups(run, (), reason, labels, is_final=True)
    groups = group_numbers(groups_by_label(labels))
    return RankGroups(run, groups, BY_TOPOLOGY if groups else NO_GROUPS, labels)


class JobGroups:
    """The groups of all jobs. Never reads a clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._decided: dict[str, RankGroups] = {}
        self._measured: dict[str, RankGroups] = {}
        self._search_at_ns: dict[str, int] = {}

    def forget(self, job_id: str) -> None:
        self._decided.pop(job_id, None)
        self._measured.pop(job_id, None)
        self._search_at_ns.pop(job_id, None)

    def reason(self, job: JobRun) -> GroupsExplanation:
        """What the groups are made of, or why there are none; NOT_DECIDED: another hub decides."""
        decided = self._decided.get(job.id)
        return NOT_DECIDED if decided is None else decided.reason

    def fields(self, job: JobRun, last: Plan, now: Moment) -> dict[str, object]:
        """
        The groups as fields of the plan after `last`. Another hub may have made that one: its groups stay for this run.
        """
        known = self._decided.get(job.id)
        if known is None and last.groups:
            known = RankGroups(job.run, last.groups, ADOPTED, is_final=True)
        labels = known.labels if known is not None and known.is_decided(job.run) else self._labels(job)
        decided = decide(known, self._measured.get(job.id), job.run, labels, self._delays(job, known, now))
        self._decided[job.id] = decided
        if decided.reason.code is GroupsReason.BY_DELAY:
            self._measured[job.id] = decided
        return {"groups": decided.groups}

    def _labels(self, job: JobRun) -> tuple[str, ...] | GroupsExplanation:
        if not job.has_all_ranks:
            return CodedReason(GroupsReason.RANKS_MISSING, f"{len(job.ranks)} of {job.world_size} ranks reporting")
        nodes = [node for _, node in sorted(job.nodes.items())]
        clocks = {node: self._fleet.clock(node) for node in nodes}
        unknown = next((node for node, clock in clocks.items() if clock is None), None)
        if unknown is not None:
            return CodedReason(GroupsReason.NODE_UNKNOWN, f"{unknown}: this hub has received no state of this node")
        return tuple(f"{clock.topology}/{node}" for node in nodes if (clock := clocks[node]) is not None)

    def _delays(self, job: JobRun, known: RankGroups | None, now: Moment) -> Delays | None:
        """
        By (from, to) the median delay and its error, of every pair of ranks; None: some are unknown, or the next search
        is not due.
        """
        is_final = known is not None and known.is_final and known.run == job.run
        count = job.world_size * (job.world_size - 1)
        if is_final or not 0 < count <= len(job.flows.delays) or now.boottime_ns < self._search_at_ns.get(job.id, 0):
            return None
        self._search_at_ns[job.id] = now.boottime_ns + SEARCH_EVERY_NS
        by_pair = {pair: job.flows.delays.get(pair, ()) for pair in permutations(range(job.world_size), 2)}
        if any(len(delays) < MIN_DELAYS for delays in by_pair.values()):
            return None
        return {
            pair: (percentile([each.delay_ns for each in delays], 50), max(each.error_ns for each in delays))
            for pair, delays in by_pair.items()
        }
