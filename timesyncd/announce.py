"""Tells the world what this daemon knows: once a second, and at once when the status changes. Also what the web room shows."""

from __future__ import annotations

from dataclasses import dataclass

from timesyncd.bound import ClockStatus
from timesyncd.clocks import NS_PER_S, Clocks
from timesyncd.config import Config
from timesyncd.feed import Feed
from timesyncd.findings import Findings
from timesyncd.hub.hub import Hub
from timesyncd.jobsocket import JobSocket
from timesyncd.messages import FindingMessage, GrandmasterState, JobState, Message, NodeState
from timesyncd.metrics import Counters, Metrics, Snapshot
from timesyncd.mqtt.client import MqttLink
from timesyncd.store.writer import Store
from timesyncd.view import Heard, Moment, NodeView, finding_message, last_known, standing
from timesyncd.web.events import Event, Kind

#: A broker that is away for less than this is a reconnect, not a finding.
BROKER_GRACE_S = 5

#: Without a broker: how often findings are judged while nobody looks.
STATE_EVERY_S = 2.0


@dataclass
class Parts:
    """What the configuration switched on."""

    job_socket: JobSocket | None = None
    hub: Hub | None = None
    mqtt: MqttLink | None = None
    store: Store | None = None
    store_problem: str | None = None


