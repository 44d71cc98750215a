"""`auto` on real ranks, on links so slow that the time of a transfer is beyond doubt: what it chooses, and that all ranks choose it alike."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_lab import RankLab, needs_namespaces

from timesyncd.training.policy.policies import LocalSGD
from timesyncd.training.policy.text import parse_policy

pytestmark = [pytest.mark.integration, needs_namespaces]

CHILD = Path(__file__).with_name("auto_child.py")
STEPS = 120


def trained(rate: str, *words: str) -> list[dict[str, Any]]:
    """What each of two ranks said. Their gradients are 336 kB, 134 ms at 20 Mbit/s, and half of that in half precision."""
    with RankLab(2, rate) as lab:
        written = lab.run([sys.executable, str(CHILD), "--steps", str(STEPS), *words])
    lines = [[line for line in each.splitlines() if line.startswith("SAID ")] for each in written]
    said: list[dict[str, Any]] = [json.loads(line.removeprefix("SAID ")) for (line,) in lines]
    for rank in said:
        assert (rank["warned"], rank["changes"], rank["closed"]) == ([], said[0]["changes"], said[0]["closed"])
        assert rank["last"] < rank["first"] / 2
    return said


def local(policy: str) -> LocalSGD:
    found = parse_policy(policy).policy
    assert isinstance(found, LocalSGD), policy
    return found


def test_alike_data_is_averaged_behind_the_scenes() -> None:
    """From BSP, whose gradients tell it; where an averaging takes more than eight steps, here of 42 ms, nobody waits for it."""
    (_, begun, _), *_, (_, chosen, why) = trained("4mbit")[0]["changes"]

    assert begun == "auto"
    assert why.startswith(("in BSP ranks wait for ", "averaging "))
    assert "different" not in why
    assert local(chosen).h == 64
    assert local(chosen).delay > 8


def test_different_data_is_averaged_often_and_at_once() -> None:
    """Each rank knows half of the classes: its gradients differ from the mean in the same way in each step."""
    _, *chosen = trained("20mbit", "--own")[0]["changes"]

    assert "times their computing, and see different data (gradients " in chosen[0][2]
    assert [local(policy).delay for _, policy, _ in chosen] == [0] * len(chosen)
