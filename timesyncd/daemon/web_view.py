"""What the web API and a Prometheus scrape read of this daemon. Reading has no effect: it takes no sequence number."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric
from pydantic import ValidationError

from timesyncd.client.files import read_file
from timesyncd.clocks import NS_PER_S, Clocks, Moment
from timesyncd.config import Config
from timesyncd.daemon.hub_service import HubService
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.publisher import Parts, Publisher
from timesyncd.daemon.remote_state import aged_state
from timesyncd.feed import Feed
from timesyncd.fleet.headline import FleetReading
from timesyncd.fleet.overview import names_by_identity, overview
from timesyncd.jobs.lateness_matrix import lateness_matrix
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.cost import DaemonCost
from timesyncd.messages.fleet import AlignmentState, FleetMap, FleetSummary, HubState
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import FindingMessage, GrandmasterState, NodeState, status_name
from timesyncd.messages.notes import HandledFinding, NoteRequest, OperatorNote
from timesyncd.messages.overview import ConfiguredLimits, Overview
from timesyncd.messages.series import LatenessMatrix
from timesyncd.messages.simulation import SimulationFile, SimulationState
from timesyncd.metrics.exposition import Counters, Metrics, MetricsSnapshot, families
from timesyncd.metrics.hub import FleetSnapshot, MessageLag
from timesyncd.web.view import ALL_NODES, NodeFilter, StreamEvent

log = logging.getLogger(__name__)

#: All viewers share an overview for so many times of what it took, at most for a second: of 10,000 nodes it takes some 100 ms. That
#: of a few nodes is always of now, as the numbers of the nodes beside it are.
OVERVIEW_LASTS_TIMES = 10
MAX_OVERVIEW_LASTS_NS = NS_PER_S
#: Of 10,000 nodes it has some 1 MB.
MAX_SIMULATION_BYTES = 1 << 24


class WebView:
    """Implements web.view.View."""

    def __init__(
        self,
        config: Config,
        view: NodeView,
        hub_service: HubService,
        publisher: Publisher,
        parts: Parts,
        clocks: Clocks,
    ) -> None:
        self.lag = MessageLag()
        self.wrong_credentials: Callable[[], int] | None = None
        self._config = config
        self._view = view
        self._hub_service = hub_service
        self._publisher = publisher
        self._parts = parts
        self._clocks = clocks
        self._metrics = Metrics(self._snapshot, clocks)
        self._limits = ConfiguredLimits.model_validate(config.limits.model_dump())
        self._overview: Overview | None = None
        self._overview_until_ns = 0

    @property
    def events(self) -> Feed[StreamEvent]:
        return self._publisher.events

    def _now(self) -> Moment:
        return Moment.read(self._clocks)

    def node(self) -> NodeState:
        return self._publisher.snapshot(self._now()).node

    def node_count(self) -> int:
        return len(self._others) + 1

    @property
    def _others(self) -> list[str]:
        own = self._config.node.name
        return [name for name in self._hub_service.hub.fleet.names() if name != own]

    def node_names(self, node_filter: NodeFilter = ALL_NODES) -> list[str]:
        own, known = self.node(), names_by_identity(self.grandmasters())
        grandmasters = own.grandmaster, own.grandmaster_identity
        own_status = own.main_status if own.sources else None
        names = [own.node] if node_filter.matches(own.node, own_status, own.topology, grandmasters) else []
        for status, _, clock in self._hub_service.standings(self._now()):
            identity = clock.grandmaster_identity
            grandmasters = known.get(identity or "", clock.grandmaster), identity
            shown_status = status_name(status) if clock.has_source else None
            if clock.node != own.node and node_filter.matches(clock.node, shown_status, clock.topology, grandmasters):
                names.append(clock.node)
        return sorted(names)

    def nodes(self, names: Sequence[str]) -> list[NodeState]:
        now, fleet = self._now(), self._hub_service.hub.fleet
        found = []
        for name in names:
            if name == self._config.node.name:
                found.append(self.node())
            elif (state := fleet.state(name)) is not None and (clock := fleet.clock(name)) is not None:
                not_live = clock.why_not_reporting(now)
                found.append(aged_state(state, clock.received_boottime_ns, now, not_live))
        return found

    def fleet(self) -> FleetSummary:
        return self._hub_service.summary(self._now())

    def map(self) -> FleetMap:
        return self._hub_service.map(self._now())

    def alignment(self, names: Sequence[str] | None, job: str | None) -> AlignmentState | None:
        return self._hub_service.alignment(names, job, self._now())

    def overview(self) -> Overview:
        now = self._now()
        if self._overview is None or now.boottime_ns >= self._overview_until_ns:
            worst = self._hub_service.worst_of_all_shares(now)
            reading, own = self._fleet_reading(now), self._config.node.name
            found = overview(reading, self.grandmasters(), self.hubs(), own, now, worst)
            self._overview = found.model_copy(update={"simulation": self._simulation(now)})
            took_ns = self._clocks.boottime_ns() - now.boottime_ns
            self._overview_until_ns = now.boottime_ns + min(OVERVIEW_LASTS_TIMES * took_ns, MAX_OVERVIEW_LASTS_NS)
        return self._overview

    def _simulation(self, now: Moment) -> SimulationState | None:
        """None: nothing is configured to be simulated, or the simulator has not written its file yet."""
        if self._config.simulation is None:
            return None
        try:
            stated = SimulationFile.model_validate_json(read_file(self._config.simulation.state, MAX_SIMULATION_BYTES))
            nodes = (node for place in self._hub_service.map(now).places.values() for node in place)
            return stated.state({name: bound_ns for name, _, bound_ns in nodes}, now.realtime_ns)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.warning("[simulation] state %s: %s", self._config.simulation.state, error)
            return None

    def _fleet_reading(self, now: Moment) -> FleetReading:
        fleet = self._hub_service.hub.fleet
        absent = [node for node in fleet.reporting(now)[2] if fleet.clock(node) is None]
        taken = {(each.finding, each.subject) for each in self.handled()}
        return FleetReading(
            fleet.with_source(), absent, self._limits, self.jobs(), self.findings(), taken, self._is_share
        )

    @property
    def _is_share(self) -> bool:
        """Whether this hub has a share of the fleet alone."""
        own = self._config.node.name
        return any(hub.shares for hub in self.hubs() if hub.node == own)

    def hubs(self) -> list[HubState]:
        return self._hub_service.hubs(self._now())

    def grandmasters(self) -> list[GrandmasterState]:
        return self._publisher.snapshot(self._now()).all_grandmasters

    def jobs(self) -> list[JobState]:
        return self._publisher.jobs(self._now())

    def window(self, job_id: str, from_step: int, most_steps: int) -> RecordingMessage | None:
        return self._hub_service.window(job_id, from_step, most_steps)

    def lateness(self, job_id: str, most_steps: int) -> LatenessMatrix | None:
        job = self._hub_service.hub.job(job_id)
        return None if job is None else lateness_matrix(job, most_steps, self._now().realtime_ns)

    def findings(self) -> list[FindingMessage]:
        return self._publisher.findings()

    def handled(self) -> list[HandledFinding]:
        return self._publisher.handled()

    def write_note(self, request: NoteRequest, author: str) -> OperatorNote | str:
        if self._parts.store is None:
            return "this daemon has no [store], which keeps notes; write it at one that has"
        return self._publisher.write_note(request, author)

    def cost(self) -> DaemonCost | None:
        return None if self._parts.cost is None else self._parts.cost.message()

    def config(self) -> str:
        return self._config.model_dump_json(serialize_as_any=True)

    def health(self) -> str | None:
        failing = self._parts.store_problem is not None
        return "the store fails: the finding store-failing gives the reason" if failing else None

    def metrics(self) -> bytes:
        return self._metrics.render()

    def families(self) -> Iterator[Metric]:
        """The same metrics, before they are text."""
        return families(self._snapshot(), self._clocks.realtime_ns())

    def _snapshot(self) -> MetricsSnapshot:
        mqtt, store, history = self._parts.mqtt, self._parts.store, self._parts.history
        snapshot = self._publisher.snapshot(self._now())
        return MetricsSnapshot(
            node=snapshot.node,
            polls=self._view.polls,
            grandmasters=snapshot.grandmasters,
            jobs=self._publisher.own_jobs,
            findings=self.findings(),
            mqtt_connected=mqtt.connected if mqtt else None,
            counters=self._counters(),
            fleet=self._fleet_snapshot(),
            lag=self.lag if self._is_fleets_hub else None,
            outbox_waiting=history.window.waiting if history else None,
            store_waiting=store.waiting if store else None,
            cost=self.cost(),
        )

    @property
    def _is_fleets_hub(self) -> bool:
        return self._config.hub is not None and self._config.mqtt is not None

    def _fleet_snapshot(self) -> FleetSnapshot | None:
        if not self._is_fleets_hub:
            return None
        now = self._now()
        own = next(hub for hub in self._hub_service.hubs(now) if hub.node == self._config.node.name)
        alignment = self._hub_service.alignment(None, None, now)
        headline = self.overview().headline
        if headline.scope == "share" and alignment is not None:
            # A part of the fleet would be too narrow: the hubs' parts are merged.
            names = ("alignment_ns", "growth_ppb", "holds_for_ns", "pair", "reason", "reason_code")
            merged = {name: getattr(alignment, name) for name in names}
            headline = headline.model_copy(update=merged | {"as_of_realtime_ns": alignment.published_realtime_ns})
        return FleetSnapshot(own, self._hub_service.summary(now), alignment, headline)

    def _counters(self) -> Counters:
        mqtt, store, history = self._parts.mqtt, self._parts.store, self._parts.history
        job_socket, alarms = self._parts.job_socket, self._parts.alarms
        window = history.window if history else None
        return Counters(
            samples_total=self._view.samples,
            store_rows_total=store.stored if store else None,
            store_dropped_total=store.dropped if store else None,
            store_rollups_total=store.counts.rolled_up if store else None,
            store_damaged_values_total=store.counts.damaged_values if store else None,
            outbox_sent_total=window.sent if window else None,
            outbox_resent_total=window.resent if window else None,
            outbox_lost_total=store.outbox_lost if store and history else None,
            history_stored_total=store.counts.history_stored if store and self._is_fleets_hub else None,
            history_lost_total=store.counts.history_lost if store and self._is_fleets_hub else None,
            mqtt_published_total=mqtt.published if mqtt else None,
            mqtt_dropped_total=mqtt.dropped if mqtt else None,
            mqtt_outdated_total=mqtt.outdated if mqtt else None,
            mqtt_rejected_total=mqtt.rejected if mqtt else None,
            mqtt_failed_total=mqtt.failed if mqtt else None,
            mqtt_names_refused_total=sum(each.total for each in self._publisher.refused_names.values())
            if mqtt
            else None,
            joblink_datagrams_total=job_socket.delivered if job_socket else None,
            alarms_refused_total=alarms.all_rejected.total() if alarms else None,
            joblink_rejected_total=job_socket.malformed + job_socket.rejected if job_socket else None,
            web_refused_total=self.wrong_credentials() if self.wrong_credentials else None,
        )
