"""How different the data of the ranks is, from gradients of which the mean is known."""

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

RANKS, SIZE = 4, 50_000


def bucket_of(parameter: torch.Tensor, gradient: torch.Tensor) -> Any:
    return SimpleNamespace(buffer=lambda: gradient, parameters=lambda: [parameter], gradients=lambda: [gradient])


def reduced(each: list[Dissimilarity], parameter: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    """One step of all ranks: the mean takes the place of what each of them has."""
    buffers = [gradient.clone() for gradient in gradients]
    seen = [one.watch(bucket_of(parameter, buffer)) for one, buffer in zip(each, buffers, strict=True)]
    mean = torch.stack(gradients).mean(0)
    for one, buffer, after in zip(each, buffers, seen, strict=True):
        buffer.copy_(mean)
        if after is not None:
            after()
        one.ended()


def told(apart: float, noise: float, steps: int = 4) -> list[float]:
    """By each rank, where its expected gradient lies `apart` times the mean's length from the mean."""
    drawn = torch.Generator().manual_seed(1)
    parameter, common = torch.empty(SIZE), torch.randn(SIZE, generator=drawn)
    own = torch.randn(RANKS, SIZE, generator=drawn)
    own = (own - own.mean(0)) * apart * math.sqrt(RANKS / (RANKS - 1))
    each = [Dissimilarity() for _ in range(RANKS)]
    for _ in range(steps):
        batches = noise * torch.randn(RANKS, SIZE, generator=drawn)
        reduced(each, parameter, [common + mine + batch for mine, batch in zip(own, batches, strict=True)])
    return [one.told() for one in each]


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("apart", [0.0, 0.5, 2.0])
def test_what_its_data_does_in_each_step_is_told_and_noise_is_not(apart: float, noise: float) -> None:
    """The squared distance from the mean, as a multiple of the mean's square, which noise of the batches makes larger by its mean over the ranks."""
    expected = apart**2 / (1 + noise**2 / RANKS)

    assert told(apart, noise) == pytest.approx([expected] * RANKS, abs=0.1, rel=0.1)


def test_nothing_is_told_before_there_are_two_steps() -> None:
    """One deviation may be noise."""
    assert all(math.isnan(one) for one in told(1.0, 0.0, steps=1))


def test_steps_after_the_first_pairs_are_not_looked_at() -> None:
    """It costs nothing from then on."""
    one, parameter = Dissimilarity(), torch.empty(8)
    for _ in range(PAIRS + 1):
        reduced([one], parameter, [torch.ones(8)])

    assert one.watch(bucket_of(parameter, torch.ones(8))) is None


def test_of_a_large_gradient_a_part_is_looked_at() -> None:
    """Spread over all of it."""
    one, parameter = Dissimilarity(), torch.empty(10 * SAMPLED)
    reduced([one], parameter, [torch.ones(10 * SAMPLED)])
    ((deviation, mean),) = one._former.values()

    assert deviation.numel() == mean.numel() == SAMPLED


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(tmp_path: Path, policy: str) -> float:
    """What a rank of one tells of its gradients, which are clipped before each update."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with synchronized(Job("job", rank=0, world_size=1, runtime_dir=tmp_path), ddp, optimizer, policy) as sync:
        for _ in range(5):
            optimizer.zero_grad()
            ddp(torch.randn(4, 8)).square().sum().backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1e-3)
            optimizer.step()
        return sync._dissimilarity.told()


@pytest.mark.usefixtures("alone")
def test_clipped_gradients_are_not_taken_for_a_mean_far_away(tmp_path: Path) -> None:
    """The mean is read where DDP has just made it, before whatever is done to it for the update."""
    assert trained(tmp_path, "auto") == 0.0


@pytest.mark.usefixtures("alone")
def test_other_policies_look_at_no_gradients(tmp_path: Path) -> None:
    """Only the controller asks."""
    assert math.isnan(trained(tmp_path, "bsp"))
