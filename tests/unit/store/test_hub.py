"""What a hub's store does with the histories of others, however much of it comes and whatever fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import pytest
from fake_clocks import FakeClocks
from postgresql import location, locked, rows_of, settings_of
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from store_nodes import (
    LIMITS,
    NOW_NS,
    SIZE,
    Node,
    batch_of,
    cloud_event,
    reported_more,
    running,
    short_intervals,
    until,
)

from timesyncd.store import backlog
from timesyncd.store.archive import ArchiveProgress
from timesyncd.store.engine import StoreLocation, writer_engine
from timesyncd.store.writer import Store

__all__ = ["location", "short_intervals"]


def test_a_hub_keeps_what_others_send(location: StoreLocation) -> None:
    """In order and once; the progress is reported after each batch, even if it was known."""
    with running(location) as hub:
        for first, last in ((1, 2), (4, 5), (1, 2), (2, 3)):
            hub.store.put_history(batch_of("n2", first, last), SIZE)
            until(partial(reported_more, hub, len(hub.reported)))
    with running(location) as again:
        again.store.put_history(batch_of("n2", 4, 4), SIZE)
        until(lambda: again.reported)

    assert [progress.stored_up_to for progress in hub.reported] == [2, 2, 2, 3]
    assert again.reported == [ArchiveProgress("n2", 1_700_000_000, 4, 0)]
    assert rows_of(location, "SELECT node, sequence FROM event ORDER BY 2") == [
        ("n2", number) for number in (1, 2, 3, 4)
    ]


def test_a_database_that_was_put_back_is_believed(location: StoreLocation) -> None:
    """A hub confirms what its database has, not what it had before a backup or another server took its location."""
    with running(location) as hub:
        hub.store.put_history(batch_of("n2", 1, 4), SIZE)
        until(lambda: hub.reported)
        put_back(location, "DELETE FROM event WHERE sequence > 2", "UPDATE received SET stored_up_to = 2")
        hub.store.put_history(batch_of("n2", 5, 5), SIZE)
        until(lambda: len(hub.reported) == 2)
        hub.store.put_history(batch_of("n2", 3, 5), SIZE)
        until(lambda: len(hub.reported) == 3)

    assert [progress.stored_up_to for progress in hub.reported] == [4, 2, 5]
    assert rows_of(location, "SELECT sequence FROM event ORDER BY 1") == [(number,) for number in range(1, 6)]


def put_back(location: StoreLocation, *sql: str) -> None:
    """The store's own thread may hold the lock for longer than a writer waits for it."""
    engine = writer_engine(location)
    until(partial(_is_committed, engine, sql))
    engine.dispose()


def _is_committed(engine: Engine, sql: Sequence[str]) -> bool:
    try:
        with engine.begin() as connection:
            for each in sql:
                connection.exec_driver_sql(each)
    except OperationalError:
        return False
    return True


def test_a_busy_hub_does_its_other_work_too(location: StoreLocation) -> None:
    """However much of others comes, old rows go, what the hubs have is cut, and the store can be stopped."""
    batch, reported = batch_of("n2", 1, 1), list[ArchiveProgress]()

    def again(progress: ArchiveProgress) -> None:
        reported.append(progress)
        hub.put_history(batch, SIZE)

    hub = Store(settings_of(location), FakeClocks(), print, node="n1", outbox=LIMITS, on_stored=again)
    hub.start()
    hub.put_event(cloud_event(1), NOW_NS)
    hub.put_history(batch, SIZE)
    until(lambda: len(reported) > 3)
    hub.cut_outbox(hub.outbox_page(0, 1).stream, 1)
    until(lambda: not hub.outbox_page(0, 1).rows)
    hub.stop()

    assert not hub._thread.is_alive()


def test_what_cannot_be_stored_of_one_node_hinders_no_other(location: StoreLocation) -> None:
    """Only its own batch is refused, and the store has no problem."""
    bad = batch_of("n3", 1, 1)
    text = bad.rows[0].event.model_copy(update={"type": "a\ud800b"}) if bad.rows[0].event else None
    bad = bad.model_copy(update={"rows": [bad.rows[0].model_copy(update={"event": text})]})
    node = Node(location, LIMITS)
    for batch in (batch_of("n2", 1, 2), bad, batch_of("n4", 1, 1)):
        node.store.put_history(batch, SIZE)
    node.store.start()
    until(lambda: len(node.reported) == 2)
    node.store.stop()

    assert [(progress.node, progress.stored_up_to) for progress in node.reported] == [("n2", 2), ("n4", 1)]
    assert (node.store.history_rejected, node.problems) == (1, [])


def test_too_much_of_others_is_refused_and_counted(location: StoreLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that does not fit is not confirmed, so it is repeated; a malformed one is rejected too and delays no other."""
    monkeypatch.setattr(backlog, "LIMIT_ROWS", 3)
    hub = Node(location, LIMITS)
    took = [hub.store.put_history(batch_of(*of), SIZE) for of in (("n2", 1, 2), ("n3", 1, 2), ("n1", 1, 1))]
    hub.store.start()
    until(lambda: hub.reported)
    hub.store.put_history(batch_of("n4", 1, 1), SIZE)
    until(lambda: len(hub.reported) == 2)
    hub.store.stop()

    assert took == [True, False, True]
    assert [progress.node for progress in hub.reported] == ["n2", "n4"]
    assert hub.store.history_rejected == 2


def test_a_batch_that_failed_is_stored_when_it_is_repeated(location: StoreLocation) -> None:
    """Not confirmed while nothing can be stored, and there once afterwards."""
    with running(location) as hub:
        hub.store.next_incarnation("n1")
        with locked(location, "event", "received", "incarnation"):
            hub.store.put_history(batch_of("n2", 1, 2), SIZE)
            until(lambda: hub.problems)
            reported = len(hub.reported)
        until(lambda: len(hub.problems) == 2)
        hub.store.put_history(batch_of("n2", 1, 2), SIZE)
        until(lambda: hub.reported)

    assert (reported, {progress.stored_up_to for progress in hub.reported}, hub.problems[1]) == (0, {2}, None)
    assert rows_of(location, "SELECT sequence FROM event ORDER BY 1") == [(1,), (2,)]


def test_what_waits_of_others_is_bounded_in_bytes(location: StoreLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows may be very large; what was stored makes room."""
    monkeypatch.setattr(backlog, "LIMIT_BYTES", SIZE + 1)
    hub = Node(location, LIMITS)
    took = [hub.store.put_history(batch_of(node, 1, 1), SIZE) for node in ("n2", "n3")]
    hub.store.start()
    until(lambda: hub.reported)
    later = hub.store.put_history(batch_of("n3", 1, 1), SIZE)
    until(lambda: len(hub.reported) == 2)
    hub.store.stop()

    assert (took, later, hub.store.history_rejected) == ([True, False], True, 1)


def test_a_malformed_history_is_logged_once_a_node(location: StoreLocation, caplog: pytest.LogCaptureFixture) -> None:
    """It comes again and again; it is counted each time."""
    with caplog.at_level(logging.WARNING), running(location) as hub:
        for number in range(3):
            for node in ("n2", "n3"):
                hub.store.put_history(batch_of(node, 1, 1, stream=2**40), SIZE)
            until(partial(has_refused, hub, 2 * number + 2))
    lines = [record.getMessage() for record in caplog.records]

    assert lines == [
        f"{location}: history of {node}: stream {2**40} begins in the future; check the node's clock"
        for node in ("n2", "n3")
    ]


def has_refused(hub: Node, batches: int) -> bool:
    return hub.store.history_rejected == batches