class Announcer:
    """Implements the web room's View, and publishes to MQTT, viewers and the ranks what is due."""

    def __init__(self, config: Config, view: NodeView, parts: Parts, clocks: Clocks) -> None:
        self.events: Feed[Event] = Feed(lambda event: event.kind)
        self.heard = Heard()
        self._config = config
        self._view = view
        self._parts = parts
        self._clocks = clocks
        self._findings = Findings()
        self._own_jobs: dict[str, JobState] = {}
        self._published_ns = 0
        self._last_status: ClockStatus | None = None
        self._broker_seen_ns = clocks.boottime_ns()
        self._metrics = Metrics(self._snapshot, clocks)

    def tick(self) -> None:
        """Publish what is due now. To be called every second, and when the status may have changed."""
        now = Moment.read(self._clocks)
        status = self._view.clock(now).status
        due = now.boottime_ns - self._published_ns >= self._every_ns or status is not self._last_status
        if due or self.events.watched or (self._parts.hub and self._parts.hub.busy):
            self._tell_all(now, due)
        if due:
            self._published_ns, self._last_status = now.boottime_ns, status
        if self._parts.job_socket is not None:
            self._parts.job_socket.tick(now.boottime_ns)

    def _tell_all(self, now: Moment, due: bool) -> None:
        """Viewers and the hub hear each second, the broker what is due."""
        node = self._view.node_state(now)
        units = self._view.grandmaster_states(now)
        self._judge(node, units, now)
        self._show("node", node, to_mqtt=due)
        for unit in units:
            self._show("grandmaster", unit, to_mqtt=due)
        self._advance_jobs(node, now)

    def event(self, id: str, subject: str, evidence: str) -> None:
        """Something that happened at one moment, such as a phase jump."""
        self._tell(finding_message(self._findings.event(id, subject, evidence, self._clocks.realtime_ns())))

    def hear(self, message: Message, boottime_ns: int, live: bool) -> None:
        """Another daemon published this: viewers see it, and of a job its ranks here read it from shared memory."""
        if isinstance(message, NodeState) and not live:
            message = last_known(message)
        self.heard.note(message, boottime_ns)
        match message:
            case NodeState():
                self.events.publish(Event("node", message))
            case GrandmasterState():
                self.events.publish(Event("grandmaster", message))
            case JobState():
                self._to_ranks(message)
                self.events.publish(Event("job", message))

    # What the web room asks for.

    def node(self) -> NodeState:
        return self._view.node_state(Moment.read(self._clocks))

    def nodes(self) -> list[NodeState]:
        return [self.node(), *self.heard.nodes(Moment.read(self._clocks))]

    def grandmasters(self) -> list[GrandmasterState]:
        now = Moment.read(self._clocks)
        own = self._view.grandmaster_states(now)
        polled = {unit.name for unit in own}
        return [*own, *(unit for unit in self.heard.grandmasters(now) if unit.name not in polled)]

    def jobs(self) -> list[JobState]:
        heard = self.heard.jobs(Moment.read(self._clocks))
        return [*self._own_jobs.values(), *(job for job in heard if job.job_id not in self._own_jobs)]

    def findings(self) -> list[FindingMessage]:
        return [finding_message(finding) for finding in self._findings.all(self._clocks.realtime_ns())]

    def health(self) -> str | None:
        return self._parts.store_problem

    def metrics(self) -> bytes:
        return self._metrics.render()

    def _snapshot(self) -> Snapshot:
        mqtt, store, job_socket = self._parts.mqtt, self._parts.store, self._parts.job_socket
        return Snapshot(
            node=self.node(),
            polls=self._view.polls,
            grandmasters=self._view.grandmaster_states(Moment.read(self._clocks)),
            jobs=list(self._own_jobs.values()),
            findings=self.findings(),
            mqtt_connected=mqtt.connected if mqtt else None,
            counters=Counters(
                samples_total=self._view.samples,
                store_rows_total=store.stored if store else None,
                store_dropped_total=store.dropped if store else None,
                mqtt_published_total=mqtt.published if mqtt else None,
                mqtt_dropped_total=mqtt.dropped if mqtt else None,
                mqtt_outdated_total=mqtt.outdated if mqtt else None,
                mqtt_rejected_total=mqtt.rejected if mqtt else None,
                joblink_datagrams_total=job_socket.taken if job_socket else None,
                joblink_rejected_total=job_socket.malformed + job_socket.refused if job_socket else None,
            ),
        )

    @property
    def _every_ns(self) -> int:
        """Twice within each source's holdover_after at least: between two states a reader lets the last one age."""
        wanted_ns = int((self._config.mqtt.state_every_s if self._config.mqtt else STATE_EVERY_S) * NS_PER_S)
        return min([wanted_ns, *(source.bounds.holdover_after_ns // 2 for source in self._config.source)])

    def _judge(self, node: NodeState, units: list[GrandmasterState], now: Moment) -> None:
        """Let findings begin and end."""
        holds = standing(node, units, self._parts.store_problem, self._broker_lost(now))
        for id, subject in holds.keys() | self._findings.standing():
            changed = self._findings.judge(id, subject, holds.get((id, subject)), now.realtime_ns)
            if changed is not None:
                self._tell(finding_message(changed))

    def _broker_lost(self, now: Moment) -> str | None:
        mqtt = self._parts.mqtt
        if mqtt is None or mqtt.connected:
            self._broker_seen_ns = now.boottime_ns
        silent_s = (now.boottime_ns - self._broker_seen_ns) // NS_PER_S
        return f"no connection for {silent_s} s" if silent_s >= BROKER_GRACE_S else None

    def _tell(self, finding: FindingMessage) -> None:
        self.events.publish(Event("finding", finding))
        if self._parts.mqtt is not None:
            self._parts.mqtt.publish(finding)
        if self._parts.store is not None:
            self._parts.store.put_finding(finding)

    def _show(self, kind: Kind, message: Message, to_mqtt: bool = True) -> None:
        self.events.publish(Event(kind, message))
        if to_mqtt and self._parts.mqtt is not None:
            self._parts.mqtt.publish(message)

    def _advance_jobs(self, node: NodeState, now: Moment) -> None:
        hub = self._parts.hub
        if hub is not None:
            hub.accept_node(node, now.boottime_ns, live=True)
            output = hub.advance(now.boottime_ns, now.realtime_ns)
            for state in output.jobs:
                self._own_job(state.model_copy(update=self._view.next_order()))
            for job_id in output.ended:
                self._own_jobs.pop(job_id, None)
                if self._parts.mqtt is not None:
                    self._parts.mqtt.clear(JobState, job_id)

    def _to_ranks(self, state: JobState) -> None:
        if self._parts.job_socket is not None:
            self._parts.job_socket.publish(state)

    def _own_job(self, state: JobState) -> None:
        self._own_jobs[state.job_id] = state
        self._to_ranks(state)
        self._show("job", state)
