"""Ranks that synchronize in groups, compared by their own time: the slow one is named, and none that waited for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mesh_lab import MS, Mesh, Work, groups_of, pipelines, two_by_two

from timesyncd.audit.build import report
from timesyncd.audit.measured import measured
from timesyncd.ipc.group_marks import Communicator
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Sync, compare
from timesyncd.jobs.issued_calls import CallKind, IssuedCallCounts
from timesyncd.jobs.own_time import MAX_POSITIONS, own_times


def slow(late: int, at: int, usual_ms: float = 5.0, by_ms: float = 30.0) -> Work:
    return lambda rank, number: usual_ms + (by_ms if (rank, number) == (late, at) else 0.0)


@pytest.mark.parametrize(
    ("at", "place"),
    [
        (0, "before all_reduce 0 of the tp groups of 2 ranks"),
        (1, "before all_reduce 1 of the tp groups of 2 ranks"),
        (2, "before all_reduce 0 of the dp groups of 2 ranks"),
    ],
)
@pytest.mark.parametrize("late", [0, 3])
def test_the_slow_rank_of_a_mesh_is_named_with_its_place(late: int, at: int, place: str) -> None:
    """Its tensor parallel partner comes as late to their data parallel groups, and is not named. The clocks do not compare."""
    found = report(measured(two_by_two(slow(late, at)).recording()))
    (one,) = found.stragglers

    assert (one.rank, one.verdict, one.place) == (late, "straggler", place)
    assert one.lateness_p50_ns == pytest.approx(30 * MS, rel=0.1)
    assert one.exposed_ns == pytest.approx(59 * 30 * MS, rel=0.1)
    assert one.group is not None
    assert late in one.group
    assert found.sync_overhead is not None
    assert found.sync_overhead > 0.3
    assert f"Rank {late} on node-{late} is persistently late: " in found.headline
    assert not any("comparable" in note for note in found.notes)


def test_where_a_job_has_no_groups_a_place_names_none() -> None:
    """FSDP2 over all ranks: rank 1 is late before its first gather, and the place names no group."""
    mesh, (every,) = Mesh(2), groups_of("dp", (0, 1))
    for step in range(60):
        for rank in range(2):
            mesh.compute(rank, 35 if rank == 1 else 5)
        mesh.meet(step, every, Kind.ALL_GATHER)
        mesh.end_step(step)
    syncs = [Sync(each.step, 0, each.kind, each.arrivals, compare(each.arrivals)) for each in mesh.syncs]
    (slow_rank,) = own_times(replace(mesh.recording(), syncs=syncs, groups=None)).slow

    assert (slow_rank.straggler.rank, slow_rank.place) == (1, "before all_gather 0")


def test_in_a_job_of_healthy_ranks_none_is_named() -> None:
    """Of forty jobs with other noise no rank is named, and what synchronization costs is stated."""
    for seed in range(40):
        mesh = Mesh(4, seed)
        tp = groups_of("tp", (0, 1), (2, 3))
        for step in range(40):
            for rank in range(4):
                mesh.compute(rank, 5)
            for group in tp:
                mesh.meet(step, group)
            mesh.end_step(step)
        found = own_times(mesh.recording())
        assert (found.slow, found.withheld, found.alone) == ((), (), ())
    assert "no rank is persistently late" in report(measured(mesh.recording())).headline


def test_where_all_ranks_of_a_group_are_slow_none_is_named() -> None:
    """More data for both tensor parallel ranks look like two slow ranks."""
    mesh = two_by_two(lambda rank, number: 5.0 + (30.0 if rank >= 2 and number == 0 else 0.0))
    found = report(measured(mesh.recording()))

    assert found.stragglers == []
    assert [(each.ranks, each.dimension) for each in found.withheld] == [([2, 3], "tp")]
    assert "the ranks 2, 3 of one tp group are all late" in found.headline
    assert found.sync_overhead is not None


def test_a_pipeline_s_slow_rank_is_named_by_the_other_replica() -> None:
    """In 2 x 2 the rank of the other replica's same stage does the same work; the other stage, with twice the work, is not compared."""

    def work(rank: int, number: int) -> float:
        return (10.0 if rank % 2 else 5.0) + (30.0 if (rank, number) == (3, 0) else 0.0)

    found = report(measured(pipelines(2, work).recording()))

    assert [(each.rank, each.place) for each in found.stragglers] == [
        (3, "before send 0 of the pp messages to a lower rank")
    ]
    assert found.stragglers[0].lateness_p50_ns == pytest.approx(30 * MS, rel=0.1)
    assert {(each.sender, each.receiver) for each in found.messages} == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert {each.reason for each in found.messages} == {"the clocks of the two nodes do not compare"}


