"""TLS to the broker, from the files that the configuration names; the broker's name is always verified."""

from __future__ import annotations

import ssl
from pathlib import Path

from timesyncd.config import MqttSettings
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
    None without TLS. Raises ConfigError, with the key's path, for a file that cannot be read or does not fit. Blocks for as
    long as reading them takes.
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
    """Whom the system trusts, or `ca` alone."""
    if ca is None:
        return ssl.create_default_context()
    _require_readable("ca", ca)
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ConfigError(f"mqtt.ca = '{ca}': holds no certificate in PEM form ({error.reason})") from error


def _load_own_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _require_readable("certificate", certificate)
    _require_readable("key", key)
    try:
        # An empty pass phrase: else OpenSSL asks for that of an encrypted key on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise ConfigError(
            f"mqtt.key = '{key}': is no unencrypted key in PEM form of mqtt.certificate = '{certificate}' ({error.reason})"
        ) from error


def _require_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise ConfigError(f"mqtt.{name} = '{path}': cannot be read: {error.strerror}") from error
