"""Replayed steps: unchanged ones take their recorded time, changed ones the computed time."""

from __future__ import annotations

import random
import time
from itertools import zip_longest

import pytest
from audit_lab import MS, job, late, noisy
from hypothesis import given, settings
from hypothesis import strategies as st

from timesyncd.audit.remedies import RemedyGain, gains, overhead, pauses_of, replay, total_ns
from timesyncd.audit.timeline import runs
from timesyncd.jobs.recording import Recording


def by_name(recording: Recording, *stragglers: int) -> dict[str, RemedyGain]:
    return {gain.remedy.name: gain for gain in gains(runs(recording), stragglers)}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(2, 4),
    transfers_ms=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    marked=st.booleans(),
)
def test_unchanged_steps_take_their_recorded_time(seed: int, ranks: int, transfers_ms: list[int], marked: bool) -> None:
    """A replay gives every step's recorded length on every rank, to the nanosecond."""
    transfers = tuple(ms * MS for ms in transfers_ms)
    recording = job(6, ranks, noisy(seed, 3 * MS), transfers, marked=marked)

    (run,) = runs(recording)
    times = replay([run])

    for time_of_step, step in zip(times, run.steps, strict=True):
        for rank in range(ranks):
            mark = recording.step_mark(rank, step.key)
            if mark is not None:
                assert time_of_step.lengths_ns[rank] == mark.end_ns - mark.arrival_ns
    first, last = recording.syncs[0], recording.syncs[-len(transfers)]
    if not marked:
        for rank in range(ranks):
            took_ns = last.arrivals[rank].arrival_ns - first.arrivals[rank].arrival_ns
            assert sum(one.lengths_ns[rank] for one in times) == took_ns


def test_exposed_time_is_the_waiting_time() -> None:
    """10 ms of computing, 1 ms of transfer and 0.3 ms of update are 11.3 ms, of which 1 ms is exposed."""
    times = replay(runs(job(transfers_ns=(2 * MS, 1 * MS))))

    assert {one.lengths_ns for one in times} == {(11_300_000, 11_300_000)}
    assert overhead(times) == pytest.approx(1 / 11.3)


def test_without_its_straggler_a_job_runs_like_the_others() -> None:
    """Without a rank that computes 5 ms longer, each step takes 5 ms less."""
    gain = by_name(job(computing=late(1)), 1)["no_straggler"]

    assert gain.step_saved_ns == 5 * MS
    assert gain.gain == pytest.approx(5 / 16.3)


def test_a_hidden_straggler_gains_nothing() -> None:
    """A rank whose lateness a longer transfer hides costs nothing."""
    gain = by_name(job(computing=late(1, 1 * MS), transfers_ns=(20 * MS, 1 * MS)), 1)["no_straggler"]

    assert gain.step_saved_ns is not None
    assert 0 <= gain.step_saved_ns <= MS // 2 + 1


def test_without_a_straggler_the_remedy_does_not_apply() -> None:
    """The remedy has a reason instead of a gain."""
    gain = by_name(job())["no_straggler"]

    assert (gain.gain, gain.reason) == (None, "no rank is persistently late")


def test_local_steps_leave_out_the_synchronizations() -> None:
    """With H = 4 three of four steps lose their exposed millisecond."""
    gain = by_name(job(48))["local_steps_4"]

    assert gain.step_saved_ns == round(0.75 * MS)


def test_a_larger_batch_also_updates_less_often() -> None:
    """Twice the batch: every second step loses its exposed millisecond and its update of 0.3 ms."""
    gain = by_name(job(48))["larger_batch_2"]

    assert gain.step_saved_ns == round(0.5 * 1.3 * MS)


def test_a_phase_shift_removes_the_slow_transfers() -> None:
    """If another job doubles half of the transfers, a shift saves that time."""
    contended = [job(1, transfers_ns=(2 * MS, (2 if step % 2 else 1) * MS)) for step in range(2)]
    slow = contended[1].syncs[-1].arrivals[0]
    fast = contended[0].syncs[-1].arrivals[0]
    assert slow.end_ns - fast.end_ns == MS

    steady = by_name(job(48))["phase_shift"]

    assert steady.gain == pytest.approx(0, abs=1e-9)


def paused(period: int, ranks_apart: int) -> Recording:
    """Each rank pauses for 30 ms every `period` steps, the second `ranks_apart` steps after the first."""
    return job(60, computing=lambda rank, step: 10 * MS + (30 * MS if (step + rank * ranks_apart) % period == 5 else 0))


def test_pauses_at_the_same_instant_count_once() -> None:
    """Two ranks that each pause 30 ms at another step cost 60 ms a period; together they cost 30."""
    apart = by_name(paused(20, 7))["pauses_together"]

    assert apart.step_saved_ns == pytest.approx(30 * MS / 20, rel=0.05)


def test_pauses_that_are_together_already_gain_nothing() -> None:
    """Work that all ranks do in one step is no pause."""
    together = by_name(paused(20, 0))["pauses_together"]

    assert together.gain is None


