"""Which ranks of a job are near each other, as its plan tells: by where their nodes stand, or by the delays between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.registry import Fleet
from timesyncd.ipc.job_segment import MAX_RANKS
from timesyncd.jobs.joining import Job
from timesyncd.jobs.ranks import Pair
from timesyncd.messages.jobs import Plan
from timesyncd.training.policy.groups import Levels, groups_by_delay, groups_by_label
from timesyncd.units import percentile

#: Both directions of every pair of ranks must have so many delays before they count.
FEWEST_DELAYS = 20

#: A gap in the delays lasts for hours, and to look for one reads them all.
LOOK_EVERY_NS = 10 * NS_PER_S

BY_PLACE = "by topology and node"
BY_DELAY = "by the delays measured between the ranks"
ALIKE = "no ranks are nearer to each other than to the rest"

Delays = Mapping[Pair, tuple[int, int]]
Numbers = list[list[int]]


@dataclass(frozen=True, slots=True)
class Grouped:
    """
    The groups of a run of a job; `reason`: what they are made of, or why there are none. `labels` are the ranks' places; none: they are not
    known yet, or another hub decided. `is_final`: the groups stay for this run.
    """

    run: int
    groups: Numbers
    reason: str
    labels: tuple[str, ...] = ()
    is_final: bool = False

    def is_decided(self, run: int) -> bool:
        return self.run == run and (self.is_final or bool(self.labels))


def decide(
    last: Grouped | None, measured: Grouped | None, run: int, labels: tuple[str, ...] | str, delays: Delays | None
) -> Grouped:
    """
    A job reads its groups when it starts, so they are there as soon as all ranks are known, by their `labels` (or a text: why these are
    not known), and change once in a run at most: when its `delays` (None: some are not known) have a clear gap that says otherwise. What was
    `measured` last, in whichever run, holds for later ones in the same places.
    """
    if last is None or not last.is_decided(run):
        if isinstance(labels, str):
            return Grouped(run, [], labels)
        if measured is not None and measured.labels == labels:
            return replace(measured, run=run, is_final=False)
        last = _by_place(run, labels)
    if last.is_final or delays is None:
        return last
    groups = numbers(groups_by_delay(delays, len(last.labels)))
    if not groups or groups[0] in last.groups:
        return last
    return replace(last, groups=groups, reason=BY_DELAY, is_final=True)


def numbers(levels: Levels) -> Numbers:
    """By level, without the one group of all, each rank's group; groups are numbered by their lowest ranks."""
    found = []
    for level in levels[:-1]:
        of_rank = {rank: number for number, group in enumerate(level) for rank in group}
        found.append([of_rank[rank] for rank in sorted(of_rank)])
    return found


def _by_place(run: int, labels: tuple[str, ...]) -> Grouped:
    if len(labels) > MAX_RANKS:
        return Grouped(run, [], f"a job of more than {MAX_RANKS} ranks is not told of groups", labels, is_final=True)
    groups = numbers(groups_by_label(labels))
    return Grouped(run, groups, BY_PLACE if groups else ALIKE, labels)


class JobGroups:
    """Of all jobs. Never reads a clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._grouped: dict[str, Grouped] = {}
        self._measured: dict[str, Grouped] = {}
        self._look_at_ns: dict[str, int] = {}

    def forget(self, job_id: str) -> None:
        self._grouped.pop(job_id, None)
        self._measured.pop(job_id, None)
        self._look_at_ns.pop(job_id, None)

    def reason(self, job: Job) -> str:
        """What the groups are made of, or why there are none; empty: another hub decides."""
        grouped = self._grouped.get(job.id)
        return "" if grouped is None else grouped.reason

    def fields(self, job: Job, last: Plan, now: Moment) -> dict[str, object]:
        """Of the plan after `last`, which another hub may have made: its groups stay for this run."""
        known = self._grouped.get(job.id)
        if known is None and last.groups:
            known = Grouped(job.run, last.groups, "as another hub planned", is_final=True)
        labels = known.labels if known is not None and known.is_decided(job.run) else self._labels(job)
        grouped = decide(known, self._measured.get(job.id), job.run, labels, self._delays(job, known, now))
        self._grouped[job.id] = grouped
        if grouped.reason == BY_DELAY:
            self._measured[job.id] = grouped
        return {"groups": grouped.groups}

    def _labels(self, job: Job) -> tuple[str, ...] | str:
        if not job.has_all_ranks:
            return f"heard of {len(job.ranks)} ranks of {job.world_size}"
        nodes = [node for _, node in sorted(job.nodes.items())]
        clocks = {node: self._fleet.clock(node) for node in nodes}
        unheard = next((node for node, clock in clocks.items() if clock is None), None)
        if unheard is not None:
            return f"{unheard}: it never sent its state to this hub"
        return tuple(f"{clock.topology}/{node}" for node in nodes if (clock := clocks[node]) is not None)

    def _delays(self, job: Job, known: Grouped | None, now: Moment) -> Delays | None:
        """By (from, to) median and error, of every pair of ranks; None: they are not all known, or it is too early to look again."""
        is_final = known is not None and known.is_final and known.run == job.run
        count = job.world_size * (job.world_size - 1)
        if is_final or not 0 < count <= len(job.flows.delays) or now.boottime_ns < self._look_at_ns.get(job.id, 0):
            return None
        self._look_at_ns[job.id] = now.boottime_ns + LOOK_EVERY_NS
        of_pairs = {pair: job.flows.delays.get(pair, ()) for pair in permutations(range(job.world_size), 2)}
        if any(len(of_pair) < FEWEST_DELAYS for of_pair in of_pairs.values()):
            return None
        return {
            pair: (percentile([each.delay_ns for each in of_pair], 50), max(each.error_ns for each in of_pair))
            for pair, of_pair in of_pairs.items()
        }
