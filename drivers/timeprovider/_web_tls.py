"""How a unit proves who it is, and what is said when it cannot."""

from __future__ import annotations

import ssl

import aiohttp

from timesyncd.drivers.timeprovider._web_options import WebOptions
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable


def proof(options: WebOptions) -> ssl.SSLContext | aiohttp.Fingerprint:
    """
    What is checked of the certificate before the first octet of a request is sent. Python's contexts speak TLS 1.2 or later,
    also the one that goes with a pinned fingerprint. Raises Unreachable when `ca` cannot be read any more.
    """
    if options.fingerprint is not None:
        return aiohttp.Fingerprint(bytes.fromhex(options.fingerprint))
    if options.insecure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=options.ca)
    except OSError as error:
        raise Unreachable(f"{options.ca}: no certificates can be read there: {error.strerror or error}") from error


def explained(error: aiohttp.ClientError) -> SourceError:
    """
    The same in our words. The client library's own text is not used where the unit wrote a part of it: it has heard the
    password, and could say it again.
    """
    match error:
        case aiohttp.ServerFingerprintMismatch():
            return Refused(
                f"its certificate is not the pinned one: one with fingerprint {error.got.hex()} came, and nothing was sent to it."
                " If the unit's certificate was renewed, look at it on the unit itself and set fingerprint anew"
            )
        case aiohttp.ClientConnectorCertificateError():
            reason = getattr(error.certificate_error, "verify_message", "it is not for this host")
            return Refused(
                f"its certificate cannot be trusted: {reason}; nothing was sent to it."
                " Set ca to what signed the unit's certificate for this host, or pin it with fingerprint"
            )
        case aiohttp.ClientConnectorSSLError():
            reason = getattr(error.os_error, "reason", None) or "the handshake broke off"
            return Refused(f"no TLS 1.2 or later: {reason}")
        case aiohttp.ClientConnectorDNSError():
            return Unreachable("no such host name")
        case aiohttp.ClientConnectorError():
            # The event loop's own error for a handshake that the other end closed bears no number.
            return Unreachable(error.os_error.strerror or "the handshake broke off: does it speak TLS 1.2 or later?")
        case aiohttp.ClientPayloadError():
            return Malformed("the answer broke off half-way")
        case aiohttp.ClientConnectionError():
            return Unreachable("the connection broke off")
        case _:
            return Malformed("the answer is not HTTP")
