"""The examples, run as a user runs them: real processes, with and without a real daemon."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_group import printed_by

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
COMMANDS = {
    "job.py": (sys.executable, str(EXAMPLES / "job.py")),
    "train.py": (*TORCHRUN, str(EXAMPLES / "train.py")),
}

CONFIG = """
[node]
name = "node-a"
runtime_dir = "{folder}"
[store]
path = "{folder}/history.sqlite"
[web]
port = 0
[hub]
"""


@pytest.fixture
def daemon(folder: Path) -> Iterator[None]:
    """A node's daemon with the hub in it, and no clock source at all."""
    config = folder / "timesyncd.toml"
    config.write_text(CONFIG.format(folder=folder))
    process = subprocess.Popen([sys.executable, "-m", "timesyncd", "run", "--config", str(config)])
    try:
        deadline = time.monotonic() + 60
        while not (folder / "job.sock").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def run_example(name: str, folder: Path, steps: int) -> list[str]:
    """The lines that it printed, one in 50 steps; its processes end with it, whatever happens."""
    command = (*COMMANDS[name], "--steps", str(steps))
    return printed_by(command, {"TIMESYNCD_RUNTIME_DIR": str(folder)}).splitlines()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_job_without_a_daemon_runs_and_reports_it(folder: Path, name: str) -> None:
    """It measures its own overhead, its barrier is the plain collective, and it prints both."""
    lines = run_example(name, folder, steps=100)

    assert len(lines) == 2
    assert all("no signals; measured here alone" in line for line in lines)
    assert all("barrier plain: no signals from timesyncd" in line for line in lines)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_job_reads_its_straggler_rank_and_releases_together(folder: Path, name: str) -> None:
    """Two ranks of one node read one clock: without any PTP the slow one is named and the barrier is timed."""
    lines = run_example(name, folder, steps=1000)

    assert any("% overhead, straggler rank 1, aligned to 0 ns; barrier timed" in line for line in lines), lines
