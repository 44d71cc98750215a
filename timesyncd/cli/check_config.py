"""Check the configuration and print what the daemon would run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument, load_config
from timesyncd.cli._log_output import print_error, print_lines

if TYPE_CHECKING:
    from pathlib import Path

    from timesyncd.config import ClockSource, Config, Grandmaster, MqttSettings, StoreSettings, WebSettings


EXAMPLES = (
    "timesyncd check-config",
    "timesyncd check-config --config node.toml --json",
)


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the complete configuration, defaults included")


def run(args: Namespace) -> int:
    """0, and 2 if the daemon could not start with the configuration. Raises ConfigError where there is none."""
    from timesyncd.errors import ConfigErrors

    try:
        config = load_config(args)
    except ConfigErrors as error:
        return _print_errors(error.texts)
    if errors := unusable_files(config):
        return _print_errors(errors)
    warnings = [f"{name}: {evidence}" for name, _, evidence in driver_warnings(config)] + config.warnings
    warnings += web_warnings(config)
    warnings += [
        f"{key}: every user of this machine can read {path}: chmod o-rwx" for key, path in readable_secrets(config)
    ]
    if args.json:
        print(config.model_dump_json(indent=2, serialize_as_any=True))
        return 0
    print_lines([*describe(config), *(f"warning      {warning}" for warning in warnings), f"{args.config}: valid"])
    return 0


def _print_errors(texts: Sequence[str]) -> int:
    for text in texts:
        print_error(text)
    return 2


def driver_warnings(config: Config) -> list[tuple[str, str, str]]:
    """
    The drivers' warnings about their own options: (entry, id of a finding, evidence).

    Raises ConfigError for options with which a driver cannot run.
    """
    from timesyncd.driver import AlarmSource, build_driver

    entries: list[ClockSource | Grandmaster] = [*config.source, *config.grandmaster]
    drivers = {e.name: build_driver(e.name, e.driver, e.options, config.node.runtime_dir) for e in entries}
    return [
        (name, *note)
        for name, driver in drivers.items()
        if isinstance(driver, AlarmSource)
        for note in driver.config_findings
    ]


def web_warnings(config: Config) -> list[str]:
    """Weaknesses of the page's access control, one line each."""
    from timesyncd.web.auth import access_warnings

    return [] if config.web is None else [f"web: {note}" for note in access_warnings(config.web)]


def readable_secrets(config: Config) -> list[tuple[str, Path]]:
    """(key, path) of each file with a secret or a private key that every user of this machine can read."""
    from timesyncd.config import secrets_of

    files = [(key, secret.file) for key, secret in secrets_of(config)]
    files += [("mqtt.key", config.mqtt.key)] if config.mqtt else []
    files += [("web.key", config.web.key)] if config.web else []
    return [(key, path) for key, path in files if path is not None and _is_world_readable(path)]


def _is_world_readable(path: Path) -> bool:
    """Also False where the permissions cannot be read."""
    try:
        return bool(path.stat().st_mode & 0o004) and all(
            folder.stat().st_mode & 0o001 for folder in path.absolute().parents
        )
    except OSError:
        return False


def describe(config: Config) -> list[str]:
    """What the daemon will run, one line per part. Of a secret, its origin is printed."""
    lines = [f"node         {config.node.name}, runtime folder {config.node.runtime_dir}"]
    if config.node.topology:
        lines.append(f"topology     {config.node.topology}")
    if config.node.link:
        lines.append(f"link         {config.node.link}, shared by the jobs of its nodes")
    for source in config.source:
        lines.append(f"source       {source.name}: {_driver_text(source.driver, source.options)}")
    for grandmaster in config.grandmaster:
        lines.append(f"grandmaster  {grandmaster.name}: {_driver_text(grandmaster.driver, grandmaster.options)}")
    if config.traps:
        lines.append(f"traps        {config.traps.host}:{config.traps.port}, or the socket that systemd passes")
    if config.syslog:
        lines.append(f"syslog       {config.syslog.host}:{config.syslog.port}, or the socket that systemd passes")
    if not config.source:
        lines.append("source       none: no clock of this node is monitored")
    if config.store:
        lines.append(f"store        {_store_text(config.store)}")
    if config.mqtt:
        lines.append(f"mqtt         {_mqtt_text(config.mqtt)}")
    if config.web:
        lines.append(f"web          {_web_text(config.web)}")
    if config.clockbound:
        lines.append(f"clockbound   {config.clockbound.path}")
    if config.otlp:
        lines.append(
            f"otlp         {config.otlp.endpoint} by {config.otlp.protocol}, every {config.otlp.interval_s:g} s"
        )
    for place in config.notify:
        lines.append(f"notify       {_value_text(place.url)}: {place.severity} and worse")
    if config.hub or not config.mqtt:
        lines.append(
            "hub          "
            + ("aggregates step timings of all nodes" if config.hub else "aggregates step timings of this node")
        )
    for job in config.job if config.hub or not config.mqtt else ():
        lines.append(f"job          {job.name}: policy {job.policy}")
    off = [part for part in ("store", "mqtt", "web", "clockbound") if getattr(config, part) is None]
    return lines + ([f"off          {', '.join(off)}"] if off else [])


