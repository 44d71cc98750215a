"""`python -m timesyncd.mqtt.export`, from the tree's top, writes the published contract of MQTT into schemas/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from timesyncd.messages.events import ALARM, BEGAN, CHANGED, ENDED, NODE_SYNC, UNIT_CLASS, UNIT_GNSS, UNIT_LOCK
from timesyncd.messages.node import AlarmEventMessage, FindingMessage, Message
from timesyncd.mqtt.topics import CHANNELS, FOR_HUB, FOR_NODE, MAX_MESSAGE_BYTES, Channel

Json = dict[str, Any]

DEFAULT_PREFIX = "timesyncd/v1"
_PARAMETERS = {
    "node": "The node's name, as in its [node] section.",
    "grandmaster": "The grandmaster's name, as in the [[grandmaster]] section of the daemons that poll it.",
    "job": "The job's id: the first 16 hexadecimal digits of SHA-256 of uid/job/attempt.",
    "hub": "The name of the hub's node.",
}

#: What an event of ours carries as `data`, by the file's name.
_EVENT_DATA: dict[str, type[Message]] = {"finding": FindingMessage, "alarm_event": AlarmEventMessage}


class _Untitled(GenerateJsonSchema):
    """A field's title would only repeat its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def documents() -> dict[str, str]:
    """Every file of the contract, by name."""
    files: dict[str, Json] = {f"{channel.name}.json": _schema(channel.message) for channel in CHANNELS}
    files |= {f"{name}.json": _schema(message) for name, message in _EVENT_DATA.items()}
    files["event.json"] |= _data_of_each_type()
    files["asyncapi.json"] = asyncapi()
    return {name: json.dumps(content, indent=2) + "\n" for name, content in files.items()}


def asyncapi() -> Json:
    """The AsyncAPI 3 document of the topics; JSON, which is YAML too."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "timesyncd on MQTT",
            "version": "1.0.0",
            "description": "What timesyncd's daemons publish and receive, as seen by a daemon: send = it publishes. "
            f"`{DEFAULT_PREFIX}` is the default of `[mqtt] topic_prefix`. Integers are signed 64-bit, times are "
            "nanoseconds, null is absent; a reader ignores keys that it does not know. A message is at most "
            f"{MAX_MESSAGE_BYTES} bytes; an empty one on a retained topic says that its subject is gone.",
        },
        "servers": _servers(),
        "defaultContentType": "application/json",
        "channels": {channel.name: _channel(channel) for channel in CHANNELS},
        "operations": _operations(),
        "components": {
            "messages": {channel.name: _message(channel) for channel in CHANNELS},
            "securitySchemes": {
                "userPassword": {"type": "userPassword", "description": "`[mqtt] username` and `password`."},
                "X509": {"type": "X509", "description": "A client certificate: `[mqtt] certificate` and `key`."},
            },
        },
    }


def _servers() -> Json:
    schemes = {"mqtt": ["userPassword"], "mqtts": ["userPassword", "X509"]}
    ports = {"mqtt": 1883, "mqtts": 8883}
    return {
        protocol: {
            "host": f"broker.example:{ports[protocol]}",
            "protocol": protocol,
            "protocolVersion": "5.0",
            "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in names],
        }
        for protocol, names in schemes.items()
    }


def _data_of_each_type() -> Json:
    """What `data` is depends on the event's `type`."""
    ours = {"finding": [BEGAN, CHANGED, ENDED], "alarm_event": [ALARM]}
    cases: list[Json] = [
        {
            "if": {"properties": {"type": {"enum": types}}},
            "then": {"properties": {"data": {"$ref": f"./{name}.json"}}},
        }
        for name, types in ours.items()
    ]
    oran = [kind.type for kind in (NODE_SYNC, UNIT_LOCK, UNIT_CLASS, UNIT_GNSS)]
    cases.append({"if": {"properties": {"type": {"enum": oran}}}, "then": {"properties": {"data": _ORAN_DATA}}})
    return {"allOf": cases}


_TEXT: Json = {"type": "string", "minLength": 1}
_ORAN_DATA: Json = {
    "description": "O-RAN's form: the new state, and as a metric the bound in ns where there is one.",
    "type": "object",
    "required": ["version", "values"],
    "properties": {
        "version": {"const": "1.0"},
        "values": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["ResourceAddress", "data_type", "value_type", "value"],
                "properties": {
                    "ResourceAddress": _TEXT,
                    "data_type": {"enum": ["notification", "metric"]},
                    "value_type": {"enum": ["enumeration", "decimal64.3"]},
                    "value": _TEXT,
                },
            },
        },
    },
}


def _schema(message: type[Message]) -> Json:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | message.model_json_schema(
        schema_generator=_Untitled
    )


def _channel(channel: Channel) -> Json:
    return {
        "address": f"{DEFAULT_PREFIX}/{channel.address}",
        "description": channel.summary,
        "parameters": {channel.scope: {"description": _PARAMETERS[channel.scope]}},
        "messages": {channel.name: {"$ref": f"#/components/messages/{channel.name}"}},
    }


def _message(channel: Channel) -> Json:
    said = {"name": channel.name, "summary": channel.summary}
    if channel.content_type is not None:
        said["contentType"] = channel.content_type
    return said | {"payload": {"$ref": f"./{channel.name}.json"}}


def _operations() -> Json:
    sends = {f"send_{channel.name}": _operation(channel, "send") for channel in CHANNELS}
    wanted = [channel for channel in CHANNELS if channel in FOR_HUB or channel in FOR_NODE]
    return sends | {f"receive_{channel.name}": _operation(channel, "receive") for channel in wanted}


def _operation(channel: Channel, action: str) -> Json:
    """`retain` and expiry are the publisher's to set, so they stand with `send` alone."""
    mqtt: Json = {"qos": channel.qos, "bindingVersion": "0.2.0"}
    if action == "send":
        mqtt["retain"] = channel.retained
    if action == "send" and channel.expiry_s is not None:
        mqtt["messageExpiryInterval"] = channel.expiry_s
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "messages": [{"$ref": f"#/channels/{channel.name}/messages/{channel.name}"}],
        "bindings": {"mqtt": mqtt},
    }


def main(folder: Path) -> None:
    for name, text in documents().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path("schemas"))
