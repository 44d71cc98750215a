"""The hub works in the daemon's event loop: whatever is sent, one call does a limited amount of work, and later calls do the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from batches import MS, NOW, REAL_MINUS_BOOT, batch, mark

from timesyncd.clocks import NS_PER_S
from timesyncd.config import HubSettings
from timesyncd.hub import hub as hub_module
from timesyncd.hub.hub import Hub
from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.jobs import joining as jobs_module
from timesyncd.jobs import state as jobs_state
from timesyncd.jobs import window
from timesyncd.jobs.arrivals import Arrival, Sync
from timesyncd.jobs.joining import JobRun, Jobs
from timesyncd.jobs.ranks import MAX_SETTINGS
from timesyncd.jobs.state import analyse, analysed_syncs, window_page
from timesyncd.messages.jobs import MarkBatch


def both(marks: Iterable[Mark], **changes: int | str) -> list[MarkBatch]:
    """The same marks of both ranks of a job."""
    published = list(marks)
    return [batch(rank, *published).model_copy(update=changes) for rank in (0, 1)]


def accepted(*batches: MarkBatch) -> Jobs:
    jobs = Jobs(100)
    for one in batches:
        jobs.accept(one, NOW)
    return jobs


def test_a_round_joins_so_many_marks_and_the_next_ones_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost by it."""
    monkeypatch.setattr(jobs_module, "MAX_ROUND_MARKS", 10)
    jobs = accepted(*both(mark(n) for n in range(12)))
    (job,) = jobs
    joined = []
    for _ in range(3):
        jobs.advance(NOW)
        joined.append(job.complete)

    assert (joined, job.pending, len(job.window)) == ([5, 10, 12], {}, 12)


def test_no_job_s_joins_keep_another_s_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users share a round, and what one does not need another gets; where it is too short for a part each, they take turns."""
    monkeypatch.setattr(jobs_module, "MAX_ROUND_MARKS", 8)
    names = [(uid, f"job-{n}") for uid in (1, 2) for n in range(3)]
    jobs = accepted(*(one for uid, name in names for one in both((mark(n) for n in range(20)), uid=uid, job=name)))
    joined = []
    for _ in range(3):
        jobs.advance(NOW)
        joined.append(sum(job.complete for job in jobs))

    assert joined == [4, 8, 12]
    assert all(job.complete for job in jobs)


def test_what_one_job_does_not_need_of_a_round_another_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the round is free when one of two users does little."""
    monkeypatch.setattr(jobs_module, "MAX_ROUND_MARKS", 8)
    jobs = accepted(*both(mark(n) for n in range(20)), *both([mark(0)], uid=2))
    jobs.advance(NOW)

    assert [job.complete for job in jobs] == [3, 1]


def test_early_joins_and_waiting_messages_are_of_a_round_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open synchronizations are closed early so far as a round goes; what is awaited for too long goes as slowly."""
    monkeypatch.setattr(jobs_module, "MAX_ROUND_MARKS", 8)
    monkeypatch.setattr(jobs_module, "MAX_OPEN_SYNCS", 5)
    jobs = accepted(batch(2, world_size=3))
    jobs.advance(NOW)
    for rank in (0, 1):
        jobs.accept(batch(rank, *(mark(n) for n in range(5)), world_size=3), NOW)
    jobs.accept(batch(0, *(mark(n) for n in range(5, 15)), sequence=2, world_size=3), NOW)
    (job,) = jobs
    sent = [replace(mark(0, sync=n), kind=Kind.SEND) for n in range(30)]
    other = accepted(batch(0, *sent))
    other.advance(NOW + 10 * NS_PER_S)

    assert (job.incomplete, job.refused, len(job.pending)) == (4, 6, 5)
    assert [len(each.messages) for each in other] == [30 - 8]


def test_a_round_drops_so_many_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when another user comes, and a job's share is halved."""
    jobs = accepted(*both(mark(n) for n in range(50)))
    jobs.advance(NOW)
    (job,) = jobs
    monkeypatch.setattr(jobs_module, "MAX_MARKS", 40)
    monkeypatch.setattr(jobs_module, "MAX_ROUND_MARKS", 12)
    kept = []
    for _ in range(3):
        jobs.advance(NOW)
        kept.append(len(job.steps))

    assert kept == [47, 44, 41]


def test_what_waits_for_other_ranks_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """New synchronizations have half of the room; a late rank still finds some for its part, and no more than that."""
    monkeypatch.setattr(jobs_module, "MAX_OPEN_MARKS", 100)
    jobs = accepted(batch(0, mark(0)))
    jobs.advance(NOW)
    for rank in (0, 1):
        jobs.accept(batch(rank, *(mark(n) for n in range(1, 80)), sequence=2), NOW)
    (job,) = jobs
    opened, refused = job.open_marks, job.refused
    jobs.advance(NOW)

    assert (opened, refused) == (50 + 49, 30 + 30)
    assert job.complete == 49


