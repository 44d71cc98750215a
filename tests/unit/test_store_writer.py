"""The writer: what it is given is stored, and what it cannot store is told."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from samples import HEALTHY, nth

from timesyncd.clocks import NS_PER_S, FakeClocks
from timesyncd.config import Store as Settings
from timesyncd.errors import StoreError
from timesyncd.feed import Observation
from timesyncd.messages import FindingMessage
from timesyncd.sample import NoSample, PortState
from timesyncd.store import database, retention, writer
from timesyncd.store.writer import NS_PER_DAY, Store

FINDING = FindingMessage(
    id="store-failing",
    severity="warning",
    subject="n1",
    since_realtime_ns=1_699_999_999 * NS_PER_S,
    until_realtime_ns=None,
    evidence="disk full",
    cause="?",
    remedy="!",
)


class Bench:
    """A store on a file of its own, with clocks that stand and the problems that it told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clocks = FakeClocks()
        self.problems: Queue[str | None] = Queue()

    def store(self) -> Store:
        return Store(Settings(path=self.path), self.clocks, self.problems.put)

    @contextmanager
    def running(self) -> Iterator[Store]:
        store = self.store()
        store.start()
        try:
            yield store
        finally:
            store.stop()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql).fetchall()

    @contextmanager
    def locked(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def put_now(self, store: Store) -> None:
        """A sample of this moment."""
        sample = replace(
            HEALTHY,
            as_of_ns=self.clocks.boot_ns,
            real_minus_boot_ns=self.clocks.real_ns - self.clocks.boot_ns,
        )
        store.put(Observation(sample, None))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "history.sqlite")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that waits neither for a lock nor long before it tries again."""
    monkeypatch.setattr(database, "BUSY_S", 0.01)
    monkeypatch.setattr(writer, "RETRY_S", 0.01)


def test_what_is_put_is_stored_when_it_stops(bench: Bench) -> None:
    """Everything handed over before stop() is in the file after it, in order."""
    with bench.running() as store:
        for index in range(10):
            store.put(Observation(nth(index, offset_ns=index), None))

    assert bench.rows("SELECT offset_ns FROM clock_sample ORDER BY id") == [(index,) for index in range(10)]
    assert (store.stored, store.dropped, store.behind_s) == (11, 0, 0.0)


def test_only_a_change_of_reason_is_an_event(bench: Bench) -> None:
    """Samples begin, fail twice alike, fail otherwise, come again: four rows, however many polls."""
    with bench.running() as store:
        failed = NoSample("ptp", 7, "no answer", port_state=PortState.LISTENING)
        for reading in (HEALTHY, HEALTHY, failed, failed, NoSample("ptp", 8, "restarted", restarted=True), HEALTHY):
            store.put(Observation(reading, None))

    assert bench.rows("SELECT source, reason, restarted, port_state FROM source_event ORDER BY id") == [
        ("ptp", None, 0, None),
        ("ptp", "no answer", 0, "LISTENING"),
        ("ptp", "restarted", 1, None),
        ("ptp", None, 0, None),
    ]
    assert bench.rows("SELECT count(*) FROM clock_sample") == [(3,)]


def test_more_than_60_s_behind_is_a_gap(bench: Bench, hurried: None) -> None:
    """While the file is locked the newest 60 s are kept; what is older is counted and becomes a row afterwards."""
    with bench.running() as store:
        store.next_incarnation("n1")
        with bench.locked():
            bench.put_now(store)
            problem = bench.problems.get(timeout=20)
            behind = []
            for _ in range(3):
                bench.clocks.advance(30 * NS_PER_S)
                bench.put_now(store)
                with pytest.raises(StoreError, match="locked"):
                    store.next_incarnation("n1")
                behind.append(store.behind_s)
            dropped = store.dropped
        over = bench.problems.get(timeout=20)

    start_ns = FakeClocks().real_ns
    assert (problem, over) == (f"{bench.path}: database is locked", None)
    assert (behind, dropped) == ([30, 60, 60], 2)
    assert bench.rows("SELECT source, realtime_ns, until_realtime_ns, rows_lost FROM gap") == [
        ("ptp", start_ns, start_ns, 2)
    ]
    assert bench.rows("SELECT realtime_ns FROM clock_sample") == [
        (start_ns + seconds * NS_PER_S,) for seconds in (30, 60, 90)
    ]


def test_a_problem_is_told_once(bench: Bench, hurried: None) -> None:
    """However often it is tried again, a problem is told when it begins and when it is over."""
    with bench.running() as store:
        store.next_incarnation("n1")
        with bench.locked():
            bench.put_now(store)
            told = [bench.problems.get(timeout=20)]
            for _ in range(3):
                with pytest.raises(StoreError, match="locked"):
                    store.next_incarnation("n1")
        told.append(bench.problems.get(timeout=20))

    assert told == [f"{bench.path}: database is locked", None]
    assert bench.problems.empty()


def test_a_file_that_cannot_be_opened_is_a_problem(bench: Bench) -> None:
    """The store starts without its file, says why, and answers what it can: an error."""
    bench.path.mkdir()
    with bench.running() as store, pytest.raises(StoreError, match="unable to open database file"):
        store.next_incarnation("n1")

    assert "unable to open database file" in str(bench.problems.get(timeout=1))


def test_a_removed_file_is_made_anew(bench: Bench) -> None:
    """Rows never go to a file that somebody has removed, where nobody finds them."""
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.path.unlink()
        bench.put_now(store)

    assert bench.rows("SELECT count(*) FROM clock_sample") == [(1,)]


def test_an_incarnation_is_above_every_earlier_one(bench: Bench) -> None:
    """A node's number grows at each start, also when its clock was set back; nodes are apart."""
    numbers = []
    for node, step_ns in (("n1", 0), ("n1", -(10**18)), ("n1", 0), ("n2", 0)):
        bench.clocks.step(step_ns)
        with bench.running() as store:
            numbers.append(store.next_incarnation(node))

    assert numbers == [1_700_000_000, 1_700_000_001, 1_700_000_002, 700_000_000]


