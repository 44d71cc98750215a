"""What a remedy would save in a job that synchronizes in groups, against the same simulated job with the remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mesh_lab import MS, Mesh, groups_of, pipelines, two_by_two

from timesyncd.audit.advice import advise_mesh
from timesyncd.audit.build import advice_for, report
from timesyncd.audit.measured import measured
from timesyncd.audit.mesh_remedies import MAX_REPLAYED_MARKS, MeshReplay, mesh_gains, mesh_replay
from timesyncd.audit.report import AdviceKind, AuditReport, NoPrice, RemedyReport
from timesyncd.jobs.recording import Recording


def length_ns(recording: Recording) -> float:
    marks = recording.steps[0]
    return (marks[-1].end_ns - marks[0].arrival_ns) / len(marks)


def remedy(found: AuditReport, name: str) -> RemedyReport:
    return next(each for each in found.remedies if each.name == name)


@pytest.mark.parametrize("make", [two_by_two, lambda work: pipelines(2, work)], ids=["dp x tp", "dp x pp"])
def test_a_job_without_its_straggler_takes_as_long_as_stated(make: object) -> None:
    """Rank 3 takes 30 ms longer: without that a step takes what it takes in the same job of equal ranks, within 3 %."""
    slow, healthy = (
        make(lambda rank, number, by=by: 5.0 + by * ((rank, number) == (3, 0))).recording()  # type: ignore[operator]
        for by in (30.0, 0.0)
    )
    found = remedy(report(measured(slow)), "no_straggler")

    assert found.gain is not None
    assert found.step_saved_ns is not None
    assert length_ns(slow) - found.step_saved_ns == pytest.approx(length_ns(healthy), rel=0.03)
    assert found.gain == pytest.approx(1 - length_ns(healthy) / length_ns(slow), abs=0.03)
    assert found.sync_overhead is not None
    assert found.sync_overhead < 0.5


def with_pauses(*pauses: tuple[int, int, float], steps: int = 60) -> Recording:
    """DP x TP, 2 x 2, with pauses (rank, step, ms)."""
    mesh = Mesh(4)
    tp, dp = groups_of("tp", (0, 1), (2, 3)), groups_of("dp", (0, 2), (1, 3))
    for step in range(steps):
        for number, groups in enumerate((tp, dp)):
            for rank in range(4):
                paused_ms = sum(ms for of, at, ms in pauses if (of, at) == (rank, step) and number == 0)
                mesh.compute(rank, 10 + paused_ms)
            for group in groups:
                mesh.meet(step, group)
        mesh.end_step(step)
    return mesh.recording()


def test_a_job_without_its_pauses_takes_as_long_as_stated() -> None:
    """Six pauses of 200 ms of three ranks: without them the job takes what it takes without them, within 2 %."""
    pauses = [(rank, 10 + 7 * rank + 25 * time, 200.0) for rank in (0, 1, 3) for time in range(2)]
    found = report(measured(with_pauses(*pauses)))

    no_pauses, together = remedy(found, "no_pauses"), remedy(found, "pauses_together")
    assert no_pauses.step_saved_ns == pytest.approx(6 * 200 * MS / 60, rel=0.05)
    assert together.step_saved_ns == pytest.approx(4 * 200 * MS / 60, rel=0.05)
    assert "not known" in remedy(found, "slack_used").reason


def test_what_all_ranks_do_longer_in_a_step_is_no_pause() -> None:
    """An evaluation of 20 ms on all ranks."""
    found = report(measured(with_pauses(*[(rank, 30, 20.0) for rank in range(4)])))

    assert "no pause is longer than usual in the replayed steps" in remedy(found, "no_pauses").reason
    assert "no rank is persistently late" in remedy(found, "no_straggler").reason


def test_local_steps_are_not_offered() -> None:
    """A step exchanges activations within it; the reason is stated, and no gain."""
    found = report(measured(two_by_two(lambda rank, number: 5.0).recording()))
    local = [each for each in found.remedies if each.name.startswith(("local_steps", "larger_batch"))]

    assert len(local) == 4
    assert {each.gain for each in local} == {None}
    assert {each.reason for each in local} == {
        "a step of a mesh exchanges activations or parts of the parameters, so it cannot do without"
    }


def test_the_slow_rank_of_a_mesh_is_advised_another_place_with_its_price() -> None:
    """Each rank is a node of its own: its node is swapped, and the gain has an interval."""
    now = measured(two_by_two(lambda rank, number: 5.0 + 30.0 * ((rank, number) == (3, 0)), steps=200).recording())
    (advice,) = advice_for(now).advice

    assert (advice.kind, advice.ranks) == (AdviceKind.SWAP_NODE, [3])
    assert advice.gain is not None
    assert advice.gain.low is not None
    assert advice.gain.low > 0.5


def test_a_slow_node_s_ranks_are_not_priced_without_like_ranks() -> None:
    """Both ranks of a class are late: none shows how fast a good one is."""
    now = measured(pipelines(2, lambda rank, number: 5.0).recording())
    replayed = mesh_replay(now)
    assert isinstance(replayed, MeshReplay)

    assert "every rank with the same work as rank 1 is late" in str(replayed.leveled([1, 3]))
    assert report(now).advice[0].reason_code is NoPrice.NO_STRAGGLER


def test_a_gain_within_the_error_of_the_replay_is_not_stated() -> None:
    """The replay misses the recorded time by 5 %: the straggler's gain is larger, and that of the transfers is not."""
    now = measured(two_by_two(lambda rank, number: 5.0 + 30.0 * ((rank, number) == (3, 0)), steps=200).recording())
    exact = mesh_replay(now)
    assert isinstance(exact, MeshReplay)
    assert exact.misfit < 0.001
    gains = {each.remedy.name: each for each in mesh_gains(replace(exact, misfit=0.05), now.late_ranks)}
    (sure,), (wide,) = advise_mesh(now, exact), advise_mesh(now, replace(exact, misfit=0.05))

    assert gains["no_straggler"].gain == pytest.approx(0.65, abs=0.05)
    assert gains["phase_shift"].gain in (None, 0.0)
    assert gains["no_pauses"].gain is None
    assert sure.gain is not None
    assert sure.gain.low is not None
    assert wide.gain is not None
    assert wide.gain.low == pytest.approx(sure.gain.low - 0.05)


