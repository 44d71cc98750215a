"""
Writes docs/reference/ from the code: commands, configuration keys, metrics, messages and findings. A test fails when they differ.

    python docs/tools/reference.py        (a part of `make schemas`)
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from timesyncd.__main__ import GROUPS, parser
from timesyncd.cli.schemas import documents
from timesyncd.config import TOPIC_PREFIX, Config
from timesyncd.driver import installed_drivers, load_driver
from timesyncd.findings.catalogue import CATALOGUE
from timesyncd.metrics.exposition import Metrics
from timesyncd.mqtt.topics import CHANNELS, HUB_SUBSCRIPTIONS, NODE_SUBSCRIPTIONS, MqttChannel
from timesyncd.training.policy.constants import CONSTANTS

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "docs" / "reference"

WRITTEN = "<!-- Written by `make schemas` from the code; a test fails when they differ. -->\n\n"


def reference_pages() -> dict[str, str]:
    """The text of each generated page, by its name in docs/reference/."""
    return {
        "commands.md": WRITTEN + _commands(),
        "keys.md": WRITTEN + _keys(),
        "metrics.md": WRITTEN + _metrics(),
        "messages.md": WRITTEN + _messages(),
        "findings.md": WRITTEN + _findings(),
        "auto.md": WRITTEN + _auto(),
    }


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _commands() -> str:
    text = (
        "# Commands\n\nThis page is for you if you type `timesyncd` or call it from a script, and want every command with its options.\n"
        "`timesyncd COMMAND --help` prints the same.\n"
        "[Operations](../operations.md#exit-status) states the exit status of each.\n\n"
    )
    commands: dict[str, Any] = parser()._commands.choices
    for title, names in GROUPS.items():
        text += f"## {title}\n\n"
        for name in names:
            text += f"### `timesyncd {name}`\n\n" + _command(commands[name])
    return text


def _command(command: argparse.ArgumentParser) -> str:
    text = "\n".join(re.split(r"(?<=[.!?])\s+(?=[A-Z`])", _one_line(command.description or ""))) + "\n\n"
    actions = [
        each
        for each in command._actions
        if not isinstance(each, argparse._HelpAction) and each.help != argparse.SUPPRESS
    ]
    if actions:
        text += _table(("argument", "meaning"), ((f"`{_spelling(each)}`", _meaning(each)) for each in actions))
    examples = (command.epilog or "").removeprefix("examples:\n")
    return text + "```sh\n" + "".join(f"{line.strip()}\n" for line in examples.splitlines()) + "```\n\n"


def _spelling(action: argparse.Action) -> str:
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    name = " ".join(value) if isinstance(value, tuple) else str(value)
    if not action.option_strings:
        return f"{name} ..." if action.nargs in ("*", "+", argparse.REMAINDER) else name
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {name}")


def _meaning(action: argparse.Action) -> str:
    help_text = _one_line(action.help or "").replace("%%", "%")
    return help_text.replace("%(default)s", str(action.default)).replace("%(prog)s", "timesyncd")


def _keys() -> str:
    text = (
        "# Keys of the configuration\n\n"
        "This page is for you if you write `timesyncd.toml` by a program, or look for the type of a key.\n"
        "[Configuration](../configuration.md) states what each key means, with whole files as examples.\n\n"
    )
    for section, model in _sections(Config, ""):
        rows = [row for row in _rows(model) if row]
        text += f"## `{section}`\n\n" + _table(("key", "type", "default"), iter(rows)) if rows else ""
    for name in sorted(installed_drivers()):
        rows = list(_rows(load_driver(name).Options))
        text += f"## Driver `{name}`\n\n" + _table(("key", "type", "default"), iter(rows)) if rows else ""
    return text


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for key, field in model.model_fields.items():
        inner = _inner(field)
        if inner is None or key == "options":
            continue
        name = f"{path}.{key}" if path else key
        yield (f"[[{name}]]" if getattr(field.annotation, "__origin__", None) is list else f"[{name}]"), inner
        yield from _sections(inner, name)


def _inner(field: FieldInfo) -> type[BaseModel] | None:
    annotations = (field.annotation, *getattr(field.annotation, "__args__", ()))
    return next((each for each in annotations if isinstance(each, type) and issubclass(each, BaseModel)), None)


def _rows(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    schema = model.model_json_schema()
    for key, field in model.model_fields.items():
        if _inner(field) is None and key != "options":
            yield f"`{key}`", _type(schema["properties"].get(field.alias or key, {}), schema), _default(field)


def _type(schema: dict[str, Any], whole: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _type(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in schema:
        return ", or ".join(_type(each, whole) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), whole).replace('list of', 'lists of')}"
    limits = [f"{sign} {schema[key]}" for key, sign in _LIMITS.items() if key in schema and abs(schema[key]) < 2**53]
    return " ".join([schema.get("type", "any"), " and ".join(limits)]).strip()


_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if field.default_factory is not None and isinstance(value, str):
        return "set at the start"  # the host's name
    return "unset" if value is None else f"`{json.dumps(value, default=str)}`"


def _metrics() -> str:
    sys.path.insert(0, str(PROJECT / "tests" / "support"))
    from fake_clocks import FakeClocks
    from snapshots import EVERYTHING, NOW_NS

    text = (
        "# Metrics\n\n"
        "This page is for you if you write a query or an alert rule on what a daemon exports at `/metrics`.\n"
        "[Monitoring](../monitoring.md) states how to scrape it, and has alert rules and a dashboard.\n"
        "Values are in base units: seconds, bytes, ratios.\n\n"
    )
    exposition = Metrics(lambda: EVERYTHING, FakeClocks(real_ns=NOW_NS)).render().decode()
    families = [each for each in text_string_to_metric_families(exposition) if each.name.startswith("timesyncd_")]
    rows = (
        (
            f"`{each.name}{'_total' if each.type == 'counter' else ''}`",
            each.type,
            ", ".join(
                f"`{label}`" for label in sorted({label for one in each.samples for label in one.labels} - {"le"})
            ),
            _one_line(each.documentation),
        )
        for each in families
    )
    return text + _table(("metric", "type", "labels", "meaning"), rows)


def _messages() -> str:
    text = (
        "# Messages\n\n"
        "This page is for you if your program reads what timesyncd publishes on MQTT.\n"
        "[Signals on MQTT](../signals-mqtt.md) states order, retention and security; `schemas/asyncapi.json` is the same for a program.\n"
        "Integers are signed 64-bit, times are nanoseconds, and `null` is absent.\n"
        "A reader ignores keys that it does not know.\n\n"
    )
    schemas = documents()
    for channel in CHANNELS:
        text += f"## {channel.name}\n\n{_sentence(channel.summary)}\n\n" + _channel(channel)
        text += _fields(json.loads(schemas[f"{channel.name}.json"]))
    return text


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _channel(channel: MqttChannel) -> str:
    readers = [
        name for name, all_of in (("hubs", HUB_SUBSCRIPTIONS), ("nodes", NODE_SUBSCRIPTIONS)) if channel in all_of
    ]
    expiry = "never" if channel.expiry_s is None else f"{channel.expiry_s} s"
    row = (
        f"`{TOPIC_PREFIX}/{channel.address}`", str(channel.qos), "yes" if channel.retained else "no", expiry,
        " and ".join(readers) or "none", f"`schemas/{channel.name}.json`",
    )  # fmt: skip
    return _table(("topic", "QoS", "retained", "expires", "daemons that subscribe", "schema"), iter([row]))


def _fields(schema: dict[str, Any]) -> str:
    rows = (
        (f"`{name}`", _type(field, schema), "yes" if name in schema.get("required", []) else "no")
        for name, field in schema.get("properties", {}).items()
    )
    return _table(("field", "type", "required"), rows)


def _findings() -> str:
    text = (
        "# Findings\n\n"
        "This page is for you if you are on call and a finding is active: what it means, and what to do first.\n"
        "Each id leads to its entry in [the run-book](../operations.md#findings), which states the evidence and the details.\n\n"
    )
    rows = (
        (f"[`{name}`](../operations.md#{name})", kind.severity, kind.cause, kind.remedy)
        for name, kind in sorted(CATALOGUE.items())
    )
    return text + _table(("finding", "severity", "cause", "remedy"), rows)


def _auto() -> str:
    text = (
        "# The constants of `auto`\n\n"
        "This page is for you if you ask why the policy `auto` chose what it did, or would fit it to other tasks.\n"
        "You find each constant with its value, its unit and its source; [Policies](../policies.md#auto) states how they act together.\n\n"
    )
    rows = ((f"`{each.name}`", f"{each.value:g} {each.unit}".strip(), each.meaning, each.source) for each in CONSTANTS)
    return text + _table(("constant", "value", "meaning", "source"), rows)


def badges(pyproject: str) -> dict[str, str]:
    """The badges of README, by their names in docs/pictures/: what pyproject.toml states, and nothing that a server would."""
    project = tomllib.loads(pyproject)["project"]
    python = f"{project['requires-python'].removeprefix('>=')} or later"
    dependencies = str(len(project["dependencies"]) or "no dependencies")
    return {
        "badge-license.svg": _badge("License", project["license"]),
        "badge-python.svg": _badge("Python", python),
        "badge-client.svg": _badge("Client", dependencies),
    }


def layers_picture(pyproject: str) -> str:
    """The packages by layer, as import-linter enforces them, the highest first."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each["type"] == "layers"]
    rows = [re.split(r"\s*[|:]\s*", layer) for layer in layers if layer != "__main__"]
    height = 44 * len(rows) + 52
    label = "The layers, and the packages in each"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" role="img" aria-label="{label}">',
        "<style>text { font-family: sans-serif; font-size: 13px }</style>",
        f'  <rect width="760" height="{height}" rx="8" fill="#ffffff"/>',
        '  <text x="14" y="24" font-size="14" font-weight="bold" fill="#222">Imports go down only</text>',
    ]
    for at, names in enumerate(rows):
        top, width = 40 + 44 * at, min(690 // len(names), 230)
        lines.append(f'  <text x="14" y="{top + 23}" fill="#555">{len(rows) - at}</text>')
        for place, name in enumerate(names):
            left = 40 + place * width
            lines.append(
                f'  <rect x="{left}" y="{top}" width="{width - 8}" height="34" rx="6" fill="#e0f2f1" stroke="#00796b"/>'
            )
            lines.append(
                f'  <text x="{left + (width - 8) // 2}" y="{top + 22}" text-anchor="middle" fill="#222">{name}</text>'
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


def pictures(pyproject: str) -> dict[str, str]:
    """The generated pictures, by their names in docs/pictures/."""
    return badges(pyproject) | {"layers.svg": layers_picture(pyproject)}


def _badge(label: str, value: str) -> str:
    left, right = 8 * len(label) + 12, 7 * len(value) + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{label}: {value}">\n'
        f'  <rect width="{left}" height="20" fill="#555"/>\n'
        f'  <rect x="{left}" width="{right}" height="20" fill="#00796b"/>\n'
        '  <g fill="#fff" font-family="sans-serif" font-size="12">\n'
        f'    <text x="6" y="14">{label}</text>\n'
        f'    <text x="{left + 6}" y="14">{value}</text>\n'
        "  </g>\n</svg>\n"
    )


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, text in reference_pages().items():
        (FOLDER / name).write_text(text)
    for name, text in pictures((PROJECT / "pyproject.toml").read_text()).items():
        (PROJECT / "docs" / "pictures" / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
