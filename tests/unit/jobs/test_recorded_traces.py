"""The what-if replay of a recording of metered ranks: it blames the rank that computes longer, and no healthy one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from mesh_lab import gpipe, pipelines, two_by_two

from timesyncd.errors import TraceError
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Arrival, Sync, compare
from timesyncd.jobs.issued_calls import CallKind, IssuedCallCounts
from timesyncd.jobs.recorded_traces import recorded_traces
from timesyncd.jobs.recording import RankRecord, Recording
from timesyncd.jobs.step_causes import CauseKind
from timesyncd.jobs.trace_joining import join
from timesyncd.jobs.what_if import WhatIf, analyse

MS = 1_000_000


def recording(
    ranks: int, chance: random.Random, slow_ms: float = 0.0, steps: int = 60, behind_ms: float = 0.0
) -> Recording:
    """
    Three overlapping buckets a step: a rank computes 4, 3 and 3 ms, `behind_ms` behind the last one, and then 2 ms alone. Rank 1
    takes `slow_ms` more before the second one.
    """
    syncs: list[Sync] = []
    now_ns = [0] * ranks
    for step in range(steps):
        arrived: list[list[int]] = []
        for number, ms in enumerate((4, 3, 3)):
            for rank in range(ranks):
                extra_ms = slow_ms if rank == 1 and number == 1 else 0.0
                now_ns[rank] += round(MS * ((ms + extra_ms) * (1 + chance.gauss(0, 0.02))))
            arrived.append(list(now_ns))
        now_ns = [each_ns + round(MS * behind_ms * (1 + chance.gauss(0, 0.02))) for each_ns in now_ns]
        end_ns = 0
        for number, at_ns in enumerate(arrived):
            end_ns = max(end_ns, *at_ns) + MS
            arrivals = {
                rank: Arrival("a", 0, ns, min(end_ns, max(ns, now_ns[rank])), end_ns, None, 1000)
                for rank, ns in enumerate(at_ns)
            }
            syncs.append(Sync(step, number, Kind.BUCKET, arrivals, compare(arrivals)))
        now_ns = [max(end_ns, each_ns) + round(2 * MS * (1 + chance.gauss(0, 0.02))) for each_ns in now_ns]
    return Recording("job", 0, ranks, {rank: RankRecord(f"node-{rank}") for rank in range(ranks)}, syncs)


def what_if(recorded: Recording) -> WhatIf:
    found = analyse(join(recorded_traces(recorded)).graph)
    assert isinstance(found, WhatIf)
    return found


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_slow_rank_is_blamed_and_the_step_without_it_predicted(ranks: int) -> None:
    """Rank 1 computes 6 ms longer: a step takes as long without it as in the same job without the delay, within 2 %."""
    slow, healthy = (what_if(recording(ranks, random.Random(ranks), ms)) for ms in (6.0, 0.0))
    (cause,) = slow.causes

    assert (cause.kind, cause.rank, cause.unknown) == (CauseKind.RANK, 1, None)
    assert cause.without_ns == pytest.approx(healthy.step_ns, rel=0.02)
    assert slow.step_ns == pytest.approx(healthy.step_ns + 6 * MS, rel=0.02)
    assert slow.misfit < 0.01


def test_a_slow_rank_that_never_waits_is_blamed() -> None:
    """All ranks compute 4 ms more behind the last bucket, in which the slow one goes on while its buckets are reduced."""
    slow, healthy = (what_if(recording(4, random.Random(4), ms, behind_ms=4.0)) for ms in (6.0, 0.0))
    (cause,) = slow.causes

    assert (cause.kind, cause.rank, cause.unknown) == (CauseKind.RANK, 1, None)
    assert cause.without_ns == pytest.approx(healthy.step_ns, rel=0.02)


def test_equal_ranks_are_not_blamed() -> None:
    """Of 60 jobs of two to four equal ranks none has a culprit."""
    for seed in range(60):
        assert what_if(recording(2 + seed % 3, random.Random(seed))).causes == ()


def test_steps_that_some_rank_has_no_mark_of_are_left_out() -> None:
    """A step with a mark cut off is no step of all ranks; a recording without whole steps is refused."""
    whole = recording(2, random.Random(1), 6.0)
    cut = [replace(sync, arrivals={0: sync.arrivals[0]}) if sync.step < 9 else sync for sync in whole.syncs]

    assert what_if(replace(whole, syncs=cut)).steps == 51
    with pytest.raises(TraceError, match="no step with the marks of all its ranks"):
        recorded_traces(replace(whole, syncs=cut[:27]))


def test_a_recording_with_calls_that_have_no_mark_is_refused() -> None:
    """A rank may have waited in them for another one: the replay would take that for its own computing."""
    whole = recording(2, random.Random(1), 6.0)
    calls = IssuedCallCounts(360, {CallKind("send", 2, "pp"): 412})

    assert recorded_traces(replace(whole, calls=IssuedCallCounts(360, {CallKind("send", 2, "pp"): 1})))
    with pytest.raises(TraceError, match="no marks of 412 calls .send in pp groups: 412 calls."):
        recorded_traces(replace(whole, calls=calls))


@pytest.mark.parametrize("late", [0, 3])
def test_in_a_mesh_the_slow_rank_is_blamed_through_its_groups(late: int) -> None:
    """Rank `late` of DP x TP computes 6 ms longer before its first group: the ranks that wait for it in another one are not blamed."""

    def work(rank: int, number: int) -> float:
        return 5.0 + (6.0 if (rank, number) == (late, 0) else 0.0)

    slow, healthy = what_if(two_by_two(work).recording()), what_if(two_by_two(lambda rank, number: 5.0).recording())
    (cause,) = (each for each in slow.causes if each.kind is CauseKind.RANK)

    assert (cause.rank, healthy.causes) == (late, ())
    # Of a replica of two ranks a part of what one of them takes longer looks like its data.
    assert cause.without_ns == pytest.approx(healthy.step_ns, rel=0.05)


def test_the_messages_of_a_pipeline_are_part_of_the_replay() -> None:
    """Of two replicas of two stages rank 3 is slow; its stage has twice the work of the other one, and is a cause of its own."""

    def work(rank: int, number: int) -> float:
        return (10.0 if rank % 2 else 5.0) + (9.0 if (rank, number) == (3, 0) else 0.0)

    found = what_if(pipelines(2, work).recording())

    assert [cause.rank for cause in found.causes if cause.kind is CauseKind.RANK] == [3]
    assert found.misfit < 0.01


def test_a_send_that_a_rank_computes_on_beside_is_over_when_it_is_received() -> None:
    """Under GPipe a stage waits for its sends after all micro-batches: the step without the slow rank is that of the healthy job."""
    slow = what_if(gpipe(2, lambda rank: 14.0 if rank == 3 else 10.0).recording())
    healthy = what_if(gpipe(2, lambda rank: 10.0).recording())
    (cause,) = slow.causes

    assert (cause.kind, cause.rank, healthy.causes) == (CauseKind.RANK, 3, ())
    assert cause.without_ns == pytest.approx(healthy.step_ns, rel=0.02)
    assert max(slow.misfit, healthy.misfit) < 0.01
