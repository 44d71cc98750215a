"""The steps of a job as torch's optimizers and modules mark them: numbered, kept, marked, and never in the way."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch_ranks import Marks, listening

from timesyncd.client import Job, Kind
from timesyncd.client import meter as meter_module
from timesyncd.client.torch import metered
from timesyncd.client.torch import steps as steps_module
from timesyncd.client.torch.metering import end_steps_with, watch_updates
from timesyncd.client.torch.stamps import HOST, DeviceStamps
from timesyncd.client.torch.steps import Record, Steps, steps_of
from timesyncd.ipc.job_datagram import Mark, step_key


class Rank:
    """A job of one rank, and what it marked."""

    def __init__(self, job: Job, marks: Marks) -> None:
        self.job = job
        self._marks = marks

    def marked(self) -> list[Mark]:
        """All, after the end of the job."""
        self.job.close()
        self._marks.close()
        return self._marks.of["job", 0]


@pytest.fixture
def rank() -> Iterator[Rank]:
    with listening() as (folder, marks):
        job = Job("job", rank=0, world_size=1, attempt=0, runtime_dir=folder)
        try:
            yield Rank(job, marks)
        finally:
            job.close()


def parameter() -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2)
    return made


def bucket(steps: Steps, bytes: int = 8) -> Record:
    """One that is ready and reduced."""
    record = Record(Kind.BUCKET, bytes, HOST)
    record.end = HOST.now()
    steps.keep(record)
    return record


def test_one_job_has_one_numbering(rank: Rank) -> None:
    """Whatever of it is metered counts its steps together: an update of each optimizer is one step."""
    optimizers = [torch.optim.SGD([parameter()], lr=0.1) for _ in range(2)]
    meters = [metered(rank.job, optimizer) for optimizer in optimizers]
    for _ in range(3):
        optimizers[0].step()
        optimizers[1].step()

    assert [meter.step for meter in meters] == [3, 3]
    assert [(m.step, m.sync, m.kind) for m in rank.marked()] == [(step, 0, Kind.STEP) for step in range(3)]


def test_an_optimizer_that_updates_again_ends_the_step_before(rank: Rank) -> None:
    """A critic is updated three times for each update of the generator: the step ends at its own last update, not at the next one."""
    critic, generator = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(2))
    meters = [metered(rank.job, optimizer) for optimizer in (critic, generator)]
    around_ns = []
    for which in (critic, generator, *(critic, critic, critic, generator) * 2, critic):
        before_ns = time.time_ns()
        which.step()
        around_ns.append((before_ns, time.time_ns()))
    for meter in meters:
        meter.close()
    marks = rank.marked()
    last = [around_ns[number] for number in (1, 2, 3, 5, 6, 7, 9, 10)]

    assert [(m.step, m.kind) for m in marks] == [(step, Kind.STEP) for step in range(8)]
    assert all(before <= mark.end_ns <= after for mark, (before, after) in zip(marks, last, strict=True))
    assert all(before.end_ns == after.arrival_ns for before, after in itertools.pairwise(marks))


def test_two_modules_of_one_optimizer_take_one_step(rank: Rank) -> None:
    """One update of an encoder and a decoder is one step, though each of them is metered."""
    modules = [torch.nn.Linear(2, 2) for _ in range(2)]
    optimizer = torch.optim.SGD([each for module in modules for each in module.parameters()], lr=0.1)
    steps = steps_of(rank.job)
    for module in modules:
        end_steps_with(steps, None, module.parameters())
    for _ in range(3):
        optimizer.step()

    assert steps.step == 3


@pytest.mark.parametrize(("beside", "expected"), [(0, 15), (2, 10)])
def test_a_script_that_goes_on_with_another_optimizer_still_ends_steps(rank: Rank, beside: int, expected: int) -> None:
    """It may keep the former one. An optimizer that updates twice beside the first one of each step ends none."""
    module = torch.nn.Linear(2, 2)
    first, other = (torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(2))
    steps = steps_of(rank.job)
    end_steps_with(steps, None, module.parameters())
    for _ in range(10):
        first.step()
        for _ in range(beside):
            other.step()
    for _ in range(0 if beside else 12):
        other.step()

    assert steps.step == expected


def test_a_step_starts_where_the_last_one_ended(rank: Rank) -> None:
    """There is no gap between two steps, unless the script calls `begin`."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    meter = metered(rank.job, optimizer)
    optimizer.step()
    optimizer.step()
    meter.begin()
    optimizer.step()
    first, second, third = rank.marked()

    assert first.arrival_ns <= first.begin_ns <= first.end_ns == second.arrival_ns
    assert second.end_ns < third.arrival_ns


