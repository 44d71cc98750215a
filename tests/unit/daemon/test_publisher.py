"""When the publisher publishes, and its findings of grandmasters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from batches import batch, mark
from fake_clocks import FakeClocks
from grandmaster_states import GM_B, follower
from grandmaster_states import source as grandmaster_source
from publisher_lab import PublisherLab
from samples import GRANDMASTER_IDENTITY as IDENTITY
from samples import HEALTHY
from wire import grandmaster, hub_state, node_state

from timesyncd.bound import Bound, ClockStatus, ErrorBound
from timesyncd.clocks import NS_PER_S
from timesyncd.config import parse
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.publisher import STORE_GRACE_S, Parts
from timesyncd.driver import PollReport, options_of
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import job_id
from timesyncd.messages.fleet import CloudEvent, StateRequest
from timesyncd.messages.node import GrandmasterState, Message, NodeState, Ordered
from timesyncd.model.grandmaster import GrandmasterEvent
from timesyncd.model.grandmaster_events import GrandmasterEventKind
from timesyncd.model.observation import Observation
from timesyncd.mqtt.client import MqttLink
from timesyncd.sample import ClockState, GrandmasterSample
from timesyncd.store.writer import Store
from timesyncd.web.view import StreamEvent


class Broker:
    """Takes what is published."""

    connected = True

    def __init__(self) -> None:
        self.published: list[Message] = []
        self.cleared: list[str] = []
        self.forgotten: list[str] = []

    def publish(self, message: Message) -> None:
        self.published.append(message)

    def clear(self, _: type[Message], subject: str) -> None:
        self.cleared.append(subject)

    def forget(self, _: type[Message], subject: str) -> None:
        self.forgotten.append(subject)


@pytest.mark.parametrize(("every_s", "holdover_after_s", "expected_s"), [(3, 60, [0, 3, 6]), (3, 2, range(7))])
def test_a_state_is_repeated_before_readers_age_it_to_holdover(
    every_s: int, holdover_after_s: int, expected_s: list[int]
) -> None:
    """
    As often as configured, and at least twice within the holdover_after of a source; the state carries the interval.
    """
    source = {"name": "ptp", "driver": "ptp4l", "bounds": {"holdover_after_ns": holdover_after_s * NS_PER_S}}
    tables = {"node": {"name": "a"}, "source": [source], "mqtt": {"host": "h", "state_every_s": every_s}}
    config, clocks, broker = parse(tables, options_of, "test"), FakeClocks(), Broker()
    parts = Parts(mqtt=cast(MqttLink, broker))
    publisher = PublisherLab(config, NodeView(config, Epoch(1, 2), 1), clocks, parts).publisher
    began_ns = clocks.realtime_ns()
    for _ in range(7):
        publisher.tick()
        clocks.advance(NS_PER_S)
    states = [message for message in broker.published if isinstance(message, NodeState)]

    assert [(state.published_realtime_ns - began_ns) // NS_PER_S for state in states] == list(expected_s)
    assert {state.every_ns for state in states} == {min(every_s * NS_PER_S, holdover_after_s * NS_PER_S // 2)}


def test_of_many_grandmasters_the_one_that_changed_is_published_at_once() -> None:
    """An alarm of one does not send the states of all, which are repeated when they are due."""
    grandmasters = [{**GRANDMASTER, "name": name, "identities": []} for name in ("gm-a", "gm-b")]
    tables = {"node": {"name": "hub"}, "grandmaster": grandmasters, "mqtt": {"host": "h", "state_every_s": 60}}
    config, clocks, broker = parse(tables, options_of, "test"), FakeClocks(), Broker()
    view = NodeView(config, Epoch(1, 2), 1)
    publisher = PublisherLab(config, view, clocks, Parts(mqtt=cast(MqttLink, broker))).publisher
    publisher.tick()
    broker.published.clear()
    view.update(Observation(GrandmasterSample("gm-a", clocks.boottime_ns(), clock_state=ClockState.HOLDOVER), None))
    publisher.tick()
    publisher.tick()
    states = [message for message in broker.published if isinstance(message, NodeState | GrandmasterState)]

    assert [getattr(message, "name", "the node") for message in states] == ["the node", "gm-a"]


def state_request(sequence: int = 1) -> StateRequest:
    return StateRequest(node="hub-a", incarnation=1, sequence=sequence, published_realtime_ns=0)


def test_a_hub_s_request_has_a_daemon_publish_its_states_once() -> None:
    """Its node and its grandmasters, within seconds though none is due for an hour; a request that a broker kept is no request."""
    tables = {"node": {"name": "a"}, "grandmaster": [GRANDMASTER], "mqtt": {"host": "h", "state_every_s": 3600}}
    config, clocks, broker = parse(tables, options_of, "test"), FakeClocks(), Broker()
    parts = Parts(mqtt=cast(MqttLink, broker))
    publisher = PublisherLab(config, NodeView(config, Epoch(1, 2), 1), clocks, parts).publisher

    def published() -> list[type[Message]]:
        """The states of nine seconds."""
        broker.published.clear()
        for _ in range(9):
            publisher.tick()
            clocks.advance(NS_PER_S)
        return [type(each) for each in broker.published if isinstance(each, NodeState | GrandmasterState)]

    at_start = published()
    publisher.receive(state_request(1), clocks.boottime_ns(), live=False)
    for_a_kept_one = published()
    publisher.receive(state_request(2), clocks.boottime_ns(), live=True)
    publisher.receive(state_request(3), clocks.boottime_ns(), live=True)

    assert (at_start, for_a_kept_one, published()) == ([NodeState, GrandmasterState], [], [NodeState, GrandmasterState])


def test_a_hub_requests_states_where_its_broker_kept_none() -> None:
    """A broker that keeps states has given them already; a connection that flaps requests them once."""
    config = parse({"node": {"name": "a"}, "hub": {}, "mqtt": {"host": "h"}}, options_of, "test")
    clocks, broker = FakeClocks(), Broker()
    parts = Parts(mqtt=cast(MqttLink, broker))
    publisher = PublisherLab(config, NodeView(config, Epoch(1, 2), 1), clocks, parts).publisher
    counts = []
    for has_retained in (True, False, False):
        publisher.request_states(has_retained)
        counts.append(sum(isinstance(each, StateRequest) for each in broker.published))

    assert counts == [0, 1, 1]


SOURCE = {"name": "ptp", "driver": "ptp4l"}
GRANDMASTER = {
    "name": "gm-a",
    "driver": "timeprovider",
    "identities": [IDENTITY],
    "host": "192.0.2.1",
    "community": {"env": "COMMUNITY"},
}
NODE_BOUND = Bound(5_000, 50_100)


class Watching:
    """A publisher of one node, and the grandmaster that it polls and follows."""

    def __init__(self) -> None:
        config = parse({"node": {"name": "hub"}, "source": [SOURCE], "grandmaster": [GRANDMASTER]}, options_of, "test")
        self.clocks = FakeClocks()
        self.view = NodeView(config, Epoch(1, 2), 1)
        lab = PublisherLab(config, self.view, self.clocks)
        self.publisher, self.web = lab.publisher, lab.web

    def poll(self, **changes: Any) -> None:
        """Ten seconds later."""
        self.clocks.advance(10 * NS_PER_S)
        now_ns = self.clocks.boottime_ns()
        self.view.update(Observation(GrandmasterSample("gm-a", now_ns, **changes), None))
        self.view.update_poll(PollReport("gm-a", now_ns, 1, None, 0))
        sample = replace(HEALTHY, as_of_ns=now_ns)
        bound = ErrorBound(
            as_of_ns=now_ns,
            real_minus_boot_ns=self.clocks.realtime_ns() - now_ns,
            parent_hard=NODE_BOUND,
            gm_hard=NODE_BOUND,
            utc_hard=NODE_BOUND,
            gm_status=ClockStatus.SYNCHRONIZED,
            utc_status=ClockStatus.SYNCHRONIZED,
            grandmaster_identity=IDENTITY,
        )
        self.view.update(Observation(sample, bound, bound))
        self.publisher.tick()

    def standing(self) -> list[tuple[str, str, list[str]]]:
        return [
            (f.id, f.subject, [step.text for step in f.chain])
            for f in self.publisher.findings()
            if f.until_realtime_ns is None
        ]


class Viewer:
    """Notes what is shown."""

    def __init__(self) -> None:
        self.seen: list[StreamEvent] = []
        self.dropped = 0

    def put(self, event: StreamEvent) -> None:
        self.seen.append(event)


class Hub:
    """The publisher of a hub that is no node and polls no grandmaster; a second passes with each tick."""

    def __init__(self, *expected: str) -> None:
        tables = {"node": {"name": "hub-b"}, "mqtt": {"host": "h"}, "hub": {"nodes": list(expected)}}
        config, self.clocks, self.broker = parse(tables, options_of, "test"), FakeClocks(), Broker()
        view, parts = NodeView(config, Epoch(1, 2), 1), Parts(mqtt=cast(MqttLink, self.broker))
        lab = PublisherLab(config, view, self.clocks, parts)
        self.publisher, self.service, self.web = lab.publisher, lab.service, lab.web

    def receive(self, message: Message, live: bool = True) -> None:
        self.publisher.receive(message, self.clocks.boottime_ns(), live)

    def step(self) -> None:
        """Of a job with two ranks."""
        for rank in (0, 1):
            self.service.accept_marks(batch(rank, mark(0)), self.clocks.boottime_ns())

    def run(self, seconds: int, beside: str | None = None) -> None:
        """`beside` another hub that publishes all the time that it is primary."""
        for second in range(seconds):
            if beside is not None:
                self.receive(hub_state(beside, sequence=second))
            self.publisher.tick()
            self.clocks.advance(NS_PER_S)

    def published(self, type: str) -> list[str | None]:
        return [each.subject for each in self.broker.published if isinstance(each, CloudEvent) and each.type == type]


def test_a_fleet_finding_does_not_end_because_another_hub_publishes_it() -> None:
    """A hub that comes back would otherwise end findings that are still open."""
    hub = Hub("n1")
    hub.run(100)
    began = hub.published("timesyncd.finding.began")
    hub.run(20, beside="hub-a")

    assert began == ["fleet"]
    assert (hub.published("timesyncd.finding.ended"), hub.publisher.findings()) == ([], [])


def test_a_retained_state_is_last_known_only() -> None:
    """Be it of a node, a hub or a job: it may be of any age."""
    speaking, hub = Hub(), Hub()
    speaking.step()
    speaking.run(1)
    kept = (
        node_state("n1"),
        hub_state("hub-a"),
        *(job.model_copy(update={"node": "hub-a"}) for job in speaking.web.jobs()),
    )
    viewer = Viewer()
    hub.publisher.events.add(viewer)
    for message in kept:
        hub.receive(message, live=False)
    clock = hub.service.hub.fleet.clock("n1")

    assert [type(message).__name__ for message in kept] == ["NodeState", "HubState", "JobState"]
    assert clock is not None and not clock.live
    assert [(event.kind, cast(NodeState, event.data).status) for event in viewer.seen] == [("node", "UNKNOWN")]
    assert (hub.web.jobs(), [each.node for each in hub.web.hubs()]) == ([], ["hub-b"])


def test_a_job_that_ended_is_cleared_at_the_broker() -> None:
    """By the primary hub: otherwise later subscribers see it running."""
    hub = Hub()
    hub.run(10)
    hub.step()
    hub.run(70)

    assert hub.broker.cleared == [job_id(1000, "train", 0)]


def test_job_states_are_not_repeated_when_another_hub_is_primary() -> None:
    """A link that comes back repeats what was last published."""
    hub = Hub()
    hub.run(10)
    hub.step()
    hub.run(10)
    hub.run(10, beside="hub-a")

    assert hub.broker.forgotten == [job_id(1000, "train", 0)]


@pytest.fixture
def watching() -> Watching:
    return Watching()


def test_a_grandmaster_s_fault_is_one_finding_with_its_chain(watching: Watching) -> None:
    """From the poll to the message, with the node that follows; and it ends when the trouble does."""
    watching.poll(clock_state=ClockState.HOLDOVER, clock_class=7, antenna="open", satellites=())
    open_ = watching.standing()
    watching.poll(clock_state=ClockState.LOCKED, clock_class=6, antenna="ok")

    assert [(id, subject, chain[0], chain[-1]) for id, subject, chain in open_] == [
        ("grandmaster-antenna", "gm-a", "GNSS antenna open", "hub: UTC bound is wider while this lasts")
    ]
    assert watching.standing() == []


def test_a_node_names_the_grandmaster_that_it_follows(watching: Watching) -> None:
    """With how that one fares, by every way that the node's state goes."""
    watching.poll(clock_state=ClockState.LOCKED, antenna="open")
    node = watching.web.node()

    assert (node.grandmaster, node.grandmaster_summary) == ("gm-a", "gm-a: LOCKED, GNSS antenna open")
    assert watching.web.nodes(["hub"])[0].grandmaster_summary == node.grandmaster_summary


