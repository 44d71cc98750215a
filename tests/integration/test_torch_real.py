"""Two real ranks of torch.distributed on gloo, metered in every way that there is: what they mark, and what they train."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from torch_ranks import Marks, listening, run_ranks

from timesyncd.client import Kind
from timesyncd.ipc.job_datagram import Mark
from timesyncd.jobs.missing_ranks import SIGNS

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("torch_child.py")
MS = 1_000_000


@dataclass
class Ran:
    """What each rank printed of each scene, and what was marked."""

    outputs: list[dict[str, Any]]
    marks: Marks

    def marked(self, job: str, rank: int = 0) -> list[Mark]:
        return self.marks.of[job, rank]

    def numbers(self, job: str, rank: int = 0) -> list[tuple[int, int, int, int]]:
        """Of all but the steps, and the signs of a rank that waits for another one on a busy machine."""
        others = {Kind.STEP, *SIGNS}
        return [(m.step, m.sync, m.kind, m.bytes) for m in self.marked(job, rank) if m.kind not in others]


@pytest.fixture(scope="module")
def ran() -> Iterator[Ran]:
    with listening() as (folder, marks):
        outputs = run_ranks(CHILD, ["--folder", str(folder)])
        marks.close()
        yield Ran(outputs, marks)


JOBS = [
    *(f"bits {name}" for name in ("plain", "bucket view", "batched copy", "static graph", "unused", "sparse")),
    *("hook fp16", "hook powerSGD", "accumulated", "adversaries", "compiled", "saved again", "twice"),
    *("called", "hooked", "sharded", "late"),
]  # fmt: skip


@pytest.mark.parametrize("job", JOBS)
def test_the_ranks_number_alike(ran: Ran, job: str) -> None:
    """Each synchronization has the same step, number, kind and size on both ranks, and none has a number twice."""
    assert ran.numbers(job) == ran.numbers(job, 1) != []
    assert len(set(ran.numbers(job))) == len(ran.numbers(job))


@pytest.mark.parametrize("job", JOBS)
def test_a_mark_s_moments_are_in_order(ran: Ran, job: str) -> None:
    """Ready, waiting, over; and a step's update comes after the last gradient."""
    for rank in (0, 1):
        assert all(m.arrival_ns <= m.begin_ns <= m.end_ns for m in ran.marked(job, rank))


@pytest.mark.parametrize("variant", ["plain", "bucket view", "batched copy", "static graph", "unused", "sparse"])
def test_the_meter_changes_no_bit(ran: Ran, variant: str) -> None:
    """After five steps the parameters are those of the same training without a meter, and no mark is lost."""
    for output in ran.outputs:
        assert output["bits"][variant] == {"same": True, "step": 5, "lost": 0}
    assert [m.step for m in ran.marked(f"bits {variant}") if m.kind == Kind.STEP] == [0, 1, 2, 3, 4]


def test_the_meter_changes_no_bit_of_three_ranks() -> None:
    """A third is no binary fraction: dividing and multiplying by its inverse differ, and the reducer does the latter."""
    with listening() as (folder, _):
        outputs = run_ranks(CHILD, ["--folder", str(folder), "--only", "bits"], world_size=3)

    assert {variant: facts["same"] for variant, facts in outputs[0]["bits"].items()} == dict.fromkeys(
        outputs[0]["bits"], True
    )


def test_a_bucket_waits_from_the_end_of_the_backward_pass_on(ran: Ran) -> None:
    """What lay before it was hidden behind the backward pass, which ends behind the last bucket; the step has that time."""
    for _, marks in groupby(ran.marked("bits plain"), key=lambda m: m.step):
        *buckets, step = marks
        assert [m.begin_ns for m in buckets] == [min(m.end_ns, step.begin_ns) for m in buckets]
        assert step.kind == Kind.STEP
        assert step.arrival_ns <= max(m.arrival_ns for m in buckets) <= step.begin_ns <= step.end_ns


