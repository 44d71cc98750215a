"""
HTTPS: the daemon's certificate, and whose certificates are believed. A renewed file is taken without a restart.

How many connections are let in at once: each takes a file descriptor, and the daemon's other parts need some too.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from timesyncd.config import WebSettings
from timesyncd.errors import ConfigError

log = logging.getLogger(__name__)

RELOAD_INTERVAL_S = 60.0


def server_context(settings: WebSettings) -> ssl.SSLContext | None:
    """None where plain HTTP is spoken. Raises ConfigError for files that cannot be used."""
    if settings.certificate is None:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(made, settings)
    if settings.client_ca is not None:
        made.verify_mode = ssl.CERT_OPTIONAL
        try:
            made.load_verify_locations(settings.client_ca)
        except OSError as error:
            raise ConfigError(f"web.client_ca = '{settings.client_ca}': cannot be used: {error}") from error
    return made


def load_certificate(into: ssl.SSLContext, settings: WebSettings) -> None:
    """The pair is tried elsewhere first, so that a half-written one replaces nothing. Raises ConfigError."""
    assert settings.certificate is not None and settings.key is not None
    try:
        for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), into):
            each.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"web.certificate = '{settings.certificate}': cannot be used: {error}") from error


async def reload_certificate(into: ssl.SSLContext, settings: WebSettings) -> None:
    """New connections get the certificate that is in the files now."""
    files = [path for path in (settings.certificate, settings.key) if path is not None]
    seen = _file_versions(files)
    while True:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        now = _file_versions(files)
        if now == seen:
            continue
        seen = now
        try:
            load_certificate(into, settings)
            log.info("web: the certificate in %s is another one: taken", settings.certificate)
        except ConfigError as error:
            log.warning("%s; the one before is kept", error)


def _file_versions(files: list[Path]) -> list[tuple[int, int] | None]:
    return [_file_version(path) for path in files]


def _file_version(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def certificate_name(certificate: dict[str, Any]) -> str:
    """The common name of one that was verified."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else "a certificate without a common name"


MAX_CONNECTIONS = 512
HANDSHAKE_TIMEOUT_S = 10.0
#: How long a connection may be without a whole head of a request. More than proxies keep one that they may use again.
IDLE_TIMEOUT_S = 75.0
LOG_INTERVAL_S = 60.0

_TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"
)


class ConnectionLimiter:
    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._told_s = -LOG_INTERVAL_S

    async def open(self, host: str, port: int, context: ssl.SSLContext | None) -> asyncio.Server:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        within_s = HANDSHAKE_TIMEOUT_S if context else None
        return await loop.create_server(
            lambda: _PendingConnection(self), host, port, ssl=context, ssl_handshake_timeout=within_s
        )

    def let_in(self, transport: asyncio.Transport) -> None:
        """Or not."""
        if len(self._server.connections) >= MAX_CONNECTIONS:
            transport.write(_TOO_MANY_CONNECTIONS)
            transport.close()
            self._tell()
            return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)

    def _tell(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s >= LOG_INTERVAL_S:
            log.warning("web: %d connections are open: more are refused", MAX_CONNECTIONS)
            self._told_s = now_s


class _PendingConnection(asyncio.Protocol):
    """Stands for a connection until it is made, which over TLS is after the handshake."""

    def __init__(self, door: ConnectionLimiter) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._door.let_in(cast(asyncio.Transport, transport))