def test_a_grandmaster_s_event_is_published_at_once(watching: Watching) -> None:
    """A restart is an event; a jump while it was locked is a suspicion for an hour."""
    watching.poll(clock_state=ClockState.LOCKED)
    now_ns = watching.clocks.realtime_ns()
    events = [
        GrandmasterEvent(kind, now_ns, "why")
        for kind in (GrandmasterEventKind.RESTARTED, GrandmasterEventKind.PHASE_JUMPED)
    ]
    watching.publisher.publish_grandmaster_events("gm-a", events)
    watching.poll(clock_state=ClockState.LOCKED)

    assert [(finding.id, finding.evidence) for finding in watching.publisher.findings()][-1] == (
        "grandmaster-rebooted",
        "why",
    )
    assert [id for id, _, _ in watching.standing()] == ["grandmaster-spoofing"]


def test_a_condition_holds_until_it_is_withdrawn(watching: Watching) -> None:
    """What another part of the daemon knows of a grandmaster."""
    watching.publisher.set_condition("grandmaster-traps-suppressed", "gm-a", "512 dropped")
    watching.poll()
    stood = watching.standing()
    watching.publisher.set_condition("grandmaster-traps-suppressed", "gm-a", None)
    watching.poll()

    assert stood == [("grandmaster-traps-suppressed", "gm-a", [])]
    assert watching.standing() == []


