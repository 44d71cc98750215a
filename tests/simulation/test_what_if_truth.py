"""What a step would take without a cause, and which cause is named: against simulated jobs with a known truth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pipeline_job import SimulatedJob, run, step_ns
from pipeline_traces import rank_traces

from timesyncd.jobs.step_causes import CauseKind, UnknownReason
from timesyncd.jobs.step_graph import replay
from timesyncd.jobs.trace_joining import join
from timesyncd.jobs.what_if import WhatIf, analyse

#: dp x pp x tp, 8 to 128 ranks.
SHAPES = [
    SimulatedJob(dp=2, pp=4, tp=1),
    SimulatedJob(dp=2, pp=4, tp=1, schedule="gpipe"),
    SimulatedJob(dp=2, pp=2, tp=2),
    SimulatedJob(dp=1, pp=4, tp=2),
    SimulatedJob(dp=2, pp=1, tp=4),
    SimulatedJob(dp=8, pp=1, tp=1),
    SimulatedJob(dp=4, pp=2, tp=2, micro_batches=4, steps=5),
]
LARGE = SimulatedJob(dp=4, pp=8, tp=4, micro_batches=8, steps=2)
SEEDS = range(2)

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda job: f"{job.dp}x{job.pp}x{job.tp}-{job.schedule}")
every_seed = pytest.mark.parametrize("seed", SEEDS)


def analysed(job: SimulatedJob) -> WhatIf:
    found = analyse(join(rank_traces(job, run(job))).graph)
    assert isinstance(found, WhatIf)
    return found


def true_ns(job: SimulatedJob) -> float:
    return step_ns(run(job), job)


def kinds(found: WhatIf) -> list[CauseKind]:
    return [cause.kind for cause in found.causes]


@every_shape
@every_seed
def test_the_replay_takes_as_long_as_the_job_did(shape: SimulatedJob, seed: int) -> None:
    """Unchanged durations replay to the recorded length, and no rank is named in a healthy job."""
    job = replace(shape, seed=seed, noise=0.04)

    found = analysed(job)

    assert found.step_ns == pytest.approx(true_ns(job), rel=1e-3)
    assert found.misfit < 1e-3
    assert found.causes == ()


@every_shape
@every_seed
def test_one_slow_rank_is_named_with_its_cost(shape: SimulatedJob, seed: int) -> None:
    """The slow rank is the only cause, and the step without it is predicted within 2 %."""
    slow = (7 * seed + 3) % shape.world_size
    job = replace(shape, seed=seed, slow={slow: 1.3 + 0.2 * (seed % 2)})

    found = analysed(job)

    assert [(cause.kind, cause.rank, cause.unknown) for cause in found.causes] == [(CauseKind.RANK, slow, None)]
    assert found.causes[0].without_ns == pytest.approx(true_ns(job.healthy()), rel=0.02)


@pytest.mark.parametrize("shape", [job for job in SHAPES if job.pp > 1], ids=lambda job: f"{job.dp}x{job.pp}x{job.tp}")
@every_seed
def test_an_unbalanced_last_stage_is_named_and_no_rank(shape: SimulatedJob, seed: int) -> None:
    """The stage is the only cause, and the step without its surplus is predicted within 2 %."""
    job = replace(shape, seed=seed, stage_factors={shape.pp - 1: 1.4})

    found = analysed(job)

    assert [(cause.kind, cause.stage, cause.rank) for cause in found.causes] == [(CauseKind.STAGE, shape.pp - 1, None)]
    assert found.causes[0].without_ns == pytest.approx(true_ns(job.healthy()), rel=0.02)


@pytest.mark.parametrize(
    "shape", [job for job in SHAPES if job.pp * job.tp > 1], ids=lambda job: f"{job.dp}x{job.pp}x{job.tp}"
)
@every_seed
def test_unequal_sequences_are_named_and_no_rank(shape: SimulatedJob, seed: int) -> None:
    """They fall on every replica in turn; the step with equal ones is predicted within 2 %."""
    job = replace(shape, seed=seed, sequence_sigma=0.4)

    found = analysed(job)

    assert [(cause.kind, cause.rank, cause.unknown) for cause in found.causes] == [(CauseKind.SEQUENCES, None, None)]
    assert found.causes[0].without_ns == pytest.approx(true_ns(job.healthy()), rel=0.02)


@every_seed
def test_all_three_at_once_are_told_apart(seed: int) -> None:
    """The slow rank, the stage and the sequences are each named, and nothing else."""
    job = SimulatedJob(dp=2, pp=4, tp=2, steps=4, seed=seed, slow={3: 1.5}, stage_factors={3: 1.4}, sequence_sigma=0.3)

    found = analysed(job)

    named = {(cause.kind, cause.rank, cause.stage) for cause in found.causes}
    assert named == {(CauseKind.RANK, 3, None), (CauseKind.STAGE, None, 3), (CauseKind.SEQUENCES, None, None)}
    assert found.without_causes_ns == pytest.approx(true_ns(job.healthy()), rel=0.02)


@pytest.mark.parametrize(
    ("job", "named"),
    [
        (replace(LARGE, slow={77: 1.3}), (CauseKind.RANK, 77, None)),
        (replace(LARGE, stage_factors={7: 1.4}), (CauseKind.STAGE, None, 7)),
        (replace(LARGE, sequence_sigma=0.4), (CauseKind.SEQUENCES, None, None)),
    ],
    ids=["rank", "stage", "sequences"],
)
def test_the_cause_is_named_among_128_ranks(job: SimulatedJob, named: tuple[CauseKind, int | None, int | None]) -> None:
    """Each cause alone is found in a job of 4 x 8 x 4 ranks, within 2 %."""
    found = analysed(job)

    assert [(cause.kind, cause.rank, cause.stage) for cause in found.causes] == [named]
    assert found.without_causes_ns == pytest.approx(true_ns(job.healthy()), rel=0.02)


@every_seed
def test_two_equally_slow_ranks_are_both_named(seed: int) -> None:
    """Each hides the other, so removing one alone saves nothing; both are named all the same."""
    job = SimulatedJob(dp=8, pp=1, tp=1, seed=seed, slow={1: 1.5, 6: 1.5})

    found = analysed(job)

    assert sorted(cause.rank for cause in found.causes if cause.rank is not None) == [1, 6]
    assert found.without_causes_ns == pytest.approx(true_ns(job.healthy()), rel=0.02)


@every_seed
def test_a_slow_rank_that_is_its_stage_is_unknown(seed: int) -> None:
    """With one rank a stage, a slow rank and an unbalanced stage look the same: no rank is named."""
    job = SimulatedJob(dp=1, pp=8, tp=1, seed=seed, slow={5: 1.5})

    found = analysed(job)

    assert [(cause.kind, cause.rank, cause.stage) for cause in found.causes] == [(CauseKind.STAGE, None, 5)]
    assert found.causes[0].unknown == UnknownReason.RANK_OR_STAGE


@every_seed
def test_ranks_that_each_have_their_own_data_do_not_show_why_they_vary(seed: int) -> None:
    """Unequal sequences and pauses in turn look the same in plain data parallelism: no rank is named."""
    job = SimulatedJob(dp=8, pp=1, tp=1, micro_batches=2, seed=seed, sequence_sigma=0.4)

    found = analysed(job)

    assert all(cause.rank is None for cause in found.causes)
    assert {cause.unknown for cause in found.causes} == {UnknownReason.SEQUENCES_OR_PAUSES}


@every_seed
def test_a_slow_group_is_stated_and_none_of_its_ranks(seed: int) -> None:
    """A group whose transfers take five times as long costs that; which of its ranks is the cause is unknown."""
    job = SimulatedJob(dp=2, pp=2, tp=2, micro_batches=2, seed=seed, slow_links={(0, 2): 5.0})

    found = analysed(job)

    assert [(cause.kind, cause.rank, cause.ranks, cause.unknown) for cause in found.causes] == [
        (CauseKind.TRANSFER, None, (0, 2), UnknownReason.ONE_OF_GROUP)
    ]
    assert found.causes[0].without_ns == pytest.approx(true_ns(job.healthy()), rel=0.02)


def test_a_slow_group_that_costs_nothing_is_not_listed() -> None:
    """The last stage ends early, so its slow group is hidden by what the first stage still computes."""
    assert analysed(SimulatedJob(dp=2, pp=2, tp=2, micro_batches=2, slow_links={(4, 6): 5.0})).causes == ()


def test_a_replica_that_is_slow_as_a_whole_is_unknown() -> None:
    """More data for one replica and a slow node look the same: none of its ranks is named."""
    job = SimulatedJob(dp=2, pp=1, tp=4, slow={4: 1.3, 5: 1.3, 6: 1.3, 7: 1.3})

    found = analysed(job)

    assert [(cause.rank, cause.ranks, cause.unknown) for cause in found.causes] == [
        (None, (4, 5, 6, 7), UnknownReason.DATA_OR_NODE)
    ]


def test_the_ideal_is_the_mean_of_equal_work() -> None:
    """An unbalanced stage is spread over all stages in the ideal, so the slowdown is against even stages."""
    job = SimulatedJob(dp=2, pp=4, noise=0.0, stage_factors={3: 1.4})

    found = analysed(job)

    even = replace(job, stage_factors=dict.fromkeys(range(4), 1.1))
    assert found.ideal_ns == pytest.approx(true_ns(even), rel=0.01)
    assert found.slowdown == pytest.approx(true_ns(job) / true_ns(even), rel=0.01)
    assert found.by_kind["compute"] == pytest.approx(found.slowdown, rel=0.01)
    assert max(found.by_stage, key=lambda stage: found.by_stage[stage]) == 3


def test_who_waited_for_which_rank() -> None:
    """The ranks of the slow rank's tensor group wait for it."""
    job = SimulatedJob(dp=1, pp=2, tp=4, slow={2: 1.5})

    found = analysed(job)

    in_groups = [wait for wait in found.waits if wait.kind == "all_reduce"][:3]
    assert {(wait.rank, wait.awaited) for wait in in_groups} == {(0, 2), (1, 2), (3, 2)}


def test_a_replay_can_start_from_changed_durations() -> None:
    """Halving all durations halves the steps but for the fixed delays."""
    job = SimulatedJob(noise=0.0)
    graph = join(rank_traces(job, run(job))).graph

    played = replay(graph, [each / 2 for each in graph.durations])

    assert played.length_ns == pytest.approx(true_ns(job) * job.steps / 2, rel=0.01)