def test_late_marks_find_no_room_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ranks that all wait for one more, so many marks are held."""
    monkeypatch.setattr(jobs_module, "MAX_OPEN_MARKS", 100)
    jobs = accepted(batch(0, world_size=5))
    jobs.advance(NOW)
    for rank in range(4):
        jobs.accept(batch(rank, *(mark(n) for n in range(50)), sequence=2, world_size=5), NOW)
    (job,) = jobs

    assert (job.open_marks, job.refused) == (100, 100)


def test_no_step_grows_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full step accepts no more marks, has no cost and is on no page, and refused marks are counted; the steps around it are whole."""
    monkeypatch.setattr(window, "MAX_STEP_MARKS", 20)
    steps = [replace(mark(n), kind=Kind.STEP, end_ns=mark(n + 1).arrival_ns) for n in range(3)]
    marks = [mark(1, sync=sync) for sync in range(12)]
    jobs = accepted(*both([mark(0), *marks, mark(2), *steps]))
    jobs.advance(NOW)
    (job,) = jobs
    jobs.accept(batch(0, mark(1, sync=50), sequence=2), NOW)

    assert job.steps.size <= 20 + 3 + 2 * 10
    assert job.refused == 2 * 6 + 1
    assert [cost.step for cost in job.steps.costs((), 100) if cost.ranks] == [0, 2]
    assert {sync.step for sync in window_page(job, 0, 100).syncs} == {0, 2}


def test_the_largest_job_s_steps_are_on_a_page() -> None:
    """Of all ranks ten synchronizations and their step, pushes or pulls."""
    job = JobRun(1000, "train", 0, 2_500, NOW, 100)
    arrivals = {rank: Arrival("clock", 0, 0, 0, 1, None) for rank in range(2_500)}
    for sync in range(10):
        job.steps.put_sync(Sync(0, sync, Kind.BUCKET, arrivals, None))
    for rank in range(1_900):
        job.steps.put_request(rank, 0, (0, 1))

    assert len(window_page(job, 0, 100).syncs) == 10


def test_an_analysis_reads_so_many_marks_of_the_newest_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large job the first places of more steps, not all of a few; and of each its barrier, of which a plan is made."""
    monkeypatch.setattr(jobs_state, "MAX_ANALYSED_MARKS", 60)
    monkeypatch.setattr(jobs_state, "STEPS_WANTED", 10)
    marks = [
        replace(mark(step, sync=sync), kind=Kind.BARRIER if sync == 9 else Kind.BUCKET)
        for step in range(20)
        for sync in range(10)
    ]
    jobs = accepted(*both(marks))
    jobs.advance(NOW)
    (job,) = jobs
    observed = [(sync.step, sync.sync) for sync in analysed_syncs(job)]

    assert observed == [(step, sync) for step in range(13, 20) for sync in (0, 1, 2, 9)]
    assert [sync.step for sync in analyse(job, {}).barriers] == list(range(13, 20))


def test_an_analysis_reads_the_newest_of_each_rank_s_staleness(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many of each."""
    monkeypatch.setattr(jobs_state, "MAX_ANALYSED_MARKS", 10)
    ages = [replace(mark(n), kind=Kind.STALENESS, bytes=20 - n) for n in range(20)]
    (job,) = accepted(*both(ages))

    assert analyse(job, {}).flows["staleness_max"] == 5


def test_costs_are_reckoned_of_the_newest_steps_first() -> None:
    """A step reckoned before is read at once, so that later looks see further back."""
    jobs = accepted(*both(mark(step, sync=sync) for step in range(20) for sync in range(10)))
    jobs.advance(NOW)
    (job,) = jobs
    first, second = ([cost.step for cost in job.steps.costs((), 64) if cost.ranks] for _ in range(2))

    assert first == [16 + 1, 18]
    assert second == [16, 17, 18]


def feed(hub: Hub, number: int) -> None:
    for job in ("a", "b", "c"):
        for rank in (0, 1):
            one = batch(rank, mark(number), sequence=number, job=job)
            hub.accept_marks(one.model_copy(update={"lost": number}), NOW)


def test_a_round_analyses_so_many_jobs_and_the_next_ones_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without an analysis has no state; any other has its last one."""
    monkeypatch.setattr(hub_module, "MAX_ANALYSED_MARKS", 1)
    hub = Hub(HubSettings(), "node-0", lambda: 0)
    feed(hub, 1)
    rounds = [[state.job for state in hub.advance(NOW + n * NS_PER_S, REAL_MINUS_BOOT).jobs] for n in range(3)]
    feed(hub, 2)
    states = hub.advance(NOW + 3 * NS_PER_S, REAL_MINUS_BOOT).jobs

    assert rounds == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert [state.step for state in states] == [2, 1, 1]


def test_figures_are_computed_once_an_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take long with many ranks: without new marks of a job nothing is computed again, and every kind of change counts."""
    made = []

    def figures(job: JobRun, view: jobs_state.JobAnalysis) -> dict[str, object]:
        made.append(job.name)
        return jobs_state.job_figures(job, view)

    monkeypatch.setattr(hub_module, "job_figures", figures)
    hub = Hub(HubSettings(), "node-0", lambda: 0)
    feed(hub, 1)
    for n in range(3):
        hub.advance(NOW + n * NS_PER_S, REAL_MINUS_BOOT)
    before = list(made)
    hub.accept_marks(batch(0, sequence=2, job="b").model_copy(update={"lost": 7}), NOW)
    states = hub.advance(NOW + 3 * NS_PER_S, REAL_MINUS_BOOT).jobs

    assert (before, made[3:]) == (["a", "b", "c"], ["b"])
    assert states[1].ranks[0].marks_lost == 7


@pytest.mark.parametrize(("step_ns", "kept"), [(1_000, 1), (MS, MAX_SETTINGS)])
def test_what_is_kept_of_a_rank_s_clock_has_an_end(step_ns: int, kept: int) -> None:
    """Readings that waver are one setting, and of a clock that is set all the time the newest settings are known."""
    published = [batch(0, sequence=n, real_minus_boot_ns=REAL_MINUS_BOOT + n % 2 * step_ns) for n in range(500)]
    (job,) = accepted(*published)

    assert len(job.ranks[0].settings) == kept
