"""What StaleSync rejects before it contacts another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from timesyncd.client import Job
from timesyncd.training.torch.stale import StaleSync


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job("refused", 0, 1, 0, runtime_dir=tmp_path)
    yield job
    job.close()


def test_a_policy_without_a_server_is_rejected(job: Job) -> None:
    """The error names the policies that are allowed."""
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"policy 'bsp' does not use a parameter server; ssp\(s=\.\.\.\) and asp do"):
        StaleSync(job, model, torch.optim.SGD(model.parameters()), "bsp")


def test_a_model_without_trainable_parameters_is_rejected(job: Job) -> None:
    """All its parameters are frozen."""
    model = nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(ValueError, match="the model has no parameters that require gradients"):
        StaleSync(job, model, torch.optim.SGD(model.parameters()), "ssp(s=1)")


def test_the_job_s_address_must_be_set(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names both variables before anything is opened; the optimizer is unchanged."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="MASTER_ADDR and MASTER_PORT not set"):
        StaleSync(job, model, optimizer, "ssp(s=1)")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_a_compression_that_needs_all_ranks_is_rejected(job: Job) -> None:
    """A rank pushes alone."""
    model = nn.Linear(2, 1)
    with pytest.raises(
        ValueError, match="powersgd reduces over all ranks at once; a parameter server allows fp16, int8 and topk"
    ):
        StaleSync(job, model, torch.optim.SGD(model.parameters()), "ssp(s=1) + powersgd(rank=2)")
