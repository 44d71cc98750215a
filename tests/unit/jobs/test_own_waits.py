"""A running job whose ranks synchronize in groups: what a hub states of it by the ranks' own times."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest
from batches import MS, REAL_MINUS_BOOT, batch

from timesyncd.audit.build import report
from timesyncd.audit.measured import measured
from timesyncd.audit.report import AuditReport
from timesyncd.ipc.job_datagram import Kind, Mark, OwnPart
from timesyncd.jobs.exposed import OwnWait, RankCost
from timesyncd.jobs.joining import JobRun, Jobs
from timesyncd.jobs.own_waits import OWN_PLACE, OwnComparison, compare_own
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.jobs.state import analyse, job_figures, window_page
from timesyncd.messages.jobs import VerdictCode

RANKS = 4
STEP_NS = 60 * MS


def own_ns(slow: Callable[[int, int], float], steps: int = 60, seed: int = 1) -> list[dict[int, int]]:
    """By step and rank: 10 ms, and what the rank takes longer."""
    chance = random.Random(seed)
    return [
        {rank: round(MS * (10 + slow(rank, step)) * (1 + chance.gauss(0, 0.02))) for rank in range(RANKS)}
        for step in range(steps)
    ]


def compared(slow: Callable[[int, int], float], works: tuple[int, ...] = (7, 7, 7, 7), seed: int = 1) -> OwnComparison:
    """The ranks end each step together: what is not their own time they waited."""
    steps = [
        (step, {rank: OwnWait(STEP_NS, STEP_NS - ns, works[rank]) for rank, ns in of_step.items()})
        for step, of_step in enumerate(own_ns(slow, seed=seed))
    ]
    found = compare_own(steps, RANKS)
    assert found is not None
    return found


def test_the_rank_that_takes_longer_is_named() -> None:
    """Rank 2 takes 30 ms longer; the others wait for it."""
    found = compared(lambda rank, step: 30 * (rank == 2))

    assert found.slow is not None
    assert (found.slow.rank, found.slow.where, found.slow.verdict) == (2, OWN_PLACE, "straggler")
    assert found.slow.lateness_p50_ns == pytest.approx(30 * MS, rel=0.1)
    assert found.slow.exposed_ns == pytest.approx(60 * 30 * MS, rel=0.1)
    assert (found.step, found.together, found.alone, found.unknown) == (59, (), (), ())


@pytest.mark.parametrize("works", [(7, 7, 7, 7), (7, 8, 7, 8)], ids=["one class", "two stages"])
def test_ranks_that_are_slow_together_are_not_named(works: tuple[int, ...]) -> None:
    """Ranks 2 and 3 take longer: a hub does not know whether they have more data. They are listed."""
    found = compared(lambda rank, step: 30 * (rank >= 2), works)

    assert (found.slow, found.together) == (None, (2, 3))


def test_with_a_rank_that_has_no_like_none_is_named() -> None:
    """Rank 3 does other work, and may have more data together with the slow rank 2."""
    found = compared(lambda rank, step: 30 * (rank == 2), (7, 7, 7, 9))

    assert (found.slow, found.alone) == (None, (3,))


def test_healthy_ranks_are_not_named() -> None:
    """Of 100 jobs with other noise none has a slow rank."""
    for seed in range(100):
        found = compared(lambda rank, step: 0.0, seed=seed)
        assert (found.slow, found.together) == (None, ())


def test_steps_of_other_work_are_not_compared() -> None:
    """Every third step is an evaluation of rank 1 alone, which is other work."""
    steps = [
        (
            step,
            {
                rank: OwnWait(
                    STEP_NS,
                    STEP_NS - ns * (3 if (rank, step % 3) == (1, 0) else 1),
                    8 if (rank, step % 3) == (1, 0) else 7,
                )
                for rank, ns in of_step.items()
            },
        )
        for step, of_step in enumerate(own_ns(lambda rank, step: 0.0))
    ]
    found = compare_own(steps, RANKS)

    assert found is not None
    assert (found.slow, found.compared_steps) == (None, 40)


def own_mark(rank: int, step: int, own: int, unknown: bool = False) -> Mark:
    begin_ns = REAL_MINUS_BOOT + step * STEP_NS
    end_ns = begin_ns + STEP_NS
    return Mark(step, 7, Kind.OWN_TIME, begin_ns, begin_ns + own, end_ns, int(unknown))


def step_mark(step: int) -> Mark:
    begin_ns = REAL_MINUS_BOOT + step * STEP_NS
    return Mark(step, 0, Kind.STEP, begin_ns, begin_ns, begin_ns + STEP_NS, 0)


def part_marks(step: int, own: int) -> list[Mark]:
    """3 ms in the optimizer, 1 ms in data loading, 3 ms in the forward pass, and the rest in the backward pass."""
    begin_ns = REAL_MINUS_BOOT + step * STEP_NS
    parts_ns = {OwnPart.DATA: MS, OwnPart.BACKWARD: own - 7 * MS, OwnPart.OPTIMIZER: 3 * MS}
    return [Mark(step, part, Kind.OWN_PART, begin_ns, begin_ns, begin_ns + ns, 0) for part, ns in parts_ns.items()]


def job_of(
    slow: Callable[[int, int], float], unknown: bool = False, steps: int = 60, with_parts: Collection[int] = ()
) -> JobRun:
    """`with_parts`: the ranks that state the parts of their steps."""
    jobs = Jobs(100)
    for step, of_step in enumerate(own_ns(slow, steps)):
        for rank, ns in of_step.items():
            parts = part_marks(step, ns) if rank in with_parts else []
            marks = *parts, own_mark(rank, step, ns, unknown), step_mark(step)
            jobs.accept(batch(rank, *marks, sequence=step + 1, world_size=RANKS), 0)
    jobs.advance(0)
    (job,) = jobs
    return job


def test_the_state_of_a_mesh_has_its_overhead_its_slow_rank_and_each_rank_s_waiting() -> None:
    """A hub knows no synchronization of all ranks, and states the cost that the ranks add up."""
    job = job_of(lambda rank, step: 30 * (rank == 2))
    figures = job_figures(job, analyse(job, {}))
    ranks = figures["ranks"]

    assert figures["sync_overhead"] == pytest.approx(1 - (3 * 10 + 40) / (4 * 60), rel=0.02)
    assert (figures["step"], figures["straggler_rank"], figures["method"]) == (59, 2, None)
    assert figures["verdict_code"] == VerdictCode.STRAGGLER
    assert str(figures["verdict"]).startswith("rank 2 (node-2) takes ")
    assert isinstance(ranks, list)
    assert [round(each.idle_share, 1) for each in ranks] == [0.8, 0.8, 0.3, 0.8]


def test_waits_that_are_not_known_make_the_overhead_unknown() -> None:
    """Calls without a mark: the state has no overhead, never 0, and gives the reason."""
    job = job_of(lambda rank, step: 30 * (rank == 2), unknown=True)
    figures = job_figures(job, analyse(job, {}))

    assert (figures["sync_overhead"], figures["straggler_rank"], figures["stragglers"]) == (None, None, [])
    assert figures["verdict_code"] == VerdictCode.CALLS_NOT_METERED
    assert "calls without a mark" in str(figures["verdict"])


def test_a_rank_whose_own_time_is_not_there_yet_has_no_cost() -> None:
    """Its step mark came in an earlier datagram; the others' costs count."""
    jobs = Jobs(100)
    jobs.accept(batch(0, own_mark(0, 5, 10 * MS), step_mark(5)), 0)
    jobs.accept(batch(1, step_mark(5)), 0)
    (job,) = jobs
    (cost,) = job.steps.costs((), 1_000)

    assert cost.ranks == {0: RankCost(STEP_NS - 10 * MS, STEP_NS)}


