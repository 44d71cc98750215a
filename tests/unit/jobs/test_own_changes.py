"""A rank of a mesh that becomes slow, or pauses rarely: named by its own time, with its steps, and never for more data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mesh_lab import MS, Mesh, groups_of, pipelines, pipelines_by_step, two_by_two, two_by_two_by_step

from timesyncd.audit.build import report
from timesyncd.audit.measured import measured
from timesyncd.audit.report import AuditReport
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.own_changes import rare_own_waits, slow_spans
from timesyncd.jobs.own_time import own_times

SlowMs = Callable[[int, int], float]
"""How much longer a rank takes in a step, in ms."""


def mesh_of(slow_ms: SlowMs, steps: int = 100, seed: int = 1) -> Mesh:
    """DP x TP, 2 x 2: 5 ms of work before each of three synchronizations."""
    return two_by_two_by_step(
        lambda rank, number, step: 5 + (slow_ms(rank, step) if number == 0 else 0), steps=steps, seed=seed
    )


def stages_of(slow_ms: SlowMs, replicas: int, steps: int = 100) -> Mesh:
    """Two stages of one rank each, of 5 ms and 10 ms."""
    return pipelines_by_step(
        replicas,
        lambda rank, number, step: (5, 10)[rank % 2] + slow_ms(rank, step) if number == 0 else 0,
        steps=steps,
    )


def found(mesh: Mesh) -> AuditReport:
    return report(measured(mesh.recording()))


@pytest.mark.parametrize("late", [0, 3])
def test_a_rank_that_becomes_slow_is_named_since_that_step(late: int) -> None:
    """From step 60 on it takes 30 ms longer. Its partners only wait for it, and are not named."""
    (span,) = found(mesh_of(lambda rank, step: 30 * (rank == late and step >= 60))).late_spans

    assert (span.rank, span.to_step) == (late, None)
    assert span.from_step == pytest.approx(60, abs=3)
    assert span.lateness_p50_ns == pytest.approx(30 * MS, rel=0.1)
    assert span.place == "before all_reduce 0 of the tp groups of 2 ranks"
    assert span.exposed_ns == pytest.approx(40 * 30 * MS, rel=0.15)


def test_a_slow_spell_has_its_first_and_its_last_step() -> None:
    """The headline states the steps of it."""
    seen = found(mesh_of(lambda rank, step: 30 * (rank == 2 and 100 <= step < 200), steps=400))
    (span,) = seen.late_spans

    assert span.from_step == pytest.approx(100, abs=3)
    assert span.to_step == pytest.approx(199, abs=3)
    assert f"Rank 2 on node-2 was late from step {span.from_step} to step {span.to_step}" in seen.headline


def test_more_data_since_a_step_accuses_no_rank() -> None:
    """Both tensor parallel ranks of a replica, or all stages of its pipeline, take longer from step 60 on."""
    for mesh in (
        mesh_of(lambda rank, step: 30 * (rank >= 2 and step >= 60)),
        stages_of(lambda rank, step: 30 * (rank >= 2 and step >= 60), replicas=2),
    ):
        seen = found(mesh)

        assert (seen.late_spans, seen.stragglers, seen.rare) == ([], [], None)


def test_where_all_stages_of_a_pipeline_are_slow_none_is_named() -> None:
    """More data for one replica makes each of its stages slower, as a slow node would."""
    seen = found(stages_of(lambda rank, step: 30 * (rank >= 2), replicas=2))

    assert seen.stragglers == []
    assert [(each.ranks, each.dimension) for each in seen.withheld] == [([2, 3], "pp")]


def test_a_rank_that_pauses_every_twenty_steps_is_named() -> None:
    """Rank 3 takes 2 s more in 5 of 99 steps: they hold nearly all waiting."""
    seen = found(mesh_of(lambda rank, step: 2_000 * (rank == 3 and step % 20 == 19)))
    rare = seen.rare

    assert rare is not None
    assert (list(rare.steps), rare.compared_steps, rare.rank, rare.node, rare.every) == (
        [19, 39, 59, 79, 99],
        99,
        3,
        "node-3",
        20,
    )
    assert rare.share > 0.9
    assert rare.wait_ns == pytest.approx(2_000 * MS, rel=0.05)
    assert "5 of 99 steps hold 100 % of the waiting, for rank 3, " in seen.headline
    assert "each, every 20 steps" in seen.headline
    assert rare.overhead_elsewhere is not None
    assert rare.overhead_elsewhere < 0.2


def test_pauses_of_ranks_that_share_their_data_name_none() -> None:
    """Long sequences for both tensor parallel ranks come every 20 steps: the steps are stated, and no rank."""
    rare = found(mesh_of(lambda rank, step: 2_000 * (rank >= 2 and step % 20 == 19))).rare

    assert rare is not None
    assert (rare.rank, rare.every) == (None, None)
    assert "ranks that work on the same data are late together" in rare.sentence


def test_a_lone_stage_that_pauses_is_named_by_its_own_usual_step() -> None:
    """No other rank does its work, but the other stage takes no longer in these steps."""
    rare = found(stages_of(lambda rank, step: 2_000 * (rank == 1 and step % 20 == 19), replicas=1, steps=200)).rare

    assert rare is not None
    assert (rare.rank, rare.every) == (1, 20)


def test_long_sequences_in_a_lone_pipeline_name_no_stage() -> None:
    """They make both stages slower, the second one four times as much."""
    rare = found(stages_of(lambda rank, step: (500, 2_000)[rank] * (step % 20 == 19), replicas=1, steps=200)).rare

    assert rare is not None
    assert rare.rank is None


def test_healthy_meshes_have_no_span_and_no_rare_cause() -> None:
    """Of forty jobs with other noise none has either."""
    for seed in range(40):
        own = own_times(mesh_of(lambda rank, step: 0.0, steps=60, seed=seed).recording())

        assert (slow_spans(own), rare_own_waits(own)) == ([], None)


def test_a_rank_that_is_slow_throughout_has_no_span() -> None:
    """It is a straggler, always alike; and its waiting is in no few steps."""
    for mesh in (
        two_by_two(lambda rank, number: 5.0 + 30.0 * ((rank, number) == (1, 0))),
        pipelines(2, lambda rank, number: 5.0 + 30.0 * ((rank, number) == (3, 0))),
    ):
        seen = found(mesh)

        assert len(seen.stragglers) == 1
        assert (seen.late_spans, seen.rare) == ([], None)


def checkpointing(late_ms: float, barrier_of: int, steps: int = 120) -> Mesh:
    """DP x TP; every 20 steps rank 0 writes a checkpoint, and the first `barrier_of` ranks meet behind it."""
    mesh, tp, whole = Mesh(4), groups_of("tp", (0, 1), (2, 3)), groups_of("all", tuple(range(barrier_of)))
    dp = groups_of("dp", (0, 2), (1, 3))
    for step in range(steps):
        for rank in range(4):
            mesh.compute(rank, 15)
        if step % 20 == 19:
            mesh.compute(0, late_ms)
            mesh.meet(step, whole[0], Kind.BARRIER)
        for group in (*tp, *dp):
            mesh.meet(step, group)
        mesh.end_step(step)
    return mesh


def test_a_checkpoint_that_all_ranks_wait_for_at_a_barrier_is_a_rare_cause() -> None:
    """The barrier makes these steps unlike the usual ones, and the ranks still do the same in them."""
    rare = found(checkpointing(600, barrier_of=4)).rare

    assert rare is not None
    assert (rare.rank, rare.count, rare.every) == (0, 6, 20)
    assert rare.wait_ns == pytest.approx(600 * MS, rel=0.05)


def test_where_the_steps_that_wait_do_not_compare_no_rank_counts_as_timely() -> None:
    """Two of the ranks with the same work call a barrier that the others do not: then they may have had more to do."""
    seen = found(checkpointing(600, barrier_of=2))

    assert (seen.rare, seen.stragglers) == (None, [])
    assert seen.headline.endswith(
        "which rank is late is unknown: ranks with the same work call different synchronizations in the steps that hold most of the waiting."
    )
