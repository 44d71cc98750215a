"""The controller of `auto`, fed with what ranks of a simple world measure: choices, guard, steadiness under noise."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from auto_world import World

from timesyncd.training.policy.auto import Controller
from timesyncd.training.policy.policies import LocalSGD
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
def test_like_data_is_averaged_seldom_or_behind_the_scenes(ratio: float, text: str) -> None:
    """By two tries where gradients leave it in doubt, else at once, and no otherwise."""
    tried, told = World(ratio, ranks=2).run(320), World(ratio, ranks=2, apart=0.1).run(320)

    assert tried.text == told.text == text
    assert [parse_policy(choice.text).policy for _, choice in tried.changes[:1]] == [LocalSGD(16)]
    assert "see alike data (gradients 0.1 apart)" in told.changes[0][1].why
    assert all(step == 0 or step >= 32 for step, _ in told.changes)


def test_a_first_step_that_waited_little_does_not_forbid_half_precision() -> None:
    """One look of BSP, before a queue in the network filled up, is less than what two averagings tell."""
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
def test_different_data_is_averaged_at_once(ratio: float, drift: float, text: str) -> None:
    """The more the loss jumps when replicas are averaged the shorter the interval, and none may be late; or it is BSP."""
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
def test_gradients_tell_different_data_before_anything_is_tried(
    ratio: float, apart: float, ranks: int, texts: list[str]
) -> None:
    """What a try of data that is different beyond doubt costs in steps is saved; where BSP is the faster nothing is changed at all."""
    world = World(ratio, drift=0.6, apart=apart, ranks=ranks).run(800)

    assert [choice.text for _, choice in world.changes] == texts
    assert all(f"different data (gradients {apart:.2g} apart)" in choice.why for _, choice in world.changes[:1])


@pytest.mark.parametrize(("slowed", "texts"), [(1.0, ["local_sgd(h=9)", "bsp"]), (2.0, ["local_sgd(h=9)"])])
def test_bsp_is_compared_by_how_long_its_steps_took(slowed: float, texts: list[str]) -> None:
    """Computing beside DDP's transfers takes longer, or hides them: what local steps save is known once some are timed."""
    world = World(0.8 * slowed, drift=0.4, apart=5.0, ranks=2, slowed=slowed).run(800)

    assert [choice.text for _, choice in world.changes] == texts


def test_a_link_that_is_somewhat_faster_for_a_while_does_not_end_averagings() -> None:
    """They are as fast as BSP then, and a change costs more; on one that is five times as fast BSP is the faster beyond doubt."""
    world, texts = World(1.6, drift=0.4, apart=5.0, ranks=2, slowed=1.2), []
    for ratio in (1.6, 0.9, 0.3):
        world.ratio = ratio
        texts.append(world.run(160).text.partition("(")[0])

    assert texts == ["local_sgd", "local_sgd", "bsp"]


def test_the_jumps_of_the_first_tries_count_for_the_interval() -> None:
    """They grow as ranks learn, whatever the interval; it must not shrink with them."""
    world = World(8.0, drift=0.75).run(80)
    world.drift = 3.0
    world.run(1600)

    assert [choice.text for _, choice in world.changes] == ["local_sgd(h=16) + fp16", "local_sgd(h=18) + fp16"]


def test_two_averagings_that_mislead_do_not_lead_back_for_good() -> None:
    """Now and then alike data looks different in two of them: after 384 steps of BSP two others are looked at, and then it lasts."""
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


def test_data_that_may_be_different_is_tried_anew_ever_less_often() -> None:
    """After 384 steps, after 768, after 1,536, and 32 for each try: what it costs goes to nothing."""
    world = World(0.15, drift=0.25).run(4000)
    tried = [step for step, choice in world.changes if choice.text == "local_sgd(h=16)"]

    assert [later - earlier for earlier, later in pairwise(tried)] == [416, 800, 1568]


def test_data_that_is_different_beyond_doubt_is_not_tried_anew_before_its_link_slows_down() -> None:
    """A try costs steps that teach little; where half of what ranks wait for made averagings worth it there is one."""
    world = World(1.0, drift=0.6).run(3200)
    world.ratio = 2.0  # of which some may be for the ranks, and not for the link
    world.run(800)
    before, world.ratio = [choice.text for _, choice in world.changes], 5.0
    world.run(320)

    assert before == ["local_sgd(h=16)", "bsp"]
    assert world.changes[2][0] - 4000 == 32
    assert world.text == "local_sgd(h=18) + fp16"


def test_the_averaging_on_the_way_to_bsp_does_not_count() -> None:
    """It comes a few steps after the last try, so it changes the loss by less, and would make two tries that were beyond doubt look doubtful."""
    world = World(0.5, drift=0.5).run(56)
    assert world.text == "bsp"

    assert world.controller.look([replace(row, jump=0.0) for row in world.rows()]) is None
    world.run(3200)

    assert world.text == "bsp"
    assert len(world.changes) == 2


