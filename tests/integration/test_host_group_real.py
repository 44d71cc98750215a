"""Ranks whose default group refuses tensors of the CPU, as NCCL does: every call of the client works there."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_ranks import run_ranks

import timesyncd.client.torch
import timesyncd.training

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("host_group_child.py")

#: Types that the calls return, a reader of a file, and a collective whose tensor is the caller's own.
NO_CALLS = {
    "Change", "LightningPolicy", "Metered", "Report", "Synchronizer", "TransformersPolicy", "all_reduce", "bucket_options",
}  # fmt: skip


def test_every_call_works_where_the_default_group_refuses_tensors_of_the_cpu() -> None:
    """No rank hands the user's group a tensor of the CPU, also where the group has some ranks only."""
    outcomes = run_ranks(CHILD, [], world_size=3)

    assert [{outcome for outcome in each.values() if outcome != "works"} for each in outcomes] == [set()] * 3
    called = {name.partition(",")[0].partition(" ")[0] for name in outcomes[1]}
    assert {*timesyncd.client.torch.__all__, *timesyncd.training.__all__} - NO_CALLS <= called