@pytest.mark.parametrize(
    ("leap61", "leap59", "ids"),
    [
        (True, False, {"leap-announced", "leap-unexpected"}),
        (False, True, {"leap-announced", "leap-unexpected"}),
        (True, True, {"leap-announced", "leap-unexpected", "leap-contradiction"}),
        (False, False, set()),
    ],
)
def test_a_leap_second_that_announce_carries_is_a_finding(
    watching: Watching, leap61: bool, leap59: bool, ids: set[str]
) -> None:
    """On 14 November 2023, when none was due; it ends with the flag."""
    watching.poll()
    flagged = replace(HEALTHY, as_of_ns=watching.clocks.boottime_ns(), leap61=leap61, leap59=leap59)
    watching.view.update(Observation(flagged, None))
    watching.clocks.advance(10 * NS_PER_S)
    watching.publisher.tick()
    announced = watching.publisher.findings()
    watching.poll()

    assert {finding.id for finding in announced if finding.id.startswith("leap")} == ids
    assert all(
        "2023-11-14" in finding.evidence for finding in announced if finding.id in ("leap-announced", "leap-unexpected")
    )
    assert all(finding.until_realtime_ns is not None for finding in watching.publisher.findings())


def test_ended_findings_expire_without_a_reader(watching: Watching) -> None:
    """A daemon without a page lives for months."""
    watching.publisher.add_occurrence("phase-jump", "ptp", "once")
    watching.clocks.advance(3_600 * NS_PER_S)
    watching.poll()

    assert watching.publisher._findings._findings == {}


