"""The ranks in one process, and the times of the alpha-beta model."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from policies.adam_tasks import ADAM_TASKS
from policies.curves import FIXED, LINKS, key, ratios, reached_ms, smoothed, step_ms
from policies.one_process import Carrying, Fleet, LinkModel, Training

from timesyncd.training.policy.policies import Decision
from timesyncd.training.policy.text import parse_policy

CNN = dataclasses.replace(ADAM_TASKS["cnn"], steps=16, eval_every=8)
SLOW = LinkModel("slow", 1.0, 1.0)


def parameters(fleet: Fleet, rank: int) -> torch.Tensor:
    return torch.cat([each.flatten() for each in fleet.tensors(rank)])


def test_a_transfer_is_a_rings_messages_and_octets() -> None:
    """Four ranks: six messages of a quarter of 1 MB each."""
    assert LinkModel("", 0.5, 100.0).transfer_ms(1e6, 4) == pytest.approx(6 * (0.5 + 20.0))


def test_half_of_the_computing_hides_transfers_but_not_the_last_messages() -> None:
    """As DDP's buckets do."""
    link = LinkModel("", 0.5, 100.0)
    assert link.hidden_ms(1e6, 2, 60.0) == pytest.approx(link.transfer_ms(1e6, 2) - 30.0)
    assert link.hidden_ms(1e3, 2, 60.0) == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["local_sgd(h=4)", "diloco(h=4)", "des_loc(kx=4)", "local_sgd(h=4) + fp16"])
def test_replicas_are_equal_after_an_averaging_and_not_before(text: str) -> None:
    """Each at the step that the policy names."""
    training = Training(CNN, 2, 1, text, SLOW)
    equal = []
    for step in range(4):
        training.step(step)
        equal.append(torch.equal(parameters(training.fleet, 0), parameters(training.fleet, 1)))
    assert equal == [False, False, False, True]


def test_an_outer_optimizer_that_takes_the_mean_is_local_sgd() -> None:
    """DiLoCo with lr 1 and no momentum."""
    plain, outer = (Training(CNN, 2, 1, text, SLOW) for text in ("local_sgd(h=2)", "diloco(h=2, lr=1.0, momentum=0.0)"))
    for step in range(4):
        plain.step(step)
        outer.step(step)
    assert torch.allclose(parameters(plain.fleet, 0), parameters(outer.fleet, 0), atol=1e-6)


def test_bsp_keeps_the_replicas_equal() -> None:
    """In every step, batch normalization's buffers too at the next forward pass."""
    training = Training(CNN, 2, 1, "bsp", SLOW)
    for step in range(3):
        training.step(step)
        weights = [torch.cat([p.flatten() for p in network.parameters()]) for network in training.fleet.networks]
        assert torch.equal(*weights)


def test_a_fragment_that_is_on_its_way_arrives_after_its_delay() -> None:
    """Until then each rank has its own."""
    strategy = parse_policy("local_sgd(h=4, delay=2)")
    fleet = Fleet(CNN, 2, 1)
    with torch.no_grad():
        fleet.tensors(0)[0].add_(1)
    carrying = Carrying(strategy, fleet)
    sent = [carrying.after_update(step, Decision.SYNC if step == 0 else Decision.LOCAL)[0] for step in range(3)]
    assert [len(each) for each in sent] == [0, 0, 1]
    assert torch.allclose(parameters(fleet, 0), parameters(fleet, 1), atol=1e-6)


def test_auto_gets_the_models_times() -> None:
    """On a slow link it leaves BSP; its clock counts what it waits for."""
    slow, free = (
        Training(dataclasses.replace(CNN, warm_up=0.0), 2, 1, "auto", link).run() for link in (SLOW, LINKS[-1])
    )
    assert slow.changes and not free.changes
    assert free.points[-1][1] == pytest.approx(16 * (CNN.compute_ms + 0.1), rel=0.01)


def test_a_target_that_is_not_reached_takes_for_ever() -> None:
    """The median of three evaluations counts, so that one lucky one does not."""
    points = [[1, 10.0, 3.0], [2, 20.0, 1.0], [3, 30.0, 3.0], [4, 40.0, 2.0], [5, 50.0, 2.0]]
    assert reached_ms(smoothed(points), 1.5) == math.inf
    assert reached_ms(smoothed(points), 2.0) == pytest.approx(20.0)


def test_the_ratio_is_auto_over_the_best_fixed_method_of_the_other_seeds() -> None:
    """On seeds that did not pick it."""
    task, link = ADAM_TASKS["gpt"], LINKS[0]
    rows = {}
    for seed in (1, 2):
        for text in FIXED:
            losses = (
                [3.0, 2.0, 2.0, 2.0] if text == "bsp" else [3.0, 2.0, 2.0, 2.0] if text == "bsp + fp16" else [3.0] * 4
            )
            rows[key(task, 2, seed, text, None)] = {
                "points": [[12 * (n + 1), 0.0, loss] for n, loss in enumerate(losses)],
                "nbytes": 500_000,
                "changes": [],
            }
        rows[key(task, 2, seed, "auto", link)] = {
            "points": [[12 * (n + 1), 1e3 * (n + 1), loss] for n, loss in enumerate([3.0, 2.0, 2.0, 2.0])],
            "nbytes": 500_000,
            "changes": [],
        }
    half_ms, full_ms = (step_ms(task, 2, text, link, 500_000) for text in ("bsp + fp16", "bsp"))
    found = list(ratios(rows, task, 2, link, "auto"))
    assert half_ms < full_ms
    assert [ratio for _, ratio, _ in found] == pytest.approx([1e3 / (12 * half_ms)] * 2, rel=0.05)
