"""Collectives of groups, functional collectives and messages are marked as synchronizations of their communicator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job, Kind
from timesyncd.client.torch import issued_calls
from timesyncd.client.torch.issued_calls import IssuedCalls
from timesyncd.client.torch.metering import meter_ddp
from timesyncd.client.torch.steps import steps_of
from timesyncd.ipc.job_datagram import Mark, OwnPart, decode
from timesyncd.jobs.group_recording import GroupMark, block_places
from timesyncd.jobs.recording_files import load


class Rank:
    """A job of one rank in its third step, which records. The job is said to have eight, so that no group is the job's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = Job("job", rank=0, world_size=8, attempt=0, runtime_dir=folder, record=folder / "marks")
        for _ in range(2):
            steps_of(self.job).end()
        self.calls = IssuedCalls(steps_of(self.job), folder / "marks" / "rank-0-1.calls")
        self.calls.open()

    @property
    def counted(self) -> tuple[int, dict[tuple[str, int, str | None], int]]:
        return self.calls.metered, dict(self.calls.unmetered)

    def marked(self) -> list[GroupMark]:
        """All, after the end of the job."""
        steps_of(self.job).end()
        self.job.close()
        found = load(self.folder / "marks").groups
        return [] if found is None else list(found.marks.get(0, ()))


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    made = Rank(tmp_path)
    try:
        yield made
    finally:
        made.calls.close()
        made.job.close()
        dist.destroy_process_group()


def test_a_group_s_collectives_are_its_own_series(rank: Rank) -> None:
    """Each group numbers its own, with its ranks and the dimension of its mesh. A call that is not marked takes its number too."""
    group = dist.new_group([0], group_desc="mesh_tp")
    dist.all_reduce(torch.ones(3), group=group)
    group.allreduce([torch.ones(3)]).wait()  # what its caller does with the handle is not known
    dist.barrier()
    work = dist.broadcast(torch.ones(2), 0, group=group, async_op=True)
    assert work is not None
    assert rank.calls._may_be_inside()
    work.wait()
    dist.all_reduce(torch.ones(0), group=group)  # nothing is sent
    dist.all_reduce(torch.ones(1), group=group)

    assert rank.counted == (5, {("all_reduce", 1, "tp"): 1})
    assert not rank.calls._may_be_inside()
    marks = rank.marked()
    of_group, of_default = (
        [each for each in marks if (each.communicator.dimension == "tp") is of] for of in (True, False)
    )
    assert [(each.number, each.kind, each.arrival.bytes, each.step) for each in of_group] == [
        (0, Kind.ALL_REDUCE, 12, 2),
        (2, Kind.BROADCAST, 8, 2),
        (4, Kind.ALL_REDUCE, 4, 2),
    ]
    assert {each.communicator.ranks for each in of_group} == {(0,)}
    assert [(each.number, each.kind) for each in of_default] == [(0, Kind.BARRIER)]
    assert all(each.arrival.arrival_ns <= each.arrival.begin_ns <= each.arrival.end_ns for each in of_group)
    assert rank.job.meter._dropped == 0


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_thread_beside_the_step_leaves_no_mark(rank: Rank) -> None:
    """A checkpoint's thread hides no compute and costs the step nothing by itself; its calls take the group's numbers."""
    group = dist.new_group([0])
    in_a_thread(lambda: (dist.all_reduce(torch.ones(1), group=group), dist.barrier()))
    dist.all_reduce(torch.ones(1), group=group)

    assert rank.counted == (1, {})
    assert rank.calls.beside == 2
    assert [each.number for each in rank.marked()] == [1]


def test_where_a_thread_beside_the_step_waits_the_step_does_not(rank: Rank) -> None:
    """The mark says when the collective was over, and that nothing waited for it."""
    work = dist.all_reduce(torch.ones(1), group=dist.new_group([0]), async_op=True)
    assert work is not None
    in_a_thread(work.wait)
    (mark,) = rank.marked()

    assert mark.arrival.begin_ns == mark.arrival.end_ns > mark.arrival.arrival_ns


