"""A running store with clocks that do not advance, for tests of what it does for a fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from fake_clocks import FakeClocks
from postgresql import settings_of
from samples import HEALTHY

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import CloudEvent, HistoryBatch, HistoryRow
from timesyncd.model.observation import Observation
from timesyncd.store import engine, writer
from timesyncd.store.archive import ArchiveProgress
from timesyncd.store.engine import StoreLocation
from timesyncd.store.session import OutboxLimits
from timesyncd.store.writer import Store

NOW_NS = FakeClocks().real_ns
#: Of a batch on its way, more or less.
SIZE = 1_000
LIMITS = OutboxLimits(rows=1_000, age_ns=10**18)


def cloud_event(number: int) -> CloudEvent:
    return CloudEvent(id=str(number), source="/n1", type="timesyncd.test", subject="ptp", time="t", data={"n": number})


def batch_of(node: str, first: int, last: int, stream: int = 1_700_000_000) -> HistoryBatch:
    rows = [
        HistoryRow(sequence=number, realtime_ns=NOW_NS, event=cloud_event(number)) for number in range(first, last + 1)
    ]
    return HistoryBatch(node=node, incarnation=1_700_000_000, sequence=1, stream=stream, floor=1, rows=rows)


class Node:
    """A running store with clocks that do not advance, and its reported progress."""

    def __init__(self, location: StoreLocation, outbox: OutboxLimits | None) -> None:
        self.location, self.clocks = location, FakeClocks()
        self.reported: list[ArchiveProgress] = []
        self.problems: list[str | None] = []
        self.histories = 0
        self.store = Store(
            settings_of(location),
            self.clocks,
            self.problems.append,
            node="n1",
            outbox=outbox,
            on_history=self._count,
            on_stored=self.reported.append,
        )

    def _count(self) -> None:
        self.histories += 1

    def waiting(self) -> list[tuple[int, str]]:
        """What is in the outbox: each row's number and kind."""
        page = self.store.outbox_page(0, 100)
        return [(row.sequence, "event" if row.event else "roll-up") for row in page.rows]


@contextmanager
def running(location: StoreLocation, outbox: OutboxLimits | None = LIMITS) -> Iterator[Node]:
    node = Node(location, outbox)
    node.store.start()
    try:
        yield node
    finally:
        node.store.stop()


def until(holds: Callable[[], Any]) -> None:
    """Wait for what the store's thread will do."""
    limit_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit_s
        time.sleep(0.02)


def minute_passes(node: Node) -> None:
    """A sample is stored, and its minute is over and rolled up."""
    real_minus_boot_ns = node.clocks.real_ns - node.clocks.boot_ns
    sample = replace(HEALTHY, as_of_ns=node.clocks.boot_ns, real_minus_boot_ns=real_minus_boot_ns)
    node.store.put(Observation(sample, None))
    until(lambda: node.store.stored)
    node.clocks.advance(66 * NS_PER_S)
    until(lambda: node.histories)


def reported_more(node: Node, than: int) -> bool:
    return len(node.reported) > than


def has_stored(node: Node, rows: int) -> bool:
    return node.store.stored == rows


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that looks often, and waits neither for a lock nor long before it tries again."""
    monkeypatch.setattr(engine, "BUSY_S", 0.01)
    monkeypatch.setattr(writer, "RETRY_S", 0.05)
    monkeypatch.setattr(writer, "BATCH_S", 0.05)
