"""MQTT discovery: what is announced, and that the templates read the JSON that the daemon publishes."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from fake_view import RECORDED, FakeView, as_json

from timesyncd.config import Config, parse
from timesyncd.driver import options_of
from timesyncd.integrations.mqtt_discovery import discovery
from timesyncd.messages.node import Availability

BOUND = {"bound_ns": 1_000, "growth_ppb": 500, "reason": "", "reason_code": "ok"}
NO_GRANDMASTER = {"bound_ns": None, "growth_ppb": 0, "reason": "", "reason_code": "no_grandmaster"}


def config(**more: Any) -> Config:
    mqtt = {"host": "broker", "discovery_prefix": "homeassistant"} | more.pop("mqtt", {})
    source = [{"name": "ptp", "driver": "ptp4l"}]
    return parse({"node": {"name": "node-a"}, "mqtt": mqtt, "source": source} | more, options_of, "test")


def device(id: str = "timesyncd-node-a", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(discovery(config(**more))[f"homeassistant/device/{id}/config"])
    return found


def rendered(template: str, message: Any) -> str:
    """As Home Assistant does, which reads `None` as unknown."""
    return jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(template).render(value_json=message)


def node(**changes: Any) -> Any:
    return RECORDED["nodes"][0] | {"age_ns": 10**9, "gm": BOUND, "status": "SYNCHRONIZED"} | changes


def test_nothing_is_announced_unless_it_is_asked_for() -> None:
    """Without `discovery_prefix`, and without a broker."""
    assert discovery(config(mqtt={"discovery_prefix": None})) == {}
    assert discovery(parse({"node": {"name": "node-a"}}, options_of, "test")) == {}


def test_a_daemon_announces_what_it_publishes() -> None:
    """A node without a clock source has no clock to show; a hub and a grandmaster are devices of their own."""
    grandmaster = {"name": "gm-a", "driver": "timeprovider", "host": "192.0.2.1", "community": {"env": "X"}}
    hub = discovery(config(source=[], hub={}, grandmaster=[grandmaster]))

    assert list(discovery(config())) == ["homeassistant/device/timesyncd-node-a/config"]
    assert [topic.split("/")[2] for topic in hub] == ["timesyncd-hub-node-a", "timesyncd-grandmaster-gm-a"]


def test_a_device_is_whole() -> None:
    """Each sensor has an id that no other has, a name and a template; the topics are the daemon's own."""
    found = device(mqtt={"topic_prefix": "site/v1"})
    parts = found["components"].values()

    assert found["state_topic"] == "site/v1/node/node-a/state"
    assert found["availability"][0]["topic"] == "site/v1/node/node-a/availability"
    assert found["origin"]["name"] == "timesyncd"
    assert len({part["unique_id"] for part in parts}) == len(parts)
    assert all(part["platform"] in ("sensor", "binary_sensor") and part["name"] for part in parts)


def test_the_bound_is_as_of_its_publication() -> None:
    """It has grown by its age, rounded up, and is unknown where there is none to rely on."""
    template = device()["components"]["bound"]["value_template"]

    assert rendered(template, node()) == "1500"
    assert rendered(template, node(age_ns=10**9 + 1)) == "1501"
    assert rendered(template, node(status="HOLDOVER")) == "1500"
    for unknown in (
        {"status": "UNKNOWN"},
        {"status": "DISRUPTED"},
        {"gm": None},
        {"age_ns": None},
        {"gm": BOUND | {"bound_ns": None}},
    ):
        assert rendered(template, node(**unknown)) == "None"


def test_a_node_that_ntp_alone_keeps_is_judged_against_utc() -> None:
    """Its status against a grandmaster is UNKNOWN for ever, which is no problem."""
    parts = device()["components"]
    ntp = node(status="UNKNOWN", gm=NO_GRANDMASTER, utc_status="SYNCHRONIZED", utc=BOUND)

    assert {key: rendered(parts[key]["value_template"], ntp) for key in ("status", "bound", "problem")} == {
        "status": "SYNCHRONIZED",
        "bound": "1500",
        "problem": "OFF",
    }


@pytest.mark.parametrize(("status", "problem"), [("SYNCHRONIZED", "OFF"), ("HOLDOVER", "ON"), ("UNKNOWN", "ON")])
def test_a_clock_that_is_not_synchronized_is_a_problem(status: str, problem: str) -> None:
    """The binary sensor is ON where something is wrong."""
    parts = device()["components"]

    assert rendered(parts["problem"]["value_template"], node(status=status)) == problem
    assert rendered(parts["status"]["value_template"], node(status=status)) == status


def test_hub_grandmaster_and_availability_are_read() -> None:
    """The templates find their fields in the messages themselves."""
    grandmaster = {"name": "gm-a", "driver": "timeprovider", "host": "192.0.2.1", "community": {"env": "X"}}
    more = {"hub": {}, "grandmaster": [grandmaster]}
    hub, gm = device("timesyncd-hub-node-a", **more), device("timesyncd-grandmaster-gm-a", **more)
    [hub_state], [gm_state] = FakeView().hubs(), RECORDED["grandmasters"][:1]

    def values(found: dict[str, Any], message: Any) -> dict[str, str]:
        return {key: rendered(part["value_template"], message) for key, part in found["components"].items()}

    assert values(hub, as_json(hub_state)) == {"nodes_live": "2", "nodes_missing": "1", "problem": "ON"}
    assert values(gm, gm_state | {"reachable": True, "clock_state": "locked"}) == {
        "clock_state": "locked",
        "problem": "OFF",
    }
    assert values(gm, gm_state | {"reachable": False, "clock_state": "locked"}) == {
        "clock_state": "None",
        "problem": "ON",
    }
    template = hub["availability"][0]["value_template"]
    assert [rendered(template, as_json(Availability(online=online, incarnation=1))) for online in (True, False)] == [
        "online",
        "offline",
    ]
