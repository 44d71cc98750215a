"""The wrappers around torch.distributed's collectives: there while a context is open, and gone without a trace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import listening

from timesyncd.client import Job, Kind
from timesyncd.client.torch import all_reduce, meter_collectives
from timesyncd.client.torch.collectives import COLLECTIVE_KINDS, TimedWork
from timesyncd.client.torch.stamps import DeviceStamps
from timesyncd.client.torch.steps import Steps, steps_of


@pytest.fixture
def job() -> Iterator[Job]:
    with listening() as (folder, _):
        made = Job("job", rank=0, world_size=1, attempt=0, runtime_dir=folder)
        yield made
        made.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def names() -> dict[str, Any]:
    return {name: getattr(dist, name) for name in COLLECTIVE_KINDS if hasattr(dist, name)}


def test_every_name_is_restored(job: Job) -> None:
    """Also by an error inside, and only by the last of the contexts that are open."""
    before = names()
    with pytest.raises(ValueError, match="mine"), meter_collectives(job):
        with meter_collectives(job):
            pass
        inside = names()
        raise ValueError("mine")

    assert names() == before
    assert all(inside[name] is not before[name] for name in before)


def test_contexts_of_many_threads_restore_what_was_there(job: Job) -> None:
    """However they overlap."""
    before = names()

    def open_and_close() -> None:
        for _ in range(50):
            with meter_collectives(job):
                pass

    threads = [threading.Thread(target=open_and_close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert names() == before


def test_what_another_put_over_ours_stays(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not ours to take away; what we had put beneath it passes on, and meters again in the next context."""
    seen = []
    monkeypatch.setattr(dist, "broadcast", lambda *args, **kwargs: seen.append("original"))
    with meter_collectives(job):
        ours = dist.broadcast

        def theirs(*args: Any, **kwargs: Any) -> Any:
            seen.append("theirs")
            return ours(*args, **kwargs)

        dist.broadcast = theirs
    dist.broadcast(torch.ones(1), 0)

    assert dist.broadcast is theirs
    assert seen == ["theirs", "original"]


def test_without_a_group_torch_s_own_error_comes(job: Job) -> None:
    """torch raises its own error, and a mark counts as lost."""
    with meter_collectives(job), pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.all_reduce(torch.ones(1))

    assert job.meter.lost == 1


@pytest.mark.usefixtures("group")
def test_a_handle_is_the_work_in_every_respect(job: Job) -> None:
    """It can do what the work can, also what a later torch adds to it is not hidden by an inherited method that does nothing."""
    tensor = torch.ones(3)
    with meter_collectives(job):
        work = dist.all_reduce(tensor, async_op=True)
        assert isinstance(work, TimedWork)
        future = work.get_future()
        work.wait()
        work.wait()

    assert work.is_completed()
    assert future.wait()[0] is not None
    own = {name for name in vars(dist.Work) if not name.startswith("__")} - {
        "_pybind11_conduit_v1_",
        "unbox",
    }  # of no one work
    assert own <= set(vars(TimedWork))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("keeper", ["join", "registered"])
def test_a_handle_that_torch_keeps_completes(job: Job, keeper: str) -> None:
    """C++ waits for it when Python has dropped it: DDP within Join in its backward pass, and a functional collective."""
    ended = threading.Event()

    def train() -> None:
        with meter_collectives(job):
            if keeper == "join":
                module = DistributedDataParallel(torch.nn.Linear(2, 1))
                with Join([module], divide_by_initial_world_size=False):
                    module(torch.ones(1, 2)).sum().backward()
            else:
                tensor = torch.ones(1)
                work = dist.all_reduce(tensor, async_op=True)
                assert work is not None
                torch._C._distributed_c10d._register_work(tensor, work)
                del work
                torch.ops._c10d_functional.wait_tensor(tensor)
        ended.set()

    threading.Thread(target=train, daemon=True).start()

    assert ended.wait(60)


@pytest.mark.usefixtures("group")
def test_a_collective_without_a_wait_makes_no_mark() -> None:
    """An empty tensor is not sent, and inside torch's coalescing manager a call is only queued."""
    with listening() as (folder, marks):
        job = Job("job", rank=0, world_size=1, attempt=0, runtime_dir=folder)
        with meter_collectives(job):
            dist.all_reduce(torch.ones(0))
            with distributed_c10d._coalescing_manager():
                for _ in range(2):
                    dist.all_reduce(torch.ones(2))
            dist.all_reduce(torch.ones(1))
        all_reduce(job, 0, torch.ones(0))
        all_reduce(job, 0, torch.ones(3))
        job.close()
        marks.close()

    assert [(m.sync, m.bytes) for m in marks.of["job", 0]] == [(1, 4), (3, 12)]
    assert job.meter.lost == 0


