"""Which batches are of a job's run, and what is held of one whose ranks are not level."""

from __future__ import annotations

from dataclasses import replace

import pytest
from batches import MS, NOW, batch, mark

from timesyncd.clocks import NS_PER_S
from timesyncd.config import HubSettings
from timesyncd.hub.hub import Hub
from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.jobs import joining as jobs_module
from timesyncd.jobs import ranks
from timesyncd.jobs.joining import Jobs
from timesyncd.jobs.state import analyse
from timesyncd.messages.jobs import MarkBatch, VerdictCode


def test_a_late_batch_of_a_former_world_changes_nothing() -> None:
    """Two ranks instead of four: what rank 3 still sent of the former run is refused, and theirs are complete."""
    former = [batch(rank, mark(0), world_size=4).model_copy(update={"joined_ns": NS_PER_S}) for rank in range(4)]
    jobs = Jobs(100)
    for one in former:
        jobs.accept(one, NOW)
    for rank in range(2):
        again = batch(rank, mark(0), pid=90, sequence=2).model_copy(update={"joined_ns": 2 * NS_PER_S})
        jobs.accept(again, NOW)
    jobs.accept(former[3], NOW)
    jobs.advance(NOW)
    (job,) = jobs

    assert (job.run, job.world_size, sorted(job.ranks), job.complete, jobs.refused) == (1, 2, [0, 1], 1, 1)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_a_run_of_another_world_begins_with_the_first_rank_that_comes(before: int, after: int) -> None:
    """Its highest rank, which the former run may not have had, and in the same processes."""
    jobs = Jobs(100)
    for world_size, joined_ns in ((before, NS_PER_S), (after, 2 * NS_PER_S)):
        for rank in reversed(range(world_size)):
            one = batch(rank, mark(0), world_size=world_size, sequence=joined_ns)
            jobs.accept(one.model_copy(update={"joined_ns": joined_ns + rank}), NOW)
    jobs.advance(NOW)
    (job,) = jobs

    assert (job.run, job.world_size, len(job.ranks), job.complete, jobs.refused) == (1, after, after, 1, 0)


def test_step_marks_do_not_push_out_what_waits_for_a_slow_node() -> None:
    """One rank's batches are 300 steps behind the other's: all steps are complete in the end, and the window has as many as ever."""

    def marks(first: int) -> list[Mark]:
        return [
            one
            for step in range(first, first + 50)
            for one in (
                mark(step),
                replace(mark(step), kind=Kind.STEP, end_ns=mark(step + 1).arrival_ns),
            )
        ]

    jobs = Jobs(window_steps=100)
    for sequence in range(26):
        if sequence < 20:
            jobs.accept(batch(0, *marks(50 * sequence), sequence=sequence), NOW)
        if sequence >= 6:
            jobs.accept(batch(1, *marks(50 * (sequence - 6)), sequence=sequence), NOW)
        jobs.advance(NOW)
    (job,) = jobs

    assert (job.complete, job.incomplete, len(job.steps)) == (1000, 0, 100)
    assert [sync.step for sync in job.window if sync.comparison is not None] == list(range(900, 1000))


def batches_of_pairs(pairs: int, each: int) -> list[MarkBatch]:
    """From rank 0 to so many others, so many each, all of them received."""
    ways = [(peer, peer * each + n) for peer in range(1, pairs + 1) for n in range(each)]
    sent = [replace(mark(0, sync=number), kind=Kind.SEND) for _, number in ways]
    received = {peer: [one for (to, _), one in zip(ways, sent, strict=True) if to == peer] for peer, _ in ways}
    return [batch(0, *sent, world_size=pairs + 1)] + [
        batch(peer, *(replace(one, kind=Kind.RECEIVE) for one in marks), world_size=pairs + 1)
        for peer, marks in received.items()
    ]


def test_messages_and_delays_are_of_the_marks_that_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both count, the excess is dropped, and the most recent pairs stay."""
    monkeypatch.setattr(jobs_module, "MAX_MARKS", 100)
    published = batches_of_pairs(20, 5)
    jobs = Jobs(100)
    jobs.accept(published[0], NOW)
    (job,) = jobs
    waiting = job.size
    for one in published[1:]:
        jobs.accept(one, NOW)
    delays = job.size
    jobs.advance(NOW)

    assert (waiting, delays, job.size) == (100, 100, 50)
    assert list(job.flows.delays) == [(0, peer) for peer in range(11, 21)]
    assert analyse(job, {}).flows["delays"] != []


def test_messages_that_wait_are_dropped_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first."""
    jobs = Jobs(100)
    jobs.accept(batches_of_pairs(20, 5)[0], NOW)
    monkeypatch.setattr(jobs_module, "MAX_MARKS", 40)
    jobs.advance(NOW)
    (job,) = jobs

    assert [number for _, number in job.messages] == list(range(65, 105))


def test_delays_of_too_many_pairs_are_refused_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pairs keep their delays; a mark that is not measured is counted, so that the job's state shows it."""
    monkeypatch.setattr(ranks, "MAX_PAIRS", 3)
    jobs = Jobs(100)
    for one in batches_of_pairs(5, 2):
        jobs.accept(one, NOW)
    (job,) = jobs

    assert list(job.flows.delays) == [(0, 1), (0, 2), (0, 3)]
    assert job.refused == 2 * 2


def test_a_collective_that_a_rank_left_before_another_arrived_has_no_verdict() -> None:
    """Such marks are of no wait for all ranks: no clock is called stepped, and no rank late."""
    marks = [mark(0, offset_ns=0, duration_ns=5 * MS), mark(0, offset_ns=20 * MS, duration_ns=30 * MS)]
    hub = Hub(HubSettings(), "hub")
    for rank, one in enumerate(marks):
        hub.accept_marks(batch(rank, replace(one, kind=Kind.HOOK)), NOW)
    (found,) = hub.advance(NOW, 0).jobs

    assert (found.verdict_code, found.stragglers) == (VerdictCode.NO_WAIT_FOR_ALL_RANKS, [])
    assert found.verdict.startswith("inconclusive: a rank left before another arrived")


def test_a_round_too_short_for_what_waits_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs whose waiting marks exceed their shares, and that have no delays to drop: later rounds do the rest."""
    jobs = Jobs(100)
    for number in range(10):
        jobs.accept(batch(0, *(mark(step) for step in range(30)), job=f"job-{number}"), NOW)
    monkeypatch.setattr(jobs_module, "MAX_MARKS", 50)
    monkeypatch.setattr(jobs_module, "MAX_ROUND_MARKS", 20)
    waiting = []
    for _ in range(40):
        jobs.advance(NOW)
        waiting.append(sum(job.open_marks for job in jobs))

    assert waiting[0] > waiting[-1] == 50
