"""A policy marks the losses of its job, compares them with a former run's, and takes back what learns worse."""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.losses import JobLosses
from timesyncd.jobs.recording_files import load
from timesyncd.training.policy.auto import Choice, Controller
from timesyncd.training.policy.policies import ChangeReason
from timesyncd.training.policy.reference import read_reference, recorded_marks
from timesyncd.training.torch.entry import synchronized
from timesyncd.training.torch.report import Report

STEPS = 600


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def loss_of(step: int, seed: int, higher: float = 0.0) -> float:
    return (1 + 2 / (1 + step / 50)) * (1 + higher) * (1 + random.Random(1000 * seed + step).gauss(0, 0.01))


def train(
    folder: Path, policy: str, seed: int, higher: float = 0.0, reference: Path | None = None, **at: Any
) -> Report:
    """A job of one rank, whose losses are given. `at`: the steps in which something else is recorded."""
    ddp = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0)
    job = Job("learning", 0, 1, runtime_dir=folder, record=folder)
    with synchronized(job, ddp, optimizer, policy, reference=reference) as sync:
        for step in range(STEPS):
            optimizer.zero_grad()
            ddp(torch.ones(1, 1)).sum().backward()
            sync.record_loss(math.nan if step == at.get("unfit_in") else loss_of(step, seed, higher))
            if step == at.get("validation_in"):
                sync.record_validation(1.25)
            optimizer.step()
            time.sleep(0.002)  # a rank keeps 512 marks for a tenth of a second
    job.close()
    return sync.report()


def test_each_loss_is_marked_with_its_step(tmp_path: Path) -> None:
    """In the recording of the job, those on held-out data too, for the audit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the loss that is not finite
        train(tmp_path / "marks", "bsp", 1, validation_in=100, unfit_in=7)
    losses = load(tmp_path / "marks").losses[0]

    training = {mark.step: mark.loss for mark in losses if not mark.is_validation}
    assert sorted(training) == list(range(STEPS))
    wrong = [step for step, loss in training.items() if step != 7 and loss != pytest.approx(loss_of(step, 1), rel=1e-6)]
    assert wrong == []
    assert math.isnan(training[7])
    ((step, value),) = [(mark.step, mark.loss) for mark in losses if mark.is_validation]
    assert 100 <= step <= 132 and value == 1.25


def test_a_policy_that_learns_worse_is_reported(tmp_path: Path) -> None:
    """One warning; a run that keeps up has none, and plain BSP is never called worse."""
    train(tmp_path / "before", "bsp", 1)
    with pytest.warns(UserWarning, match="^job learning: the loss is .* above that of the reference at equal steps"):
        train(tmp_path / "worse", "local_sgd(h=4)", 2, 0.08, tmp_path / "before")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(tmp_path / "alike", "local_sgd(h=4)", 3, 0.0, tmp_path / "before")
        train(tmp_path / "bsp", "bsp", 4, 0.08, tmp_path / "before")


@pytest.mark.filterwarnings("ignore:job learning")
def test_auto_takes_back_what_learns_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is one that the controller made; it goes back to BSP, with the reason."""
    train(tmp_path / "before", "bsp", 1)
    choices = [Choice("local_sgd(h=4)", ChangeReason.SAME_DATA, "chosen by the test")]
    monkeypatch.setattr(Controller, "update", lambda *_: choices.pop() if choices else None)
    changes = train(tmp_path / "worse", "auto", 2, 0.08, tmp_path / "before").changes

    assert [change.policy for change in changes] == ["auto", "local_sgd(h=4)", "bsp"]
    assert changes[-1].reason_code is ChangeReason.LOSS_ROSE
    assert "above that of the reference" in changes[-1].reason


def test_the_hub_gets_the_least_difference(tmp_path: Path) -> None:
    """In a mark of rank 0."""
    train(tmp_path / "before", "bsp", 1)
    with pytest.warns(UserWarning, match="above that of the reference"):
        train(tmp_path / "worse", "local_sgd(h=4)", 2, 0.08, tmp_path / "before")
    losses = JobLosses()
    for path in (tmp_path / "worse").glob("*.marks"):
        for mark in recorded_marks(path.read_bytes()):
            if mark.kind == Kind.LEARNING:
                losses.put(0, mark)

    assert losses.worse is not None and 0.01 < losses.worse.least < 0.08


def test_a_folder_without_losses_is_rejected(tmp_path: Path) -> None:
    """On all ranks, before the first step, with what a reference is."""
    with pytest.raises(ValueError, match=r"no losses: a reference is a folder of \*\.marks files"):
        read_reference(tmp_path)
    with pytest.raises(ValueError, match="no losses: a reference is a folder"):
        train(tmp_path / "marks", "bsp", 1, reference=tmp_path)
