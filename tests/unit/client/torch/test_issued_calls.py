"""Every call of torch's Python functions is seen, by whatever name: marked, counted, and left as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_reduce, barrier, distributed_c10d
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import Marks, listening

from timesyncd.client import Job, Kind
from timesyncd.client.torch import issued_calls, meter_collectives, meter_ddp
from timesyncd.client.torch.issued_calls import FUNCTIONAL, METHODS, WAIT, CountedOperator, IssuedCalls
from timesyncd.client.torch.steps import steps_of


class Rank:
    """A job of one rank in its third step, and what it marked."""

    def __init__(self, job: Job, marks: Marks, path: Path) -> None:
        self.job = job
        self._marks = marks
        self.path = path
        for _ in range(2):
            steps_of(job).end()
        self.calls = IssuedCalls(steps_of(job), path)
        self.calls.open()

    def marked(self) -> list[tuple[int, int, int]]:
        """Number, kind and bytes of all in the third step, after the end of the job."""
        self.job.close()
        self._marks.close()
        return [(m.sync, m.kind, m.bytes) for m in self._marks.of["job", 0] if m.step == 2 and m.kind != Kind.STEP]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    with listening() as (folder, marks):
        job = Job("job", rank=0, world_size=1, attempt=0, runtime_dir=folder)
        made = Rank(job, marks, tmp_path / "rank-0-1.calls")
        try:
            yield made
        finally:
            made.calls.close()
            job.close()
            dist.destroy_process_group()


def test_every_operator_of_torch_is_known() -> None:
    """One that a later torch adds would not be seen; an older torch has fewer."""
    names = [name.replace("::", ".") for name in torch._C._dispatch_get_all_op_names()]
    functional = {name for name in names if name.startswith(("_c10d_functional", "_dtensor."))}

    local = {"_dtensor.mesh_get_process_group", "_c10d_functional._wrap_tensor_autograd"}
    assert functional - local <= {*FUNCTIONAL, WAIT}


def test_every_method_that_communicates_is_known() -> None:
    """Those are what takes tensors, options or another rank."""
    methods = {
        name
        for name, method in vars(dist.ProcessGroup).items()
        if "tensor" in str(getattr(method, "__doc__", "")).lower() or "opts" in str(getattr(method, "__doc__", ""))
    }

    local = {"split_group", "_register_on_completion_hook"}
    assert methods - local <= set(METHODS)


def test_an_imported_name_is_marked(rank: Rank) -> None:
    """The mark has its moments in order, and nothing is counted as not metered."""
    tensor = torch.ones(3)
    all_reduce(tensor)
    barrier()
    with torch.inference_mode():
        all_reduce(torch.ones(2))

    assert rank.marked() == [(0, Kind.ALL_REDUCE, 12), (1, Kind.BARRIER, 0), (2, Kind.ALL_REDUCE, 8)]
    assert (rank.calls.metered, rank.calls.unmetered.total(), rank.job.meter.lost) == (3, 0, 0)
    assert tensor.tolist() == [1.0] * 3
    assert rank.job.meter._arrivals == {}


def test_what_a_hook_meters_is_marked_once(rank: Rank) -> None:
    """A bucket, a broadcast of buffers, and a wrapped collective with those that it calls inside."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    rank.calls.unmetered.clear()  # what the module's constructor did
    before = rank.calls.metered
    meter_ddp(rank.job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    with meter_collectives(rank.job):
        model(torch.rand(4, 4)).sum().backward()
        dist.all_gather_object([None], "object")
        dist.all_reduce(torch.ones(0))
    steps_of(rank.job).end()

    assert [kind for _, kind, _ in sorted(rank.marked())] == [Kind.BROADCAST, Kind.BUCKET, Kind.ALL_GATHER]
    assert rank.calls.unmetered.total() == 0
    assert rank.calls.metered - before >= 4


def test_what_no_wait_is_seen_of_is_counted(rank: Rank) -> None:
    """A functional collective is waited for in C++, and what a caller of the group's method does with its handle is not known."""
    functional.all_reduce(torch.ones(4), "sum", distributed_c10d._get_default_group()).sum()
    distributed_c10d._get_default_group().broadcast(torch.ones(3), 0).wait()

    assert rank.marked() == []
    assert rank.calls.unmetered == {("all_reduce", 1, None): 1, ("broadcast", 1, None): 1}
    rank.calls.write()
    assert json.loads(rank.path.read_text()) == {
        "metered": 0,
        "unmetered": [["all_reduce", 1, None, 1], ["broadcast", 1, None, 1]],
        "beside": 0,
    }


def test_an_asynchronous_call_ends_where_it_is_waited_for(rank: Rank) -> None:
    """As one that is called by the module's name."""
    work = all_reduce(torch.ones(3), async_op=True)
    assert work is not None
    assert rank.job.meter.lost == 0
    work.wait()

    assert rank.marked() == [(0, Kind.ALL_REDUCE, 12)]


def test_a_functional_call_is_counted_once(rank: Rank) -> None:
    """Also where a mode of torch's dispatcher calls it again, in compiled graphs, and for a gradient in backward."""
    group = distributed_c10d._get_default_group()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(tensor: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional.all_reduce(tensor, "sum", group)
        return found + 1

    compiled(torch.ones(4))
    mode: Any = CommDebugMode()  # type: ignore[no-untyped-call]
    with mode:
        functional.all_reduce(torch.ones(4), "sum", group).sum()
    tensor = torch.ones(4, requires_grad=True)
    torch.autograd.backward(functional.all_to_all_single_autograd(tensor, [4], [4], group).sum())

    assert mode.get_total_counts() == 1
    assert rank.calls.unmetered == {("all_reduce", 1, None): 2, ("all_to_all", 1, None): 2}


def test_an_operator_keeps_its_hash_and_type(rank: Rank) -> None:
    """torch looks operators up by them: without its mark as one with effects, a graph would lose a wait."""
    packet = torch.ops._c10d_functional.wait_tensor
    seen = [
        (hash(each), type(each), str(each), each._schemas if each is packet else None)
        for each in (packet, packet.default)
    ]
    assert isinstance(packet._op, CountedOperator)
    rank.calls.close()

    assert not isinstance(packet._op, CountedOperator)
    assert seen == [
        (hash(each), type(each), str(each), each._schemas if each is packet else None)
        for each in (packet, packet.default)
    ]


class PythonGroup(dist.ProcessGroup):
    """A group that is written in Python, with one method of its own."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]
        self.calls = 0

    def allreduce(self, *args: Any, **rest: Any) -> Any:
        self.calls += 1
        return distributed_c10d._get_default_group().allreduce(*args, **rest)


def test_a_group_written_in_python_is_as_before(rank: Rank) -> None:
    """C++ looks for its methods in Python: what it does not define is C++'s own, whose error is the same."""
    group = PythonGroup()
    group.allreduce([torch.ones(2)]).wait()
    assert group.calls == 1

    def fails() -> str:
        with pytest.raises(RuntimeError, match="No backend") as raised:
            group.broadcast([torch.ones(2)], dist.BroadcastOptions())
        return str(raised.value).partition("\n")[0]

    seen = fails()
    rank.calls.close()
    assert seen == fails()


def test_another_group_s_calls_are_counted(rank: Rank) -> None:
    """A group of other ranks than the job's has synchronizations of its own."""
    rank.calls._world_size = 8
    all_reduce(torch.ones(3))

    assert rank.marked() == []
    assert rank.calls.unmetered == {("all_reduce", 1, None): 1}
    assert rank.path.exists()  # also if the process is killed now


@pytest.mark.parametrize("step", [0, 1])
def test_the_first_two_steps_are_not_counted(rank: Rank, step: int) -> None:
    """Modules are made and groups are tried, and DDP agrees on its buckets: that is no part of training."""
    rank.calls._steps._step = step
    distributed_c10d._get_default_group().allreduce([torch.ones(3)]).wait()
    all_reduce(torch.ones(3))

    assert (rank.calls.metered, rank.calls.unmetered.total()) == (0, 0)


def test_an_error_is_torch_s_own(rank: Rank) -> None:
    """With the same type and text as without, and the rank is no longer inside."""

    def fails() -> tuple[type, str]:
        with pytest.raises(Exception, match=".+") as raised:
            dist.group.WORLD.allreduce([torch.ones(2), torch.ones(3, dtype=torch.float64)])  # type: ignore[union-attr]
        return raised.type, str(raised.value).partition("\n")[0]

    with_calls = fails()
    rank.calls.close()

    assert with_calls == fails()
    assert rank.job.meter._arrivals == {}


def test_our_own_error_is_a_lost_mark(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collective is carried out."""
    monkeypatch.setattr(issued_calls, "begin_record", lambda *arguments: 1 / 0)
    tensor = torch.ones(3)
    all_reduce(tensor)

    assert rank.job.meter.lost == 1


def test_closed_nothing_is_seen(rank: Rank) -> None:
    """torch's own methods are there again."""
    rank.calls.close()
    all_reduce(torch.ones(3))

    assert rank.calls.metered == 0
    assert rank.marked() == []


def test_a_rank_that_may_wait_in_an_unmetered_call_is_not_said_to_run(rank: Rank) -> None:
    """Its state is unknown while it holds the handle, so it is not accused of running elsewhere."""
    meter = rank.job.meter
    assert meter._may_wait_unseen is not None
    work = distributed_c10d._get_default_group().broadcast(torch.ones(3), 0)
    assert meter._may_wait_unseen() is True
    work.wait()
    del work
    assert meter._may_wait_unseen() is False

    inside = []
    calls = rank.calls
    counted = CountedOperator(calls, lambda: inside.append(calls._may_be_inside()), lambda args, rest: None)
    counted()
    assert inside == [True]
    assert meter._may_wait_unseen() is False


def test_a_forked_process_counts_nothing(rank: Rank) -> None:
    """Else it would overwrite what its parent has counted."""
    distributed_c10d._get_default_group().allreduce([torch.ones(3)]).wait()
    rank.calls.write()
    counted = rank.path.read_text()
    pid = os.fork()
    if pid == 0:
        rank.calls.unmetered["send", 2, None] += 7
        rank.calls.write()
        os._exit(int(isinstance(torch.ops._c10d_functional.all_reduce._op, CountedOperator)))

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert rank.path.read_text() == counted


def test_another_group_of_all_ranks_is_counted(rank: Rank) -> None:
    """A checkpoint's thread calls it while the training calls the default group: their order differs between the ranks."""
    all_reduce(torch.ones(3), group=dist.new_group([0]))

    assert rank.marked() == []
    assert rank.calls.unmetered == {("all_reduce", 1, None): 1}
