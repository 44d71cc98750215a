"""Shares of the batch by measured speed, and the weights that keep the gradient that of the whole batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.row import Row
from timesyncd.training.policy.shares import Balancer, batch_shares, batch_sizes, loss_weight
from timesyncd.training.policy.text import parse_policy
from timesyncd.training.torch.batches import Batches

SHARES = st.lists(st.floats(0.01, 10), min_size=1, max_size=9).map(lambda ns: tuple(n / sum(ns) for n in ns))


def test_a_rank_half_as_fast_gets_half_as_much() -> None:
    """All compute equally long then."""
    assert batch_shares([10.0, 20.0, 10.0]) == pytest.approx((0.4, 0.2, 0.4))


@given(SHARES, st.integers(0, 1000))
def test_the_sizes_add_up_to_the_batch(shares: tuple[float, ...], more: int) -> None:
    """Each rank has one sample at least, and its share of the others to less than one."""
    batch = len(shares) + more
    sizes = batch_sizes(shares, batch)
    assert sum(sizes) == batch and min(sizes) >= 1
    assert all(abs(size - 1 - share * more) < 1 for size, share in zip(sizes, shares, strict=True))


def test_a_batch_smaller_than_the_ranks_is_an_error() -> None:
    """A rank without samples has no loss."""
    with pytest.raises(ValueError, match="the batch has 2 samples for 3 ranks"):
        batch_sizes((0.4, 0.3, 0.3), 2)


@given(SHARES, st.integers(0, 40), st.integers(0, 2**32))
def test_the_gradient_is_that_of_the_whole_batch(shares: tuple[float, ...], more: int, seed: int) -> None:
    """The mean over the ranks of the weighted gradients is the gradient of the mean loss of all samples, to rounding."""
    drawn = torch.Generator().manual_seed(seed)
    batch, ranks = len(shares) + more, len(shares)
    inputs = torch.randn(batch, 4, generator=drawn, dtype=torch.float64)
    weight = torch.randn(4, generator=drawn, dtype=torch.float64, requires_grad=True)
    sizes = batch_sizes(shares, batch)

    (whole,) = torch.autograd.grad((inputs @ weight).tanh().mean(), weight)
    mean, begin = torch.zeros(4, dtype=torch.float64), 0
    for rank, size in enumerate(sizes):
        loss = (inputs[begin : begin + size] @ weight).tanh().mean() * loss_weight(sizes, rank)
        mean += torch.autograd.grad(loss, weight)[0] / ranks
        begin += size
    assert torch.allclose(mean, whole, rtol=0, atol=1e-14)


def test_the_weights_are_exact_where_the_numbers_are() -> None:
    """Sizes of 1, 2 and 5 of 8: the gradient of a sum of whole numbers is equal to the bit."""
    sizes = (1, 2, 5)
    inputs = torch.arange(8, dtype=torch.float64) * 5 * 3
    means = [part.mean() for part in torch.split(inputs, list(sizes))]
    weighted = [mean * loss_weight(sizes, rank) for rank, mean in enumerate(means)]
    assert float(sum(weighted)) / 3 == float(inputs.mean())


def times(balancer: Balancer, speeds: list[float], fixed_ns: float = 0) -> list[int]:
    """What each rank computes of its present share, with a time that no batch changes."""
    return [round(fixed_ns + 1e9 * share / speed) for share, speed in zip(balancer.shares, speeds, strict=True)]


@pytest.mark.parametrize("fixed_ns", [0, 5e7])
def test_the_shares_settle_where_all_compute_equally_long(fixed_ns: float) -> None:
    """Within a fiftieth, also where a part of a step does not depend on the batch; then they stay."""
    balancer, speeds = Balancer(4), [1.0, 1.0, 0.5, 1.0]
    for step in range(0, 400, 8):
        balancer.measure(times(balancer, speeds, fixed_ns), step, step + 8)
    found = times(balancer, speeds, fixed_ns)

    assert sum(balancer.shares) == pytest.approx(1)
    assert max(found) < 1.03 * (sum(found) / 4)
    assert 2 <= balancer.changes <= 8


def test_equal_ranks_keep_equal_shares() -> None:
    """Scatter of a percent moves nothing."""
    balancer = Balancer(2)
    for step in range(0, 80, 8):
        assert not balancer.measure([1_000_000, 1_010_000 - 20_000 * (step % 16 // 8)], step, step + 8)
    assert balancer.shares == (0.5, 0.5)


def test_steps_with_former_shares_do_not_count() -> None:
    """After a change the first measurements cover steps of before it, and another change would overshoot."""
    balancer = Balancer(2)
    assert not balancer.measure([10, 20], 3, 3)  # since the start: the first steps are slow
    assert balancer.measure([10, 20], 11, 19)
    assert not balancer.measure([10, 20], 19, 27)  # begun in step 11
    assert not balancer.measure([10, 20], 27, 35)  # begun in step 19, the one of the change
    assert balancer.measure([10, 20], 35, 43)


def test_what_is_not_measured_changes_nothing() -> None:
    """A rank without a timed step reports 0."""
    balancer = Balancer(2)
    balancer.measure([10, 20], 3, 3)
    assert not balancer.measure([0, 20], 11, 19)


def test_a_very_slow_rank_keeps_a_tenth_of_an_equal_share() -> None:
    """With nothing to compute it could not be seen to recover."""
    balancer = Balancer(2)
    for step in range(0, 800, 8):
        balancer.measure(times(balancer, [1.0, 0.001]), step, step + 8)
    assert balancer.shares[1] == pytest.approx(0.05, rel=0.06)


def test_parts_are_disjoint_and_whole() -> None:
    """Each rank's slice begins where that of the rank before ends; the loss has its weight."""
    ranks = [Batches(place, (0, 1), True, 2) for place in range(2)]
    for rank in ranks:
        rank.begin_strategy(parse_policy("bsp"))
        for step in (3, 11):
            rank.measure([Row(step, compute_ns=10), Row(step, compute_ns=30)], step + 8)
    assert [rank.part(10) for rank in ranks] == [slice(0, 6), slice(6, 10)]
    assert float(ranks[1].weigh(torch.tensor(1.0))) == pytest.approx(2 * 4 / 10)


def test_shares_are_equal_where_parameters_are_averaged() -> None:
    """A rank's updates with a smaller part would count as much as the others'."""
    batches = Batches(0, (0, 1), True, 2)
    batches.begin_strategy(parse_policy("bsp"))
    for step in (3, 11):
        batches.measure([Row(step, compute_ns=10), Row(step, compute_ns=30)], step + 8)
    batches.begin_strategy(parse_policy("local_sgd(h=4)"))
    assert batches.shares == (0.5, 0.5)


def test_shares_are_restored() -> None:
    """And a loss needs a part before it has a weight."""
    batches, other = Batches(0, (0, 1), True, 2), Batches(0, (0, 1), True, 2)
    for step in (3, 11):
        batches.measure([Row(step, compute_ns=10), Row(step, compute_ns=30)], step + 8)
    other.load_state_dict(batches.state_dict())
    assert other.shares == batches.shares != (0.5, 0.5)
    with pytest.raises(ValueError, match=r"call batches\.part"):
        other.weigh(torch.tensor(1.0))


def test_ranks_of_one_replica_are_not_divided() -> None:
    """With model parallelism the ranks of a replica need the same samples."""
    with pytest.raises(ValueError, match="balance deals batches to data-parallel ranks"):
        Batches(0, (0, 2), True, 4)
