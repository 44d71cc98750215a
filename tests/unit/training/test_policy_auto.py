"""The controller of `auto` with the measurements of ranks in a simple world: choices, guard, steadiness under noise."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from auto_world import World

from timesyncd.training.policy.auto import Controller
from timesyncd.training.policy.policies import ChangeReason, LocalSGD
from timesyncd.training.policy.text import parse_policy


def test_nothing_is_changed_where_bsp_costs_nothing() -> None:
    """Communication that is hidden leaves nothing to gain."""
    assert World(ratio=0.02).run(1600).changes == []


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.1, "local_sgd(h=7)"),
        (0.6, "local_sgd(h=18)"),
        (1.9, "local_sgd(h=32)"),
        (8.0, "local_sgd(h=47) + fp16"),
        (14.0, "local_sgd(h=62) + fp16"),
        (30.0, "local_sgd(h=64, delay=17) + fp16"),
        (200.0, "local_sgd(h=64, delay=63) + fp16"),
    ],
)
def test_the_same_kind_of_data_is_averaged_rarely_or_in_the_background(ratio: float, text: str) -> None:
    """After a trial where gradients leave it in doubt, otherwise at once, with the same result."""
    tried, known = World(ratio, ranks=2).run(320), World(ratio, ranks=2, apart=0.1).run(320)

    assert tried.text == known.text == text
    assert [parse_policy(choice.text).policy for _, choice in tried.changes[:1]] == [LocalSGD(16)]
    assert known.changes[0][1].reason_code is ChangeReason.SAME_DATA
    assert "see the same kind of data (gradient dissimilarity 0.1)" in known.changes[0][1].reason
    assert all(step == 0 or step >= 32 for step, _ in known.changes)


def test_a_first_step_that_waited_little_does_not_forbid_half_precision() -> None:
    """The first row of BSP, before a queue in the network filled up, counts less than two timed averagings."""
    world = World(1.3).run(8)
    world.ratio = 12.0
    world.run(320)

    assert [choice.text for _, choice in world.changes] == ["local_sgd(h=16)", "local_sgd(h=34) + fp16"]


@pytest.mark.parametrize(("ranks", "h"), [(2, 33), (4, 20), (8, 12), (64, 8)])
def test_more_ranks_are_averaged_more_often(ranks: int, h: int) -> None:
    """By the ranks to the power of 3/4, until averagings cost a quarter of the time."""
    assert World(2.0, ranks=ranks).run(320).text == f"local_sgd(h={h})"


@pytest.mark.parametrize(
    ("ratio", "drift", "text"),
    [
        (0.2, 0.4, "bsp"),
        (0.6, 0.4, "bsp"),
        (2.0, 0.4, "local_sgd(h=19)"),
        (8.0, 0.4, "local_sgd(h=27) + fp16"),
        (8.0, 0.75, "local_sgd(h=18) + fp16"),
        (10.0, 2.4, "bsp + topk(ratio=0.01)"),
        (60.0, 2.0, "bsp + topk(ratio=0.01)"),
        (60.0, 0.4, "local_sgd(h=64) + fp16"),
    ],
)
def test_ranks_wait_for_averagings_of_different_data(ratio: float, drift: float, text: str) -> None:
    """The more the loss jumps at averagings, the shorter is the interval, and ranks wait for each; or it is BSP."""
    world = World(ratio, drift).run(800)

    assert world.text == text
    assert all("delay" not in choice.text for _, choice in world.changes)


@pytest.mark.parametrize(
    ("ratio", "apart", "ranks", "texts"),
    [
        (0.3, 5.0, 2, []),
        (1.5, 5.0, 2, ["local_sgd(h=12)"]),
        (7.0, 5.0, 2, ["local_sgd(h=19) + fp16"]),
        (1.2, 26.0, 4, []),
        (2.6, 26.0, 4, ["bsp + fp16", "bsp + topk(ratio=0.01)"]),
        (8.0, 26.0, 4, ["bsp + fp16", "bsp + topk(ratio=0.01)"]),
        (40.0, 26.0, 4, ["bsp + fp16", "bsp + topk(ratio=0.01)"]),
    ],
)
def test_gradients_show_different_data_before_a_trial(ratio: float, apart: float, ranks: int, texts: list[str]) -> None:
    """No steps are spent on a trial with data that is different beyond doubt; where BSP is faster nothing changes."""
    world = World(ratio, drift=0.6, apart=apart, ranks=ranks).run(800)

    assert [choice.text for _, choice in world.changes] == texts
    assert all(choice.reason_code is ChangeReason.DIFFERENT_DATA for _, choice in world.changes[:1])
    assert all(
        f"different data (gradient dissimilarity {apart:.2g})" in choice.reason for _, choice in world.changes[:1]
    )


@pytest.mark.parametrize(("slowed", "texts"), [(1.0, ["local_sgd(h=9)", "bsp"]), (2.0, ["local_sgd(h=9)"])])
def test_bsp_is_compared_by_how_long_its_steps_took(slowed: float, texts: list[str]) -> None:
    """Computing takes longer beside DDP's transfers, or hides them: what local steps save is known when some are timed."""
    world = World(0.8 * slowed, drift=0.4, apart=5.0, ranks=2, slowed=slowed).run(800)

    assert [choice.text for _, choice in world.changes] == texts