def test_a_sparse_bucket_has_a_size(ran: Ran) -> None:
    """Indices and values: an embedding's gradient is a bucket of its own."""
    assert any(m.bytes and m.kind == Kind.BUCKET for m in ran.marked("bits sparse") if m.bytes % 40 == 0)


def test_the_user_s_own_hook_is_wrapped(ran: Ran) -> None:
    """The training is that of the hook alone; what a hook does with a bucket is not known, so its marks are of a kind of their own."""
    assert {m.kind for m in ran.marked("hook fp16")} == {Kind.HOOK, Kind.STEP}
    for output in ran.outputs:
        assert output["hooks"]["fp16"] == output["hooks"]["powerSGD"] == {"same": True, "lost": 0}


def test_a_hook_that_was_there_before_is_left_alone(ran: Ran) -> None:
    """The warning comes once and names the remedy; steps are metered all the same."""
    (message,) = ran.outputs[0]["hooks"]["registered before"]

    assert "give that hook to meter_ddp" in message
    assert {m.kind for m in ran.marked("registered before")} == {Kind.STEP}


def test_a_group_that_is_not_the_job_s_is_left_alone(ran: Ran) -> None:
    """Its ranks would never be complete at the hub: a warning names how to meter it."""
    (message,) = ran.outputs[0]["hooks"]["of another group"]

    assert "its group has 2 ranks and the job 8; give it a Job of its own" in message


def test_a_hook_s_own_error_goes_through(ran: Ran) -> None:
    """It comes out of backward as it does without a meter."""
    without, with_meter = ran.outputs[0]["hooks"]["raises"]

    assert without == with_meter == "mine"


def test_accumulation_reduces_once_a_step(ran: Ran) -> None:
    """Passes without synchronization mark nothing; the numbers are the script's own, the optimizer was found."""
    steps = defaultdict(list)
    for m in ran.marked("accumulated"):
        steps[m.step].append(m.kind)

    assert list(steps) == [10, 20, 30]
    assert steps[20] == steps[30] == [Kind.BUCKET] * 3 + [Kind.STEP]


@pytest.mark.parametrize("by_initial", ["True", "False"])
def test_uneven_inputs_train_as_without_a_meter(ran: Ran, by_initial: str) -> None:
    """A rank that has joined takes no steps; the other one's numbers go on, and neither waits for ever."""
    for rank, output in enumerate(ran.outputs):
        assert output["uneven"][by_initial] == {"same": True, "step": 4 + 3 * rank, "lost": 0}
    job = f"uneven {by_initial}"

    assert ran.numbers(job) == [number for number in ran.numbers(job, 1) if number[0] < 4]
    assert {m.step for m in ran.marked(job, 1)} == set(range(7))


def test_two_modules_of_one_job_count_together(ran: Ran) -> None:
    """A step has an update of each module; one that is updated twice as often has steps of its own in between."""
    assert ran.outputs[0]["adversaries"] == {"steps": [7, 7], "lost": 0}
    steps = defaultdict(list)
    for m in ran.marked("adversaries"):
        steps[m.step].append(m.kind)

    assert [kinds.count(Kind.BUCKET) for kinds in steps.values()] == [1, 3, 1, 3, 6, 3, 6]


def test_a_compiled_module_is_metered(ran: Ran) -> None:
    """Under torch.compile the reducer calls the hook all the same."""
    assert ran.outputs[0]["compiled"] == {"same": True, "lost": 0}
    assert [m.kind for m in ran.marked("compiled")] == [Kind.BUCKET, Kind.STEP] * 3


def test_a_metered_module_is_saved_and_copied(ran: Ran) -> None:
    """torch.save, deepcopy and pickle give the module without its meter, and it can be metered again."""
    assert ran.outputs[0]["saved"] == {"same": [True, True, True], "lost": 0}
    assert [m.kind for m in ran.marked("saved again")] == [Kind.BUCKET, Kind.STEP] * 2