def test_a_stage_without_a_peer_is_unknown() -> None:
    """A slow rank and a stage with more work look the same: no rank is named, and the report gives the reason."""
    found = report(measured(pipelines(1, slow(1, 0)).recording()))

    assert (found.stragglers, found.alone) == ([], [0, 1])
    assert "no other rank with the same work" in found.headline


def test_two_stages_in_the_middle_are_not_the_same_work() -> None:
    """Both receive and send alike, in each of two replicas; the stage with more work is not accused."""
    mesh = Mesh(8)
    channels = [[Communicator(f"pp {r}", (4 * r + s, 4 * r + s + 1), "pp", 0) for s in range(3)] for r in range(2)]
    for step in range(60):
        for stage in range(4):
            for replica in range(2):
                mesh.compute(4 * replica + stage, 30 if stage == 2 else 5)
                if stage < 3:
                    mesh.send(step, channels[replica][stage])
        mesh.end_step(step)
    found = own_times(mesh.recording())

    assert (found.slow, found.alone) == ((), ())


def test_a_late_update_is_stated() -> None:
    """What a rank takes longer after its last synchronization of a step is its update."""
    mesh = Mesh(2)
    (both,) = groups_of("dp", (0, 1))
    for step in range(60):
        for rank in range(2):
            mesh.compute(rank, 5)
        mesh.meet(step, both)
        for rank in range(2):
            mesh.compute(rank, 25 if rank == 1 else 5)
        mesh.end_step(step)

    assert [(each.straggler.rank, each.place) for each in own_times(mesh.recording()).slow] == [(1, "in the update")]


def test_a_step_of_many_synchronizations_is_compared_at_some_of_them() -> None:
    """The place is that of the next one that is compared."""
    mesh = Mesh(2)
    (both,) = groups_of("dp", (0, 1))
    for step in range(60):
        for number in range(3 * MAX_POSITIONS):
            for rank in range(2):
                mesh.compute(rank, 20 if (rank, number) == (1, 70) else 0.1)
            mesh.meet(step, both)
        mesh.end_step(step)
    (one,) = own_times(mesh.recording()).slow

    assert one.straggler.rank == 1
    assert one.place in {f"before all_reduce {number} of the dp groups of 2 ranks" for number in range(70, 74)}


def test_without_an_account_of_the_calls_no_rank_is_named() -> None:
    """It may have waited in a call that has no mark. The overhead is unknown, and no group is listed."""
    calls = IssuedCallCounts(100, {CallKind("send", 2, "pp"): 50})
    found = report(measured(two_by_two(slow(3, 0)).recording(calls)))

    assert (found.sync_overhead, found.stragglers, found.groups) == (None, [], [])
    assert "send in pp groups: 50 calls" in found.headline


def test_the_sources_of_the_overhead_are_the_groups() -> None:
    """By kind and group, without a rank; their sum is the exposed time."""
    now = measured(two_by_two(slow(3, 0)).recording())
    found = report(now)

    assert {source.where for source in found.sources} == {
        "all_reduce of the tp groups of 2 ranks",
        "all_reduce of the dp groups of 2 ranks",
    }
    assert {source.rank for source in found.sources} == {None}
    assert sum(source.exposed_ns for source in found.sources) == now.exposed_ns
    assert [(each.dimension, each.syncs) for each in found.groups if each.dimension == "tp"] == [
        ("tp", 118),
        ("tp", 118),
    ]
