"""Phases through a real daemon: marks go in by its socket, turns come back by the job segments, and ranks hold for them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from timesyncd.client import Job, Kind
from timesyncd.client.phase import PhaseScheduler
from timesyncd.simulation.bed.broker import free_port
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[2] / "examples" / "phases.py"
PATIENCE_S = 60
MS = 1_000_000
STEPS = 60


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with a hub, whose node names its link."""
    daemon = DaemonProcess("node", tmp_path / "n", "", new_marker(), hub=True, has_store=False)
    daemon.configure()
    daemon.config.write_text(daemon.config.read_text().replace("[node]\n", '[node]\nlink = "rack-7"\n'))
    daemon.start()
    yield daemon
    daemon.stop()


def mark_steps(job: Job, until_ns: int) -> None:
    """Sixty steps of 300 ms, of which 200 ms are in an all-reduce: as beside a job that does the same at the same time."""
    begin_ns = until_ns - STEPS * 300 * MS
    for step in range(STEPS):
        at = begin_ns + step * 300 * MS
        job.meter.mark(step, 0, at + 100 * MS, at + 100 * MS, at + 299 * MS, Kind.ALL_REDUCE, 8)
        job.meter.mark(step, 0, at, at, at + 300 * MS, Kind.STEP)
    job.meter.close()


def test_jobs_on_one_link_get_turns_and_hold_for_them(node: DaemonProcess) -> None:
    """The link comes from the node's configuration; both jobs get one period and opposite shifts, and a rank's step waits for its place."""
    jobs = [Job(name, rank, world_size=2, attempt=0, runtime_dir=node.folder) for name in "ab" for rank in (0, 1)]
    until_ns = time.time_ns()
    for job in jobs:
        mark_steps(job, until_ns)
    states = until_planned(node)
    phases = [states[name]["plan"]["phase"] for name in "ab"]
    apart_ns = abs(phases[0]["shift_ns"] - phases[1]["shift_ns"])

    assert [states[name]["link"] for name in "ab"] == ["rack-7", "rack-7"]
    assert phases[0]["period_ns"] == phases[1]["period_ns"] == pytest.approx(208 * MS, rel=0.02)
    assert apart_ns == pytest.approx(phases[0]["period_ns"] / 2, rel=0.1)
    assert 0 < first_hold_ns(PhaseScheduler(jobs[0])) <= phases[0]["period_ns"]


def until_planned(node: DaemonProcess) -> dict[str, dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with urllib.request.urlopen(f"{node.page}api/v1/jobs", timeout=30) as answer:
            states = {job["job"]: job for job in json.load(answer)["items"]}
        if len(states) == 2 and all(job["plan"]["phase"] for job in states.values()):
            return states
        assert time.monotonic() < deadline, states
        time.sleep(0.1)


def first_hold_ns(phaser: PhaseScheduler) -> int:
    """Of the steps from the plan's first one on; the segment may show it a moment later than the page."""
    deadline = time.monotonic() + PATIENCE_S
    for step in range(STEPS + 20, 1_000_000):
        held = phaser.before_step(step)
        if held.delay_ns:
            return held.delay_ns
        assert time.monotonic() < deadline, held
        time.sleep(0.01)
    raise AssertionError("unreachable")


def test_the_example_runs_without_a_daemon(tmp_path: Path) -> None:
    """Its steps are made, none is held, and it prints why."""
    options = [f"--port={free_port()}", "--steps=10", "--size=100000", "--ms=1"]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLE), f"--rank={rank}", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"TIMESYNCD_RUNTIME_DIR": str(tmp_path)},
        )
        for rank in (0, 1)
    ]
    try:
        printed = [process.communicate(timeout=PATIENCE_S)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()

    assert printed == ["step 9: delayed 0 ns; no phase is planned\n", ""]
    assert [process.returncode for process in ranks] == [0, 0]


def test_the_example_fits_on_a_screen() -> None:
    """At most sixty lines."""
    assert len(EXAMPLE.read_text().splitlines()) <= 60
