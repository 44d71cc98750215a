"""Real gloo jobs that hang, under a real daemon: while they hang, and after they were killed, the same sentence names the missing rank."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from timesyncd.simulation.bed.broker import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CHILD = Path(__file__).with_name("torch_hang_child.py")

CONFIG = """
[node]
name = "node-a"
runtime_dir = "{folder}"
[store]
path = "{folder}/history.sqlite"
[web]
port = {port}
[hub]
"""

#: Per cause: where rank 0 waits, and what is reported of rank 1.
EXPECTED = {
    "unequal_steps": (
        "bucket 0 of step 40",
        "its last mark: step 40, barrier; it ended",
    ),
    "extra_synchronization": (
        "barrier 2 of step 60",
        "its last mark: step 60, barrier; the other ranks call a synchronization more in this step",
    ),
    "failed": ("bucket 0 of step 30", "its last mark: step 30, barrier; it ended by an error"),
}


def ranks_of(cause: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, str(CHILD), cause, str(folder)]
    return [subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stderr=subprocess.DEVNULL) for rank in (0, 1)]


def findings(port: int) -> list[dict[str, Any]]:
    """The active ones; none while the daemon starts."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/findings", timeout=10) as reply:
        return [
            each
            for each in json.load(reply)["items"]
            if each["id"] == "rank-missing" and each["until_realtime_ns"] is None
        ]
    return []


def until_found(port: int) -> dict[str, str]:
    """The evidence of each job's finding, once all jobs have one."""
    deadline = time.monotonic() + 120
    found: dict[str, str] = {}
    while len(found) < len(EXPECTED) and time.monotonic() < deadline:
        found = {each["subject"]: each["evidence"] for each in findings(port)}
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def hung() -> Iterator[tuple[dict[str, str], Path]]:
    """The evidence of each job while it hung, and the folder of the recordings; the ranks are killed by then."""
    folder = Path(tempfile.mkdtemp(prefix="ts-"))  # a UNIX socket's address holds 107 octets
    port = free_port()
    config = folder / "timesyncd.toml"
    config.write_text(CONFIG.format(folder=folder, port=port))
    daemon = subprocess.Popen([sys.executable, "-m", "timesyncd", "run", "--config", str(config)])
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for cause in EXPECTED:
            ranks += ranks_of(cause, folder)
        found = until_found(port)
        for rank in ranks:
            rank.kill()
        yield found, folder
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate(timeout=60)
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(60)
        finally:
            daemon.kill()
            daemon.wait()
            shutil.rmtree(folder)


@pytest.mark.parametrize("cause", EXPECTED)
def test_a_hang_is_explained_while_it_lasts(hung: tuple[dict[str, str], Path], cause: str) -> None:
    """The finding names the waiting rank, the place, the rank that never came, its last mark and the cause."""
    evidence = hung[0][cause]

    where, last = EXPECTED[cause]
    assert "rank 0 waited 1" in evidence
    assert f" s in {where}; rank 1 never came; {last}" in evidence


@pytest.mark.parametrize("cause", EXPECTED)
def test_the_report_of_a_killed_job_says_the_same(
    hung: tuple[dict[str, str], Path], cause: str, tmp_path: Path
) -> None:
    """From the recordings alone, whose ranks were killed in the hang."""
    command = [sys.executable, "-m", "timesyncd", "audit", "--record", str(hung[1] / cause), "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    hang = json.loads((tmp_path / "report.json").read_text())["hang"]

    assert hang["waiting"] == [0]
    assert f"{hang['where']} of step {hang['step']}" == EXPECTED[cause][0]
    assert [(each["rank"], each["cause"]) for each in hang["absent"]] == [(1, cause)]