def _store_text(store: StoreSettings) -> str:
    spans = (("samples", store.keep_days), ("minutes", store.keep_minutes_days), ("hours", store.keep_hours_days))
    kept = ", ".join(f"{what} for {days:g} days" for what, days in spans)
    password = f", password {_value_text(store.password)}" if store.password else ""
    return f"{store.url or store.path}{password}; keeps {kept}"


def _mqtt_text(mqtt: MqttSettings) -> str:
    parts = [f"{mqtt.host}:{mqtt.broker_port}{' over TLS' if mqtt.tls else ''}"]
    parts += [f"{name} {value}" for name in ("ca", "certificate", "key") if (value := getattr(mqtt, name))]
    if mqtt.username:
        parts.append(f"as {mqtt.username}")
    if mqtt.password:
        parts.append(f"password {_value_text(mqtt.password)}")
    parts.append(f"topics {mqtt.topic_prefix}/...")
    parts.append(f"history kept until {' and '.join(mqtt.hubs) or 'any hub'} stored it")
    return ", ".join(parts)


def _web_text(web: WebSettings) -> str:
    scheme, host = "https" if web.certificate else "http", f"[{web.host}]" if ":" in web.host else web.host
    parts = [f"{scheme}://{host}:{web.port}/"]
    if web.certificate:
        parts.append(f"certificate {web.certificate}, key {web.key}")
    if web.client_ca:
        parts.append(f"client certificates of {web.client_ca}: role {web.client_role}")
    parts += [f"token {token.name}: role {token.role} {_value_text(token.secret)}" for token in web.token]
    if web.is_local and not web.token and web.client_ca is None:
        parts.append("every user of this machine may read")
    return ", ".join(parts)


def _driver_text(driver: str, options: object) -> str:
    """With the options that are set, if there are any."""
    text = _options_text(options)
    return f"{driver} ({text})" if text else driver


def _options_text(options: object) -> str:
    from pydantic import BaseModel

    assert isinstance(options, BaseModel)
    values = ((name, getattr(options, name)) for name in type(options).model_fields)
    return ", ".join(f"{name} {_value_text(value)}" for name, value in values if value not in (None, False, ""))


def _value_text(value: object) -> str:
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return f"({_options_text(value)})"
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def unusable_files(config: Config) -> list[str]:
    """
    Errors of the secrets, certificates and keys that the configuration names, one line each; none is left to the first
    connection.
    """
    from timesyncd.config import secrets_of
    from timesyncd.errors import ConfigError

    errors = []
    for place, secret in secrets_of(config):
        try:
            secret.reveal()
        except ConfigError as error:
            errors.append(f"{place}: {error}")
    for read in () if errors else _readers(config):
        try:
            read()
        except ConfigError as error:
            errors.append(str(error))
    return errors


def _readers(config: Config) -> list[Callable[[], object]]:
    """The functions by which the daemon reads certificates, keys and tokens when it starts. Each raises ConfigError."""
    from timesyncd.mqtt.tls import tls_context
    from timesyncd.web import tls
    from timesyncd.web.auth import TokenSecrets

    readers: list[Callable[[], object]] = []
    if (mqtt := config.mqtt) is not None:
        readers.append(lambda: tls_context(mqtt))
    if (web := config.web) is not None:
        readers += [lambda: tls.server_context(web), lambda: TokenSecrets(web.token)]
    return readers
