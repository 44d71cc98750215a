"""What the web room is answered about a fleet: names without messages, one page of states, and the numbers of all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fake_clocks import FakeClocks
from grandmaster_states import GM_A, GM_B, follower, polled_grandmaster
from publisher_lab import PublisherLab

from timesyncd.clocks import NS_PER_S
from timesyncd.config import parse
from timesyncd.daemon import web_view
from timesyncd.daemon.node_state import NodeView
from timesyncd.driver import options_of
from timesyncd.fleet.node_clock import LAST_KNOWN
from timesyncd.fleet.overview import overview
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.messages.overview import Overview
from timesyncd.messages.simulation import SimulationState
from timesyncd.web.view import NodeFilter

MQTT = {"host": "broker", "password": {"env": "BROKER_PASSWORD"}}


class Hub(PublisherLab):
    """Two nodes in hall-1 are reporting, and of a third there is a retained copy."""

    def __init__(self, more: dict[str, object] | None = None) -> None:
        tables = {"node": {"name": "hub", "topology": "hall-2"}, "mqtt": MQTT, "hub": {"nodes": ["n1", "n9"]}}
        tables |= more or {}
        config, self.clocks = parse(tables, options_of, "test"), FakeClocks()
        super().__init__(config, NodeView(config, Epoch(1, 2), 1), self.clocks)
        for name, identity, live in (("n1", GM_A, True), ("n2", GM_B, True), ("n3", GM_A, False)):
            state = follower(name, identity, topology="hall-1/rack-1", published_realtime_ns=self.clocks.realtime_ns())
            self.publisher.receive(state, self.clocks.boottime_ns(), live)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (NodeFilter(), ["hub", "n1", "n2", "n3"]),
        (NodeFilter(status="SYNCHRONIZED"), ["n1", "n2"]),
        (NodeFilter(status="UNKNOWN"), ["n3"]),
        (NodeFilter(grandmaster=GM_B), ["n2"]),
        (NodeFilter(topology="hall-1"), ["n1", "n2", "n3"]),
        (NodeFilter(topology="hall-2"), ["hub"]),
        (NodeFilter(part="3"), ["n3"]),
    ],
)
def test_nodes_are_found_without_reading_their_states(hub: Hub, wanted: NodeFilter, names: list[str]) -> None:
    """
    The own one among them, by main status, grandmaster, place and a part of the name; this hub has no clock source.
    """
    assert hub.web.node_names(wanted) == names
    assert hub.web.node_count() == 3 + 1


def test_nodes_are_found_by_the_name_of_a_grandmaster_that_they_do_not_know(hub: Hub) -> None:
    """The nodes publish its clock identity alone; the hub received the state that has the name."""
    state = polled_grandmaster("gm-b", node="n9", published_realtime_ns=hub.clocks.realtime_ns())
    hub.publisher.receive(state, hub.clocks.boottime_ns(), True)

    assert hub.web.node_names(NodeFilter(grandmaster="gm-b")) == ["n2"]
    assert hub.web.node_names(NodeFilter(grandmaster=GM_B)) == ["n2"]


def test_a_page_of_states_is_as_they_have_aged(hub: Hub) -> None:
    """Those that are known, in the order that was asked for; a retained copy is last known."""
    hub.clocks.advance(6 * NS_PER_S)
    states = hub.web.nodes(["n3", "n1", "hub", "unknown"])

    assert [state.node for state in states] == ["n3", "n1", "hub"]
    assert [state.status for state in states] == ["UNKNOWN", "HOLDOVER", "UNKNOWN"]
    assert (states[0].reason_code, states[0].reason) == (LAST_KNOWN.code, LAST_KNOWN.text)
    assert states[1].age_ns == 6 * NS_PER_S


def test_a_page_of_states_marks_silent_nodes(hub: Hub) -> None:
    """As the numbers of the fleet do, long before the bound expires."""
    hub.clocks.advance(26 * NS_PER_S)
    [state] = hub.web.nodes(["n1"])

    assert (state.status, state.reason) == ("UNKNOWN", "silent for 26 s")
    assert hub.web.fleet().statuses == {"UNKNOWN": 3}


def test_the_whole_fleet_is_summarized_in_numbers(hub: Hub) -> None:
    """Summary, map and alignment count the same nodes, and none counts this hub, which has no clock source."""
    hub.publisher.tick()
    fleet, places = hub.web.fleet(), hub.web.map().places
    pair = hub.web.alignment(["n1", "n2"], None)
    everybody = hub.web.alignment(None, None)

    assert (fleet.nodes, fleet.statuses) == (3, {"UNKNOWN": 1, "SYNCHRONIZED": 2})
    assert {place: [name for name, _, _ in nodes] for place, nodes in places.items()} == {
        "hall-1/rack-1": ["n1", "n2", "n3"],
    }
    assert pair is not None and pair.alignment_ns == 2 * 5_000 and pair.pair == ["n1", "n2"]
    assert everybody is not None and everybody.alignment_ns is None
    assert hub.web.alignment(None, "0123456789abcdef") is None


def test_this_hub_is_among_the_hubs(hub: Hub) -> None:
    """With the expected nodes that it misses, and no address: it is on loopback."""
    [own] = hub.web.hubs()

    assert (own.node, own.nodes_live, own.missing, own.url) == ("hub", 2, ["n9"], None)


def test_unknown_senders_add_no_address(hub: Hub) -> None:
    """The health check does not give the store's place; the finding does."""
    well = hub.web.health()
    hub.web._parts.store_failure = "postgresql://timesyncd@db.example/history: connection refused"

    assert well is None
    assert hub.web.health() == "the store fails: the finding store-failing gives the reason"


