"""A job's signals in TensorBoard, W&B and MLflow themselves, which run without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "support"

#: As in trackers_child.py.
SKEW, STEPS = "timesyncd/arrival_skew_p99_ns", 4

#: Patience, not an expectation.
TIMEOUT_S = 300


def run(way: str, folder: Path) -> dict[str, Any]:
    """What the trackers have after a run of trackers_child.py."""
    done = subprocess.run(
        [sys.executable, str(HERE / "trackers_child.py"), way, str(folder)],
        env=os.environ | {"PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_plain_loop_logs_to_all_three(folder: Path) -> None:
    """Each tracker has each step's signals; the job's own W&B rows keep their steps, all of them, in order."""
    found = run("plain", folder)
    steps = [[step, 9_000.0] for step in range(STEPS)]

    assert found["tensorboard"] == steps
    assert found["mlflow"] == steps
    assert [row["loss"] for row in found["wandb"] if "loss" in row] == [1 / (step + 1) for step in range(STEPS)]
    assert {row[SKEW] for row in found["wandb"] if SKEW in row} == {9_000}
    assert found["wandb"][-1]["timesyncd/step"] == STEPS - 1


def test_lightning_logs_to_its_loggers(folder: Path) -> None:
    """The Trainer's loggers get the signals at its global step; one that raises is asked once, and the training ends well."""
    found = run("lightning", folder)

    assert found == {
        "tensorboard": [[step, 9_000.0] for step in range(1, STEPS + 1)],
        "steps": STEPS,
        "failed": 1,
    }


def test_transformers_logs_to_the_run_that_it_opens(folder: Path) -> None:
    """The trackers get the signals at the Trainer's global step, and the Trainer's own rows are whole."""
    found = run("transformers", folder)

    assert found["steps"] == STEPS
    assert found["tensorboard"] == [[step, 9_000.0] for step in range(1, STEPS + 1)]
    assert len([row for row in found["wandb"] if "train/loss" in row]) == STEPS
    assert {row[SKEW] for row in found["wandb"] if SKEW in row} == {9_000}
