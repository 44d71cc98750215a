"""Check the configuration and print what would run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from timesyncd.commands._common import add_config_argument, load_config

if TYPE_CHECKING:
    from timesyncd.config import Config, Grandmaster, Source


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the whole configuration with its defaults")


def run(args: Namespace) -> int:
    """0, or ConfigError."""
    config = load_config(args)
    _secrets_can_be_read(config)
    notes = _notes(config)
    if args.json:
        print(config.model_dump_json(indent=2, serialize_as_any=True))
        return 0
    for line in describe(config):
        print(line)
    for name, note in notes:
        print(f"warning      {name}: {note}")
    print(f"{args.config}: good")
    return 0


def _notes(config: Config) -> list[tuple[str, str]]:
    """What the drivers find unwise in their own part. Raises ConfigError for what one cannot run with."""
    from timesyncd.driver import Reporter, build

    entries: list[Source | Grandmaster] = [*config.source, *config.grandmaster]
    drivers = {e.name: build(e.name, e.driver, e.options, config.node.runtime_dir) for e in entries}
    return [
        (name, text) for name, driver in drivers.items() if isinstance(driver, Reporter) for _, text in driver.notes
    ]


def describe(config: Config) -> list[str]:
    """What will run, a line a part. Secrets are named by where they come from."""
    lines = [f"node         {config.node.name}, runtime folder {config.node.runtime_dir}"]
    for source in config.source:
        lines.append(f"source       {source.name}: {source.driver} ({_said(source.options)})")
    for unit in config.grandmaster:
        lines.append(f"grandmaster  {unit.name}: {unit.driver} ({_said(unit.options)})")
    if config.traps:
        lines.append(f"traps        {config.traps.host}:{config.traps.port}, or as systemd passes it")
    if config.syslog:
        lines.append(f"syslog       {config.syslog.host}:{config.syslog.port}, or as systemd passes it")
    if not config.source:
        lines.append("source       none: no clock of this node is watched")
    if config.store:
        lines.append(f"store        {config.store.path}, kept for {config.store.keep_days:g} days")
    if config.mqtt:
        lines.append(f"mqtt         {config.mqtt.host}:{config.mqtt.port}, topics {config.mqtt.topic_prefix}/...")
    if config.web:
        lines.append(f"web          http://{config.web.host}:{config.web.port}/")
    if config.clockbound:
        lines.append(f"clockbound   {config.clockbound.path}")
    if config.hub or not config.mqtt:
        lines.append(
            "hub          " + ("joins the jobs of every node" if config.hub else "joins the jobs of this node")
        )
    off = [part for part in ("store", "mqtt", "web", "clockbound") if getattr(config, part) is None]
    return lines + ([f"off          {', '.join(off)}"] if off else [])


def _said(options: object) -> str:
    from pydantic import BaseModel

    assert isinstance(options, BaseModel)
    values = ((name, getattr(options, name)) for name in type(options).model_fields)
    return ", ".join(f"{name} {_value_said(value)}" for name, value in values if value not in (None, False, ""))


def _value_said(value: object) -> str:
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return f"({_said(value)})"
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _secrets_can_be_read(config: Config) -> None:
    """A missing secret is found now and not at the first connection. Raises ConfigError."""
    from timesyncd.config import secrets_of
    from timesyncd.errors import ConfigError

    for place, secret in secrets_of(config):
        try:
            secret.reveal()
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