def test_what_was_hidden_ends_with_the_last_bucket(rank: Rank) -> None:
    """A bucket's wait is what lies behind the readiness of the last one: all of it, a part, or nothing."""
    steps = steps_of(rank.job)
    records = [bucket(steps) for _ in range(3)]
    for record, end in zip(records, (90, 150, 200), strict=True):
        record.arrival, record.last, record.end = 50, 100, end
    records[2].arrival = 100
    steps.end()
    marks = [m for m in rank.marked() if m.kind == Kind.BUCKET]

    assert [(m.arrival_ns, m.begin_ns, m.end_ns) for m in marks] == [(50, 90, 90), (50, 100, 150), (100, 100, 200)]


def test_the_scripts_own_numbers_may_restart(rank: Rank) -> None:
    """They are used as they are set, and an epoch starts where they restart."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    meter = metered(rank.job, optimizer)
    for epoch in range(2):
        for step in range(3):
            meter.step = step
            optimizer.step()

    assert [m.step for m in rank.marked()] == [step_key(epoch, step) for epoch in range(2) for step in range(3)]


def test_without_an_optimizer_the_next_number_ends_a_step(rank: Rank) -> None:
    """A script that updates its parameters itself sets the step numbers."""
    steps = steps_of(rank.job)
    for number in (7, 8):
        steps.step = number
        bucket(steps)
    steps.step = 9

    assert [(m.step, m.kind) for m in rank.marked()] == [
        (7, Kind.BUCKET), (7, Kind.STEP), (8, Kind.BUCKET), (8, Kind.STEP),
    ]  # fmt: skip


def test_a_step_is_marked_behind_what_it_still_waits_for(rank: Rank) -> None:
    """A bucket may end after the update: the daemon receives its mark first, then the step's."""
    steps = steps_of(rank.job)
    late = Record(Kind.BUCKET, 8, HOST)
    steps.keep(late)
    steps.end()
    late.end = HOST.now()
    steps.end()

    assert [(m.step, m.kind) for m in rank.marked()] == [(0, Kind.BUCKET), (0, Kind.STEP), (1, Kind.STEP)]


def test_two_updates_under_one_number_are_one_step(rank: Rank) -> None:
    """The second one's buckets go on counting; the step is marked once."""
    steps = steps_of(rank.job)
    for _ in range(2):
        steps.step = 4
        bucket(steps)
        steps.end()

    assert [(m.step, m.sync, m.kind) for m in rank.marked()] == [
        (4, 0, Kind.BUCKET), (4, 0, Kind.STEP), (4, 1, Kind.BUCKET),
    ]  # fmt: skip


