"""Injection: batch sizes, the draw of the sharing ranks, and the layout of a block. Real ranks share in tests/integration."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from timesyncd.training.torch.data import Injection, _Block, _SampleType, injected_batch_size, sharing_ranks


class Alone:
    """The part of a process group that an Injection of one rank uses."""

    def size(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("alpha", "beta", "ranks", "own"),
    [(0.5, 0.5, 8, 11), (0.75, 0.75, 8, 6), (0.5, 0.5, 10, 9), (0.5, 0.5, 4, 16), (0, 0.5, 8, 32), (1, 1, 1_000, 1)],
)
def test_the_papers_batch_sizes(alpha: float, beta: float, ranks: int, own: int) -> None:
    """Of 32: 32/3 and 32/5.5 are the paper's 11 and 6, which Eq. 3 gives for 8 ranks; never less than one."""
    assert injected_batch_size(32, alpha, beta, ranks) == own


@pytest.mark.parametrize(
    ("alpha", "ranks", "count"), [(0, 4, 0), (0.1, 4, 1), (0.5, 4, 2), (0.6, 4, 2), (1, 4, 4), (0.5, 3, 2)]
)
def test_the_number_of_sharing_ranks(alpha: float, ranks: int, count: int) -> None:
    """To the nearest number, half to the even one; at least one."""
    assert {len(set(sharing_ranks(alpha, ranks, 0, step))) for step in range(20)} == {count}


def test_each_step_draws_other_sharing_ranks() -> None:
    """Every rank is drawn about equally often; another seed draws other ranks; the same step draws the same."""
    draws = [sharing_ranks(0.5, 4, 7, step) for step in range(400)]
    assert (
        draws
        == [sharing_ranks(0.5, 4, 7, step) for step in range(400)]
        != [sharing_ranks(0.5, 4, 8, step) for step in range(400)]
    )
    assert all(150 < count < 250 for count in Counter(rank for ranks in draws for rank in ranks).values())
    assert all(list(ranks) == sorted(ranks) for ranks in draws)


@pytest.mark.parametrize("parts", [(-0.1, 0.5), (0.5, -0.1), (0.5, 1.1), (2, 0), (0, float("nan"))])
def test_invalid_fractions_are_rejected(parts: tuple[float, float]) -> None:
    """Rejected at once."""
    group: Any = Alone()
    with pytest.raises(ValueError, match="from 0 to 1"):
        Injection(*parts, group, 0)


def test_a_single_rank_shares_nothing() -> None:
    """It keeps its batch, without a collective."""
    group: Any = Alone()
    inputs, targets = torch.ones(2, 3), torch.ones(2)
    given = Injection(1, 1, group, 0).inject(0, inputs, targets)
    assert given[0] is inputs and given[1] is targets


BLOCK = _Block(6, _SampleType((3,), torch.uint8), _SampleType((), torch.int64))


@pytest.mark.parametrize(("wanted", "size"), [(6, 9), (7, 9), (1, 1), (0, 0)])
def test_a_block_has_one_size(wanted: int, size: int) -> None:
    """16 octets for the count, 18 rounded up to 32 for six inputs, 48 for six targets; fewer are marked as fewer, and more are not taken."""
    inputs, targets = torch.arange(3 * size, dtype=torch.uint8).view(size, 3), torch.arange(size) - 2**62
    octets = torch.zeros(BLOCK.nbytes, dtype=torch.uint8)
    BLOCK.write(octets, inputs, targets, wanted)
    read = BLOCK.read(octets)
    assert len(octets) == 96
    assert torch.equal(read[0], inputs[: min(wanted, 6)]) and torch.equal(read[1], targets[: min(wanted, 6)])


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), "2 inputs and 1 targets"),
        (
            torch.zeros(2, 4, dtype=torch.uint8),
            torch.zeros(2, dtype=torch.int64),
            r"torch.uint8 \[4\] with .* pad all samples to one shape",
        ),
        (torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2), "torch.float32"),
    ],
)
def test_samples_that_do_not_fit_are_rejected(inputs: torch.Tensor, targets: torch.Tensor, words: str) -> None:
    """Another number, shape or type than before."""
    with pytest.raises(ValueError, match=words):
        BLOCK.check(inputs, targets)
