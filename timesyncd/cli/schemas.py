"""
`python -m timesyncd.cli.schemas`, run by `make schemas` from the top of the tree, writes what timesyncd publishes about
itself.

It writes the JSON Schema of every message and the AsyncAPI document of MQTT, the OpenAPI document of HTTP and the JSON
Schema of each report.json of an audit into schemas/, and the tables of the firmware profiles into docs/grandmasters.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from timesyncd.audit.blame import BlameReport
from timesyncd.audit.report import AuditReport, JobAdvice
from timesyncd.config import TOPIC_PREFIX
from timesyncd.drivers.timeprovider._profiles import SHIPPED, load, proven_table
from timesyncd.messages.events import (
    ALARM,
    BEGAN,
    CHANGED,
    ENDED,
    GRANDMASTER_CLASS,
    GRANDMASTER_GNSS,
    GRANDMASTER_LOCK,
    NODE_SYNC,
)
from timesyncd.messages.node import AlarmEventMessage, FindingMessage, Message
from timesyncd.mqtt.topics import CHANNELS, HUB_SUBSCRIPTIONS, MAX_MESSAGE_BYTES, NODE_SUBSCRIPTIONS, MqttChannel
from timesyncd.web import openapi
from timesyncd.web.app import ROUTES

Json = dict[str, Any]

_DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_PARAMETERS = {
    "node": "The node's name, as in its [node] section.",
    "grandmaster": "The grandmaster's name, as in the [[grandmaster]] section of the daemons that poll it.",
    "job": "The job's id: the first 16 hexadecimal digits of SHA-256 of uid/job/attempt.",
    "hub": "The name of the hub's node.",
    "part": "The first two digits of the id of the marks' job.",
}

#: The model of an event's `data`, by the name of its schema file.
_EVENT_DATA: dict[str, type[Message]] = {"finding": FindingMessage, "alarm_event": AlarmEventMessage}

_TABLES_START = (
    "<!-- Written by `make schemas` from drivers/timeprovider/profiles/; a test fails when they differ. -->\n"
)
_TABLES_END = "<!-- End of what `make schemas` writes. -->\n"


class _Untitled(GenerateJsonSchema):
    """Omits the titles of fields, which only repeat the fields' names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class _AllRequired(_Untitled):
    """Also requires every field: a report contains all of them."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True


def documents() -> dict[str, str]:
    """The content of each generated file of schemas/, by the file's name."""
    generated = {name: _json_text(content) for name, content in _mqtt_documents().items()}
    generated["audit_report.json"] = _json_text(_report(AuditReport))
    generated["job_advice.json"] = _json_text(_report(JobAdvice))
    generated["blame_report.json"] = _json_text(_report(BlameReport))
    return generated | {"openapi.json": openapi.text(ROUTES)}


def _json_text(content: Json) -> str:
    return json.dumps(content, indent=2) + "\n"


def _report(model: type[Message]) -> Json:
    return _DRAFT | model.model_json_schema(schema_generator=_AllRequired, mode="serialization")


def _mqtt_documents() -> dict[str, Json]:
    files: dict[str, Json] = {f"{channel.name}.json": _schema(channel.message) for channel in CHANNELS}
    files |= {f"{name}.json": _schema(message) for name, message in _EVENT_DATA.items()}
    files["event.json"] |= _data_of_each_type()
    files["asyncapi.json"] = asyncapi()
    return files


def asyncapi() -> Json:
    """The AsyncAPI 3 document of the topics, as JSON, which is also valid YAML."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "timesyncd on MQTT",
            "version": "1.0.0",
            "description": "What timesyncd's daemons publish and receive, as seen by a daemon: send = it publishes. "
            f"`{TOPIC_PREFIX}` is the default of `[mqtt] topic_prefix`. Integers are signed 64-bit, times are "
            "nanoseconds, null is absent; a reader ignores keys that it does not know. A message is at most "
            f"{MAX_MESSAGE_BYTES} bytes; an empty message on a retained topic means that its subject no longer exists.",
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
    """The schema of an event's `data` depends on the event's `type`."""
    ours = {"finding": [BEGAN, CHANGED, ENDED], "alarm_event": [ALARM]}
    cases: list[Json] = [
        {
            "if": {"properties": {"type": {"enum": types}}},
            "then": {"properties": {"data": {"$ref": f"./{name}.json"}}},
        }
        for name, types in ours.items()
    ]
    oran = [kind.type for kind in (NODE_SYNC, GRANDMASTER_LOCK, GRANDMASTER_CLASS, GRANDMASTER_GNSS)]
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
    return _DRAFT | message.model_json_schema(schema_generator=_Untitled)


def _channel(channel: MqttChannel) -> Json:
    return {
        "address": f"{TOPIC_PREFIX}/{channel.address}",
        "description": channel.summary,
        "parameters": {name: {"description": _PARAMETERS[name]} for name in _parameters(channel)},
        "messages": {channel.name: {"$ref": f"#/components/messages/{channel.name}"}},
    }


def _parameters(channel: MqttChannel) -> list[str]:
    return [channel.scope, "part"] if channel.has_parts else [channel.scope]


def _message(channel: MqttChannel) -> Json:
    described = {"name": channel.name, "summary": channel.summary}
    if channel.content_type is not None:
        described["contentType"] = channel.content_type
    return described | {"payload": {"$ref": f"./{channel.name}.json"}}


def _operations() -> Json:
    sends = {f"send_{channel.name}": _operation(channel, "send") for channel in CHANNELS}
    subscribed = [channel for channel in CHANNELS if channel in HUB_SUBSCRIPTIONS or channel in NODE_SUBSCRIPTIONS]
    return sends | {f"receive_{channel.name}": _operation(channel, "receive") for channel in subscribed}


def _operation(channel: MqttChannel, action: str) -> Json:
    """Only a publisher sets `retain` and the expiry, so only a `send` operation has them."""
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


def with_profile_tables(page: str) -> str:
    """docs/grandmasters.md with its tables of the firmware profiles regenerated."""
    before, _, rest = page.partition(_TABLES_START)
    tables = "\n".join(map(_profile_table, SHIPPED))
    return f"{before}{_TABLES_START}\n{tables}\n{_TABLES_END}{rest.partition(_TABLES_END)[2]}"


def _profile_table(name: str) -> str:
    rows = [f"| `{row.what}` | {row.oid or '-'} | {row.confidence} | {row.source} |" for row in proven_table([name])]
    table = ["", "| field | object | confidence | source |", "| --- | --- | --- | --- |", *rows] if rows else []
    text = "\n".join([f"### Profile `{name}`", "", f"{load(name).title}.", *table, ""])
    return text.replace("<", "&lt;")


def main(root: Path) -> None:
    for name, text in documents().items():
        (root / "schemas" / name).write_text(text)
    page = root / "docs" / "grandmasters.md"
    page.write_text(with_profile_tables(page.read_text()))


if __name__ == "__main__":
    main(Path())
