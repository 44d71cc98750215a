"""A store of some hundred pages with numbered samples, for tests that damage, back up or restore its file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Queue

from fake_clocks import FakeClocks
from samples import nth

from timesyncd.config import StoreSettings
from timesyncd.messages.fleet import CloudEvent
from timesyncd.model.observation import Observation
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation
from timesyncd.store.session import OutboxLimits
from timesyncd.store.writer import Store

SAMPLES = 2_000
FOR_EVER_NS = 2**62


class Bench:
    """A store with FakeClocks, its reported problems and its reports of damage."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clocks = FakeClocks()
        self.problems, self.reports = Queue[str | None](), Queue[str]()
        self.put = 0

    @contextmanager
    def running(self) -> Iterator[Store]:
        limits = OutboxLimits(1_000, FOR_EVER_NS)
        settings = StoreSettings(path=self.path)
        store = Store(
            settings, self.clocks, self.problems.put, node="n1", outbox=limits, on_damage=self.reports.put
        )  # fmt: skip
        store.start()
        try:
            yield store
        finally:
            store.stop()

    def fill(self, store: Store, number: int = SAMPLES) -> None:
        """Put samples, numbered by their offset, and an event; returns when they are stored."""
        for _ in range(number):
            store.put(Observation(nth(self.put, offset_ns=self.put), None))
            self.put += 1
        event = CloudEvent(id=f"e{self.put}", source="/n1", type="t", time="2026-01-01T00:00:00Z", data={})
        store.put_event(event, self.clocks.real_ns)
        wait_until(lambda: store.waiting == 0)

    def copied(self) -> str:
        """The two reports of a damaged file: that it is set aside, and what was copied."""
        aside, copied = self.reports.get(timeout=120), self.reports.get(timeout=120)
        assert "set aside as" in aside
        assert "rows were copied" in copied
        return f"{aside}\n{copied}"

    def offsets(self) -> list[int]:
        found = history.samples(StoreLocation(path=self.path), "ptp", 0, FOR_EVER_NS)
        return sorted(record["offset_ns"] for record in found)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql).fetchall()


def wait_until(is_so: Callable[[], bool], within_s: float = 120) -> None:
    until_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.02)
