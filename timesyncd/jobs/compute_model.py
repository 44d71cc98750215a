"""
What each rank computes in a step: the product of what a place of the step takes on its stage, a rank's factor, and the
work of a micro-batch. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median, median_low
from typing import TypeVar

from timesyncd.jobs.step_graph import COMPUTE, StepGraph

_ROUNDS = 12

_Key = TypeVar("_Key", bound=Hashable)
_Place = tuple[int, int]
Unit = tuple[int, int, int]
Work = tuple[object, ...]


@dataclass
class ComputeModel:
    """
    Computing as the product of what a place takes on its stage, a rank's factor, and the work of a micro-batch.

    `work`: by rank and (step, place). `typical`: by class and place. `factors`: by rank. `units`: by rank and (step,
    place) the micro-batches there with weights that sum to 1; `loads`: by micro-batch. `numbers`: by a micro-batch's
    number in its step the lowest of those for which ranks do the same; the loads of others do not compare.
    """

    graph: StepGraph
    work: dict[int, dict[_Place, float]]
    classes: dict[int, tuple[int, ...]]
    replicas: Mapping[int, int]
    units: dict[tuple[int, int, int], tuple[tuple[Unit, float], ...]]
    numbers: dict[int, int] = field(default_factory=dict)
    typical: dict[tuple[int, ...], dict[Work, float]] = field(default_factory=dict)
    factors: dict[int, float] = field(default_factory=dict)
    loads: dict[Unit, float] = field(default_factory=dict)

    def kind(self, rank: int, step: int, place: int) -> Work:
        """What is done there: the same for all micro-batches, where messages show which one it is."""
        label = self.graph.labels.get((rank, step, place))
        return (place,) if label is None else label.work

    def usual(self, rank: int, step: int, place: int) -> float:
        """What it takes on a healthy rank for a mean micro-batch; 0: not known."""
        return self.typical[self.classes[rank]].get(self.kind(rank, step, place), 0.0)

    def load(self, rank: int, step: int, place: int) -> float:
        """The work of the micro-batches there over the mean; 1 where no micro-batch is known."""
        units = self.units[rank, step, place]
        return sum(share * self.loads[unit] for unit, share in units) if units else 1.0

    def like(self, rank: int) -> list[int]:
        return [each for each, of in self.classes.items() if of == self.classes[rank]]

    def total(self, rank: int) -> float:
        return sum(self.means(rank).values())

    def means(self, rank: int) -> dict[int, float]:
        return means_by_key((place, ns) for (_, place), ns in self.work[rank].items())


def means_by_key(values: Iterable[tuple[_Key, float]]) -> dict[_Key, float]:
    found: dict[_Key, list[float]] = defaultdict(list)
    for key, value in values:
        found[key].append(value)
    return {key: fmean(each) for key, each in found.items()}


def fitted(graph: StepGraph, ratios: Mapping[tuple[int, int], float] | None = None) -> ComputeModel:
    """
    Fits the product by turns. Persistent factors are a rank's; where the median rank of a replica is slower, its data
    are more. `ratios`: by rank and place what to multiply its computing by first.
    """
    work = _work(graph)
    for (rank, place), ratio in (ratios or {}).items():
        work[rank] |= {at: ns * ratio for at, ns in work[rank].items() if at[1] == place}
    model = ComputeModel(graph, work, _classes(graph), graph.replicas, {})
    model.units = _units(graph, model.work)
    model.numbers = _alike_numbers(model)
    model.loads = {unit: 1.0 for units in model.units.values() for unit, _ in units}
    model.factors = _rank_factors(model)
    for _ in range(_ROUNDS):
        model.typical = _typical(model)
        model.loads = _loads(model)
    model.factors = _settled(model)
    model.typical = _typical(model)
    return model


def _work(graph: StepGraph) -> dict[int, dict[_Place, float]]:
    """
    What each rank computes at each place. Omitted: outside whole steps, and where there are several steps before the
    first communication, since a trace may begin at any moment.
    """
    found: dict[int, dict[_Place, float]] = {rank: defaultdict(float) for rank in graph.ranks}
    for operation in graph.operations:
        at = operation.step, operation.place
        if operation.kind == COMPUTE and 0 <= operation.step < graph.steps and (graph.steps == 1 or at != (0, 0)):
            found[operation.rank][at] += operation.duration_ns
    return found


def _classes(graph: StepGraph) -> dict[int, tuple[int, ...]]:
    """By rank what it does: ranks of one stage with as many operations in a step do the same work."""
    counts: dict[int, int] = defaultdict(int)
    for operation in graph.operations:
        counts[operation.rank] += operation.kind != COMPUTE and operation.step == graph.steps - 1
    return {rank: (graph.stages[rank], counts[rank]) for rank in graph.ranks}


def _units(
    graph: StepGraph, work: Mapping[int, Mapping[_Place, float]]
) -> dict[tuple[int, int, int], tuple[tuple[Unit, float], ...]]:
    """
    The micro-batches by replica, step and number. Without messages: by place in a replica of several ranks, else by
    step; those numbers are negative.
    """
    sizes: dict[int, int] = defaultdict(int)
    for replica in graph.replicas.values():
        sizes[replica] += 1
    found = {}
    for rank, own in work.items():
        replica = graph.replicas[rank]
        for step, place in own:
            label = graph.labels.get((rank, step, place))
            if label is not None:
                batches = label.batches
            elif graph.labels:
                batches = ()
            else:
                batches = ((-1 - place, 1.0),) if sizes[replica] > 1 else ((-1, 1.0),)
            found[rank, step, place] = tuple(((replica, step, number), share) for number, share in batches)
    return found


def _rank_factors(model: ComputeModel) -> dict[int, float]:
    """By rank what it takes over what the median rank of its class takes, without what its whole replica takes more."""
    return _without_data(_over_the_median({rank: model.total(rank) for rank in model.work}, model), model)


def _without_data(factors: Mapping[int, float], model: ComputeModel) -> dict[int, float]:
    shared: dict[int, list[float]] = defaultdict(list)
    for rank, factor in factors.items():
        shared[model.replicas[rank]].append(factor)
    found = {}
    for rank, factor in factors.items():
        of_replica = shared[model.replicas[rank]]
        found[rank] = factor / median(of_replica) if len(of_replica) >= 3 else factor
    return _over_the_median(found, model)


def _over_the_median(values: Mapping[int, float], model: ComputeModel) -> dict[int, float]:
    """Each rank's value over that of the median rank of its class; of two ranks over the smaller one."""
    found = {}
    for rank, value in values.items():
        usual = median_low(values[each] for each in model.like(rank))
        found[rank] = value / usual if usual > 0 else 1.0
    return found


