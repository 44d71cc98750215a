"""Joining the marks of a job's ranks."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from batches import MS, NOW, REAL_MINUS_BOOT, batch, mark
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.config import HubSettings
from timesyncd.hub.hub import Hub
from timesyncd.ipc.job_datagram import Kind, Mark, job_id, step_key
from timesyncd.jobs import joining as jobs_module
from timesyncd.jobs.joining import (
    JOB_BYTES,
    JOB_ENDS_AFTER_NS,
    MAX_BYTES,
    MAX_BYTES_OF_A_USER,
    MAX_OPEN_SYNCS,
    RANK_BYTES,
    JobRun,
    Jobs,
)
from timesyncd.jobs.ranks import MAX_RANKS, MAX_SETTINGS
from timesyncd.jobs.state import analyse
from timesyncd.messages.jobs import JobState, MarkBatch
from timesyncd.mqtt.topics import MAX_MESSAGE_BYTES


def joined(*batches: MarkBatch, window_steps: int = 100, at_ns: int = NOW) -> JobRun:
    """The one job after these batches and one round."""
    jobs = Jobs(window_steps)
    for one in batches:
        jobs.accept(one, NOW)
    jobs.advance(at_ns)
    (job,) = jobs
    return job


def test_marks_of_a_step_are_joined_in_any_order_of_senders() -> None:
    """Marks meet by uid, job, attempt, step and sync, from any node and in any batches."""
    job = joined(batch(0, mark(0), mark(1)), batch(1, mark(0, 5 * MS)), batch(1, mark(1, 3 * MS), sequence=2))

    assert [sync.step for sync in job.window] == [0, 1]
    assert [sync.comparison.last_rank for sync in job.window if sync.comparison] == [1, 1]
    assert (job.complete, job.incomplete, job.pending) == (2, 0, {})


@pytest.mark.parametrize("other", [{"uid": 1001}, {"job": "eval"}, {"attempt": 1}])
def test_another_uid_name_or_attempt_is_another_job(other: dict[str, int | str]) -> None:
    """Users cannot reach into each other's jobs, nor one attempt into the next."""
    jobs = Jobs(100)
    jobs.accept(batch(0, mark(0)), NOW)
    jobs.accept(batch(1, mark(0), **other), NOW)  # type: ignore[arg-type]
    jobs.advance(NOW)

    assert [job.complete for job in jobs] == [0, 0]
    assert len({job.id for job in jobs}) == 2


def test_an_incomplete_step_is_closed_after_ten_seconds() -> None:
    """A step that lacks a rank is waited for 10 s, then closed, counted, and compared with nothing."""
    jobs = Jobs(100)
    jobs.accept(batch(0, mark(0)), NOW)
    (job,) = jobs
    jobs.advance(NOW + 10 * NS_PER_S - 1)
    still_open = len(job.pending)
    jobs.advance(NOW + 10 * NS_PER_S)
    jobs.accept(batch(1, mark(0)), NOW + 10 * NS_PER_S)

    assert (still_open, job.incomplete, job.complete, job.pending) == (1, 1, 0, {})
    assert job.window[0].comparison is None


def test_a_job_ends_after_a_minute_of_silence() -> None:
    """Without a mark for 60 s the job is forgotten, and named as ended."""
    jobs = Jobs(100)
    jobs.accept(batch(0, mark(0)), NOW)

    assert jobs.advance(NOW + 60 * NS_PER_S - 1) == []
    assert [job.id for job in jobs.advance(NOW + 60 * NS_PER_S)] == [job_id(1000, "train", 0)]
    assert list(jobs) == []


@pytest.mark.parametrize(("change_ns", "compared"), [(2_000, True), (2_001, False), (-5 * MS, False)])
def test_a_batch_after_a_clock_step_is_inconclusive(change_ns: int, compared: bool) -> None:
    """When real_minus_boot changed since the rank's batch before, its marks may be of either side of the step."""
    stepped = REAL_MINUS_BOOT + change_ns
    job = joined(
        batch(0, mark(0), mark(1), mark(2)),
        batch(1, mark(0)),
        batch(1, mark(1), sequence=2, real_minus_boot_ns=stepped),
        batch(1, mark(2), sequence=3, real_minus_boot_ns=stepped),
    )

    assert [sync.comparison is not None for sync in job.window] == [True, compared, True]


