"""
Ranks that compute longer than those that do the same work, and stages that compute longer than the others. Pure.

A rank or a stage counts as slow where its excess is far above the error that its steps show, and no wander from step to
step. Of a few steps that do not show a wander the excess has to be larger.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median, median_low, pstdev

from timesyncd.jobs.compute_model import ComputeModel, means_by_key
from timesyncd.jobs.slow_transfers import MIN_SIGNIFICANCE
from timesyncd.jobs.step_causes import Candidate, CauseKind, UnknownReason
from timesyncd.jobs.step_graph import COMPUTE
from timesyncd.jobs.wander import MAX_OTHERS, has_level
from timesyncd.units import SIGMA_PER_MAD

#: A rank or a stage is blamed only where it takes so much longer than its like, by MIN_SIGNIFICANCE standard errors,
MIN_RANK_EXCESS = 0.03
MIN_STAGE_EXCESS = 0.05
#: (a larger excess that is less sure is reported as undecided)
UNDECIDED_EXCESS = 0.1
UNDECIDED_SIGNIFICANCE = 2.0
#: and in few steps by more: one of two ranks, and a stage, also by so much.
FAR_SIGNIFICANCE = 10.0
FAR_EXCESS = 0.2

#: In few steps a slow rank takes longer nearly everywhere, by half of its excess: in all that it computes but this share.
SHARE_OF_CHANCE = 0.2

#: Places at which a rank computes less are noise.
LEAST_NS = 1_000.0

#: A spread of n degrees of freedom is taken larger by this over n.
_FEW = 3.0

#: A spread between places of one step is taken larger by this: what is typical there is fitted from the same samples.
_BY_PLACE = 2.0

#: Of fewer steps the places are the samples.
_LEAST_STEPS = 3


@dataclass(frozen=True)
class SlowCompute:
    """What one model of a job's computing shows. `factors`: by rank, for those that are slow, how many times longer."""

    model: ComputeModel

    @cached_property
    def factors(self) -> dict[int, float]:
        """The ranks that persistently compute longer than those that do the same work, and by which factor."""
        comparable = [rank for rank in self._ranks if len(self.model.like(rank)) > 1]
        factors = self.model.factors
        found = {}
        for rank in comparable:
            others = [factors[each] for each in comparable if each != rank]
            error = self._error(rank)
            # Between two ranks their spread is what is asked for, so the steps alone have to show it.
            usual = _spread_of(others) if len(others) > 1 else 0.0
            excess = factors[rank] - 1
            is_far = excess >= FAR_SIGNIFICANCE * error and (len(others) > 1 or excess >= FAR_EXCESS)
            if excess >= max(MIN_RANK_EXCESS, MIN_SIGNIFICANCE * math.hypot(usual, error)) and (
                (is_far and self._is_steady(rank, excess)) or self._is_level(rank, len(comparable))
            ):
                found[rank] = factors[rank]
        return found

    def ranks(self) -> list[Candidate]:
        """The slow ranks; where all of a replica are slow, the replica: its data may be more."""
        slow = self.factors
        replicas: dict[int, list[int]] = defaultdict(list)
        for rank in self._ranks:
            replicas[self.model.graph.replicas[rank]].append(rank)
        found = []
        together = [ranks for ranks in replicas.values() if len(ranks) > 1 and all(each in slow for each in ranks)]
        of_data = {rank for ranks in together for rank in ranks}
        for rank in slow.keys() - of_data:
            factors = self.like_peers(rank)
            found.append(Candidate(CauseKind.RANK, slow[rank] - 1, factors, rank=rank, ranks=(rank,)))
        for ranks in together:
            factors = {index: factor for rank in ranks for index, factor in self.like_peers(rank).items()}
            excess = median(slow[rank] for rank in ranks) - 1
            reason = UnknownReason.DATA_OR_NODE
            found.append(Candidate(CauseKind.SEQUENCES, excess, factors, ranks=tuple(ranks), unknown=reason))
        return found

    def peer_ratios(self) -> dict[tuple[int, int], float]:
        """By slow rank and place what the ranks that do the same work, and are not slow, take over what it takes."""
        found = {}
        for rank in self.factors:
            peers = [self.model.means(each) for each in self.model.like(rank) if each not in self.factors]
            for place, own_ns in self.model.means(rank).items():
                usual = [means[place] for means in peers if place in means]
                if usual and own_ns > LEAST_NS:
                    found[rank, place] = median_low(usual) / own_ns
        return found

    def undecided(self, saves: Callable[[Candidate], bool]) -> float:
        """The largest excess of a rank that `saves` something, and may be more than chance; 0: there is none."""
        found = 0.0
        for rank, factor in self.model.factors.items():
            least = max(UNDECIDED_EXCESS, UNDECIDED_SIGNIFICANCE * self._error(rank))
            is_late = len(self.model.like(rank)) > 1 and factor - 1 >= least
            if is_late and saves(Candidate(CauseKind.RANK, factor - 1, self.like_peers(rank))):
                found = max(found, factor - 1)
        return found

    def like_peers(self, rank: int) -> dict[int, float]:
        """The factors that make each place of the rank take as long as on its peers, for the same micro-batches."""
        own = means_by_key((place, ns) for (_, place), ns in self.model.work[rank].items())
        usual = means_by_key(
            (place, self.model.usual(rank, step, place) * self.model.load(rank, step, place))
            for step, place in self.model.work[rank]
        )
        return {
            index: usual[operation.place] / own[operation.place]
            for index, operation in enumerate(self.model.graph.operations)
            if operation.rank == rank and operation.kind == COMPUTE and own.get(operation.place, 0.0) > LEAST_NS
        }

    # ---- stages

    def stages(self) -> list[Candidate]:
        """The stages that compute longer than the median of the others."""
        work = self.stage_work
        found: list[Candidate] = []
        for stage, ns in work.items() if len(work) > 1 else ():
            usual = median(other for each, other in work.items() if each != stage)
            if usual > 0 and self._is_slow_stage(stage, ns / usual - 1):
                found.append(self._stage(stage, ns / usual))
        return found

    def _stage(self, stage: int, times: float) -> Candidate:
        ranks = tuple(rank for rank in self._ranks if self.model.graph.stages[rank] == stage)
        factors = {
            index: 1 / times
            for index, operation in enumerate(self.model.graph.operations)
            if operation.kind == COMPUTE and operation.rank in ranks
        }
        alone = all(len(self.model.like(rank)) == 1 for rank in ranks)
        reason = UnknownReason.RANK_OR_STAGE if alone else None
        return Candidate(CauseKind.STAGE, times - 1, factors, stage=stage, ranks=ranks, unknown=reason)

    @cached_property
    def stage_work(self) -> dict[int, float]:
        """What a step takes on a healthy rank of each stage."""
        found: dict[int, list[float]] = defaultdict(list)
        for rank in self._ranks:
            usual = means_by_key((place, self.model.usual(rank, step, place)) for step, place in self.model.work[rank])
            found[self.model.graph.stages[rank]].append(sum(usual.values()))
        return {stage: fmean(each) for stage, each in sorted(found.items())}

    def _is_slow_stage(self, stage: int, excess: float) -> bool:
        error = self._stage_error(stage)
        if excess < max(MIN_STAGE_EXCESS, MIN_SIGNIFICANCE * error):
            return False
        is_far = excess >= max(FAR_EXCESS, FAR_SIGNIFICANCE * error)
        return is_far or self._is_stage_level(stage)

    def _stage_error(self, stage: int) -> float:
        """The standard error of a stage's work over that of another one, as a share."""
        ranks = [rank for rank in self._ranks if self.model.graph.stages[rank] == stage]
        samples = [{each: self._samples(each) for each in self.model.like(rank)} for rank in ranks]
        return max(map(self._spread, samples)) * math.sqrt(2 / len(ranks))

    def _is_stage_level(self, stage: int) -> bool:
        """Whether the (lower) median rank of the stage is above that of all others by more than these wander."""
        by_stage: dict[int, list[Mapping[int, float]]] = defaultdict(list)
        for rank in self._ranks:
            by_stage[self.model.graph.stages[rank]].append(self._by_step(rank))
        series = {each: _medians(ranks) for each, ranks in by_stage.items()}
        steps = sorted(set.intersection(*(set(each) for each in series.values())))
        apart = [
            series[stage][step] - median(each[step] for of, each in series.items() if of != stage) for step in steps
        ]
        return has_level(apart, [], len(series))

    # ---- what the steps show

    @property
    def _ranks(self) -> list[int]:
        return self.model.graph.ranks

    def _is_steady(self, rank: int, excess: float) -> bool:
        """
        Whether the rank takes longer than its like at nearly all places of all steps: what else runs on a machine makes
        some of them much longer, and others not.
        """
        own, *peers = (
            self._for_equal_data(each) for each in sorted(self.model.like(rank), key=lambda each: each != rank)
        )
        usual_ns = {
            at: median(each[at] for each in peers if at in each) for at in own if any(at in each for each in peers)
        }
        longer_ns = sum(ns for at, ns in usual_ns.items() if own[at] >= (1 + excess / 2) * ns)
        return longer_ns > (1 - SHARE_OF_CHANCE) * sum(usual_ns.values())

    def _for_equal_data(self, rank: int) -> Mapping[tuple[int, int], float]:
        """What the rank computes at each place of each step, for equal micro-batches where their work is known."""
        work = self.model.work[rank]
        return {at: ns / self.model.load(rank, *at) for at, ns in work.items()} if self._loads_are_known(rank) else work

    def _is_level(self, rank: int, tests: int) -> bool:
        """Whether the rank's computing is longer than that of its like by more than they wander from step to step."""
        by_rank = {each: self._by_step(each) for each in self.model.like(rank)}
        steps = sorted(set.intersection(*(set(each) for each in by_rank.values())))
        usual = {step: median_low(each[step] for of, each in by_rank.items() if of != rank) for step in steps}
        others = [each for of, each in by_rank.items() if of != rank][:MAX_OTHERS]
        around = [[each[step] - usual[step] for step in steps] for each in others] if len(others) > 2 else []
        return has_level([by_rank[rank][step] - usual[step] for step in steps], around, tests)

    def _by_step(self, rank: int) -> dict[int, float]:
        found: dict[int, float] = defaultdict(float)
        for (step, _), ns in self.model.work[rank].items():
            found[step] += ns
        return found

    def _error(self, rank: int) -> float:
        """The standard error of a rank's factor. What slows all ranks of its class in a step, as a busy host, is no part."""
        samples = {each: self._samples(each) for each in self.model.like(rank)}
        if self.model.graph.steps >= _LEAST_STEPS and len(samples) > 1:
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
        by_place = 1.0 if self.model.graph.steps >= _LEAST_STEPS else _BY_PLACE
        return median(spreads) / math.sqrt(median(counts)) * (1 + _FEW / freedom) * by_place

    def _samples(self, rank: int) -> dict[int, float]:
        """The rank's factor by step, or where there are fewer than three steps, by place."""
        keyed: dict[int, list[tuple[float, float]]] = defaultdict(list)
        by_step = self.model.graph.steps >= _LEAST_STEPS
        is_known = self._loads_are_known(rank)
        for (step, place), ns in self.model.work[rank].items():
            usual_ns = self.model.usual(rank, step, place) * (self.model.load(rank, step, place) if is_known else 1.0)
            if usual_ns > LEAST_NS:
                keyed[step if by_step else place].append((ns, usual_ns))
        return {key: sum(ns for ns, _ in each) / sum(usual for _, usual in each) for key, each in keyed.items()}

    def _loads_are_known(self, rank: int) -> bool:
        """Whether the work of the micro-batches is measured on several other ranks."""
        replicas = self.model.graph.replicas
        return sum(of == replicas[rank] for of in replicas.values()) >= 3


def _medians(ranks: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Of some ranks, step by step, the (lower) median."""
    return {step: median_low(each[step] for each in ranks) for step in set.intersection(*(set(each) for each in ranks))}


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
