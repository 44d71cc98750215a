"""The broadcast of a module's buffers is marked as a synchronization of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import Marks, listening

from timesyncd.client import Job, Kind
from timesyncd.client.torch import meter_collectives, meter_ddp


class Rank:
    """A job of one rank, and what it marked."""

    def __init__(self, job: Job, marks: Marks) -> None:
        self.job = job
        self._marks = marks

    def marked(self) -> list[tuple[int, int, int, int]]:
        """Step, number, kind and bytes of all, after the end of the job."""
        self.job.close()
        self._marks.close()
        return [(m.step, m.sync, m.kind, m.bytes) for m in self._marks.of["job", 0]]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    with listening() as (folder, marks):
        job = Job("job", rank=0, world_size=1, attempt=0, runtime_dir=folder)
        try:
            yield Rank(job, marks)
        finally:
            job.close()
            dist.destroy_process_group()


def module(broadcasts: bool = True) -> DistributedDataParallel:
    made = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    made.forward_sync_buffers = broadcasts
    return made


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.rand(4, 4)).sum().backward()
    optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("collectives", [False, True])
def test_a_broadcast_of_buffers_precedes_the_buckets(rank: Rank, collectives: bool) -> None:
    """Mean, variance and the count of batches: 4 x 4 + 4 x 4 + 8 octets. It is one mark, also where collectives are metered."""
    model = module()
    optimizer = sgd(model)
    meter = meter_ddp(rank.job, model, optimizer)
    if collectives:
        with meter_collectives(rank.job):
            train(model, optimizer)
    else:
        train(model, optimizer)
    meter.close()
    train(model, optimizer)

    assert rank.job.meter.lost == 0
    assert rank.marked() == [
        (0, 0, Kind.BROADCAST, 40),
        (0, 1, Kind.BUCKET, 112),
        (0, 0, Kind.STEP, 0),
    ]


def test_a_module_that_broadcasts_nothing_has_no_such_mark(rank: Rank) -> None:
    """Where the loop switched it off, and in passes that do not synchronize."""
    model, quiet = module(broadcasts=False), module()
    optimizer = sgd(model)
    meter_ddp(rank.job, model, optimizer)
    train(model, optimizer)
    meter_ddp(rank.job, quiet, sgd(quiet))
    with quiet.no_sync():
        for _ in range(2):
            quiet(torch.rand(4, 4)).sum().backward()

    assert [kind for _, _, kind, _ in rank.marked()] == [Kind.BUCKET, Kind.STEP, Kind.BROADCAST]  # the first pass's


def test_a_copy_has_no_meter(rank: Rank) -> None:
    """It is not metered, and nothing of the meter is saved with a module."""
    model = module()
    meter_ddp(rank.job, model, sgd(model))
    other = copy.deepcopy(model)
    other(torch.rand(4, 4)).sum().backward()

    assert rank.marked() == []
    assert not [name for name in vars(model) if "sync_buffers" in name and callable(vars(model)[name])]


def test_a_broadcast_that_fails_raises_torch_s_error(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is no longer inside it, and there is no mark."""
    model = module()
    meter_ddp(rank.job, model, sgd(model))

    def fails(*arguments: object) -> None:
        assert [each.kind for each in rank.job.meter._arrivals.values()] == [Kind.BROADCAST]
        raise RuntimeError("mine")

    monkeypatch.setattr(dist, "_broadcast_coalesced", fails)
    with pytest.raises(RuntimeError, match="mine"):
        model(torch.rand(4, 4))

    assert rank.job.meter._arrivals == {}
    assert rank.marked() == []
