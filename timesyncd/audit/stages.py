"""A step's stages, and the time that each adds to it. No two clocks are compared. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from timesyncd.audit.measured import Measured
from timesyncd.jobs.arrivals import READING_GRANULARITY_NS, Sync
from timesyncd.jobs.exposed import Interval, StageCost, StepCost, frontier
from timesyncd.jobs.lateness import independent_part, independent_steps, is_persistent
from timesyncd.jobs.recording import positions, same_step

StageName = Literal["compute", "synchronize", "update"]

_Key = tuple[str, StageName]


@dataclass(frozen=True, slots=True)
class Stage:
    """
    A stage: computing until the wait at `where`, the synchronization there, or (`where` "") the update after the last
    one.

    `cost_ns` is the mean time that it adds to a step; the stages add up to the step's length. `rank` is the slowest one
    in `lead_share` of the steps (None: none, or explicable by chance).
    """

    where: str
    stage: StageName
    cost_ns: int
    share: float
    rank: int | None
    lead_share: float | None


@dataclass
class _StageTotals:
    cost_ns: int = 0
    leaders: list[int | None] = field(default_factory=list)


def stages(now: Measured) -> list[Stage]:
    """In the order of a step, from the steps in which every rank was measured; empty: there is none."""
    found: dict[_Key, _StageTotals] = {}
    steps = 0
    for key_costs in _each_step(now):
        steps += 1
        for key, cost_ns, rank in key_costs:
            stage = found.setdefault(key, _StageTotals())
            stage.cost_ns += cost_ns
            stage.leaders.append(rank)
    total_ns = sum(stage.cost_ns for stage in found.values())
    if not total_ns:
        return []
    tests = len(found) * now.recording.world_size
    return [
        Stage(*key, stage.cost_ns // steps, stage.cost_ns / total_ns, *_leader(stage.leaders, tests))
        for key, stage in sorted(found.items(), key=lambda one: one[0] == _UPDATE)
    ]


_UPDATE: _Key = ("", "update")


def _each_step(now: Measured) -> Iterator[list[tuple[_Key, int, int | None]]]:
    """By step: its stages, the time that each adds, and the rank that alone is the slowest (None: there is none)."""
    by_step = dict(same_step(now.recording.syncs))
    for cost in now.costs:
        syncs = by_step.get(cost.step, [])
        if syncs and len(cost.ranks) == now.recording.world_size:
            named: list[_Key] = []
            for where in positions(syncs):
                named += (where, "compute"), (where, "synchronize")
            boundaries = _boundaries(now, cost, syncs)
            leads = zip([*named, _UPDATE], frontier(boundaries), strict=False)
            yield [(key, each.cost_ns, each.rank if _is_ahead(each, boundaries) else None) for key, each in leads]


def _boundaries(now: Measured, cost: StepCost, syncs: list[Sync]) -> Mapping[int, list[Interval]]:
    """
    By rank, in ns since its step began: the interval of its wait at each synchronization, then the end of its step.
    """
    found = {}
    for rank, of_rank in cost.ranks.items():
        mark = now.recording.step_mark(rank, cost.step)
        began_ns = mark.arrival_ns if mark is not None else syncs[0].arrivals[rank].arrival_ns
        spans = [(sync.arrivals[rank].begin_ns - began_ns, sync.arrivals[rank].end_ns - began_ns) for sync in syncs]
        found[rank] = [*spans, (of_rank.elapsed_ns, of_rank.elapsed_ns)]
    return found


def _is_ahead(lead: StageCost, boundaries: Mapping[int, list[Interval]]) -> bool:
    """Whether the rank leads by more than the granularity of clock readings."""
    side = 0 if lead.stage == "reach" else 1
    at_ns = {rank: spans[lead.sync][side] for rank, spans in boundaries.items()}
    others_ns = max((ns for rank, ns in at_ns.items() if rank != lead.rank), default=None)
    return others_ns is not None and at_ns[lead.rank] - others_ns > READING_GRANULARITY_NS


def _leader(leaders: list[int | None], tests: int) -> tuple[int | None, float | None]:
    led = [{rank for rank in (each,) if rank is not None} for each in leaders]
    times_led = Counter(rank for rank in leaders if rank is not None)
    if not times_led:
        return None, None
    (rank, times), steps = times_led.most_common(1)[0], len(leaders)
    if not is_persistent(*independent_steps(times, steps, independent_part(led)), tests):
        return None, None
    return rank, times / steps
