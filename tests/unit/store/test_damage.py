"""Damage to a store's file while its daemon writes, and while it does not run: reported, set aside, and no readable row lost."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from samples import nth
from store_bench import SAMPLES, Bench, wait_until

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.model.observation import Observation
from timesyncd.store import recovery, salvage, writer
from timesyncd.store.damage import damage_of
from timesyncd.store.engine import shm_of, wal_of

PAGE = 4_096


def sample_pages(path: Path) -> dict[int, int]:
    """The number of rows in each leaf page of clock_sample: a page of a b-tree of rows that names several times what was measured."""
    data = path.read_bytes()
    starts = [
        at for at in range(PAGE, len(data), PAGE) if data[at] == 13 and data.count(b"ptprealtime", at, at + PAGE) > 3
    ]
    return {at // PAGE + 1: int.from_bytes(data[at + 3 : at + 5], "big") for at in starts}


def overwrite(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(random.Random(page).randbytes(PAGE))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Its thread looks at its file at each round."""
    monkeypatch.setattr(recovery, "CHECK_EVERY_NS", 0)
    monkeypatch.setattr(writer, "BATCH_S", 0.05)
    return Bench(tmp_path / "history.sqlite")


def damaged_schema(bench: Bench) -> None:
    """The first page has the header and the root of the schema; the next ones have the tables."""
    for page in (1, 2, 3):
        overwrite(bench.path, page)


def removed_log(bench: Bench) -> None:
    wal_of(bench.path).unlink()


def removed_log_and_index(bench: Bench) -> None:
    wal_of(bench.path).unlink()
    shm_of(bench.path).unlink()


@pytest.mark.parametrize("damage", [damaged_schema, removed_log, removed_log_and_index])
def test_damage_while_the_daemon_writes_loses_no_row(bench: Bench, damage: Callable[[Bench], None]) -> None:
    """The open connection still reads all: each sample and event is in the new file, and the ones after it as well."""
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store)
        damage(bench)
        reports = bench.copied()
        bench.fill(store, 10)

    assert "no row that it had is known to be lost" in reports
    assert bench.offsets() == list(range(SAMPLES + 10))
    assert bench.rows("PRAGMA integrity_check") == [("ok",)]
    assert bench.rows("SELECT event_id FROM event ORDER BY event_id") == [("e2000",), ("e2010",)]
    assert len(list(bench.path.parent.glob("history.sqlite.damaged-*[0-9Z]"))) == 1
    assert not list(bench.path.parent.glob("*.salvage-*"))


def test_a_truncated_file_loses_what_was_cut_off_alone(bench: Bench) -> None:
    """Every row in what is left is copied; new ones go on, above their ids; the stream for the hubs is a new one."""
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store)
    [[stream]] = bench.rows("SELECT stream FROM outbox_counter")
    pages = bench.path.stat().st_size // PAGE // 2
    left = sum(rows for page, rows in sample_pages(bench.path).items() if page <= pages)
    with bench.running() as store:
        store.next_incarnation("n1")
        with bench.path.open("r+b") as file:
            file.truncate(pages * PAGE)
        reports = bench.copied()
        bench.fill(store, 10)

    offsets = bench.offsets()
    assert "truncated" in reports or "malformed" in reports
    assert len(offsets) - 10 == left > SAMPLES // 5
    assert offsets[-10:] == list(range(SAMPLES, SAMPLES + 10))
    assert bench.rows("SELECT stream FROM outbox_counter") > [(stream,)]
    assert bench.rows("SELECT offset_ns FROM clock_sample ORDER BY id DESC LIMIT 10")[-1] == (SAMPLES,)