@pytest.mark.parametrize("seed", range(10))
def test_pauses_are_paired_by_size(seed: int) -> None:
    """Garbage collection at random steps, on one rank more often: together a pair costs its longer pause, by arithmetic."""
    chance = random.Random(seed)
    at_steps = chance.sample(range(1, 119), 26)
    paused_ns = [{step: chance.choice((20, 60, 150)) * MS for step in at_steps[:16]}]
    paused_ns.append({step: chance.choice((20, 60, 150)) * MS for step in at_steps[16:]})
    recording = job(120, computing=lambda rank, step: 10 * MS + paused_ns[rank].get(step, 0), transfers_ns=(MS,))
    found = by_name(recording)

    apart_ns = sum(sum(each.values()) for each in paused_ns)
    in_order = [sorted(each.values(), reverse=True) for each in paused_ns]
    together_ns = sum(max(pair) for pair in zip_longest(*in_order, fillvalue=0))
    whole_ns = 120 * (11 * MS + 300_000) + apart_ns
    assert found["pauses_together"].gain == pytest.approx((apart_ns - together_ns) / whole_ns, abs=0.002)
    assert found["no_pauses"].gain == pytest.approx(apart_ns / whole_ns, abs=0.002)


def test_a_pause_beside_shorter_work_of_the_others_is_a_pause() -> None:
    """Rank 0 saves for 2 s every 20 steps; where rank 1 works 5 ms longer in the same step, only these 5 ms are common."""
    extra_ns = {(0, 20): 2_000 * MS, (1, 20): 5 * MS, (0, 40): 2_000 * MS}
    runs_of = runs(job(60, computing=lambda rank, step: 10 * MS + extra_ns.get((rank, step), 0)))

    assert [(pause.rank, pause.step, pause.ns) for pause in pauses_of(runs_of)] == [
        (0, 20, 1_995 * MS),
        (0, 40, 2_000 * MS),
    ]


def test_without_pauses_the_remaining_overhead_is_that_of_the_other_steps() -> None:
    """A rank that pauses 2 s in 4 of 100 steps: without that, a millisecond of 11.3 is exposed in every step."""
    recording = job(100, computing=lambda rank, step: 10 * MS + (2_000 * MS if rank == 0 and step % 20 == 19 else 0))

    assert by_name(recording)["no_pauses"].sync_overhead == pytest.approx(1 / 11.3, rel=0.01)
    assert by_name(job(100))["no_pauses"].gain is None


@pytest.mark.parametrize("shorter_ms", [0, 595])
def test_pauses_before_a_rare_barrier_cost_what_they_last(shorter_ms: int) -> None:
    """Rank 0 saves for 600 ms before a barrier every 20 steps, or every 40 and is soon there in the others: by arithmetic."""
    barriers_ns = {step: 600 * MS - (shorter_ms * MS if step % 40 == 19 else 0) for step in range(19, 240, 20)}
    recording = job(240, 3, noisy(), (2 * MS, MS), barriers_ns=barriers_ns)
    saves_ns = sum(ns for ns in barriers_ns.values() if ns == 600 * MS)
    found = by_name(recording)

    whole_ns = total_ns(replay(runs(recording)))
    assert found["no_pauses"].gain == pytest.approx(saves_ns / whole_ns, abs=0.01)
    assert found["slack_used"].gain == 0
    assert found["pauses_together"].reason == "only one rank pauses"


def waiting_for_rank_1(pause_ms: int) -> Recording:
    """Rank 0 waits 40 ms for rank 1 in every step, and pauses in every twentieth."""

    def computing(rank: int, step: int) -> int:
        return 50 * MS if rank == 1 else 10 * MS + (pause_ms * MS if step % 20 == 5 else 0)

    return job(60, computing=computing, transfers_ns=(MS,))


def test_a_pause_moves_into_a_wait_that_is_as_long() -> None:
    """A pause of 35 ms costs nothing where it is already hidden in a wait of 40, and one of 60 fits into none."""
    hidden, too_long = by_name(waiting_for_rank_1(35)), by_name(waiting_for_rank_1(60))

    assert hidden["slack_used"].step_saved_ns == 0
    assert too_long["slack_used"].step_saved_ns == pytest.approx(0, abs=MS // 20)


def test_an_exposed_pause_moves_into_a_wait() -> None:
    """A pause of 20 ms moves into a later step, in which the rank waits 30 ms."""

    def computing(rank: int, step: int) -> int:
        if rank == 1:
            return (10 if step % 5 in (0, 2) else 40) * MS
        return (10 + (20 if step % 20 == 5 else 0)) * MS

    gain = by_name(job(60, computing=computing, transfers_ns=(MS,)))["slack_used"]

    assert gain.step_saved_ns == 20 * MS // 20


def test_gains_are_in_order() -> None:
    """The largest gain is first, and remedies that do not apply are last."""
    found = gains(runs(job(48, computing=late(1))), [1])
    values = [gain.gain for gain in found]

    applying = [value for value in values if value is not None]
    assert applying == sorted(applying, reverse=True)
    assert values[len(applying) :] == [None] * (len(values) - len(applying))


def test_a_gap_splits_a_run() -> None:
    """A step without the marks of a rank is omitted, and the steps after it are another run."""
    found = runs(job(20, missing=frozenset({(1, 7)})))

    assert [[step.key for step in run.steps] for run in found] == [list(range(7)), list(range(8, 20))]


def test_the_work_grows_with_the_number_of_parts_alone() -> None:
    """Ten times the buckets take about ten times as long to replay, not a hundred times."""

    def counted(buckets: int) -> float:
        (run,) = runs(job(3, transfers_ns=(10_000,) * buckets))
        begun = time.process_time()
        replay([run])
        return time.process_time() - begun

    few = min(counted(200) for _ in range(3))
    assert counted(2_000) < 60 * max(few, 1e-3)


def test_nothing_recorded_gains_nothing() -> None:
    """No run, no remedy."""
    assert gains([], []) == []
    assert total_ns([]) == 0
    assert overhead([]) is None
