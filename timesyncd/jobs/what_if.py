"""
How long a step would take without a slow rank, an unbalanced stage or unequal sequences, and which one to blame. Pure.

After Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): a cause's
operations get the duration of operations that do the same work, and the steps are replayed. The slowdown is
S = T / T_ideal (equation 1), where all computing takes the mean and all transfers the median of their like. A cause
explains (T - T_without) / (T - T_ideal) of it (equation 5).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, median_low, pstdev
from typing import TypeVar

from timesyncd.jobs.compute_model import ComputeModel, Unit, fitted, means_by_key
from timesyncd.jobs.slow_transfers import MIN_SIGNIFICANCE, slow_transfers
from timesyncd.jobs.step_graph import (
    COMPUTE,
    CircularError,
    OperationWait,
    StepGraph,
    StepReplay,
    misfit,
    replay,
    waits,
)
from timesyncd.jobs.wander import has_level
from timesyncd.units import SIGMA_PER_MAD

#: A rank, a stage or a group is blamed only where it takes so much longer than its like,
MIN_RANK_EXCESS = 0.03
MIN_STAGE_EXCESS = 0.05
MIN_SEQUENCE_SIGMA = 0.05
#: by MIN_SIGNIFICANCE standard errors,
#: (a larger excess that is less sure is reported as undecided)
UNDECIDED_EXCESS = 0.1
UNDECIDED_SIGNIFICANCE = 2.0
#: of two ranks in few steps by more,
FAR_RANK_EXCESS = 0.2
FAR_SIGNIFICANCE = 10.0
#: and where it costs so much of a step.
MIN_COST = 0.01

#: Replays that miss the recorded time by more prove nothing.
MAX_MISFIT = 0.02

#: Unequal sequences show in all operations on the same data: their variance exceeds what independent noise leaves in
#: the mean of a micro-batch's operations by this factor.
_SHARED_VARIANCE = 4.0

#: Places at which a rank computes less are noise.
_LEAST_NS = 1_000.0

#: A spread of n degrees of freedom is taken larger by this over n.
_FEW = 3.0

#: A spread between places of one step is taken larger by this: what is typical there is fitted from the same samples.
_BY_PLACE = 2.0


class CauseKind(StrEnum):
    """What makes a step longer."""

    RANK = "rank"
    STAGE = "stage"
    SEQUENCES = "sequences"
    TRANSFER = "transfer"


class UnknownReason(StrEnum):
    """Why a cause or a culprit is unknown, for programs."""

    RANK_OR_STAGE = "rank_or_stage"
    DATA_OR_NODE = "data_or_node"
    ONE_LIKE = "one_like"
    REPLAY_MISFIT = "replay_misfit"
    CIRCULAR = "circular"
    NOTHING_COMPARABLE = "nothing_comparable"
    ONE_OF_GROUP = "one_of_group"
    SEQUENCES_OR_PAUSES = "sequences_or_pauses"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Cause:
    """
    A cause and its cost. `excess`: how much longer than its like, as a share; of sequences the relative standard
    deviation of the micro-batches' work. `without_ns`: the mean step without this cause alone. `explains`: its share of
    the slowdown against the ideal; None: there is none. `unknown`: two causes would look the same, so `rank` is None.
    """

    kind: CauseKind
    rank: int | None
    stage: int | None
    ranks: tuple[int, ...]
    excess: float
    step_ns: float
    without_ns: float
    explains: float | None
    unknown: UnknownReason | None = None

    @property
    def slowdown(self) -> float:
        return self.step_ns / self.without_ns


@dataclass(frozen=True, slots=True)
class WhatIf:
    """
    `step_ns`: the mean step as replayed; `ideal_ns`: with the durations of equation 1. `causes`: the costliest first.
    `without_causes_ns`: without all of them. `by_kind`, `by_stage`: the slowdown that operations of this kind, or of
    this stage, cause alone (equation 2). `misfit`: by how much the replay misses the recorded time, at worst.
    `unknown`: why no cause is named; `undecided`: how much longer a rank took that the steps do not show to be slow.
    """

    steps: int
    step_ns: float
    ideal_ns: float
    without_causes_ns: float
    causes: tuple[Cause, ...]
    by_kind: dict[str, float]
    by_stage: dict[int, float]
    waits: tuple[OperationWait, ...]
    misfit: float
    unknown: UnknownReason | None = None
    undecided: float = 0.0

    @property
    def slowdown(self) -> float:
        return self.step_ns / self.ideal_ns if self.ideal_ns else 1.0


def analyse(graph: StepGraph) -> WhatIf | UnknownReason:
    """The replays and the causes; only a reason where the operations cannot be replayed."""
    try:
        played = replay(graph, graph.durations)
    except CircularError:
        return UnknownReason.CIRCULAR
    return _Analysis(graph, played.length_ns / graph.steps).result(misfit(graph, played, graph.ranks), played)


def _spread_of(factors: Sequence[float]) -> float:
    """How far ranks that do the same work are apart: of few ranks the one that is asked for must not be among them."""
    middle = median(factors)
    return SIGMA_PER_MAD * median(abs(factor - middle) for factor in factors)


def _without_common(samples: Mapping[int, Mapping[int, float]]) -> dict[int, dict[int, float]]:
    """Each rank's samples over the mean of all in that step, as far apart as if they were not part of that mean."""
    steps = set.intersection(*(set(each) for each in samples.values()))
    means = {step: fmean(each[step] for each in samples.values()) for step in steps}
    scale = math.sqrt(len(samples) / (len(samples) - 1))
    found = {}
    for rank, each in samples.items():
        ratios = {step: each[step] / means[step] for step in steps}
        middle = fmean(ratios.values()) if ratios else 1.0
        found[rank] = {step: middle + (ratio - middle) * scale for step, ratio in ratios.items()}
    return found


