"""How `auto` sends BSP's gradients: each way is timed against the one before, and the one that learns less is guarded."""

from __future__ import annotations

import math

import pytest
from auto_world import World

from timesyncd.training.policy.sending import ENCODINGS, HALF_PRECISION, TOPK, TOPK_RATIO, GradientEncoding
from timesyncd.training.policy.text import TopK, parse_policy

HALVED, LEAST = "bsp + fp16", "bsp + topk(ratio=0.01)"


def texts(world: World) -> list[str]:
    return [choice.text for _, choice in world.changes]


def test_what_is_written_is_what_is_reckoned_with() -> None:
    assert parse_policy(f"bsp{ENCODINGS[TOPK][1]}").compression == TopK(TOPK_RATIO)


def test_half_precision_that_makes_no_faster_step_is_given_up() -> None:
    """On a link that is memory, say, what it costs to make is more than what it saves."""
    world = World(2.6, drift=0.6, apart=26.0).run(8)
    world.ratio = 6.0
    world.run(800)

    assert [(step, choice.text) for step, choice in world.changes] == [(0, "bsp + fp16"), (24, "bsp")]
    assert "half precision makes a step" in world.changes[1][1].why


def test_the_largest_are_sent_where_half_precision_leaves_much_to_wait_for() -> None:
    """One look at half precision is enough to try, and three at the largest to stay."""
    world = World(8.0, apart=26.0).run(1600)

    assert [(step, choice.text) for step, choice in world.changes] == [(0, HALVED), (8, LEAST)]
    assert world.changes[1][1].why == "in half precision ranks wait for 4 times their computing"


@pytest.mark.parametrize("ranks", [50, 64])
def test_the_largest_are_not_tried_where_they_are_no_less(ranks: int) -> None:
    """Each element goes to all ranks, so that with 50 of them a hundredth is as much as half precision."""
    assert texts(World(8.0, apart=26.0, ranks=ranks).run(1600)) == [HALVED]


@pytest.mark.parametrize(
    ("former_ns", "waited", "is_tried"),
    [(118.0, 3.0, False), (123.0, 3.0, True), (200.0, 0.2, False), (None, 0.2, False), (None, 0.3, True)],
)
def test_the_largest_are_tried_where_sending_nothing_would_pay(
    former_ns: float | None, waited: float, is_tried: bool
) -> None:
    """Half of the octets less made a step shorter by 23 of 123 ns: the other half may make it 77. Ranks may wait for one another too."""
    sending = GradientEncoding(HALF_PRECISION, former_ns)

    assert (sending.timed(100.0, waited, 4, is_sure=True) is not None) == is_tried
    assert sending.settled != is_tried


@pytest.mark.parametrize(("choosing", "says"), [(1.0, ""), (1.5, "top-k makes a step 1 times as long")])
def test_choosing_the_largest_may_take_too_long(choosing: float, says: str) -> None:
    """What is no faster, as it learns less a step, is given up, once and for good; where it is about as fast it stays, as leaving it has a price."""
    changes = World(3.0, apart=26.0, choosing=choosing).run(3200).changes

    assert [(step, choice.text) for step, choice in changes] == [(0, HALVED), (8, LEAST), (32, HALVED)][: len(changes)]
    assert [choice.why for _, choice in changes[2:]] == ([says] if says else [])


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_noise_does_not_make_it_restless(noise: float) -> None:
    """Each way is weighed once, whatever the noise."""
    for seed in range(20):
        world = World(3.0, apart=26.0, choosing=1.0, noise=noise)
        world.random.seed(seed)
        assert len(world.run(1600, loss_factor=1.0).changes) <= 3


def test_a_loss_that_rises_ends_it() -> None:
    """Half precision is as good as whole gradients, and stays, whatever the loss does."""
    world = World(8.0, apart=26.0).run(400).run(1600, loss_factor=1.1)

    assert texts(world) == [HALVED, LEAST, HALVED]
    assert "the loss rose from" in world.changes[2][1].why


@pytest.mark.parametrize(("loss", "why"), [(math.inf, "infinite"), (math.nan, "no loss above zero")])
def test_without_a_loss_it_ends(loss: float, why: str) -> None:
    """What cannot be guarded is not done."""
    world = World(8.0, apart=26.0).run(160)
    world.loss = loss
    world.run(800)

    assert texts(world)[2:] == ["bsp"]
    assert why in world.changes[-1][1].why


def test_what_is_in_doubt_is_not_built_upon() -> None:
    """After averagings a first look at half precision may be at steps of before; what is tried next would be compared with them."""
    sending = GradientEncoding(HALF_PRECISION)

    assert sending.timed(87.0, 3.0, 4, is_sure=False) is None
    assert (sending.way, sending.settled) == (HALF_PRECISION, False)
    assert sending.timed(87.0, 3.0, 4, is_sure=True) is not None
    assert sending.way == TOPK


def test_a_way_that_was_never_compared_is_not_given_up() -> None:
    """From averagings to BSP in half precision: what whole gradients would take is not known."""
    sending = GradientEncoding(HALF_PRECISION)

    assert sending.timed(9e9, 0.2, 4, is_sure=True) is None
    assert (sending.way, sending.settled) == (HALF_PRECISION, True)
