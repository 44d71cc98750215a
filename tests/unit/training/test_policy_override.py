"""PolicyOverride: the policy that a rank was requested to use last, by its script or by the plan."""

from __future__ import annotations

import dataclasses
import warnings

import pytest

from timesyncd.ipc.job_segment import Plan
from timesyncd.training.policy.text import PolicyOverride, parse_collective_policy, parse_policy

NONE = Plan()


def planned(version: int, policy: str) -> Plan:
    return dataclasses.replace(NONE, policy_version=version, policy=policy)


def test_the_newest_request_counts() -> None:
    """Each request has a number of its own, from whichever side it comes."""
    override = PolicyOverride()
    assert override.newest(NONE) == (0, "")
    override.request("bsp")
    assert override.newest(NONE) == (1, "bsp")
    assert override.newest(planned(1, "local_sgd(h=4)")) == (2, "local_sgd(h=4)")
    assert override.newest(planned(1, "local_sgd(h=4)")) == (2, "local_sgd(h=4)")
    override.request("bsp")
    assert override.newest(planned(1, "local_sgd(h=4)")) == (3, "bsp")


def test_a_plan_that_existed_before_is_a_request() -> None:
    """A rank that starts late, or again, uses it; a plan without a policy changes nothing, and the same plan again is no new request."""
    override = PolicyOverride()
    assert override.newest(planned(7, "bsp")) == (1, "bsp")
    override.request("local_sgd(h=4)")
    assert override.newest(planned(8, "")) == (2, "local_sgd(h=4)")
    assert override.newest(planned(7, "bsp")) == (2, "local_sgd(h=4)")
    assert override.newest(planned(9, "bsp")) == (3, "bsp")


@pytest.mark.parametrize("text", ["nonsense", "local_sgd(h=0)", "ssp(s=2)"])
def test_an_invalid_policy_in_a_plan_is_ignored_with_one_warning(text: str) -> None:
    """The policy in force stays."""
    override = PolicyOverride()
    override.request("bsp")
    with pytest.warns(UserWarning, match="this rank ignores the policy in its plan: policy") as warned:
        assert override.newest(planned(1, text)) == (1, "bsp")
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert override.newest(planned(1, text)) == (1, "bsp")


def test_a_plan_s_policy_is_normalized() -> None:
    """So that all ranks read the same text, and it fits into a row."""
    assert PolicyOverride().newest(planned(1, "selsync( delta=.5 )+fp16")) == (1, "selsync(delta=0.5) + fp16")


@pytest.mark.parametrize("text", ["ssp(s=2)", "asp"])
def test_a_parameter_server_s_policy_is_rejected(text: str) -> None:
    """A job must start with it."""
    with pytest.raises(ValueError, match="needs a parameter server"):
        parse_collective_policy(text)
    assert parse_collective_policy("bsp") == parse_policy("bsp")


def test_a_restart_keeps_the_newest_request() -> None:
    """From the script and from the plan: the same plan is no new request."""
    override = PolicyOverride()
    override.newest(planned(3, "bsp"))
    again = PolicyOverride()
    again.load_state_dict(override.state_dict())
    assert again.newest(planned(3, "bsp")) == (1, "bsp")
    assert again.newest(planned(4, "accumulate(k=2)")) == (2, "accumulate(k=2)")
