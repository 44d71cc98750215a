"""What the doctor sees of store, broker and certificates, which may be on other machines."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from cryptography import x509

from timesyncd.cli.doctor._doctor_facts import BrokerFacts, CertificateFacts, StoreFacts, Unseen
from timesyncd.clocks import NS_PER_S
from timesyncd.config import Config
from timesyncd.errors import ConfigError, StoreError
from timesyncd.sections import Mqtt
from timesyncd.store.history import samples, sources
from timesyncd.store.place import Place

BROKER_S = 5.0


def store_facts(config: Config | None, runs: bool) -> StoreFacts | Unseen:
    if config is None:
        return Unseen("the configuration cannot be used")
    if config.store is None:
        return Unseen("no [store]: no history is kept")
    if config.store.url is None and not runs and not config.store.path.exists():
        return Unseen(f"{config.store.path}: the daemon makes it, and none runs")
    free_bytes = None if config.store.url else _free_bytes(config.store.path)
    try:
        place = Place.of(config.store)
        configured = {source.name for source in config.source} | {unit.name for unit in config.grandmaster}
        known = [name for name in sources(place) if name in configured]
        newest = {name: at_ns for name in known if (at_ns := _newest(place, name)) is not None}
    except (ConfigError, StoreError) as error:
        return StoreFacts(config.store.url or str(config.store.path), str(error), {}, free_bytes)
    return StoreFacts(str(place), None, newest, free_bytes)


def _newest(place: Place, source: str) -> int | None:
    return max((record["realtime_ns"] for record in samples(place, source, 0, time.time_ns(), limit=1)), default=None)


def _free_bytes(path: Path) -> int | None:
    """Of the disk that the file is on, or will be; for those who are not root."""
    folder = next((folder for folder in path.absolute().parents if folder.exists()), Path("/"))
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


async def broker_facts(config: Config | None, node: str) -> BrokerFacts | Unseen:
    """The connection, then CONNECT with the configured credentials, as a client of its own: the daemon's stays."""
    if config is None:
        return Unseen("the configuration cannot be used")
    if config.mqtt is None:
        return Unseen("no [mqtt]")
    where = f"{config.mqtt.host}:{config.mqtt.broker_port}"
    try:
        async with asyncio.timeout(BROKER_S):
            _, writer = await asyncio.open_connection(config.mqtt.host, config.mqtt.broker_port)
            writer.close()
    except TimeoutError:
        return BrokerFacts(where, unreachable=f"no answer within {BROKER_S:g} s")
    except OSError as error:
        known = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
        return BrokerFacts(where, unreachable=known or str(error))
    return BrokerFacts(where, refused=await _refusal(config.mqtt, node))


async def _refusal(settings: Mqtt, node: str) -> str | None:
    import aiomqtt

    from timesyncd.mqtt.tls import tls_context

    try:
        client = aiomqtt.Client(
            settings.host,
            settings.broker_port,
            username=settings.username,
            password=settings.password.reveal().get_secret_value() if settings.password else None,
            identifier=f"timesyncd-{node}-doctor",
            protocol=aiomqtt.ProtocolVersion.V5,
            tls_context=tls_context(settings),
            timeout=BROKER_S,
        )
        async with client:
            return None
    except (aiomqtt.MqttError, ConfigError) as error:
        return str(error.__cause__ or error)


def certificate_facts(config: Config | None) -> tuple[CertificateFacts, ...]:
    """Those that can be read; the others make the configuration unusable."""
    return () if config is None else tuple(_certificates(config))


def _certificates(config: Config) -> Iterator[CertificateFacts]:
    for section, names in (("mqtt", ("ca", "certificate")), ("web", ("certificate", "client_ca"))):
        for name in names:
            path = getattr(getattr(config, section), name, None)
            if path is None:
                continue
            try:
                found = x509.load_pem_x509_certificates(path.read_bytes())
            except (OSError, ValueError):
                continue
            first, last = (min, max) if name.endswith("ca") else (max, min)
            begins = first(certificate.not_valid_before_utc for certificate in found)
            ends = last(certificate.not_valid_after_utc for certificate in found)
            yield CertificateFacts(f"{section}.{name}", path, _unix_ns(begins), _unix_ns(ends))


def _unix_ns(at: datetime) -> int:
    return int(at.timestamp()) * NS_PER_S
