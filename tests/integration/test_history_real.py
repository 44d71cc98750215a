"""
Nodes' histories over a real broker that keeps nothing, from real stores into real stores, while broker and hubs end
under load.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from history_rows import event
from samples import HEALTHY

from timesyncd.clocks import NS_PER_S, SystemClocks, real_minus_boot_ns
from timesyncd.config import MqttSettings, StoreSettings
from timesyncd.messages.fleet import HistoryBatch, Stored
from timesyncd.model.observation import Observation
from timesyncd.mqtt import client
from timesyncd.mqtt import history as mqtt_history
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.history import HistoryConfirmer, HistoryPacing, HistorySender
from timesyncd.mqtt.inbox import ReceivedMessage
from timesyncd.mqtt.topics import HISTORY, STORED
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.store import archive, backlog, history, tables, writer
from timesyncd.store.archive import ArchiveProgress
from timesyncd.store.engine import StoreLocation, reading
from timesyncd.store.session import OutboxLimits
from timesyncd.store.writer import Store

pytestmark = pytest.mark.integration

NODES = ("n1", "n2")
HUBS = ("hub-a", "hub-b")
PACE = HistoryPacing(spread_ns=NS_PER_S // 5, retry_ns=2 * NS_PER_S)
LIMITS = OutboxLimits(rows=100_000, age_ns=10**18)
ROWS_EVERY_S = 0.05
AWAY_S = 2.5
#: A minute in a second, so that there are roll-ups.
HASTE = 60


class HastyClocks:
    """Run faster, and alike."""

    def __init__(self) -> None:
        self._clocks = SystemClocks()
        self._began_ns = self._clocks.boottime_ns()
        self._real_minus_boot_ns = real_minus_boot_ns(self._clocks)

    def boottime_ns(self) -> int:
        return self._began_ns + HASTE * (self._clocks.boottime_ns() - self._began_ns)

    def realtime_ns(self) -> int:
        return self.boottime_ns() + self._real_minus_boot_ns


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds in a cluster takes less here, but for what would be lost."""
    monkeypatch.setattr(client, "RETRY_S", 0.1)
    monkeypatch.setattr(mqtt_history, "CONFIRM_INTERVAL_NS", NS_PER_S // 5)
    monkeypatch.setattr(writer, "BATCH_S", 0.1)
    monkeypatch.setattr(backlog, "LIMIT_NS", HASTE * backlog.LIMIT_NS)


def settings(broker: Mosquitto) -> MqttSettings:
    return MqttSettings(host=broker.host, port=broker.port, hubs=list(HUBS))


def order_of(name: str, incarnation: int) -> Callable[[], dict[str, Any]]:
    counter = iter(range(1, 10**9))
    return lambda: {"node": name, "incarnation": incarnation, "sequence": next(counter)}


class Node:
    """Reads its clock, publishes something now and then, and sends what its store makes of it."""

    def __init__(self, name: str, broker: Mosquitto, folder: Path, clocks: HastyClocks) -> None:
        self.name, self.clocks = name, clocks
        self.event_count = 0
        self.problems: list[str | None] = []
        self._loop = asyncio.get_running_loop()
        path = StoreSettings(path=folder / f"{name}.sqlite")
        self.store = Store(path, clocks, self.problems.append, node=name, outbox=LIMITS, on_history=self._more_waits)
        self.link = MqttLink(settings(broker), name, 1, (STORED,), self._receive)
        self.sender = HistorySender(self.link, self.store, settings(broker), name, order_of(name, 1), pace=PACE)

    def _more_waits(self) -> None:
        self._loop.call_soon_threadsafe(self.sender.wake)

    def _receive(self, received: ReceivedMessage) -> None:
        if isinstance(received.message, Stored):
            self.sender.confirmed(received.message)

    async def work(self) -> None:
        while True:
            now_ns = self.clocks.boottime_ns()
            sample = replace(HEALTHY, as_of_ns=now_ns, real_minus_boot_ns=real_minus_boot_ns(self.clocks))
            self.store.put(Observation(sample, None))
            self.store.put_event(event(self.event_count, self.name), self.clocks.realtime_ns())
            self.event_count += 1
            await asyncio.sleep(ROWS_EVERY_S)

    def held(self) -> tuple[int, int]:
        """From which row up to below which."""
        page = self.store.outbox_page(0, 1)
        return page.floor, page.next_sequence


class Hub:
    """Stores what comes and confirms it. When it ends it forgets what it had in memory."""

    def __init__(self, name: str, broker: Mosquitto, folder: Path, incarnation: int, clocks: HastyClocks) -> None:
        self.problems: list[str | None] = []
        self._loop = asyncio.get_running_loop()
        path = StoreSettings(path=folder / f"{name}.sqlite")
        self.store = Store(path, clocks, self.problems.append, node=name, on_stored=self._has_stored)
        self.link = MqttLink(settings(broker), name, incarnation, (HISTORY,), self._receive)
        self.confirmer = HistoryConfirmer(order_of(name, incarnation))

    def _has_stored(self, progress: ArchiveProgress) -> None:
        self._loop.call_soon_threadsafe(self.confirmer.update, progress)

    def _receive(self, received: ReceivedMessage) -> None:
        if isinstance(received.message, HistoryBatch):
            self.store.put_history(received.message, len(received.payload))

    async def confirm(self) -> None:
        clocks = SystemClocks()
        while True:
            for stored_message in self.confirmer.due(clocks.boottime_ns()):
                self.link.publish(stored_message)
            await asyncio.sleep(0.1)


@asynccontextmanager
async def running(*works: Callable[[], Any]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(work()) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes


@asynccontextmanager
async def quiet_end(*works: Callable[[], Any]) -> AsyncIterator[None]:
    """
    Of links: wait_for of Python 3.11 loses a cancellation that comes in the instant in which a publication is done.
    """
    async with running(*works):
        yield
        await asyncio.sleep(0.3)


@asynccontextmanager
async def stored(*parts: Node | Hub) -> AsyncIterator[None]:
    """While the stores of these run; nothing went wrong with them."""
    for part in parts:
        part.store.start()
    try:
        yield
    finally:
        for part in parts:
            await asyncio.to_thread(part.store.stop)
    assert [part.problems for part in parts] == [[]] * len(parts)


@asynccontextmanager
async def running_hub(
    name: str, broker: Mosquitto, folder: Path, incarnation: int, clocks: HastyClocks
) -> AsyncIterator[Hub]:
    hub = Hub(name, broker, folder, incarnation, clocks)
    async with stored(hub), quiet_end(hub.link.run), running(hub.confirm):
        yield hub


@asynccontextmanager
async def fleet(broker: Mosquitto, folder: Path, clocks: HastyClocks) -> AsyncIterator[list[Node]]:
    nodes = [Node(name, broker, folder, clocks) for name in NODES]
    async with (
        stored(*nodes),
        quiet_end(*(node.link.run for node in nodes)),
        running(*(node.sender.run for node in nodes)),
    ):
        yield nodes


async def eventually(holds: Callable[[], object], within_s: float = 60.0) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.2)
    assert holds()


def rows(folder: Path, where: str, node: str) -> tuple[list[tuple[int, str]], list[tuple[object, ...]]]:
    """What this daemon's store has of a node: events by number, each as often as it is there; roll-ups."""
    place = StoreLocation(folder / f"{where}.sqlite")
    events = [(row["sequence"], row["event_id"]) for row in history.cloud_events(place, node, 0, 2**62, limit=10_000)]
    with reading(place) as connection:
        table = tables.rollup
        minutes = connection.execute(table.select().where(table.c.node == node).order_by(*table.primary_key))
        return sorted(events), [tuple(row) for row in minutes]


def agree(folder: Path) -> bool:
    """Whether both hubs have of each node what it has itself."""
    return all(rows(folder, hub, node) == rows(folder, node, node) for hub in HUBS for node in NODES)


def lost(folder: Path, hub: str) -> dict[str, int]:
    with reading(StoreLocation(folder / f"{hub}.sqlite")) as connection:
        return {name: progress.lost for name, progress in archive.progress(connection).items()}


async def disturb(broker: Mosquitto, folder: Path, clocks: HastyClocks) -> None:
    """The broker is killed, a hub ends, both at once; the second hub is away for all of it."""
    async with running_hub("hub-a", broker, folder, 1, clocks) as hub:
        await eventually(lambda: hub.store.counts.history_stored)
        broker.stop()
        await asyncio.sleep(AWAY_S)
        broker.start()
        await asyncio.sleep(AWAY_S)
    await asyncio.sleep(AWAY_S)
    async with running_hub("hub-a", broker, folder, 2, clocks) as hub:
        await eventually(lambda: hub.store.counts.history_stored)
    broker.stop()
    await asyncio.sleep(AWAY_S)
    broker.start()


async def test_nothing_is_lost_and_nothing_doubled(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Every row that any node made is with each named hub once, also with the one that was away for all of it."""
    descriptors = len(os.listdir("/proc/self/fd"))
    clocks = HastyClocks()
    async with fleet(mosquitto, tmp_path, clocks) as nodes:
        async with running(*(node.work for node in nodes)):
            await disturb(mosquitto, tmp_path, clocks)
        assert [node.held()[0] for node in nodes] == [1, 1], "the second hub has nothing yet"

        async with AsyncExitStack() as hubs:
            for name in HUBS:
                await hubs.enter_async_context(running_hub(name, mosquitto, tmp_path, 3, clocks))
            await eventually(partial(agree, tmp_path))
            await eventually(lambda: all(floor == following for floor, following in map(Node.held, nodes)))

    for node in nodes:
        events, minutes = rows(tmp_path, node.name, node.name)
        assert [id for _, id in events] == [f"1-{number}" for number in range(node.event_count)]
        assert len(minutes) > 10
    assert [lost(tmp_path, hub) for hub in HUBS] == [dict.fromkeys(NODES, 0)] * 2
    assert len(os.listdir("/proc/self/fd")) <= descriptors
