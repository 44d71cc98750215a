"""Check the configuration and print what would run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument, load_config

if TYPE_CHECKING:
    from pathlib import Path

    from timesyncd.config import ClockSource, Config, Grandmaster, Mqtt, StoreSettings, Web


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the whole configuration with its defaults")


def run(args: Namespace) -> int:
    """0, or ConfigError."""
    from timesyncd.errors import ConfigError

    config = load_config(args)
    for wrong in unusable(config):
        raise ConfigError(wrong)
    access_warnings = unwise(config)
    if args.json:
        print(config.model_dump_json(indent=2, serialize_as_any=True))
        return 0
    for line in describe(config):
        print(line)
    warnings = [f"{name}: {note}" for name, _, note in access_warnings] + config.notes + careless(config)
    warnings += [f"{key}: everybody on this machine can read {path}: chmod o-rwx" for key, path in exposed(config)]
    for line in warnings:
        print(f"warning      {line}")
    print(f"{args.config}: good")
    return 0


def unwise(config: Config) -> list[tuple[str, str, str]]:
    """
    What the drivers find unwise in their own part: (entry, id of a finding, evidence). Raises ConfigError for what one cannot
    run with.
    """
    from timesyncd.driver import AlarmSource, build

    entries: list[ClockSource | Grandmaster] = [*config.source, *config.grandmaster]
    drivers = {e.name: build(e.name, e.driver, e.options, config.node.runtime_dir) for e in entries}
    return [
        (name, *note) for name, driver in drivers.items() if isinstance(driver, AlarmSource) for note in driver.notes
    ]


def careless(config: Config) -> list[str]:
    """What is unwise in how the page is guarded."""
    from timesyncd.web.auth import access_warnings

    return [] if config.web is None else [f"web: {note}" for note in access_warnings(config.web)]


def exposed(config: Config) -> list[tuple[str, Path]]:
    """Files that hold a secret or a private key and that everybody on this machine can read, each by its key."""
    from timesyncd.config import secrets_of

    files = [(key, secret.file) for key, secret in secrets_of(config)]
    files += [("mqtt.key", config.mqtt.key)] if config.mqtt else []
    files += [("web.key", config.web.key)] if config.web else []
    return [(key, path) for key, path in files if path is not None and _everybody_reads(path)]


def _everybody_reads(path: Path) -> bool:
    """Also where it cannot be told, nobody is blamed."""
    try:
        return bool(path.stat().st_mode & 0o004) and all(
            folder.stat().st_mode & 0o001 for folder in path.absolute().parents
        )
    except OSError:
        return False


def describe(config: Config) -> list[str]:
    """What will run, a line a part. Secrets are named by where they come from."""
    lines = [f"node         {config.node.name}, runtime folder {config.node.runtime_dir}"]
    if config.node.topology:
        lines.append(f"topology     {config.node.topology}")
    if config.node.link:
        lines.append(f"link         {config.node.link}, shared by the jobs of its nodes")
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
        lines.append(f"store        {_store_said(config.store)}")
    if config.mqtt:
        lines.append(f"mqtt         {_mqtt_said(config.mqtt)}")
    if config.web:
        lines.append(f"web          {_web_said(config.web)}")
    if config.clockbound:
        lines.append(f"clockbound   {config.clockbound.path}")
    if config.hub or not config.mqtt:
        lines.append(
            "hub          " + ("joins the jobs of every node" if config.hub else "joins the jobs of this node")
        )
    for job in config.job if config.hub or not config.mqtt else ():
        lines.append(f"job          {job.name}: policy {job.policy}")
    off = [part for part in ("store", "mqtt", "web", "clockbound") if getattr(config, part) is None]
    return lines + ([f"off          {', '.join(off)}"] if off else [])


def _store_said(store: StoreSettings) -> str:
    spans = (("samples", store.keep_days), ("minutes", store.keep_minutes_days), ("hours", store.keep_hours_days))
    kept = ", ".join(f"{what} for {days:g} days" for what, days in spans)
    password = f", password {_value_said(store.password)}" if store.password else ""
    return f"{store.url or store.path}{password}; keeps {kept}"


def _mqtt_said(mqtt: Mqtt) -> str:
    parts = [f"{mqtt.host}:{mqtt.broker_port}{' over TLS' if mqtt.tls else ''}"]
    parts += [f"{name} {value}" for name in ("ca", "certificate", "key") if (value := getattr(mqtt, name))]
    if mqtt.username:
        parts.append(f"as {mqtt.username}")
    if mqtt.password:
        parts.append(f"password {_value_said(mqtt.password)}")
    parts.append(f"topics {mqtt.topic_prefix}/...")
    parts.append(f"history until {' and '.join(mqtt.hubs) or 'one hub, whichever,'} stored it")
    return ", ".join(parts)


def _web_said(web: Web) -> str:
    scheme, host = "https" if web.certificate else "http", f"[{web.host}]" if ":" in web.host else web.host
    parts = [f"{scheme}://{host}:{web.port}/"]
    if web.certificate:
        parts.append(f"certificate {web.certificate}, key {web.key}")
    if web.client_ca:
        parts.append(f"client certificates of {web.client_ca}: {web.client_role}")
    parts += [f"token {token.name}: {token.role} {_value_said(token.secret)}" for token in web.token]
    if web.is_local and not web.token and web.client_ca is None:
        parts.append("everybody on this machine may read")
    return ", ".join(parts)


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


def unusable(config: Config) -> list[str]:
    """What the file names and cannot be used, a line each: found now and not at the first connection."""
    from timesyncd.config import secrets_of
    from timesyncd.errors import ConfigError

    found = []
    for place, secret in secrets_of(config):
        try:
            secret.reveal()
        except ConfigError as error:
            found.append(f"{place}: {error}")
    for read in () if found else _readers(config):
        try:
            read()
        except ConfigError as error:
            found.append(str(error))
    return found


def _readers(config: Config) -> list[Callable[[], object]]:
    """How the daemon will read certificates, keys and tokens at its start. Each raises ConfigError."""
    from timesyncd.mqtt.tls import tls_context
    from timesyncd.web import tls
    from timesyncd.web.auth import TokenSecrets

    readers: list[Callable[[], object]] = []
    if (mqtt := config.mqtt) is not None:
        readers.append(lambda: tls_context(mqtt))
    if (web := config.web) is not None:
        readers += [lambda: tls.server_context(web), lambda: TokenSecrets(web.token)]
    return readers
