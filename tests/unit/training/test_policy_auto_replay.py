"""The controller of `auto` on recorded measurements of real jobs on shaped links, as recorded and with noise."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from timesyncd.training.policy.auto import Choice, Controller
from timesyncd.training.policy.policies import ChangeReason
from timesyncd.training.policy.schedule import Row

RECORDINGS = sorted((Path(__file__).parents[2] / "recordings" / "policies").glob("*.json"))

#: In 200 steps of a job that has settled, whatever the noise.
MOST_CHANGES = 2


def rows_of(look: dict[str, Any], noise: float = 0.0, drawn: random.Random | None = None) -> list[Row]:
    """`noise`: relative, on each measurement of each rank."""

    def noisy(value: float) -> float:
        return value * math.exp(noise * drawn.gauss(0, 1)) if drawn is not None else value

    return [
        Row(
            step=look["step"],
            compute_ns=round(noisy(compute_ns)),
            wait_ns=round(noisy(wait_ns)),
            transfer_ns=None if transfer_ns is None else round(noisy(transfer_ns)),
            loss=math.nan if loss is None else noisy(loss),
            jump=math.nan if jump is None else jump,
            dissimilarity=math.nan if dissimilarity is None else dissimilarity,
        )
        for compute_ns, wait_ns, transfer_ns, loss, jump, dissimilarity in look["rows"]
    ]


def chosen(looks: list[dict[str, Any]], noise: float = 0.0, seed: int | None = None) -> list[Choice | None]:
    controller = Controller()
    drawn = None if seed is None else random.Random(seed)
    return [controller.update(rows_of(look, noise, drawn)) for look in looks]


def is_tried(choice: Choice) -> bool:
    if choice.reason_code is ChangeReason.BSP_WAITS:
        return "dissimilarity" not in choice.reason  # BSP's gradients left it in doubt
    return choice.reason_code is ChangeReason.RETRIAL


def settled(choice: Choice) -> str:
    """What it settled on: BSP with its encoding, averagings in the background, or blocking ones of the same kind of data or of different data."""
    if choice.text.startswith("bsp"):
        return choice.text
    if "delay" in choice.text:
        return "behind"
    return "different" if "different data" in choice.reason else "alike"


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_it_chooses_as_recorded(path: Path) -> None:
    """The same rows give the same choices at the same steps: nothing else enters."""
    looks = json.loads(path.read_text())["looks"]

    assert [None if choice is None else choice.text for choice in chosen(looks)] == [look["chose"] for look in looks]


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_noise_does_not_make_it_restless(path: Path) -> None:
    """With a fifth of noise on all that is measured it settles on the same as without, and changes rarely once it has."""
    recorded = json.loads(path.read_text())
    looks = recorded["looks"]
    for seed in range(20):
        choices = [choice for choice in chosen(looks, 0.2, seed) if choice is not None]
        found = [settled(choice) for choice in choices if not is_tried(choice)]
        assert found[-1] == recorded["settled"]
        assert len(found) <= MOST_CHANGES * (1 + looks[-1]["step"] // 200)
