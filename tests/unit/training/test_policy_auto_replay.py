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
from timesyncd.training.policy.row import Row

RECORDINGS = sorted((Path(__file__).parents[2] / "recordings" / "policies").glob("*.json"))

#: In 200 steps of a job that has settled, whatever the noise.
MOST_CHANGES = 2


def rows_of(exchange: dict[str, Any], noise: float = 0.0, drawn: random.Random | None = None) -> list[Row]:
    """`noise`: relative, on each measurement of each rank."""

    def noisy(value: float) -> float:
        return value * math.exp(noise * drawn.gauss(0, 1)) if drawn is not None else value

    return [
        Row(
            step=exchange["step"],
            compute_ns=round(noisy(compute_ns)),
            wait_ns=round(noisy(wait_ns)),
            transfer_ns=None if transfer_ns is None else round(noisy(transfer_ns)),
            loss=math.nan if loss is None else noisy(loss),
            jump=math.nan if jump is None else jump,
            dissimilarity=math.nan if dissimilarity is None else dissimilarity,
        )
        for compute_ns, wait_ns, transfer_ns, loss, jump, dissimilarity in exchange["rows"]
    ]


def chosen(exchanges: list[dict[str, Any]], noise: float = 0.0, seed: int | None = None) -> list[Choice | None]:
    controller = Controller()
    drawn = None if seed is None else random.Random(seed)
    return [controller.update(rows_of(exchange, noise, drawn)) for exchange in exchanges]


def is_trial(choice: Choice) -> bool:
    return choice.reason_code in (ChangeReason.TRIAL, ChangeReason.RETRIAL)


def settled(choice: Choice) -> str:
    """BSP with its encoding, averagings in the background, or averagings that ranks wait for, by the kind of data."""
    if choice.text.startswith("bsp"):
        return choice.text
    if "delay" in choice.text:
        return "background"
    return "different" if choice.reason_code is ChangeReason.DIFFERENT_DATA else "same"


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_it_chooses_as_recorded(path: Path) -> None:
    """The same rows give the same choices at the same steps: nothing else enters."""
    exchanges = json.loads(path.read_text())["exchanges"]

    assert [None if choice is None else choice.text for choice in chosen(exchanges)] == [
        exchange["choice"] for exchange in exchanges
    ]


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_noise_does_not_make_it_restless(path: Path) -> None:
    """With a fifth of noise on all that is measured it settles on the same as without, and changes rarely once it has."""
    recorded = json.loads(path.read_text())
    exchanges = recorded["exchanges"]
    for seed in range(20):
        choices = [choice for choice in chosen(exchanges, 0.2, seed) if choice is not None]
        found = [settled(choice) for choice in choices if not is_trial(choice)]
        assert found[-1] == recorded["settled"]
        assert len(found) <= MOST_CHANGES * (1 + exchanges[-1]["step"] // 200)
