"""`auto` harms no model: BSP in a warm-up, less sent where nothing shows that the loss keeps up, and a guard by the validation loss."""

from __future__ import annotations

import math

import pytest
import torch
from auto_world import World, interval_of
from torch import nn

from timesyncd.training.policy.auto import Controller
from timesyncd.training.policy.policies import ChangeReason
from timesyncd.training.policy.text import parse_policy
from timesyncd.training.torch.measurements import StepTimer
from timesyncd.training.torch.optimizers import is_adaptive


def texts(world: World) -> list[str]:
    return [choice.text for _, choice in world.changes]


def test_bsp_stays_while_the_learning_rate_rises() -> None:
    """In the first step after it averagings begin, as without a warm-up."""
    world = World(8.0, apart=0.0, rate=0.001)
    for _ in range(10):
        world.rate *= 1.1
        world.run(8)
    assert world.changes == []
    world.run(8)
    assert texts(world) == ["local_sgd(h=64) + fp16"] or texts(world)[0].startswith("local_sgd")


def test_a_falling_or_unknown_rate_is_no_warm_up() -> None:
    """The first rows decide then."""
    for rate in (math.nan, 0.1):
        world = World(8.0, apart=0.0, rate=rate)
        world.rate *= 0.9
        assert texts(world.run(8))[0].startswith("local_sgd")


@pytest.mark.parametrize("rises", [False, True])
def test_an_adaptive_optimizer_sends_less_where_nothing_shows_the_loss(rises: bool) -> None:
    """Half precision and no averaging, in a warm-up too, with the reason; once, before the first trial (`test_loss_probe`)."""
    world = World(8.0, apart=0.0, is_adaptive=True, rate=0.001)
    for _ in range(10):
        world.rate *= 1.1 if rises else 0.9
        world.run(8)
    world.run(400)

    assert texts(world) == ["bsp + fp16"]
    assert world.changes[0][1].reason_code is ChangeReason.LOSS_UNPROVEN
    assert ("the learning rate rises" if rises else "call record_validation(loss)") in world.changes[0][1].reason


def test_where_ranks_hardly_wait_nothing_is_sent_less() -> None:
    """Rounding for a saving below a tenth of a step is not worth it."""
    assert World(0.2, apart=0.0, is_adaptive=True).run(400).changes == []


def test_the_course_of_a_validation_loss_allows_rare_averagings() -> None:
    """Three of them make a course."""
    world = World(8.0, apart=0.0, is_adaptive=True).run(80)
    before, world.validation = world.text, 2.0
    world.run(80)

    assert before == "bsp + fp16"
    assert interval_of(parse_policy(world.text).policy) > 1


@pytest.mark.parametrize(("rise", "is_taken_back"), [(1.005, False), (1.03, True)])
def test_a_validation_loss_that_rises_is_taken_back(rise: float, is_taken_back: bool) -> None:
    """By more than 2 %, twice in a row: gradients are averaged in every step from then on."""
    world = World(8.0, apart=0.0, is_adaptive=True, validation=2.0).run(160)
    before = len(world.changes)
    world.validation *= rise
    world.run(600)
    taken_back = [choice for _, choice in world.changes[before:] if choice.reason_code is ChangeReason.LOSS_ROSE]

    assert bool(taken_back) == is_taken_back
    if is_taken_back:
        assert taken_back[0].reason.startswith("the validation loss rose from 2 to 2.06; under BSP the ranks wait")
        assert [choice.text for _, choice in world.changes[before:]] == ["bsp + fp16"]


def test_a_validation_loss_that_falls_more_slowly_than_before_is_taken_back() -> None:
    """Averagings may slow learning down without any rise: the course before them predicts what it would be."""
    world = World(8.0, apart=0.0, is_adaptive=True, validation=4.0)
    while interval_of(parse_policy(world.text).policy) == 1:
        world.run(8)
        world.validation *= 0.9
    world.run(200)
    taken_back = [choice for _, choice in world.changes if choice.reason_code is ChangeReason.LOSS_ROSE]

    assert ", and by its course before it would be " in taken_back[0].reason
    assert world.text == "bsp + fp16"


def test_one_larger_validation_loss_is_no_rise() -> None:
    """It may be chance."""
    world = World(8.0, apart=0.0, validation=2.0).run(160)
    before = len(world.changes)
    for validation in (2.5, 1.9, 2.5, 1.9):
        world.validation = validation
        assert world.controller.update(world.rows()) is None
    assert len(world.changes) == before


def test_the_state_survives_a_restart() -> None:
    """With what is in force and what was measured before it."""
    world = World(8.0, apart=0.0, is_adaptive=True).run(80)
    loaded = Controller()
    loaded.load_state_dict(world.controller.state_dict())
    assert vars(loaded)["_adaptive"] == vars(world.controller)["_adaptive"]
    assert vars(loaded)["_adaptive"].text == world.text


def test_adam_is_adaptive_and_sgd_is_not() -> None:
    """By its two betas."""
    parameters = list(nn.Linear(2, 2).parameters())
    assert is_adaptive(torch.optim.AdamW(parameters)) and is_adaptive(torch.optim.NAdam(parameters))
    assert not is_adaptive(torch.optim.SGD(parameters, lr=0.1)) and not is_adaptive(torch.optim.Adagrad(parameters))


def test_a_validation_loss_is_reported_once() -> None:
    """In the next summary alone."""
    timer = StepTimer()
    timer.record_validation(torch.tensor(1.5))
    assert timer.summarize([]).validation == 1.5
    assert math.isnan(timer.summarize([]).validation)
