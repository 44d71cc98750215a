"""The controller of `auto` on what ranks of real jobs measured on shaped links: as it was, and with noise on top."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from timesyncd.training.policy.auto import Choice, Controller
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
    return [controller.look(rows_of(look, noise, drawn)) for look in looks]


def is_tried(choice: Choice) -> bool:
    return choice.why.startswith("to see anew") or (choice.why.startswith("in BSP") and " see " not in choice.why)


def settled(choice: Choice) -> str:
    """On what: BSP and how it is sent; averagings behind the scenes, or waited for because data is alike, or different."""
    if choice.text.startswith("bsp"):
        return choice.text
    if "delay" in choice.text:
        return "behind"
    return "different" if "different data" in choice.why else "alike"


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_it_chooses_as_it_did(path: Path) -> None:
    """The same rows, the same choices in the same looks: nothing else goes into them."""
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
