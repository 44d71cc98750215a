"""`auto` on real ranks, on links so slow that the time of a transfer is certain: what it chooses, and that all ranks choose alike."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from auto_world import interval_of
from rank_lab import RankLab, needs_namespaces

from timesyncd.training.policy.policies import ChangeReason, LocalSGD
from timesyncd.training.policy.text import parse_policy

pytestmark = [pytest.mark.integration, needs_namespaces]

CHILD = Path(__file__).with_name("auto_child.py")
STEPS = 120


def trained(rate: str, *words: str, steps: int = STEPS) -> list[dict[str, Any]]:
    """The output of each of two ranks. Their gradients are 336 kB, 134 ms at 20 Mbit/s, and half of that in half precision."""
    with RankLab(2, rate) as lab:
        written = lab.run([sys.executable, str(CHILD), "--steps", str(steps), *words])
    lines = [[line for line in each.splitlines() if line.startswith("RESULTS ")] for each in written]
    results: list[dict[str, Any]] = [json.loads(line.removeprefix("RESULTS ")) for (line,) in lines]
    for rank in results:
        assert (rank["warned"], rank["changes"], rank["closed"]) == ([], results[0]["changes"], results[0]["closed"])
        assert rank["last"] < rank["first"] / 2
    return results


def test_an_adaptive_optimizer_averages_seldom_only_while_a_validation_loss_holds() -> None:
    """Half precision first; with a course of validations averagings are rare, until it rises. Replicas end equal."""
    _, (_, first, *_), *later = trained("20mbit", "--adam", "--validate", steps=320)[0]["changes"]
    intervals = [interval_of(parse_policy(policy).policy) for _, policy, *_ in later]
    risen = [(policy, reason) for _, policy, code, reason in later if code == ChangeReason.LOSS_ROSE]

    assert first == "bsp + fp16"
    assert max(intervals) > 1
    assert risen and risen[0][0].startswith("bsp") and risen[0][1].startswith("the validation loss ")


def local(policy: str) -> LocalSGD:
    found = parse_policy(policy).policy
    assert isinstance(found, LocalSGD), policy
    return found


def test_the_same_kind_of_data_is_averaged_in_the_background() -> None:
    """BSP's gradients show it; where an averaging takes more than eight steps, here of 42 ms, no rank waits for it."""
    (_, first, code, _), *_, (_, chosen, last_code, reason) = trained("4mbit")[0]["changes"]

    assert (first, code) == ("auto", ChangeReason.STARTED)
    assert last_code == ChangeReason.SAME_DATA
    assert reason.startswith(("under BSP the ranks wait for ", "an averaging "))
    assert "different" not in reason
    assert local(chosen).h == 64
    assert local(chosen).delay > 8


def test_different_data_is_averaged_often_and_ranks_wait() -> None:
    """Each rank knows half of the classes: its gradients differ from the mean in the same way in each step."""
    _, *chosen = trained("20mbit", "--own")[0]["changes"]

    assert chosen[0][2] == ChangeReason.DIFFERENT_DATA
    assert "times their computing time, and see different data (gradient dissimilarity " in chosen[0][3]
    assert [local(policy).delay for _, policy, *_ in chosen] == [0] * len(chosen)
