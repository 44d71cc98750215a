"""
How long a step would take without a slow rank, an unbalanced stage or unequal sequences, and which one to blame. Pure.

After Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): a cause's
operations get the duration of operations that do the same work, and the steps are replayed. The slowdown is
S = T / T_ideal (equation 1), where all computing takes the mean and all transfers the median of their like. A cause
explains (T - T_without) / (T - T_ideal) of it (equation 5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeVar

from timesyncd.jobs.compute_model import fitted
from timesyncd.jobs.slow_compute import LEAST_NS, SlowCompute
from timesyncd.jobs.slow_transfers import slow_transfers
from timesyncd.jobs.step_causes import Candidate, Cause, CauseKind, UnknownReason
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
from timesyncd.jobs.unequal_data import UnequalData

#: A cause counts where it costs so much of a step.
MIN_COST = 0.01

#: Replays that miss the recorded time by more prove nothing.
MAX_MISFIT = 0.02


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


_Key = TypeVar("_Key", int, str)


class _Analysis:
    """One graph's what-ifs. A cause is a factor on the duration of each of its operations."""

    def __init__(self, graph: StepGraph, step_ns: float) -> None:
        self.graph = graph
        self.step_ns = step_ns
        self.durations = graph.durations
        self.model = fitted(graph)
        self.slow = SlowCompute(self.model)

    def result(self, misfit_share: float, played: StepReplay) -> WhatIf:
        ideal = self._ideal()
        ideal_ns = self._step_ns(ideal)
        refused = UnknownReason.REPLAY_MISFIT if misfit_share > MAX_MISFIT else None
        candidates = [] if refused else self._candidates()
        causes = self._costly(candidates, ideal_ns)
        undecided = 0.0 if refused or causes else self.slow.undecided(self._saves)
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

    def _without(self, candidates: Sequence[Candidate]) -> float:
        durations = list(self.durations)
        for candidate in candidates:
            for index, factor in candidate.factors.items():
                durations[index] *= factor
        return self._step_ns(durations)

    def _candidates(self) -> list[Candidate]:
        # A rank that is slow at one place of the step would make the data there look like more.
        ratios = self.slow.peer_ratios()
        data = UnequalData(fitted(self.graph, ratios) if ratios else self.model, self.slow)
        return [*self.slow.ranks(), *self.slow.stages(), *data.candidates(), *self._transfers()]

    def _saves(self, candidate: Candidate) -> bool:
        return self.step_ns - self._without([candidate]) >= MIN_COST * self.step_ns

    def _costly(self, candidates: Sequence[Candidate], ideal_ns: float) -> list[tuple[Candidate, Cause]]:
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

    # ---- transfers

    def _transfers(self) -> list[Candidate]:
        return [
            Candidate(
                CauseKind.TRANSFER, slow.excess, slow.factors, ranks=slow.ranks, unknown=UnknownReason.ONE_OF_GROUP
            )
            for slow in slow_transfers(self.graph)
        ]

    # ---- the ideal

    def _ideal(self) -> list[float]:
        """Equation 1: the mean of computing of the same work, in stages that do equally much, and median transfers."""
        work = self.slow.stage_work
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
        if own_ns is None or own_ns <= LEAST_NS or not work[stage]:
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