def test_ranks_of_one_node_on_two_sides_of_a_step_do_not_compare() -> None:
    """One clock, read before and after it was set, is two clocks."""
    job = joined(
        batch(0, mark(0), node="a"),
        batch(1, mark(0), node="a", real_minus_boot_ns=REAL_MINUS_BOOT + NS_PER_S),
    )

    assert job.window[0].comparison is None


def test_gm_bounds_count_under_one_grandmaster_and_utc_bounds_otherwise() -> None:
    """Two half-widths add only against one reference; a rank without the common one makes the step inconclusive."""
    instant = mark(0, duration_ns=0)
    same = joined(batch(0, instant), batch(1, instant)).window[0].comparison
    other = batch(1, instant, grandmaster="gm-2", utc_bound_ns=500_000)
    by_utc = joined(batch(0, instant, utc_bound_ns=300_000), other).window[0].comparison
    without = joined(batch(0, instant), other).window[0].comparison

    assert same is not None and by_utc is not None
    assert (same.error_ns, by_utc.error_ns, without) == (201_000, 801_000, None)


def test_an_older_mark_in_a_batch_has_a_wider_error() -> None:
    """The bound was read after the batch's last mark; the slew may have narrowed it since an earlier one, at the batch's largest rate."""
    job = joined(batch(0, mark(0), mark(1)), batch(1, mark(0, 0), mark(1)))
    errors = [sync.arrivals[0].error_ns for sync in job.window]

    assert errors == [100_000 + 55_000, 100_000 + 5_000]


def test_the_window_holds_its_newest_steps() -> None:
    """The window is counted in steps that were seen, so sparse step numbers fill it too, and old marks do not come back."""
    steps = [mark(n * 16) for n in range(10)]
    job = joined(batch(0, *steps), batch(1, *steps), window_steps=4)
    job.accept(batch(0, mark(0), sequence=2), NOW)

    assert [sync.step for sync in job.window] == [96, 112, 128, 144]
    assert (job.pending, job.complete) == ({}, 10)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a job, jobs of a user: what is too much is closed early or refused, and counted."""
    monkeypatch.setattr(jobs_module, "MAX_MARKS", 8_000)
    monkeypatch.setattr(jobs_module, "MAX_BYTES_OF_A_USER", 64 * (JOB_BYTES + RANK_BYTES))
    jobs = Jobs(10_000)
    for first in range(0, 6_000, 500):
        jobs.accept(batch(0, *(mark(first + n) for n in range(500)), sequence=first + 1), NOW)
    (job,) = jobs
    opened = len(job.pending)
    jobs.advance(NOW + 10 * NS_PER_S)
    alone = job.size
    for number in range(64 + 5):
        jobs.accept(batch(0, mark(0), job=f"job-{number}"), NOW)
    jobs.accept(batch(0, mark(0), uid=1001), NOW)
    jobs.accept(batch(7, mark(0)), NOW)
    jobs.advance(NOW)

    assert opened == MAX_OPEN_SYNCS
    assert (alone, job.size) == (7_998, 60)
    assert len(list(jobs)) == 64 + 1
    assert jobs.refused == 7


def test_all_users_together_have_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of ever more users are refused once they fill the memory, and accepted again when others have ended."""
    monkeypatch.setattr(jobs_module, "MAX_BYTES", 3 * (JOB_BYTES + RANK_BYTES))
    monkeypatch.setattr(jobs_module, "MAX_BYTES_OF_A_USER", 3 * (JOB_BYTES + RANK_BYTES))
    jobs = Jobs(10)
    for uid in range(5):
        jobs.accept(batch(0, mark(0), uid=uid), NOW)
    full = len(jobs), jobs.refused, jobs.bytes
    jobs.advance(NOW + JOB_ENDS_AFTER_NS)
    jobs.accept(batch(0, mark(0), uid=7), NOW + JOB_ENDS_AFTER_NS)

    assert full == (3, 2, 3 * (JOB_BYTES + RANK_BYTES))
    assert (len(jobs), jobs.bytes) == (1, JOB_BYTES + RANK_BYTES)


