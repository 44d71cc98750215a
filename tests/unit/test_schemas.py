"""schemas/ holds what the code defines."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

import pytest
from exported import exported
from jsonschema_rs import Draft202012Validator
from wire import alarm_event, finding, grandmaster, history, hub_state, marks, node_state, policy_request, stored

from timesyncd.cli.schemas import documents
from timesyncd.config import TOPIC_PREFIX
from timesyncd.messages.events import CloudEvents, StateChanges
from timesyncd.messages.node import Message, SourceState
from timesyncd.mqtt.topics import CHANNELS, HUB_SUBSCRIPTIONS, NODE_SUBSCRIPTIONS, channel_of, encode

COMMITTED = files("timesyncd.schemas")
ASYNCAPI = json.loads(COMMITTED.joinpath("asyncapi.json").read_text())
SERVERS = ASYNCAPI["servers"]


@pytest.mark.parametrize("name", sorted(documents()))
def test_committed_is_exported(name: str) -> None:
    """Each file of schemas/ equals what `make schemas` would write now."""
    assert exported(COMMITTED.joinpath(name).read_text()) == exported(documents()[name])


def test_every_message_has_one_channel() -> None:
    """By its type a message finds its kind of topic."""
    assert len({channel.message for channel in CHANNELS}) == len(CHANNELS)


def test_asyncapi_is_version_3() -> None:
    """The document states its version and title, and declares JSON over MQTT 5, plain and over TLS."""
    servers = ASYNCAPI["servers"]

    assert ASYNCAPI["asyncapi"] == "3.0.0"
    assert set(ASYNCAPI["info"]) >= {"title", "version"}
    assert ASYNCAPI["defaultContentType"] == "application/json"
    assert {(s["protocol"], s["protocolVersion"]) for s in servers.values()} == {("mqtt", "5.0"), ("mqtts", "5.0")}


def test_a_server_declares_its_access_control() -> None:
    """By a password everywhere, by a client certificate over TLS; each scheme is one that AsyncAPI 3 knows."""
    security = {n: [_resolved("asyncapi.json", s["$ref"]) for s in x["security"]] for n, x in SERVERS.items()}

    assert {name: [scheme["type"] for scheme in schemes] for name, schemes in security.items()} == {
        "mqtt": ["userPassword"],
        "mqtts": ["userPassword", "X509"],
    }


#: The fixed fields of AsyncAPI 3.0.0's objects that the document uses, the required ones first; of the MQTT binding those of 0.2.0.
FIELDS = {
    "root": (("asyncapi", "info"), ("id", "servers", "defaultContentType", "channels", "operations", "components")),
    "info": (("title", "version"), ("description", "termsOfService", "contact", "license", "tags", "externalDocs")),
    "server": (("host", "protocol"), ("protocolVersion", "pathname", "description", "title", "summary", "variables",
               "security", "tags", "externalDocs", "bindings")),
    "channel": ((), ("address", "messages", "title", "summary", "description", "servers", "parameters", "tags",
                "externalDocs", "bindings")),
    "parameter": ((), ("enum", "default", "description", "examples", "location")),
    "operation": (("action", "channel"), ("title", "summary", "description", "security", "tags", "externalDocs",
                  "bindings", "traits", "messages", "reply")),
    "binding": ((), ("qos", "retain", "messageExpiryInterval", "bindingVersion")),
    "message": ((), ("headers", "payload", "correlationId", "contentType", "name", "title", "summary", "description",
                "tags", "externalDocs", "bindings", "examples", "traits")),
    "scheme": (("type",), ("description", "name", "in", "scheme", "bearerFormat", "flows", "openIdConnectUrl", "scopes")),
    "components": ((), ("schemas", "servers", "channels", "operations", "messages", "securitySchemes", "parameters")),
}  # fmt: skip


def _objects() -> list[tuple[str, dict[str, Any]]]:
    components, channels = ASYNCAPI["components"], ASYNCAPI["channels"].values()
    operations = ASYNCAPI["operations"].values()
    return [
        ("root", ASYNCAPI),
        ("info", ASYNCAPI["info"]),
        ("components", components),
        *(("server", each) for each in SERVERS.values()),
        *(("channel", each) for each in channels),
        *(("parameter", each) for channel in channels for each in channel["parameters"].values()),
        *(("operation", each) for each in operations),
        *(("binding", each["bindings"]["mqtt"]) for each in operations),
        *(("message", each) for each in components["messages"].values()),
        *(("scheme", each) for each in components["securitySchemes"].values()),
    ]


def test_every_object_has_the_fields_that_asyncapi_gives_it() -> None:
    """What the specification requires is there, and nothing is there that it does not know."""
    wrong = [
        (kind, sorted(set(FIELDS[kind][0]) - set(found)), sorted(set(found) - set(FIELDS[kind][0] + FIELDS[kind][1])))
        for kind, found in _objects()
        if not set(FIELDS[kind][0]) <= set(found) <= set(FIELDS[kind][0] + FIELDS[kind][1])
    ]

    assert wrong == []


def test_every_channel_is_described() -> None:
    """Each channel's address is the topic that the code makes, with its parameter explained."""
    addresses = {name: channel["address"] for name, channel in ASYNCAPI["channels"].items()}
    parameters = {name: list(channel["parameters"]) for name, channel in ASYNCAPI["channels"].items()}

    assert addresses == {c.name: c.topic(TOPIC_PREFIX, f"{{{c.scope}}}", "{part}") for c in CHANNELS}
    assert parameters == {c.name: [c.scope, "part"] if c.has_parts else [c.scope] for c in CHANNELS}


