"""
Publishes what this daemon knows to the broker, the web page's viewers and the ranks: every second, and at once on a
change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from timesyncd.clocks import NS_PER_S, Clocks, Moment
from timesyncd.config import Config
from timesyncd.daemon.hub_service import HubService
from timesyncd.daemon.job_socket import JobSocket
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.own_cost import OwnCost
from timesyncd.daemon.refused_names import RefusedCount, RefusedNames
from timesyncd.daemon.remote_state import RemoteStates, last_known
from timesyncd.daemon.state_requests import RequestedStates, RequestLimit
from timesyncd.feed import Feed
from timesyncd.findings.catalogue import Findings, Judgement, finding_message
from timesyncd.findings.fleet import Key, without_duplicates
from timesyncd.findings.followers import Follower, offsets, with_grandmaster
from timesyncd.findings.grandmaster import GrandmasterFindings, is_judged_elsewhere
from timesyncd.findings.leap import leap_findings
from timesyncd.findings.node import state_findings
from timesyncd.messages.events import CloudEvents, StateChanges, notes_of
from timesyncd.messages.fleet import CloudEvent, FleetShare, HistoryBatch, HubState, StateRequest
from timesyncd.messages.jobs import JobState, PolicyRequest
from timesyncd.messages.node import (
    AlarmEventMessage,
    FindingMessage,
    GrandmasterOffset,
    GrandmasterState,
    Message,
    NodeState,
    Ordered,
    RepeatedState,
)
from timesyncd.messages.notes import Handled, HandledFinding, NoteRequest, OperatorNote
from timesyncd.model.grandmaster import GrandmasterEvent
from timesyncd.model.leap import LeapTable
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.history import HistorySender
from timesyncd.mqtt.topics import JOB_STATE, MARKS
from timesyncd.sample import AlarmEvent
from timesyncd.store.writer import Store
from timesyncd.web.view import StreamEvent, StreamEventKind

if TYPE_CHECKING:  # a daemon without traps and syslog does not load SNMP
    from timesyncd.daemon.trap_receiver import TrapReceiver

State = TypeVar("State", bound=Ordered)

#: A broker that is away for less than this is a reconnect, not a finding.
BROKER_GRACE_S = 5

#: The store writes every second, and drops rows that have waited for 60 s.
STORE_GRACE_S = 15

#: Findings of grandmasters last for seconds at least, and each evaluation reads all their followers.
GRANDMASTERS_JUDGED_EVERY_NS = 2 * NS_PER_S


@dataclass
class Parts:
    """The parts of the daemon that the configuration enables."""

    job_socket: JobSocket | None = None
    mqtt: MqttLink | None = None
    history: HistorySender | None = None
    store: Store | None = None
    alarms: TrapReceiver | None = None
    store_failure: str | None = None
    cost: OwnCost | None = None

    @property
    def store_problem(self) -> str | None:
        """
        The store's last failure; else that it stores nothing, which it does not report; else that its outbox cannot be
        read.
        """
        behind_s = self.store.behind_s if self.store is not None else 0
        stuck = f"nothing stored for {behind_s:.0f} s" if behind_s >= STORE_GRACE_S else None
        return self.store_failure or stuck or (self.history.problem if self.history is not None else None)


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """At one moment: this node, the grandmasters that this daemon polls, and those that other daemons poll."""

    node: NodeState
    grandmasters: list[GrandmasterState]
    remote_grandmasters: list[GrandmasterState]

    @property
    def all_grandmasters(self) -> list[GrandmasterState]:
        """Each once, as this daemon polls it where it does."""
        return merge_remote(self.grandmasters, self.remote_grandmasters)


def merge_remote(own: list[GrandmasterState], remote: list[GrandmasterState]) -> list[GrandmasterState]:
    polled = {grandmaster.name for grandmaster in own}
    return [*own, *(grandmaster for grandmaster in remote if grandmaster.name not in polled)]


class Publisher:
    """
    Publishes what is due, and begins and ends findings. Every message gets its sequence number when it is published.
    """

    def __init__(
        self, config: Config, view: NodeView, hub_service: HubService, parts: Parts, clocks: Clocks, events: CloudEvents
    ) -> None:
        self.events: Feed[StreamEvent] = Feed(lambda event: event.kind)
        #: Called with each event that this daemon publishes, and the CLOCK_REALTIME of it. They never wait.
        self.listeners: list[Callable[[CloudEvent, int], None]] = []
        self.remote = RemoteStates()
        self._config = config
        self._view = view
        self._hub_service = hub_service
        self._parts = parts
        self._clocks = clocks
        self._cloud_events = events
        self._state_changes = StateChanges(events)
        self.leap_table: LeapTable | None = None
        self._findings = Findings()
        self._handled = Handled()
        self._grandmaster_findings = GrandmasterFindings()
        self._conditions: dict[tuple[str, str], Judgement] = {}
        self._inputs = {grandmaster.name: grandmaster.inputs for grandmaster in config.grandmaster}
        self._offsets: dict[str, list[GrandmasterOffset]] = {}
        self._grandmasters_judged_ns: int | None = None
        self._of_grandmasters: dict[Key, Judgement] = {}
        self._of_fleet: Collection[Key] = ()
        self._own_jobs: dict[str, JobState] = {}
        self._requested_states = RequestedStates()
        self._request_limit = RequestLimit()
        self._published_ns = 0
        self._published_digest: tuple[object, ...] | None = None
        self._published_grandmasters: dict[str, tuple[object, ...]] = {}
        self._broker_seen_ns = clocks.boottime_ns()
        self._refused_names = RefusedNames()

    def tick(self) -> None:
        """Publish what is due now. To be called every second, and when the status may have changed."""
        now = Moment.read(self._clocks)
        refused = self._refused_names.evidence(self.refused_names, now.boottime_ns)
        self.set_condition("broker-names-refused", self._config.node.name, refused)
        digest, grandmasters = self._view.clock(now).digest, self._view.grandmaster_digests
        interval_over = now.boottime_ns - self._published_ns >= self._config.state_every_ns
        is_requested = self._requested_states.is_due(now.boottime_ns)
        due = interval_over or is_requested or digest != self._published_digest
        changed = {name for name, each in grandmasters.items() if self._published_grandmasters.get(name) != each}
        if due or changed or self.events.has_subscribers or self._hub_service.hub.has_jobs:
            self._publish_states(now, due, changed)
        if due:
            self._published_ns = now.boottime_ns
            self._requested_states.published(now.boottime_ns)
        self._published_digest, self._published_grandmasters = digest, grandmasters
        self._advance_hub(now)
        self._select_topics()
        if self._parts.job_socket is not None:
            self._parts.job_socket.tick(now.boottime_ns)

    def _select_topics(self) -> None:
        """A node needs the states of the jobs with ranks on it, and a hub that shares the marks of the jobs that it owns."""
        mqtt, job_socket, parts = self._parts.mqtt, self._parts.job_socket, self._hub_service.selected_parts
        if mqtt is None:
            return
        if job_socket is not None and not self._hub_service.is_hub:
            mqtt.select(JOB_STATE, job_socket.job_ids)
        elif job_socket is not None:
            self._hub_service.set_local_jobs(job_socket.job_ids)
        if parts is not None:
            mqtt.select(MARKS, parts)

    def request_states(self, has_retained: bool) -> None:
        """The hub is connected. If the broker had nothing for it, it asks every daemon for its states."""
        now = Moment.read(self._clocks)
        mqtt = self._parts.mqtt
        if mqtt is None or has_retained or not self._request_limit.allows(now.boottime_ns):
            return
        order = self._view.numbers.next()
        mqtt.publish(StateRequest.model_validate(order | {"published_realtime_ns": now.realtime_ns}))

    def _publish_states(self, now: Moment, due: bool, changed: set[str]) -> None:
        """
        To viewers and this daemon's hub every second; to the broker all that is due, or the grandmasters that
        `changed`.
        """
        snapshot, judged_ns = self.snapshot(now), self._grandmasters_judged_ns
        if judged_ns is None or changed or now.boottime_ns - judged_ns >= GRANDMASTERS_JUDGED_EVERY_NS:
            self._grandmasters_judged_ns = now.boottime_ns
            snapshot = self._judge_grandmasters(snapshot, now)
        self._view.mark_status(snapshot.node)
        self._judge(snapshot, now)
        node = self.publish_state("node", snapshot.node, to_mqtt=due or bool(changed))
        for grandmaster in snapshot.grandmasters:
            self.publish_state("grandmaster", grandmaster, to_mqtt=due or grandmaster.name in changed)
        for event in self._changed_states(snapshot, now):
            self.publish_event(event, now.realtime_ns)
        self._hub_service.accept_node(node, now.boottime_ns, live=True)

    @property
    def refused_names(self) -> dict[str, RefusedCount]:
        """By kind, what the broker delivered and this daemon has no room for."""
        return self._hub_service.refused | self.remote.refused

    def _changed_states(self, snapshot: RemoteSnapshot, now: Moment) -> list[CloudEvent]:
        """Of the node, and of the grandmasters whose findings this daemon publishes."""
        remote = snapshot.remote_grandmasters
        own = [each for each in snapshot.grandmasters if not self._is_published_elsewhere(each.name, remote, now)]
        events = self._state_changes.of_node(snapshot.node)
        return [*events, *(event for each in own for event in self._state_changes.of_grandmaster(each))]

    def snapshot(self, now: Moment) -> RemoteSnapshot:
        """What is known now. It has no effect: nothing in it takes a sequence number."""
        own, remote = self._view.grandmaster_states(now), self.remote.grandmasters(now)
        node = with_grandmaster(self._view.node_state(now), merge_remote(own, remote), now.realtime_ns)
        return RemoteSnapshot(node, [self._with_offsets(grandmaster) for grandmaster in own], remote)

    def _with_offsets(self, grandmaster: GrandmasterState) -> GrandmasterState:
        """With its offsets from the other grandmasters, as last computed."""
        return grandmaster.model_copy(update={"offsets": self._offsets.get(grandmaster.name, [])})

    def add_occurrence(self, id: str, subject: str, evidence: str) -> None:
        """Publish a finding that began and ended at one moment, such as a phase jump."""
        now_ns = self._clocks.realtime_ns()
        self.publish_finding(finding_message(self._findings.add_occurrence(id, subject, evidence, now_ns)), now_ns)

    def set_condition(self, id: str, subject: str, evidence: str | None) -> None:
        """A finding holds from now on, by this evidence, or no longer (None)."""
        if evidence is None:
            self._conditions.pop((id, subject), None)
        else:
            self._conditions[id, subject] = Judgement(evidence)

    def publish_alarm(self, event: AlarmEvent) -> None:
        """What a grandmaster reported by itself, at once; the poll that follows may show more."""
        self._view.update_alarms(event)
        reported = {name: getattr(event, name) for name in ("action", "id", "index", "severity", "text", "lost", "at")}
        now_ns = self._clocks.realtime_ns()
        message = AlarmEventMessage.model_validate(
            self._view.numbers.next()
            | reported
            | {"name": event.source, "alarm_sequence": event.sequence, "published_realtime_ns": now_ns}
        )
        self.events.publish(StreamEvent("alarm", message))
        if self._parts.store is not None:
            self._parts.store.put_alarm_event(message)
        self.publish_event(self._cloud_events.alarm(message), now_ns)

    def publish_grandmaster_events(self, grandmaster: str, events: Iterable[GrandmasterEvent]) -> None:
        """What happened to a grandmaster between two polls. To be called before the view has the later sample."""
        now = Moment.read(self._clocks)
        elsewhere = self._is_published_elsewhere(grandmaster, self.remote.grandmasters(now), now)
        for event in events:
            id = self._grandmaster_findings.add_event(grandmaster, event)
            if id is not None and not elsewhere:
                self.add_occurrence(id, grandmaster, event.evidence)

    def receive_repeated(self, state: RepeatedState, boottime_ns: int, json: bytes) -> None:
        """A node's live state, `json`, that repeats its last one: it is decoded for viewers alone."""
        accepted = self._hub_service.accept_repeated(state, boottime_ns, json)
        if not accepted:
            self.receive(NodeState.model_validate_json(json), boottime_ns, True, json)
        elif self.events.has_subscribers:
            self.events.publish(StreamEvent("node", NodeState.model_validate_json(json)))

    def receive(self, message: Message, boottime_ns: int, live: bool, json: bytes = b"") -> bool:
        """
        Another daemon published this, as `json`: pass it to the viewers, and a job's state to its ranks here. False: there is no
        room for another node, grandmaster or hub, so the message counts for nothing.
        """
        match message:
            case NodeState() if not self._hub_service.accept_node(message, boottime_ns, live, json):
                return False
            case NodeState():
                self.events.publish(StreamEvent("node", message if live else last_known(message)))
            case GrandmasterState() if not self.remote.update(message, boottime_ns, len(json)):
                return False
            case GrandmasterState():
                if message.name not in self._inputs:  # viewers get this daemon's own poll of a grandmaster
                    self.events.publish(StreamEvent("grandmaster", message))
            case JobState() if self._hub_service.accept_job(message, Moment.read(self._clocks), live):
                self.remote.update(message, boottime_ns, len(json))
                self._publish_to_ranks(message)
                self.events.publish(StreamEvent("job", message))
            case OperatorNote() if live and message.node != self._config.node.name:
                self.add_note(message)
            case PolicyRequest() if live:
                self._hub_service.accept_request(message, boottime_ns)
            case StateRequest() if live:
                self._requested_states.request(boottime_ns, random.random())
            case FleetShare() if live:
                self._hub_service.accept_share(message, boottime_ns)
            case HubState() if not self._hub_service.accept_hub(message, boottime_ns, live):
                return False
            case HubState() if live:
                self.events.publish(StreamEvent("hub", message))
        return True

    def write_note(self, request: NoteRequest, author: str) -> OperatorNote | str:
        """Store and publish an operator's note. A text: the finding that it is about is not active."""
        now_ns = self._clocks.realtime_ns()
        active = {(each.id, each.subject) for each in self.findings() if each.until_realtime_ns is None}
        if request.kind == "acknowledge" and (request.finding, request.subject) not in active:
            return f"no finding {request.finding} of {request.subject} is active"
        order = self._view.numbers.next()
        fields = request.model_dump(include={"kind", "text", "subject", "finding"})
        note = OperatorNote.model_validate(
            order
            | fields
            | {
                "id": f"{order['node']}-{order['incarnation']}-{order['sequence']}",
                "author": author,
                "realtime_ns": now_ns if request.realtime_ns is None else request.realtime_ns,
                "until_realtime_ns": None if request.silence_s is None else now_ns + request.silence_s * NS_PER_S,
                "published_realtime_ns": now_ns,
            }
        )
        self.add_note(note)
        if self._parts.mqtt is not None:
            self._parts.mqtt.publish(note)
        self.publish_event(self._cloud_events.note(note), now_ns)
        return note

    def add_note(self, note: OperatorNote) -> None:
        """Keep a note, written here or received."""
        self._handled.add(note)
        self.events.publish(StreamEvent("note", note))
        if self._parts.store is not None:
            self._parts.store.put_note(note)

    def accept_history(self, batch: HistoryBatch) -> None:
        """The operators' notes among another node's history; a hub that received them before has them already."""
        for note in notes_of(batch):
            self._handled.add(note)
            if self._parts.store is not None:
                self._parts.store.put_note(note)

    def restore_notes(self, notes: Iterable[OperatorNote]) -> None:
        """What the store kept of acknowledgements and silences."""
        for note in notes:
            self._handled.resume(note, self._clocks.realtime_ns())

    def handled(self) -> list[HandledFinding]:
        """The active findings that somebody acknowledged or silenced."""
        return self._handled.of(self.findings(), self._clocks.realtime_ns())

    def jobs(self, now: Moment) -> list[JobState]:
        """Those that this daemon joins, and the others as their hub published them."""
        remote = self.remote.jobs(now)
        return [*self._own_jobs.values(), *(job for job in remote if job.job_id not in self._own_jobs)]

    @property
    def own_jobs(self) -> list[JobState]:
        return list(self._own_jobs.values())

    def findings(self) -> list[FindingMessage]:
        return [finding_message(finding) for finding in self._findings.all(self._clocks.realtime_ns())]

    def _judge_grandmasters(self, snapshot: RemoteSnapshot, now: Moment) -> RemoteSnapshot:
        """The same snapshot with the grandmasters' offsets as computed now."""
        own, remote = snapshot.grandmasters, snapshot.remote_grandmasters
        nodes: list[Follower] = [snapshot.node, *(self._hub_service.followers(now) if own else [])]
        self._offsets = offsets(snapshot.all_grandmasters, nodes, self._inputs)
        snapshot = RemoteSnapshot(snapshot.node, [self._with_offsets(each) for each in own], remote)
        before = self._of_grandmasters
        self._of_grandmasters = self._grandmaster_findings.judge(snapshot.grandmasters, remote, nodes, now.realtime_ns)
        ended = before.keys() - self._of_grandmasters.keys()
        self.retract(key for key in ended if self._is_published_elsewhere(key[1].partition(", ")[0], remote, now))
        return snapshot

    def _is_published_elsewhere(self, grandmaster: str, remote: Iterable[GrandmasterState], now: Moment) -> bool:
        return is_judged_elsewhere(grandmaster, self._config.node.name, remote, now.realtime_ns)

    def _judge(self, snapshot: RemoteSnapshot, now: Moment) -> None:
        """Begin and end findings."""
        own = [
            each
            for each in snapshot.grandmasters
            if not self._is_published_elsewhere(each.name, snapshot.remote_grandmasters, now)
        ]
        leaps = leap_findings(snapshot.node, own, self.leap_table, now.realtime_ns)
        holds = (
            leaps
            | state_findings(snapshot.node, self._parts.store_problem, self._broker_problem(now))
            | self._conditions
        )
        service = self._hub_service
        of_fleet = service.findings(snapshot.all_grandmasters, now) if service.is_hub else {}
        self.retract(key for key in self._of_fleet if not service.publishes_finding(key))
        self._of_fleet = of_fleet.keys()
        holds |= without_duplicates(self._of_grandmasters, of_fleet)
        self._findings.expire(now.realtime_ns)
        for id, subject in holds.keys() | self._findings.open():
            changed = self._findings.judge(id, subject, holds.get((id, subject)), now.realtime_ns)
            if changed is not None:
                self.publish_finding(finding_message(changed), now.realtime_ns)

    def retract(self, keys: Iterable[Key]) -> None:
        """Drop findings that another daemon publishes from now on. They did not end, so no end is published."""
        for id, subject in keys:
            self._findings.drop(id, subject)

    def _broker_problem(self, now: Moment) -> str | None:
        mqtt = self._parts.mqtt
        if mqtt is None or mqtt.connected:
            self._broker_seen_ns = now.boottime_ns
        disconnected_s = (now.boottime_ns - self._broker_seen_ns) // NS_PER_S
        return f"no connection for {disconnected_s} s" if disconnected_s >= BROKER_GRACE_S else None

    def publish_finding(self, finding: FindingMessage, now_ns: int) -> None:
        if finding.until_realtime_ns is not None:
            self._handled.end(finding)
        self.events.publish(StreamEvent("finding", finding))
        if self._parts.store is not None:
            self._parts.store.put_finding(finding)
        self.publish_event(self._cloud_events.finding(finding, now_ns), now_ns)

    def publish_event(self, event: CloudEvent, now_ns: int) -> None:
        """To present subscribers by the broker, and by the store to the hubs, which get every row of it."""
        if self._parts.mqtt is not None:
            self._parts.mqtt.publish(event)
        if self._parts.store is not None:
            self._parts.store.put_event(event, now_ns)
        for listener in self.listeners:
            listener(event, now_ns)

    def publish_state(self, kind: StreamEventKind, state: State, to_mqtt: bool = True) -> State:
        """Number a state and send it. Returns it as sent."""
        numbered = state.model_copy(update=self._view.numbers.next())
        self.events.publish(StreamEvent(kind, numbered))
        if to_mqtt and self._parts.mqtt is not None:
            self._parts.mqtt.publish(numbered)
        return numbered

    def _advance_hub(self, now: Moment) -> None:
        """Publish the hub's own state, and while it is primary the states of the jobs."""
        mqtt, service = self._parts.mqtt, self._hub_service
        if not service.is_hub:
            return
        was_primary = service.is_primary
        output = service.advance(now, mqtt is None or mqtt.connected)
        for state in output.jobs:
            self._publish_own_job(state)
        for job_id in output.ended:
            self._own_jobs.pop(job_id, None)
        for job_id in service.released:
            self._own_jobs.pop(job_id, None)
            if mqtt is not None:
                mqtt.forget(JobState, job_id)
        for job_id in service.jobs_to_clear(now):
            if mqtt is not None:
                mqtt.clear(JobState, job_id)
        if mqtt is not None and was_primary and not service.is_primary:
            for job_id in self._own_jobs:
                mqtt.forget(JobState, job_id)
        if (hub_state := service.state_if_due(now)) is not None:
            self.publish_state("hub", hub_state)
        if mqtt is not None and (share := service.share_if_due(now)) is not None:
            mqtt.publish(share.model_copy(update=self._view.numbers.next()))

    def _publish_own_job(self, state: JobState) -> None:
        publishes = self._hub_service.publishes_job(state.job_id)
        numbered = self._own_jobs[state.job_id] = self.publish_state("job", state, to_mqtt=publishes)
        if publishes:
            self._publish_to_ranks(numbered)

    def _publish_to_ranks(self, state: JobState) -> None:
        if self._parts.job_socket is not None:
            self._parts.job_socket.publish(state)
