"""What a node's store does for its hubs: roll-ups and events, each once and in order, for as long as they are wanted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_clocks import FakeClocks
from postgresql import location, locked, migrate_here, ready, rows_of
from samples import HEALTHY
from sqlalchemy import Connection, insert
from sqlalchemy.exc import OperationalError
from store_nodes import (
    NOW_NS,
    Node,
    cloud_event,
    has_stored,
    minute_passes,
    running,
    short_intervals,
    until,
)

from timesyncd.clocks import NS_PER_S
from timesyncd.config import StoreSettings as Settings
from timesyncd.model.observation import Observation
from timesyncd.store import history, outbox, rollups
from timesyncd.store.backlog import RowBatch
from timesyncd.store.engine import StoreLocation, writer_engine
from timesyncd.store.rollups import Retention
from timesyncd.store.session import OutboxLimits, StoreCounters, StoreSession
from timesyncd.store.tables import event, phc_sample, rollup

__all__ = ["location", "short_intervals"]


def test_an_event_is_stored_and_waits_for_the_hubs(location: StoreLocation) -> None:
    """Under the node's own name, with its sequence number in the outbox; the sender is notified."""
    with running(location) as node:
        for number in (1, 2):
            node.store.put_event(cloud_event(number), NOW_NS + number)
        until(lambda: node.histories)
        page = node.store.outbox_page(0, 10)
    stored = history.cloud_events(location, None, 0, 2**62)

    assert [(row["node"], row["stream"], row["sequence"], row["event_id"]) for row in stored] == [
        ("n1", page.stream, 2, "2"),
        ("n1", page.stream, 1, "1"),
    ]
    assert [(row.sequence, row.realtime_ns, row.event) for row in page.rows] == [
        (1, NOW_NS + 1, cloud_event(1)),
        (2, NOW_NS + 2, cloud_event(2)),
    ]


def test_without_an_outbox_nothing_waits(location: StoreLocation) -> None:
    """Events are numbered and stored all the same; no sender is notified."""
    with running(location, outbox=None) as node:
        node.store.put_event(cloud_event(1), NOW_NS)
    with running(location, outbox=None) as node:
        node.store.put_event(cloud_event(2), NOW_NS)

    assert node.histories == 0
    assert rows_of(location, "SELECT sequence FROM event ORDER BY 1") == [(1,), (2,)]
    assert rows_of(location, "SELECT count(*) FROM outbox") == [(0,)]


def test_a_minute_is_rolled_up_for_the_hubs_too(location: StoreLocation) -> None:
    """Roll-up and outbox row come in one transaction, once."""
    with running(location) as node:
        minute_passes(node)
        waits = node.waiting()
    with running(location) as again:
        again.clocks.advance(70 * NS_PER_S)
        again.store.put_event(cloud_event(1), NOW_NS)
        until(lambda: again.histories)
        waits_then = again.waiting()

    assert (waits, waits_then) == ([(1, "roll-up")], [(1, "roll-up"), (2, "event")])
    assert rows_of(location, "SELECT node, count FROM rollup WHERE quantity = 'offset_ns'") == [("n1", 1)]


def test_what_the_hubs_have_is_forgotten(location: StoreLocation) -> None:
    """Up to the confirmed sequence number, and only of this stream."""
    with running(location) as node:
        for number in (1, 2, 3):
            node.store.put_event(cloud_event(number), NOW_NS)
        until(lambda: node.histories)
        stream = node.store.outbox_page(0, 1).stream
        node.store.cut_outbox(stream + 1, 3)
        node.store.cut_outbox(stream, 2)
        until(lambda: node.waiting() == [(3, "event")])
        page = node.store.outbox_page(0, 10)

    assert (page.floor, [row.sequence for row in page.rows]) == (3, [3])


def test_what_waits_too_long_or_is_too_much_is_lost_and_counted(location: StoreLocation) -> None:
    """Oldest first, at the next look at old rows."""
    with running(location, OutboxLimits(rows=2, age_ns=10**18)) as node:
        for number in range(5):
            node.store.put_event(cloud_event(number), node.clocks.real_ns)
        until(lambda: node.histories)
        node.clocks.advance(61 * NS_PER_S)
        until(lambda: node.store.outbox_lost)

        assert (node.waiting(), node.store.outbox_lost) == ([(4, "event"), (5, "event")], 3)


@pytest.mark.parametrize("back_s", [0, 10**9])
def test_a_clock_that_is_set_forward_makes_no_row_older(location: StoreLocation, back_s: int) -> None:
    """What waits is kept for its days as CLOCK_BOOTTIME counts them, whether the clock stays ahead or comes back."""
    day_ns = 86_400 * NS_PER_S
    with running(location, OutboxLimits(rows=100, age_ns=day_ns)) as node:
        node.store.put_event(cloud_event(1), node.clocks.real_ns)
        until(lambda: node.histories)
        node.clocks.step(10**9 * NS_PER_S)
        for _ in range(2):
            node.clocks.advance(61 * NS_PER_S)
            looks(node)
        ahead = node.store.outbox_lost
        node.clocks.step(-back_s * NS_PER_S)
        node.clocks.advance(day_ns)
        until(lambda: node.store.outbox_lost)

    assert (ahead, node.store.outbox_lost) == (0, 1)


def looks(node: Node) -> None:
    """Wait for two rounds: one may have begun before."""
    for _ in range(2):
        node.store.next_incarnation("n1")


