"""Dissimilarity: how different the data of the ranks is, from gradients with a known mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.training import synchronized
from timesyncd.training.torch.measurements import PAIRS, SAMPLED, Dissimilarity
from timesyncd.training.torch.replicas import read_together

RANKS, SIZE = 4, 50_000


def bucket_of(parameter: torch.Tensor, gradient: torch.Tensor) -> Any:
    return SimpleNamespace(buffer=lambda: gradient, parameters=lambda: [parameter], gradients=lambda: [gradient])


def reduce(each: list[Dissimilarity], parameter: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    """One step of all ranks: the mean replaces the gradient of each."""
    buffers = [gradient.clone() for gradient in gradients]
    callbacks = [one.observe(bucket_of(parameter, buffer)) for one, buffer in zip(each, buffers, strict=True)]
    mean = torch.stack(gradients).mean(0)
    for one, buffer, after in zip(each, buffers, callbacks, strict=True):
        buffer.copy_(mean)
        if after is not None:
            after()
        one.end_backward()


def value_of(one: Dissimilarity) -> float:
    (values,) = read_together(one.unread)
    return one.value(values)


def dissimilarities(apart: float, noise: float, steps: int = 4) -> list[float]:
    """By rank, where its expected gradient is `apart` times the mean's length from the mean."""
    drawn = torch.Generator().manual_seed(1)
    parameter, common = torch.empty(SIZE), torch.randn(SIZE, generator=drawn)
    own = torch.randn(RANKS, SIZE, generator=drawn)
    own = (own - own.mean(0)) * apart * math.sqrt(RANKS / (RANKS - 1))
    each = [Dissimilarity() for _ in range(RANKS)]
    for _ in range(steps):
        batches = noise * torch.randn(RANKS, SIZE, generator=drawn)
        reduce(each, parameter, [common + mine + batch for mine, batch in zip(own, batches, strict=True)])
    return [value_of(one) for one in each]


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("apart", [0.0, 0.5, 2.0])
def test_noise_cancels_out(apart: float, noise: float) -> None:
    """The squared distance from the mean, as a multiple of the mean's square, which noise of the batches makes larger by its mean over the ranks."""
    expected = apart**2 / (1 + noise**2 / RANKS)

    assert dissimilarities(apart, noise) == pytest.approx([expected] * RANKS, abs=0.1, rel=0.1)


def test_it_is_unknown_before_the_second_step() -> None:
    """One deviation may be noise."""
    assert all(math.isnan(one) for one in dissimilarities(1.0, 0.0, steps=1))


def test_steps_after_the_first_pairs_are_ignored() -> None:
    """It costs nothing from then on."""
    one, parameter = Dissimilarity(), torch.empty(8)
    for _ in range(PAIRS + 1):
        reduce([one], parameter, [torch.ones(8)])

    assert one.observe(bucket_of(parameter, torch.ones(8))) is None


def test_a_large_gradient_is_sampled() -> None:
    """Spread over all of it."""
    one, parameter = Dissimilarity(), torch.empty(10 * SAMPLED)
    reduce([one], parameter, [torch.ones(10 * SAMPLED)])
    ((deviation, mean),) = one._former.values()

    assert deviation.numel() == mean.numel() == SAMPLED


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(tmp_path: Path, policy: str) -> float:
    """The dissimilarity of a job with one rank, whose gradients are clipped before each update."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with synchronized(Job("job", rank=0, world_size=1, runtime_dir=tmp_path), ddp, optimizer, policy) as sync:
        for _ in range(5):
            optimizer.zero_grad()
            ddp(torch.randn(4, 8)).square().sum().backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1e-3)
            optimizer.step()
        return value_of(sync._dissimilarity)


@pytest.mark.usefixtures("alone")
def test_clipping_does_not_change_the_mean(tmp_path: Path) -> None:
    """The mean is read right after DDP computed it, before it is changed for the update."""
    assert trained(tmp_path, "auto") == 0.0


@pytest.mark.usefixtures("alone")
def test_other_policies_observe_no_gradients(tmp_path: Path) -> None:
    """Only the controller needs them."""
    assert math.isnan(trained(tmp_path, "bsp"))
