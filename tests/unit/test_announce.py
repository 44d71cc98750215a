"""When the announcer publishes, and what it tells of grandmasters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from grandmaster_states import GM_B, follower
from grandmaster_states import source as heard_source
from samples import HEALTHY
from wire import grandmaster

from timesyncd.announce import Announcer, Parts
from timesyncd.bound import Bound, ClockStatus, ErrorBound
from timesyncd.clocks import NS_PER_S, FakeClocks
from timesyncd.config import parse
from timesyncd.driver import PollReport, options_of
from timesyncd.feed import Observation
from timesyncd.grandmaster import UnitEvent
from timesyncd.messages import FindingMessage, Message, NodeState
from timesyncd.mqtt.client import MqttLink
from timesyncd.sample import ClockState, GrandmasterSample
from timesyncd.segment import Epoch
from timesyncd.unit_events import UnitEventKind
from timesyncd.view import NodeView


class Broker:
    """Takes what is published."""

    connected = True

    def __init__(self) -> None:
        self.published: list[Message] = []

    def publish(self, message: Message) -> None:
        self.published.append(message)


@pytest.mark.parametrize(("every_s", "holdover_after_s", "expected_s"), [(3, 60, [0, 3, 6]), (3, 2, range(7))])
def test_a_state_is_repeated_before_readers_take_it_for_held_over(
    every_s: int, holdover_after_s: int, expected_s: list[int]
) -> None:
    """As often as configured, and at least twice within the holdover_after of a source."""
    source = {"name": "ptp", "driver": "ptp4l", "bounds": {"holdover_after_ns": holdover_after_s * NS_PER_S}}
    tables = {"node": {"name": "a"}, "source": [source], "mqtt": {"host": "h", "state_every_s": every_s}}
    config, clocks, broker = parse(tables, options_of, "test"), FakeClocks(), Broker()
    parts = Parts(mqtt=cast(MqttLink, broker))
    announcer = Announcer(config, NodeView(config, Epoch(1, 2), 1), parts, clocks)
    began_ns = clocks.realtime_ns()
    for _ in range(7):
        announcer.tick()
        clocks.advance(NS_PER_S)
    states = [message for message in broker.published if isinstance(message, NodeState)]

    assert [(state.published_realtime_ns - began_ns) // NS_PER_S for state in states] == list(expected_s)


def test_of_many_units_the_one_that_changed_is_published_at_once() -> None:
    """An alarm of one does not send the states of all, which are repeated when they are due."""
    units = [{**UNIT, "name": name, "identities": []} for name in ("gm-a", "gm-b")]
    tables = {"node": {"name": "hub"}, "grandmaster": units, "mqtt": {"host": "h", "state_every_s": 60}}
    config, clocks, broker = parse(tables, options_of, "test"), FakeClocks(), Broker()
    view = NodeView(config, Epoch(1, 2), 1)
    announcer = Announcer(config, view, Parts(mqtt=cast(MqttLink, broker)), clocks)
    announcer.tick()
    broker.published.clear()
    view.note(Observation(GrandmasterSample("gm-a", clocks.boottime_ns(), clock_state=ClockState.HOLDOVER), None))
    announcer.tick()
    announcer.tick()
    told = [message for message in broker.published if not isinstance(message, FindingMessage)]

    assert [getattr(message, "name", "the node") for message in told] == ["the node", "gm-a"]


SOURCE = {"name": "ptp", "driver": "ptp4l"}
IDENTITY = HEALTHY.grandmaster_identity
UNIT = {
    "name": "gm-a",
    "driver": "timeprovider",
    "identities": [IDENTITY],
    "host": "192.0.2.1",
    "community": {"env": "COMMUNITY"},
}
NODE_BOUND = Bound(5_000, 50_100)


class Watching:
    """An announcer of one node, and the unit that it polls and follows."""

    def __init__(self) -> None:
        config = parse({"node": {"name": "hub"}, "source": [SOURCE], "grandmaster": [UNIT]}, options_of, "test")
        self.clocks = FakeClocks()
        self.view = NodeView(config, Epoch(1, 2), 1)
        self.announcer = Announcer(config, self.view, Parts(), self.clocks)

    def poll(self, **changes: Any) -> None:
        """Ten seconds later."""
        self.clocks.advance(10 * NS_PER_S)
        now_ns = self.clocks.boottime_ns()
        self.view.note(Observation(GrandmasterSample("gm-a", now_ns, **changes), None))
        self.view.note_poll(PollReport("gm-a", now_ns, 1, None, 0))
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
        self.view.note(Observation(sample, bound, bound))
        self.announcer.tick()

    def standing(self) -> list[tuple[str, str, list[str]]]:
        return [(f.id, f.subject, f.chain) for f in self.announcer.findings() if f.until_realtime_ns is None]


@pytest.fixture
def watching() -> Watching:
    return Watching()


def test_a_unit_s_trouble_is_one_finding_with_its_chain(watching: Watching) -> None:
    """From the poll to the message, with the node that follows; and it ends when the trouble does."""
    watching.poll(clock_state=ClockState.HOLDOVER, clock_class=7, antenna="open", satellites=())
    open_ = watching.standing()
    watching.poll(clock_state=ClockState.LOCKED, clock_class=6, antenna="ok")

    assert [(id, subject, chain[0], chain[-1]) for id, subject, chain in open_] == [
        ("grandmaster-antenna", "gm-a", "GNSS antenna open", "hub: UTC bound is wider while this lasts")
    ]
    assert watching.standing() == []


def test_a_node_names_the_unit_that_it_follows(watching: Watching) -> None:
    """With how that one fares, by every way that the node's state goes."""
    watching.poll(clock_state=ClockState.LOCKED, antenna="open")
    node = watching.announcer.node()

    assert (node.grandmaster, node.grandmaster_note) == ("gm-a", "gm-a: LOCKED, GNSS antenna open")
    assert watching.announcer.nodes()[0].grandmaster_note == node.grandmaster_note


