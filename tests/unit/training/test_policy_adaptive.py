"""`auto` with an adaptive optimizer: each decision by what was measured, and the choice as measurements come in."""

from __future__ import annotations

import dataclasses
import math

import pytest
from auto_world import World
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.adaptive import (
    AdaptiveChoice,
    DecisionInputs,
    LinkCost,
    MethodCandidate,
    NewestStep,
    candidates,
    choose,
    fitted_link,
)
from timesyncd.training.policy.auto import Controller
from timesyncd.training.policy.constants import CONSTANTS
from timesyncd.training.policy.policies import ChangeReason
from timesyncd.training.policy.text import parse_policy
from timesyncd.training.policy.trend import predicted_loss

SLOW = DecisionInputs(8.0, 4.0, LinkCost(0.0, 10.0), ranks=2, sees_same_data=True)


def names(measured: DecisionInputs) -> list[str]:
    return [each.text.partition("(")[0] for each in candidates(measured)]


@pytest.mark.parametrize("full_wait", [0.0, 0.04, 0.25])
def test_bsp_is_the_only_candidate_where_communication_is_free(full_wait: float) -> None:
    """There is nothing to gain, and every other way has a cost."""
    measured = dataclasses.replace(SLOW, full_wait=full_wait, half_wait=None, is_proven=True)
    assert [each.text for each in candidates(measured)] == ["bsp"]
    assert choose(measured, "des_loc(kx=4)").text == "bsp"


def test_in_a_warm_up_every_step_averages_gradients() -> None:
    """Half precision is BSP too."""
    measured = dataclasses.replace(SLOW, is_warming_up=True, is_proven=True)
    assert names(measured) == ["bsp", "bsp + fp16"]


def test_data_that_is_not_alike_beyond_doubt_averages_gradients_alone() -> None:
    """Replicas that see different data drift apart."""
    assert names(dataclasses.replace(SLOW, sees_same_data=False)) == ["bsp", "bsp + fp16"]


def test_without_a_proof_gradients_are_averaged_in_every_step() -> None:
    """Rare averagings cost steps under Adam, however often they are."""
    assert names(SLOW) == names(dataclasses.replace(SLOW, is_proven=True, may_average=False)) == ["bsp", "bsp + fp16"]


def test_with_a_proof_all_methods_are_candidates() -> None:
    """Streaming DiLoCo if the module has several blocks, and its fragments arrive in time."""
    measured = dataclasses.replace(SLOW, is_proven=True, blocks=4)
    assert set(names(measured)) == {"bsp", "bsp + fp16", "des_loc", "diloco", "streaming_diloco"}
    assert "streaming_diloco" not in names(dataclasses.replace(measured, blocks=1))
    very_slow = dataclasses.replace(measured, link=LinkCost(0.0, 1000.0))
    assert "streaming_diloco" not in names(very_slow)


@given(
    st.floats(0, 500),
    st.none() | st.floats(0, 500),
    st.floats(0, 100),
    st.floats(0, 1000),
    st.integers(2, 512),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 100),
)
def test_every_candidate_is_a_valid_policy(
    full_wait: float,
    half_wait: float | None,
    latency: float,
    transfer: float,
    ranks: int,
    is_proven: bool,
    same: bool,
    rises: bool,
    blocks: int,
) -> None:
    """Whatever was measured; BSP is always among them, and no choice is predicted to be slower than it."""
    measured = DecisionInputs(
        full_wait, half_wait, LinkCost(latency, transfer), ranks, rises, is_proven, same, True, blocks
    )
    found = list(candidates(measured))
    for each in found:
        assert parse_policy(each.text)
    assert found[0].text == "bsp"
    assert choose(measured, "").time <= found[0].time


def test_the_present_choice_stays_while_another_is_hardly_faster() -> None:
    """By less than a tenth: the durations of transfers scatter by as much."""
    best = choose(SLOW, "")
    near = next(each for each in candidates(SLOW) if best.time < each.time)
    assert choose(SLOW, near.text).text == (near.text if near.time < 1.1 * best.time else best.text)


def test_what_is_barred_is_no_candidate() -> None:
    """It proved slower than BSP."""
    best = choose(SLOW, "")
    assert choose(dataclasses.replace(SLOW, barred=[best.text]), "").text != best.text


