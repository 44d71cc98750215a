"""The code that the trainers' callbacks share: an error ends all metering and never the training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from timesyncd.client import Job
from timesyncd.client.torch import metered
from timesyncd.client.torch.metering import Metered
from timesyncd.client.torch.steps import steps_of
from timesyncd.client.torch.trainers import TrainerRuns


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job("train", 0, 1, 0, runtime_dir=tmp_path)
    yield job
    job.close()


class Broken(Metered):
    """One whose end fails."""

    def close(self) -> None:
        raise RuntimeError("no end")


def fails() -> None:
    raise KeyError("a fault of ours")


@pytest.mark.parametrize("at_the_end", [False, True])
def test_what_fails_leaves_nothing_metered(at_the_end: bool, job: Job) -> None:
    """There is one warning, and every optimizer is closed, even if closing another one fails: the run continues without a meter."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = TrainerRuns(job)
    broken = Broken(steps_of(job), [])
    training.add(broken, metered(job, optimizer), broken)
    with pytest.warns(UserWarning, match="timesyncd does not meter this training") as caught:
        training.safely(training.end if at_the_end else fails)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    assert len(caught) == 1
    assert (steps_of(job).step, steps_of(job).ending_optimizers) == (0, 0)