def test_own_times_of_a_flood_are_limited() -> None:
    """Repetitions and impossible times are left out; the first mark of a rank and step counts."""
    jobs = Jobs(100)
    backwards = Mark(5, 7, Kind.OWN_TIME, REAL_MINUS_BOOT + 10, REAL_MINUS_BOOT, REAL_MINUS_BOOT + 20, 0)
    jobs.accept(batch(0, *[own_mark(0, 5, each * MS) for each in range(10, 20)]), 0)
    jobs.accept(batch(1, backwards), 0)
    (job,) = jobs
    (record,) = job.steps

    assert record.own == {0: OwnWait(STEP_NS, STEP_NS - 10 * MS, 7)}
    assert job.steps.size == record.size == 2


def audited(job: JobRun) -> AuditReport:
    """The report of the job's window, as `timesyncd audit --job` gets it by HTTP."""
    page = window_page(job, 0, 1_000).model_dump_json()
    return report(measured(RecordingMessage.model_validate_json(page).recording()))


def test_the_audit_of_a_running_mesh_has_its_overhead_and_its_slow_rank() -> None:
    """By the window of a hub, which is also what is saved as recording.json. The remedies state why they have no gain."""
    found = audited(job_of(lambda rank, step: 30 * (rank == 2)))

    assert found.sync_overhead == pytest.approx(1 - (3 * 10 + 40) / (4 * 60), rel=0.02)
    assert [(each.rank, each.verdict, each.place) for each in found.stragglers] == [(2, "straggler", f"in {OWN_PLACE}")]
    assert [(each.cause, each.where) for each in found.sources] == [("undivided", "its groups and messages")]
    assert (found.unreduced_steps, found.stages) == (0, [])
    assert {each.gain for each in found.remedies} == {None}
    assert {each.reason for each in found.remedies} == {
        (
            "a hub has the sums of each rank's waits, and not which rank waited for which, so nothing can be replayed: the "
            "report of run-audit has the gains"
        )
    }
    assert "Rank 2 on node-2 is persistently late" in found.headline
    assert any("a hub has one mark a step of each" in note for note in found.notes)
    assert not any("comparable" in note for note in found.notes)