def test_the_configuration_shows_no_secret(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it comes from, and not what it is."""
    monkeypatch.setenv("BROKER_PASSWORD", "swordfish")
    published = json.loads(hub.web.config())

    assert published["mqtt"]["password"] == {"file": None, "env": "BROKER_PASSWORD"}
    assert "swordfish" not in hub.web.config()


def test_a_scrape_has_the_hub_s_numbers(hub: Hub) -> None:
    """And none of a part that is not configured."""
    hub.publisher.tick()
    lines = hub.web.metrics().decode().splitlines()

    assert 'timesyncd_fleet_nodes{hub="hub",status="SYNCHRONIZED"} 2.0' in lines
    assert 'timesyncd_fleet_nodes_missing{hub="hub"} 1.0' in lines
    assert not [line for line in lines if line.startswith("timesyncd_store_rows_total")]


@pytest.mark.parametrize(("took_ms", "lasts_ms"), [(0, 0), (1, 10), (60, 600), (300, 1_000)])
def test_an_overview_lasts_by_what_it_costs(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, took_ms: int, lasts_ms: int
) -> None:
    """So that one of a few nodes is of the same moment as their own numbers, and one of 10,000 takes a tenth of a core at most."""

    def slow(*arguments: Any) -> Overview:
        hub.clocks.advance(took_ms * 1_000_000)
        return overview(*arguments)

    monkeypatch.setattr(web_view, "overview", slow)
    began_ns, first = hub.clocks.boottime_ns(), hub.web.overview()
    hub.clocks.advance(max(0, began_ns + lasts_ms * 1_000_000 - 1 - hub.clocks.boottime_ns()))
    assert lasts_ms <= took_ms or hub.web.overview() is first
    hub.clocks.advance(1)
    assert hub.web.overview() is not first


def test_a_simulators_truth_stands_beside_the_bounds_of_one_moment(tmp_path: Path) -> None:
    """The overview has it once the simulator has written its file, and says nothing of a file that it cannot read."""
    state = tmp_path / "simulation.json"
    hub = Hub({"simulation": {"state": str(state)}})

    def simulation() -> SimulationState | None:
        hub.clocks.advance(2 * NS_PER_S)
        return hub.web.overview().simulation

    assert simulation() is None
    now_ns = hub.clocks.realtime_ns()
    stated = {"realtime_ns": now_ns, "offset_ns": -5, "rate_ppb": 0}
    state.write_text(json.dumps({"simulated": "all", "story": "calm", "offsets": {"n1": stated, "n3": stated}}))
    found = simulation()
    assert found is not None and found.story == "calm"
    (known, silent) = found.true_offsets
    bounds = {name: bound_ns for place in hub.web.map().places.values() for name, _, bound_ns in place}
    assert (known.node, known.offset_ns, known.bound_ns, known.is_inside) == ("n1", -5, bounds["n1"], True)
    assert (silent.node, silent.bound_ns, silent.is_inside) == ("n3", None, None)
    stated |= {"offset_ns": 2**63 - 1, "rate_ppb": 2**63 - 1, "realtime_ns": 0}
    state.write_text(json.dumps({"simulated": "all", "story": "calm", "offsets": {"n1": stated}}))
    assert simulation() is None
    state.write_text("{")
    assert simulation() is None
    os.truncate(state, 1 << 40)
    assert simulation() is None
    state.unlink()
    os.mkfifo(state)
    assert simulation() is None


def test_without_a_simulation_nothing_is_claimed_to_be_simulated(hub: Hub) -> None:
    """As in every fleet that is real."""
    assert hub.web.overview().simulation is None