def test_a_thousand_jobs_of_64_ranks_fit() -> None:
    """The size that one hub is for: 1,000 jobs of 64 ranks, of five users."""
    assert 1_000 * (JOB_BYTES + 64 * RANK_BYTES) <= MAX_BYTES
    assert 200 * (JOB_BYTES + 64 * RANK_BYTES) <= MAX_BYTES_OF_A_USER


def costliest_jobs(jobs_count: int, ranks: int) -> tuple[Hub, dict[str, JobState]]:
    """With the longest names and clocks that were set in every batch, parsed and analyzed as a hub does."""
    hub = Hub(HubSettings(), "hub")
    published: dict[str, JobState] = {}
    for number, rank, sequence in product(range(jobs_count), range(ranks), range(1, MAX_SETTINGS + 2)):
        set_to_ns = REAL_MINUS_BOOT + NS_PER_S * sequence
        job, uid = f"{number:0255d}", number % 8
        sent = batch(rank, job=job, sequence=sequence, uid=uid, world_size=ranks, real_minus_boot_ns=set_to_ns)
        hub.accept_marks(MarkBatch.model_validate_json(sent.model_dump_json()), NOW)
    for second in range(4):
        published |= {state.job_id: state for state in hub.advance(NOW + second * NS_PER_S, 0).jobs}
    return hub, published


@pytest.mark.parametrize(("jobs_count", "ranks"), [(60, 1), (3, 200)])
def test_a_job_and_a_rank_take_no_more_than_what_is_counted(jobs_count: int, ranks: int) -> None:
    """Also the costliest ones. The first time is not measured: Python's table of interned strings grows by megabytes."""
    costliest_jobs(jobs_count, ranks)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    hub, published = costliest_jobs(jobs_count, ranks)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    job = hub.job(job_id(0, f"{0:0255d}", 0))

    assert job is not None and len(job.ranks[0].settings) == MAX_SETTINGS
    assert len(published) == jobs_count
    assert taken <= jobs_count * (JOB_BYTES + ranks * RANK_BYTES)


def received_marks(jobs: Jobs, first: int, steps: int, ranks: int, world_size: int, syncs: int) -> int:
    """As the hub decodes them: no number is shared. Returns how many."""
    for step in range(first, first + steps):
        for rank in range(ranks):
            marks = (mark(step, 1_000 * rank + sync, sync=sync) for sync in range(syncs))
            sent = batch(rank, *marks, sequence=step + 1, world_size=world_size)
            jobs.accept(MarkBatch.model_validate_json(sent.model_dump_json()), NOW + step)
        jobs.advance(NOW + step)
    return steps * ranks * syncs


@pytest.mark.parametrize(
    ("ranks", "syncs", "waiting", "most"),
    [(8, 1, False, 580), (8, 4, False, 480), (1, 1, True, 950), (7, 4, True, 450)],
)
def test_a_mark_takes_no_more_than_is_stated(ranks: int, syncs: int, waiting: bool, most: int) -> None:
    """Of one that waits for a rank, too, whose batch has no other mark."""
    jobs = Jobs(10_000)
    world_size = ranks + waiting
    received_marks(jobs, 0, 3, ranks, world_size, syncs)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    count = received_marks(jobs, 3, 60, ranks, world_size, syncs)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    (job,) = jobs

    assert (job.open_marks > 0, job.refused) == (waiting, 0)
    assert taken <= most * count


