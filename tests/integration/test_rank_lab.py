"""Real gloo ranks in network namespaces of their own, over shaped links: the lab itself, and the example that waits for the clocks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import eventually
from rank_lab import PREFIX, RankLab, needs_namespaces, remove_abandoned

from timesyncd.client.api import fetch_part
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import leftovers, new_marker

pytestmark = [pytest.mark.integration, needs_namespaces]

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "require_alignment.py"
RANK = [sys.executable, str(EXAMPLE), "--steps", "5"]


def namespaces() -> set[str]:
    return {path.name for path in Path("/run/netns").glob(f"{PREFIX}-{os.getpid()}-*")}


@pytest.fixture
def lab() -> Iterator[RankLab]:
    with RankLab(2, rate="200mbit") as lab:
        yield lab
    assert namespaces() == set()


@pytest.fixture
def daemon() -> Iterator[DaemonProcess]:
    """A daemon without a clock source, which is a hub by itself."""
    marker = new_marker()
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        with DaemonProcess("node-a", Path(folder), "", marker, has_store=False) as daemon:
            yield daemon
        assert leftovers(marker) == []


def window(daemon: DaemonProcess) -> list[Any]:
    (job,) = fetch_part(daemon.page, "jobs")["items"]
    found: list[Any] = fetch_part(daemon.page, f"jobs/{job['job_id']}/window")["syncs"]
    return found


def test_ranks_in_namespaces_train_when_their_clocks_agree(lab: RankLab, daemon: DaemonProcess) -> None:
    """Both read one clock, as the hub reports; the links are shaped; what the hub joined of their steps is served."""
    shown = subprocess.run(
        ["tc", "-n", lab.namespaces[0], "qdisc", "show", "dev", "eth0"], check=True, capture_output=True, text=True
    )
    written = lab.run([*RANK, "--timeout-s", "120"], {"TIMESYNCD_RUNTIME_DIR": str(daemon.folder)})
    syncs = eventually(lambda: window(daemon), lambda found: len(found) == 5)

    assert "tbf" in shown.stdout and "rate 200Mbit" in shown.stdout
    assert namespaces() == {*lab.namespaces, lab.namespaces[0].rsplit("-", 1)[0] + "-switch"}
    for rank, text in enumerate(written):
        assert f"rank {rank}: the nodes' clocks agree within 0 ns" in text
    assert [(sync["step"], [each["rank"] for each in sync["arrivals"]]) for sync in syncs] == [
        (step, [0, 1]) for step in range(5)
    ]


def test_ranks_without_a_daemon_do_not_start(lab: RankLab, tmp_path: Path) -> None:
    """In one line, what is missing and what to do; the lab hands on what they wrote."""
    with pytest.raises(AssertionError, match=r"exit statuses .*1") as failed:
        lab.run([*RANK, "--timeout-s", "0.2"], {"TIMESYNCD_RUNTIME_DIR": str(tmp_path)})

    assert "does not start: " in str(failed.value) and "no daemon receives marks at" in str(failed.value)
    assert "Traceback" not in str(failed.value)


def test_an_abandoned_lab_is_removed(lab: RankLab) -> None:
    """What a killed process left goes with the next lab; a living one's stays."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    name = f"{PREFIX}-{ended.pid}-0-0"
    subprocess.run(["ip", "netns", "add", name], check=True)
    remove_abandoned()

    assert not Path("/run/netns", name).exists()
    assert len(namespaces()) == 3
