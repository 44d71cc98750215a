"""Joining the marks of a job's ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from batches import MS, NOW, REAL_MINUS_BOOT, batch, mark
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.hub.hub import Hub
from timesyncd.hub.jobs import MAX_CLOSED_SYNCS, MAX_JOBS_OF_A_USER, MAX_OPEN_SYNCS, Job, Jobs
from timesyncd.job_messages import JobState, MarkBatch
from timesyncd.joblink import job_id
from timesyncd.sections import Hub as HubSettings


def joined(*batches: MarkBatch, window_steps: int = 100, at_ns: int = NOW) -> Job:
    """The one job after these batches and one round."""
    jobs = Jobs(window_steps)
    for one in batches:
        jobs.accept(one, NOW)
    jobs.advance(at_ns)
    (job,) = jobs
    return job


def test_marks_of_a_step_are_joined_whoever_sends_them() -> None:
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
    """The bound was read after the batch's last mark; a slew may have narrowed it since an earlier one, 500 ppm at most."""
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


def test_memory_is_bounded() -> None:
    """Steps of a job, jobs of a user: what is too much is closed early or refused, and counted."""
    jobs = Jobs(10_000)
    for first in range(0, MAX_CLOSED_SYNCS + 2 * MAX_OPEN_SYNCS, 500):
        jobs.accept(batch(0, *(mark(first + n) for n in range(500)), sequence=first + 1), NOW)
    (job,) = jobs
    opened = len(job.pending)
    jobs.advance(NOW)
    for number in range(MAX_JOBS_OF_A_USER + 5):
        jobs.accept(batch(0, mark(0), job=f"job-{number}"), NOW)
    jobs.accept(batch(0, mark(0), uid=1001), NOW)
    jobs.accept(batch(7, mark(0)), NOW)

    assert opened == MAX_OPEN_SYNCS
    assert len(job.window) == MAX_CLOSED_SYNCS
    assert len(list(jobs)) == MAX_JOBS_OF_A_USER + 1
    assert jobs.refused == 7


def test_a_job_that_begins_anew_is_not_mixed_with_its_past() -> None:
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


numbers = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, NOW, REAL_MINUS_BOOT, 2**62 - 1, 2**62, 2**63 - 1])


@given(st.lists(st.tuples(*[numbers] * 6), max_size=4), st.tuples(*[numbers] * 4), st.integers(-1, 3))
def test_no_numbers_in_a_batch_end_the_hub(
    marks: list[tuple[int, ...]], others: tuple[int, int, int, int], rank: int
) -> None:
    """Any local user may send any datagram: it is taken or refused, and the round after it gives states that can be sent."""
    names = ("step", "sync", "arrival_ns", "begin_ns", "end_ns", "bytes")
    said = [mark(0).model_copy(update=dict(zip(names, each, strict=True))) for each in marks]
    changes = dict(zip(("real_minus_boot_ns", "gm_bound_ns", "utc_bound_ns", "lost"), others, strict=True))
    hub = Hub(HubSettings(), "hub")
    for number in (0, 1):
        times = dict.fromkeys(("arrival_ns", "begin_ns", "end_ns"), number * (2**62 - 1))
        far = [mark(step).model_copy(update=times) for step in range(8)]
        whole = batch(number, *said, *far).model_copy(update=changes | {"rank": rank if number else 0})
        hub.accept_marks(MarkBatch.model_validate(whole.model_dump()), NOW)
    states = hub.advance(NOW + 11 * NS_PER_S, REAL_MINUS_BOOT + NOW).jobs

    assert all(JobState.model_validate_json(state.model_dump_json()) == state for state in states)


def test_a_job_of_more_ranks_than_anybody_can_be_told_of_is_refused() -> None:
    """Invented ranks would fill the memory."""
    jobs = Jobs(100)
    jobs.accept(batch(0, mark(0), world_size=2**40), NOW)

    assert (list(jobs), jobs.refused) == ([], 1)