def test_a_link_that_is_somewhat_faster_for_a_while_does_not_end_averagings() -> None:
    """They are as fast as BSP then, and a change costs more; on a link five times as fast BSP is faster beyond doubt."""
    world, texts = World(1.6, drift=0.4, apart=5.0, ranks=2, slowed=1.2), []
    for ratio in (1.6, 0.9, 0.3):
        world.ratio = ratio
        texts.append(world.run(160).text.partition("(")[0])

    assert texts == ["local_sgd", "local_sgd", "bsp"]


def test_the_jumps_of_the_first_trial_determine_the_interval() -> None:
    """They grow as ranks learn, whatever the interval; it must not shrink with them."""
    world = World(8.0, drift=0.75).run(80)
    world.drift = 3.0
    world.run(1600)

    assert [choice.text for _, choice in world.changes] == ["local_sgd(h=16) + fp16", "local_sgd(h=18) + fp16"]


def test_two_misleading_averagings_do_not_lead_to_bsp_for_good() -> None:
    """Sometimes two averagings make data look different: after 384 steps of BSP another trial corrects it."""
    world = World(0.15, drift=0.2, ranks=2).run(80)
    first, world.drift = world.text, -0.03
    world.run(1600)

    assert first == "bsp"
    assert [choice.text for _, choice in world.changes] == [
        "local_sgd(h=16)",
        "bsp",
        "local_sgd(h=16)",
        "local_sgd(h=9)",
    ]
    assert world.changes[2][0] - world.changes[1][0] == 384


def test_retrials_of_uncertain_data_become_rare() -> None:
    """After 384, 768 and 1,536 steps, and 32 for each trial: their cost tends to zero."""
    world = World(0.15, drift=0.25).run(4000)
    tried = [step for step, choice in world.changes if choice.text == "local_sgd(h=16)"]

    assert [later - earlier for earlier, later in pairwise(tried)] == [416, 800, 1568]


def test_certainly_different_data_is_not_tried_again_before_the_link_slows_down() -> None:
    """A trial costs steps that learn little; there is one where half of the waiting would make averagings faster."""
    world = World(1.0, drift=0.6).run(3200)
    world.ratio = 2.0  # a part of the waiting may be for slower ranks, not for the link
    world.run(800)
    before, world.ratio = [choice.text for _, choice in world.changes], 5.0
    world.run(320)

    assert before == ["local_sgd(h=16)", "bsp"]
    assert world.changes[2][0] - 4000 == 32
    assert world.text == "local_sgd(h=18) + fp16"


def test_the_averaging_on_the_way_to_bsp_does_not_count() -> None:
    """It comes a few steps after the trial, so it changes the loss less, and would make a certain trial look uncertain."""
    world = World(0.5, drift=0.5).run(56)
    assert world.text == "bsp"

    assert world.controller.update([replace(row, jump=0.0) for row in world.rows()]) is None
    world.run(3200)

    assert world.text == "bsp"
    assert len(world.changes) == 2


@pytest.mark.parametrize("ratio", [0.3, 4.0, 30.0])
@pytest.mark.parametrize("drift", [-0.03, 0.6])
def test_noise_of_a_third_changes_little(ratio: float, drift: float) -> None:
    """In 1,600 steps whose measurements scatter by a third it settles, and changes rarely, not at every row."""
    world = World(ratio, drift, noise=0.33, loss=0.5).run(1600, loss_factor=1.0)
    tried = [choice for _, choice in world.changes if choice.reason_code is ChangeReason.RETRIAL]

    assert len(world.changes) - 2 * len(tried) <= 8
    assert ("delay" in world.text) == (ratio > 20 and drift < 0)


def test_a_link_that_slows_down_is_followed() -> None:
    """The interval grows with the transfer; where no interval is long enough no rank waits, and a transfer may take even longer."""
    world, texts = World(1.2, ranks=2), []
    for ratio in (1.2, 2.6, 12.0, 40.0):
        world.ratio = ratio
        texts.append(world.run(160).text)

    assert texts == [
        "local_sgd(h=26)",
        "local_sgd(h=27) + fp16",
        "local_sgd(h=58) + fp16",
        "local_sgd(h=64, delay=22) + fp16",
    ]