def test_the_newest_steps_that_follow_one_another_are_replayed() -> None:
    """A step in which a rank lacks a mark ends them; of a long recording so many marks are replayed."""
    whole = two_by_two(lambda rank, number: 5.0).recording()
    assert whole.groups is not None
    cut = {
        rank: [each for each in marks if (rank, each.step) != (2, 40) or each.number % 2]
        for rank, marks in whole.groups.marks.items()
    }
    broken = mesh_replay(measured(replace(whole, groups=replace(whole.groups, marks=cut))))
    long = mesh_replay(measured(two_by_two(lambda rank, number: 1.0, steps=MAX_REPLAYED_MARKS // 12 + 50).recording()))

    assert isinstance(broken, MeshReplay)
    assert broken.graph.steps == 19
    assert isinstance(long, MeshReplay)
    assert long.graph.steps == MAX_REPLAYED_MARKS // 12


def test_without_steps_to_replay_the_reason_is_stated() -> None:
    """No remedy has a gain, and the notes state why."""
    whole = two_by_two(lambda rank, number: 5.0).recording()
    assert whole.groups is not None
    every_other = {
        rank: [each for each in marks if rank or each.step % 2] for rank, marks in whole.groups.marks.items()
    }
    found = report(measured(replace(whole, groups=replace(whole.groups, marks=every_other))))

    assert {each.gain for each in found.remedies} == {None}
    assert any(note.startswith("No remedy is replayed: no two steps that follow one another") for note in found.notes)