def test_the_thread_that_ends_the_steps_and_a_backward_pass_are_the_step(rank: Rank) -> None:
    """A script may train in any thread, and autograd calls hooks in threads of its own."""
    group, leaf = dist.new_group([0]), torch.ones(1, requires_grad=True)
    leaf.register_hook(lambda _: dist.all_reduce(torch.ones(1), group=group))  # type: ignore[no-untyped-call]
    in_a_thread(lambda: torch.autograd.backward(leaf.sum()))

    def train() -> None:
        steps_of(rank.job).end()
        dist.all_reduce(torch.ones(1), group=group)

    in_a_thread(train)

    assert rank.counted == (2, {})
    assert rank.calls.beside == 0


def test_a_functional_collective_ends_where_its_tensor_is_waited_for(rank: Rank) -> None:
    """Until then it counts as not metered, and never ends twice. One of a graph that torch only traces is none."""
    group = distributed_c10d._get_default_group()
    found = functional.all_reduce(torch.ones(4), "sum", group)
    assert rank.counted == (0, {("all_reduce", 1, None): 1})
    assert rank.calls._may_be_inside()
    assert found.sum() == 4
    assert found.sum() == 4
    assert rank.counted == (1, {})
    functional.broadcast(torch.ones(4), 0, group).sum()
    chained = functional.all_reduce(functional.all_reduce(torch.ones(4), "sum", group), "sum", group)
    assert chained.sum() == 4

    assert rank.counted == (4, {})
    assert not rank.calls._may_be_inside()
    marks = rank.marked()
    assert [each.number for each in marks] == [0, 1, 2, 3]
    assert [each.kind for each in marks] == [Kind.ALL_REDUCE, Kind.BROADCAST, Kind.ALL_REDUCE, Kind.ALL_REDUCE]


def test_a_functional_collective_that_is_never_waited_for_stays_counted(rank: Rank) -> None:
    """Its end is not known. The number is taken."""
    group = distributed_c10d._get_default_group()
    never = functional.all_reduce(torch.ones(4), "sum", group)
    assert functional.all_reduce(torch.ones(4), "sum", group).sum() == 4

    assert rank.counted == (1, {("all_reduce", 1, None): 1})
    assert [each.number for each in rank.marked()] == [1]
    assert never.sum() == 4  # torch keeps what nothing waits for, and its group, until the process ends


