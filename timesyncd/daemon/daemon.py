"""Opens, wires and supervises the parts that the configuration asks for. One TaskGroup; a task that fails ends the daemon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from timesyncd.bound import ErrorBound
from timesyncd.clocks import NS_PER_S, Clocks, Moment, SystemClocks, boot_id, time_namespace
from timesyncd.config import ClockSource, Config, Grandmaster, StoreSettings
from timesyncd.daemon.hub_service import HubService
from timesyncd.daemon.job_socket import JobSocket
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.publisher import Parts, Publisher
from timesyncd.daemon.remote_state import heard_verdict
from timesyncd.daemon.systemd import notify, passed_socket
from timesyncd.daemon.web_view import WebView
from timesyncd.driver import AlarmSource, Runner, build
from timesyncd.errors import ConfigError, StoreError
from timesyncd.feed import Observation
from timesyncd.findings.node import agreement_conditions, kernel_conditions, path_conditions
from timesyncd.findings.text import identities
from timesyncd.ipc import clock_segment
from timesyncd.ipc.clockbound import ClockBoundWriter, suspended_ns
from timesyncd.ipc.seqlock import SegmentWriter
from timesyncd.messages.events import CloudEvents
from timesyncd.messages.fleet import HistoryBatch, Stored
from timesyncd.messages.jobs import MarkBatch, PolicyRequest
from timesyncd.messages.node import GrandmasterState, Ordered
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.grandmaster import GrandmasterMemory, StoredLock
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.history import HistoryConfirmer, HistorySender
from timesyncd.mqtt.inbox import ReceivedMessage
from timesyncd.mqtt.tls import tls_context
from timesyncd.mqtt.topics import HISTORY, HUB_SUBSCRIPTIONS, NODE_SUBSCRIPTIONS
from timesyncd.sample import AlarmEvent, ClockSample, GrandmasterSample, KernelSample, Reading, TimeErrorSeries
from timesyncd.store import history
from timesyncd.store.archive import ArchiveProgress
from timesyncd.store.engine import StoreLocation
from timesyncd.store.session import OutboxLimits
from timesyncd.store.writer import Store
from timesyncd.web.app import serve

log = logging.getLogger(__name__)

TICK_S = 1.0

NS_PER_DAY = 86_400 * NS_PER_S

#: CLOCK_BOOTTIME - CLOCK_MONOTONIC moves by a suspend alone; reading the two takes far less.
SHORTEST_SUSPEND_NS = NS_PER_S // 100

#: A storm is over when nothing was cut off for so long: in its midst, ticks that nothing is cut off between are many.
STORM_OVER_NS = 5 * NS_PER_S


class Daemon:
    """One node's daemon. `page` is the status page's address once it listens, None without a `[web]` section."""

    def __init__(self, config: Config) -> None:
        self.page: str | None = None
        self._config = config
        self._clocks: Clocks = SystemClocks()
        self._epoch = clock_segment.Epoch(boot_id(), time_namespace())
        self._wake = asyncio.Event()
        self._parts = Parts()
        self._ensemble = Ensemble({source.name: source.bounds.settings() for source in config.source})
        self._told: ErrorBound | None = None
        self._suspended_ns = suspended_ns()
        self._source_names = [source.name for source in config.source]
        self._judges: dict[str, GrandmasterMemory] = {}
        self._storms: dict[str, int] = {}

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Open everything, call `ready`, and work until cancelled. Raises ConfigError when a part cannot be opened."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            async with asyncio.TaskGroup() as tasks:
                for runner in self._sources:
                    tasks.create_task(self._follow(runner), name=f"driver[{runner.name}]")
                for runner in self._units.values():
                    tasks.create_task(self._watch(runner), name=f"driver[{runner.name}]")
                if self._parts.mqtt is not None:
                    tasks.create_task(self._parts.mqtt.run(), name="mqtt")
                if self._parts.history is not None:
                    tasks.create_task(self._parts.history.run(), name="history")
                tasks.create_task(self._tick(), name="tick")
                ready()
                notify("READY=1")

    async def _open(self, stack: AsyncExitStack) -> None:
        config = self._config
        for note in config.notes:
            log.warning("%s", note)
        name, runtime_dir = config.node.name, config.node.runtime_dir
        # The drivers first: what is wrong with one, a secret that is not there, shall start nothing.
        self._sources = [self._runner(source) for source in config.source]
        self._units = {unit.name: self._runner(unit) for unit in config.grandmaster}
        self._segment = self._open_segment(stack)
        self._clockbound = self._open_clockbound(stack)
        store = self._open_store(stack, config.store)
        incarnation = await asyncio.to_thread(self._next_incarnation, store)
        self._parts.store = store
        self._parts.job_socket = JobSocket(runtime_dir, name, incarnation, self._said)
        self._parts.job_socket.open()
        stack.callback(self._parts.job_socket.close)
        self._view = NodeView(config, self._epoch, incarnation)
        self._desk = HubService(config.hub, name, Moment.read(self._clocks), config.mqtt is None, config.policies)
        await self._open_mqtt(incarnation)
        events = CloudEvents(name, incarnation)
        self._announcer = Publisher(config, self._view, self._desk, self._parts, self._clocks, events)
        self._web_view = WebView(config, self._view, self._desk, self._announcer, self._parts, self._clocks)
        for unit in config.grandmaster:
            stored_lock = await asyncio.to_thread(self._stored_lock, unit.name)
            self._judges[unit.name] = GrandmasterMemory(config.curve_of(unit), stored_lock)
        await self._open_alarms(stack, incarnation)
        await self._open_web(stack)

    async def _open_mqtt(self, incarnation: int) -> None:
        """Raises ConfigError where certificates cannot be used, before anything is sent."""
        config, node = self._config, self._config.node.name
        if config.mqtt is None:
            return
        await asyncio.to_thread(tls_context, config.mqtt)
        wanted = dict.fromkeys([*NODE_SUBSCRIPTIONS, *(HUB_SUBSCRIPTIONS if config.hub else ())])
        if config.store is None:
            wanted.pop(HISTORY, None)
        link = self._parts.mqtt = MqttLink(config.mqtt, node, incarnation, list(wanted), self._received)
        self._confirmer = HistoryConfirmer(self._view.next_order)
        if self._parts.store is not None:
            self._parts.history = HistorySender(
                link, self._parts.store, config.mqtt, node, self._view.next_order, is_hub=config.hub is not None
            )

    async def _open_web(self, stack: AsyncExitStack) -> None:
        config = self._config
        if config.web is None:
            return
        server = await serve(config.web, self._web_view, self._parts.store.location if self._parts.store else None)
        stack.push_async_callback(server.close)
        self._web_view.wrong_credentials = lambda: server.wrong_credentials
        self.page = server.url
        if config.web.is_askable:
            self._desk.url = server.url
        log.info("status page: %s", server.url)

    async def _open_alarms(self, stack: AsyncExitStack, incarnation: int) -> None:
        alarm_sources = {
            name: runner.driver for name, runner in self._units.items() if isinstance(runner.driver, AlarmSource)
        }
        for name, alarm_source in alarm_sources.items():
            for id, evidence in alarm_source.notes:
                self._announcer.condition(id, name, evidence)
        if self._config.traps is None and self._config.syslog is None:
            return
        from timesyncd.daemon.trap_receiver import TrapReceiver  # SNMP is not loaded where nothing speaks it

        desk = TrapReceiver(self._config, alarm_sources, self._clocks, incarnation, self._alarm, self._request_poll)
        stack.push_async_callback(desk.close)
        await desk.open(passed_socket)
        self._parts.alarms = desk

    def _open_segment(self, stack: AsyncExitStack) -> SegmentWriter:
        runtime_dir = self._config.node.runtime_dir
        try:
            runtime_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
            path = runtime_dir / clock_segment.NAME
            writer = SegmentWriter(path, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT)
        except OSError as error:
            raise ConfigError(f"node.runtime_dir = '{runtime_dir}': cannot be used: {error.strerror}") from error
        stack.callback(writer.close)
        return writer

    def _open_clockbound(self, stack: AsyncExitStack) -> ClockBoundWriter | None:
        """Raises ConfigError."""
        if self._config.clockbound is None:
            return None
        path = self._config.clockbound.path
        try:
            writer = ClockBoundWriter(path)
        except OSError as error:
            raise ConfigError(f"clockbound.path = '{path}': cannot be used: {error.strerror}") from error
        stack.callback(writer.close)
        return writer

    def _open_store(self, stack: AsyncExitStack, settings: StoreSettings | None) -> Store | None:
        if settings is None:
            return None
        loop, mqtt = asyncio.get_running_loop(), self._config.mqtt
        limits = OutboxLimits(mqtt.outbox_rows, int(mqtt.outbox_days * NS_PER_DAY)) if mqtt is not None else None
        store = Store(
            settings,
            self._clocks,
            lambda problem: _call_soon(loop, self._store_problem, problem),
            node=self._config.node.name,
            outbox=limits,
            on_history=lambda: _call_soon(loop, self._history_waits),
            on_stored=lambda progress: _call_soon(loop, self._history_stored, progress),
        )
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

    def _stored_lock(self, unit: str) -> StoredLock | None:
        """How it was last seen locked before this start: a holdover that stands now began no earlier."""
        settings = self._config.store
        if settings is None:
            return None
        try:
            row = history.last_locked(StoreLocation.of(settings), unit)
        except StoreError:  # a store that is new, or fails, which its writer tells
            return None
        return None if row is None else StoredLock(row["realtime_ns"], row["clock_accuracy"])

    async def _follow(self, runner: Runner) -> None:
        """The way of every sample: driver, ensemble, segment, and then everybody who may be slow."""
        async for reading in runner.samples():
            if isinstance(reading, GrandmasterSample | TimeErrorSeries):
                raise ConfigError(f"source {runner.name}: its driver watches a grandmaster, not this node's clock")
            outcome = self._ensemble.accept(reading)
            if outcome.bound is not None:
                self._write(outcome.bound)
            self._judge(reading)
            self._view.note_agreement(self._ensemble.agreement)
            self._view.note_bounded(self._ensemble.bounded)
            self._note(Observation(reading, outcome.bound, outcome.source_bound))
            if outcome.phase_jump_ns is not None:
                self._announcer.event(
                    "phase-jump", runner.name, f"the offset moved by {outcome.phase_jump_ns} ns at once"
                )

    def _write(self, bound: ErrorBound) -> None:
        """To the segments: this is what jobs see."""
        self._told = bound
        self._segment.write(clock_segment.encode(bound, self._epoch))
        if self._clockbound is not None:
            self._clockbound.write(bound)

    def _judge(self, reading: Reading) -> None:
        """Findings that one reading calls for."""
        node = self._config.node.name
        if isinstance(reading, KernelSample):
            offsets = [source.bounds.utc_offset_s for source in self._config.source if source.name == reading.source]
            for id, evidence in kernel_conditions(reading, offsets[0]).items():
                self._announcer.condition(id, node, evidence)
        if isinstance(reading, ClockSample):
            bounds = next(source.bounds for source in self._config.source if source.name == reading.source)
            for id, evidence in path_conditions(reading, bounds.path_minimum_ns).items():
                self._announcer.condition(id, reading.source, evidence)
        for (id, source), evidence in agreement_conditions(self._ensemble.agreement, self._source_names).items():
            self._announcer.condition(id, source, evidence)

    async def _watch(self, runner: Runner) -> None:
        async for reading in runner.samples():
            if not isinstance(reading, GrandmasterSample):
                self._note(Observation(reading, None))
                continue
            verdict = self._judges[runner.name].accept(reading, self._clocks.realtime_ns())
            self._announcer.unit_events(runner.name, verdict.events)
            self._view.note_verdict(runner.name, verdict)
            self._note(Observation(reading, None, own_error=verdict.utc))
            now = Moment.read(self._clocks)
            self._hear_unit(self._view.grandmaster_state(runner.name, now), now)

    def _hear_unit(self, state: GrandmasterState, came: Moment) -> None:
        """What a unit says of itself counts for the clocks that follow it, whoever polls it."""
        verdict = heard_verdict(state, came)
        if verdict is None:
            return
        bound = self._ensemble.hear_grandmaster(state.name, identities(state), verdict, self._clocks.boottime_ns())
        self._desk.void(identities(state), verdict.void)
        self._view.note_bounded(self._ensemble.bounded)
        if bound is not None:
            self._write(bound)
            if self._view.note_bound(bound):
                self._wake.set()

    def _alarm(self, event: AlarmEvent) -> None:
        self._announcer.alarm(event)
        self._wake.set()

    def _request_poll(self, unit: str) -> None:
        """It said something by itself: poll all that may have changed."""
        runner = self._units[unit]
        if isinstance(runner.driver, AlarmSource):
            runner.driver.request_poll()
        runner.request_poll()

    def _runner(self, entry: ClockSource | Grandmaster) -> Runner:
        driver = build(entry.name, entry.driver, entry.options, self._config.node.runtime_dir)
        return Runner(entry.name, driver, self._clocks, lambda report: self._view.note_poll(report))

    def _note(self, observation: Observation) -> None:
        if self._view.note(observation):
            self._wake.set()
        if self._parts.store is not None:
            self._parts.store.put(observation)

    async def _tick(self) -> None:
        while True:
            self._tell_of_alarms()
            self._look_for_a_suspend()
            if self._clockbound is not None and self._told is not None:
                self._clockbound.write(
                    self._told
                )  # its clients' ages stand still in suspend: only a write makes up for it
            self._announcer.tick()
            self._confirm()
            notify("WATCHDOG=1")
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def _look_for_a_suspend(self) -> None:
        before_ns, self._suspended_ns = self._suspended_ns, suspended_ns()
        if self._suspended_ns - before_ns < SHORTEST_SUSPEND_NS:
            return
        outcome = self._ensemble.suspended()
        self._view.note_bounded(self._ensemble.bounded)
        if outcome.bound is not None:
            self._write(outcome.bound)
            if self._view.note_bound(outcome.bound):
                self._wake.set()

    def _tell_of_alarms(self) -> None:
        desk = self._parts.alarms
        if desk is None:
            return
        for reason in desk.new_reasons():
            log.info("traps and syslog: refused: %s; from now on only counted", reason)
        now_ns, cut_off = self._clocks.boottime_ns(), desk.storms()
        for name, count in cut_off.items():
            evidence = f"{count} in the last second were not read"
            self._announcer.condition("grandmaster-traps-suppressed", name, evidence)
        self._storms |= dict.fromkeys(cut_off, now_ns)
        for name in [name for name, last_ns in self._storms.items() if now_ns - last_ns >= STORM_OVER_NS]:
            del self._storms[name]
            self._announcer.condition("grandmaster-traps-suppressed", name, None)

    def _said(self, said: MarkBatch | PolicyRequest) -> None:
        """A rank of this node reported, or a user asked: to the hub in this daemon, and to those behind the broker."""
        if self._desk.is_hub:
            self._desk.accept_said(said, self._clocks.boottime_ns())
        if self._parts.mqtt is not None:
            self._parts.mqtt.publish(said)

    def _received(self, received: ReceivedMessage) -> None:
        message, came_ns, live = received.message, received.received_boottime_ns, not received.retained
        if live and isinstance(message, Ordered) and (published_ns := getattr(message, "published_realtime_ns", None)):
            self._web_view.lag.observe(published_ns, self._clocks.realtime_ns())
        match message:
            case MarkBatch():
                self._desk.accept_marks(message, came_ns)
            case HistoryBatch():
                if self._parts.store is not None:
                    self._parts.store.put_history(message, received.size)
            case Stored():
                if self._parts.history is not None:
                    self._parts.history.confirmed(message)
            case _:
                self._announcer.hear(message, came_ns, live)
        if isinstance(message, GrandmasterState) and message.node != self._config.node.name:
            self._hear_unit(message, Moment.read(self._clocks).at_boottime(came_ns))

    def _store_problem(self, problem: str | None) -> None:
        log.info("store: %s", problem or "back")
        self._parts.store_said = problem

    def _history_waits(self) -> None:
        if self._parts.history is not None:
            self._parts.history.wake()

    def _history_stored(self, progress: ArchiveProgress) -> None:
        """Told to the node at the next tick: a hub stores ten thousand minutes in one go."""
        self._confirmer.note(progress)

    def _confirm(self) -> None:
        if self._parts.mqtt is not None:
            for stored in self._confirmer.take(self._clocks.boottime_ns()):
                self._parts.mqtt.publish(stored)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    """From the store's thread; after the loop's end there is nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