def test_a_module_is_metered_after_a_close_again(ran: Ran) -> None:
    """What was trained in between is not there."""
    assert [m.step for m in ran.marked("twice") if m.kind == Kind.STEP] == [0, 1]


def test_collectives_are_metered_inside_the_context(ran: Ran) -> None:
    """Each once, though the context is open twice; not outside, not of another group, not one that raised."""
    marks = [(m.step, m.sync, Kind(m.kind)) for m in ran.marked("called")]

    assert marks == [
        (5, 0, Kind.ALL_REDUCE),
        (5, 1, Kind.BARRIER),
        (5, 2, Kind.ALL_GATHER),
        (5, 3, Kind.ALL_GATHER),
        (5, 0, Kind.STEP),
        (6, 0, Kind.BROADCAST),
    ]
    for output in ran.outputs:
        assert output["called"] == {"restored": True, "done": True, "objects": [0, 1], "lost": 0}


def test_an_asynchronous_collective_ends_with_its_wait(ran: Ran) -> None:
    """It is ready with the call; what the script did before `wait` hid it."""
    gathered = ran.marked("called")[2]

    assert gathered.begin_ns - gathered.arrival_ns >= 50 * MS


def test_a_hook_s_collectives_are_part_of_its_bucket(ran: Ran) -> None:
    """Only the script's own all-reduce is one, and no other takes a number."""
    assert [sync for step, sync, _, _ in ran.numbers("hooked") if step == 1] == [0, 1, 2, 3]
    assert [m.kind for m in ran.marked("hooked")].count(Kind.ALL_REDUCE) == 2
    assert ran.outputs[0]["hooked"] == {"lost": 0}


def test_fsdp2_is_metered(ran: Ran) -> None:
    """Each gather, before forward and before backward, and each scatter is marked once; once closed it marks nothing."""
    for output in ran.outputs:
        assert output["sharded"] == {"same": True, "lost": 0}
    kinds = [kind for step, _, kind, _ in ran.numbers("sharded") if step == 1]

    assert (kinds.count(Kind.ALL_GATHER), kinds.count(Kind.REDUCE_SCATTER), len(kinds)) == (8, 4, 12)
    assert [m.step for m in ran.marked("sharded") if m.kind == Kind.STEP] == [0, 1, 2]


def test_a_broken_meter_breaks_no_training(ran: Ran) -> None:
    """Each of its errors is a counted loss."""
    for output in ran.outputs:
        assert output["broken"] == {"same": True, "lost": True, "step": 3}


def test_the_late_rank_and_its_place_are_in_the_marks(ran: Ran) -> None:
    """50 ms inside rank 1's backward pass make its second bucket late, not its first; durations of the pass hide that."""
    arrivals = [{(m.step, m.sync): m.arrival_ns for m in ran.marked("late", rank)} for rank in (0, 1)]
    late_ns = {place: arrivals[1][place] - arrivals[0][place] for place in arrivals[0] if place[0] > 0}
    grown_ns = median(late_ns[step, 1] - late_ns[step, 0] for step in range(1, 8))

    assert grown_ns > 25 * MS


def test_the_end_of_a_metered_module_joins_no_thread_that_waits_for_it(tmp_path: Path) -> None:
    """torch 2.13's reducer, the last holder of a gloo group, hangs within some 200 such ends; a metered one is never the last."""
    (output,) = run_ranks(CHILD.with_name("torch_end_child.py"), [str(tmp_path)], world_size=1)

    assert output == {"ended": 600}


def test_a_process_ends_well_while_a_thread_gives_a_callback_back(tmp_path: Path) -> None:
    """The thread needs the GIL for that: Python would end it in its C++, which aborts a job that has done all its work."""
    assert run_ranks(CHILD.with_name("torch_exit_child.py"), [str(tmp_path)], world_size=1) == [{}]