def test_what_happened_to_a_unit_is_told_at_once(watching: Watching) -> None:
    """A restart is an event; a jump while it was locked stands as a suspicion."""
    watching.poll(clock_state=ClockState.LOCKED)
    now_ns = watching.clocks.realtime_ns()
    events = [UnitEvent(kind, now_ns, "why") for kind in (UnitEventKind.RESTARTED, UnitEventKind.PHASE_JUMPED)]
    watching.announcer.unit_events("gm-a", events)
    watching.poll(clock_state=ClockState.LOCKED)

    assert [(finding.id, finding.evidence) for finding in watching.announcer.findings()][-1] == (
        "grandmaster-rebooted",
        "why",
    )
    assert [id for id, _, _ in watching.standing()] == ["grandmaster-spoofing"]


def test_a_condition_stands_until_it_is_withdrawn(watching: Watching) -> None:
    """What another part of the daemon knows of a unit."""
    watching.announcer.condition("grandmaster-traps-suppressed", "gm-a", "512 dropped")
    watching.poll()
    stood = watching.standing()
    watching.announcer.condition("grandmaster-traps-suppressed", "gm-a", None)
    watching.poll()

    assert stood == [("grandmaster-traps-suppressed", "gm-a", [])]
    assert watching.standing() == []


def test_of_a_unit_that_a_daemon_before_us_polls_we_tell_nothing(watching: Watching) -> None:
    """Neither what stands nor what happens: it tells both."""
    watching.announcer.hear(
        grandmaster("a-hub", 1, 1).model_copy(update={"published_realtime_ns": watching.clocks.realtime_ns()}),
        watching.clocks.boottime_ns(),
        live=True,
    )
    watching.announcer.unit_events("gm-a", [UnitEvent(UnitEventKind.RESTARTED, 1, "why")])
    watching.poll(antenna="open")

    assert watching.announcer.findings() == []


def test_units_show_how_far_they_are_apart(watching: Watching) -> None:
    """A node that hears this unit and another daemon's."""
    now_ns = watching.clocks.realtime_ns()
    other = grandmaster("other", 1, 1).model_copy(update={"name": "gm-b", "identities": [GM_B]})
    heard = [heard_source(IDENTITY, name="a", offset_ns=300), heard_source(GM_B, name="b", offset_ns=100)]
    for message in (other, follower(sources=heard, published_realtime_ns=now_ns)):
        watching.announcer.hear(message, watching.clocks.boottime_ns(), live=True)
    unit = watching.announcer.grandmasters()[0]

    assert [(each.other, each.offset_ns) for each in unit.offsets] == [("gm-b", -200)]