def test_a_compiled_graph_s_collectives_are_marked(rank: Rank) -> None:
    """The graph calls the overload of the operator, and waits by it."""
    group = distributed_c10d._get_default_group()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(tensor: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional.all_reduce(tensor, "sum", group)
        return found + 1

    assert compiled(torch.ones(4)).sum() == 8
    assert rank.counted == (1, {})


def test_a_module_of_a_group_marks_its_buckets_and_buffers(rank: Rank) -> None:
    """By the same hook as a metered one, and without a warning; in a step's end, as those of all ranks."""
    group = dist.new_group([0], group_desc="mesh_dp")
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), process_group=group
    )
    meter_ddp(rank.job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    rank.calls.unmetered.clear()  # what the module's constructor did
    model(torch.rand(4, 4)).sum().backward()
    assert rank.calls._may_be_inside() is False

    assert rank.counted[1] == {}
    marks = [each for each in rank.marked() if each.communicator.dimension == "dp" and each.kind == Kind.BUCKET]
    assert [each.arrival.bytes for each in marks] == [4 * (16 + 4 + 4 + 4)]


def test_the_reduction_of_used_parameters_is_counted(rank: Rank) -> None:
    """DDP's C++ issues it behind the last bucket, which the same ranks reach at the same time."""
    group = dist.new_group([0], group_desc="mesh_dp")
    model = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=group, find_unused_parameters=True)
    meter_ddp(rank.job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = rank.calls.metered
    model(torch.rand(4, 4)).sum().backward()

    assert rank.calls.metered - before == 2


class Handle(dist.Work):
    def wait(self, *_: Any, **__: Any) -> bool:
        return True


def test_messages_are_series_by_sender_receiver_and_tag(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of an `isend` begins at the call and ends where its handle is waited for."""
    monkeypatch.setattr(distributed_c10d, "get_process_group_ranks", lambda group: [0, 3, 5])
    group = distributed_c10d._get_default_group()
    begun = []
    for kind, name, peer, tag in (
        (Kind.SEND, "send", 1, 0),
        (Kind.SEND, "send", 1, 7),
        (Kind.RECEIVE, "recv", 2, 0),
        (Kind.SEND, "send", 1, 0),
    ):
        record = rank.calls.begin((name, kind), group, [[torch.ones(3)], peer, tag])
        begun.append(rank.calls.end(Handle(), record))
    assert rank.counted == (0, {("send", 3, None): 3, ("recv", 3, None): 1})
    for work in begun:
        work.wait()

    assert rank.counted == (4, {})
    channels = [(each.communicator.ranks, each.communicator.tag, each.number, each.kind) for each in rank.marked()]
    assert channels == [
        ((0, 3), 0, 0, Kind.SEND),
        ((0, 3), 7, 0, Kind.SEND),
        ((5, 0), 0, 0, Kind.RECEIVE),
        ((0, 3), 0, 1, Kind.SEND),
    ]
    assert rank.job.meter._dropped == 0


def test_a_message_from_any_rank_is_counted_and_noted(rank: Rank) -> None:
    """Which of the senders' messages it was is not known."""
    group = distributed_c10d._get_default_group()
    rank.calls.begin(("recv", None), group, [[torch.ones(1)], 0])
    rank.calls.begin(("send", Kind.SEND), group, [[torch.ones(1)]])

    assert rank.counted == (0, {("recv", 1, None): 1, ("send", 1, None): 1})
    blocks = next((rank.folder / "marks").glob("*.groups")).read_bytes()
    assert blocks.count(b"any_source") == 1


def test_a_group_that_torch_does_not_know_is_counted(rank: Rank) -> None:
    """Which ranks of the job it has is not known."""
    group = dist.ProcessGroup(0, 1)  # type: ignore[call-arg]
    assert rank.calls.begin(("all_reduce", Kind.ALL_REDUCE), group, [[torch.ones(1)], dist.AllreduceOptions()]) is None

    assert rank.counted == (0, {("all_reduce", 1, None): 1})
    assert rank.job.meter._dropped == 0


def test_without_a_recording_groups_are_counted(tmp_path: Path) -> None:
    """There is no file for their marks."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    job = Job("job", rank=0, world_size=8, attempt=0, runtime_dir=tmp_path)
    calls = IssuedCalls(steps_of(job), None)
    try:
        calls.open()
        steps_of(job)._step = issued_calls.FIRST_COUNTED_STEP
        dist.all_reduce(torch.ones(3))
        assert (calls.metered, dict(calls.unmetered)) == (0, {("all_reduce", 1, None): 1})
    finally:
        calls.close()
        job.close()
        dist.destroy_process_group()


def test_what_backward_issues_is_marked_or_counted_once(rank: Rank) -> None:
    """An operator with a gradient issues another collective in backward. It counts as not metered, by its name, until it is seen to be issued."""
    name = distributed_c10d._get_default_group().group_name
    tensor = torch.ones(4, requires_grad=True)
    operators: Any = torch.ops._c10d_functional_autograd
    found = [
        torch.ops._c10d_functional.wait_tensor(each)
        for each in (
            operators.all_to_all_single(tensor, [4], [4], name),
            operators.all_gather_into_tensor(tensor, 1, name),
            operators.reduce_scatter_tensor(tensor, "sum", 1, name),
        )
    ]
    forward = rank.counted
    for each in found:
        torch.autograd.backward(each.sum())

    assert forward == (3, {("all_to_all", 1, None): 1, ("reduce_scatter", 1, None): 1, ("all_gather", 1, None): 1})
    assert rank.counted == (6, {})
    assert [each.kind for each in rank.marked()] == [
        Kind.ALL_TO_ALL,
        Kind.ALL_GATHER,
        Kind.REDUCE_SCATTER,
        Kind.ALL_TO_ALL,
        Kind.REDUCE_SCATTER,
        Kind.ALL_GATHER,
    ]


def own_marks(rank: Rank, kind: Kind = Kind.OWN_TIME) -> list[Mark]:
    """The marks of own times that the daemon would get, after the end of the job."""
    rank.job.close()
    (path,) = (rank.folder / "marks").glob("*.marks")
    data = path.read_bytes()
    marks = [mark for place in block_places(data) for mark in decode(data[place]).marks]
    return [mark for mark in marks if mark.kind == kind]


def test_a_step_with_groups_has_a_mark_for_the_hub(rank: Rank) -> None:
    """It states for how long the rank only waited in all of them, and the work: the same for the same synchronizations. Other steps have none."""
    group = dist.new_group([0], group_desc="mesh_tp")
    steps = steps_of(rank.job)
    for calls in (1, 2, 0, 2):
        for _ in range(calls):
            dist.all_reduce(torch.ones(3), group=group)
        steps.end()
    found = own_marks(rank)
    waits = {mark.step: mark.arrival for mark in load(rank.folder / "marks").groups.marks[0]}  # type: ignore[union-attr]

    assert [(mark.step, mark.bytes) for mark in found] == [(2, 0), (3, 0), (5, 0)]
    assert found[0].sync not in (0, found[1].sync)
    assert found[1].sync == found[2].sync
    assert found[0].end_ns - found[0].begin_ns == waits[2].end_ns - waits[2].begin_ns
    assert all(mark.arrival_ns < mark.begin_ns < mark.end_ns for mark in found)


def test_where_calls_have_no_mark_the_hub_is_sent_that_its_waits_are_unknown(rank: Rank) -> None:
    """One call of two, also in a step without groups."""
    group = dist.new_group([0], group_desc="mesh_tp")
    dist.all_reduce(torch.ones(3), group=group)
    group.allreduce([torch.ones(3)]).wait()
    steps_of(rank.job).end()
    steps_of(rank.job).end()

    assert [(mark.step, mark.bytes) for mark in own_marks(rank)] == [(2, 1), (3, 1)]


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.ones(3)


def test_a_step_with_groups_states_its_own_time_by_part(rank: Rank) -> None:
    """Data that a DataLoader loads, and a collective inside the backward pass, in which the rank only waits."""
    group = dist.new_group([0], group_desc="mesh_tp")
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps_of(rank.job).end_with(optimizer)
    optimizer.register_step_post_hook(lambda *_: steps_of(rank.job).update(optimizer))

    def reduce(grad: torch.Tensor) -> None:
        time.sleep(0.01)
        dist.all_reduce(grad.clone(), group=group)

    for parameter in model.parameters():
        parameter.register_hook(reduce)  # type: ignore[no-untyped-call]
    for batch in torch.utils.data.DataLoader(Slow()):
        model(batch).sum().backward()
        optimizer.step()
    parts = own_marks(rank, Kind.OWN_PART)
    waits = {mark.step: mark for mark in own_marks(rank)}

    assert [(mark.step, OwnPart(mark.sync)) for mark in parts if mark.sync != OwnPart.OPTIMIZER] == [
        (2, OwnPart.DATA),
        (2, OwnPart.BACKWARD),
        (3, OwnPart.DATA),
        (3, OwnPart.BACKWARD),
    ]
    for step, whole in waits.items():
        own_ns = {mark.sync: mark.end_ns - mark.arrival_ns for mark in parts if mark.step == step}
        assert own_ns[OwnPart.DATA] >= 20_000_000
        assert own_ns[OwnPart.BACKWARD] >= 20_000_000
        assert 0 <= own_ns[OwnPart.OPTIMIZER]
        assert sum(own_ns.values()) <= whole.begin_ns - whole.arrival_ns
        assert {mark.arrival_ns for mark in parts if mark.step == step} == {whole.arrival_ns}
        recorded = load(rank.folder / "marks").own_waits[step][0]
        assert recorded.parts_ns == own_ns
        assert recorded.waited_ns == whole.end_ns - whole.begin_ns


def test_the_hooks_for_the_parts_are_undone(rank: Rank) -> None:
    """Torch has its own functions again, and a part that is entered later is in no step."""
    wrapped = torch.autograd.backward
    rank.calls.close()

    assert wrapped.__wrapped__ is torch.autograd.backward  # type: ignore[attr-defined]
    assert not hasattr(torch.utils.data.dataloader._BaseDataLoaderIter.__next__, "__wrapped__")
    assert steps_of(rank.job).parts is None
