"""Opens, wires and supervises the parts that the configuration asks for. One TaskGroup; a task that fails ends the daemon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from timesyncd import segment
from timesyncd.announce import Announcer, Parts
from timesyncd.clocks import NS_PER_S, Clocks, SystemClocks, boot_id, time_namespace
from timesyncd.config import Config, Grandmaster, Source
from timesyncd.config import Hub as HubSettings
from timesyncd.config import Store as StoreSettings
from timesyncd.driver import Runner, load_driver
from timesyncd.ensemble import Ensemble
from timesyncd.errors import ConfigError, StoreError
from timesyncd.feed import Observation
from timesyncd.hub.hub import Hub
from timesyncd.jobsocket import JobSocket
from timesyncd.messages import MarkBatch, NodeState
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.inbox import Received
from timesyncd.mqtt.topics import FOR_HUB, FOR_NODE
from timesyncd.notify import notify
from timesyncd.sample import GrandmasterSample
from timesyncd.shm import SegmentWriter
from timesyncd.store.writer import Store
from timesyncd.view import NodeView
from timesyncd.web.app import serve

log = logging.getLogger(__name__)

TICK_S = 1.0


class Daemon:
    """One node's daemon. `page` is the status page's address once it listens, None without a `[web]` section."""

    def __init__(self, config: Config) -> None:
        self.page: str | None = None
        self._config = config
        self._clocks: Clocks = SystemClocks()
        self._epoch = segment.Epoch(boot_id(), time_namespace())
        self._wake = asyncio.Event()
        self._parts = Parts()
        self._ensemble = Ensemble({source.name: source.bounds.settings() for source in config.source})

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Open everything, call `ready`, and work until cancelled. Raises ConfigError when a part cannot be opened."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            async with asyncio.TaskGroup() as tasks:
                for runner in self._sources:
                    tasks.create_task(self._follow(runner), name=f"driver[{runner.name}]")
                for runner in self._units:
                    tasks.create_task(self._watch(runner), name=f"driver[{runner.name}]")
                if self._parts.mqtt is not None:
                    tasks.create_task(self._parts.mqtt.run(), name="mqtt")
                tasks.create_task(self._tick(), name="tick")
                ready()
                notify("READY=1")

    async def _open(self, stack: AsyncExitStack) -> None:
        config = self._config
        name, runtime_dir = config.node.name, config.node.runtime_dir
        # The drivers first: what is wrong with one, a secret that is not there, shall start nothing.
        self._sources = [self._runner(source) for source in config.source]
        self._units = [self._runner(unit) for unit in config.grandmaster]
        self._segment = self._open_segment(stack)
        store = self._open_store(stack, config.store)
        incarnation = await asyncio.to_thread(self._next_incarnation, store)
        self._parts.store = store
        self._parts.job_socket = JobSocket(runtime_dir, name, incarnation, self._marks)
        self._parts.job_socket.open()
        stack.callback(self._parts.job_socket.close)
        if config.hub is not None or config.mqtt is None:
            self._parts.hub = Hub(config.hub or HubSettings(), name)
        if config.mqtt is not None:
            wanted = dict.fromkeys([*FOR_NODE, *(FOR_HUB if config.hub else ())])
            self._parts.mqtt = MqttLink(config.mqtt, name, incarnation, list(wanted), self._received)
        self._view = NodeView(config, self._epoch, incarnation)
        self._announcer = Announcer(config, self._view, self._parts, self._clocks)
        if config.web is not None:
            server = await serve(config.web, self._announcer)
            stack.push_async_callback(server.close)
            self.page = server.url
            log.info("status page: %s", server.url)

    def _open_segment(self, stack: AsyncExitStack) -> SegmentWriter:
        runtime_dir = self._config.node.runtime_dir
        try:
            runtime_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
            path = runtime_dir / segment.NAME
            writer = SegmentWriter(path, segment.MAGIC, segment.LAYOUT_VERSION, segment.WORD_COUNT)
        except OSError as error:
            raise ConfigError(f"node.runtime_dir = '{runtime_dir}': cannot be used: {error.strerror}") from error
        stack.callback(writer.close)
        return writer

    def _open_store(self, stack: AsyncExitStack, settings: StoreSettings | None) -> Store | None:
        if settings is None:
            return None
        loop = asyncio.get_running_loop()
        store = Store(settings, self._clocks, lambda problem: _call_soon(loop, self._store_problem, problem))
        store.start()
        stack.push_async_callback(asyncio.to_thread, store.stop)
        return store

    def _next_incarnation(self, store: Store | None) -> int:
        """Counted up in the store at each start; without one the clock must serve."""
        try:
            if store is not None:
                return store.next_incarnation(self._config.node.name)
        except StoreError as error:
            log.warning("store: %s; this start is numbered by the clock", error)
        return self._clocks.realtime_ns() // NS_PER_S

    async def _follow(self, runner: Runner) -> None:
        """The way of every sample: driver, ensemble, segment, and then everybody who may be slow."""
        async for reading in runner.samples():
            if isinstance(reading, GrandmasterSample):
                raise ConfigError(f"source {runner.name}: its driver watches a grandmaster, not this node's clock")
            outcome = self._ensemble.accept(reading)
            if outcome.bound is not None:
                self._segment.write(segment.encode(outcome.bound, self._epoch))
            self._note(Observation(reading, outcome.bound))
            if outcome.phase_jump_ns is not None:
                self._announcer.event(
                    "phase-jump", runner.name, f"the offset moved by {outcome.phase_jump_ns} ns at once"
                )

    async def _watch(self, runner: Runner) -> None:
        async for reading in runner.samples():
            self._note(Observation(reading, None))

    def _runner(self, entry: Source | Grandmaster) -> Runner:
        driver = load_driver(entry.driver)(entry.name, entry.options, self._config.node.runtime_dir)
        return Runner(entry.name, driver, self._clocks, lambda report: self._view.note_poll(report))

    def _note(self, observation: Observation) -> None:
        if self._view.note(observation):
            self._wake.set()
        if self._parts.store is not None:
            self._parts.store.put(observation)

    async def _tick(self) -> None:
        while True:
            self._announcer.tick()
            notify("WATCHDOG=1")
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def _marks(self, batch: MarkBatch) -> None:
        """A rank of this node reported: to the hub in this daemon, else to the one behind the broker."""
        if self._parts.hub is not None:
            self._parts.hub.accept_marks(batch, self._clocks.boottime_ns())
        elif self._parts.mqtt is not None:
            self._parts.mqtt.publish(batch)

    def _received(self, received: Received) -> None:
        hub = self._parts.hub
        message = received.message
        self._announcer.hear(message, received.received_boottime_ns, live=not received.retained)
        if isinstance(message, NodeState) and hub is not None:
            hub.accept_node(message, received.received_boottime_ns, live=not received.retained)
        elif isinstance(message, MarkBatch) and hub is not None:
            hub.accept_marks(message, received.received_boottime_ns)

    def _store_problem(self, problem: str | None) -> None:
        log.info("store: %s", problem or "back")
        self._parts.store_problem = problem


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[str | None], None], problem: str | None) -> None:
    """From the store's thread; after the loop's end there is nobody left to tell."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, problem)
