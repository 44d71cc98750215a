"""The roadmap of a real job: two ranks mark their steps, a daemon joins them, and the policy in their plan changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from timesyncd.simulation.bed.broker import free_port

pytestmark = pytest.mark.integration

DEADLINE_S = 240
WINDOW_STEPS = 120

#: A rank whose transfers take longer than its computing, until it is killed.
RANK = """
import sys, time
from timesyncd.client import Job
from timesyncd.ipc.job_datagram import Kind
job = Job("job", int(sys.argv[2]), 2, 0, runtime_dir=sys.argv[1])
for step in range(1_000_000):
    with job.meter.step(step):
        time.sleep(0.004)
        job.meter.gradients_ready()
        with job.meter.sync(step, Kind.ALL_REDUCE, 1 << 20):
            time.sleep(0.012)
"""


def roadmap(folder: Path, url: str) -> tuple[int, list[dict[str, Any]], str]:
    """The exit status of the command, the steps that it printed, and its errors."""
    command = [sys.executable, "-m", "timesyncd", "roadmap", "job", "--yes", "--json", "--url", url]
    environ = os.environ | {"TIMESYNCD_RUNTIME_DIR": str(folder)}
    done = subprocess.run(
        [*command, "--out", str(folder / "out")],
        check=False,
        capture_output=True,
        text=True,
        env=environ,
        timeout=DEADLINE_S,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_roadmap_is_walked_to_its_end(folder: Path) -> None:
    """It waits for the hub, and before the last audit for a window that is all of after the change."""
    port = free_port()
    config = folder / "timesyncd.toml"
    config.write_text(
        f'[node]\nname = "node-a"\nruntime_dir = "{folder}"\n[web]\nport = {port}\n[hub]\nwindow_steps = {WINDOW_STEPS}\n'
    )
    processes = [subprocess.Popen([sys.executable, "-m", "timesyncd", "run", "--config", str(config)])]
    processes += [subprocess.Popen([sys.executable, "-c", RANK, str(folder), str(rank)]) for rank in range(2)]
    steps: list[dict[str, Any]] = []
    try:
        deadline, status, errors = time.monotonic() + DEADLINE_S, 1, ""
        while status and time.monotonic() < deadline:
            status, printed, errors = roadmap(folder, f"http://127.0.0.1:{port}/")
            steps += printed
            time.sleep(0.2)
    finally:
        for process in processes:
            process.kill()
            process.wait()

    assert status == 0, errors
    done = [step for step in steps if step["status"] == 0 or (step["stage"] != "audit" and step["status"] == 1)]
    assert [step["stage"] for step in done] == ["audit", "deploy", "monitor", "optimize", "audit-again"]
    assert (folder / "out" / "before" / "report.html").exists()
    assert json.loads((folder / "out" / "after" / "report.json").read_text())["before_after"] is not None
