"""Tells the world what this daemon knows: once a second, and at once when the status changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timesyncd.clocks import NS_PER_S, Clocks, Moment
from timesyncd.config import Config
from timesyncd.daemon.hub_service import HubService
from timesyncd.daemon.job_socket import JobSocket
from timesyncd.daemon.node_state import NodeView, finding_message, standing
from timesyncd.daemon.remote_state import RemoteStates, last_known
from timesyncd.feed import Feed
from timesyncd.findings.catalogue import Findings, Judged
from timesyncd.findings.fleet import Key, told_once
from timesyncd.findings.followers import Follower
from timesyncd.findings.grandmaster import UnitFindings, is_judged_elsewhere
from timesyncd.findings.grandmaster_offsets import offsets
from timesyncd.findings.text import joined
from timesyncd.messages.events import CloudEvents, StateChanges
from timesyncd.messages.fleet import CloudEvent, HubState
from timesyncd.messages.jobs import JobState, PolicyRequest
from timesyncd.messages.node import (
    AlarmEventMessage,
    FindingMessage,
    GrandmasterOffset,
    GrandmasterState,
    Message,
    NodeState,
)
from timesyncd.model.grandmaster import GrandmasterEvent
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.history import HistorySender
from timesyncd.sample import AlarmEvent
from timesyncd.store.writer import Store
from timesyncd.web.view import StreamEvent, StreamEventKind

if TYPE_CHECKING:  # SNMP is not loaded where nothing speaks it
    from timesyncd.daemon.trap_receiver import TrapReceiver

#: A broker that is away for less than this is a reconnect, not a finding.
BROKER_GRACE_S = 5

#: A store stores each second; it loses what has waited for 60 s.
STORE_GRACE_S = 15

#: Findings of units last for seconds at least, and all who follow them are looked at.
UNITS_JUDGED_EVERY_NS = 2 * NS_PER_S


@dataclass
class Parts:
    """What the configuration switched on."""

    job_socket: JobSocket | None = None
    mqtt: MqttLink | None = None
    history: HistorySender | None = None
    store: Store | None = None
    alarms: TrapReceiver | None = None
    store_said: str | None = None

    @property
    def store_problem(self) -> str | None:
        """What the store said last, that it is stuck, of which it says nothing, or that what waits for the hubs cannot be read."""
        behind_s = self.store.behind_s if self.store is not None else 0
        stuck = f"nothing stored for {behind_s:.0f} s" if behind_s >= STORE_GRACE_S else None
        return self.store_said or stuck or (self.history.problem if self.history is not None else None)


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """This node and the units that it polls, as they are published at a moment, and the units that others poll."""

    node: NodeState
    units: list[GrandmasterState]
    heard_units: list[GrandmasterState]

    @property
    def all_units(self) -> list[GrandmasterState]:
        """Each once, as this daemon polls it where it does."""
        return with_heard(self.units, self.heard_units)


def with_heard(units: list[GrandmasterState], heard: list[GrandmasterState]) -> list[GrandmasterState]:
    polled = {unit.name for unit in units}
    return [*units, *(unit for unit in heard if unit.name not in polled)]


class Publisher:
    """Publishes to MQTT, viewers and the ranks what is due, and lets findings begin and end."""

    def __init__(
        self, config: Config, view: NodeView, desk: HubService, parts: Parts, clocks: Clocks, events: CloudEvents
    ) -> None:
        self.events: Feed[StreamEvent] = Feed(lambda event: event.kind)
        self.heard = RemoteStates()
        self._config = config
        self._view = view
        self._desk = desk
        self._parts = parts
        self._clocks = clocks
        self._happened = events
        self._changes = StateChanges(events)
        self._findings = Findings()
        self._unit_findings = UnitFindings()
        self._conditions: dict[tuple[str, str], Judged] = {}
        self._inputs = {unit.name: unit.inputs for unit in config.grandmaster}
        self._offsets: dict[str, list[GrandmasterOffset]] = {}
        self._units_judged_ns: int | None = None
        self._of_units: dict[Key, Judged] = {}
        self._of_fleet: Collection[Key] = ()
        self._own_jobs: dict[str, JobState] = {}
        self._published_ns = 0
        self._told_status: tuple[object, ...] | None = None
        self._told_units: dict[str, tuple[object, ...]] = {}
        self._broker_seen_ns = clocks.boottime_ns()

    def tick(self) -> None:
        """Publish what is due now. To be called every second, and when the status may have changed."""
        now = Moment.read(self._clocks)
        status, units = self._view.clock(now).in_short, self._view.units_in_short
        due = now.boottime_ns - self._published_ns >= self._config.state_every_ns or status != self._told_status
        changed = {name for name, in_short in units.items() if self._told_units.get(name) != in_short}
        if due or changed or self.events.watched or self._desk.hub.busy:
            self._tell_all(now, due, changed)
        if due:
            self._published_ns = now.boottime_ns
        self._told_status, self._told_units = status, units
        self._advance_hub(now)
        if self._parts.job_socket is not None:
            self._parts.job_socket.tick(now.boottime_ns)

    def _tell_all(self, now: Moment, due: bool, changed: set[str]) -> None:
        """Viewers and the hub hear each second, the broker what is due: everything, or the units that `changed`."""
        known = self.known(now)
        if self._units_judged_ns is None or changed or now.boottime_ns - self._units_judged_ns >= UNITS_JUDGED_EVERY_NS:
            self._units_judged_ns = now.boottime_ns
            known = self._judge_units(known, now)
        self._judge(known, now)
        self._show("node", known.node, to_mqtt=due or bool(changed))
        for unit in known.units:
            self._show("grandmaster", unit, to_mqtt=due or unit.name in changed)
        for event in self._state_changes(known, now):
            self._happen(event, now.realtime_ns)
        self._desk.accept_node(known.node, now.boottime_ns, live=True)

    def _state_changes(self, known: RemoteSnapshot, now: Moment) -> list[CloudEvent]:
        """Of the node, and of the units whose findings are told here."""
        units = [unit for unit in known.units if not self._is_told_elsewhere(unit.name, known.heard_units, now)]
        return [*self._changes.of_node(known.node), *(event for unit in units for event in self._changes.of_unit(unit))]

    def known(self, now: Moment) -> RemoteSnapshot:
        units, heard = self._view.grandmaster_states(now), self.heard.grandmasters(now)
        node = joined(self._view.node_state(now), with_heard(units, heard), now.realtime_ns)
        return RemoteSnapshot(node, [self._measured(unit) for unit in units], heard)

    def _measured(self, unit: GrandmasterState) -> GrandmasterState:
        """With how far it is from the others, as last judged."""
        return unit.model_copy(update={"offsets": self._offsets.get(unit.name, [])})

    def event(self, id: str, subject: str, evidence: str) -> None:
        """Something that happened at one moment, such as a phase jump."""
        now_ns = self._clocks.realtime_ns()
        self._tell(finding_message(self._findings.event(id, subject, evidence, now_ns)), now_ns)

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
        now_ns = self._clocks.realtime_ns()
        message = AlarmEventMessage.model_validate(
            self._view.next_order()
            | said
            | {"name": event.source, "alarm_sequence": event.sequence, "published_realtime_ns": now_ns}
        )
        self.events.publish(StreamEvent("alarm", message))
        if self._parts.store is not None:
            self._parts.store.put_alarm_event(message)
        self._happen(self._happened.alarm(message), now_ns)

    def unit_events(self, unit: str, events: Iterable[GrandmasterEvent]) -> None:
        """What happened to a unit between two polls; to be told before the later sample is in the view."""
        now = Moment.read(self._clocks)
        elsewhere = self._is_told_elsewhere(unit, self.heard.grandmasters(now), now)
        for event in events:
            id = self._unit_findings.happened(unit, event)
            if id is not None and not elsewhere:
                self.event(id, unit, event.evidence)

    def hear(self, message: Message, boottime_ns: int, live: bool) -> None:
        """Another daemon published this: viewers see it, and of a job its ranks here read it from shared memory."""
        match message:
            case NodeState():
                self._desk.accept_node(message, boottime_ns, live)
                self.events.publish(StreamEvent("node", message if live else last_known(message)))
            case GrandmasterState():
                self.heard.note(message, boottime_ns)
                if message.name not in self._inputs:  # of a unit that is polled here, viewers see our own poll alone
                    self.events.publish(StreamEvent("grandmaster", message))
            case JobState() if self._desk.hear_job(message, Moment.read(self._clocks), live):
                self.heard.note(message, boottime_ns)
                self._to_ranks(message)
                self.events.publish(StreamEvent("job", message))
            case PolicyRequest() if live:
                self._desk.accept_request(message, boottime_ns)
            case HubState():
                self._desk.hear_hub(message, boottime_ns, live)
                if live:
                    self.events.publish(StreamEvent("hub", message))

    def jobs(self, now: Moment) -> list[JobState]:
        """Those that this daemon joins, and of the others what their hub says."""
        heard = self.heard.jobs(now)
        return [*self._own_jobs.values(), *(job for job in heard if job.job_id not in self._own_jobs)]

    @property
    def own_jobs(self) -> list[JobState]:
        return list(self._own_jobs.values())

    def findings(self) -> list[FindingMessage]:
        return [finding_message(finding) for finding in self._findings.all(self._clocks.realtime_ns())]

    def _judge_units(self, known: RemoteSnapshot, now: Moment) -> RemoteSnapshot:
        """The same with the units as measured against each other now."""
        nodes: list[Follower] = [known.node, *(self._desk.followers(now) if known.units else [])]
        self._offsets = offsets(known.all_units, nodes, self._inputs)
        known = RemoteSnapshot(known.node, [self._measured(unit) for unit in known.units], known.heard_units)
        before, heard = self._of_units, known.heard_units
        self._of_units = self._unit_findings.judge(known.units, heard, nodes, now.realtime_ns)
        ended = before.keys() - self._of_units.keys()
        self._leave(key for key in ended if self._is_told_elsewhere(key[1].partition(", ")[0], heard, now))
        return known

    def _is_told_elsewhere(self, unit: str, heard: Iterable[GrandmasterState], now: Moment) -> bool:
        return is_judged_elsewhere(unit, self._config.node.name, heard, now.realtime_ns)

    def _judge(self, known: RemoteSnapshot, now: Moment) -> None:
        """Let findings begin and end."""
        holds = standing(known.node, self._parts.store_problem, self._broker_lost(now)) | self._conditions
        of_fleet = self._desk.findings(known.all_units, now) if self._desk.is_hub else {}
        if not self._desk.is_primary:
            self._leave(self._of_fleet)
        self._of_fleet = of_fleet.keys()
        holds |= told_once(self._of_units, of_fleet)
        self._findings.forget(now.realtime_ns)
        for id, subject in holds.keys() | self._findings.standing():
            changed = self._findings.judge(id, subject, holds.get((id, subject)), now.realtime_ns)
            if changed is not None:
                self._tell(finding_message(changed), now.realtime_ns)

    def _leave(self, keys: Iterable[Key]) -> None:
        """What another daemon tells from now on is not over: that it is no longer told here is no news."""
        for id, subject in keys:
            self._findings.leave(id, subject)

    def _broker_lost(self, now: Moment) -> str | None:
        mqtt = self._parts.mqtt
        if mqtt is None or mqtt.connected:
            self._broker_seen_ns = now.boottime_ns
        silent_s = (now.boottime_ns - self._broker_seen_ns) // NS_PER_S
        return f"no connection for {silent_s} s" if silent_s >= BROKER_GRACE_S else None

    def _tell(self, finding: FindingMessage, now_ns: int) -> None:
        self.events.publish(StreamEvent("finding", finding))
        if self._parts.store is not None:
            self._parts.store.put_finding(finding)
        self._happen(self._happened.finding(finding, now_ns), now_ns)

    def _happen(self, event: CloudEvent, now_ns: int) -> None:
        """To whoever listens now, and to the store, from where the hubs get it for certain."""
        if self._parts.mqtt is not None:
            self._parts.mqtt.publish(event)
        if self._parts.store is not None:
            self._parts.store.put_event(event, now_ns)

    def _show(self, kind: StreamEventKind, message: Message, to_mqtt: bool = True) -> None:
        self.events.publish(StreamEvent(kind, message))
        if to_mqtt and self._parts.mqtt is not None:
            self._parts.mqtt.publish(message)

    def _advance_hub(self, now: Moment) -> None:
        """Its jobs, and its own state; what it says for all it says while it is primary."""
        mqtt, desk = self._parts.mqtt, self._desk
        if not desk.is_hub:
            return
        was_primary = desk.is_primary
        output = desk.advance(now, mqtt is None or mqtt.connected)
        for state in output.jobs:
            self._own_job(state.model_copy(update=self._view.next_order()))
        for job_id in output.ended:
            self._own_jobs.pop(job_id, None)
        for job_id in desk.over(now):
            if mqtt is not None:
                mqtt.clear(JobState, job_id)
        if mqtt is not None and was_primary and not desk.is_primary:
            for job_id in self._own_jobs:
                mqtt.forget(JobState, job_id)
        if (told := desk.state_if_due(now)) is not None:
            self._show("hub", told.model_copy(update=self._view.next_order()))

    def _to_ranks(self, state: JobState) -> None:
        if self._parts.job_socket is not None:
            self._parts.job_socket.publish(state)

    def _own_job(self, state: JobState) -> None:
        self._own_jobs[state.job_id] = state
        if self._desk.is_primary:
            self._to_ranks(state)
            self._show("job", state)
        else:
            self.events.publish(StreamEvent("job", state))
