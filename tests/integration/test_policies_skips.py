"""One rank of a real gloo job leaves out an update: the ranks agree on it, or all end at once; no order of calls mixes tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torch_ranks import run_ranks

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("policy_skipping_child.py")
ROUNDING = 1e-12
#: Under `h=4` the first of these steps averages, the second does not.
AVERAGES, LOCAL = 11, 10


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_agree_on_an_update_that_one_leaves_out(tmp_path: Path, world_size: int) -> None:
    """By a call, a scaler, or a scaler with a fused optimizer: it counts as empty, and the script's metric stays right."""
    policies = ["local_sgd(h=4)", "accumulate(k=4)"]
    arguments = ["--folder", str(tmp_path), "--policies", *policies, "--at", str(AVERAGES), str(LOCAL)]
    results = run_ranks(CHILD, arguments, world_size)

    rescaled = [rank.pop("rescaled") for rank in results]
    assert len(results[0]) == 12
    for case, facts in results[0].items():
        assert max(rank[case]["off"] for rank in results) < ROUNDING, case
        assert {rank[case]["wrong"] for rank in results} == {0}
        assert {rank[case]["closed"] for rank in results} == {facts["closed"]}
        assert facts["rounds"] == 5
    assert {rank["policy"] for rank in rescaled} == {"bsp"}
    assert [rank["scales"][2] for rank in rescaled] == [2.0 if rank == 1 else 4.0 for rank in range(world_size)]
    assert {rank["scales"][-1] for rank in rescaled} == {2.0}
    assert all(rank["hashes"] == rescaled[0]["hashes"] for rank in rescaled)


@pytest.mark.parametrize(
    ("policy", "at", "omits", "fault"),
    [
        ("local_sgd(h=4)", AVERAGES, "step", "rank 1 has made no update in step 11: it waits for rank . in all_reduce"),
        (
            "local_sgd(h=4)",
            LOCAL,
            "step",
            "rank 1 left out an optimizer step in step 10: it waits for rank . in all_reduce",
        ),
        ("local_sgd(h=4)", LOCAL, "batch", "rank 1 ended after 19 steps and rank 0"),
        (
            "accumulate(k=4)",
            LOCAL,
            "step",
            "rank 1 left out an optimizer step in step 10: it waits for rank . in all_reduce",
        ),
        (
            "bsp",
            LOCAL,
            "step",
            "rank 1 left out an optimizer step in step 10, or ran a backward pass more than the others: by step",
        ),
    ],
)
@pytest.mark.parametrize("world_size", [2, 4])
def test_all_ranks_end_where_one_leaves_out_an_update_alone(
    tmp_path: Path, policy: str, at: int, omits: str, fault: str, world_size: int
) -> None:
    """Long before the group's time-out, with that rank and its step, though it waits in a collective of the script."""
    arguments = ["--folder", str(tmp_path), "--policies", policy, "--at", str(at), "--omits", omits]
    check_all_ranks_end(run_ranks(CHILD, arguments, world_size), fault)


def test_a_rank_that_reads_late_ends_with_the_cause_too(tmp_path: Path) -> None:
    """The first rank that ends would fail the others' collectives, and rank 0's process would take the store with it."""
    arguments = ["--folder", str(tmp_path), "--policies", "local_sgd(h=4)", "--at", str(LOCAL), "--omits", "step"]
    results = run_ranks(CHILD, [*arguments, "--reads-late"], 4)
    check_all_ranks_end(results, "rank 1 left out an optimizer step in step 10: it waits for rank . in all_reduce")


def test_ranks_end_with_both_places_where_one_waits_while_the_others_reduce(tmp_path: Path) -> None:
    """No thread can end a backward pass or a barrier, so the groups' time-out does; the cause was found long before."""
    arguments = ["--folder", str(tmp_path), "--policies", "bsp", "--at", str(LOCAL), "--omits", "barrier"]
    fault = r"the ranks wait for each other: rank 1 for rank 0 in barrier \(.*\) of step 11, and rank 0 for it in the backward"
    check_all_ranks_end(run_ranks(CHILD, arguments, 2), fault)


def check_all_ranks_end(results: list[dict[str, Any]], fault: str) -> None:
    assert [rank["error"] for rank in results] == ["SyncError"] * len(results)
    for rank in results:
        assert re.match(f"(the ranks are out of step: )?{fault}", rank["text"]) and "\n" not in rank["text"]
    assert {rank["wrong"] for rank in results} == {0}