def test_many_jobs_together_hold_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any round sees them, too; a user with one job still finds room for its share."""
    monkeypatch.setattr(jobs_module, "MAX_MARKS", 1_000)
    monkeypatch.setattr(jobs_module, "MAX_HELD", 1_500)
    jobs = Jobs(100)
    for number in range(100):
        jobs.accept(batch(0, *(mark(n) for n in range(100)), job=f"job-{number}", uid=1_001), NOW)
    held = sum(job.size for job in jobs)
    jobs.accept(batch(0, *(mark(n) for n in range(100))), NOW)
    honest = next(job for job in jobs if job.uid == 1_000)

    assert 1_500 <= held <= 1_500 + 1_000
    assert (honest.open_marks, honest.refused) == (100, 0)


@pytest.mark.parametrize("kind", [Kind.BUCKET, Kind.STEP, Kind.PULL, Kind.STALENESS, Kind.SEND, Kind.RECEIVE])
def test_no_kind_of_mark_fills_the_memory(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six thousand marks of one rank, of as many steps or all of one: the memory is limited, and refused marks are counted."""
    monkeypatch.setattr(jobs_module, "MAX_MARKS", 1_000)
    monkeypatch.setattr(jobs_module, "MAX_OPEN_MESSAGES", 500)
    for of_one_step in (True, False):
        jobs = Jobs(10_000)
        for first in range(0, 6_000, 500):
            numbers = range(first, first + 500)
            marks = [mark(0 if of_one_step else n, n, n + 1, sync=n) for n in numbers]
            published = [replace(one, kind=kind, bytes=n) for n, one in zip(numbers, marks, strict=True)]
            jobs.accept(batch(0, *published, sequence=first, world_size=1), NOW + first)
            jobs.advance(NOW + first)
        (job,) = jobs
        kept = len(job.messages) + len(job.flows.responses) + sum(map(len, job.flows.staleness.values()))

        assert job.size <= 2 * jobs_module.MAX_MARKS + 500
        assert kept <= 500 + 1_000
        assert analyse(job, {}) is not None


def test_the_state_of_the_largest_job_fits_a_message() -> None:
    """With every rank's numbers: a broker accepts only messages up to a size."""
    hub = Hub(HubSettings(), "hub")
    for step in range(2):
        for rank in range(MAX_RANKS):
            one = batch(
                rank, mark(step, rank * 1_000), node=f"trainer-{rank // 8:04}", world_size=MAX_RANKS, sequence=step
            )
            hub.accept_marks(one.model_copy(update={"joined_ns": 10**18 + rank}), NOW)
    (state,) = hub.advance(NOW, 0).jobs

    assert len(state.ranks) == MAX_RANKS
    assert len(state.model_dump_json()) < MAX_MESSAGE_BYTES


def test_what_a_rank_marks_twice_is_compared_with_nothing() -> None:
    """Two different marks of one rank for one synchronization are both left out; the same mark sent again counts once."""
    twice = joined(batch(0, mark(0)), batch(1, mark(0)), batch(1, mark(0, MS), sequence=2), at_ns=NOW + 10 * NS_PER_S)
    again = joined(batch(0, mark(0)), batch(1, mark(0)), batch(1, mark(0), sequence=2))

    assert (twice.repeated, twice.complete, list(twice.window[0].arrivals)) == (1, 0, [0])
    assert (again.repeated, again.complete) == (0, 1)


def test_a_repeated_mark_of_a_step_that_is_over_is_counted() -> None:
    """The step stays as it was."""
    job = joined(batch(0, mark(0)), batch(1, mark(0)))
    before = job.window
    job.accept(batch(1, mark(0, MS), sequence=2), NOW)
    job.accept(batch(1, mark(0), sequence=3), NOW)

    assert (job.repeated, job.window) == (1, before)


@pytest.mark.parametrize("steps", [50, 300])
def test_numbers_that_begin_again_are_a_new_run(steps: int) -> None:
    """In the same processes, without an epoch: once every rank has gone back the old window goes, whether it has forgotten those numbers or not."""
    jobs = Jobs(100)
    for rank in (0, 1):
        jobs.accept(batch(rank, *(mark(n) for n in range(steps))), NOW)
    jobs.advance(NOW)
    again = [mark(n, steps * 100 * MS, steps * 100 * MS + MS) for n in range(10)]
    jobs.accept(batch(0, *again[:5], sequence=2), NOW)
    (alone,) = jobs
    still = alone.run
    for rank in (1, 0):
        jobs.accept(batch(rank, *again, sequence=3), NOW)
    jobs.accept(batch(1, *again, sequence=4), NOW)
    jobs.advance(NOW)
    (job,) = jobs

    assert (still, job.run) == (0, 1)
    assert [sync.step for sync in job.window if sync.comparison] == list(range(10))