def test_an_error_within_is_a_lost_mark(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update that it follows goes through, and so do the next steps."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    meter = metered(rank.job, optimizer)

    def fails(self: Steps) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(Steps, "_end", fails)
        optimizer.step()
    optimizer.step()

    assert (meter.step, rank.job.meter.lost) == (2, 1)
    assert [m.step for m in rank.marked()] == [1]


def test_nothing_grows_where_no_step_ends(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for an end that does not come is given up, and counted."""
    monkeypatch.setattr(steps_module, "MAX_PENDING_MARKS", 10)
    steps = steps_of(rank.job)
    for _ in range(25):
        bucket(steps)
    steps.close()

    assert rank.job.meter.lost == 25
    assert rank.marked() == []


class Late:
    """An event that the device reaches on command."""

    def __init__(self) -> None:
        self.reached = False
        self.reached_ms = 0.0

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.reached

    def elapsed_time(self, end_event: Any, /) -> float:
        return float(end_event.reached_ms - self.reached_ms)


def test_a_device_s_marks_come_late_under_their_own_numbers(rank: Rank) -> None:
    """Three steps and an epoch later they still are of their step, and begin no epoch."""
    events: list[Late] = []

    def event() -> Late:
        events.append(Late())
        return events[-1]

    steps = steps_of(rank.job)
    steps.device = DeviceStamps(event, lambda: 1_000_000_000)
    for number in (0, 1, 2, 5, 0):
        steps.step = number
        record = Record(Kind.BUCKET, 8, steps.device)
        record.end = steps.device.now()
        steps.keep(record)
        steps.end()
    for count, each in enumerate(events):
        each.reached, each.reached_ms = True, float(count)
    steps.close()
    keys = [step_key(0, 0), step_key(0, 1), step_key(0, 2), step_key(0, 5), step_key(1, 0)]

    assert sorted({m.step for m in rank.marked()}) == keys
    assert rank.job.meter.lost == 0


def test_only_what_can_be_metered_is_taken(rank: Rank) -> None:
    """The TypeError is one line."""
    with pytest.raises(TypeError, match="Linear cannot be metered: give a DistributedDataParallel"):
        metered(rank.job, torch.nn.Linear(1, 1))


def test_an_optimizer_around_another_is_seen_through(rank: Rank) -> None:
    """accelerate's has no hooks of its own: the one within has, and is the one that updates."""

    class Around(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    around = Around(torch.optim.SGD([parameter()], lr=0.1))
    within = around.optimizer
    meter = metered(rank.job, around)
    within.step()

    assert meter.step == 1


def test_a_closed_meter_leaves_the_optimizer_alone(rank: Rank) -> None:
    """After it the steps are not counted any more."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    meter = metered(rank.job, optimizer)
    optimizer.step()
    meter.close()
    meter.close()
    optimizer.step()

    assert meter.step == 1
    assert len(rank.marked()) == 1


def test_a_module_that_is_gone_ends_no_steps(rank: Rank) -> None:
    """Ids are used again: eight models one after the other take one step for each update, and the last leaves nothing behind."""
    steps = steps_of(rank.job)
    for _ in range(8):
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        end_steps_with(steps, None, model.parameters())
        for _ in range(10):
            optimizer.step()
        del model, optimizer
    torch.optim.SGD([parameter()], lr=0.1).step()

    assert (steps.step, steps.ending_optimizers) == (80, 0)


def test_a_meter_may_begin_and_end_in_an_update(rank: Rank) -> None:
    """torch goes through its hooks just then; the update that is seen goes through."""
    steps = steps_of(rank.job)
    parameters = [parameter()]
    undoing: list[Callable[[], None]] = []

    def updated(optimizer: torch.optim.Optimizer) -> None:
        while undoing:
            undoing.pop()()
        undoing.append(end_steps_with(steps, None, parameters))

    stop = watch_updates(updated)
    other = register_optimizer_step_post_hook(lambda *_: None)
    try:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(3):
            optimizer.step()
    finally:
        stop()
        other.remove()
        undoing.pop()()

    assert steps.ending_optimizers == 0


def test_numbered_collectives_alone_make_steps_too(rank: Rank) -> None:
    """The next number ends the step of what was numbered under the one before, unless an optimizer ends the steps."""
    steps = steps_of(rank.job)
    for number in (3, 4, 5):
        steps.step = number
        steps.number(Record(Kind.ALL_REDUCE, 8, HOST))
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    undo = end_steps_with(steps, optimizer)
    for number in (6, 7):
        steps.step = number
        optimizer.step()
        steps.number(Record(Kind.ALL_REDUCE, 8, HOST))
    steps.step = 20
    undo()

    assert [m.step for m in rank.marked() if m.kind == Kind.STEP] == [3, 4, 6, 7]


def test_the_work_for_marks_is_own_overhead(rank: Rank) -> None:
    """What lies within other work is counted once, and of what takes long 50 us."""
    steps, meter = steps_of(rank.job), rank.job.meter
    own_ns = meter.own_overhead_ns
    with steps.safely, steps.safely:
        time.sleep(0.001)

    assert meter.own_overhead_ns - own_ns == 50_000


def test_an_update_s_own_work_is_own_overhead(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a step counts, not its marks alone."""
    meter = rank.job.meter
    monkeypatch.setattr(meter, "mark_at", lambda *_: time.sleep(0.001))
    steps_of(rank.job).end()

    assert meter.own_overhead_ns >= 50_000


def test_a_device_of_another_kind_is_named_and_not_timestamped(rank: Rank) -> None:
    """One warning names it; its collectives and steps count as lost, since the host's clock says nothing of its queue."""
    steps = steps_of(rank.job)

    def run() -> None:
        for _ in range(3):
            with steps.safely:
                Record(Kind.ALL_REDUCE, 8, steps.stamps_for(torch.empty(2, device="meta")))
            steps.end()
        steps.close()

    with pytest.warns(UserWarning, match="knows no timestamps of META devices") as warned:
        run()

    assert len(warned) == 1
    assert rank.job.meter.lost == 6
    assert rank.marked() == []


def test_a_mark_waits_for_all_its_times(rank: Rank) -> None:
    """Of a gather of FSDP2 the compute stream may reach its wait after the gather has ended in another stream."""
    events: list[Late] = []

    def event() -> Late:
        events.append(Late())
        return events[-1]

    steps = steps_of(rank.job)
    steps.device = DeviceStamps(event, lambda: 1_000_000_000)
    record = Record(Kind.ALL_GATHER, 8, steps.device)
    record.begin = steps.device.now()
    record.end = steps.device.now()
    steps.number(record)
    anchor, arrival, begin, end = events
    for each in (anchor, arrival, end):
        each.reached = True
    steps.complete(record)
    before = (len(steps._pending), rank.job.meter.lost)
    begin.reached = True
    steps.close()

    assert before == (1, 0)
    assert rank.job.meter.lost == 0
    assert [mark.kind for mark in rank.marked()] == [Kind.ALL_GATHER]


def test_the_error_of_a_device_s_stamps_widens_the_clock_s_bound(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the datagram that has the marks, and in no later one."""
    now_ns = 1_000_000_000
    monkeypatch.setattr("timesyncd.client.job.half_width_ns", lambda interval: 1_000)
    events: list[Late] = []

    def event() -> Late:
        events.append(Late())
        events[-1].reached = True
        return events[-1]

    def realtime_ns() -> int:
        nonlocal now_ns
        now_ns += 4_000
        return now_ns

    steps = steps_of(rank.job)
    steps.device = device = DeviceStamps(event, realtime_ns)
    record = Record(Kind.ALL_GATHER, 8, device)
    record.end = device.now()
    steps.number(record)
    times_ns = record.times_ns()
    error_ns, device.largest_error_ns = device.largest_error_ns, 0
    rank.job.meter.announce()
    steps.complete(record)
    with_marks, after = rank.job._header(0, 0), rank.job._header(0, 0)

    assert times_ns is not None
    assert error_ns >= 2_000
    assert (with_marks.gm_bound_ns, after.gm_bound_ns) == (1_000 + error_ns, 1_000)


class UnreachedStamps(DeviceStamps):
    """Of a device that does not come to the end of its queue; `ahead` is what its driver says."""

    def __init__(self) -> None:
        self.ahead = True

    def now(self) -> Any:
        return object()

    def reached(self, stamp: Any) -> bool:
        return not self.ahead

    def read(self, stamp: Any) -> int:
        return 1_700_000_000_000_000_000

    def is_ahead(self, stamp: Any) -> bool:
        return self.ahead


def test_a_rank_is_inside_a_bucket_until_its_device_is_through(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host goes on long before: it leaves when the device reaches the end, as the driver or the marks show."""
    stamps, steps = UnreachedStamps(), steps_of(rank.job)
    arrivals = rank.job.meter._arrivals
    records = [Record(Kind.BUCKET, 8, stamps) for _ in range(2)]
    for record in records:
        steps.arrive(record)
        record.end = stamps.now()
        record.leave_at_end()
        steps.number(record)
        steps.complete(record)
    monkeypatch.setattr(meter_module, "ARRIVAL_AFTER_NS", 0)
    rank.job.meter.report_presence()

    assert [each.is_known for each in arrivals.values()] == [True, True]
    stamps.ahead = False
    records[0].leave()
    steps.close()
    assert arrivals == {}


def test_a_lost_record_leaves(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose marks are lost is not said to wait for ever. Where a stamp failed, nothing is known."""
    monkeypatch.setattr(steps_module, "MAX_PENDING_MARKS", 1)
    steps = steps_of(rank.job)
    for _ in range(3):
        record = Record(Kind.BUCKET, 8, UnreachedStamps())
        steps.arrive(record)
        record.leave_at_end()
        steps.keep(record)
    assert [each.is_known for each in rank.job.meter._arrivals.values()] == [False]
    steps.close()

    assert rank.job.meter._arrivals == {}


class Outer(torch.optim.SGD):
    """As ZeRO: its step is that of a local optimizer, and what it does after that."""

    def __init__(self, parameters: list[torch.nn.Parameter], fails: bool = False) -> None:
        super().__init__(parameters, lr=0.1)
        self.local = torch.optim.SGD(parameters, lr=0.1)
        self.fails = fails

    def step(self, closure: Any = None) -> Any:
        self.local.step()
        if self.fails:
            raise RuntimeError("the broadcast fails")


def test_an_optimizer_that_failed_hides_no_other_one() -> None:
    """A script may go on with a new optimizer after an error in a step, and the failed one's memory is free."""
    parameters = [torch.nn.Parameter(torch.ones(1))]
    parameters[0].grad = torch.ones(1)
    updated: list[torch.optim.Optimizer] = []
    stop = watch_updates(updated.append)
    failed, other = Outer(parameters, fails=True), torch.optim.SGD(parameters, lr=0.1)
    try:
        with pytest.raises(RuntimeError, match="the broadcast fails"):
            failed.step()
        other.step()
    finally:
        stop()
    gone = weakref.ref(failed)
    del failed
    gc.collect()

    assert updated == [other]
    assert gone() is None


def test_an_optimizer_inside_another_one_s_step_is_a_part_of_it() -> None:
    """The outer one's update counts, once; also after a step that an error ended."""
    parameters = [torch.nn.Parameter(torch.ones(1))]
    parameters[0].grad = torch.ones(1)
    updated: list[torch.optim.Optimizer] = []
    stop = watch_updates(updated.append)
    outer, other = Outer(parameters), torch.optim.SGD(parameters, lr=0.1)
    try:
        outer.step()
        other.step()
        outer.fails = True
        with pytest.raises(RuntimeError, match="the broadcast fails"):
            outer.step()
        outer.fails = False
        outer.step()
        other.step()
    finally:
        stop()

    assert updated == [outer, other, outer, other]
