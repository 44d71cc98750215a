"""What is stated of jobs on busy machines: what their load makes longer is blamed on no rank, no stage and no sequences."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from loaded_jobs import LOADS, LoadedJob, Outcome, Truth, judged, loaded_job, outcome
from machine_load import machine_load
from mesh_lab import MS, pipelines_by_step, two_by_two_by_step
from pipeline_job import SimulatedJob

from timesyncd.jobs.own_changes import slow_spans
from timesyncd.jobs.own_time import own_times
from timesyncd.jobs.step_causes import CauseKind, UnknownReason

TENSOR_PARALLEL = SimulatedJob(dp=2, pp=1, tp=4, steps=6)


@pytest.mark.parametrize("load", LOADS, ids="+".join)
def test_no_load_is_blamed_on_a_healthy_rank_or_on_another_cause(load: tuple[str, ...]) -> None:
    """Of all shapes and truths in turn. `python tests/simulation/loaded_jobs.py` judges hundreds."""
    jobs = [each for seed in range(120) if (each := loaded_job(seed)).load == load][::3]
    wrong = {
        each.job.seed: result
        for each in jobs
        if (result := outcome(each, judged(each))) in (Outcome.WRONG_RANK, Outcome.WRONG_CAUSE)
    }

    assert wrong == {}


def test_a_slow_rank_on_machines_with_short_bursts_is_mostly_named() -> None:
    """What is withheld is what the load hides: most slow ranks stay named, and nothing else is."""
    found = Counter(
        outcome(each, judged(each))
        for each in map(loaded_job, range(160))
        if (each.truth, each.load) == (Truth.RANK, ("bursts",)) and each.job.steps > 3
    )

    assert found[Outcome.RIGHT] >= 0.6 * found.total()
    assert found[Outcome.WRONG_RANK] == found[Outcome.WRONG_CAUSE] == 0


@pytest.mark.parametrize("seed", range(2))
def test_unequal_sequences_of_ranks_on_one_machine_look_like_its_load(seed: int) -> None:
    """All ranks of a replica are on one node and compute at the same time: what slows the node slows them alike."""
    found = judged(LoadedJob(replace(TENSOR_PARALLEL, seed=seed, sequence_sigma=0.4), Truth.SEQUENCES, (), 4))

    assert [(cause.kind, cause.rank, cause.unknown) for cause in found.causes] == [
        (CauseKind.SEQUENCES, None, UnknownReason.SEQUENCES_OR_PAUSES)
    ]


def test_pauses_of_all_ranks_in_turn_are_no_sequences() -> None:
    """The ranks of a replica do not agree on the micro-batches that take long, so the data are not listed at all."""
    for seed in range(2):
        job = replace(TENSOR_PARALLEL, seed=seed, steps=12)

        assert judged(LoadedJob(job, Truth.HEALTHY, ("pauses",), 1)).causes == ()


@pytest.mark.parametrize("late", [None, 3])
@pytest.mark.parametrize("load", LOADS, ids="+".join)
def test_a_report_by_own_times_names_no_healthy_rank_for_a_load(load: tuple[str, ...], late: int | None) -> None:
    """Of recorded meshes and pipelines, in all steps and in spans of them; one of four ranks is late by 8 ms of 15."""

    def work(rank: int, number: int, step: int) -> float:
        return 5.0 + (8.0 if rank == late and number == 0 else 0.0)

    nodes = [range(2), range(2, 4)]
    for seed in range(3):
        around = machine_load(load, nodes, 20 * MS, 60 * 4 * 20 * MS, seed)
        for mesh in (two_by_two_by_step(work, 60, seed, around), pipelines_by_step(2, work, 60, seed, around)):
            own = own_times(mesh.recording())
            named = {each.straggler.rank for each in own.slow} | {each.span.straggler.rank for each in slow_spans(own)}
            assert named <= {late}
