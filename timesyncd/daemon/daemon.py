"""
Opens, wires and supervises the parts that the configuration asks for. One TaskGroup; a task that fails ends the daemon.

It notifies systemd where systemd asked for it (sd_notify(3)), and takes over the sockets that systemd opened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import cache

from timesyncd.bound import ErrorBound, published
from timesyncd.clocks import NS_PER_S, Clocks, Moment, RawReading, SystemClocks, boot_id, time_namespace
from timesyncd.config import ClockSource, Config, Grandmaster, StoreSettings
from timesyncd.daemon.hub_history import HubHistory, fleet_values, job_series, rack_series
from timesyncd.daemon.hub_service import HubService
from timesyncd.daemon.integrations import Integrations, open_clockbound
from timesyncd.daemon.job_socket import JobSocket
from timesyncd.daemon.leap_table import LeapTableReader
from timesyncd.daemon.memory import HeapTrimmer
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.own_cost import OwnCost
from timesyncd.daemon.publisher import Parts, Publisher
from timesyncd.daemon.remote_state import grandmaster_verdict
from timesyncd.daemon.runtime_folder import RuntimeFolder
from timesyncd.daemon.web_view import WebView
from timesyncd.driver import AlarmSource, Runner, build_driver
from timesyncd.drivers.kernel import system_clock_frequency_ppb
from timesyncd.errors import ConfigError, StoreError
from timesyncd.findings.followers import identities
from timesyncd.findings.node import (
    agreement_conditions,
    boundary_clock_conditions,
    independence_conditions,
    kernel_conditions,
    path_conditions,
    phc_conditions,
    two_ports_conditions,
    utc_conditions,
)
from timesyncd.integrations.mqtt_discovery import discovery
from timesyncd.ipc import clock_segment
from timesyncd.ipc.clockbound import suspended_ns
from timesyncd.messages.events import CloudEvents
from timesyncd.messages.fleet import HistoryBatch, Stored
from timesyncd.messages.jobs import MarkBatch, PolicyRequest
from timesyncd.messages.node import GrandmasterState, RepeatedState
from timesyncd.messages.notes import OperatorNote
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.grandmaster import GrandmasterAssessment, GrandmasterMemory, StoredLock
from timesyncd.model.observation import Observation
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.history import HistoryConfirmer, HistorySender
from timesyncd.mqtt.inbox import OtherState, ReceivedMessage
from timesyncd.mqtt.tls import tls_context
from timesyncd.mqtt.topics import subscriptions
from timesyncd.sample import (
    AlarmEvent,
    ClockSample,
    GrandmasterSample,
    KernelSample,
    PhcSample,
    Reading,
    TimeErrorSeries,
    UtcSample,
)
from timesyncd.store import history, notes
from timesyncd.store.archive import ArchiveProgress
from timesyncd.store.engine import StoreLocation
from timesyncd.store.hub_sources import FLEET_SOURCE
from timesyncd.store.intact import readable
from timesyncd.store.session import OutboxLimits
from timesyncd.store.writer import Store
from timesyncd.web.app import serve

log = logging.getLogger(__name__)

TICK_S = 1.0

NS_PER_DAY = 86_400 * NS_PER_S

#: CLOCK_BOOTTIME - CLOCK_MONOTONIC moves by a suspend alone; reading the two takes far less.
SHORTEST_SUSPEND_NS = NS_PER_S // 100

#: A storm of traps is over when none was dropped for so long. Within a storm many ticks pass without a dropped trap.
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
        self._ensemble = Ensemble({source.name: source.ensemble_settings() for source in config.source})
        self._written_bound: ErrorBound | None = None
        self._suspended_ns = suspended_ns()
        self._source_names = [source.name for source in config.source]
        self._boundary_clock_errors_ns = {each.name: each.bounds.boundary_clock_error_ns for each in config.source}
        self._grandmaster_memories: dict[str, GrandmasterMemory] = {}
        self._storms: dict[str, int] = {}
        self._store_damage: list[str] = []
        self._heap = HeapTrimmer()
        self._leap_table = LeapTableReader()
        self._hub_history = HubHistory()

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Open everything, call `ready`, and work until cancelled. Raises ConfigError when a part cannot be opened."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            async with asyncio.TaskGroup() as tasks:
                for runner in self._sources:
                    tasks.create_task(self._poll_source(runner), name=f"driver[{runner.name}]")
                for runner in self._grandmaster_runners.values():
                    tasks.create_task(self._poll_grandmaster(runner), name=f"driver[{runner.name}]")
                if self._parts.mqtt is not None:
                    tasks.create_task(self._parts.mqtt.run(), name="mqtt")
                if self._parts.history is not None:
                    tasks.create_task(self._parts.history.run(), name="history")
                for name, task in self._integrations.tasks.items():
                    tasks.create_task(task(), name=name)
                tasks.create_task(self._tick(), name="tick")
                ready()
                notify("READY=1")

    async def _open(self, stack: AsyncExitStack) -> None:
        config, started_realtime_ns = self._config, self._clocks.realtime_ns()
        for warning in config.warnings:
            log.warning("%s", warning)
        name, runtime_dir = config.node.name, config.node.runtime_dir
        # The drivers first: a failing one, such as a missing secret, stops the start before anything else is opened.
        self._sources = [self._runner(source) for source in config.source]
        self._grandmaster_runners = {each.name: self._runner(each) for each in config.grandmaster}
        self._folder = RuntimeFolder(runtime_dir)
        stack.callback(self._folder.close)
        self._clockbound = open_clockbound(config, stack)
        store = self._open_store(stack, config.store)
        incarnation = await asyncio.to_thread(self._next_incarnation, store)
        self._parts.store = store
        self._parts.job_socket = JobSocket(runtime_dir, name, incarnation, self._deliver)
        self._parts.job_socket.open()
        stack.callback(self._parts.job_socket.close)
        self._view = NodeView(config, self._epoch, incarnation)
        self._hub_service = HubService(
            config.hub, name, Moment.read(self._clocks), config.mqtt is None, config.policies, config.priorities
        )
        await self._open_mqtt(incarnation)
        events = CloudEvents(name, incarnation)
        runners = [*self._sources, *self._grandmaster_runners.values()]
        self._parts.cost = OwnCost(config, runners, self._clocks)
        if self._parts.mqtt is not None:
            self._parts.cost.broker = self._parts.mqtt.traffic
        self._publisher = Publisher(config, self._view, self._hub_service, self._parts, self._clocks, events)
        self._web_view = WebView(config, self._view, self._hub_service, self._publisher, self._parts, self._clocks)
        self._integrations = Integrations(config, self._publisher, self._hub_service, self._web_view, self._clocks)
        self._integrations.open(stack)
        for grandmaster in config.grandmaster:
            stored_lock = await asyncio.to_thread(self._stored_lock, grandmaster.name)
            curve = config.holdover_curve(grandmaster)
            self._grandmaster_memories[grandmaster.name] = GrandmasterMemory(curve, stored_lock)
        self._publisher.restore_notes(await asyncio.to_thread(self._stored_notes, started_realtime_ns))
        await self._open_alarms(stack, incarnation)
        await self._open_web(stack)

    async def _open_mqtt(self, incarnation: int) -> None:
        """Raises ConfigError where certificates cannot be used, before anything is sent."""
        config, node = self._config, self._config.node.name
        if config.mqtt is None:
            return
        await asyncio.to_thread(tls_context, config.mqtt)
        shares = config.hub is not None and config.hub.shared
        link = self._parts.mqtt = MqttLink(
            config.mqtt,
            node,
            incarnation,
            subscriptions(config.hub is not None, shares, config.store is not None),
            self._receive,
            compares_states=True,
            wants=self._hub_service.wants,
            discovery=discovery(config),
            on_settled=self._settled if config.hub is not None else lambda _has_retained: None,
        )
        self._confirmer = HistoryConfirmer(self._view.numbers.next)
        if self._parts.store is not None:
            self._parts.history = HistorySender(
                link, self._parts.store, config.mqtt, node, self._view.numbers.next, is_hub=config.hub is not None
            )

    async def _open_web(self, stack: AsyncExitStack) -> None:
        config = self._config
        if config.web is None:
            return
        server = await serve(config.web, self._web_view, self._parts.store.location if self._parts.store else None)
        stack.push_async_callback(server.close)
        self._web_view.wrong_credentials = lambda: server.wrong_credentials
        self.page = server.url
        if config.web.is_reachable:
            self._hub_service.url = server.url
        log.info("status page: %s", server.url)

    async def _open_alarms(self, stack: AsyncExitStack, incarnation: int) -> None:
        alarm_sources = {
            name: runner.driver
            for name, runner in self._grandmaster_runners.items()
            if isinstance(runner.driver, AlarmSource)
        }
        for name, alarm_source in alarm_sources.items():
            for id, evidence in alarm_source.config_findings:
                self._publisher.set_condition(id, name, evidence)
        if self._config.traps is None and self._config.syslog is None:
            return
        from timesyncd.daemon.trap_receiver import TrapReceiver  # SNMP is not loaded where nothing speaks it

        receiver = TrapReceiver(
            self._config, alarm_sources, self._clocks, incarnation, self._receive_alarm, self._request_poll
        )
        stack.push_async_callback(receiver.close)
        await receiver.open(passed_socket)
        self._parts.alarms = receiver

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
            on_damage=lambda evidence: _call_soon(loop, self._store_damage.append, evidence),
        )
        store.start()
        stack.push_async_callback(asyncio.to_thread, store.stop)
        return store

    def _next_incarnation(self, store: Store | None) -> int:
        """The store counts it up at each start; without a store it is the Unix time in seconds."""
        try:
            if store is not None:
                return store.next_incarnation(self._config.node.name)
        except StoreError as error:
            log.warning("store: %s; the incarnation of this start is the Unix time instead of the store's count", error)
        return self._clocks.realtime_ns() // NS_PER_S

    def _stored_lock(self, grandmaster: str) -> StoredLock | None:
        """The last stored sample that was locked: a holdover that is under way at this start began no earlier."""
        settings = self._config.store
        if settings is None:
            return None
        try:
            row = history.last_locked(StoreLocation.of(settings), grandmaster)
        except StoreError:  # a new store, or one that fails, which its writer reports
            return None
        return None if row is None else StoredLock(row["realtime_ns"], row["clock_accuracy"])

    async def _poll_source(self, runner: Runner) -> None:
        """The path of every sample: driver, ensemble, segment, and then the parts that may be slow."""
        async for reading in runner.samples():
            if isinstance(reading, GrandmasterSample | TimeErrorSeries):
                raise ConfigError(
                    f"source {runner.name}: its driver reads a grandmaster, not a clock of this node; configure "
                    f"it as a [[grandmaster]]"
                )
            if isinstance(reading, KernelSample):
                reading = self._view.ptp4l_steering.resolve(reading)
            outcome = self._ensemble.accept(reading)
            if outcome.bound is not None:
                self._write(outcome.bound)
            self._set_conditions(reading)
            self._update(reading, outcome.bound, source_bound=outcome.source_bound)
            if outcome.phase_jump_ns is not None:
                evidence = f"the offset moved by {outcome.phase_jump_ns} ns at once"
                self._publisher.add_occurrence("phase-jump", runner.name, evidence)

    def _write(self, bound: ErrorBound) -> None:
        """To the segments, which jobs read."""
        self._written_bound = bound
        found = published(bound, self._clocks.boottime_ns(), system_clock_frequency_ppb(), RawReading.read())
        self._folder.write(clock_segment.encode(found, self._epoch))
        if self._clockbound is not None:
            self._clockbound.write(bound)

    def _set_conditions(self, reading: Reading) -> None:
        """Begin and end the findings that depend on this reading alone."""
        node = self._config.node.name
        if isinstance(reading, KernelSample):
            offsets = [source.bounds.utc_offset_s for source in self._config.source if source.name == reading.source]
            for id, evidence in kernel_conditions(reading, offsets[0], self._clocks.realtime_ns()).items():
                self._publisher.set_condition(id, node, evidence)
        if isinstance(reading, ClockSample):
            for id, evidence in path_conditions(reading, self._ensemble.refutations(reading.source)).items():
                self._publisher.set_condition(id, reading.source, evidence)
            assumed_ns = self._boundary_clock_errors_ns[reading.source]
            seen_by = self._ensemble.second_view, self._ensemble.locked_boundary_clock
            witness = next(filter(None, (see(reading.source, reading.read_ns) for see in seen_by)), None)
            for id, evidence in boundary_clock_conditions(reading, assumed_ns, witness).items():
                self._publisher.set_condition(id, reading.source, evidence)
        for id, evidence in two_ports_conditions(reading).items():
            self._publisher.set_condition(id, reading.source, evidence)
        phc = reading.phc if isinstance(reading, ClockSample) else reading
        if isinstance(phc, PhcSample):
            for id, evidence in phc_conditions(phc, self._config.utc_offsets_s).items():
                self._publisher.set_condition(id, reading.source, evidence)
        if isinstance(reading, UtcSample):
            for id, evidence in utc_conditions(reading).items():
                self._publisher.set_condition(id, reading.source, evidence)
        for source, evidence in independence_conditions(
            self._ensemble.refuted_independence, self._source_names
        ).items():
            self._publisher.set_condition("sources-not-independent", source, evidence)
        for (id, source), evidence in agreement_conditions(self._ensemble.agreement, self._source_names).items():
            self._publisher.set_condition(id, source, evidence)

    async def _poll_grandmaster(self, runner: Runner) -> None:
        async for reading in runner.samples():
            if not isinstance(reading, GrandmasterSample):
                self._update(reading, None)
                continue
            assessment = self._grandmaster_memories[runner.name].accept(reading, self._clocks.realtime_ns())
            self._publisher.publish_grandmaster_events(runner.name, assessment.events)
            self._update(reading, None, assessment=assessment)
            now = Moment.read(self._clocks)
            self._apply_grandmaster_state(self._view.grandmaster_state(runner.name, now), now)

    def _apply_grandmaster_state(self, state: GrandmasterState, received: Moment) -> None:
        """A grandmaster's own error counts for the clocks that follow it, whichever daemon polls it."""
        verdict = grandmaster_verdict(state, received)
        if verdict is None:
            return
        bound = self._ensemble.update_grandmaster(state.name, identities(state), verdict, self._clocks.boottime_ns())
        self._hub_service.invalidate(identities(state), verdict.invalidation)
        self._revise(bound)

    def _receive_alarm(self, event: AlarmEvent) -> None:
        self._publisher.publish_alarm(event)
        self._wake.set()

    def _request_poll(self, grandmaster: str) -> None:
        """It sent a trap or a syslog message: poll soon all that may have changed."""
        runner = self._grandmaster_runners[grandmaster]
        if isinstance(runner.driver, AlarmSource):
            runner.driver.request_poll()
        runner.request_poll()

    def _runner(self, entry: ClockSource | Grandmaster) -> Runner:
        driver = build_driver(entry.name, entry.driver, entry.options, self._config.node.runtime_dir)
        return Runner(entry.name, driver, self._clocks, lambda report: self._view.update_poll(report))

    def _update(
        self,
        reading: Reading,
        bound: ErrorBound | None,
        source_bound: ErrorBound | None = None,
        assessment: GrandmasterAssessment | None = None,
    ) -> None:
        observation = self._observation(reading, bound, source_bound, assessment)
        if self._view.update(observation):
            self._wake.set()
        if self._parts.store is not None:
            self._parts.store.put(observation)

    def _revise(self, bound: ErrorBound | None) -> None:
        """
        The ensemble's bounds changed without a reading; `bound` is the node's new one, None where it is still the last
        one.
        """
        if bound is not None:
            self._write(bound)
        if self._view.update(self._observation(None, bound)):
            self._wake.set()

    def _observation(
        self,
        reading: Reading | None,
        bound: ErrorBound | None,
        source_bound: ErrorBound | None = None,
        assessment: GrandmasterAssessment | None = None,
    ) -> Observation:
        """With how the sources agree now, which of them still have a bound, and which assumptions are refuted."""
        bounded = frozenset(self._ensemble.bounded_sources)
        every = {name: self._ensemble.refutations(name) for name in self._source_names}
        refuted = {name: refutations for name, refutations in every.items() if refutations}
        return Observation(reading, bound, source_bound, self._ensemble.agreement, bounded, assessment, refuted)

    async def _tick(self) -> None:
        while True:
            self._report_rejected_alarms()
            self._check_suspend()
            self._restore_runtime_files()
            self._report_store_damage()
            self._heap.tick(self._clocks.boottime_ns())
            self._report_cost()
            self._read_leap_table()
            if self._clockbound is not None and self._written_bound is not None:
                # Its clients' ages stand still in a suspend; only a write makes up for that.
                self._clockbound.write(self._written_bound)
            self._publisher.tick()
            self._record_hub()
            self._confirm()
            notify("WATCHDOG=1")
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def _stored_notes(self, started_realtime_ns: int) -> list[OperatorNote]:
        """The acknowledgements and silences that still count; none where the store cannot be read yet."""
        if self._parts.store is None:
            return []
        try:
            rows = notes.undecided(self._parts.store.location, started_realtime_ns)
        except StoreError as error:
            log.warning("store: acknowledgements and silences are not restored: %s", error)
            return []
        found = readable(notes.note_message, rows)
        if len(found) < len(rows):
            log.warning("store: %d damaged acknowledgements or silences are not restored", len(rows) - len(found))
        return found

    def _record_hub(self) -> None:
        """A hub keeps the past of its fleet and jobs, which no node has."""
        now, store = Moment.read(self._clocks), self._parts.store
        if store is None or not self._hub_service.is_hub:
            return
        if self._hub_history.is_due(now.boottime_ns):
            overview = self._web_view.overview()
            fleet = {FLEET_SOURCE: fleet_values(overview.headline)} | rack_series(overview.chain)
            self._hub_history.add(now, fleet | job_series(self._publisher.own_jobs))
        store.put_rollups(self._hub_history.ended(now.realtime_ns))

    def _read_leap_table(self) -> None:
        self._leap_table.tick(self._clocks.boottime_ns())
        self._ensemble.leaps.table = self._publisher.leap_table = self._leap_table.table

    def _report_cost(self) -> None:
        evidence = self._parts.cost.tick() if self._parts.cost is not None else None
        self._publisher.set_condition("daemon-over-budget", self._config.node.name, evidence)

    def _restore_runtime_files(self) -> None:
        """Readers that start later find the segments and the job link again."""
        node, job_socket = self._config.node.name, self._parts.job_socket
        try:
            lost = [self._folder.restore(), job_socket.restore() if job_socket is not None else None]
        except ConfigError as error:
            self._publisher.set_condition("runtime-file-removed", node, f"not made again: {error}")
            return
        self._publisher.set_condition("runtime-file-removed", node, None)
        for path in filter(None, lost):
            evidence = f"{path} was removed or replaced, and is made again"
            log.warning("%s", evidence)
            self._publisher.add_occurrence("runtime-file-removed", node, evidence)

    def _report_store_damage(self) -> None:
        """Damage may show before there is anything to publish with."""
        for evidence in self._store_damage:
            self._publisher.add_occurrence("store-damaged", self._config.node.name, evidence)
        self._store_damage.clear()

    def _check_suspend(self) -> None:
        before_ns, self._suspended_ns = self._suspended_ns, suspended_ns()
        if self._suspended_ns - before_ns >= SHORTEST_SUSPEND_NS:
            self._revise(self._ensemble.invalidate_after_suspend().bound)

    def _report_rejected_alarms(self) -> None:
        receiver = self._parts.alarms
        if receiver is None:
            return
        for reason in receiver.new_rejections():
            log.info("traps and syslog: rejected: %s; further ones are counted and not logged", reason)
        now_ns, dropped = self._clocks.boottime_ns(), receiver.dropped_in_storms()
        for name, count in dropped.items():
            evidence = f"{count} in the last second were not read"
            self._publisher.set_condition("grandmaster-traps-suppressed", name, evidence)
        self._storms |= dict.fromkeys(dropped, now_ns)
        for name in [name for name, last_ns in self._storms.items() if now_ns - last_ns >= STORM_OVER_NS]:
            del self._storms[name]
            self._publisher.set_condition("grandmaster-traps-suppressed", name, None)

    def _deliver(self, message: MarkBatch | PolicyRequest) -> None:
        """Pass what a process of this node sent to the hub in this daemon and, through the broker, to the others."""
        if self._hub_service.is_hub:
            self._hub_service.accept_from_rank(message, self._clocks.boottime_ns())
        if self._parts.mqtt is not None:
            self._parts.mqtt.publish(message)

    def _receive(self, received: ReceivedMessage) -> None:
        message, received_ns, live = received.message, received.received_boottime_ns, not received.retained
        if isinstance(message, MarkBatch):  # most of a hub's messages; they have no time of publication
            self._hub_service.accept_marks(message, received_ns)
            return
        if live and (published_ns := getattr(message, "published_realtime_ns", None)):
            self._web_view.lag.observe(published_ns, self._clocks.realtime_ns())
        match message:
            case RepeatedState():
                self._publisher.receive_repeated(message, received_ns, received.payload)
            case OtherState():
                self._hub_service.accept_other(message.node, received.payload, received_ns, live)
            case HistoryBatch():
                self._publisher.accept_history(message)
                if self._parts.store is not None:
                    self._parts.store.put_history(message, len(received.payload))
            case Stored():
                if self._parts.history is not None:
                    self._parts.history.confirmed(message)
            case _:
                is_kept = self._publisher.receive(message, received_ns, live, received.payload)
                if is_kept and isinstance(message, GrandmasterState) and message.node != self._config.node.name:
                    self._apply_grandmaster_state(message, Moment.read(self._clocks).at_boottime(received_ns))

    def _settled(self, has_retained: bool) -> None:
        self._publisher.request_states(has_retained)

    def _store_problem(self, problem: str | None) -> None:
        log.info("store: %s", problem or "writes again")
        self._parts.store_failure = problem

    def _history_waits(self) -> None:
        if self._parts.history is not None:
            self._parts.history.wake()

    def _history_stored(self, progress: ArchiveProgress) -> None:
        """Confirmed to the node at the next tick: a hub stores ten thousand minutes in one transaction."""
        self._confirmer.update(progress)

    def _confirm(self) -> None:
        if self._parts.mqtt is not None:
            for stored in self._confirmer.due(self._clocks.boottime_ns()):
                self._parts.mqtt.publish(stored)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    """From the store's thread. The loop may have ended; then the call is dropped."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


FIRST_PASSED = 3
"""SD_LISTEN_FDS_START"""


@cache
def _notifier() -> socket.socket:
    """Kept open: without a free file descriptor the watchdog would end a daemon that works."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)


def notify(state: str) -> None:
    """Send one message, such as READY=1, to the service manager. One that cannot be sent is dropped: the watchdog's comes each second."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError):
        _notifier().sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def passed_socket(name: str) -> socket.socket | None:
    """
    The socket that systemd opened under this FileDescriptorName (sd_listen_fds(3)), as ports below 1024 need; else
    None.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    return socket.socket(fileno=FIRST_PASSED + names.index(name)) if name in names else None
