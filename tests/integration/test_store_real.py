"""The store under a real kill and on a really full disk."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

pytestmark = pytest.mark.integration

CHILD = [sys.executable, str(Path(__file__).with_name("store_child.py"))]
FOR_EVER_NS = 2**62


def killed_at(path: Path, number: int) -> tuple[int, list[dict[str, int]]]:
    """Let a process write until it has handed over `number` samples, and kill it: when (BOOTTIME), and what it had handed over."""
    with subprocess.Popen([*CHILD, str(path), "write"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(number)]
        killed_ns = SystemClocks().boottime_ns()
        child.kill()
        lines += child.stdout.readlines()
    return killed_ns, [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("number", [5, 333, 450])
def test_a_killed_daemon_loses_at_most_the_last_second(tmp_path: Path, number: int) -> None:
    """After kill -9 the database is whole, and holds every sample up to one second before, without a hole; a busy machine may need another."""
    path = tmp_path / "history.sqlite"
    killed_ns, put = killed_at(path, number)
    must_be = sum(one["boottime_ns"] < killed_ns - 2 * NS_PER_S for one in put)
    stored = [record["offset_ns"] for record in history.samples(StoreLocation(path=path), "ptp", 0, FOR_EVER_NS)]
    with closing(sqlite3.connect(path)) as connection:
        check = connection.execute("PRAGMA integrity_check").fetchall()

    assert check == [("ok",)]
    assert stored == list(range(len(stored)))
    assert len(stored) >= must_be


def test_a_killed_daemon_starts_again_above(tmp_path: Path) -> None:
    """The next start after kill -9 goes on in the same file, with a larger incarnation."""
    path = tmp_path / "history.sqlite"
    numbers = []
    for _ in range(2):
        killed_at(path, 1)
        with closing(sqlite3.connect(path)) as connection:
            numbers += connection.execute("SELECT incarnation FROM incarnation WHERE node = 'n1'").fetchall()

    assert len(numbers) == 2
    assert numbers[0] < numbers[1]


def test_a_day_of_time_errors_is_whole_after_a_kill(tmp_path: Path) -> None:
    """A daemon killed in the midst of a day's file reads it again at its next start: every point is there, and once."""
    path = tmp_path / "history.sqlite"
    command = [*CHILD, str(path), "series", str(SystemClocks().realtime_ns())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
    with closing(sqlite3.connect(path)) as connection:
        [[then]] = connection.execute("SELECT count(*) FROM time_error").fetchall()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=120)
    stored = [record["value_ns"] for record in history.time_errors(StoreLocation(path=path), "gm", 0, FOR_EVER_NS)]

    assert 0 < then <= 86_400
    assert stored == list(reversed(range(86_400)))


def test_a_full_disk_is_reported_and_survived(tmp_path: Path) -> None:
    """On a full disk, putting continues and the store reports the problem once; when space is free again it reports the end, and no row of the last 60 s is lost."""
    path = tmp_path / "disk" / "history.sqlite"
    path.parent.mkdir()
    namespace = ["unshare", "--map-root-user", "--mount"]
    done = subprocess.run(
        [*namespace, *CHILD, str(path), "fill"], stdout=subprocess.PIPE, text=True, timeout=120, check=True
    )

    assert json.loads(done.stdout) == {
        "problem": f"{path}: database or disk is full", "over": None, "lost": 0, "reported_again": 0,
    }  # fmt: skip