def test_half_precision_shows_what_of_a_transfer_is_latency() -> None:
    """It saves half of what goes by the size: of a waiting of 8 steps, 2 saved are 4 by the size, and as much latency."""
    assert fitted_link(8.0, 6.0, (1.0, 10.0)) == LinkCost(5.0, 5.0)
    assert fitted_link(8.0, 6.0, (0.5, 7.5)) == LinkCost(5.0, 5.0)
    assert fitted_link(8.0, None, (0.5, 10.0)) == LinkCost(0.0, 20.0)
    assert fitted_link(8.0, 9.0, (0.5, 10.0)) == LinkCost(10.0, 0.0)
    assert fitted_link(8.0, None, None) == LinkCost(0.0, 12.0)


def now(waited: float, **given: object) -> NewestStep:
    """A step computes for 1 ms."""
    measured: dict[str, object] = {
        "transfer_ns": None,
        "ranks": 2,
        "is_rising": False,
        "is_proven": False,
        "dissimilarity": 0.0,
        "is_settled": True,
    }
    return NewestStep(compute_ns=1e6, wait_ns=waited * 1e6, **(measured | given))  # type: ignore[arg-type]


def test_a_way_that_makes_steps_longer_than_bsp_did_is_left() -> None:
    """Whatever the model predicted; it is tried again once the ranks wait for twice as long."""
    choice = AdaptiveChoice()
    first = choice.change(now(2.0, is_rising=True))
    assert first is not None and first.text == "bsp + fp16"
    back = choice.change(now(2.2, is_rising=True))
    assert back is not None and (back.text, back.code) == ("bsp", ChangeReason.BSP_FASTER)
    assert choice.change(now(2.5, is_rising=True)) is None
    again = choice.change(now(4.5, is_rising=True))
    assert again is not None and again.text == "bsp + fp16"


def test_without_enough_rows_nothing_changes_but_bsp() -> None:
    """What is in force has to be measured first."""
    choice = AdaptiveChoice()
    assert choice.change(now(4.0, is_settled=False)) is not None
    assert choice.change(now(2.0, is_settled=False)) is None


def test_a_link_that_becomes_free_leads_back_to_bsp() -> None:
    """A transfer that is timed shows it, though nothing is averaged by gradients any more."""
    world = World(8.0, apart=0.0, is_adaptive=True, validation=2.0).run(400)
    assert parse_policy(world.text).policy.combines.value == "parameters"
    world.ratio = 0.01
    assert world.run(400).text == "bsp"


def test_free_communication_changes_nothing() -> None:
    """With a validation loss too: BSP from the first step to the last."""
    assert World(0.02, apart=0.0, is_adaptive=True, validation=2.0).run(1600).changes == []


@pytest.mark.parametrize("validation", [math.nan, 2.0])
def test_noise_of_a_fifth_changes_little(validation: float) -> None:
    """In 3,200 steps it settles."""
    world = World(4.0, apart=0.0, noise=0.2, is_adaptive=True, validation=validation).run(3200, loss_factor=1.0)
    assert len(world.changes) <= 8


def test_the_choice_survives_a_restart() -> None:
    """Two controllers, one of them loaded at each row, choose the same."""
    world, other = World(8.0, noise=0.2, apart=0.0, is_adaptive=True), Controller(is_adaptive=True)
    for _ in range(60):
        rows = world.rows()
        loaded = Controller(is_adaptive=True)
        loaded.load_state_dict(other.state_dict())
        other = loaded
        choice = world.controller.update(rows)
        assert other.update(rows) == choice
        world.text = choice.text if choice is not None else world.text
        world.step += world.to_next_rows()


def test_each_constant_has_a_source() -> None:
    """One row each in the table, with a meaning."""
    assert len({each.name for each in CONSTANTS}) == len(CONSTANTS) > 30
    assert all(each.meaning and each.source for each in CONSTANTS)


def test_a_course_predicts_by_its_line_in_logarithms() -> None:
    """8, 4 and 2 after 1, 3 and 7 steps are a power of the step: 1 after 15."""
    assert predicted_loss([(1, 8.0), (3, 4.0), (7, 2.0)], 15) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(1e-6, 1e6)), max_size=12), st.integers(0, 10**7))
def test_a_course_is_no_prediction_with_fewer_than_three_and_never_a_rise(
    course: list[tuple[int, float]], step: int
) -> None:
    """Whatever the losses are, also where all are of one step."""
    found = predicted_loss(course, step)
    assert (found is None) == (len(course) < 3)
    if found is not None and step >= max(at for at, _ in course):
        assert found <= max(loss for _, loss in course) * (1 + 1e-9)


def test_time_is_steps_times_their_duration() -> None:
    """Both are multiples of BSP's without communication."""
    assert MethodCandidate("bsp", 2.0, 1.5).time == 3.0
