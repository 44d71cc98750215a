"""One of three ranks has ended, is silent, or has made fewer updates: the others end with an error that states it, and none hangs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch_processes import RankProcess, start
from torch_ranks import TIMEOUT_S

from timesyncd.simulation.bed.broker import free_port
from timesyncd.training.policy.schedule import ROWS_DELAY

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("policy_failing_child.py")
RANKS = 3
#: The group's time-out: patience where a rank is killed, which is seen at once; what is waited for where one is silent.
LONG_S, SHORT_S = 250, 12


@contextmanager
def ranks_of(folder: Path, policy: str, case: str, timeout_s: int) -> Iterator[list[RankProcess]]:
    arguments = ["--folder", str(folder), "--policy", policy, "--case", case, "--timeout", str(timeout_s)]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        start(CHILD, arguments, rank, os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(RANKS)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def outcome_of(rank: RankProcess) -> dict[str, Any]:
    assert rank.wait(timeout=TIMEOUT_S) == 0, rank.stderr.read()[-4_000:]
    outcome: dict[str, Any] = json.loads(rank.stdout.read().strip().splitlines()[-1])
    return outcome


def survivors(folder: Path, policy: str, case: str, timeout_s: int = LONG_S) -> list[dict[str, Any]]:
    """How ranks 0 and 2 ended."""
    with ranks_of(folder, policy, case, timeout_s) as ranks:
        return [outcome_of(ranks[0]), outcome_of(ranks[2])]


def assert_clear(outcome: dict[str, Any], rank: int, doing: str) -> None:
    """One line with the job, the rank, the step, what failed and what to do."""
    assert outcome["error"] == "SyncError"
    assert outcome["text"].startswith(
        f"job failing, rank {rank}, step {outcome['step']}: {doing} failed: a rank is lost"
    )
    assert "restart the job from its last checkpoint" in outcome["text"]
    assert "\n" not in outcome["text"]


@pytest.mark.parametrize(
    ("policy", "case", "doing", "step"),
    [
        ("selsync(delta=0.02, late=0)", "killed", "receiving the rows of the other ranks", 9),
        ("local_sgd(h=10)", "killed", "averaging", 9),
        ("local_sgd(h=10)", "averaging", "averaging", 9),
        ("accumulate(k=10)", "averaging", "averaging", 9),
        ("local_sgd(h=6)", "closing", "the last averaging", 20),
        ("selsync(delta=0.02, late=2)", "closing", "the last averaging", 20),
    ],
)
def test_the_others_raise_when_a_rank_is_killed(tmp_path: Path, policy: str, case: str, doing: str, step: int) -> None:
    """While they wait for its row, in the middle of an averaging, and while they close: in that step, and not later."""
    for rank, outcome in zip((0, 2), survivors(tmp_path, policy, case), strict=True):
        assert_clear(outcome, rank, doing)
        assert outcome["step"] == step


def test_the_others_raise_when_a_rank_raises(tmp_path: Path) -> None:
    """Its own error is unchanged; the others do not average without it."""
    with ranks_of(tmp_path, "local_sgd(h=5)", "raised", LONG_S) as ranks:
        outcomes = [outcome_of(rank) for rank in ranks]

    assert outcomes[1] == {"error": "ValueError", "text": "mine", "step": 9}
    for rank in (0, 2):
        assert_clear(outcomes[rank], rank, "averaging")


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("bsp", "RuntimeError"),
        ("bsp + fp16", "RuntimeError"),
        ("bsp + powersgd", "SyncError"),  # whose hook waits itself
        ("bsp + topk(ratio=0.5)", "RuntimeError"),
        ("bsp + int8", "RuntimeError"),
    ],
)
def test_under_bsp_the_backward_pass_raises(tmp_path: Path, policy: str, error: str) -> None:
    """torch's error, which quotes ours: no rank continues with undefined gradients."""
    for outcome in survivors(tmp_path, policy, "killed"):
        assert outcome["error"] == error
        assert "reducing the gradients failed: a rank is lost" in outcome["text"]
        assert "gloo/transport" in outcome["text"], "the collective's own error, not what came of missing it"
        assert "restart the job from its last checkpoint" in outcome["text"]
        assert outcome["step"] in (9, 10)


def test_without_a_policy_the_error_is_torch_s(tmp_path: Path) -> None:
    """Where the module is metered only, it names neither a class nor a remedy of ours."""
    for outcome in survivors(tmp_path, "none", "killed"):
        assert outcome["error"] == "RuntimeError"
        assert "gloo/transport" in outcome["text"]
        assert "SyncError" not in outcome["text"] and "restart the job" not in outcome["text"]


@pytest.mark.parametrize("policy", ["selsync(delta=0.02, late=0)", "local_sgd(h=10)"])
def test_ranks_wait_for_a_silent_rank_until_the_group_s_time_out(tmp_path: Path, policy: str) -> None:
    """Rows too: their group has the job's time-out."""
    for rank, outcome in zip((0, 2), survivors(tmp_path, policy, "silent", SHORT_S), strict=True):
        assert_clear(outcome, rank, "averaging" if "local" in policy else "receiving the rows of the other ranks")


@pytest.mark.parametrize(
    "policy", ["bsp", "local_sgd(h=4)", "local_sgd(h=7)", "selsync(delta=0.02, late=0)", "accumulate(k=4)"]
)
def test_a_rank_that_omitted_an_update_is_detected(tmp_path: Path, policy: str) -> None:
    """
    One update fewer: all ranks end with an error that names the rank and the step, and none aborts. The next rows show
    it, which are sent in step 11 and count ROWS_DELAY steps later at the latest: they travel while ranks compute.
    """
    with ranks_of(tmp_path, policy, "skipped", SHORT_S) as ranks:
        outcomes = [outcome_of(rank) for rank in ranks]

    assert [each["error"] for each in outcomes] == ["SyncError"] * RANKS
    assert all("rank 1 left out an optimizer step in step 9" in each["text"] for each in outcomes)
    assert all(9 <= each["step"] <= 11 + ROWS_DELAY for each in outcomes)
