"""A real daemon whose store is damaged while it runs: reported within a minute, and the history goes on."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from timesyncd.client.api import fetch_all
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation, wal_of

pytestmark = pytest.mark.integration

SOURCE = '\n[[source]]\nname = "kernel"\ndriver = "kernel"\n'
FOR_EVER_NS = 2**62


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess("n1", tmp_path / "n1", "", new_marker(), more=SOURCE) as daemon:
        until(lambda: bool(times(daemon)))
        yield daemon


def until(is_so: Callable[[], bool], within_s: float = 180) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def times(node: DaemonProcess) -> list[int]:
    """When the stored samples were read."""
    found = history.samples(StoreLocation(path=node.store), "kernel", 0, FOR_EVER_NS)
    return [record["realtime_ns"] for record in found]


def reports(node: DaemonProcess) -> str:
    every = fetch_all(node.page)["findings"]
    return " ".join(finding["evidence"] for finding in every if finding["id"] == "store-damaged")


def damaged_schema(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xa5" * 4_096)


def truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(0)


def removed_log(path: Path) -> None:
    wal_of(path).unlink()


@pytest.mark.parametrize("damage", [damaged_schema, truncated, removed_log])
def test_a_running_daemon_sets_a_damaged_store_aside(node: DaemonProcess, damage: Callable[[Path], None]) -> None:
    """No sample that was stored is lost, since the daemon's own connection still reads it, and the page answers throughout."""
    before = times(node)
    damage(node.store)
    until(lambda: "rows were copied" in reports(node))
    until(lambda: max(times(node)) > max(before))
    node.check()

    assert set(before) <= set(times(node))
    with closing(sqlite3.connect(node.store)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_the_commands_back_up_and_restore_a_running_daemons_store(node: DaemonProcess, tmp_path: Path) -> None:
    """The samples after the backup are in the former file, and new ones go into the restored one."""
    backup = tmp_path / "backup.sqlite"
    store = [sys.executable, "-m", "timesyncd", "store"]
    place = ["--store", str(node.store)]
    subprocess.run([*store, "backup", str(backup), *place], check=True)
    saved = {record["realtime_ns"] for record in history.samples(StoreLocation(path=backup), "kernel", 0, FOR_EVER_NS)}
    until(lambda: max(times(node)) > max(saved))
    done = subprocess.run([*store, "restore", str(backup), *place], check=True, stdout=subprocess.PIPE, text=True)
    restored_ns = time.time_ns()
    until(lambda: max(times(node)) > restored_ns)

    assert "the daemon restored the backup" in done.stdout
    assert saved <= set(times(node))
    assert len(list(node.folder.glob("history.sqlite.replaced-*Z"))) == 1
    assert reports(node) == ""