def _typical(model: ComputeModel) -> dict[tuple[int, ...], dict[Work, float]]:
    found: dict[tuple[int, ...], list[tuple[Work, float]]] = defaultdict(list)
    for rank, work in model.work.items():
        found[model.classes[rank]] += [
            (model.kind(rank, step, place), ns / model.factors[rank] / model.load(rank, step, place))
            for (step, place), ns in work.items()
        ]
    return {of: means_by_key(values) for of, values in found.items()}


def _loads(model: ComputeModel) -> dict[Unit, float]:
    """One round: each micro-batch's work becomes what its operations take over what they would take."""
    own: dict[Unit, float] = defaultdict(float)
    usual: dict[Unit, float] = defaultdict(float)
    for rank, work in model.work.items():
        for (step, place), ns in work.items():
            usual_ns = model.usual(rank, step, place) * model.factors[rank] * model.load(rank, step, place)
            for unit, share in model.units[rank, step, place]:
                own[unit] += share * ns
                usual[unit] += share * usual_ns
    loads = {unit: load * own[unit] / usual[unit] if usual[unit] > 0 else load for unit, load in model.loads.items()}
    means = means_by_key((model.numbers[number], load) for (_, _, number), load in loads.items())
    return {unit: max(1e-3, load / means[model.numbers[unit[2]]]) for unit, load in loads.items()}


def _alike_numbers(model: ComputeModel) -> dict[int, int]:
    """By number of a micro-batch the lowest number of those that some rank does the same work for."""
    lowest = {number: number for units in model.units.values() for (_, _, number), _ in units}
    done: dict[tuple[tuple[int, ...], Work], set[int]] = defaultdict(set)
    for (rank, step, place), units in model.units.items():
        if len(units) == 1:
            done[model.classes[rank], model.kind(rank, step, place)].add(units[0][0][2])
    for _ in lowest:
        before = dict(lowest)
        for numbers in done.values():
            least = min(lowest[number] for number in numbers)
            lowest |= dict.fromkeys(numbers, least)
        if lowest == before:
            break
    return lowest


def _settled(model: ComputeModel) -> dict[int, float]:
    """The ranks' factors once more, for equal micro-batches, where these are known from at least three ranks."""
    sizes: dict[int, int] = defaultdict(int)
    for replica in model.replicas.values():
        sizes[replica] += 1
    totals = {}
    for rank, work in model.work.items():
        known = sizes[model.replicas[rank]] >= 3
        totals[rank] = sum(ns / (model.load(rank, step, place) if known else 1.0) for (step, place), ns in work.items())
    return _over_the_median(totals, model)
