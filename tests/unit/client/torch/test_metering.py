"""Modules that are metered again, that come and go, and that a trainer wraps: in a group of this process alone."""

from __future__ import annotations

import io
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import Marks, listening

from timesyncd.client import Job, Kind
from timesyncd.client.torch import meter_ddp, metered, unmodified
from timesyncd.client.torch.ddp import Buckets
from timesyncd.client.torch.metering import StampedComm, _parameter_groups, _stamp_waits
from timesyncd.client.torch.own_warnings import warn
from timesyncd.client.torch.stamps import HostStamps
from timesyncd.client.torch.steps import Record, steps_of
from timesyncd.ipc.job_datagram import Mark


class Rank:
    """A job of one rank, and what it marked."""

    def __init__(self, job: Job, marks: Marks) -> None:
        self.job = job
        self.ending = ExitStack()  #: of what run-audit puts around torch's own
        self._marks = marks

    def marked(self) -> list[tuple[int, int]]:
        """Step and kind of all, after the end of the job."""
        return [(mark.step, mark.kind) for mark in self.whole_marks()]

    def whole_marks(self) -> list[Mark]:
        """All, after the end of the job."""
        self.job.close()
        self._marks.close()
        return self._marks.of["job", 0]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    with listening() as (folder, marks):
        job = Job("job", rank=0, world_size=1, attempt=0, runtime_dir=folder)
        made = Rank(job, marks)
        try:
            yield made
        finally:
            made.ending.close()
            job.close()
            dist.destroy_process_group()


def module() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(4, 4))


