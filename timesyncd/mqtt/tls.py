"""TLS to the broker, from the configured files; the broker's host name is always verified."""

from __future__ import annotations

import ssl
from pathlib import Path

from timesyncd.config import MqttSettings, read_file
from timesyncd.errors import ConfigError


class _ClosingSocket(ssl.SSLSocket):
    """paho leaves the socket of a failed handshake open."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """
    The client's TLS context; None without TLS. Blocks while it reads the files.

    Raises ConfigError with the configuration key and the path for a file that it cannot read or use.
    """
    if not settings.tls:
        return None
    context = _verifying_context(settings.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _ClosingSocket
    if settings.certificate is not None and settings.key is not None:
        _load_own_certificate(context, settings.certificate, settings.key)
    return context


def _verifying_context(ca: Path | None) -> ssl.SSLContext:
    """A context that trusts the system's authorities, or `ca` alone."""
    if ca is None:
        return ssl.create_default_context()
    _require_readable("ca", ca)
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ConfigError(f"mqtt.ca = '{ca}': contains no certificate in PEM form ({error.reason})") from error


def _load_own_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _require_readable("certificate", certificate)
    _require_readable("key", key)
    try:
        # An empty pass phrase: without one OpenSSL would ask on the terminal for that of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise ConfigError(
            f"mqtt.key = '{key}': is not an unencrypted key in PEM form for "
            f"mqtt.certificate = '{certificate}' ({error.reason})"
        ) from error


def _require_readable(name: str, path: Path) -> None:
    try:
        read_file(path)
    except OSError as error:
        raise ConfigError(f"mqtt.{name} = '{path}': cannot be read: {error.strerror}") from error