def test_a_grandmaster_that_an_earlier_daemon_polls_has_no_findings_here(watching: Watching) -> None:
    """Neither open findings nor events: the other daemon publishes both."""
    watching.publisher.receive(
        grandmaster("a-hub", 1, 1).model_copy(update={"published_realtime_ns": watching.clocks.realtime_ns()}),
        watching.clocks.boottime_ns(),
        live=True,
    )
    watching.publisher.publish_grandmaster_events("gm-a", [GrandmasterEvent(GrandmasterEventKind.RESTARTED, 1, "why")])
    watching.poll(antenna="open")

    assert watching.publisher.findings() == []


def test_a_grandmaster_s_finding_does_not_end_because_another_daemon_publishes_it(watching: Watching) -> None:
    """Another daemon that polls the grandmaster too and comes first by name has begun to."""
    watching.poll(antenna="open")
    stood = watching.standing()
    other = grandmaster("a-hub", 1, 1).model_copy(update={"published_realtime_ns": watching.clocks.realtime_ns()})
    watching.publisher.receive(other, watching.clocks.boottime_ns(), live=True)
    watching.poll(antenna="open")

    assert [id for id, _, _ in stood] == ["grandmaster-antenna"]
    assert watching.publisher.findings() == []


def test_grandmasters_carry_their_offsets_from_each_other(watching: Watching) -> None:
    """A node with this grandmaster and another daemon's as sources."""
    now_ns = watching.clocks.realtime_ns()
    other = grandmaster("other", 1, 1).model_copy(update={"name": "gm-b", "identities": [GM_B]})
    sources = [grandmaster_source(IDENTITY, name="a", offset_ns=300), grandmaster_source(GM_B, name="b", offset_ns=100)]
    for message in (other, follower(sources=sources, published_realtime_ns=now_ns)):
        watching.publisher.receive(message, watching.clocks.boottime_ns(), live=True)
    watching.publisher.tick()
    state = watching.web.grandmasters()[0]

    assert [(each.other, each.offset_ns) for each in state.offsets] == [("gm-b", -200)]