def test_damage_while_no_daemon_runs_is_found_at_its_start(bench: Bench) -> None:
    """A file whose schema is gone is read by the schema of a new one; of the damaged page of samples only its own rows are lost."""
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store)
    pages = list(sample_pages(bench.path))
    lost_page = pages[len(pages) // 2]
    damaged_schema(bench)
    overwrite(bench.path, lost_page)
    with bench.running() as store:
        incarnation = store.next_incarnation("n1")
        bench.copied()

    offsets = bench.offsets()
    lost = sorted(set(range(SAMPLES)) - set(offsets))
    assert incarnation == 1_700_000_001
    assert 0 < len(lost) <= 40
    assert lost == list(range(lost[0], lost[-1] + 1))


def test_a_page_that_a_write_meets_is_damage(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own report counts at once, without a check: the batch that met it is stored in the new file."""
    monkeypatch.setattr(recovery, "damage_of", lambda path, has_tables, head: None)
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store)
    for page in range(2, bench.path.stat().st_size // PAGE + 1):
        overwrite(bench.path, page)
    with bench.running() as store:
        bench.copied()
        bench.fill(store, 10)

    assert bench.offsets() == list(range(SAMPLES, SAMPLES + 10))


def test_a_daemon_that_stops_meanwhile_goes_on_at_its_next_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While rows are copied nothing is rolled up; no row is copied twice."""
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store)
    with monkeypatch.context() as slow:
        slow.setattr(salvage.Salvage, "step", lambda *_: None)
        with bench.running() as store:
            store.next_incarnation("n1")
            bench.fill(store, 1)
            wal_of(bench.path).unlink()
            bench.reports.get(timeout=120)
            bench.clocks.advance(3_600 * NS_PER_S)
            store.put(Observation(nth(bench.put, offset_ns=bench.put), None))
            wait_until(lambda: store.waiting == 0)
        rolled_up = bench.rows("SELECT count(*) FROM rollup")
        waiting = salvage.pending(bench.path)
    with bench.running() as store:
        assert "rows were copied" in bench.reports.get(timeout=120)

    assert len(waiting) == 1
    assert rolled_up == [(0,)]
    assert bench.offsets() == list(range(SAMPLES + 2))
    assert bench.rows("SELECT count FROM rollup WHERE span_s = 3600 AND quantity = 'offset_ns'") == [(SAMPLES + 2,)]


def test_a_healthy_file_is_not_set_aside(bench: Bench) -> None:
    """Neither a file that is written, nor an empty one that an operator made, nor one that another process locks is damaged."""
    bench.path.touch()
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store)
        found = [damage_of(bench.path, has_tables=True) for _ in range(3)]
        with closing(sqlite3.connect(bench.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            found.append(damage_of(bench.path, has_tables=True))
            other.execute("ROLLBACK")

    assert found == [None] * 4
    assert bench.reports.empty()
    assert bench.offsets() == list(range(SAMPLES))


#: What an operator's `sqlite3 history.sqlite` does.
READ = (
    "import sqlite3, sys; store = sqlite3.connect(sys.argv[1]); store.execute('PRAGMA integrity_check'); store.close()"
)


def test_a_check_leaves_the_writers_locks(bench: Bench) -> None:
    """
    A process that closes a file loses all its locks on it. Then another program that reads the store believes to be alone,
    and removes the write-ahead log that the daemon writes to.
    """
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.fill(store)
        bench.fill(store, 1)  # a round that begins with a check
        log = wal_of(bench.path).stat().st_ino
        subprocess.run([sys.executable, "-c", READ, bench.path], check=True, timeout=60)
        bench.fill(store, 10)
        after = wal_of(bench.path).stat().st_ino

    assert after == log
    assert bench.reports.empty()
    assert bench.offsets() == list(range(SAMPLES + 11))


def test_a_disk_that_damages_each_file_is_not_filled(bench: Bench) -> None:
    """With five damaged files beside it the store fails, and states why."""
    for number in range(salvage.MAX_SET_ASIDE):
        bench.path.with_name(f"{bench.path.name}.damaged-{number}").touch()
    bench.path.write_bytes(b"no database" * 1_000)
    with bench.running() as store, pytest.raises(StoreError, match="5 damaged files are beside it"):
        store.next_incarnation("n1")
