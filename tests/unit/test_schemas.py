"""schemas/ holds what the code says."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

import pytest

from timesyncd.messages import PUBLISHED
from timesyncd.mqtt.export import documents
from timesyncd.mqtt.topics import CHANNELS, FOR_HUB, FOR_NODE

COMMITTED = files("timesyncd.schemas")
ASYNCAPI = json.loads(COMMITTED.joinpath("asyncapi.json").read_text())


@pytest.mark.parametrize("name", sorted(documents()))
def test_committed_is_exported(name: str) -> None:
    """A file of the contract equals its export; `make schemas` makes it so."""
    assert COMMITTED.joinpath(name).read_text() == documents()[name]


def test_every_published_message_has_a_channel() -> None:
    """What messages.py calls published has exactly one kind of topic."""
    assert sorted(c.message.__name__ for c in CHANNELS) == sorted(m.__name__ for m in PUBLISHED)


def test_asyncapi_is_version_3() -> None:
    """The document says its version and title, and speaks JSON over MQTT 5."""
    server = ASYNCAPI["servers"]["broker"]

    assert ASYNCAPI["asyncapi"] == "3.0.0"
    assert set(ASYNCAPI["info"]) >= {"title", "version"}
    assert ASYNCAPI["defaultContentType"] == "application/json"
    assert (server["protocol"], server["protocolVersion"]) == ("mqtt", "5.0")


def test_every_channel_is_described() -> None:
    """Each channel's address is the topic that the code makes, with its parameter explained."""
    addresses = {name: channel["address"] for name, channel in ASYNCAPI["channels"].items()}
    parameters = {name: list(channel["parameters"]) for name, channel in ASYNCAPI["channels"].items()}

    assert addresses == {c.name: c.topic("timesyncd/v1", f"{{{c.scope}}}") for c in CHANNELS}
    assert parameters == {c.name: [c.scope] for c in CHANNELS}


def test_every_operation_says_how_it_is_sent() -> None:
    """All channels are sent with the code's QoS and retain flag, and exactly those that a daemon asks for are received."""
    sent = {n: o["bindings"]["mqtt"] for n, o in ASYNCAPI["operations"].items() if o["action"] == "send"}
    received = {n for n, o in ASYNCAPI["operations"].items() if o["action"] == "receive"}

    assert {n: (b["qos"], b["retain"]) for n, b in sent.items()} == {
        f"send_{c.name}": (c.qos, c.retained) for c in CHANNELS
    }
    assert received == {f"receive_{c.name}" for c in (*FOR_HUB, *FOR_NODE)}


def test_an_operation_names_messages_of_its_own_channel() -> None:
    """AsyncAPI 3 wants an operation's messages to be references into its channel."""
    for operation in ASYNCAPI["operations"].values():
        channel = operation["channel"]["$ref"]

        assert all(message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"])


@pytest.mark.parametrize("name", sorted(documents()))
def test_every_reference_resolves(name: str) -> None:
    """A $ref of a file, to itself or to another, finds something."""
    references = list(_references(json.loads(COMMITTED.joinpath(name).read_text())))

    assert all(isinstance(_resolved(name, reference), dict) for reference in references)


def test_the_document_refers_to_every_schema() -> None:
    """Each message's payload is its own file."""
    payloads = {n: m["payload"]["$ref"] for n, m in ASYNCAPI["components"]["messages"].items()}

    assert payloads == {channel.name: f"./{channel.name}.json" for channel in CHANNELS}


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [reference for item in node for reference in _references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [reference for item in node.values() for reference in _references(item)]


def _resolved(name: str, reference: str) -> Any:
    file, _, pointer = reference.partition("#")
    target = json.loads(COMMITTED.joinpath(PurePosixPath(file).name or name).read_text())
    for key in pointer.split("/")[1:]:
        target = target[key]
    return target
