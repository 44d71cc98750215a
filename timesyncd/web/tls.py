"""The HTTP server's TLS: the configured certificate, which reloads without a restart."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

from timesyncd.config import WebSettings, read_file
from timesyncd.errors import ConfigError

log = logging.getLogger(__name__)

RELOAD_INTERVAL_S = 60.0


def server_context(settings: WebSettings) -> ssl.SSLContext | None:
    """The server's TLS context; None: plain HTTP. Raises ConfigError for a file that cannot be used."""
    if settings.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, settings)
    if settings.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            read_file(settings.client_ca)  # OpenSSL would wait for ever for a FIFO's writer
            context.load_verify_locations(settings.client_ca)
        except OSError as error:
            raise ConfigError(
                f"web.client_ca = '{settings.client_ca}': cannot load it as certificates in PEM form: {error}"
            ) from error
    return context


def load_certificate(into: ssl.SSLContext, settings: WebSettings) -> None:
    """
    Loads certificate and key into the context, after a trial in another one: a half-written pair replaces nothing.
    Raises ConfigError.
    """
    assert settings.certificate is not None and settings.key is not None
    try:
        read_file(settings.certificate)
        read_file(settings.key)
        for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), into):
            each.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"web.certificate = '{settings.certificate}': cannot load it with web.key = '{settings.key}': {error}"
        ) from error


async def reload_certificate(into: ssl.SSLContext, settings: WebSettings) -> None:
    """Loads the certificate again whenever its files change, until cancelled; new connections then use it."""
    files = [path for path in (settings.certificate, settings.key) if path is not None]
    loaded = _file_versions(files)
    while True:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        current = _file_versions(files)
        if current == loaded:
            continue
        loaded = current
        try:
            load_certificate(into, settings)
            log.info("web: certificate %s changed: loaded the new one", settings.certificate)
        except ConfigError as error:
            log.warning("%s; the server keeps using the previous one", error)


def _file_versions(files: list[Path]) -> list[tuple[int, int] | None]:
    return [_file_version(path) for path in files]


def _file_version(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def certificate_name(certificate: dict[str, Any]) -> str:
    """The common name in a verified certificate."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else "a certificate without a common name"