def test_the_state_of_a_mesh_has_the_place_of_its_slow_rank() -> None:
    """Rank 2 takes 30 ms longer in its backward pass, as its parts show."""
    job = job_of(lambda rank, step: 30 * (rank == 2), with_parts=range(RANKS))
    figures = job_figures(job, analyse(job, {}))
    stragglers = figures["stragglers"]

    assert isinstance(stragglers, list)
    assert [(each.place, each.place_reason) for each in stragglers] == [("in the backward pass", None)]
    assert "do the same work, in the backward pass, without all that each waited" in str(figures["verdict"])


@pytest.mark.parametrize("with_parts", [(), (0, 1, 3)], ids=["older ranks", "an older rank"])
def test_ranks_of_an_older_timesyncd_leave_the_place_unknown(with_parts: tuple[int, ...]) -> None:
    """The slow rank is named all the same, and the state has the reason."""
    job = job_of(lambda rank, step: 30 * (rank == 2), with_parts=with_parts)
    figures = job_figures(job, analyse(job, {}))
    stragglers = figures["stragglers"]
    found = audited(job)

    assert isinstance(stragglers, list)
    assert [(each.rank, each.place) for each in stragglers] == [(2, None)]
    assert stragglers[0].place_reason.startswith("the ranks do not state the parts of their steps")
    assert found.own_waits is not None
    assert (found.own_waits.place_unknown_code, found.stages) == ("no_parts", [])
    assert any("In which part of a step the rank is slow is unknown" in note for note in found.notes)


def test_the_audit_of_a_running_mesh_has_the_same_place_and_the_stages() -> None:
    """By the window of a hub, which has the parts: they and the waits add up to the step."""
    found = audited(job_of(lambda rank, step: 30 * (rank == 2), with_parts=range(RANKS)))

    assert [each.place for each in found.stragglers] == ["in the backward pass"]
    assert [(each.where, each.stage) for each in found.stages] == [
        ("data loading", "compute"),
        ("the forward pass and the rest of the loop", "compute"),
        ("the backward pass", "compute"),
        ("its groups and messages", "synchronize"),
        ("", "update"),
    ]
    assert sum(each.cost_ns for each in found.stages) == pytest.approx(STEP_NS, abs=10)
    assert [each.cost_ns for each in found.stages][:2] == [MS, 3 * MS]
    assert sum(each.share for each in found.stages) == pytest.approx(1)


def test_parts_that_come_after_the_own_time_or_twice_count_once() -> None:
    """Datagrams may change places; a part that this version does not know is dropped."""
    jobs = Jobs(100)
    begin_ns = REAL_MINUS_BOOT + 5 * STEP_NS
    unknown = Mark(5, 99, Kind.OWN_PART, begin_ns, begin_ns, begin_ns + MS, 0)
    backwards = Mark(5, 1, Kind.OWN_PART, begin_ns, begin_ns, begin_ns - MS, 0)
    jobs.accept(batch(0, unknown, backwards, own_mark(0, 5, 40 * MS), sequence=1), 0)
    jobs.accept(batch(0, *part_marks(5, 40 * MS), *part_marks(5, 50 * MS), sequence=2), 0)
    (job,) = jobs
    (record,) = job.steps

    assert record.own[0].parts_ns == {OwnPart.DATA: MS, OwnPart.BACKWARD: 33 * MS, OwnPart.OPTIMIZER: 3 * MS}
    assert job.steps.size == record.size == 5


def test_the_audit_of_a_running_mesh_gives_its_reasons() -> None:
    """Ranks that are slow together, and waits that are not known."""
    together = audited(job_of(lambda rank, step: 30 * (rank >= 2)))
    unknown = audited(job_of(lambda rank, step: 30 * (rank == 2), unknown=True))

    assert together.stragglers == []
    assert "the ranks 2, 3 are slow together, as with more data, so none is named" in together.headline
    assert (unknown.sync_overhead, unknown.stragglers) == (None, [])
    assert "is unknown: the ranks 0, 1, 2, 3 waited in calls that are not metered" in unknown.headline
