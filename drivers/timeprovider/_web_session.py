"""
The session with a grandmaster's web interface: all requests and responses pass `WebSession`, which verifies TLS and limits log-ins.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from pydantic import SecretStr
from yarl import URL

from timesyncd.drivers.timeprovider._web_codec import NotData, login_token
from timesyncd.drivers.timeprovider._web_requests import LOGIN_PATH, AllowedRequest, WebOptions, login
from timesyncd.errors import ConfigError, Malformed, Refused, SourceError, Unreachable


def tls_verification(options: WebOptions) -> ssl.SSLContext | aiohttp.Fingerprint:
    """
    How the certificate is verified before the first octet of a request is sent. Python's contexts require TLS 1.2 or later, also the
    one behind a pinned fingerprint. Raises Unreachable if `ca` can no longer be read.
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
        raise Unreachable(f"{options.ca}: cannot read certificates: {error.strerror or error}") from error


def source_error(error: aiohttp.ClientError) -> SourceError:
    """
    The error as a SourceError. The client library's text is not used where it quotes the peer: the peer has received the password
    and could repeat it.
    """
    match error:
        case aiohttp.ServerFingerprintMismatch():
            return Refused(
                f"the certificate is not the pinned one: its fingerprint is {error.got.hex()}; no request was sent."
                " If the certificate was renewed, read its fingerprint on the grandmaster itself and set fingerprint to it"
            )
        case aiohttp.ClientConnectorCertificateError():
            reason = getattr(error.certificate_error, "verify_message", "it is not for this host")
            return Refused(
                f"the certificate cannot be verified: {reason}; no request was sent."
                " Set ca to the certificate's CA, or pin the certificate with fingerprint"
            )
        case aiohttp.ClientConnectorSSLError():
            reason = getattr(error.os_error, "reason", None) or "the peer closed the connection"
            return Refused(f"the TLS handshake failed: {reason}; TLS 1.2 or later is required")
        case aiohttp.ClientConnectorDNSError():
            return Unreachable("no such host name")
        case aiohttp.ClientConnectorError():
            # asyncio's error for a handshake that the peer closed has no errno.
            closed = "the peer closed the TLS handshake; TLS 1.2 or later is required"
            return Unreachable(error.os_error.strerror or closed)
        case aiohttp.ClientPayloadError():
            return Malformed("the response was cut off")
        case aiohttp.ClientConnectionError():
            return Unreachable("the connection was closed")
        case _:
            return Malformed("the response is not HTTP")


T = TypeVar("T")

MAX_RESPONSE_BYTES = 1 << 20

#: How long no log-in is tried after a rejected one: grandmasters lock an account after an unpublished number of failures.
LOGIN_PAUSE_S = 600

