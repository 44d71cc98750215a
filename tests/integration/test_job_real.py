"""A job and its restart under a real daemon without any clock source: two processes that are one node's ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

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

#: A rank that waits for its clocks, marks two epochs of steps, and prints what it read before and after.
RANK = """
import json, sys, time
from timesyncd.client import Job
job = Job("job", int(sys.argv[2]), 2, 0, runtime_dir=sys.argv[1], record=sys.argv[1] + "/record")
first = job.require_alignment(0, timeout_s=60)
for step in [*range(20), *range(20)]:
    with job.meter.step(step), job.meter.sync(step):
        time.sleep(0.002)
job.meter.announce()
deadline = time.monotonic() + 60
while True:
    signals = job.signals()
    if signals is not None and signals.steps_complete >= 40 or time.monotonic() > deadline:
        break
    time.sleep(0.05)
print(json.dumps({
    "before": [first.alignment_ns, first.run, first.steps_complete], "run": signals and signals.run, "step": signals and signals.step,
    "complete": signals and signals.steps_complete, "method": signals and signals.method,
    "lost": job.meter.lost, "unrecorded": job.meter.unrecorded, "steps": job.meter.local_signals().steps,
}), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def daemon(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node's daemon with the hub in it. Ranks wait for it, so no test has to."""
    config = folder / "timesyncd.toml"
    config.write_text(CONFIG.format(folder=folder))
    process = subprocess.Popen([sys.executable, "-m", "timesyncd", "run", "--config", str(config)])
    yield process
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def run_both(folder: Path) -> list[dict[str, Any]]:
    """What the two ranks print; both live until both have printed, so that neither is missed by the other's hub."""
    command = [sys.executable, "-c", RANK, str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        outputs = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout is not None]
        for rank in ranks:
            rank.communicate("\n", timeout=60)
        return outputs
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_a_job_and_its_restart(folder: Path, daemon: subprocess.Popen[bytes]) -> None:
    """
    Both ranks wait for an agreement of their own run, their steps of two epochs are joined by one clock without PTP, and the same name
    with other processes starts again.
    """
    runs = [run_both(folder), run_both(folder)]

    for number, output in enumerate(runs):
        for rank in output:
            assert (rank["before"][:2], rank["before"][2] < 40) == ([0, number], True)
            assert (rank["run"], rank["complete"], rank["step"], rank["method"]) == (
                number,
                40,
                2**32 + 19,
                "one_clock",
            )
            assert (rank["lost"], rank["unrecorded"], rank["steps"]) == (0, 0, 39)
    assert len(list((folder / "record").glob("rank-?-*.marks"))) == 4
