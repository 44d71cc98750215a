"""A store that has every row that it was given, also on a machine that is so busy that stopping gives up before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fake_clocks import FakeClocks

from timesyncd.config import StoreSettings
from timesyncd.model.observation import Observation
from timesyncd.store.engine import StoreLocation
from timesyncd.store.writer import Store

#: Each waits for a quarter of a minute.
STOPS = 8


def filled_store(path: Path, node: str, observations: Iterable[Observation]) -> StoreLocation:
    store = Store(StoreSettings(path=path), FakeClocks(), lambda problem: None, node=node)
    store.start()
    store.next_incarnation(node)  # waits until the tables are there
    for each in observations:
        store.put(each)
    for _ in range(STOPS):
        store.stop()
        if not store.waiting:
            break
    return store.location
