"""Tells the world what this daemon knows: once a second, and at once when the status changes. Also what the web room shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timesyncd.bound import ClockStatus
from timesyncd.clocks import NS_PER_S, Clocks
from timesyncd.config import Config
from timesyncd.feed import Feed
from timesyncd.findings import Findings, Judged
from timesyncd.grandmaster import UnitEvent
from timesyncd.hub.hub import Hub
from timesyncd.hub.unit_findings import UnitFindings, is_judged_elsewhere
from timesyncd.hub.unit_offsets import offsets
from timesyncd.hub.units import joined
from timesyncd.jobsocket import JobSocket
from timesyncd.messages import AlarmEventMessage, FindingMessage, GrandmasterState, JobState, Message, NodeState
from timesyncd.metrics import Counters, Metrics, Snapshot
from timesyncd.mqtt.client import MqttLink
from timesyncd.sample import AlarmEvent
from timesyncd.store.writer import Store
from timesyncd.view import Heard, Moment, NodeView, finding_message, last_known, standing
from timesyncd.web.events import Event, Kind

if TYPE_CHECKING:  # SNMP is not loaded where nothing speaks it
    from timesyncd.alarms import AlarmDesk

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
    alarms: AlarmDesk | None = None
    store_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What is known at a moment: this node and the units that it polls, as they are published, and what others published."""

    node: NodeState
    units: list[GrandmasterState]
    heard_nodes: list[NodeState]
    heard_units: list[GrandmasterState]

    @property
    def all_nodes(self) -> list[NodeState]:
        return [self.node, *self.heard_nodes]

    @property
    def all_units(self) -> list[GrandmasterState]:
        """Each once, as this daemon polls it where it does."""
        return with_heard(self.units, self.heard_units)


