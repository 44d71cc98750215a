"""
MQTT discovery: retained messages from which Home Assistant, and what follows its convention, makes devices and sensors
of a daemon's topics. Pure.

A device's configuration is one JSON object at `<prefix>/device/<id>/config` (device discovery, since Home Assistant
2024.11). Its templates read the JSON that the daemon publishes anyway. `None` is what Home Assistant takes for unknown.
"""

from __future__ import annotations

import json
from typing import Any

from timesyncd.build import this_build
from timesyncd.config import Config
from timesyncd.messages.fleet import HubState
from timesyncd.messages.node import Availability, GrandmasterState, NodeState
from timesyncd.mqtt.topics import channel_of

#: The status and the bound that count: against UTC where the sources know no grandmaster.
_MAIN = (
    "{% set alone = value_json.gm and value_json.gm.reason_code == 'no_grandmaster' %}"
    "{% set status = value_json.utc_status if alone else value_json.status %}"
    "{% set bound = value_json.utc if alone else value_json.gm %}"
)

#: As of its publication. There is no bound to rely on in UNKNOWN and DISRUPTED.
_BOUND = (
    "{% if status in ('SYNCHRONIZED', 'HOLDOVER') and bound and bound.bound_ns is not none and value_json.age_ns is not none %}"
    "{{ (bound.bound_ns + bound.growth_ppb * value_json.age_ns / 1e9) | round(0, 'ceil') | int }}"
    "{% else %}None{% endif %}"
)

#: A sensor without a new state for so long is unavailable; a state comes at each `state_every_s`, of a grandmaster each 30 s.
EXPIRE_AFTER_S = 120


def discovery(config: Config) -> dict[str, bytes]:
    """The messages of this daemon by topic: its node, the fleet on a hub, the grandmasters that it polls. {}: off."""
    mqtt = config.mqtt
    if mqtt is None or mqtt.discovery_prefix is None:
        return {}
    name, prefix = config.node.name, mqtt.topic_prefix
    availability = {
        "topic": channel_of(Availability).topic(prefix, name),
        "value_template": "{{ 'online' if value_json.online else 'offline' }}",
    }
    devices: dict[str, dict[str, Any]] = {}
    if config.source:
        devices[f"timesyncd-{name}"] = {
            "name": f"timesyncd {name}",
            "state_topic": channel_of(NodeState).topic(prefix, name),
            "components": _node(),
        }
    if config.hub is not None:
        devices[f"timesyncd-hub-{name}"] = {
            "name": f"timesyncd hub {name}",
            "state_topic": channel_of(HubState).topic(prefix, name),
            "components": _hub(),
        }
    for grandmaster in config.grandmaster:
        devices[f"timesyncd-grandmaster-{grandmaster.name}"] = {
            "name": f"grandmaster {grandmaster.name}",
            "state_topic": channel_of(GrandmasterState).topic(prefix, grandmaster.name),
            "components": _grandmaster(),
        }
    return {
        f"{mqtt.discovery_prefix}/device/{id}/config": _message(id, device, availability)
        for id, device in devices.items()
    }


def _message(id: str, device: dict[str, Any], availability: dict[str, str]) -> bytes:
    origin = {"name": "timesyncd", "sw_version": this_build().version}
    components = {
        key: {"unique_id": f"{id}-{key}", "expire_after": EXPIRE_AFTER_S} | component
        for key, component in device["components"].items()
    }
    return json.dumps(
        {
            "device": {"identifiers": [id], "name": device["name"], "manufacturer": "timesyncd", **_version(origin)},
            "origin": origin,
            "availability": [availability],
            "state_topic": device["state_topic"],
            "components": components,
        }
    ).encode()


def _version(origin: dict[str, str]) -> dict[str, str]:
    return {"sw_version": origin["sw_version"]}


def _sensor(name: str, template: str, **more: object) -> dict[str, object]:
    return {"platform": "sensor", "name": name, "value_template": template, **more}


def _problem(name: str, template: str) -> dict[str, object]:
    """`template` renders ON where there is one."""
    return {"platform": "binary_sensor", "device_class": "problem", "name": name, "value_template": template}


def _node() -> dict[str, dict[str, object]]:
    options = ["SYNCHRONIZED", "HOLDOVER", "DISRUPTED", "UNKNOWN"]
    return {
        "status": _sensor("Clock status", f"{_MAIN}{{{{ status }}}}", device_class="enum", options=options),
        "bound": _sensor(
            "Bound on the clock error", f"{_MAIN}{_BOUND}", unit_of_measurement="ns", state_class="measurement"
        ),
        "grandmaster": _sensor(
            "Grandmaster", "{{ value_json.grandmaster or value_json.grandmaster_identity or 'None' }}"
        ),
        "problem": _problem("Clock problem", f"{_MAIN}{{{{ 'OFF' if status == 'SYNCHRONIZED' else 'ON' }}}}"),
    }


def _hub() -> dict[str, dict[str, object]]:
    return {
        "nodes_live": _sensor("Nodes reporting", "{{ value_json.nodes_live }}", state_class="measurement"),
        "nodes_missing": _sensor("Nodes missing", "{{ value_json.missing | length }}", state_class="measurement"),
        "problem": _problem("Nodes missing", "{{ 'ON' if value_json.missing else 'OFF' }}"),
    }


def _grandmaster() -> dict[str, dict[str, object]]:
    locked = "value_json.reachable and value_json.clock_state == 'locked'"
    return {
        "clock_state": _sensor("Clock state", "{{ value_json.clock_state if value_json.reachable else 'None' }}"),
        "problem": _problem("Grandmaster problem", f"{{{{ 'OFF' if {locked} else 'ON' }}}}"),
    }