def test_events_outlast_a_store_that_cannot_write(location: StoreLocation) -> None:
    """What fits the backlog comes in order when it can, and nothing twice."""
    with running(location) as node:
        node.store.next_incarnation("n1")
        with locked(location, "event", "outbox_counter", "incarnation"):
            for number in (1, 2):
                node.store.put_event(cloud_event(number), NOW_NS)
            until(lambda: node.problems)
        until(lambda: node.histories)

        assert node.waiting() == [(1, "event"), (2, "event")]
        until(lambda: len(node.problems) == 2)
        assert node.problems[1] is None


def test_a_commit_whose_answer_was_lost_doubles_no_event(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is given again has its number already: each event is there once, and waits for the hubs once."""
    write, lost = StoreSession.write, iter([True])

    def answer_lost(session: StoreSession, batch: RowBatch) -> bool:
        added = write(session, batch)
        if added and next(lost, False):
            raise OperationalError("COMMIT", {}, ConnectionError("server closed the connection"))
        return added

    monkeypatch.setattr(StoreSession, "write", answer_lost)
    with running(location) as node:
        for number in (1, 2):
            node.store.put_event(cloud_event(number), NOW_NS)
        until(lambda: node.problems)
        node.store.put_event(cloud_event(3), NOW_NS)
        until(lambda: node.histories)
        until(lambda: not node.store.waiting)
        waiting = node.waiting()

    assert waiting == [(1, "event"), (2, "event"), (3, "event")]
    assert rows_of(location, "SELECT sequence, event_id FROM event ORDER BY 1") == [(1, "1"), (2, "2"), (3, "3")]


def test_what_was_not_committed_is_not_counted(location: StoreLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A roll-up whose transaction fails is made again, and counts once."""
    append, fails = outbox.append, iter([True])

    def failing(connection: Connection, rows: Any) -> list[int]:
        if next(fails, False):
            raise OperationalError("INSERT", {}, ConnectionError("gone"))
        return append(connection, rows)

    monkeypatch.setattr(outbox, "append", failing)
    with running(location) as node:
        minute_passes(node)

    assert (node.store.counts.rolled_up, len(node.problems)) == (1, 2)


def test_each_class_of_rows_is_kept_for_its_own_time(location: StoreLocation) -> None:
    """Raw samples shortest, then minutes, then hours and events; what is young enough stays."""
    retention = Retention(raw_ns=10, minutes_ns=100, hours_ns=1_000)
    same = {
        "source": "nic",
        "node": "n1",
        "quantity": "q",
        "stream": 1,
        "type": "t",
        "time": "",
        "data": {},
    }
    same |= {"clock": "phc:0", "as_of_ns": 0, "real_minus_boot_ns": 0, "offset_ns": 0, "width_ns": 1, "method": "basic"}
    same |= dict.fromkeys(("count", "minimum", "maximum", "mean", "p50", "p99"), 1)
    with ready(location) as engine:
        with engine.begin() as connection:
            for number, age_ns in enumerate((5, 50, 500, 5_000)):
                row = same | {"realtime_ns": 10_000 - age_ns, "sequence": number, "event_id": str(number)}
                for table, span_s in ((phc_sample, 0), (rollup, 60), (rollup, 3_600), (event, 0)):
                    row["span_s"] = span_s
                    connection.execute(insert(table).values({name: row[name] for name in row if name in table.c}))
        with engine.begin() as connection:
            deleted = rollups.delete_step(connection, 10_000, retention)
    left = [
        rows_of(location, f"SELECT count(*) FROM {table}")
        for table in ("phc_sample", "rollup WHERE span_s = 60", "rollup WHERE span_s = 3600", "event")
    ]

    assert (deleted, left) == (3 + 2 + 1 + 1, [[(1,)], [(2,)], [(3,)], [(3,)]])


def test_batches_are_committed_while_old_rows_go(location: StoreLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are old, what is put meanwhile does not wait for them."""
    monkeypatch.setattr(rollups, "STEP_ROWS", 5)
    monkeypatch.setattr("timesyncd.store.session.WORK_S", 0.001)
    same = {
        "source": "nic",
        "clock": "phc:0",
        "as_of_ns": 0,
        "real_minus_boot_ns": 0,
        "offset_ns": 0,
        "width_ns": 1,
        "method": "b",
    }
    migrate_here(location)
    engine = writer_engine(location)
    with engine.begin() as connection:
        connection.execute(insert(phc_sample), [same | {"realtime_ns": number} for number in range(1_000)])
    engine.dispose()
    left = []
    with running(location) as node:
        for number in range(3):
            node.store.put(Observation(replace(HEALTHY, source=f"ptp-{number}"), None))
            until(partial(has_stored, node, 2 * (number + 1)))
            left += rows_of(location, "SELECT count(*) FROM phc_sample")

    assert left[2] > (0,)


@pytest.mark.parametrize(("outbox", "synchronous"), [(None, 1), (OutboxLimits(10, 10**18), 2)])
def test_rows_that_hubs_may_receive_are_on_the_disk(
    tmp_path: Path, outbox: OutboxLimits | None, synchronous: int
) -> None:
    """With an outbox every commit is (FULL), else SQLite takes its time (NORMAL): a number must not be given twice."""
    location = StoreLocation(tmp_path / "history.sqlite")
    migrate_here(location)
    session = StoreSession(location, "n1", FakeClocks(), Retention.of(Settings()), outbox, StoreCounters())
    with session._engine.connect() as connection:
        found = connection.exec_driver_sql("PRAGMA synchronous").scalar()
    session.close()

    assert found == synchronous
