"""How `auto` encodes BSP's gradients: each encoding is timed against the one before, and the one that needs more steps is guarded."""

from __future__ import annotations

import math

import pytest
from auto_world import World

from timesyncd.training.policy.constants import TOPK_RATIO
from timesyncd.training.policy.encoding import ENCODINGS, HALF_PRECISION, TOPK, GradientEncoding
from timesyncd.training.policy.policies import ChangeReason
from timesyncd.training.policy.text import TopK, parse_policy

HALF, TOP_K = "bsp + fp16", "bsp + topk(ratio=0.01)"


def texts(world: World) -> list[str]:
    return [choice.text for _, choice in world.changes]


def test_the_text_of_top_k_has_its_ratio() -> None:
    """The controller computes with the ratio that the policy's text has."""
    assert parse_policy(f"bsp{ENCODINGS[TOPK][1]}").compression == TopK(TOPK_RATIO)


def test_half_precision_that_makes_no_step_faster_is_given_up() -> None:
    """On a fast link the conversion costs more than it saves."""
    world = World(2.6, drift=0.6, apart=26.0).run(8)
    world.ratio = 6.0
    world.run(800)

    assert [(step, choice.text) for step, choice in world.changes] == [(0, "bsp + fp16"), (24, "bsp")]
    assert world.changes[1][1].reason_code is ChangeReason.ENCODING_SLOWER
    assert "half precision makes a step" in world.changes[1][1].reason


def test_top_k_is_used_where_ranks_still_wait_long_in_half_precision() -> None:
    """One row in half precision is enough to try it, and three with top-k to keep it."""
    world = World(8.0, apart=26.0).run(1600)

    assert [(step, choice.text) for step, choice in world.changes] == [(0, HALF), (8, TOP_K)]
    assert world.changes[1][1].reason == "in half precision the ranks wait for 4 times their computing time"


@pytest.mark.parametrize("ranks", [50, 64])
def test_top_k_is_not_tried_where_it_sends_as_much(ranks: int) -> None:
    """Each element goes to all ranks, so with 50 ranks a hundredth is as much as half precision."""
    assert texts(World(8.0, apart=26.0, ranks=ranks).run(1600)) == [HALF]


@pytest.mark.parametrize(
    ("former_ns", "waited", "is_tried"),
    [(118.0, 3.0, False), (123.0, 3.0, True), (200.0, 0.2, False), (None, 0.2, False), (None, 0.3, True)],
)
def test_top_k_is_tried_where_sending_nothing_would_pay(former_ns: float | None, waited: float, is_tried: bool) -> None:
    """Half of the octets shortened a step from 123 to 100 ns, so the other half may shorten it to 77. Ranks may wait for each other too."""
    encoding = GradientEncoding(HALF_PRECISION, former_ns)

    assert (encoding.evaluate(100.0, waited, 4, is_sure=True) is not None) == is_tried
    assert encoding.settled != is_tried


@pytest.mark.parametrize(("choosing", "expected"), [(1.0, ""), (1.5, "top-k makes a step 1 times as long")])
def test_top_k_may_take_too_long(choosing: float, expected: str) -> None:
    """Where it learns more slowly it is given up for good; where it is about as fast it stays, because leaving it has a price."""
    changes = World(3.0, apart=26.0, choosing=choosing).run(3200).changes

    assert [(step, choice.text) for step, choice in changes] == [(0, HALF), (8, TOP_K), (32, HALF)][: len(changes)]
    assert [choice.reason for _, choice in changes[2:]] == ([expected] if expected else [])


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_noise_does_not_make_it_restless(noise: float) -> None:
    """Each encoding is evaluated once, whatever the noise."""
    for seed in range(20):
        world = World(3.0, apart=26.0, choosing=1.0, noise=noise)
        world.random.seed(seed)
        assert len(world.run(1600, loss_factor=1.0).changes) <= 3


def test_a_loss_that_rises_ends_it() -> None:
    """Half precision learns as much as full precision, and stays, whatever the loss does."""
    world = World(8.0, apart=26.0).run(400).run(1600, loss_factor=1.1)

    assert texts(world) == [HALF, TOP_K, HALF]
    assert world.changes[2][1].reason_code is ChangeReason.LOSS_ROSE
    assert "the loss rose from" in world.changes[2][1].reason


@pytest.mark.parametrize(
    ("loss", "code", "reason"),
    [
        (math.inf, ChangeReason.LOSS_INFINITE, "infinite"),
        (math.nan, ChangeReason.LOSS_MISSING, "no rank reported a loss above zero"),
    ],
)
def test_without_a_loss_it_ends(loss: float, code: ChangeReason, reason: str) -> None:
    """A choice that cannot be guarded is taken back."""
    world = World(8.0, apart=26.0).run(160)
    world.loss = loss
    world.run(800)

    assert texts(world)[2:] == ["bsp"]
    assert world.changes[-1][1].reason_code is code
    assert reason in world.changes[-1][1].reason


def test_an_uncertain_measurement_is_not_evaluated() -> None:
    """After averagings the first row in half precision may contain earlier steps, with which the next encoding would be compared."""
    encoding = GradientEncoding(HALF_PRECISION)

    assert encoding.evaluate(87.0, 3.0, 4, is_sure=False) is None
    assert (encoding.index, encoding.settled) == (HALF_PRECISION, False)
    assert encoding.evaluate(87.0, 3.0, 4, is_sure=True) is not None
    assert encoding.index == TOPK


def test_an_encoding_without_a_comparison_is_not_given_up() -> None:
    """From averagings to BSP in half precision: the duration in full precision is unknown."""
    encoding = GradientEncoding(HALF_PRECISION)

    assert encoding.evaluate(9e9, 0.2, 4, is_sure=True) is None
    assert (encoding.index, encoding.settled) == (HALF_PRECISION, True)
