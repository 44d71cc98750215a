"""`timesyncd audit --from` on what torch itself writes: Kineto's traces and dumps of the flight recorder, with gloo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch_ranks import run_ranks

from timesyncd.__main__ import main

CHILD = Path(__file__).with_name("blame_child.py")


#: Other work on the machine may hide the slow rank: then the audit says unknown, and the job runs again.
JOBS = 3


def recorded(folder: Path) -> Path:
    """The traces and dumps of a job of four ranks, of which rank 2 takes longer to compute."""
    run_ranks(CHILD, [str(folder)], world_size=4, TORCH_FR_BUFFER_SIZE="1000")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("traces"))


def test_the_slow_rank_of_a_real_job_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 2 sleeps 30 ms longer in each step, which the others wait for: it alone is named, with about its cost."""
    for job in range(JOBS):
        folder = tmp_path / f"job{job}"
        folder.mkdir()
        recorded(folder)
        paths = [str(folder / f"rank{rank}.json.gz") for rank in range(4)]
        assert main(["audit", "--from", *paths, "--json", "--out", str(folder / "report")]) == 0
        found = json.loads(capsys.readouterr().out)
        named = [cause["rank"] for cause in found["causes"] if cause["verdict"] == "named"]
        assert named in ([], [2])
        if named:
            break

    assert [(cause["kind"], cause["rank"], cause["verdict"]) for cause in found["causes"]] == [("rank", 2, "named")]
    saved_ns = found["step_ns"] - found["causes"][0]["step_ns_without"]
    assert saved_ns > 15_000_000
    assert all(abs(clock["offset_ns"]) <= clock["error_ns"] for clock in found["clocks"])


def test_real_dumps_state_that_gloo_records_no_ends(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The dumps are read without running anything of theirs, and without times no rank is blamed."""
    paths = [str(folder / f"recorder_{rank}") for rank in range(4)]

    assert main(["audit", "--from", *paths, "--json", "--out", str(folder / "report")]) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["unknown_code"], found["causes"], found["ranks"]) == ("not_timed", [], [0, 1, 2, 3])
    assert "no times at which collectives ended" in found["unknown"]