def test_one_rank_that_repeats_itself_restarts_nothing() -> None:
    """Late marks of one rank, or its wrong numbering, cost that rank its marks and no other rank the window."""
    jobs = Jobs(10)
    for rank in (0, 1):
        jobs.accept(batch(rank, *(mark(n) for n in range(100))), NOW)
    jobs.advance(NOW)
    for sequence in range(2, 9):
        jobs.accept(batch(0, mark(sequence), sequence=sequence), NOW)
        jobs.accept(batch(1, mark(98 + sequence), sequence=sequence), NOW)
    jobs.advance(NOW + 10 * NS_PER_S)
    (job,) = jobs

    assert (job.run, job.newest_step) == (0, 106)


def own(step: int, kind: Kind, begin_ns: int, end_ns: int, number: int = 0, bytes: int = 0) -> Mark:
    """A mark that is not joined over all ranks; times since the step's beginning."""
    return replace(mark(step, begin_ns, end_ns, number), kind=kind, bytes=bytes)


def test_messages_are_joined_in_pairs() -> None:
    """From the moment that one rank gave it to the transport until the other one had all of it, with both clocks' bounds."""
    job = joined(
        *(batch(0, own(n, Kind.SEND, 0, 0, 7), sequence=n) for n in range(3)),
        *(batch(1, own(n, Kind.RECEIVE, MS, 2 * MS, 7), sequence=n) for n in range(4)),
    )

    assert [(pair, [each.delay_ns for each in found]) for pair, found in job.flows.delays.items()] == [
        ((0, 1), [2 * MS] * 3)
    ]
    assert job.flows.delays[0, 1][0].error_ns == 100_000 + 100_000 + 500 + 1_000
    assert len(job.messages) == 1


def test_a_message_between_clocks_that_do_not_compare_has_no_delay() -> None:
    """Nor has a synchronization that a rank marked twice with different times."""
    unknown = joined(batch(0, own(0, Kind.SEND, 0, 0), gm_bound_ns=None), batch(1, own(0, Kind.RECEIVE, MS, MS)))
    twice = joined(batch(0, own(0, Kind.SEND, 0, 0), own(0, Kind.SEND, 1, 1)))

    assert (unknown.flows.delays, unknown.messages) == ({}, {})
    assert twice.repeated == 1


def test_a_rank_s_own_marks_need_no_other_rank() -> None:
    """Requests to a parameter server, staleness and steps count as they come."""
    job = joined(
        batch(
            0,
            replace(own(0, Kind.STEP, 0, 50 * MS), begin_ns=mark(0, 30 * MS).arrival_ns),
            own(0, Kind.PUSH, 10 * MS, 14 * MS),
            own(0, Kind.PULL, 12 * MS, 20 * MS),
            own(0, Kind.STALENESS, 0, 0, bytes=3),
        )
    )
    observed = analyse(job, {})

    assert sorted(job.flows.responses) == [4 * MS, 8 * MS]
    assert list(job.flows.staleness[0]) == [3]
    assert (observed.costs.window, observed.costs.step, observed.costs.epoch) == (0.2, 0.2, 0.2)
    assert observed.costs.comm_compute == 0.25
    assert observed.update_latency_p50_ns == 20 * MS


def test_the_epoch_s_overhead_counts_what_the_window_forgot() -> None:
    """Of the newest epoch alone."""
    marks = [own(step_key(epoch, n), Kind.STEP, 0, 100) for epoch in (0, 1) for n in range(8)]
    requests = [own(step_key(1, n), Kind.PULL, 0, 50 if n < 4 else 10) for n in range(8)]
    job = joined(batch(0, *marks, *requests, world_size=1), window_steps=4)
    observed = analyse(job, {}).costs

    assert (observed.window, observed.epoch) == (0.1, 0.3)


def test_a_job_that_restarts_is_not_mixed_with_its_past() -> None:
    """Other processes under the same name start at step 0: the old window goes, and the old processes' late marks too."""
    jobs = Jobs(100)
    for rank in (0, 1):
        jobs.accept(batch(rank, mark(500), sequence=5), NOW)
    jobs.advance(NOW)
    for rank in (0, 1):
        jobs.accept(batch(rank, mark(0), sequence=6, pid=77), NOW)
        jobs.accept(batch(rank, mark(501), sequence=4), NOW)
    jobs.advance(NOW)
    (job,) = jobs

    assert (job.run, job.complete, [sync.step for sync in job.window], job.pending) == (1, 1, [0], {})


