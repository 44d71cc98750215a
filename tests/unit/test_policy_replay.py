"""The controller of `auto` on what ranks of real jobs measured on shaped links: as it was, and with noise on top."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from timesyncd.client.policy.auto import Controller
from timesyncd.client.policy.rows import Row

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings" / "policies").glob("*.json"))

#: In 25 looks (200 steps) of a job that has settled, whatever the noise.
MOST_CHANGES = 2


def rows_of(look: dict[str, Any], noise: float = 0.0, drawn: random.Random | None = None) -> list[Row]:
    """`noise`: relative, on each measurement of each rank."""

    def noisy(value: float) -> float:
        return value * math.exp(noise * drawn.gauss(0, 1)) if drawn is not None else value

    return [
        Row(
            step=0,
            compute_ns=round(noisy(compute_ns)),
            wait_ns=round(noisy(wait_ns)),
            transfer_ns=None if transfer_ns is None else round(noisy(transfer_ns)),
            loss=math.nan if loss is None else noisy(loss),
            jump=math.nan if jump is None else jump,
        )
        for compute_ns, wait_ns, transfer_ns, loss, jump in look["rows"]
    ]


def chosen(looks: list[dict[str, Any]], noise: float = 0.0, seed: int | None = None) -> list[str | None]:
    controller = Controller()
    drawn = None if seed is None else random.Random(seed)
    choices = [controller.look(rows_of(look, noise, drawn)) for look in looks]
    return [None if choice is None else choice.text for choice in choices]


def settled(text: str | None) -> str:
    """In kind: BSP, behind the scenes, or waited for."""
    assert text is not None
    return "bsp" if text == "bsp" else "behind" if "delay" in text else "waited"


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_it_chooses_as_it_did(path: Path) -> None:
    """The same rows, the same choices in the same looks: nothing else goes into them."""
    looks = json.loads(path.read_text())["looks"]

    assert chosen(looks) == [look["chose"] for look in looks]


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_noise_does_not_make_it_restless(path: Path) -> None:
    """With a fifth of noise on all that is measured it comes to the same kind of policy as without, and changes rarely once it has."""
    recorded = json.loads(path.read_text())
    looks = recorded["looks"]
    for seed in range(20):
        choices = [choice for choice in chosen(looks, 0.2, seed) if choice is not None]
        assert recorded["settled"] in {settled(choice) for choice in choices} | ({"bsp"} if not choices else set())
        tried = choices.count("local_sgd(h=4)") + choices.count("local_sgd(h=4) + fp16")
        assert len(choices) - 2 * tried <= MOST_CHANGES * (1 + len(looks) // 25)