_Key = TypeVar("_Key", int, str)


@dataclass(frozen=True, slots=True)
class _Candidate:
    kind: CauseKind
    excess: float
    factors: Mapping[int, float]
    rank: int | None = None
    stage: int | None = None
    ranks: tuple[int, ...] = ()
    unknown: UnknownReason | None = None


class _Analysis:
    """One graph's what-ifs. A cause is a factor on the duration of each of its operations."""

    def __init__(self, graph: StepGraph, step_ns: float) -> None:
        self.graph = graph
        self.step_ns = step_ns
        self.durations = graph.durations
        self.model = fitted(graph)
        # A rank that is slow at one place of the step would make the data there look like more.
        self.even = fitted(graph, ratios) if (ratios := self._peer_ratios()) else self.model

    def result(self, misfit_share: float, played: StepReplay) -> WhatIf:
        ideal = self._ideal()
        ideal_ns = self._step_ns(ideal)
        refused = UnknownReason.REPLAY_MISFIT if misfit_share > MAX_MISFIT else None
        candidates = [] if refused else self._candidates()
        causes = self._costly(candidates, ideal_ns)
        undecided = 0.0 if refused or causes else self._undecided()
        if undecided:
            refused = UnknownReason.UNDECIDED
        return WhatIf(
            steps=self.graph.steps,
            step_ns=self.step_ns,
            ideal_ns=ideal_ns,
            without_causes_ns=self._without([candidate for candidate, _ in causes]),
            causes=tuple(sorted((cause for _, cause in causes), key=lambda cause: cause.without_ns)),
            by_kind=self._alone(ideal, ideal_ns, [operation.kind for operation in self.graph.operations]),
            by_stage=self._alone(ideal, ideal_ns, [self.graph.stages[op.rank] for op in self.graph.operations]),
            waits=tuple(waits(self.graph, played)),
            misfit=misfit_share,
            unknown=refused,
            undecided=undecided,
        )

    def _step_ns(self, durations: Sequence[float]) -> float:
        return replay(self.graph, durations).length_ns / self.graph.steps

    def _without(self, candidates: Sequence[_Candidate]) -> float:
        durations = list(self.durations)
        for candidate in candidates:
            for index, factor in candidate.factors.items():
                durations[index] *= factor
        return self._step_ns(durations)

    def _candidates(self) -> list[_Candidate]:
        return [*self._ranks(), *self._stages(), *self._sequences(), *self._transfers()]

    def _costly(self, candidates: Sequence[_Candidate], ideal_ns: float) -> list[tuple[_Candidate, Cause]]:
        """
        A cause counts where its removal saves time, or where it would cost time alone: of two slow ranks each hides
        the other.
        """
        least_ns = self._without(candidates) if candidates else self.step_ns
        found = []
        for candidate in candidates:
            without_ns = self._without([candidate])
            alone_ns = self._without([each for each in candidates if each is not candidate])
            # Equal data make no step longer: if they seem to, it is noise.
            is_noise = candidate.kind is CauseKind.SEQUENCES and without_ns > self.step_ns
            if is_noise or max(self.step_ns - without_ns, alone_ns - least_ns) < MIN_COST * self.step_ns:
                continue
            lost_ns = self.step_ns - ideal_ns
            found.append(
                (
                    candidate,
                    Cause(
                        kind=candidate.kind,
                        rank=candidate.rank,
                        stage=candidate.stage,
                        ranks=candidate.ranks,
                        excess=candidate.excess,
                        step_ns=self.step_ns,
                        without_ns=without_ns,
                        explains=(self.step_ns - without_ns) / lost_ns if lost_ns > 0 else None,
                        unknown=candidate.unknown,
                    ),
                )
            )
        return found

    # ---- ranks

    def _ranks(self) -> list[_Candidate]:
        slow = self._slow_ranks()
        found, replicas = [], defaultdict(list)
        for rank in self.graph.ranks:
            replicas[self.graph.replicas[rank]].append(rank)
        together = {
            rank
            for ranks in replicas.values()
            if len(ranks) > 1 and all(each in slow for each in ranks)
            for rank in ranks
        }
        for rank in slow:
            if rank not in together:
                factors = self._like_peers(rank)
                found.append(_Candidate(CauseKind.RANK, slow[rank] - 1, factors, rank=rank, ranks=(rank,)))
        for ranks in replicas.values():
            if set(ranks) <= together:
                factors = {index: factor for rank in ranks for index, factor in self._like_peers(rank).items()}
                excess = median(slow[rank] for rank in ranks) - 1
                found.append(
                    _Candidate(
                        CauseKind.SEQUENCES, excess, factors, ranks=tuple(ranks), unknown=UnknownReason.DATA_OR_NODE
                    )
                )
        return found

    def _slow_ranks(self) -> dict[int, float]:
        """The ranks that persistently compute longer than those that do the same work, and by which factor."""
        model = self.model
        comparable = [rank for rank in self.graph.ranks if len(model.like(rank)) > 1]
        if not comparable:
            return {}
        factors = model.factors
        found, asked = {}, comparable
        if len(comparable) == 2:  # their spread is what is asked for, so the steps have to show it
            asked = [rank for rank in comparable if self._is_above(rank, *(set(comparable) - {rank}))]
            asked = asked or [rank for rank in comparable if self._is_far_above(rank)]
        for rank in asked:
            usual = _spread_of([factors[each] for each in comparable if each != rank])
            error = math.hypot(usual, self._error(rank))
            if factors[rank] - 1 >= max(MIN_RANK_EXCESS, MIN_SIGNIFICANCE * error):
                found[rank] = factors[rank]
        return found

    def _peer_ratios(self) -> dict[tuple[int, int], float]:
        """By slow rank and place what the ranks that do the same work, and are not slow, take over what it takes."""
        slow, found = self._slow_ranks(), {}
        for rank in slow:
            peers = [self.model.means(each) for each in self.model.like(rank) if each not in slow]
            for place, own_ns in self.model.means(rank).items():
                usual = [means[place] for means in peers if place in means]
                if usual and own_ns > _LEAST_NS:
                    found[rank, place] = median_low(usual) / own_ns
        return found

    def _undecided(self) -> float:
        """The largest excess of a rank that costs something, and may be more than chance; 0: there is none."""
        found = 0.0
        for rank, factor in self.model.factors.items():
            least = max(UNDECIDED_EXCESS, UNDECIDED_SIGNIFICANCE * self._error(rank))
            if len(self.model.like(rank)) > 1 and factor - 1 >= least:
                without_ns = self._without([_Candidate(CauseKind.RANK, factor - 1, self._like_peers(rank))])
                if self.step_ns - without_ns >= MIN_COST * self.step_ns:
                    found = max(found, factor - 1)
        return found

    def _is_above(self, rank: int, other: int) -> bool:
        """Whether the rank's computing is longer than the other one's by more than it wanders from step to step."""
        steps_ns = []
        for each in (rank, other):
            by_step: dict[int, float] = defaultdict(float)
            for (step, _), ns in self.model.work[each].items():
                by_step[step] += ns
            steps_ns.append(by_step)
        common = sorted(steps_ns[0].keys() & steps_ns[1].keys())
        return has_level([steps_ns[0][step] - steps_ns[1][step] for step in common], [], 2)

    def _is_far_above(self, rank: int) -> bool:
        """Whether a few steps are enough: the rank takes far longer than any wander of so few steps makes it."""
        excess = self.model.factors[rank] - 1
        return excess >= max(FAR_RANK_EXCESS, FAR_SIGNIFICANCE * self._error(rank))

    def _error(self, rank: int) -> float:
        """The standard error of a rank's factor. What slows all ranks of its class in a step, as a busy host, is no part."""
        samples = {each: self._samples(each) for each in self.model.like(rank)}
        if self.graph.steps >= 3 and len(samples) > 1:
            samples = _without_common(samples)
        return self._spread(samples) * math.sqrt(1 + 1 / max(1, len(self.model.like(rank)) - 1))

    def _spread(self, of_class: Mapping[int, Mapping[int, float]]) -> float:
        """
        The standard error of what a rank computes, as a share, from how much the ranks of its class vary from step to
        step. Of few samples the spread is known badly, so it is taken larger.
        """
        spreads, counts = [], []
        for by_key in of_class.values():
            samples = list(by_key.values())
            if len(samples) > 1:
                spreads.append(pstdev(samples) * math.sqrt(len(samples) / (len(samples) - 1)) / fmean(samples))
                counts.append(len(samples))
        if not spreads:
            return math.inf
        freedom = sum(counts) - len(counts)
        by_place = 1.0 if self.graph.steps >= 3 else _BY_PLACE
        return median(spreads) / math.sqrt(median(counts)) * (1 + _FEW / freedom) * by_place

    def _samples(self, rank: int) -> dict[int, float]:
        """The rank's factor by step, or where there are fewer than three steps, by place."""
        keyed: dict[int, list[tuple[float, float]]] = defaultdict(list)
        by_step = self.graph.steps >= 3
        is_known = self._loads_are_known(rank)
        for (step, place), ns in self.model.work[rank].items():
            usual_ns = self.model.usual(rank, step, place) * (self.model.load(rank, step, place) if is_known else 1.0)
            if usual_ns > _LEAST_NS:
                keyed[step if by_step else place].append((ns, usual_ns))
        return {key: sum(ns for ns, _ in each) / sum(usual for _, usual in each) for key, each in keyed.items()}

    def _loads_are_known(self, rank: int) -> bool:
        """Whether the work of the micro-batches is measured on several other ranks."""
        return sum(of == self.graph.replicas[rank] for of in self.graph.replicas.values()) >= 3

    def _like_peers(self, rank: int) -> dict[int, float]:
        """The factors that make each place of the rank take as long as on its peers, for the same micro-batches."""
        own = means_by_key((place, ns) for (_, place), ns in self.model.work[rank].items())
        usual = means_by_key(
            (place, self.model.usual(rank, step, place) * self.model.load(rank, step, place))
            for step, place in self.model.work[rank]
        )
        return {
            index: usual[operation.place] / own[operation.place]
            for index, operation in enumerate(self.graph.operations)
            if operation.rank == rank and operation.kind == COMPUTE and own.get(operation.place, 0.0) > _LEAST_NS
        }

    # ---- stages

    def _stages(self) -> list[_Candidate]:
        work, found = self._stage_work(), []
        if len(work) < 2:
            return []
        for stage, ns in work.items():
            usual = median(other for each, other in work.items() if each != stage)
            if usual > 0 and ns / usual - 1 >= max(MIN_STAGE_EXCESS, MIN_SIGNIFICANCE * self._stage_error(stage)):
                ranks = tuple(rank for rank in self.graph.ranks if self.graph.stages[rank] == stage)
                factors = {
                    index: usual / ns
                    for index, operation in enumerate(self.graph.operations)
                    if operation.kind == COMPUTE and self.graph.stages[operation.rank] == stage
                }
                alone = all(len(self.model.like(rank)) == 1 for rank in ranks)
                found.append(
                    _Candidate(
                        CauseKind.STAGE,
                        ns / usual - 1,
                        factors,
                        stage=stage,
                        ranks=ranks,
                        unknown=UnknownReason.RANK_OR_STAGE if alone else None,
                    )
                )
        return found

    def _stage_error(self, stage: int) -> float:
        """The standard error of a stage's work over that of another one, as a share."""
        ranks = [rank for rank in self.graph.ranks if self.graph.stages[rank] == stage]
        samples = [{each: self._samples(each) for each in self.model.like(rank)} for rank in ranks]
        return max(map(self._spread, samples)) * math.sqrt(2 / len(ranks))

    def _stage_work(self) -> dict[int, float]:
        """What a step takes on a healthy rank of each stage."""
        found: dict[int, list[float]] = defaultdict(list)
        for rank in self.graph.ranks:
            usual = means_by_key((place, self.model.usual(rank, step, place)) for step, place in self.model.work[rank])
            found[self.graph.stages[rank]].append(sum(usual.values()))
        return {stage: fmean(each) for stage, each in sorted(found.items())}

    # ---- sequences

    def _sequences(self) -> list[_Candidate]:
        """
        Unequal micro-batches fall on every replica in turn, and on all ranks of it at once. A rank that works on its
        own data alone shows only the former, as pauses of all ranks in turn would.
        """
        if not self.even.loads:
            return []
        found = self._replicas()
        shared = [self._varies(model) for model in (self.even, self.model)]
        if False in shared:
            return found
        lonely = len(set(self.graph.replicas.values())) == len(self.graph.replicas)
        unknown = UnknownReason.SEQUENCES_OR_PAUSES if lonely or None in shared else None
        sigma = math.sqrt(fmean((load - 1) ** 2 for each in self._own_loads(self.even).values() for load in each))
        return [*found, _Candidate(CauseKind.SEQUENCES, sigma, self._equal_loads(), unknown=unknown)]

    def _varies(self, model: ComputeModel) -> bool | None:
        """Whether the data vary. None: something does, and it may be pauses."""
        own = self._own_loads(model)
        apart = self._apart_sigma(model, own)
        if apart < MIN_SEQUENCE_SIGMA or not self._is_everywhere(own):
            return False
        return self._is_shared(model, apart)

    def _own_loads(self, model: ComputeModel) -> dict[int, list[float]]:
        """By replica the work of its micro-batches over its mean."""
        found: dict[int, list[float]] = defaultdict(list)
        for (replica, _, _), load in model.loads.items():
            found[replica].append(load)
        return {replica: [load / fmean(loads) for load in loads] for replica, loads in found.items()}

    def _apart_sigma(self, model: ComputeModel, own: Mapping[int, Sequence[float]]) -> float:
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

    def _replicas(self) -> list[_Candidate]:
        """Replicas whose micro-batches persistently take longer than those of the others."""
        by_step = means_by_key(((replica, step), load) for (replica, step, _), load in self.even.loads.items())
        steps: dict[int, list[float]] = defaultdict(list)
        for (replica, _), load in by_step.items():
            steps[replica].append(load)
        found: list[_Candidate] = []
        if self.graph.steps < 3 or len(steps) < 2:
            return found
        error = median(pstdev(loads) for loads in steps.values()) * math.sqrt(2 / (self.graph.steps - 1))
        for replica, loads in steps.items():
            usual = median(fmean(other) for each, other in steps.items() if each != replica)
            excess = fmean(loads) / usual - 1
            if excess >= max(MIN_RANK_EXCESS, MIN_SIGNIFICANCE * error):
                ranks = tuple(rank for rank in self.graph.ranks if self.graph.replicas[rank] == replica)
                factors = {
                    index: 1 / (1 + excess)
                    for index, operation in enumerate(self.graph.operations)
                    if operation.kind == COMPUTE and operation.rank in ranks
                }
                reason = UnknownReason.DATA_OR_NODE
                found.append(_Candidate(CauseKind.SEQUENCES, excess, factors, ranks=ranks, unknown=reason))
        return found

    def _equal_loads(self) -> dict[int, float]:
        mean, slow, found = fmean(self.even.loads.values()), self._slow_ranks(), {}
        for index, operation in enumerate(self.graph.operations):
            key = operation.rank, operation.step, operation.place
            if operation.kind == COMPUTE and key in self.even.units:
                # A rank that is not slow has its own mean from the micro-batches that fell to it.
                own = 1.0 if operation.rank in slow else self.even.factors[operation.rank]
                found[index] = mean / self.even.load(*key) / own
        return found

    def _is_shared(self, model: ComputeModel, sigma: float) -> bool | None:
        """
        Whether the micro-batches' work varies by more than independent noise of their operations would make it. None:
        each is computed in one operation.
        """
        residuals: dict[Unit, list[tuple[float, float]]] = defaultdict(list)
        for rank, work in model.work.items():
            for (step, place), ns in work.items():
                usual_ns = model.usual(rank, step, place) * model.factors[rank]
                units = model.units[rank, step, place]
                if usual_ns > _LEAST_NS and units:
                    most, _ = max(units, key=lambda unit: unit[1])
                    residuals[most].append((ns / usual_ns / model.load(rank, step, place), usual_ns))
        counts = [len(each) for each in residuals.values() if len(each) > 1]
        if not counts:
            return None
        spread = median(pstdev([ratio for ratio, _ in each]) for each in residuals.values() if len(each) > 1)
        within = spread * math.sqrt(fmean(counts) / (fmean(counts) - 1))
        return sigma**2 > _SHARED_VARIANCE * within**2 / fmean(counts)

    def _is_everywhere(self, own: Mapping[int, Sequence[float]]) -> bool:
        """Whether it falls on every replica in turn: where one alone varies, its ranks or their node vary."""
        squares = [sum((load - 1) ** 2 for load in loads) for loads in own.values()]
        return len(squares) == 1 or max(squares) < sum(squares) * (0.95 if len(squares) == 2 else 0.8)

    # ---- transfers

    def _transfers(self) -> list[_Candidate]:
        return [
            _Candidate(
                CauseKind.TRANSFER, slow.excess, slow.factors, ranks=slow.ranks, unknown=UnknownReason.ONE_OF_GROUP
            )
            for slow in slow_transfers(self.graph)
        ]

    # ---- the ideal

    def _ideal(self) -> list[float]:
        """Equation 1: the mean of computing of the same work, in stages that do equally much, and median transfers."""
        work = self._stage_work()
        even = fmean(work.values())
        pools: dict[tuple[object, ...], list[float]] = defaultdict(list)
        keys: list[tuple[object, ...]] = []
        for index, operation in enumerate(self.graph.operations):
            stage = self.graph.stages[operation.rank]
            if operation.kind == COMPUTE:
                key: tuple[object, ...] = (COMPUTE, self.model.classes[operation.rank], operation.place)
            else:
                key = (operation.kind, stage, operation.place)
                pools[key].append(self.durations[index])
            keys.append(key)
        found = []
        for index, operation in enumerate(self.graph.operations):
            if operation.kind == COMPUTE:
                found.append(self._ideal_compute(index, even, work))
            else:
                found.append(median(pools[keys[index]]) if operation.waits else self.durations[index])
        return found

    def _ideal_compute(self, index: int, even_ns: float, work: Mapping[int, float]) -> float:
        operation = self.graph.operations[index]
        rank, stage = operation.rank, self.graph.stages[operation.rank]
        own_ns = self.model.work[rank].get((operation.step, operation.place))
        if own_ns is None or own_ns <= _LEAST_NS or not work[stage]:
            return self.durations[index]
        typical_ns = self.model.usual(rank, operation.step, operation.place)
        mean_load = self._mean_load
        return self.durations[index] / own_ns * typical_ns * mean_load * even_ns / work[stage]

    @property
    def _mean_load(self) -> float:
        return fmean(self.model.loads.values()) if self.model.loads else 1.0

    def _alone(self, ideal: Sequence[float], ideal_ns: float, keys: Sequence[_Key]) -> dict[_Key, float]:
        """Equation 2: the slowdown if only the operations of this key take as long as they did."""
        found = {}
        for key in sorted(set(keys), key=str):
            mixed = [own if of == key else usual for own, usual, of in zip(self.durations, ideal, keys, strict=True)]
            found[key] = self._step_ns(mixed) / ideal_ns if ideal_ns else 1.0
        return found