def with_heard(units: list[GrandmasterState], heard: list[GrandmasterState]) -> list[GrandmasterState]:
    polled = {unit.name for unit in units}
    return [*units, *(unit for unit in heard if unit.name not in polled)]


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
        self._unit_findings = UnitFindings()
        self._conditions: dict[tuple[str, str], Judged] = {}
        self._inputs = {unit.name: unit.inputs for unit in config.grandmaster}
        self._own_jobs: dict[str, JobState] = {}
        self._published_ns = 0
        self._told_status: ClockStatus | None = None
        self._told_units: dict[str, tuple[object, ...]] = {}
        self._broker_seen_ns = clocks.boottime_ns()
        self._metrics = Metrics(self._snapshot, clocks)

    def tick(self) -> None:
        """Publish what is due now. To be called every second, and when the status may have changed."""
        now = Moment.read(self._clocks)
        status, units = self._view.clock(now).status, self._view.units_in_short
        due = now.boottime_ns - self._published_ns >= self._every_ns or status is not self._told_status
        changed = {name for name, in_short in units.items() if self._told_units.get(name) != in_short}
        if due or changed or self.events.watched or (self._parts.hub and self._parts.hub.busy):
            self._tell_all(now, due, changed)
        if due:
            self._published_ns = now.boottime_ns
        self._told_status, self._told_units = status, units
        if self._parts.job_socket is not None:
            self._parts.job_socket.tick(now.boottime_ns)

    def _tell_all(self, now: Moment, due: bool, changed: set[str]) -> None:
        """Viewers and the hub hear each second, the broker what is due: everything, or the units that `changed`."""
        known = self._known(now)
        self._judge(known, now)
        self._show("node", known.node, to_mqtt=due or bool(changed))
        for unit in known.units:
            self._show("grandmaster", unit, to_mqtt=due or unit.name in changed)
        self._advance_jobs(known.node, now)

    def _known(self, now: Moment) -> Known:
        node, units = self._view.node_state(now), self._view.grandmaster_states(now)
        nodes, heard = self.heard.nodes(now), self.heard.grandmasters(now)
        everybody = with_heard(units, heard)
        apart = offsets(everybody, [node, *nodes], self._inputs)
        measured = [unit.model_copy(update={"offsets": apart[unit.name]}) for unit in units]
        return Known(joined(node, everybody, now.realtime_ns), measured, nodes, heard)

    def event(self, id: str, subject: str, evidence: str) -> None:
        """Something that happened at one moment, such as a phase jump."""
        self._tell(finding_message(self._findings.event(id, subject, evidence, self._clocks.realtime_ns())))

    def condition(self, id: str, subject: str, evidence: str | None) -> None:
        """Something that holds from now on, by this evidence, or holds no longer (None)."""
        if evidence is None:
            self._conditions.pop((id, subject), None)
        else:
            self._conditions[id, subject] = Judged(evidence)

    def alarm(self, event: AlarmEvent) -> None:
        """A unit reported something by itself: told at once, whatever the poll that follows says."""
        self._view.note_alarm(event)
        said = {name: getattr(event, name) for name in ("action", "id", "index", "severity", "text", "lost", "at")}
        message = AlarmEventMessage.model_validate(
            self._view.next_order()
            | said
            | {
                "name": event.source,
                "alarm_sequence": event.sequence,
                "published_realtime_ns": self._clocks.realtime_ns(),
            }
        )
        self._show("alarm", message)
        if self._parts.store is not None:
            self._parts.store.put_alarm_event(message)

    def unit_events(self, unit: str, events: Iterable[UnitEvent]) -> None:
        """What happened to a unit between two polls; to be told before the later sample is in the view."""
        now = Moment.read(self._clocks)
        elsewhere = is_judged_elsewhere(unit, self._config.node.name, self.heard.grandmasters(now), now.realtime_ns)
        for event in events:
            id = self._unit_findings.happened(unit, event)
            if id is not None and not elsewhere:
                self.event(id, unit, event.evidence)

    def hear(self, message: Message, boottime_ns: int, live: bool) -> None:
        """Another daemon published this: viewers see it, and of a job its ranks here read it from shared memory."""
        if isinstance(message, NodeState) and not live:
            message = last_known(message)
        self.heard.note(message, boottime_ns)
        match message:
            case NodeState():
                self.events.publish(Event("node", message))
            case GrandmasterState():
                if message.name not in self._inputs:  # of a unit that is polled here, viewers see our own poll alone
                    self.events.publish(Event("grandmaster", message))
            case JobState():
                self._to_ranks(message)
                self.events.publish(Event("job", message))

    # What the web room asks for.

    def node(self) -> NodeState:
        return self._known(Moment.read(self._clocks)).node

    def nodes(self) -> list[NodeState]:
        return self._known(Moment.read(self._clocks)).all_nodes

    def grandmasters(self) -> list[GrandmasterState]:
        return self._known(Moment.read(self._clocks)).all_units

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
        mqtt, store, job_socket, alarms = (
            self._parts.mqtt,
            self._parts.store,
            self._parts.job_socket,
            self._parts.alarms,
        )
        known = self._known(Moment.read(self._clocks))
        return Snapshot(
            node=known.node,
            polls=self._view.polls,
            grandmasters=known.units,
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
                alarms_refused_total=alarms.all_refused.total() if alarms else None,
                joblink_rejected_total=job_socket.malformed + job_socket.refused if job_socket else None,
            ),
        )

    @property
    def _every_ns(self) -> int:
        """Twice within each source's holdover_after at least: between two states a reader lets the last one age."""
        wanted_ns = int((self._config.mqtt.state_every_s if self._config.mqtt else STATE_EVERY_S) * NS_PER_S)
        return min([wanted_ns, *(source.bounds.holdover_after_ns // 2 for source in self._config.source)])

    def _judge(self, known: Known, now: Moment) -> None:
        """Let findings begin and end."""
        holds = standing(known.node, self._parts.store_problem, self._broker_lost(now)) | self._conditions
        holds |= self._unit_findings.judge(known.units, known.heard_units, known.all_nodes, now.realtime_ns)
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
