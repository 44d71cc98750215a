"""
Micro-batches that take unequally long, as unequal sequences do, and what only looks so. Pure.

More data show on all ranks that work on a micro-batch. A rank that pauses, or whose machine is busy, is slow alone, or
together with the ranks on its machine, or with all. So the ranks of a replica have to agree on which of its micro-batches
take long, and not with the ranks of other replicas. Ranks on one machine that do the same at one time show nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import correlation, fmean, median, pstdev

from timesyncd.jobs.compute_model import ComputeModel, means_by_key
from timesyncd.jobs.slow_compute import LEAST_NS, MIN_RANK_EXCESS, SlowCompute
from timesyncd.jobs.slow_transfers import MIN_SIGNIFICANCE
from timesyncd.jobs.step_causes import Candidate, CauseKind, UnknownReason
from timesyncd.jobs.step_graph import COMPUTE

MIN_SEQUENCE_SIGMA = 0.05

#: The ranks of a replica agree on its micro-batches where their rank correlation is so high,
AGREEMENT = 0.75
#: by so many standard deviations of what chance makes of as many micro-batches.
_CHANCE = 3.1
#: Below this the variation is that of each rank alone.
_DISAGREEMENT = 0.3

_Batch = tuple[int, int]
"""Step, and number of a micro-batch in it."""


@dataclass(frozen=True)
class UnequalData:
    """`even`: the model in which the slow ranks take what their like do."""

    even: ComputeModel
    slow: SlowCompute

    def candidates(self) -> list[Candidate]:
        """Unequal micro-batches, which fall on every replica in turn; and replicas whose micro-batches take longer."""
        if not self.even.loads:
            return []
        found = self._replicas()
        shown = [_varies(model) for model in (self.even, self.slow.model)]
        if False in shown:
            return found
        unknown = UnknownReason.SEQUENCES_OR_PAUSES if None in shown else None
        sigma = math.sqrt(fmean((load - 1) ** 2 for each in _own_loads(self.even).values() for load in each))
        return [*found, Candidate(CauseKind.SEQUENCES, sigma, self._equal_loads(), unknown=unknown)]

    def _replicas(self) -> list[Candidate]:
        """Replicas whose micro-batches persistently take longer than those of the others."""
        graph = self.even.graph
        by_step = means_by_key(((replica, step), load) for (replica, step, _), load in self.even.loads.items())
        steps: dict[int, list[float]] = defaultdict(list)
        for (replica, _), load in by_step.items():
            steps[replica].append(load)
        found: list[Candidate] = []
        if graph.steps < 3 or len(steps) < 2:
            return found
        error = median(pstdev(loads) for loads in steps.values()) * math.sqrt(2 / (graph.steps - 1))
        for replica, loads in steps.items():
            usual = median(fmean(other) for each, other in steps.items() if each != replica)
            excess = fmean(loads) / usual - 1
            if excess >= max(MIN_RANK_EXCESS, MIN_SIGNIFICANCE * error):
                ranks = tuple(rank for rank in graph.ranks if graph.replicas[rank] == replica)
                factors = {
                    index: 1 / (1 + excess)
                    for index, operation in enumerate(graph.operations)
                    if operation.kind == COMPUTE and operation.rank in ranks
                }
                reason = UnknownReason.DATA_OR_NODE
                found.append(Candidate(CauseKind.SEQUENCES, excess, factors, ranks=ranks, unknown=reason))
        return found

    def _equal_loads(self) -> dict[int, float]:
        mean, found = fmean(self.even.loads.values()), {}
        for index, operation in enumerate(self.even.graph.operations):
            key = operation.rank, operation.step, operation.place
            if operation.kind == COMPUTE and key in self.even.units:
                # A rank that is not slow has its own mean from the micro-batches that fell to it.
                own = 1.0 if operation.rank in self.slow.factors else self.even.factors[operation.rank]
                found[index] = mean / self.even.load(*key) / own
        return found


def _varies(model: ComputeModel) -> bool | None:
    """Whether the data vary. None: something does, and it may be pauses."""
    own = _own_loads(model)
    if _apart_sigma(model, own) < MIN_SEQUENCE_SIGMA or not _is_everywhere(own):
        return False
    return _agree(model)


def _own_loads(model: ComputeModel) -> dict[int, list[float]]:
    """By replica the work of its micro-batches over its mean."""
    found: dict[int, list[float]] = defaultdict(list)
    for (replica, _, _), load in model.loads.items():
        found[replica].append(load)
    return {replica: [load / fmean(loads) for load in loads] for replica, loads in found.items()}


def _apart_sigma(model: ComputeModel, own: Mapping[int, Sequence[float]]) -> float:
    """
    The deviation of the micro-batches' work between replicas, at the same place of a step: what slows all of them at
    once, as a busy host, is no unequal data. Of a single replica the deviation of all.
    """
    if len(own) < 2:
        return math.sqrt(fmean((load - 1) ** 2 for loads in own.values() for load in loads))
    together: dict[tuple[int, int], list[float]] = defaultdict(list)
    means = means_by_key((replica, load) for (replica, _, _), load in model.loads.items())
    for (replica, step, number), load in model.loads.items():
        together[step, number].append(load / means[replica])
    shown = [loads for loads in together.values() if len(loads) > 1]
    if not shown:
        return 0.0
    return math.sqrt(fmean(pstdev(loads) ** 2 * len(loads) / (len(loads) - 1) for loads in shown))


def _is_everywhere(own: Mapping[int, Sequence[float]]) -> bool:
    """Whether it falls on every replica in turn: where one alone varies, its ranks or their node vary."""
    squares = [sum((load - 1) ** 2 for load in loads) for loads in own.values()]
    return len(squares) == 1 or max(squares) < sum(squares) * (0.95 if len(squares) == 2 else 0.8)


# ---- whether the ranks of a replica agree


def _agree(model: ComputeModel) -> bool | None:
    """
    Whether the ranks of a replica agree on its micro-batches more than those of two replicas do. None: not surely, or no
    two ranks can show it.
    """
    by_rank = {rank: _batch_loads(model, rank) for rank in model.graph.ranks}
    within = list(_correlations(by_rank, _witnesses(model)))
    if not within:
        return None
    across = [found for found, _ in _correlations(by_rank, _strangers(model))]
    shown = median(found for found, _ in within) - max(0.0, median(across) if across else 0.0)
    if shown < _DISAGREEMENT:
        return False
    return True if shown >= max(AGREEMENT, median(chance for _, chance in within)) else None


def _witnesses(model: ComputeModel) -> Iterator[tuple[int, int]]:
    """
    Pairs of ranks that work on the same micro-batches, on two machines or, in two stages, at two times. A host that is
    not known counts as another one.
    """
    graph = model.graph
    for one, other in combinations(graph.ranks, 2):
        host = graph.hosts.get(one, "")
        is_apart = not host or host != graph.hosts.get(other, "") or graph.stages[one] != graph.stages[other]
        if graph.replicas[one] == graph.replicas[other] and is_apart:
            yield one, other


def _strangers(model: ComputeModel) -> Iterator[tuple[int, int]]:
    """Pairs of ranks that do the same work on other micro-batches."""
    for one, other in combinations(model.graph.ranks, 2):
        if model.graph.replicas[one] != model.graph.replicas[other] and model.classes[one] == model.classes[other]:
            yield one, other


def _batch_loads(model: ComputeModel, rank: int) -> dict[_Batch, float]:
    """What each micro-batch takes on this rank over what it usually takes, as this rank alone shows."""
    took: dict[_Batch, float] = defaultdict(float)
    usual: dict[_Batch, float] = defaultdict(float)
    for (step, place), ns in model.work[rank].items():
        units = model.units[rank, step, place]
        usual_ns = model.usual(rank, step, place) * model.factors[rank]
        if units and usual_ns > LEAST_NS:
            (_, _, number), share = max(units, key=lambda unit: unit[1])
            others = sum(part * model.loads[unit] for unit, part in units if unit[2] != number)
            took[step, number] += ns - usual_ns * others
            usual[step, number] += usual_ns * share
    return {batch: took[batch] / usual[batch] for batch in took}


def _correlations(
    by_rank: Mapping[int, Mapping[_Batch, float]], pairs: Iterator[tuple[int, int]]
) -> Iterator[tuple[float, float]]:
    """Of each pair, the rank correlation of the micro-batches that both have, and how high chance makes it at most."""
    for one, other in pairs:
        batches = sorted(by_rank[one].keys() & by_rank[other].keys())
        if len(batches) > 2:
            first, second = (_ranked([by_rank[rank][batch] for batch in batches]) for rank in (one, other))
            yield correlation(first, second), _CHANCE / math.sqrt(len(batches) - 1)


def _ranked(values: Sequence[float]) -> list[float]:
    """The place of each value in the order of all; equal ones are in the order given."""
    found = [0.0] * len(values)
    for place, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        found[at] = float(place)
    return found