@st.composite
def traffic(draw: st.DrawFn) -> list[MarkBatch]:
    """Three ranks on two nodes mark eight steps in batches of their own; clocks step, bounds and marks go missing."""
    batches = []
    for rank, node in ((0, "a"), (1, "a"), (2, "b")):
        marks = [mark(n, draw(st.integers(0, 9 * MS))) for n in range(8) if draw(st.integers(0, 9))]
        cuts = sorted(draw(st.lists(st.integers(0, len(marks)), max_size=4)))
        stepped_from = draw(st.integers(0, 10))
        for sequence, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(marks)], strict=True)):
            batches.append(
                batch(
                    rank,
                    *marks[first:last],
                    sequence=sequence,
                    node=node,
                    world_size=3,
                    real_minus_boot_ns=REAL_MINUS_BOOT + (sequence >= stepped_from) * NS_PER_S,
                    gm_bound_ns=draw(st.sampled_from([1_000, 1_000_000, None])),
                    lost=sequence,
                )
            )
    return batches


def outcome(batches: Sequence[MarkBatch]) -> JobState:
    hub = Hub(HubSettings(), "hub")
    for one in batches:
        hub.accept_marks(one, NOW)
    hub.advance(NOW, 0)
    return hub.advance(NOW + 10 * NS_PER_S, 0).jobs[0]


@given(traffic(), st.randoms(use_true_random=False))
def test_order_and_repetition_of_batches_change_nothing(batches: list[MarkBatch], shuffle: random.Random) -> None:
    """A broker may deliver in any order between nodes, and twice: the job's state is the same."""
    disordered = batches + batches[::2]
    shuffle.shuffle(disordered)

    assert outcome(disordered) == outcome(batches)


def test_a_job_with_more_ranks_than_a_state_holds_is_refused() -> None:
    """Invented ranks would fill the memory."""
    jobs = Jobs(100)
    jobs.accept(batch(0, mark(0), world_size=2**40), NOW)

    assert (list(jobs), jobs.refused) == ([], 1)


def test_a_step_of_which_marks_are_awaited_is_not_added_up_yet() -> None:
    """What was joined of it so far would pass for all that it cost."""
    jobs = Jobs(100)
    jobs.accept(batch(0, mark(0), own(0, Kind.STEP, 0, 100 * MS)), NOW)
    jobs.advance(NOW)
    (job,) = jobs
    awaited = analyse(job, {}).costs.window
    jobs.accept(batch(1, mark(0), own(0, Kind.STEP, 0, 100 * MS)), NOW)
    jobs.advance(NOW)

    assert (awaited, analyse(job, {}).costs.window) == (None, 0.1)


@pytest.mark.parametrize(("joined_ns", "runs"), [((5, 5), 0), ((5, 6), 1)])
def test_processes_without_a_pid_are_distinguished_by_when_they_joined(joined_ns: tuple[int, int], runs: int) -> None:
    """A rank in a process namespace that the daemon does not see has pid 0."""
    jobs = Jobs(100)
    for sequence, joined in enumerate(joined_ns):
        unseen = batch(0, mark(sequence), sequence=sequence).model_copy(update={"pid": 0, "joined_ns": joined})
        jobs.accept(unseen, NOW)

    assert [job.run for job in jobs] == [runs]


@pytest.mark.parametrize("slewed_ppb", [10_000, 83_000_000])
def test_a_clock_that_may_have_been_slewed_by_percents_accuses_no_rank(slewed_ppb: int) -> None:
    """
    chronyd slews by up to 8.3 %. The bound of a batch is that of its end; 60 ms before, the clock may have been 5 ms off.
    """
    batches = [
        batch(rank, mark(step, offset_ns=rank * 3 * MS, duration_ns=60 * MS), sequence=step + 1).model_copy(
            update={"past_growth_ppb": slewed_ppb}
        )
        for step in range(20)
        for rank in range(2)
    ]
    last = [sync.comparison.last_rank for sync in joined(*batches).window if sync.comparison]

    assert last == [1 if slewed_ppb == 10_000 else None] * 20