def test_a_finding_put_again_replaces_itself(bench: Bench) -> None:
    """Raised and ended is one row, in one batch or in two."""
    until_ns = bench.clocks.real_ns
    ended = FINDING.model_copy(update={"until_realtime_ns": until_ns})
    with bench.running() as store:
        store.put_finding(FINDING)
        store.put_finding(ended)
    with bench.running() as store:
        store.put_finding(ended.model_copy(update={"until_realtime_ns": until_ns + 1}))

    assert bench.rows("SELECT finding_id, subject, until_realtime_ns FROM finding") == [
        ("store-failing", "n1", until_ns + 1)
    ]


def test_a_start_ends_what_stood(bench: Bench) -> None:
    """A finding that stood when the daemon was killed does not stand for ever."""
    with bench.running() as store:
        store.put_finding(FINDING)
    stood = bench.rows("SELECT until_realtime_ns FROM finding")
    with bench.running():
        pass

    assert stood == [(None,)]
    assert bench.rows("SELECT until_realtime_ns FROM finding") == [(bench.clocks.real_ns,)]


def test_old_rows_go_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step deletes no more than its number of rows, the oldest first, over all sources, and none that is young enough."""
    monkeypatch.setattr(retention, "STEP_ROWS", 4)
    with bench.running() as store:
        for source in ("a", "b"):
            for index in range(5):
                store.put(Observation(nth(index, source=source), None))
    engine = database.writer_engine(bench.path)
    deleted, left = [], []
    for _ in range(3):
        with engine.begin() as connection:
            deleted.append(retention.delete_step(connection, nth(3).as_of_ns + HEALTHY.real_minus_boot_ns))
        left.append(bench.rows("SELECT source, count(*) FROM clock_sample GROUP BY source"))
    engine.dispose()

    assert deleted == [4, 4, 0]
    assert left == [[("a", 2), ("b", 4)], [("a", 2), ("b", 2)], [("a", 2), ("b", 2)]]


def test_what_is_older_than_keep_days_goes_while_the_store_runs(bench: Bench) -> None:
    """Eight days later the first start deletes it without being asked; an ended finding goes likewise."""
    with bench.running() as store:
        bench.put_now(store)
        store.put_finding(FINDING.model_copy(update={"until_realtime_ns": bench.clocks.real_ns}))
    bench.clocks.advance(8 * NS_PER_DAY)
    with bench.running() as store:
        bench.put_now(store)

    assert bench.rows("SELECT realtime_ns FROM clock_sample") == [(bench.clocks.real_ns,)]
    assert bench.rows("SELECT count(*) FROM finding") == [(0,)]
