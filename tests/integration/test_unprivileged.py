"""The daemon as the service's user: it may write where the service may, and reaches ptp4l's socket through the group alone."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from timesyncd.bound import ClockStatus
from timesyncd.client import Clock
from timesyncd.client.api import fetch_all
from timesyncd.errors import Unreachable
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.broker import free_port
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

pytestmark = pytest.mark.integration

USER, GROUP = 65534, 4_319

CONFIG = """
[node]
name = "node"
runtime_dir = "{folder}"
[[source]]
name = "ptp"
driver = "ptp4l"
uds_address = "{uds_address}"
domain = 24
[store]
path = "{folder}/history.sqlite"
[web]
port = {port}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the user's that a path of 108 octets can name."""
    made = Path(tempfile.mkdtemp(prefix="timesyncd-"))
    os.chown(made, USER, GROUP)
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def as_the_user(command: list[str]) -> list[str]:
    """May read everything, since the interpreter may lie in root's home; a socket wants the right to write."""
    reading = [
        "--bounding-set=-all,+dac_read_search",
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=+dac_read_search",
    ]
    identity = [f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups", "--no-new-privs", *reading]
    return [host.find("setpriv"), "--pdeathsig", "KILL", *identity, *command]


def status_within(page: str, seconds: float) -> str:
    """The node's status as soon as it is SYNCHRONIZED, else the last one."""
    deadline, status = time.monotonic() + seconds, "no answer"
    while status != "SYNCHRONIZED" and time.monotonic() < deadline:
        try:
            status = fetch_all(page)["node"]["status"]
        except Unreachable:
            status = "no answer"
        time.sleep(0.5)
    return status


def test_the_daemon_runs_without_root(folder: Path) -> None:
    """It reads ptp4l, writes the segment for everybody and the store for itself, and sets nothing."""
    port = free_port()
    with PtpBed(direct=("node",)) as bed:
        address = Path(bed.nodes["node"].uds_address)
        address.parent.chmod(0o755)
        os.chown(address, 0, GROUP)  # as in the set-group-id folder of the service
        config = folder / "timesyncd.toml"
        config.write_text(CONFIG.format(folder=folder, uds_address=address, port=port))
        command = as_the_user([sys.executable, "-m", "timesyncd", "run", "--config", str(config)])
        daemon = subprocess.Popen(command, cwd="/")
        try:
            status = status_within(f"http://127.0.0.1:{port}/", 60)
            interval = Clock(folder).gm_now()
        finally:
            daemon.terminate()
            daemon.wait(60)
    segment = (folder / "clock").stat()

    assert status == "SYNCHRONIZED"
    assert interval.status is ClockStatus.SYNCHRONIZED
    assert (stat.S_IMODE(segment.st_mode), segment.st_uid) == (0o644, USER)
    assert history.sources(StoreLocation(folder / "history.sqlite")) == {"ptp": "clock"}