@pytest.mark.parametrize("grows", [1.02, 1.1, 1.5])
def test_a_rising_loss_is_taken_back_step_by_step(grows: float) -> None:
    """First ranks wait for averagings, then intervals are halved, then it is BSP for good, each time with the reason; however fast the loss rises."""
    world = World(30.0).run(448).run(4000, loss_factor=grows)
    after = [choice for step, choice in world.changes if step >= 448]

    assert [choice.text for choice in after] == [
        "local_sgd(h=32) + fp16",
        "local_sgd(h=16) + fp16",
        "local_sgd(h=8) + fp16",
        "local_sgd(h=4) + fp16",
        "local_sgd(h=2) + fp16",
        "bsp",
    ]
    assert all(choice.reason_code is ChangeReason.LOSS_ROSE for choice in after)
    assert all("the loss rose from" in choice.reason for choice in after)


@pytest.mark.parametrize(
    ("losses", "code", "reason"),
    [
        (math.inf, ChangeReason.LOSS_INFINITE, "infinite"),
        (math.nan, ChangeReason.LOSS_MISSING, "no rank reported a loss above zero"),
        (0.0, ChangeReason.LOSS_MISSING, "no rank reported a loss above zero"),
    ],
)
def test_without_a_loss_that_is_a_number_it_is_bsp(losses: float, code: ChangeReason, reason: str) -> None:
    """A choice that cannot be guarded is taken back."""
    world = World(8.0).run(160)
    world.loss = losses
    world.run(320)

    assert world.text == "bsp"
    assert world.changes[-1][1].reason_code is code
    assert reason in world.changes[-1][1].reason


def test_a_loss_that_rose_under_bsp_is_detected_after_it() -> None:
    """BSP is not guarded; the guard may detect the rise right after a link has slowed down, before an averaging is timed."""
    world = World(0.02).run(160, loss_factor=1.1)
    world.ratio = 8.0
    world.run(16)
    choice = world.controller.update([replace(row, transfer_ns=None, jump=math.nan) for row in world.rows()])

    assert world.text == "local_sgd(h=16) + fp16"
    assert choice is not None
    assert choice.text == "local_sgd(h=8) + fp16"
    assert "the loss rose from" in choice.reason
    world.text = choice.text
    assert world.run(320).text == "local_sgd(h=8) + fp16"


def test_occasional_losses_lead_to_bsp() -> None:
    """What averagings do to the loss is unknown then, so the trial ends."""
    world = World(8.0, drift=math.nan).run(480)

    assert [choice.text for _, choice in world.changes] == ["local_sgd(h=16) + fp16", "bsp"]
    assert world.changes[-1][1].reason_code is ChangeReason.JUMP_MISSING
    assert "in each step, with a loss above zero" in world.changes[-1][1].reason


def test_it_does_not_begin_without_losses() -> None:
    """A script that records no loss gets BSP."""
    assert World(8.0, reports_loss=False).run(800).changes == []


@pytest.mark.parametrize("apart", [math.nan, 26.0])
def test_all_ranks_choose_alike_also_after_a_restart(apart: float) -> None:
    """Two controllers with the same rows, one of them loaded from a checkpoint at every row, choose the same."""
    world, other = World(8.0, noise=0.3, apart=apart), Controller()
    for _ in range(60):
        rows = world.rows()
        loaded = Controller()
        loaded.load_state_dict(other.state_dict())
        other = loaded
        choice = world.controller.update(rows)
        assert other.update(rows) == choice
        world.text = choice.text if choice is not None else world.text
        world.step += world.to_next_rows()
    assert ("topk" in world.text) == (apart > 0)


@pytest.mark.parametrize(
    ("ratio", "within", "text"), [(8.0, 160, "local_sgd(h=25) + fp16"), (30.0, 1600, "local_sgd(h=48) + fp16")]
)
def test_data_that_becomes_different_is_detected(ratio: float, within: int, text: str) -> None:
    """By each averaging that ranks wait for; in the background by trials."""
    world = World(ratio).run(480)
    world.drift = 0.5
    world.run(within)

    assert [choice.text for _, choice in world.changes[-2:]] == ["local_sgd(h=16) + fp16", text]


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_that_scatters_does_not_look_like_drift(seed: int) -> None:
    """As with the same kind of data late in training: losses of single batches scatter by half, and averaging lowers them by a fifth."""
    world = World(4.0)
    world.run(80)
    drawn = random.Random(seed)
    for _ in range(30):
        rows = [replace(row, jump=math.exp(drawn.gauss(-0.2, 0.5)) - 1) for row in world.rows()]
        choice = world.controller.update(rows)
        assert choice is None


def test_a_row_without_computing_is_no_division_by_zero() -> None:
    """A clock that stood still causes no error."""
    rows = [replace(row, compute_ns=0) for row in World(8.0).rows()]

    assert Controller().update(rows) is not None