@pytest.mark.parametrize("ratio", [0.3, 4.0, 30.0])
@pytest.mark.parametrize("drift", [-0.03, 0.6])
def test_noise_of_a_third_changes_little(ratio: float, drift: float) -> None:
    """In 1,600 steps whose measurements scatter by a third it settles, and changes its mind now and then, not at every look."""
    world = World(ratio, drift, noise=0.33, loss=0.5).run(1600, loss_factor=1.0)
    tried = [choice for _, choice in world.changes if "see anew" in choice.why]

    assert len(world.changes) - 2 * len(tried) <= 8
    assert ("delay" in world.text) == (ratio > 20 and drift < 0)


def test_a_link_that_slows_down_is_followed() -> None:
    """The interval grows with the transfer, and where no interval is long enough nobody waits; a transfer may then take longer still."""
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
    """First nothing is late any more, then intervals are halved, then it is BSP for good; each time it says why. However fast it rises."""
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
    assert all("the loss rose from" in choice.why for choice in after)


@pytest.mark.parametrize(
    ("losses", "why"), [(math.inf, "infinite"), (math.nan, "no loss above zero"), (0.0, "no loss above zero")]
)
def test_without_a_loss_that_is_a_number_it_is_bsp(losses: float, why: str) -> None:
    """What cannot be guarded is not done."""
    world = World(8.0).run(160)
    world.loss = losses
    world.run(320)

    assert world.text == "bsp"
    assert why in world.changes[-1][1].why


def test_a_loss_that_rose_before_anything_was_sent_is_taken_back() -> None:
    """BSP is not guarded; the guard may find what rose in it just after a link has slowed down, when no averaging was timed."""
    world = World(0.02).run(160, loss_factor=1.1)
    world.ratio = 8.0
    world.run(16)
    said = world.controller.look([replace(row, transfer_ns=None, jump=math.nan) for row in world.rows()])

    assert world.text == "local_sgd(h=16) + fp16"
    assert said is not None
    assert said.text == "local_sgd(h=8) + fp16"
    assert "the loss rose from" in said.why
    world.text = said.text
    assert world.run(320).text == "local_sgd(h=8) + fp16"


def test_losses_that_are_told_now_and_then_lead_back() -> None:
    """Or none above zero: what averaging does to them is not known, so nothing is tried for ever."""
    world = World(8.0, drift=math.nan).run(480)

    assert [choice.text for _, choice in world.changes] == ["local_sgd(h=16) + fp16", "bsp"]
    assert "in each step, with a loss above zero" in world.changes[-1][1].why


def test_it_does_not_begin_without_losses() -> None:
    """Whoever tells no loss has BSP."""
    assert World(8.0, says_loss=False).run(800).changes == []


@pytest.mark.parametrize("apart", [math.nan, 26.0])
def test_all_ranks_choose_alike_and_a_restart_too(apart: float) -> None:
    """Two controllers that see the same rows, one of them loaded from a checkpoint at every look, say the same."""
    world, other = World(8.0, noise=0.3, apart=apart), Controller()
    for _ in range(60):
        rows = world.rows()
        loaded = Controller()
        loaded.load_state_dict(other.state_dict())
        other = loaded
        said = world.controller.look(rows)
        assert other.look(rows) == said
        world.text = said.text if said is not None else world.text
        world.step += world.to_next_rows()
    assert ("topk" in world.text) == (apart > 0)


@pytest.mark.parametrize(
    ("ratio", "within", "text"), [(8.0, 160, "local_sgd(h=25) + fp16"), (30.0, 1600, "local_sgd(h=48) + fp16")]
)
def test_data_that_is_alike_no_longer_is_noticed(ratio: float, within: int, text: str) -> None:
    """Where averagings are waited for each one tells; where they are made behind the scenes they are tried anew now and then."""
    world = World(ratio).run(480)
    world.drift = 0.5
    world.run(within)

    assert [choice.text for _, choice in world.changes[-2:]] == ["local_sgd(h=16) + fp16", text]


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_that_scatters_does_not_look_like_drift(seed: int) -> None:
    """As with alike data late in training: losses of single batches scatter by half, and averaging lowers them by a fifth."""
    world = World(4.0)
    world.run(80)
    drawn = random.Random(seed)
    for _ in range(30):
        rows = [replace(row, jump=math.exp(drawn.gauss(-0.2, 0.5)) - 1) for row in world.rows()]
        choice = world.controller.look(rows)
        assert choice is None


def test_a_row_without_computing_is_no_division_by_zero() -> None:
    """Clocks that stood still say nothing."""
    rows = [replace(row, compute_ns=0) for row in World(8.0).rows()]

    assert Controller().look(rows) is not None