class StuckStore:
    """As one whose server neither answers nor fails."""

    behind_s = STORE_GRACE_S - 1.0

    def put_finding(self, _: object) -> None: ...

    def put_event(self, *_: object) -> None: ...


def test_a_store_that_reports_nothing_is_failing_too() -> None:
    """
    A hanging thread reports nothing: the finding gives how far the store is behind, after the store's own failure.
    """
    store, clocks = StuckStore(), FakeClocks()
    config = parse({"node": {"name": "a"}}, options_of, "test")
    parts = Parts(store=cast(Store, store))
    lab = PublisherLab(config, NodeView(config, Epoch(1, 2), 1), clocks, parts)
    published = []
    for behind_s, failure in (
        (STORE_GRACE_S - 1.0, None),
        (STORE_GRACE_S + 0.0, None),
        (60.0, "disk full"),
        (0.0, None),
    ):
        store.behind_s, parts.store_failure = behind_s, failure
        clocks.advance(3 * NS_PER_S)
        lab.publisher.tick()
        standing = [each.evidence for each in lab.publisher.findings() if each.until_realtime_ns is None]
        published.append((standing, lab.web.health() is None))

    assert published == [([], True), (["nothing stored for 15 s"], False), (["disk full"], False), ([], True)]


def test_reading_has_no_effect_on_what_is_published(watching: Watching) -> None:
    """
    Pages, GETs and scrapes take no sequence number and date no status: what is sent is the same with and without them.
    """
    numbers: list[list[int]] = []
    for reads in (0, 3):
        seen = Viewer()
        watching.publisher.events.add(seen)
        for _ in range(reads):
            for read in (watching.web.node, watching.web.grandmasters, watching.web.metrics, watching.web.findings):
                read()
        watching.clocks.advance(NS_PER_S)
        watching.publisher.tick()
        watching.publisher.events.unsubscribe(seen)
        numbers.append([each.data.sequence for each in seen.seen if isinstance(each.data, Ordered)])

    sent = [number for each in numbers for number in each]
    assert len(numbers[0]) == len(numbers[1]) > 1
    assert sent == list(range(sent[0], sent[0] + len(sent)))


def test_a_state_that_is_read_carries_the_number_that_was_sent_last(watching: Watching) -> None:
    """So a reader can tell which published message it is not older than."""
    watching.publisher.tick()
    first, second = watching.web.node(), watching.web.node()

    assert first.sequence == second.sequence > 0
