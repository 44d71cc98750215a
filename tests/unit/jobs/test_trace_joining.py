"""Joining the traces of ranks: what belongs together, by which clocks, in which steps, and what cannot be joined."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from pipeline_job import SimulatedJob, run
from pipeline_traces import clock_offsets_ns, rank_traces

from timesyncd.jobs.step_causes import CauseKind, UnknownReason
from timesyncd.jobs.step_graph import replay
from timesyncd.jobs.trace_clocks import clock_offsets, left_early
from timesyncd.jobs.trace_joining import JoinError, Unjoinable, join
from timesyncd.jobs.what_if import WhatIf, analyse
from timesyncd.traces.operations import Communication, RankTrace

JOB = SimulatedJob(dp=2, pp=2, tp=2, micro_batches=4, steps=5)


def traces(job: SimulatedJob) -> list[RankTrace]:
    return rank_traces(job, run(job))


@pytest.mark.parametrize(
    "job", [JOB, SimulatedJob(dp=8, pp=1, tp=1), SimulatedJob(dp=1, pp=4, tp=1), SimulatedJob(dp=2, pp=4, tp=1)]
)
@pytest.mark.parametrize("seed", range(5))
def test_clocks_are_aligned_within_the_stated_error(job: SimulatedJob, seed: int) -> None:
    """By ends of collectives, and where there are only messages by what cannot be received before it is sent."""
    job = replace(job, seed=seed)
    ahead = clock_offsets_ns(job)

    found = join(traces(job)).offsets

    assert set(found) == set(ahead)
    for rank, offset in found.items():
        assert abs(offset.offset_ns - (ahead[rank] - ahead[0])) <= offset.error_ns
        assert offset.error_ns < 5_000_000


def test_ranks_that_share_nothing_are_not_aligned() -> None:
    """Messages of one way bound the clocks from one side only."""
    sent = Communication("send", "messages", (0, 1), None, 100, 200)
    received = Communication("recv", "messages", (0, 1), None, 50, 210)

    assert set(clock_offsets([((0, 1), [sent, received])] * 5)) == {0}


def test_a_sender_that_does_not_wait_is_recognized() -> None:
    """Its sends end before the receives begin, by more than the clocks' error."""
    eager = [
        (
            Communication("send", "messages", (0, 1), None, 1_000 * n, 1_000 * n + 10),
            Communication("recv", "messages", (0, 1), None, 1_000 * n + (n % 2) * 500, 1_000 * n + 12 + (n % 2) * 500),
        )
        for n in range(10)
    ]
    back = [
        (
            Communication("send", "messages", (1, 0), None, 1_000 * n + 600, 1_000 * n + 610),
            Communication("recv", "messages", (1, 0), None, 1_000 * n, 1_000 * n + 612),
        )
        for n in range(10)
    ]
    offsets = clock_offsets([((0, 1), each) for each in eager] + [((1, 0), each) for each in back])

    assert left_early({(0, 1): eager, (1, 0): back}, offsets) == {(0, 1)}


def test_traces_that_begin_at_different_moments_still_show_the_slow_rank() -> None:
    """What is before the first step of all ranks is left out."""
    job = replace(JOB, slow={6: 1.5})
    dice = random.Random(1)
    cut = []
    for trace in traces(job):
        calls = trace.communications[dice.randrange(5) :]
        first_ns = calls[0].begin_ns
        busy = tuple((max(begin, first_ns), end) for begin, end in trace.busy or () if end > first_ns)
        cut.append(replace(trace, communications=calls, busy=busy, steps=None))

    found = analyse(join(cut).graph)

    assert isinstance(found, WhatIf)
    assert {(cause.kind, cause.rank) for cause in found.causes} <= {(CauseKind.RANK, 6)}
    assert found.causes or found.unknown is UnknownReason.REPLAY_MISFIT


def test_stages_and_replicas_come_from_the_messages() -> None:
    """The first message between two ranks goes forward; a replica is what messages and groups of the model join."""
    graph = join(traces(SimulatedJob(dp=2, pp=4, tp=2))).graph

    assert [graph.stages[rank] for rank in range(16)] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert [graph.replicas[rank] for rank in range(4)] == [0, 0, 2, 2]
    assert graph.steps == SimulatedJob().steps


def without(rank: int) -> Callable[[list[RankTrace]], list[RankTrace]]:
    return lambda found: [trace for trace in found if trace.rank != rank]


def with_calls(kind: str) -> Callable[[list[RankTrace]], list[RankTrace]]:
    def changed(found: list[RankTrace]) -> list[RankTrace]:
        calls = [
            replace(call, kind=kind if call.kind == "all_reduce" else call.kind) for call in found[0].communications
        ]
        return [replace(found[0], communications=tuple(calls)), *found[1:]]

    return changed


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (without(3), Unjoinable.RANKS_ABSENT, "1 of 8 ranks have no trace: 3"),
        (lambda found: [*found, found[2]], Unjoinable.RANK_TWICE, "are both of rank 2"),
        (with_calls("all_gather"), Unjoinable.NOT_MATCHED, "called different collectives at one place"),
        (
            lambda found: [replace(found[0], communications=found[0].communications[:0]), *found[1:]],
            Unjoinable.NOT_MATCHED,
            "whose traces do not show it",
        ),
        (
            lambda found: [replace(each, communications=()) for each in found],
            Unjoinable.NO_COMMUNICATION,
            "no communication of two traced ranks",
        ),
    ],
)
def test_what_cannot_be_joined_is_one_typed_error(
    change: Callable[[list[RankTrace]], list[RankTrace]], code: Unjoinable, reason: str
) -> None:
    """The code is for programs, the reason names the ranks."""
    with pytest.raises(JoinError, match=reason) as caught:
        join(change(traces(JOB)))
    assert caught.value.code is code


def test_idle_time_in_which_nothing_was_awaited_is_the_rank_s_own() -> None:
    """A rank that pauses before it calls a collective is late by its own doing."""
    job = SimulatedJob(dp=2, pp=1, tp=1, noise=0.0)
    found = traces(job)
    graph = join([replace(trace, busy=((trace.busy or ())[0],)) for trace in found]).graph

    assert replay(graph, graph.durations).length_ns == pytest.approx(
        replay(join(found).graph, join(found).graph.durations).length_ns, rel=0.02
    )
