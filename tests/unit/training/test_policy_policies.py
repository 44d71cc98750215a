"""Policies whose synchronizations are known beforehand: in which steps they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.auto import Auto
from timesyncd.training.policy.policies import (
    ASP,
    BSP,
    QSR,
    SSP,
    Accumulate,
    Combine,
    Decision,
    FedAvg,
    LocalSGD,
    Policy,
    PolicyContext,
    PostLocalSGD,
)
from timesyncd.training.policy.row import Row
from timesyncd.training.policy.schedule import PolicySchedule
from timesyncd.training.policy.text import Strategy


def synced(
    policy: Policy, steps: int, rates: dict[int, float] | None = None, per_epoch: int | None = None
) -> list[int]:
    """The steps that synchronize. `rates`: rank 0's learning rate from a step on."""
    schedule, found, rate = PolicySchedule(Strategy(policy), ranks=2, steps_per_epoch=per_epoch), [], None
    for step in range(steps):
        rate = (rates or {}).get(step, rate)
        decision = schedule.decide([] if rate is None else [[Row(step, rate=rate), Row(step, rate=7.0)]])
        if decision is Decision.SYNC:
            found.append(step)
        schedule.next_step(decision)
    return found


def test_bsp_synchronizes_each_step() -> None:
    """So does `auto` before the controller has measurements."""
    assert synced(BSP(), 4) == synced(Auto(), 4) == [0, 1, 2, 3]


def test_local_sgd_and_accumulation_are_periodic() -> None:
    """In the last of each `h` or `k` steps; a delay changes only when the mean arrives."""
    assert synced(LocalSGD(h=3), 10) == synced(LocalSGD(h=3, delay=2), 10) == synced(Accumulate(k=3), 10) == [2, 5, 8]
    assert synced(LocalSGD(h=1), 3) == synced(Accumulate(k=1), 3) == [0, 1, 2]


def test_post_local_sgd_begins_as_bsp() -> None:
    """`start` steps that all synchronize, then every `h`-th, counted from the last of them."""
    assert synced(PostLocalSGD(start=4, h=3), 14) == [0, 1, 2, 3, 6, 9, 12]
    assert synced(PostLocalSGD(start=0, h=3), 7) == [2, 5]


def test_fedavg_counts_fractions_of_an_epoch() -> None:
    """A quarter of twelve steps is three; less than a step is one."""
    assert synced(FedAvg(c=1, e=0.25), 10, per_epoch=12) == [2, 5, 8]
    assert synced(FedAvg(c=1, e=0.01), 3, per_epoch=12) == [0, 1, 2]
    with pytest.raises(ValueError, match="pass steps_per_epoch"):
        synced(FedAvg(c=1, e=0.25), 1)


def test_fedavg_of_endless_epochs_never_averages() -> None:
    """An infinite fraction is allowed."""
    assert synced(FedAvg(c=1, e=float("inf")), 5, per_epoch=12) == []
    assert synced(FedAvg(c=1, e=1e308), 5, per_epoch=12) == []


@given(st.integers(1, 40), st.floats(0.01, 1), st.integers(0, 2_000))
def test_fedavg_draws_its_part_of_the_ranks(ranks: int, c: float, rounds: int) -> None:
    """They have equal weights with a sum of 1, and the same round always draws the same ranks."""
    weights = FedAvg(c=c, e=1).weights(ranks, rounds)
    drawn = max(1, round(c * ranks))

    if weights is None:
        assert drawn == ranks
        return
    assert sorted(weights) == [0.0] * (ranks - drawn) + [1 / drawn] * drawn
    assert weights == FedAvg(c=c, e=1).weights(ranks, rounds)


def test_fedavg_draws_other_ranks_in_each_round() -> None:
    """In many rounds each rank is drawn about equally often."""
    weights = [FedAvg(c=0.5, e=1).weights(4, rounds) or () for rounds in range(400)]
    for rank in range(4):
        assert 160 <= sum(of_round[rank] > 0 for of_round in weights) <= 240


def test_qsr_averages_less_often_the_smaller_the_learning_rate_is() -> None:
    """H = max(h, floor((alpha / rate)^2)): (0.3 / 0.12)^2 is 6.25, and (0.3 / 0.2)^2 is less than twice 2."""
    assert QSR(h=2, alpha=0.3).interval(1.0) == 2
    assert QSR(h=2, alpha=0.3).interval(0.2) == 2
    assert QSR(h=2, alpha=0.3).interval(0.12) == 6
    assert QSR(h=2, alpha=0.5).interval(0.125) == 16
    assert synced(QSR(h=2, alpha=0.5), 30, rates={0: 1.0, 6: 0.125}) == [1, 3, 5, 21]


def test_qsr_s_learning_rate_may_be_any() -> None:
    """At 0, where a warm-up starts, `h` counts; a rate near 0 gives a finite interval; an optimizer without a rate is an error."""
    assert QSR(h=4, alpha=0.02).interval(0.0) == 4
    assert QSR(h=4, alpha=0.02).interval(1e-300) == 2**32
    with pytest.raises(ValueError, match="the optimizer's first parameter group has no 'lr'"):
        QSR(h=4, alpha=0.02).interval(None)


def test_a_rank_waits_that_is_further_ahead_than_allowed() -> None:
    """With s = 2 the third update ahead waits; without a limit none does."""
    ahead = [SSP(s=2).decide(PolicyContext(step=9, steps_since_sync=1, ranks=2, updates_ahead=n)) for n in range(4)]
    assert ahead == [Decision.SYNC] * 3 + [Decision.WAIT]
    assert SSP(s=0).decide(PolicyContext(step=9, steps_since_sync=1, ranks=2, updates_ahead=1)) is Decision.WAIT
    assert ASP().decide(PolicyContext(step=9, steps_since_sync=1, ranks=2, updates_ahead=99)) is Decision.SYNC


def test_what_policies_combine() -> None:
    """By it torch's side chooses its action."""
    found = [policy.combines for policy in (BSP(), Accumulate(2), LocalSGD(2), PostLocalSGD(1, 2), QSR(1, 1), SSP(1))]
    assert found == [Combine.GRADIENTS, Combine.ACCUMULATED, *[Combine.PARAMETERS] * 3, Combine.SERVER]


def test_an_averaging_ends_before_the_next_one_begins() -> None:
    """A delay of `h` steps or more is rejected."""
    assert LocalSGD(h=3, delay=2).delay == 2
    with pytest.raises(ValueError, match="below h=3"):
        LocalSGD(h=3, delay=3)


@pytest.mark.parametrize(("h", "across", "delay"), [(4, 6, 0), (4, 2, 0), (4, 8, 1)])
def test_an_averaging_of_all_ranks_is_one_of_each_group(h: int, across: int, delay: int) -> None:
    """A period across groups that is no multiple of `h`, or one with a delay, is rejected with both numbers."""
    assert LocalSGD(h=4, across=8).across == 8
    with pytest.raises(ValueError, match=rf"^across is {across}; it must be a multiple of h={h}, and delay must be 0$"):
        LocalSGD(h=h, across=across, delay=delay)