@pytest.mark.usefixtures("group")
def test_what_only_some_ranks_have_nothing_for_is_a_mark_on_all() -> None:
    """A rank may have no rows for an all-to-all, or an empty tensor as its object: it takes part, and the others wait for it."""
    with listening() as (folder, marks):
        job = Job("job", rank=0, world_size=1, attempt=0, runtime_dir=folder)
        with meter_collectives(job):
            dist.all_to_all_single(torch.ones(0), torch.ones(0))
            dist.all_gather_object([None], torch.ones(0))
        job.close()
        marks.close()

    assert [(m.kind, m.bytes) for m in marks.of["job", 0]] == [(Kind.ALL_TO_ALL, 0), (Kind.ALL_GATHER, 0)]


@pytest.mark.usefixtures("group")
def test_nothing_is_recorded_while_a_cuda_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking an event would invalidate the capture: the marks are lost instead, and training goes on."""
    with listening() as (folder, _):
        job = Job("job", rank=0, world_size=1, attempt=0, runtime_dir=folder)
        steps = steps_of(job)
        steps.device = DeviceStamps(lambda: pytest.fail("an event"))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.warns(UserWarning, match="a CUDA graph is being captured"):
            steps.end()
        job.close()

    assert (steps.step, job.meter.lost) == (1, 1)


@pytest.mark.usefixtures("group")
def test_an_all_reduce_on_a_device_has_the_device_s_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call returns long before: the mark is made when the device has reached its end."""
    reached_ms: list[float] = []

    class Event:
        def record(self) -> None:
            self.number = len(events)
            events.append(self)

        def query(self) -> bool:
            return self.number < len(reached_ms)

        def elapsed_time(self, end_event: Any, /) -> float:
            return float(reached_ms[end_event.number] - reached_ms[self.number])

    events: list[Event] = []
    with listening() as (folder, marks):
        job = Job("job", rank=0, world_size=1, attempt=0, runtime_dir=folder)
        device = DeviceStamps(Event, lambda: 1_000_000_000)
        monkeypatch.setattr(Steps, "stamps_for", lambda steps, tensor: device)
        all_reduce(job, 4, torch.ones(1))
        reached_ms += [0.0, 1.0, 6.0]  # the anchor, ready, reduced
        steps_of(job).close()
        job.close()
        marks.close()
    (mark,) = marks.of["job", 0]

    assert (mark.step, mark.kind, mark.end_ns - mark.arrival_ns) == (4, Kind.ALL_REDUCE, 5_000_000)


@pytest.mark.usefixtures("group")
def test_a_compiled_graph_keeps_its_collectives(job: Job) -> None:
    """Dynamo knows torch's own function and rewrites it; ours only passes on there."""

    def reduced(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor * 2

    with meter_collectives(job):
        compiled = torch.compile(reduced, backend="eager", fullgraph=True)
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


def inside(job: Job) -> list[tuple[int, bool]]:
    """The kinds of the collectives that the rank has come to and not left, and whether it is known to be inside."""
    return [(each.kind, each.is_known) for each in job.meter._arrivals.values()]


@pytest.mark.usefixtures("group")
def test_a_rank_is_inside_a_collective_until_it_returns(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no longer where it raises."""
    seen = []

    def barrier() -> None:
        seen.append(inside(job))
        if len(seen) == 2:
            raise RuntimeError("mine")

    monkeypatch.setattr(dist, "barrier", barrier)
    with meter_collectives(job):
        dist.barrier()
        with pytest.raises(RuntimeError, match="mine"):
            dist.barrier()

    assert seen == [[(Kind.BARRIER, True)], [(Kind.BARRIER, True)]]
    assert inside(job) == []


@pytest.mark.usefixtures("group")
def test_a_rank_waits_for_a_handle_from_its_wait_on(job: Job) -> None:
    """Before that it is not known to wait, and no caller waits for a handle that is dropped."""
    with meter_collectives(job):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert inside(job) == [(Kind.ALL_REDUCE, False)]
        work.wait()
        assert inside(job) == []
        dropped = dist.all_reduce(torch.ones(3), async_op=True)
        assert inside(job) == [(Kind.ALL_REDUCE, False)]
        del dropped

    assert inside(job) == []


class NeverDone(dist.Work):
    """Its wait ends by the group's time-out."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def wait(self, *args: Any) -> bool:
        assert inside(self._job) == [(Kind.ALL_REDUCE, True)]
        raise RuntimeError("timed out")


@pytest.mark.usefixtures("group")
def test_a_wait_that_fails_is_over(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a wait until then, and torch's error is unchanged."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group=None, async_op=False: NeverDone(job))
    with meter_collectives(job), pytest.raises(RuntimeError, match="timed out"):
        dist.all_reduce(torch.ones(3), async_op=True).wait()

    assert inside(job) == []
    assert job.meter._failed is not None
