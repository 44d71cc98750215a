"""Groups whose transfers take longer than those of the other groups of their kind, size and stages. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from timesyncd.jobs.step_graph import StepGraph

#: A group is listed where its transfers take so much longer than those of its like,
MIN_TRANSFER_EXCESS = 0.25
#: by so many standard errors.
MIN_SIGNIFICANCE = 5.0


@dataclass(frozen=True, slots=True)
class SlowTransfers:
    """The group, how much longer its transfers take, and by operation the factor that makes them like the others."""

    ranks: tuple[int, ...]
    excess: float
    factors: Mapping[int, float]


def slow_transfers(graph: StepGraph) -> list[SlowTransfers]:
    """The slow groups, among at least two of a kind."""
    durations = graph.durations
    found = []
    for groups in _alike(graph).values():
        if len(groups) < 2:
            continue
        means = {ranks: fmean(durations[index] for index in each) for ranks, each in groups.items()}
        for ranks, ns in means.items():
            others = [other for each, other in means.items() if each != ranks]
            usual, spread = median(others), max(others) - min(others)
            samples = [durations[index] for index in groups[ranks]]
            error = max(MIN_SIGNIFICANCE * _mean_error(samples), 2 * spread)
            if usual > 0 and ns - usual >= max(MIN_TRANSFER_EXCESS * usual, error):
                found.append(SlowTransfers(ranks, ns / usual - 1, dict.fromkeys(groups[ranks], usual / ns)))
    return found


def _mean_error(samples: Sequence[float]) -> float:
    """The standard error of their mean; infinite for one."""
    return pstdev(samples) / math.sqrt(len(samples) - 1) if len(samples) > 1 else math.inf


def _alike(graph: StepGraph) -> dict[tuple[object, ...], dict[tuple[int, ...], list[int]]]:
    found: dict[tuple[object, ...], dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for meeting in graph.meetings:
        stages = tuple(graph.stages[rank] for rank in meeting.ranks)
        of_one = len({graph.replicas[rank] for rank in meeting.ranks}) == 1
        key = (
            meeting.kind,
            len(meeting.ranks),
            of_one,
            stages if meeting.kind == "send" else tuple(sorted(set(stages))),
        )
        found[key][meeting.ranks].extend(meeting.operations)
    return found