def sgd(of: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(of.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_S)
        return gradient


SLOW_S = 0.05


# torch reads a hook's annotations, and those of this module are texts.
def reduce_later(state, bucket):  # type: ignore[no-untyped-def]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    threading.Timer(2 * SLOW_S, future.set_result, [bucket.buffer()]).start()
    return future


def test_what_a_backward_pass_computes_behind_the_last_bucket_is_no_waiting(rank: Rank) -> None:
    """The gradient of an input is computed when all buckets are ready: the rank computes on, and waits only then."""
    model = module()
    optimizer = sgd(model)
    meter_ddp(rank.job, model, optimizer, reduce_later)
    optimizer.zero_grad()
    slow = SlowBackward.apply(torch.ones(2, 4, requires_grad=True))  # type: ignore[no-untyped-call]
    model(slow).sum().backward()
    optimizer.step()
    marks = rank.whole_marks()
    (bucket,) = (mark for mark in marks if mark.kind == Kind.HOOK)
    (step,) = (mark for mark in marks if mark.kind == Kind.STEP)

    assert bucket.begin_ns - bucket.arrival_ns >= SLOW_S * 1e9
    assert bucket.end_ns - bucket.arrival_ns >= 2 * SLOW_S * 1e9
    assert step.begin_ns == bucket.begin_ns


@pytest.mark.parametrize("found", [False, True])
def test_metering_again_replaces_the_earlier_metering(rank: Rank, found: bool) -> None:
    """Each update is one step, and closing the earlier one does not affect the later one."""
    model = module()
    optimizer = sgd(model)
    earlier = meter_ddp(rank.job, model, optimizer)
    later = meter_ddp(rank.job, model, None if found else optimizer)
    earlier.close()
    for _ in range(3):
        train(model, optimizer)

    assert (later.step, steps_of(rank.job).ending_optimizers) == (3, 1)
    assert rank.marked() == [(step, kind) for step in range(3) for kind in (Kind.BUCKET, Kind.STEP)]


@pytest.mark.parametrize("own_hook", [False, True])
def test_the_whole_hook_is_own_overhead_unless_it_is_the_user_s(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, own_hook: bool
) -> None:
    """Without the meter the reducer would call no Python; a hook of the user's is the user's time."""
    reduce = Buckets.all_reduce

    def slow_all_reduce(*arguments: Any) -> Any:
        time.sleep(0.2)
        return reduce(*arguments)

    def slow_hook(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations as objects
        time.sleep(0.2)
        return fp16_compress_hook(dist.distributed_c10d._get_default_group(), bucket)

    monkeypatch.setattr(Buckets, "all_reduce", slow_all_reduce)
    monkeypatch.setattr(rank.job.meter, "mark_at", lambda *_: None)
    counted: list[int] = []
    monkeypatch.setattr(
        rank.job.meter, "add_overhead", lambda started_ns, _: counted.append(time.monotonic_ns() - started_ns)
    )
    model = module()
    meter_ddp(rank.job, model, hook=slow_hook if own_hook else None)
    model(torch.ones(2, 4)).sum().backward()

    assert (max(counted) >= 200_000_000) is not own_hook


def test_closing_one_module_loses_nothing_of_another(rank: Rank) -> None:
    """What the other one keeps is marked at its update."""
    models = [module(), module()]
    optimizers = [sgd(model) for model in models]
    meters = [metered(rank.job, *pair) for pair in zip(models, optimizers, strict=True)]
    models[0](torch.ones(2, 4)).sum().backward()
    meters[1].close()
    optimizers[0].step()

    assert rank.job.meter.lost == 0
    assert rank.marked() == [(0, Kind.BUCKET), (0, Kind.STEP)]


def test_a_hook_is_registered_with_each_module_of_many(rank: Rank) -> None:
    """Under run-audit a script makes modules one after the other: the ids of those that are gone come again."""
    unmodified._meter_every_ddp(rank.job, rank.ending)
    for _ in range(30):
        model = module()
        model.register_comm_hook(None, fp16_compress_hook)
        del model
    model = module()
    model.register_comm_hook(None, fp16_compress_hook)
    with pytest.raises(RuntimeError, match="can only be called once"):
        model.register_comm_hook(None, fp16_compress_hook)


def test_a_module_that_a_script_saves_needs_no_timesyncd(rank: Rank) -> None:
    """Under run-audit the file of a whole module refers to nothing of ours, and the module that is loaded of it is metered."""
    unmodified._meter_every_ddp(rank.job, rank.ending)
    file = io.BytesIO()
    torch.save(module(), file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    train(loaded, sgd(loaded))

    assert b"timesyncd" not in file.getvalue()
    assert rank.marked() == [(0, Kind.BUCKET), (0, Kind.STEP)]


def test_a_script_that_makes_its_group_again_with_other_ranks_is_another_job(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same rank and number of ranks the job goes on; else its ranks have other numbers, and nothing of it is metered any more."""
    monkeypatch.setenv("TIMESYNCD_RECORD", str(tmp_path))
    torch_s_own = DistributedDataParallel.__init__, dist.all_reduce, dist.destroy_process_group
    jobs = []
    for ranks in (1, 1, 2):
        monkeypatch.setattr(dist, "get_world_size", lambda ranks=ranks: ranks)
        unmodified.start()
        jobs.append(unmodified._metered[os.getpid()][0])
    calls = list(tmp_path.glob("*.calls"))
    unmodified._metered.pop(os.getpid())[1].close()

    assert jobs[0] is jobs[1] is not jobs[2]
    assert [job.world_size for job in jobs] == [1, 1, 2]
    assert (DistributedDataParallel.__init__, dist.all_reduce, dist.destroy_process_group) == torch_s_own
    assert calls == []  # neither job has issued any


def test_a_note_of_run_audit_repeats_no_warning_of_the_script(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python shows a warning of one line once, and again after its filters have changed: the meter changes none."""
    monkeypatch.setenv("TIMESYNCD_RECORD", str(tmp_path))
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *place: shown.append(str(message)))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for _ in range(3):
            with unmodified._errors_to_file(rank.job):
                warn("the meter's", stacklevel=1)
            warnings.warn("the script's", stacklevel=1)
    (note,) = tmp_path.glob("*.note")

    assert shown == ["the script's"]
    assert note.read_text().count("the meter's (torch ") == 3


def test_an_fsdp_without_setters_gives_a_warning(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older torch cannot stamp its collectives: a warning, and the steps are metered."""
    for name in ("set_custom_all_gather", "set_custom_reduce_scatter"):
        monkeypatch.delattr(FSDPModule, name)
    model = nn.Linear(4, 4)
    fully_shard(model)
    optimizer = sgd(model)
    with pytest.warns(UserWarning, match="FSDP2 of this torch has no setter for custom collectives"):
        metered(rank.job, model, optimizer)
    train(model, optimizer)

    assert rank.marked() == [(0, Kind.STEP)]


def test_a_teacher_is_not_taken_for_the_model(rank: Rank) -> None:
    """Hugging Face's Trainer shows the bare model: other modules may run before the one that wraps it."""
    callback_module: Any = pytest.importorskip("timesyncd.client.torch.transformers")
    callback = callback_module.TransformersCallback(rank.job)
    bare, teacher = nn.Linear(4, 4), module()
    model = DistributedDataParallel(bare)
    optimizer = sgd(model)
    arguments, state = SimpleNamespace(process_index=0, world_size=1), SimpleNamespace(global_step=0)
    callback.on_train_begin(arguments, state, None)
    callback.on_step_begin(arguments, state, None, model=bare, optimizer=optimizer)
    for other in (teacher, nn.Identity()):
        other(torch.ones(2, 4))
    train(model, optimizer)
    callback.on_train_end(arguments, state, None)

    assert rank.marked() == [(0, Kind.BUCKET), (0, Kind.STEP)]


class FakeGroup:
    """What is used of FSDP2's parameter group; it notes what it was called with."""

    def __init__(self) -> None:
        self.waits = 0

    def wait_for_unshard(self) -> None:
        self.waits += 1


def test_a_gather_on_a_device_waits_from_where_compute_waits_for_it(rank: Rank) -> None:
    """FSDP2 prefetches in another stream. A gather that compute did not wait for, and one before it, are marked as hidden."""
    moments = iter(range(100, 2_000, 100))
    steps, group = steps_of(rank.job), FakeGroup()
    stamped = StampedComm(None, Kind.ALL_GATHER, rank.job)
    forget = _stamp_waits(group, stamped)

    class Stamps(HostStamps):
        def now(self) -> int:
            return next(moments)

    def gather() -> Record:
        record = Record(Kind.ALL_GATHER, 8, Stamps())
        steps.number(record)
        stamped._keep(steps, record)
        return record

    unused, used = gather(), gather()  # arrive at 100 and 300, end at 200 and 400
    group.wait_for_unshard()
    group.wait_for_unshard()  # nothing was gathered for it
    forget()
    group.wait_for_unshard()

    assert group.waits == 3
    assert "wait_for_unshard" not in vars(group)
    assert unused.times_ns() == (100, 200, 200)
    assert used.times_ns() == (300, 400, 400)  # waited for at 500, after its end
    assert rank.marked() == [(0, Kind.ALL_GATHER), (0, Kind.ALL_GATHER)]


def test_sharded_modules_of_older_torch_have_one_parameter_group() -> None:
    """torch 2.11 has no list of groups, and no group where a module has no parameters."""
    states = [SimpleNamespace(_fsdp_param_group=group) for group in ("group", None)]
    newer = SimpleNamespace(_fsdp_param_groups=["first", "second"])
    shards: list[Any] = [SimpleNamespace(_get_fsdp_state=lambda state=state: state) for state in (*states, newer)]

    assert [_parameter_groups(shard) for shard in shards] == [["group"], [], ["first", "second"]]