_CHUNK_OCTETS = 65_536
_UNAUTHORIZED = (401, 403)
_HEADERS = {"X-Requested-With": "XMLHttpRequest", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class WebResponse:
    """`redirected`: the response redirects to another page of the same grandmaster."""

    status: int
    redirected: bool
    body: bytes


class WebSession:
    """
    A session that outlives `close`: its cookies stay valid on the grandmaster, so that no new log-in is needed, and a rejected log-in
    is remembered. Its errors name the device and the request.
    """

    def __init__(self, host: str, options: WebOptions, password: SecretStr) -> None:
        """Raises ConfigError."""
        self.device = f"{host}:{options.port}"
        self.last_request = ""
        try:
            self._origin = URL.build(scheme="https", host=host, port=options.port).origin()
        except ValueError as error:
            raise ConfigError(f"host = {host!r}: not a host name or an address") from error
        self._options = options
        self._password = password
        self._client: aiohttp.ClientSession | None = None
        self._cookies: aiohttp.CookieJar | None = None
        self._now_ns = 0
        self._no_login_before_ns = 0
        self._logged_in = self._proven = False
        self._token: tuple[str, str] | None = None

    def open(self) -> None:
        """Raises Unreachable. No connection is made yet."""
        # By default aiohttp drops cookies of a host that is an IP address, and puts quotes around some values.
        self._cookies = self._cookies or aiohttp.CookieJar(unsafe=True, quote_cookie=False)
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls_verification(self._options), limit=1),
            cookie_jar=self._cookies,
            headers=_HEADERS,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(),  # no timeout here: callers set theirs around the request
        )

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def begin(self, boottime_ns: int) -> None:
        """Begin a poll, which may log in once."""
        self._now_ns = boottime_ns
        self._logged_in = self._proven = False
        self._token = None

    async def fetch(self, request: AllowedRequest, parse: Callable[[bytes], T]) -> T:
        """
        The parsed response. A response that is not data means that no session is open: then, once a poll, log in and repeat the
        request. Raises SourceError.
        """
        try:
            data = await self.read(request, parse)
        except NotData:
            if self._logged_in:
                raise
            await self._log_in()
            data = await self._read_after_login(request, parse)
        self._proven = True
        return data

    async def read(self, request: AllowedRequest, parse: Callable[[bytes], T], largest: int = MAX_RESPONSE_BYTES) -> T:
        """The parsed response, without a log-in. Raises SourceError, including NotData."""
        with self._naming(request):
            response = await self._send(request, largest)
            try:
                _check_status(response)
                return await _parsed(response.body, parse)
            except NotData:
                self._token = login_token(response.body)
                raise

    async def _read_after_login(self, request: AllowedRequest, parse: Callable[[bytes], T]) -> T:
        try:
            return await self.read(request, parse)
        except NotData as error:
            if self._proven:
                raise
            raise self._login_rejected(f"the log-in opened no session ({error})") from error

    async def _log_in(self) -> None:
        """Log in. Only an HTTP error is a definite rejection; otherwise the next read shows whether a session is open."""
        if self._now_ns < self._no_login_before_ns:
            rest_s = (self._no_login_before_ns - self._now_ns) // 1_000_000_000
            raise Refused(f"{self.device}: {LOGIN_PATH}: the last log-in was rejected; the next is tried in {rest_s} s")
        self._logged_in = True
        request = login(self._options.username, self._password.get_secret_value(), self._token)
        with self._naming(request):
            response = await self._send(request, MAX_RESPONSE_BYTES)
            if response.status < 400:
                return
            if response.status not in _UNAUTHORIZED:
                raise Refused(f"HTTP status {response.status}")
        raise self._login_rejected(f"{request.label}: HTTP status {response.status}")

    def _login_rejected(self, problem: str) -> Refused:
        self._no_login_before_ns = self._now_ns + LOGIN_PAUSE_S * 1_000_000_000
        return Refused(
            f"{self.device}: {problem}; check username and password, and whether the account is locked."
            f" The next log-in is tried in {LOGIN_PAUSE_S} s"
        )

    async def _send(self, request: AllowedRequest, largest: int) -> WebResponse:
        """Send a request; no other method does. Raises SourceError."""
        if self._client is None:
            raise Unreachable("the session is not open")
        self.last_request = request.label
        try:
            async with self._client.post(
                self._origin.with_path(request.path), data=list(request.fields), allow_redirects=False
            ) as response:
                return WebResponse(response.status, self._redirected(response), await _body(response, largest))
        except aiohttp.ClientError as error:
            failure = source_error(error)
        # Raised outside the except block, so that the library's error with its headers and cookies is not chained to it.
        raise failure

    def _redirected(self, response: aiohttp.ClientResponse) -> bool:
        if not 300 <= response.status < 400:
            return False
        try:
            target = self._origin.join(URL(response.headers.get("Location", ""))).origin()
        except ValueError as error:
            raise Malformed("the response redirects to an invalid address") from error
        if target != self._origin:
            raise Malformed(f"the response redirects to {str(target)[:100]}, another server, which is not followed")
        return True

    @contextmanager
    def _naming(self, request: AllowedRequest) -> Iterator[None]:
        """Prefix errors with the device and the request."""
        try:
            yield
        except SourceError as error:
            raise type(error)(f"{self.device}: {request.label}: {error}") from error


def _check_status(response: WebResponse) -> None:
    """Raises NotData if the grandmaster demands a log-in, Refused for any other error status."""
    if response.redirected:
        raise NotData("the response redirects to another page")
    if response.status in _UNAUTHORIZED:
        raise NotData(f"HTTP status {response.status}")
    if response.status != 200:
        raise Refused(f"HTTP status {response.status}")


async def _parsed(body: bytes, parse: Callable[[bytes], T]) -> T:
    """Parse a large body in a thread: a day's file takes a third of a second."""
    if len(body) > _CHUNK_OCTETS:
        return await asyncio.to_thread(parse, body)
    return parse(body)


async def _body(response: aiohttp.ClientResponse, largest: int) -> bytes:
    """Raises Malformed for a body that is compressed, which was not requested, or too large; the connection is closed then."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Malformed("the response is compressed, although no compression was requested")
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_OCTETS):
        body += chunk
        if len(body) > largest:
            raise Malformed(f"the response exceeds {largest} octets")
    return bytes(body)
