"""Wishes: which policy a rank was told last, by its script or by the plan."""

from __future__ import annotations

import dataclasses
import warnings

import pytest

from timesyncd.ipc.job_segment import Plan
from timesyncd.training.policy.text import PolicyOverride, parse_collective_policy, parse_policy

NONE = Plan()


def planned(version: int, policy: str) -> Plan:
    return dataclasses.replace(NONE, policy_version=version, policy=policy)


def test_the_newest_wish_counts() -> None:
    """Each one has a number of its own, whoever wished it."""
    wishes = PolicyOverride()
    assert wishes.newest(NONE) == (0, "")
    wishes.tell("bsp")
    assert wishes.newest(NONE) == (1, "bsp")
    assert wishes.newest(planned(1, "local_sgd(h=4)")) == (2, "local_sgd(h=4)")
    assert wishes.newest(planned(1, "local_sgd(h=4)")) == (2, "local_sgd(h=4)")
    wishes.tell("bsp")
    assert wishes.newest(planned(1, "local_sgd(h=4)")) == (3, "bsp")


def test_a_plan_that_was_there_before_is_a_wish() -> None:
    """A rank that begins late, or again, follows it; a plan without a policy changes nothing, and the same one again is no other."""
    wishes = PolicyOverride()
    assert wishes.newest(planned(7, "bsp")) == (1, "bsp")
    wishes.tell("local_sgd(h=4)")
    assert wishes.newest(planned(8, "")) == (2, "local_sgd(h=4)")
    assert wishes.newest(planned(7, "bsp")) == (2, "local_sgd(h=4)")
    assert wishes.newest(planned(9, "bsp")) == (3, "bsp")


@pytest.mark.parametrize("text", ["nonsense", "local_sgd(h=0)", "ssp(s=2)"])
def test_a_plan_that_is_no_policy_is_refused_once(text: str) -> None:
    """With one warning, and what was in force stays."""
    wishes = PolicyOverride()
    wishes.tell("bsp")
    with pytest.warns(UserWarning, match="the plan is not followed: policy") as heard:
        assert wishes.newest(planned(1, text)) == (1, "bsp")
    assert len(heard) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wishes.newest(planned(1, text)) == (1, "bsp")


def test_a_plan_is_told_as_it_is_written_back() -> None:
    """So that all ranks read the same, and it has room in a row."""
    assert PolicyOverride().newest(planned(1, "selsync( delta=.5 )+fp16")) == (1, "selsync(delta=0.5) + fp16")


@pytest.mark.parametrize("text", ["ssp(s=2)", "asp"])
def test_a_parameter_server_is_no_collective_policy(text: str) -> None:
    """A job has it from its start."""
    with pytest.raises(ValueError, match="needs a parameter server"):
        parse_collective_policy(text)
    assert parse_collective_policy("bsp") == parse_policy("bsp")


def test_a_restart_remembers_what_it_was_told() -> None:
    """By the script and by the plan: the same plan is no new wish."""
    wishes = PolicyOverride()
    wishes.newest(planned(3, "bsp"))
    again = PolicyOverride()
    again.load_state_dict(wishes.state_dict())
    assert again.newest(planned(3, "bsp")) == (1, "bsp")
    assert again.newest(planned(4, "accumulate(k=2)")) == (2, "accumulate(k=2)")
