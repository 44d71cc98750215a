"""
What the replay states of simulated jobs on busy machines, against their truth. As a script it judges many and prints a
table: `python tests/simulation/loaded_jobs.py --seeds 0 100`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from machine_load import KINDS, machine_load
from pipeline_job import SimulatedJob, run, step_ns
from pipeline_traces import rank_traces

from timesyncd.jobs.step_causes import Cause, CauseKind
from timesyncd.jobs.step_graph import StepGraph
from timesyncd.jobs.trace_joining import join
from timesyncd.jobs.what_if import WhatIf, analyse

SHAPES = (
    SimulatedJob(dp=2, pp=1, tp=2),
    SimulatedJob(dp=4, pp=1, tp=1),
    SimulatedJob(dp=2, pp=2, tp=1, micro_batches=4),
    SimulatedJob(dp=2, pp=4, tp=1),
    SimulatedJob(dp=2, pp=2, tp=2, schedule="gpipe", micro_batches=4),
    SimulatedJob(dp=1, pp=4, tp=2, micro_batches=4),
    SimulatedJob(dp=2, pp=1, tp=4),
    SimulatedJob(dp=4, pp=2, tp=1, micro_batches=4),
)
STEPS = (3, 6, 12, 20)
LOADS: tuple[tuple[str, ...], ...] = (*((kind,) for kind in KINDS), KINDS)


class Truth(StrEnum):
    HEALTHY = "healthy"
    RANK = "rank"
    STAGE = "stage"
    SEQUENCES = "sequences"


class Outcome(StrEnum):
    """WRONG_RANK: a healthy rank is named. WRONG_CAUSE: another cause is."""

    RIGHT = "right"
    UNKNOWN = "unknown"
    NOTHING = "nothing"
    WRONG_RANK = "wrong rank"
    WRONG_CAUSE = "wrong cause"


@dataclass(frozen=True)
class LoadedJob:
    """A simulated job, its truth, and what else its machines do."""

    job: SimulatedJob
    truth: Truth
    load: tuple[str, ...]
    ranks_per_node: int

    @property
    def nodes(self) -> list[range]:
        """The ranks of each."""
        size = self.job.world_size
        return [range(first, min(first + self.ranks_per_node, size)) for first in range(0, size, self.ranks_per_node)]

    @property
    def is_right(self) -> tuple[CauseKind, int | None, int | None] | None:
        """The kind of the true cause, its rank and its stage; None: there is none."""
        match self.truth:
            case Truth.RANK:
                return CauseKind.RANK, next(iter(self.job.slow)), None
            case Truth.STAGE:
                return CauseKind.STAGE, None, next(iter(self.job.stage_factors))
            case Truth.SEQUENCES:
                return CauseKind.SEQUENCES, None, None
        return None


def loaded_job(seed: int) -> LoadedJob:
    """Of each seed another one: all shapes, truths and loads in turn."""
    load = LOADS[seed % len(LOADS)]
    truth = tuple(Truth)[seed // len(LOADS) % len(Truth)]
    shape = SHAPES[seed // len(LOADS) // len(Truth) % len(SHAPES)]
    steps = STEPS[seed // 7 % len(STEPS)]
    job = replace(shape, seed=seed, steps=steps, noise=0.03)
    if truth is Truth.RANK:
        job = replace(job, slow={(7 * seed + 3) % job.world_size: (1.15, 1.3, 1.6, 2.0)[seed // 3 % 4]})
    elif truth is Truth.STAGE and job.pp > 1:
        job = replace(job, stage_factors={job.pp - 1: 1.4})
    elif truth is Truth.SEQUENCES:
        job = replace(job, sequence_sigma=0.4)
    else:
        truth = Truth.HEALTHY
    return LoadedJob(job, truth, load, (1, 2, job.world_size)[seed // 11 % 3])


def graph_of(of: LoadedJob) -> StepGraph:
    usual_ns = round(step_ns(run(of.job), of.job))
    load = machine_load(of.load, of.nodes, usual_ns, 6 * usual_ns * of.job.steps, of.job.seed)
    return join(rank_traces(of.job, run(of.job, load), of.ranks_per_node)).graph


def judged(of: LoadedJob) -> WhatIf:
    found = analyse(graph_of(of))
    assert isinstance(found, WhatIf)
    return found


def outcome(of: LoadedJob, found: WhatIf) -> Outcome:
    named = [cause for cause in found.causes if cause.unknown is None]
    right = [cause for cause in named if _as_truth(cause) == of.is_right]
    wrong = [cause for cause in named if cause not in right]
    if any(cause.rank is not None for cause in wrong):
        return Outcome.WRONG_RANK
    if wrong:
        return Outcome.WRONG_CAUSE
    if right:
        return Outcome.RIGHT
    return Outcome.UNKNOWN if found.causes or found.unknown else Outcome.NOTHING


def _as_truth(cause: Cause) -> tuple[CauseKind, int | None, int | None]:
    return cause.kind, cause.rank, cause.stage


def _lines(seeds: Sequence[int]) -> Iterator[str]:
    counts: dict[tuple[str, str], Counter[Outcome]] = {}
    for seed in seeds:
        of = loaded_job(seed)
        found = judged(of)
        result = outcome(of, found)
        counts.setdefault((of.truth, "+".join(of.load)), Counter())[result] += 1
        if result in (Outcome.WRONG_RANK, Outcome.WRONG_CAUSE):
            job = of.job
            yield (
                f"seed {seed}: {result}: {job.dp}x{job.pp}x{job.tp} {job.steps} steps {of.ranks_per_node} a node {of.truth} {of.is_right} {'+'.join(of.load)}: "
                f"{[(c.kind.value, c.rank, c.stage, round(c.excess, 3), c.unknown and c.unknown.value) for c in found.causes]}"
            )
    for (truth, load), of_case in sorted(counts.items()):
        yield f"{truth:10} {load:28} " + "  ".join(f"{each} {of_case[each]}" for each in Outcome)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 160), metavar=("FROM", "UNTIL"))
    for line in _lines(range(*parser.parse_args().seeds)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