def test_every_operation_states_how_it_is_sent() -> None:
    """All channels are sent with the code's QoS, retain flag and expiry, and exactly those that a daemon asks for are received."""
    sent = {n: o["bindings"]["mqtt"] for n, o in ASYNCAPI["operations"].items() if o["action"] == "send"}
    received = {n for n, o in ASYNCAPI["operations"].items() if o["action"] == "receive"}

    assert {n: (b["qos"], b["retain"], b.get("messageExpiryInterval")) for n, b in sent.items()} == {
        f"send_{c.name}": (c.qos, c.retained, c.expiry_s) for c in CHANNELS
    }
    assert received == {f"receive_{c.name}" for c in (*HUB_SUBSCRIPTIONS, *NODE_SUBSCRIPTIONS)}


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


def _events() -> list[Message]:
    events = CloudEvents("n1", 7)
    changes = StateChanges(events)
    node = node_state().model_copy(update={"sources": [SourceState(name="s", driver="ptp4l", reachable=True)]})
    polled = grandmaster("n1", 1, 1).model_copy(
        update={"clock_state": "locked", "clock_class": 6, "gnss_state": "locked"}
    )
    published = [events.finding(finding(), 1), events.alarm(alarm_event())]
    return [*published, *changes.of_node(node), *changes.of_grandmaster(polled)]


@pytest.mark.parametrize(
    "message",
    [node_state(), marks(1), grandmaster("n1", 1, 1), history(), stored(), hub_state(), policy_request(), *_events()],
    ids=lambda message: getattr(message, "type", type(message).__name__),
)
def test_a_message_fits_its_schema(message: Message) -> None:
    """A reader that knows the schemas alone understands what goes out, the data of every type of event too."""
    channel = channel_of(type(message))

    errors = _validator(f"{channel.name}.json").iter_errors(json.loads(encode(message)))

    assert [error.message for error in errors] == []


def test_the_data_of_an_event_is_checked_by_its_type() -> None:
    """A finding whose data is no finding does not fit the schema."""
    event = _events()[0].model_copy(update={"data": {}})

    assert not _validator("event.json").is_valid(json.loads(encode(event)))


def _validator(name: str) -> Draft202012Validator:
    """Of a schema of the contract, whose references to others are found beside it."""

    def beside(uri: str) -> Any:
        return json.loads(COMMITTED.joinpath(PurePosixPath(uri).name).read_text())

    return Draft202012Validator(beside(name), retriever=beside)


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
