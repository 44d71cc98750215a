"""The barriers over real gloo processes, and the examples that use them, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process_group import printed_by

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*command: str) -> str:
    """What two ranks printed; their processes end with this, whatever happens."""
    return printed_by((*TORCHRUN, *command), {"PYTHONPATH": str(HERE.parent / "support")})


@pytest.fixture(scope="module")
def found() -> Iterator[list[dict[str, Any]]]:
    """The records of each of two ranks in one run."""
    folder = Path(tempfile.mkdtemp(prefix="ts-"))
    try:
        run(str(HERE / "barrier_child.py"), str(folder))
        yield [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["two_collectives", "fused"])
def test_ranks_that_see_different_things_stay_in_step(found: list[dict[str, Any]], kind: str) -> None:
    """25 pairs of views, one after the other in one process group: all come through, and read the same instants."""
    first, second = ([case[kind] for case in rank["differing"]] for rank in found)

    agreed = [[verdict["agreed_ns"] for case in rank for verdict in case] for rank in (first, second)]
    assert agreed[0] == agreed[1]
    assert len(agreed[0]) == 75


def test_rank_0_alone_decides(found: list[dict[str, Any]]) -> None:
    """With two collectives its view makes a barrier timed, whatever the other one sees; a raising one is a plain verdict."""
    for case in found[0]["differing"]:
        modes = {verdict["mode"] for verdict in case["two_collectives"]}
        assert modes == {"timed" if case["pair"][0] == "timed" else "plain"}
        reasons = {verdict["reason"] for verdict in case["two_collectives"]}
        assert case["pair"][0] != "all raises" or all("RuntimeError: broken" in reason for reason in reasons)


def test_without_a_daemon_two_collectives_are_plain_and_one_is_timed(found: list[dict[str, Any]]) -> None:
    """Two ranks of one node find out that they read one clock by what the collective carries."""
    for rank in found:
        assert rank["without_daemon"]["plain"][0].endswith(
            "no signals from timesyncd" if rank is found[0] else "rank 0 chose a plain barrier, or has no trusted clock"
        )
        assert rank["without_daemon"]["first_mode"] == "timed"
    assert found[0]["without_daemon"]["agreed"] == found[1]["without_daemon"]["agreed"]


def test_the_earlier_rank_has_the_slack_and_the_later_one_has_none(found: list[dict[str, Any]]) -> None:
    """The later rank's work never runs, since it would make the job wait."""
    early, late = (rank["without_daemon"] for rank in found)

    assert early["slack_ns"] is not None
    assert (late["slack_ns"], late["runs"]) == (0, 0)


def test_the_scheduling_policy_is_as_it_was(found: list[dict[str, Any]]) -> None:
    """After forty holds under SCHED_FIFO, or without the right to it."""
    assert [rank["without_daemon"]["policy"] for rank in found] == [os.SCHED_OTHER] * 2


def test_the_barrier_example() -> None:
    """Both ranks print how many releases they made, and rank 1, which is always last, prefetches nothing."""
    printed = run(str(EXAMPLES / "barrier.py"), "--steps", "60", "--fifo")

    assert re.search(r"rank 0: \d+ of 60 released on time", printed)
    assert re.search(r"rank 1: .*; slack \d+\.\d ms; prefetched 0 times", printed)


def test_the_pauses_example() -> None:
    """Both ranks pause after the same steps: by the clock, and by counting where the machine is too busy for a timed barrier."""
    printed = run(str(EXAMPLES / "pauses.py"))
    reports = re.findall(r"rank \d: paused after steps (\[.+?\]); by the clock (\d+), by steps (\d+)", printed)

    assert len(reports) == 2
    assert reports[0] == reports[1]
    assert int(reports[0][1]) + int(reports[0][2]) > 0
    assert len(re.findall(r"rank \d: [1-9]\d* collections by the thread", printed)) == 2
