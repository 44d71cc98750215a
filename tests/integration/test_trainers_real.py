"""Lightning's and Hugging Face's Trainers with our callbacks, and the examples under torchrun: two real ranks on gloo."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from torch_ranks import TIMEOUT_S, listening, run_ranks

from timesyncd.client import Kind
from timesyncd.ipc.job_datagram import Mark, step_text

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def steps(marks: list[Mark]) -> list[str]:
    """Those that were marked as steps, in their order."""
    return [step_text(m.step) for m in marks if m.kind == Kind.STEP]


def buckets(marks: list[Mark]) -> dict[str, int]:
    """How many buckets each step has."""
    found = sorted(step_text(m.step) for m in marks if m.kind == Kind.BUCKET)
    return {step: len(list(group)) for step, group in groupby(found)}


def test_lightning() -> None:
    """A run, one resumed from its checkpoint, one that fails: metered by Lightning's step numbers, and trained the same."""
    with listening() as (folder, marks):
        child, arguments = HERE / "lightning_child.py", ["--folder", str(folder)]
        outputs = run_ranks(child, arguments, TORCHELASTIC_RUN_ID="run", GROUP_RANK="0", LOCAL_WORLD_SIZE="2")
        marks.close()

    for rank in (0, 1):
        assert outputs[rank] == {"same": True, "steps": [4, 6], "failed": "mine", "lost": 0}
        assert steps(marks.of["lightning", rank]) == ["0", "1", "2", "3", "4", "5", "1:0"]
        assert buckets(marks.of["lightning", rank]) == dict.fromkeys(("0", "1", "1:0", "2", "3", "4", "5"), 1)


def test_transformers() -> None:
    """A run, one resumed by another job, a second one, one set back to a checkpoint, one that fails: metered by its step numbers."""
    with listening() as (folder, marks):
        outputs = run_ranks(HERE / "transformers_child.py", ["--folder", str(folder)], LOCAL_WORLD_SIZE="2")
        marks.close()

    wanted = ["0", "1", "2", "3", "1:0", "1:1", "1:2", "1:3", "2:2", "2:3", "3:0"]
    for rank in (0, 1):
        assert outputs[rank] == {"same": True, "steps": [4, 6], "failed": "mine", "lost": [0, 0]}
        for job, numbers in (("resumed", ["4", "5"]), ("transformers", wanted)):
            assert steps(marks.of[job, rank]) == numbers
            assert buckets(marks.of[job, rank]) == dict.fromkeys(numbers, 1)


@pytest.mark.parametrize("example", ["ddp.py", "lightning_job.py", "transformers_job.py"])
def test_the_example_runs(example: str) -> None:
    """It fits on one screen, trains under torchrun, and prints what synchronization cost it; each rank's marks arrive."""
    path = ROOT / "examples" / example
    with listening() as (folder, marks):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        run = subprocess.Popen(
            [*command, str(path), "--steps", "8"],
            env=os.environ | {"TIMESYNCD_RUNTIME_DIR": str(folder), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=folder,
        )
        try:
            out, err = run.communicate(timeout=TIMEOUT_S)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        marks.close()

    assert run.returncode == 0, err[-4000:]
    assert re.search(r"^8 steps, \d+% of the time spent waiting for gradients$", out, re.MULTILINE), out
    for rank in (0, 1):
        (job,) = {name for name, number in marks.of if number == rank}
        assert set(buckets(marks.of[job, rank])) == {str(step) for step in range(8)}
    assert len(path.read_text().splitlines()) <= 60
